//! Owners in Redis: for every replica, over a restart, and when Redis is away.

use serde_json::json;

use super::{Team, call, refused, rpc, send, served};
use crate::harness::servers::Redis;
use crate::harness::{ADMIN, Connection, Request, Stores, until_holds};

/// Waits until Redis answers `words` with `expected`.
async fn until(redis: &Redis, words: &[&str], expected: &str) {
    let says = async || redis.command(words).trim() == expected;
    until_holds(&format!("{words:?} says {expected}"), says).await;
}

/// Nobody beats here.
const CALM: &str = "registry.heartbeat_ttl=1h";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_knows_the_owner_also_after_a_restart_and_nobody_guesses_without_redis() {
    let stores = Stores::start();
    let redis = &stores.redis;
    let [mut one, other] = stores.replicas(CALM).await;
    let team = Team::below(&one, "").await;
    let agent = &team.dev.agent;
    let (ann, bob, boss) = (&team.ann.token, &team.bob.token, &team.boss.token);
    let mut at_one = Connection::open(one.public).await;
    for (task, key) in [("t-1", "t-1"), ("t:*\r\nx", "t%3A%2A%0D%0Ax")] {
        let start = send("message/send", &json!({"id": task}).to_string());
        assert_eq!(call(&mut at_one, ann, &start).await.status, 200);
        let key = format!("gw:task:dev:{key}");
        until(redis, &["GET", &key], "ann").await;
        let ttl: u64 = redis.command(&["TTL", &key]).trim().parse().unwrap();
        assert!((86_000..=86_400).contains(&ttl), "{ttl}");
    }
    until(redis, &["GET", "gw:task-at:ann:t-1"], "dev").await;
    let ask = rpc("tasks/get", &json!({"id": "t-1"}));
    let mut at_other = Connection::open(other.public).await;
    refused(&mut at_other, bob, &ask, agent).await;
    for token in [ann, boss, ADMIN] {
        served(&mut at_other, token, &ask, agent).await;
    }
    one.restart().await;
    let mut at_one = Connection::open(one.public).await;
    // A use by its owner lets it live on.
    redis.command(&["EXPIRE", "gw:task:dev:t-1", "600"]);
    refused(&mut at_one, bob, &ask, agent).await;
    served(&mut at_one, ann, &ask, agent).await;
    let is_renewed = async || redis.command(&["TTL", "gw:task:dev:t-1"]).trim().len() == 5;
    until_holds("it is renewed", is_renewed).await;
    redis.kill();
    // What is known here is decided here; what is not, by nobody.
    refused(&mut at_one, bob, &ask, agent).await;
    let unknown = rpc("tasks/get", &json!({"id": "t-2"}));
    let before = agent.count();
    for token in [ann, bob, boss] {
        let answer = call(&mut at_one, token, &unknown).await;
        answer.refuses(503, "store_unavailable");
        assert_eq!(answer.field("retry-after"), Some("1"));
    }
    assert_eq!(agent.count(), before);
    served(&mut at_one, ADMIN, &unknown, agent).await;
    // Messages go on, and their tasks are their senders'. They are written down when Redis is back.
    let start = send("message/send", r#"{"id":"t-3"}"#);
    assert_eq!(call(&mut at_one, ann, &start).await.status, 200);
    redis.restart();
    until(redis, &["GET", "gw:task:dev:t-3"], "ann").await;
    // Leases are gone with the old Redis: the agent beats again.
    let ask = rpc("tasks/get", &json!({"id": "t-3"}));
    let beat = Request::post("/registry/heartbeat", r#"{"workspace_id":"dev"}"#);
    let beat = beat.bearer(&team.dev.token);
    let asked = Request::post("/workspaces/dev/a2a", ask).bearer(bob);
    let is_known = async || {
        other.call(&beat).await;
        let answer = other.call(&asked).await;
        assert!(answer.field("x-a2a-refused").is_some(), "{}", answer.text());
        answer.reason() == "task_not_found"
    };
    until_holds("the owner is known there", is_known).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_replicas_that_learn_at_once_the_first_in_redis_is_right() {
    let stores = Stores::start();
    let redis = &stores.redis;
    let [one] = stores.replicas(CALM).await;
    let team = Team::below(&one, "").await;
    // Another replica was faster.
    redis.command(&["SET", "gw:task:dev:t-1", "bob", "EX", "3600"]);
    let mut connection = Connection::open(one.public).await;
    let start = send("message/send", r#"{"id":"t-1"}"#);
    let answer = call(&mut connection, &team.ann.token, &start);
    answer.await.has(200);
    let ask = rpc("tasks/get", &json!({"id": "t-1"}));
    let asked = Request::post("/workspaces/dev/a2a", &ask).bearer(&team.ann.token);
    let is_hers = async || {
        let answer = one.call(&asked).await;
        answer.field("x-a2a-refused") != Some("task_not_found")
    };
    until_holds("it believes Redis", async || !is_hers().await).await;
    served(&mut connection, &team.bob.token, &ask, &team.dev.agent).await;
    assert_eq!(redis.command(&["GET", "gw:task:dev:t-1"]).trim(), "bob");
}
