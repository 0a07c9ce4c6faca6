//! PostgreSQL with a standby that is promoted, and a password and a client certificate that change in their files.

use std::sync::atomic::Ordering;

use super::{Replicas, creations, made, recovered, until_logged, until_made};
use crate::harness::authority::{Authority, write_secret};
use crate::harness::failover::Standby;
use crate::harness::servers::{self, Postgres};
use crate::harness::{Builder, Pair, Request, until_holds};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_has_all_that_was_acknowledged() {
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
    let is_refused = async || made(&replicas.gateways[1], "lost").await == 503;
    until_holds("changes are refused", is_refused).await;
    both.promote();
    let took = recovered(&replicas, "promoted").await;
    println!("standby promoted: changes are taken after {took:?}");
    enough.store(true, Ordering::Release);
    let acknowledged = created.await.unwrap();
    replicas.are_one("promoted").await;
    for id in &acknowledged {
        let path = format!("/workspaces/{id}");
        let answer = replicas.gateways[1].as_operator(Request::get(path)).await;
        assert_eq!(answer.status, 200, "{id}: {}", answer.text());
    }
    over.store(true, Ordering::Release);
    let (calls, all) = (load.await.unwrap(), acknowledged.len());
    println!("{all} workspaces acknowledged, none lost; {calls} calls, none refused");
}

#[tokio::test]
async fn a_password_changes_in_its_file_without_a_restart() {
    let server = Postgres::start();
    make_user(&server, "host all gateway 127.0.0.1/32 scram-sha-256");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let sql = format!("{}?password_file={}", url(&server), file.display());
    let builder = Builder::new(Pair::Embedded).stores(&sql, &servers::redis().url());
    let gateway = builder.start().await;
    std::fs::write(&file, "second\n").unwrap();
    let holds = async || gateway.log().contains("password_file has another password");
    until_holds("the file is read again", holds).await;
    server.statement("ALTER ROLE gateway PASSWORD 'second'");
    end_connections(&server);
    until_made(&gateway, "later", "a new connection is made").await;
}

/// Where the user `gateway` finds the server.
fn url(server: &Postgres) -> String {
    format!("postgres://gateway@127.0.0.1:{}/postgres", server.port())
}

/// Makes a user `gateway`, whose password is `first`, and puts `rule` before the other ones of `pg_hba.conf`.
fn make_user(server: &Postgres, rule: &str) {
    server.statement("CREATE ROLE gateway LOGIN SUPERUSER PASSWORD 'first'");
    let rules = server.data().join("pg_hba.conf");
    let before = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(&rules, format!("{rule}\n{before}")).unwrap();
    server.statement("SELECT pg_reload_conf()");
}

/// Ends the connections of the user `gateway`.
fn end_connections(server: &Postgres) {
    let ended =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'gateway'";
    assert_ne!(server.statement(ended), "0");
}

/// Has the server believe the client certificates of an authority, and of no other.
fn believe(server: &Postgres, authority: &Authority) {
    std::fs::write(server.data().join("clients.pem"), authority.pem()).unwrap();
    server.statement("ALTER SYSTEM SET ssl_ca_file = 'clients.pem'");
    server.statement("SELECT pg_reload_conf()");
}

#[tokio::test]
async fn a_client_certificate_is_shown_and_changes_in_its_file_without_a_restart() {
    let server = Postgres::start_tls();
    let [first, second] = ["first", "second"].map(Authority::new);
    believe(&server, &first);
    // `host` would let in by a connection without TLS, too.
    let rule =
        "hostssl all gateway 127.0.0.1/32 trust clientcert=verify-ca\nhost all gateway all reject";
    make_user(&server, rule);

    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["client.pem", "client.key"].map(|name| folder.path().join(name));
    let show = |authority: &Authority| {
        let issued = authority.issue(&["gateway"]);
        std::fs::write(&certificate, issued.pem).unwrap();
        write_secret(&key, issued.key);
    };
    show(&first);
    let issuer = server.issuer();
    let verify = format!("sslmode=verify-full&sslrootcert={}", issuer.display());
    let anonymous = format!("{}?{verify}", url(&server));
    let (shown, its_key) = (certificate.display(), key.display());
    let sql = format!("{anonymous}&sslcert={shown}&sslkey={its_key}");
    let shared = servers::redis().url();
    let gateway = Builder::new(Pair::Embedded).stores(&sql, &shared);
    let gateway = gateway.start().await;

    // Each connection of the pool reads the files anew.
    believe(&server, &second);
    end_connections(&server);
    let is_refused = async || made(&gateway, "refused").await == 503;
    until_holds("the certificate of before is refused", is_refused).await;
    show(&second);
    until_made(&gateway, "later", "a new connection is made").await;
    let encrypted = "SELECT bool_and(ssl AND client_dn IS NOT NULL) FROM pg_stat_ssl JOIN pg_stat_activity \
                     USING (pid) WHERE usename = 'gateway'";
    assert_eq!(server.statement(encrypted), "t");

    // Without a certificate it is not let in.
    let anonymous = Builder::new(Pair::Embedded).stores(&anonymous, &shared);
    let why = "connection requires a valid client certificate";
    until_logged(&anonymous.spawn(), why).await;
}
