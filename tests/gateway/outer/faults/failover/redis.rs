//! Redis behind sentinels, and a password that changes in its file.

use std::sync::atomic::Ordering;

use super::{Replicas, recovered, until_logged};
use crate::harness::failover::Sentinels;
use crate::harness::servers::{self, Redis};
use crate::harness::{Builder, Pair, until_holds};

/// Clients of a server that subscribe or track keys: the gateways' links.
fn links(redis: &Redis) -> usize {
    let clients = redis.command(&["CLIENT", "LIST"]);
    let is_link = |client: &&str| {
        let mut words = client.split(' ');
        let flags = words.find_map(|word| word.strip_prefix("flags="));
        // `P` and `t`; sentinels subscribe, too, by RESP2.
        flags.is_some_and(|flags| flags.contains(['P', 't'])) && client.contains("resp=3")
    };
    clients.lines().filter(is_link).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_replaced_and_a_demoted_one_is_left() {
    let sentinels = Sentinels::start();
    let sql = servers::postgres().database();
    let replicas = Replicas::new(&sql, &sentinels.url()).await;
    replicas.are_one("before").await;

    // A planned change: the old master goes on, as a replica.
    let (over, load) = replicas.load();
    let (old, _) = sentinels.roles();
    sentinels.fail_over();
    // It finds the new master; the old one takes writes for some seconds, and tells the others that it is one.
    let third = Builder::new(Pair::Embedded).stores(&sql, &sentinels.url());
    let third = third.set("registry.heartbeat_ttl", "1h").start().await;
    third.until_coherent().await;
    let [one, _] = &replicas.gateways;
    let starts = "a gateway that starts";
    replicas.is_obeyed_by(one, &third, starts).await;
    let took = recovered(&replicas, "demoted").await;
    println!("master demoted: one gateway again after {took:?}");
    replicas.are_one("demoted").await;
    let holds = async || links(old) == 0;
    until_holds("nothing listens to the old master", holds).await;

    // It dies; the sentinels make the other one the master.
    let (master, next) = sentinels.roles();
    master.kill();
    let is_noticed = async || one.metric("a2a_gateway_coherent", &[]).await == 0.0;
    until_holds("the death is noticed", is_noticed).await;
    let took = recovered(&replicas, "killed").await;
    println!("master killed: one gateway again after {took:?}");
    replicas.are_one("killed").await;
    // A sentinel may hear of the change later than the gateways.
    assert!(links(next) > 0);

    // It comes back, and becomes a replica.
    master.restart();
    replicas.are_one("back").await;
    over.store(true, Ordering::Release);
    println!("{} calls, none refused", load.await.unwrap());
}

#[tokio::test]
async fn without_sentinels_a_gateway_is_not_ready_and_says_why() {
    let sql = servers::postgres().database();
    let url = "redis+sentinel://127.0.0.1:1,127.0.0.1:2/main";
    let gateway = Builder::new(Pair::Embedded).stores(&sql, url).spawn();
    let why = "none of 2 sentinels names a master of `main` in time";
    until_logged(&gateway, why).await;
}

/// Has Redis take another password, as its user and in the file.
fn set_password(redis: &Redis, file: &std::path::Path, password: &str) {
    std::fs::write(file, format!("{password}\n")).unwrap();
    let rule = format!("ACL SETUSER gateway on resetpass >{password} ~* &* +@all");
    redis.command(&rule.split(' ').collect::<Vec<_>>());
}

#[tokio::test]
async fn a_password_changes_in_its_file_without_a_restart() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    set_password(&redis, &file, "first");
    let sql = servers::postgres().database();
    let (port, path) = (redis.port(), file.display());
    let url = format!("redis://gateway@127.0.0.1:{port}?password_file={path}");
    let builder = Builder::new(Pair::Embedded).stores(&sql, &url);
    let gateway = builder.start().await;
    gateway.until_coherent().await;
    set_password(&redis, &file, "second");
    // Connections that were made with the first end: each is made again.
    redis.command(&["CLIENT", "KILL", "USER", "gateway"]);
    until_logged(&gateway, "Lost a subscription to shared state").await;
    gateway.until_coherent().await;
    gateway.found("later").await;
    let log = gateway.log();
    assert!(!log.contains("first") && !log.contains("second"), "{log}");
}
