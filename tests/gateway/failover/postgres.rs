//! PostgreSQL with a standby that is promoted, and a password that changes in its file.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Replicas, creations, recovered};
use crate::harness::failover::Standby;
use crate::harness::servers::{self, Postgres};
use crate::harness::{Builder, Pair, Request, calmly, until_holds};

/// Time for the gateways to find the server that takes writes.
const FOLLOWED: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_has_all_that_was_acknowledged() {
    calmly(async || {
        let both = Standby::start();
        // The standby first: it takes no writes, so the other one is found at the start.
        let sql = both.database([&both.standby, &both.primary]);
        let replicas = Replicas::new(&sql, &servers::redis().url()).await;
        replicas.are_one("before").await;

        let (over, load) = replicas.load();
        let (enough, created) = creations(&replicas.gateways[0]);
        until_holds("some are acknowledged", async || {
            let made = Request::get("/workspaces/made-20");
            replicas.gateways[1].as_operator(made).await.status == 200
        })
        .await;
        both.primary.kill();
        until_holds("changes are refused", async || {
            let body = r#"{"id":"lost","name":"lost"}"#;
            replicas.gateways[1]
                .as_operator(Request::post("/workspaces", body))
                .await
                .status
                == 503
        })
        .await;
        both.promote();
        let took = recovered(&replicas, "promoted").await;
        println!("standby promoted: changes are taken after {took:?}");
        assert!(took < FOLLOWED, "{took:?}");
        enough.store(true, Ordering::Release);
        let acknowledged = created.await.unwrap();
        replicas.are_one("promoted").await;
        for id in &acknowledged {
            let path = format!("/workspaces/{id}");
            let answer = replicas.gateways[1].as_operator(Request::get(path)).await;
            assert_eq!(answer.status, 200, "{id}: {}", answer.text());
        }
        over.store(true, Ordering::Release);
        let calls = load.await.unwrap();
        println!(
            "{} workspaces acknowledged, none lost; {calls} calls, none refused",
            acknowledged.len()
        );
    })
    .await;
}

#[tokio::test]
async fn a_password_changes_in_its_file_without_a_restart() {
    let server = Postgres::start();
    server.statement("CREATE ROLE gateway LOGIN SUPERUSER PASSWORD 'first'");
    let rules = server.data().join("pg_hba.conf");
    let before = std::fs::read_to_string(&rules).unwrap();
    let mut file = std::fs::File::create(&rules).unwrap();
    write!(
        file,
        "host all gateway 127.0.0.1/32 scram-sha-256\n{before}"
    )
    .unwrap();
    server.statement("SELECT pg_reload_conf()");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let port = server.port();
    let sql = format!(
        "postgres://gateway@127.0.0.1:{port}/postgres?password_file={}",
        file.display()
    );
    let builder = Builder::new(Pair::Embedded).stores(&sql, &servers::redis().url());
    let gateway = builder.start().await;
    std::fs::write(&file, "second\n").unwrap();
    until_holds("the file is read again", async || {
        gateway.log().contains("password_file has another password")
    })
    .await;
    server.statement("ALTER ROLE gateway PASSWORD 'second'");
    let ended =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'gateway'";
    assert_ne!(server.statement(ended), "0");
    until_holds("a new connection is made", async || {
        let body = r#"{"id":"later","name":"later"}"#;
        let answer = gateway
            .as_operator(Request::post("/workspaces", body))
            .await;
        matches!(answer.status, 201 | 409)
    })
    .await;
}
