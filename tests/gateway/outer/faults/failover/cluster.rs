//! Redis Cluster: slots that move, a master that hands over, one that dies.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Replicas, recovered, until_logged};
use crate::harness::cluster::Cluster;
use crate::harness::documents::{block_of, text_of};
use crate::harness::servers::{self, Redis};
use crate::harness::{Builder, Pair};

/// The channel of invalidations.
const KEY: &str = "gw:invalidate";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_and_masters_change_under_load() {
    let cluster = Cluster::start();
    let sql = servers::postgres().database();
    let replicas = Replicas::new(&sql, &cluster.url()).await;
    replicas.are_one("before").await;
    let (over, load) = replicas.load();

    // The slots of each channel and key move to another master, and others back.
    let from = cluster.owner(KEY);
    let to = cluster.owner_besides(from);
    cluster.reshard(from, to, 2000);
    let took = recovered(&replicas, "moved").await;
    println!("2000 slots moved: one gateway again after {took:?}");
    replicas.are_one("moved").await;

    // A planned change: the old master goes on, as a replica.
    let old = cluster.owner(KEY);
    cluster.replica(old).command(&["CLUSTER", "FAILOVER"]);
    cluster.until_owned_by_another(KEY, old);
    let took = recovered(&replicas, "handed-over").await;
    println!("master handed over: one gateway again after {took:?}");
    replicas.are_one("handed-over").await;

    // It dies; its replica becomes the master.
    let master = cluster.owner(KEY);
    let killed = Instant::now();
    master.kill();
    cluster.until_owned_by_another(KEY, master);
    let elected = killed.elapsed();
    let took = recovered(&replicas, "killed").await;
    println!("master killed: another after {elected:?}, one gateway again {took:?} later");
    replicas.are_one("killed").await;

    // It comes back, and becomes a replica.
    master.restart();
    replicas.are_one("back").await;
    over.store(true, Ordering::Release);
    println!("{} calls, none refused", load.await.unwrap());
}

/// Commands that the documented user needs in a cluster besides.
const OF_CLUSTERS: &str = "+role +asking +spublish +ssubscribe +cluster|info +cluster|slots";

/// Makes the user of `docs/guide/deploy.md` at each node.
fn make_user(nodes: &[Redis], password: &str) {
    let guide = "docs/guide/deploy.md";
    let page = text_of(guide).replace('\n', " ");
    assert!(page.contains(OF_CLUSTERS), "{guide}");
    let steps = block_of(guide, "## A Redis user of its own", "sh");
    let steps = steps.replace("PASSWORD", password);
    let more = format!("ACL SETUSER a2a_gateway {OF_CLUSTERS}");
    let lines = steps.lines().filter(|line| line.starts_with("ACL "));
    let mut lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 4);
    lines.extend([&*more, "CONFIG SET notify-keyspace-events Ex"]);
    for node in nodes {
        for line in &lines {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(node.command(&words), "OK", "{line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_user_is_let_in_by_tls_with_a_password_that_changes_in_its_file() {
    let cluster = Cluster::start_tls();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "first-secret\n").unwrap();
    make_user(cluster.nodes(), "first-secret");
    let (url, issuer) = cluster.tls_url("a2a_gateway");
    let unchecked = format!("{url}?password_file={}", file.display());
    let url = format!("{unchecked}&sslrootcert={}", issuer.display());
    let sql = servers::postgres().database();
    let replicas = Replicas::new(&sql, &url).await;
    replicas.are_one("first").await;

    std::fs::write(&file, "second-secret\n").unwrap();
    for node in cluster.nodes() {
        let user = ["ACL", "SETUSER", "a2a_gateway", "resetpass"];
        node.command(&[&user[..], &[">second-secret"]].concat());
        // Connections that were made with the first end: each is made again.
        node.command(&["CLIENT", "KILL", "USER", "a2a_gateway"]);
    }
    for gateway in &replicas.gateways {
        until_logged(gateway, "Lost a subscription to shared state").await;
    }
    recovered(&replicas, "second").await;
    replicas.are_one("second").await;
    for node in cluster.nodes() {
        // Reasons of what a user was denied, but for a password.
        let denied = node.command(&["ACL", "LOG"]);
        let is_denied = |line| matches!(line, "command" | "key" | "channel");
        assert!(!denied.lines().any(is_denied), "{denied}");
    }
    for gateway in &replicas.gateways {
        let log = gateway.log();
        assert!(!log.contains("-secret") && !log.contains("NOPERM"), "{log}");
    }

    // Without the issuer no node is believed.
    let stranger = Builder::new(Pair::Embedded).stores(&sql, &unchecked);
    let stranger = stranger.spawn();
    until_logged(&stranger, "none of 3 nodes of the cluster answers").await;
    until_logged(&stranger, "certificate").await;
}
