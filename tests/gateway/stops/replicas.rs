//! A stop of many running streams over three replicas: new calls are refused and all streams end, also with the push
//! link cut, and when the replica that made it is killed.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use super::running::{Open, endless, stream};
use super::{REASON, assert_stopped, call, release, stop, until};
use crate::harness::servers::{self, Redis};
use crate::harness::until_found;
use crate::harness::{Agent, Builder, Gateway, Pair, Request, Seat};

/// Streams in all; `A2A_GATEWAY_STREAMS` sets it.
const STREAMS: usize = 60;

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
    target: Seat,
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
            target,
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

    /// Waits until the replicas refuse calls.
    async fn refused(&self, at: &[&Gateway], id: &str) {
        for gateway in at {
            let refused = until_found("a new call is refused", async || {
                let request = call(&self.calm.token, "target");
                let asked = timeout(ASKED, gateway.call(&request)).await;
                asked.ok().filter(|answer| answer.status == 403)
            });
            assert_stopped(&refused.await, id, "a new call");
        }
    }

    /// Waits until each replica makes calls of the target again.
    async fn called_again(&self) {
        for gateway in &self.gateways {
            until("it is called again", async || {
                let answer = gateway.call(&call(&self.calm.token, "calm")).await;
                assert_eq!(answer.status, 200);
                let before = self.target.agent.count();
                let request = call(&self.calm.token, "target");
                let _ = timeout(ASKED, gateway.call(&request)).await;
                self.target.agent.count() > before
            })
            .await;
        }
    }
}

/// Time after which a call that is neither answered nor refused is given up: its agent does not answer.
const ASKED: Duration = Duration::from_millis(500);

/// Waits for the end of all streams.
async fn ended(open: Vec<Open>, id: &str) {
    let ends = open.into_iter().map(Open::last);
    for last in futures_util::future::join_all(ends).await {
        let data = &last["error"]["data"][0];
        assert_eq!(data["reason"], "STOPPED", "{last}");
        assert_eq!(data["metadata"]["stop"], id, "{last}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_over_three_replicas_end_with_the_link_and_without() {
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
        let id = stop(all[0], json!({"workspace": "target"}), "running").await;
        tokio::join!(replicas.refused(&all, &id), ended(open, &id));
        release(all[0], &id).await;
        replicas.called_again().await;
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
        let others: Vec<&Gateway> = replicas.gateways[1..].iter().collect();
        tokio::join!(replicas.refused(&others, &id), ended(open, &id));
        replicas.gateways[0].restart().await;
        let answer = replicas.gateways[0]
            .call(&call(&replicas.calm.token, "target"))
            .await;
        assert_stopped(&answer, &id, "the one that was killed");
        release(&replicas.gateways[1], &id).await;
        replicas.called_again().await;
        if cut {
            replicas.mend_link().await;
        }
    }
}
