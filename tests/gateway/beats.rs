//! Liveness over three replicas on one Redis and one PostgreSQL (contract §4.2): who falls silent is
//! offline on all of them in time, also without expiry notices, and nobody who beats is.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::servers::{self, Redis};
use crate::harness::{Agent, Builder, CALL, Gateway, Pair, Request, Seat, calmly, holds_for};

const TTL: Duration = Duration::from_secs(2);

/// `offline` is promised within this after the lapse.
const NOTED: Duration = Duration::from_secs(2);

/// A change is obeyed by every replica within this.
const OBEYED: Duration = Duration::from_secs(1);

struct Replicas {
    all: Vec<Gateway>,
    caller: Seat,
    target: Seat,
    redis: Redis,
}

impl Replicas {
    /// `notices`: what Redis tells of keys, its `notify-keyspace-events`.
    async fn new(notices: &str) -> Self {
        Self::with(notices, "2s").await
    }

    /// The same with another `registry.heartbeat_ttl`.
    async fn with(notices: &str, ttl: &str) -> Self {
        let redis = Redis::start();
        redis.command(&["config", "set", "notify-keyspace-events", notices]);
        let sql = servers::postgres().database();
        let mut all = Vec::new();
        for _ in 0..3 {
            let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
            let builder = builder.set("registry.heartbeat_ttl", ttl);
            let gateway = builder.set("stores.timeout", "1s").start().await;
            gateway.until_coherent().await;
            all.push(gateway);
        }
        let (caller, target) = all[0].pair(Agent::json("{}").await).await;
        Self {
            all,
            caller,
            target,
            redis,
        }
    }

