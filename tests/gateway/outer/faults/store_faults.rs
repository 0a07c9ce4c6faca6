//! Stores that answer and are not well: a Redis that takes no writes, issuers that are not trusted, clocks apart,
//! a Redis user that may do only what the documents list.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::harness::documents::block_of;
use crate::harness::servers::{Postgres, Redis};
use crate::harness::{Agent, Builder, Gateway, Pair, Request, Stores, answering, until_holds};

async fn until_ready_says(gateway: &Gateway, status: u16, shared: &str) {
    until_holds(&format!("ready says {status} {shared}"), async || {
        let ready = gateway.admin_get("/readyz").await.unwrap();
        ready.status == status && ready.json()["shared"] == shared
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_becomes_a_replica_is_not_ready_and_the_log_says_so_unasked() {
    let (stores, leader) = (Stores::start(), Redis::start());
    let redis = &stores.redis;
    let gateway = stores.builder().start().await;
    let (caller, target) = gateway.pair(answering().await).await;
    gateway.call(&caller.calls(&target)).await.has(200);
    redis.follow(&leader);
    // Nothing asks this gateway meanwhile.
    gateway.until_told("A store takes no writes", 1).await;
    let said = "You can't write against a read only replica";
    assert!(gateway.log().contains(said), "{}", gateway.log());
    until_ready_says(&gateway, 503, "unavailable").await;
    // What is in memory is served on, so a balancer goes on to send here.
    let traffic = gateway.admin_get("/readyz/traffic").await.unwrap();
    assert_eq!(traffic.has(200).json()["shared"], "unavailable");
    redis.lead();
    gateway.until_told("A store takes writes again", 1).await;
    until_ready_says(&gateway, 200, "ok").await;
    // A full one answers `PING` and `DEL`.
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    until_ready_says(&gateway, 503, "unavailable").await;
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    until_ready_says(&gateway, 200, "ok").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_stores_are_trusted_by_ssl_cert_file() {
    let (redis, postgres) = (Redis::start_tls(), Postgres::start_tls());
    let (shared, redis_issuer) = redis.bare_url();
    let sql = format!("{}?sslmode=verify-full", postgres.database());
    let folder = tempfile::tempdir().unwrap();
    let issuers = folder.path().join("issuers.pem");
    let both = [redis_issuer, postgres.issuer()].map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(&issuers, both.concat()).unwrap();
    let builder = || Builder::new(Pair::Embedded).stores(&sql, &shared);
    let trusting = builder().env("SSL_CERT_FILE", issuers.to_str().unwrap());
    trusting.start().await.found("a").await;
    let wary = builder().spawn();
    let ready = wary.admin_get("/readyz").await.unwrap().has(503).json();
    assert_eq!(ready["shared"], "unavailable");
    assert_eq!(ready["sql"], "unavailable");
    wary.until_told("UnknownIssuer", 1).await;
    // By URL, for one store alone.
    let sql = format!("{sql}&sslrootcert={}", postgres.issuer().display());
    let by_url = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
    by_url.start().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_redis_user_may_do_all_that_a_gateway_does() {
    let Stores { redis, sql } = Stores::start();
    let guide = "docs/guide/deploy.md";
    let steps = block_of(guide, "## A Redis user of its own", "sh");
    let steps = steps.replace("PASSWORD", "secret-of-the-test");
    let steps = steps.replace("redis-cli ", &format!("redis-cli -u {} ", redis.url()));
    let made = Command::new("bash").args(["-euc", &steps]).output();
    let made = made.unwrap().stdout;
    assert_eq!(String::from_utf8_lossy(&made), "OK\nOK\nOK\nOK\n");
    redis.command(&["CONFIG", "SET", "notify-keyspace-events", "Ex"]);
    let user = "redis://a2a_gateway:secret-of-the-test@";
    let url = redis.url().replace("redis://", user);
    let cap = r#"[{"name":"c","per":"org","count":"messages","limit":99,"window":"1h"}]"#;
    let builder = Builder::new(Pair::Embedded)
        .stores(&sql, &url)
        .set("cap", cap);
    // Longer than a busy machine takes until `target` is assumed to live.
    let gateway = builder.set("registry.heartbeat_ttl", "15s").start().await;
    gateway.until_coherent().await;
    let working = json!({"state": "working"});
    let task = json!({"kind": "task", "id": "t-1", "contextId": "c", "status": working});
    let answer = json!({"jsonrpc": "2.0", "id": "c-1", "result": task});
    let agent = Agent::json(&answer.to_string()).await;
    let (caller, target) = gateway.pair(agent).await;
    // Its heartbeats are not awaited.
    let assumed = gateway.patch("target", json!({"liveness": "assumed"}));
    assumed.await.has(200);
    let call = caller.calls(&target);
    let keyed = call.clone().field("Idempotency-Key", "k-1");
    for request in [&call, &keyed] {
        gateway.call(request).await.has(200);
    }
    let ticket = Request::post("/events/tickets", "");
    let ticket = gateway.as_operator(ticket).await;
    assert!(ticket.status < 500, "{}", ticket.text());
    let caps = gateway.as_operator(Request::get("/caps")).await.json();
    assert_eq!(caps["caps"][0]["subjects"][0]["used"], 2, "{caps}");
    let beat = Request::post("/registry/heartbeat", r#"{"workspace_id":"caller"}"#);
    gateway.call(&beat.bearer(&caller.token)).await.has(200);
    // The lapse is told by Redis, and swept.
    let lapses = "a2a_gateway_lapses_total";
    gateway.until_counted(lapses, &[], 1.0).await;
    let denied = redis.command(&["ACL", "LOG"]);
    assert_eq!(denied, "", "what the user was denied");
    assert!(!gateway.log().contains("NOPERM"), "{}", gateway.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_differs_from_the_stores_is_told_of() {
    let library = ["x86_64", "aarch64"]
        .map(|machine| format!("/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1"));
    let mut library = library.iter().filter(|file| Path::new(file).exists());
    let library = library
        .next()
        .expect("libfaketime (apt-get install faketime)");
    let stores = Stores::start();
    let faked = stores
        .builder()
        .env("LD_PRELOAD", library)
        .env("FAKETIME", "+60s");
    let gateway = faked.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").spawn();
    let told = "The clock of a store and of this machine differ";
    gateway.until_told(told, 2).await;
}
