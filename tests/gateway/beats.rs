//! Liveness over three replicas on one Redis and one PostgreSQL (contract §4.2): what a heartbeat says counts on all of
//! them, and nobody who beats is offline. Who falls silent: `beats_events`.

use std::cell::Cell;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::servers::{self, Redis};
use crate::harness::{Agent, Answer, Builder, CALL, Gateway, Pair, Request, Seat, until_holds};

pub(crate) struct Replicas {
    pub(crate) all: Vec<Gateway>,
    pub(crate) target: Seat,
    /// A time before the first lease of the target.
    pub(crate) since: Instant,
    redis: Redis,
}

impl Replicas {
    /// `notices`: what Redis tells of keys, its `notify-keyspace-events`; `ttl`: `registry.heartbeat_ttl`.
    pub(crate) async fn new(notices: &str, ttl: &str) -> Self {
        let redis = Redis::start();
        redis.command(&["config", "set", "notify-keyspace-events", notices]);
        let sql = servers::postgres().database();
        let start = async || {
            let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
            let gateway = builder.set("registry.heartbeat_ttl", ttl).start().await;
            gateway.until_coherent().await;
            gateway
        };
        let first = start().await;
        let (second, third) = tokio::join!(start(), start());
        let since = Instant::now();
        let target = first.seat("target", "", Agent::json("{}").await).await;
        Self {
            all: vec![first, second, third],
            target,
            since,
            redis,
        }
    }

    pub(crate) async fn beat(&self, through: usize, more: Value) {
        let mut body = json!({"workspace_id": "target"});
        let said = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(said);
        let request = Request::post("/registry/heartbeat", body.to_string());
        let request = request.bearer(&self.target.token);
        let answer = self.all[through % 3].call(&request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// A call of the operator through one of the replicas.
    pub(crate) async fn call(&self, through: &Gateway) -> Answer {
        through
            .as_operator(Request::post(self.target.path(), CALL))
            .await
    }

    /// What each replica says of the target.
    async fn statuses(&self) -> Vec<String> {
        let mut all = Vec::new();
        for gateway in &self.all {
            let request = Request::get("/workspaces/target");
            let status = gateway.as_operator(request).await.json()["status"].clone();
            all.push(status.as_str().unwrap_or_default().to_owned());
        }
        all
    }

    pub(crate) async fn all_say(&self, status: &str) {
        let say = async || self.statuses().await == [status; 3];
        until_holds(&format!("all say {status}"), say).await;
    }

    pub(crate) async fn lapses(&self, noticed: &str) -> f64 {
        let label = format!("noticed=\"{noticed}");
        self.sum("a2a_gateway_lapses_total", &label).await
    }

    async fn sum(&self, metric: &str, label: &str) -> f64 {
        let mut sum = 0.0;
        for gateway in &self.all {
            sum += gateway.metric(metric, &[label]).await;
        }
        sum
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_comes_back_empty_costs_nobody_who_beats() {
    const TTL: Duration = Duration::from_secs(3);
    let replicas = Replicas::new("Ex", "3s").await;
    // Where a stall of the machine keeps the beats from the gateways it has lapsed, rightly: the longest time
    // from the beginning of a beat to the end of the next, which may not have come yet.
    let (last, longest) = (Cell::new(replicas.since), Cell::new(Duration::ZERO));
    let has_stalled = || longest.get().max(last.get().elapsed()) >= TTL;
    let beats = async {
        for round in 0.. {
            let began = Instant::now();
            replicas.beat(round, json!({})).await;
            longest.set(longest.get().max(last.replace(began).elapsed()));
            tokio::time::sleep(TTL / 10).await;
        }
    };
    let story = async {
        for is_restarted in [false, true] {
            if is_restarted {
                replicas.redis.kill();
                replicas.redis.restart();
            }
            let until = Instant::now() + TTL + TTL / 2;
            while Instant::now() < until {
                let statuses = replicas.statuses().await;
                let stalled = has_stalled();
                assert!(statuses == ["online"; 3] || stalled, "{statuses:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let lapses = replicas.lapses("").await;
        assert!(lapses == 0.0 || has_stalled(), "{lapses}");
    };
    tokio::select! {
        () = beats => {}
        () = story => {}
    }
    // Silent now: gone, and back by the next heartbeat, with no operator.
    replicas.all_say("offline").await;
    replicas.redis.kill();
    replicas.redis.restart();
    let back = async || {
        replicas.beat(1, json!({})).await;
        replicas.statuses().await == ["online"; 3]
    };
    until_holds("a heartbeat revives it on all", back).await;
    for gateway in &replicas.all {
        assert_eq!(replicas.call(gateway).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_of_an_agent_is_seen_by_all_replicas() {
    // A lease that ends meanwhile would be asked for again.
    let replicas = Replicas::new("", "10m").await;
    let rows = [
        (
            json!({"error_rate": 0.7, "sample_error": "no\u{7} model"}),
            "degraded",
        ),
        (json!({"error_rate": 0.3}), "degraded"),
        (json!({"error_rate": 0.0}), "online"),
        (
            json!({"runtime_state": "wedged", "uptime_seconds": 7}),
            "degraded",
        ),
        (json!({}), "online"),
    ];
    for (round, (said, status)) in rows.into_iter().enumerate() {
        replicas.beat(round, said).await;
        replicas.all_say(status).await;
    }
    let other = Agent::json(r#"{"other":true}"#).await;
    let round = async || {
        replicas.beat(0, json!({})).await;
        for gateway in &replicas.all {
            assert_eq!(replicas.call(gateway).await.status, 200);
        }
    };
    let finds = async || {
        let label = "operation=\"workspace_find\"";
        replicas.sum("a2a_gateway_store_seconds_count", label).await
    };
    // A refreshed URL key changes nothing. What was said of the registration may come back by the links only
    // now, and a link that stalls makes all forgotten.
    let unasked = async || {
        let before = finds().await;
        for _ in 0..10 {
            let refresh = ["expire", "ws:target:url", "300"];
            replicas.redis.command(&refresh);
            round().await;
        }
        finds().await == before
    };
    until_holds("nothing is asked again", unasked).await;
    // Another value counts.
    let change = ["set", "ws:target:url", &other.url()];
    replicas.redis.command(&change);
    for gateway in &replicas.all {
        let at_other = async || {
            replicas.beat(0, json!({})).await;
            replicas.call(gateway).await.text().contains("other")
        };
        until_holds("calls go to the other address", at_other).await;
    }
}