    async fn beat(&self, through: usize, seat: &Seat, more: Value) {
        let mut body = json!({"workspace_id": seat.id});
        let said = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(said);
        let request = Request::post("/registry/heartbeat", body.to_string()).bearer(&seat.token);
        let answer = self.all[through].call(&request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
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

    async fn all_say(&self, status: &str, until: Instant) {
        loop {
            let statuses = self.statuses().await;
            if statuses.iter().all(|one| one == status) {
                return;
            }
            assert!(Instant::now() < until, "not {status}: {statuses:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn lapses(&self, noticed: &str) -> f64 {
        let mut sum = 0.0;
        for gateway in &self.all {
            let label = format!("noticed=\"{noticed}");
            sum += gateway.metric("a2a_gateway_lapses_total", &[&label]).await;
        }
        sum
    }

    /// Lets the target fall silent; answers how long after the lapse, and by what, that was noted.
    /// Nobody asks for it meanwhile.
    async fn silence(&self, round: usize) -> (Duration, &'static str) {
        let kinds = ["expiry", "sweep", "request"];
        let mut before = Vec::new();
        for kind in kinds {
            before.push(self.lapses(kind).await);
        }
        self.beat(round % 3, &self.target, json!({})).await;
        let lapse = Instant::now() + TTL;
        let noted = 'noted: loop {
            for (kind, before) in kinds.into_iter().zip(&before) {
                // The caller was silent for longer: it is noted once, before the first round.
                if self.lapses(kind).await > *before {
                    break 'noted kind;
                }
            }
            assert!(Instant::now() < lapse + NOTED, "round {round}: not noted");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let late = Instant::now().saturating_duration_since(lapse);
        self.all_say("offline", lapse + NOTED).await;
        for gateway in &self.all {
            let request = Request::post(self.target.path(), CALL).bearer(&self.caller.token);
            let answer = gateway.call(&request).await;
            assert_eq!(answer.reason(), "workspace_offline", "{}", answer.text());
        }
        (late, noted)
    }

    /// Waits until the caller has lapsed, so that only the target's lapse is seen after it.
    async fn without_caller(&self) {
        let until = Instant::now() + TTL + NOTED;
        while self.lapses("").await < 1.0 {
            assert!(Instant::now() < until, "the caller does not lapse");
            self.beat(0, &self.target, json!({})).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn falls_silent(notices: &str) -> Vec<&'static str> {
    let replicas = Replicas::new(notices).await;
    replicas.without_caller().await;
    let (mut worst, mut kinds) = (Duration::ZERO, Vec::new());
    for round in 0..6 {
        let (late, noticed) = replicas.silence(round).await;
        worst = worst.max(late);
        kinds.push(noticed);
        // A heartbeat through another replica revives it on all; nothing else has.
        replicas
            .beat((round + 1) % 3, &replicas.target, json!({}))
            .await;
        replicas.all_say("online", Instant::now() + OBEYED).await;
    }
    eprintln!(
        "notify-keyspace-events {notices:?}: noted at the latest {worst:?} after the lapse, by {kinds:?}"
    );
    assert_eq!(replicas.lapses("").await, 7.0, "one replica notes each");
    kinds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_falls_silent_is_offline_on_all_replicas_by_redis_notice() {
    calmly(async || {
        let kinds = falls_silent("Ex").await;
        assert!(kinds.contains(&"expiry"), "{kinds:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_falls_silent_is_offline_on_all_replicas_also_without_notices() {
    calmly(async || {
        let kinds = falls_silent("").await;
        assert!(!kinds.contains(&"expiry"), "{kinds:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_comes_back_empty_costs_nobody_who_beats() {
    calmly(async || {
        let replicas = Replicas::new("Ex").await;
        let beats = async {
            for round in 0.. {
                replicas.beat(round % 3, &replicas.target, json!({})).await;
                replicas
                    .beat((round + 1) % 3, &replicas.caller, json!({}))
                    .await;
                tokio::time::sleep(TTL / 5).await;
            }
        };
        let story = async {
            for _ in 0..2 {
                let online = async || replicas.statuses().await == ["online"; 3];
                holds_for(TTL, "online on each", online).await;
                replicas.redis.kill();
                tokio::time::sleep(Duration::from_millis(200)).await;
                replicas.redis.restart();
                let until = Instant::now() + TTL * 2;
                while Instant::now() < until {
                    assert_eq!(replicas.statuses().await, ["online"; 3]);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                assert_eq!(replicas.lapses("").await, 0.0);
            }
        };
        tokio::select! {
            () = beats => {}
            () = story => {}
        }
        for gateway in &replicas.all {
            let request =
                Request::post(replicas.target.path(), CALL).bearer(&replicas.caller.token);
            assert_eq!(gateway.call(&request).await.status, 200);
        }
        // Silent now: gone in time, and back by the next heartbeat, with no operator.
        replicas.beat(0, &replicas.target, json!({})).await;
        replicas
            .all_say("offline", Instant::now() + TTL + NOTED)
            .await;
        replicas.redis.kill();
        replicas.redis.restart();
        replicas.beat(1, &replicas.target, json!({})).await;
        replicas
            .all_say("online", Instant::now() + OBEYED * 2)
            .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_and_its_end_are_seen_by_all_replicas() {
    calmly(async || {
        let replicas = Replicas::new("").await;
        for (round, (said, status)) in [
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
        ]
        .into_iter()
        .enumerate()
        {
            replicas.beat(round % 3, &replicas.target, said).await;
            replicas.all_say(status, Instant::now() + OBEYED).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refreshed_url_key_changes_nothing_and_another_value_counts_at_once() {
    calmly(async || {
        // A lease that ends meanwhile would be asked for again.
        let replicas = Replicas::with("", "60s").await;
        let other = Agent::json(r#"{"other":true}"#).await;
        let request = Request::post(replicas.target.path(), CALL).bearer(&replicas.caller.token);
        let beat = || replicas.beat(0, &replicas.target, json!({}));
        let round = async || {
            beat().await;
            for gateway in &replicas.all {
                assert_eq!(gateway.call(&request).await.status, 200);
            }
        };
        let finds = || async {
            let mut sum = 0.0;
            for gateway in &replicas.all {
                let labels = ["operation=\"workspace_find\""];
                sum += gateway
                    .metric("a2a_gateway_store_seconds_count", &labels)
                    .await;
            }
            sum
        };
        // What was said of the registration may come back by the links only now.
        let deadline = Instant::now() + Duration::from_secs(15);
        let before = loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let before = finds().await;
            round().await;
            if finds().await == before {
                break before;
            }
            assert!(Instant::now() < deadline, "nothing stays in memory");
        };
        for _ in 0..10 {
            replicas.redis.command(&["expire", "ws:target:url", "300"]);
            round().await;
        }
        assert_eq!(finds().await, before, "nothing was asked again");
        replicas
            .redis
            .command(&["set", "ws:target:url", &other.url()]);
        let changed = Instant::now();
        for gateway in &replicas.all {
            while !gateway.call(&request).await.text().contains("other") {
                assert!(changed.elapsed() < OBEYED, "still at the old address");
                beat().await;
            }
        }
    })
    .await;
}
