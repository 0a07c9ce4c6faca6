//! Where an explanation knows from, and how old that is: memory, Redis and SQL, there and away.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Met, agree, call, explain, last, step};
use crate::harness::relay::Relay;
use crate::harness::servers::{self, Redis};
use crate::harness::{ADMIN, Agent, Builder, Gateway, Pair, Seat, until_found, until_holds};
use crate::operators::staged;

/// A gateway whose stores can go away.
struct Site {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
    sql: Relay,
    shared: Relay,
    redis: Redis,
}

impl Site {
    async fn new(timeout: &str) -> Self {
        let redis = Redis::start();
        let (shared, shared_url) = redis.relayed();
        let (sql, sql_url) = servers::postgres().relayed();
        let builder = Builder::new(Pair::Embedded).stores(&sql_url, &shared_url);
        let builder = builder.set("stores.timeout", timeout);
        let builder = builder.set("directory.stale", "60s");
        let (gateway, caller, target) = staged(builder, Agent::json("{}").await).await;
        gateway.until_coherent().await;
        Self {
            gateway,
            caller,
            target,
            sql,
            shared,
            redis,
        }
    }

    async fn explain(&self) -> Value {
        explain(&self.gateway, "caller", "target").await
    }

    async fn agree(&self, what: &str) -> (String, Value) {
        let who = ("caller", &*self.caller.token);
        agree(&self.gateway, who, "target", what).await
    }

    /// Asks until the place of `target` is in memory: of a caller who may not reach it, so that no more
    /// than its place is read.
    async fn place_known(&self, caller: &Seat, target: &str) {
        until_holds("its place is in memory", async || {
            let explained = explain(&self.gateway, &caller.id, target).await;
            assert_eq!(last(&explained), "rule", "{explained:#}");
            from(&explained, "target_place").0 == "memory"
        })
        .await;
    }

    /// Asks and sends until both say the same, since a store's absence is found out step by step.
    async fn agree_soon(&self, target: &str, what: &str) -> String {
        until_found(what, async || {
            let explained = explain(&self.gateway, "caller", target).await;
            let met = self.gateway.call(&call(target, &self.caller.token)).await;
            let met = Met::of_message(&met);
            (Met::of_explanation(&explained) == met).then_some(met.reason)
        })
        .await
    }
}

