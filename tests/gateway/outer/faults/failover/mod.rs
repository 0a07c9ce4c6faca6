//! Stores that fail over under load: no wrong answer, nothing lost that SQL acknowledged, and one gateway again
//! after the recovery (`docs/guide/deploy.md`). How soon, they print.

mod cluster;
mod postgres;
mod redis;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinHandle;

use crate::harness::{
    ADMIN, Builder, CALL, Connection, Gateway, Pair, Request, Seat, answering, until_holds,
};

/// Two replicas, and a caller that calls an agent at both.
struct Replicas {
    gateways: [Gateway; 2],
    caller: Seat,
    target: Seat,
}

impl Replicas {
    async fn new(sql: &str, shared: &str) -> Self {
        let start = async || {
            let builder = Builder::new(Pair::Embedded).stores(sql, shared);
            builder.set("registry.heartbeat_ttl", "1h").start().await
        };
        let gateways = [start().await, start().await];
        let (caller, target) = gateways[0].pair(answering().await).await;
        let replicas = Self {
            gateways,
            caller,
            target,
        };
        replicas.coherent().await;
        replicas
    }

    async fn coherent(&self) {
        for gateway in &self.gateways {
            gateway.until_coherent().await;
        }
    }

    /// Calls through both replicas until it is told to end. Each call must be answered by the agent: what it needs is
    /// in memory. Returns the number of calls.
    fn load(&self) -> (Arc<AtomicBool>, JoinHandle<u32>) {
        let over = Arc::<AtomicBool>::default();
        let told = Arc::clone(&over);
        let request = self.caller.calls(&self.target);
        let at = [self.gateways[0].public, self.gateways[1].public];
        let load = tokio::spawn(async move {
            let mut calls = 0;
            while !told.load(Ordering::Acquire) {
                for public in at {
                    let answer = Connection::open(public).await.call(&request).await;
                    assert_eq!(answer.status, 200, "call {calls}: {}", answer.text());
                    calls += 1;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            calls
        });
        (over, load)
    }

    /// Asserts that both are one gateway: a revoked token is refused at the other, a beat counts.
    async fn are_one(&self, round: &str) {
        let [one, other] = &self.gateways;
        self.is_obeyed_by(one, other, round).await;
        let body = json!({"workspace_id": self.target.id}).to_string();
        let beat = Request::post("/registry/heartbeat", body).bearer(&self.target.token);
        other.call(&beat).await.has(200);
    }

    /// Asserts that a token that is revoked at one gateway is refused at the other.
    async fn is_obeyed_by(&self, one: &Gateway, other: &Gateway, round: &str) {
        let tokens = format!("/workspaces/{}/tokens", self.caller.id);
        let issued = one.as_operator(Request::post(&tokens, "{}")).await.json();
        let call = Request::post(self.target.path(), CALL);
        let call = call.bearer(issued["token"].as_str().unwrap());
        assert_eq!(other.call(&call).await.status, 200, "{round}");
        let path = format!("{tokens}/{}", issued["id"].as_str().unwrap());
        one.as_operator(Request::new("DELETE", path)).await.has(200);
        let is_refused = async || other.call(&call).await.status == 401;
        until_holds(&format!("{round}: a revoked token is refused"), is_refused).await;
    }
}

/// Creates workspaces at a replica until it is told to end. Returns the ids that were acknowledged.
fn creations(gateway: &Gateway) -> (Arc<AtomicBool>, JoinHandle<Vec<String>>) {
    let over = Arc::<AtomicBool>::default();
    let told = Arc::clone(&over);
    let public = gateway.public;
    let created = tokio::spawn(async move {
        let mut acknowledged = Vec::new();
        for n in 0.. {
            if told.load(Ordering::Acquire) {
                break;
            }
            let id = format!("made-{n}");
            let body = json!({"id": id, "name": id}).to_string();
            let request = Request::post("/workspaces", body).bearer(ADMIN);
            let answer = Connection::open(public).await.call(&request).await;
            match answer.status {
                201 => acknowledged.push(id),
                // An outage in words: the workspace may have been created.
                503 => assert_eq!(answer.reason(), "store_unavailable", "{}", answer.text()),
                other => panic!("{other}: {}", answer.text()),
            }
        }
        acknowledged
    });
    (over, created)
}

/// Waits until both replicas take changes; returns the time it took.
async fn recovered(replicas: &Replicas, round: &str) -> Duration {
    let since = Instant::now();
    for (n, gateway) in replicas.gateways.iter().enumerate() {
        let id = format!("after-{round}-{n}");
        until_made(gateway, &id, "changes are taken again").await;
    }
    replicas.coherent().await;
    since.elapsed()
}

/// The status of the answer to a new workspace.
async fn made(gateway: &Gateway, id: &str) -> u16 {
    let body = json!({"id": id, "name": id}).to_string();
    let request = Request::post("/workspaces", body);
    gateway.as_operator(request).await.status
}

async fn until_made(gateway: &Gateway, id: &str, what: &str) {
    // It exists if an attempt before was given up.
    let is_made = async || matches!(made(gateway, id).await, 201 | 409);
    until_holds(what, is_made).await;
}

async fn until_logged(gateway: &Gateway, text: &str) {
    until_holds(text, async || gateway.log().contains(text)).await;
}
