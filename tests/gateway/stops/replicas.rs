//! A stop of many running streams over three replicas: new calls are refused and all streams end within 1 s, also with the
//! push link cut, and when the replica that made it is killed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::running::{Open, endless, stream};
use super::{REASON, assert_stopped, call, release, stop, until};
use crate::harness::servers::{self, Redis};
use crate::harness::{Agent, Builder, Gateway, Pair, Request, Seat};

/// The contract's promise (§17).
const IN_FORCE: Duration = Duration::from_secs(1);

/// Streams in all; `A2A_GATEWAY_STREAMS` sets it.
const STREAMS: usize = 300;

#[expect(
    clippy::disallowed_methods,
    reason = "for whoever measures: the gateway itself reads no such variable"
)]
fn streams() -> usize {
    let set = std::env::var("A2A_GATEWAY_STREAMS").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(STREAMS)
}

struct Replicas {
    redis: Redis,
    gateways: Vec<Gateway>,
    caller: Seat,
    /// Keeps its agent.
    _target: Seat,
    calm: Seat,
}

impl Replicas {
    async fn new() -> Self {
        let redis = Redis::start();
        let sql = servers::postgres().database();
        let mut gateways = Vec::new();
        for _ in 0..3 {
            let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
            let builder = builder
                .set("registry.heartbeat_ttl", "1h")
                .set("limits.target_concurrency", "2000");
            gateways.push(builder.start().await);
        }
        let (caller, target) = gateways[0].pair(endless().await).await;
        let ok = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
        let calm = gateways[0].seat("calm", "", ok).await;
        let replicas = Self {
            redis,
            gateways,
            caller,
            _target: target,
            calm,
        };
        replicas.linked().await;
        replicas
    }

    async fn linked(&self) {
        for gateway in &self.gateways {
            until("the link is up", async || {
                gateway.metric("a2a_gateway_coherent", &[]).await == 1.0
            })
            .await;
        }
    }

    async fn mend_link(&self) {
        self.redis.allow_links();
        self.linked().await;
    }

    /// Opens streams over these replicas.
    async fn open(&self, at: &[&Gateway], count: usize) -> Vec<Open> {
        let mut open = Vec::new();
        for n in 0..count {
            let request = stream(&self.caller.token, "target");
            open.push(Open::new(at[n % at.len()], &request).await);
        }
        open
    }

    /// Asserts that the replicas refuse calls from now on; answers when the last one did.
    async fn refused(&self, at: &[&Gateway], id: &str, since: Instant) -> Duration {
        let mut worst = Duration::ZERO;
        for gateway in at {
            loop {
                let began = since.elapsed();
                let answer = gateway.call(&call(&self.calm.token, "target")).await;
                if answer.status == 403 {
                    assert_stopped(&answer, id, "a new call");
                    break;
                }
                worst = worst.max(began);
                assert!(began < IN_FORCE, "after {began:?}: {}", answer.text());
            }
        }
        worst
    }
}

/// Waits for the end of all streams; answers when the last one ended.
async fn ended(open: Vec<Open>, id: &str, since: Instant) -> Duration {
    let mut ends = tokio::task::JoinSet::new();
    for stream in open {
        ends.spawn(stream.last());
    }
    let mut worst = Duration::ZERO;
    while let Some(end) = ends.join_next().await {
        let (at, last): (Instant, Value) = end.unwrap();
        let data = &last["error"]["data"][0];
        assert_eq!(data["reason"], "STOPPED", "{last}");
        assert_eq!(data["metadata"]["stop"], id, "{last}");
        worst = worst.max(at.duration_since(since));
    }
    worst
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_over_three_replicas_end_within_a_second_with_the_link_and_without() {
    let replicas = Replicas::new().await;
    let all: Vec<&Gateway> = replicas.gateways.iter().collect();
    for cut in [false, true] {
        let open = replicas.open(&all, streams()).await;
        if cut {
            replicas.redis.cut_links();
            until("the link is down", async || {
                all[2].metric("a2a_gateway_coherent", &[]).await == 0.0
            })
            .await;
        }
        let made = Instant::now();
        let id = stop(all[0], json!({"workspace": "target"}), "running").await;
        let since = Instant::now();
        let (refused, last) =
            tokio::join!(replicas.refused(&all, &id, since), ended(open, &id, since));
        println!(
            "{} streams, link {}: made in {:?}, the last call let through after {refused:?}, the last stream ended after {last:?}",
            streams(),
            if cut { "cut" } else { "up" },
            since.duration_since(made),
        );
        assert!(
            last < IN_FORCE,
            "cut: {cut}: the last stream ended after {last:?}"
        );
        release(all[0], &id).await;
        let released = Instant::now();
        for gateway in &all {
            until("it is called again", async || {
                let answer = gateway.call(&call(&replicas.calm.token, "calm")).await;
                assert_eq!(answer.status, 200);
                let request = call(&replicas.calm.token, "target");
                let asked = gateway.call(&request);
                let open = tokio::time::timeout(Duration::from_millis(500), asked);
                // Its agent does not answer.
                open.await.is_err()
            })
            .await;
        }
        println!("released everywhere after at most {:?}", released.elapsed());
        if cut {
            replicas.mend_link().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_replica_that_made_it_changes_nothing() {
    let mut replicas = Replicas::new().await;
    for cut in [false, true] {
        let others: Vec<&Gateway> = replicas.gateways[1..].iter().collect();
        let open = replicas.open(&others, streams()).await;
        if cut {
            replicas.redis.cut_links();
        }
        // Without waiting for its answer: it may end before it told the others.
        let body = json!({"scope": {"workspace": "target"}, "mode": "running", "reason": REASON});
        let request = Request::post("/stops", body.to_string());
        let id = replicas.gateways[0].as_operator(request).await.json()["id"]
            .as_str()
            .unwrap()
            .to_owned();
        replicas.gateways[0].kill();
        let since = Instant::now();
        let others: Vec<&Gateway> = replicas.gateways[1..].iter().collect();
        let (_, last) = tokio::join!(
            replicas.refused(&others, &id, since),
            ended(open, &id, since)
        );
        assert!(
            last < IN_FORCE,
            "cut: {cut}: the last stream ended after {last:?}"
        );
        replicas.gateways[0].restart().await;
        let answer = replicas.gateways[0]
            .call(&call(&replicas.calm.token, "target"))
            .await;
        assert_stopped(&answer, &id, "the one that was killed");
        release(&replicas.gateways[1], &id).await;
        if cut {
            replicas.mend_link().await;
        }
    }
}