fn from<'a>(explained: &'a Value, name: &str) -> (&'a str, u64) {
    let step = step(explained, name);
    let (source, age) = (step["source"].as_str(), step["age_ms"].as_u64());
    (source.unwrap(), age.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_says_where_and_what_is_remembered_how_long_ago() {
    let site = Site::new("20s").await;
    // Whatever a registration left in memory is dropped with the move and the change.
    for id in ["caller", "target"] {
        let moved = site.gateway.patch(id, json!({"org": "o"})).await;
        assert_eq!(moved.status, 200);
    }
    // Both come back by Redis, and what is read before that would be read again.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let cold = site.explain().await;
    for (name, source) in [
        ("process", "memory"),
        ("places", "memory"),
        ("target", "question"),
        ("caller", "sql"),
        ("rate", "memory"),
        ("caller_place", "sql"),
        ("target_place", "sql"),
        ("state", "sql"),
        ("liveness", "redis"),
        ("url", "redis"),
        ("upstream", "sql"),
        ("slots", "memory"),
        ("address", "memory"),
        ("limits", "config"),
    ] {
        let (said, age) = from(&cold, name);
        assert_eq!(said, source, "{name}: {cold:#}");
        assert!(age < 60_000, "{name}: {cold:#}");
    }
    let liveness = &step(&cold, "liveness")["fact"];
    let beat = liveness["heartbeat_age_ms"].as_u64().unwrap();
    let left = liveness["lapses_in_ms"].as_u64().unwrap();
    assert!(left + beat == 90_000 && left > 60_000, "{cold:#}");
    assert_eq!(step(&cold, "url")["fact"]["from"], "ws:target:url");
    assert_eq!(site.target.agent.count(), 0, "nothing was sent");
    until_holds("all is in memory", async || {
        let (met, warm) = site.agree("in memory").await;
        assert_eq!(met, "sent");
        let mut facts = "caller_place target_place state liveness url upstream".split(' ');
        facts.all(|name| matches!(from(&warm, name), ("memory", 1..)))
    })
    .await;
    // Another program writes the URL.
    let planted = "http://user:planted@127.0.0.1:1/";
    site.redis.command(&["SET", "ws:target:url", planted]);
    let explained = until_found("the new URL", async || {
        let explained = site.explain().await;
        (explained["admitted"] == false).then_some(explained)
    })
    .await;
    assert_eq!(last(&explained), "url");
    assert_eq!(explained["reason"], "address_forbidden");
    let url = &step(&explained, "url")["fact"]["url"];
    assert_eq!(url, "http://***@127.0.0.1:1/");
    assert!(!explained.to_string().contains("planted"), "{explained:#}");
    let (met, _) = site.agree("a URL that is refused").await;
    assert_eq!(met, "address_forbidden");
}

/// Both agree while a store is away, whatever they say.
pub(super) async fn away(seen: &mut BTreeSet<String>) {
    let site = Site::new("3s").await;
    let cold = site.gateway.seat("cold", "", Agent::json("{}").await).await;
    let agent = Agent::json("{}").await;
    let child = site.gateway.seat("child", "target", agent).await;
    assert_eq!(site.agree("all is well").await.0, "sent");
    let request = call("target", &site.caller.token);
    let ask = async || assert_eq!(site.gateway.call(&request).await.status, 200);
    site.gateway.until_warm(ask).await;
    site.place_known(&child, "cold").await;
    site.sql.cut();
    // In memory, and linked: it goes on.
    let known = site.agree_soon("target", "SQL away, in memory").await;
    assert_eq!(known, "sent");
    let unknown = site.agree_soon("cold", "SQL away, unknown").await;
    assert_eq!(unknown, "store_unavailable");
    let explained = explain(&site.gateway, "caller", "cold").await;
    // Its place is in memory; its row was never read.
    let (at, source) = (last(&explained), from(&explained, last(&explained)).0);
    assert_eq!((at, source), ("state", "sql"), "{explained:#}");
    let because = &step(&explained, "state")["fact"]["because"];
    let because = because.as_str().unwrap();
    assert!(because.starts_with("sql store: "), "{explained:#}");
    // A caller whose credential nobody remembers.
    let explained = explain(&site.gateway, "cold", "target").await;
    let met = site.gateway.call(&call("target", &cold.token)).await;
    let met = Met::of_message(&met);
    assert_eq!(Met::of_explanation(&explained), met, "{explained:#}");
    let (at, source) = (last(&explained), from(&explained, "caller").0);
    assert_eq!((at, source), ("caller", "sql"));
    seen.insert(met.reason);
    // The entry goes, and what was known of it counts. Of an operator, who needs no place to be known.
    let gone = ["PUBLISH", "gw:invalidate", "address:target"];
    site.redis.command(&gone);
    let stale = until_found("what was known counts", async || {
        let explained = site.explain().await;
        let is_stale = step(&explained, "state")["fact"]["stale"] == true;
        (explained["admitted"] == true && is_stale).then_some(explained)
    })
    .await;
    assert!(from(&stale, "state").1 > 0, "{stale:#}");
    assert_eq!(site.agree_soon("target", "stale").await, "sent");
    site.sql.resume();
    site.shared.cut();
    // No lease can be read: the status counts.
    assert_eq!(site.agree_soon("target", "Redis away").await, "sent");
    until_holds("no lease can be read", async || {
        let explained = site.explain().await;
        let liveness = &step(&explained, "liveness")["fact"];
        let is_away = liveness["beats"].is_null() && liveness["unavailable"].is_string();
        assert!(!is_away || explained["admitted"] == true, "{explained:#}");
        is_away
    })
    .await;
    site.sql.cut();
    // Nothing counts for longer than a second without a link.
    let away = async || site.agree_soon("target", "both away").await == "store_unavailable";
    until_holds("no store, no message", away).await;
    // What is known of the target may end between the two.
    until_holds("an operator meets what is explained", async || {
        let operator = explain(&site.gateway, "operator", "target").await;
        let met = Met::of_message(&site.gateway.call(&call("target", ADMIN)).await);
        Met::of_explanation(&operator) == met
    })
    .await;
}
