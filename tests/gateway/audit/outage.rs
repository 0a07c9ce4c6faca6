//! The database is away: nobody waits for it, nothing is lost that there is room for, and what is lost
//! is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::{asked, audit, end, recorded};
use crate::harness::servers::{Postgres, Redis};
use crate::harness::{
    Agent, Builder, CALL, Connection, Gateway, Pair, Request, holds_for, until_holds,
};

/// Calls at a steady rate until it is told to stop; how many, and how many were not answered.
struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    callers: Vec<tokio::task::JoinHandle<()>>,
}

const CALLERS: u64 = 20;

impl Load {
    fn start(gateway: &Gateway, token: &str, rate: u64) -> Self {
        let load = Self {
            stop: Arc::default(),
            sent: Arc::default(),
            failed: Arc::default(),
            callers: Vec::new(),
        };
        let callers = (0..CALLERS).map(|_| {
            let (stop, sent, failed) = (load.stop.clone(), load.sent.clone(), load.failed.clone());
            let (public, token) = (gateway.public, token.to_owned());
            tokio::spawn(async move {
                let mut connection = Connection::open(public).await;
                let mut tick = tokio::time::interval(
                    Duration::from_secs(1) * u32::try_from(CALLERS).unwrap()
                        / u32::try_from(rate).unwrap(),
                );
                while !stop.load(Ordering::Relaxed) {
                    tick.tick().await;
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    let request = Request::post("/workspaces/target/a2a", CALL)
                        .bearer(&token)
                        .field("X-Request-Id", format!("load-{number}"));
                    let answer = connection.call(&request).await;
                    if answer.status != 200 {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        Self {
            callers: callers.collect(),
            ..load
        }
    }

    async fn stop(self) -> (usize, usize) {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
        (
            self.sent.load(Ordering::Relaxed),
            self.failed.load(Ordering::Relaxed),
        )
    }
}

/// Waits until the records of so many calls are chained and written.
async fn await_written(gateway: &Gateway, calls: usize) {
    let calls = f64::from(u32::try_from(calls).unwrap());
    let event = ["event=\"A2A_CALL\""];
    gateway
        .until_counted("a2a_gateway_audit_records_total", &event, calls)
        .await;
    let waiting = "a2a_gateway_audit_waiting_records";
    until_holds("all is written", async || {
        gateway.metric(waiting, &[]).await == 0.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_away_under_load_and_every_record_is_there_afterwards() {
    let (seconds, rate) = (
        asked("A2A_GATEWAY_AUDIT_OUTAGE", 2),
        asked("A2A_GATEWAY_AUDIT_RATE", 100),
    );
    let postgres = Postgres::start();
    let redis = Redis::start();
    let builder = Builder::new(Pair::External)
        .process()
        .stores(&postgres.database(), &redis.url());
    let mut gateway = builder.start().await;
    let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
    gateway.until_coherent().await;
    let load = Load::start(&gateway, &caller.token, rate);
    let sent = || load.sent.load(Ordering::Relaxed);
    until_holds("load", async || u64::try_from(sent()).unwrap() >= rate).await;
    let before = load.sent.load(Ordering::Relaxed);
    postgres.kill();
    let none_failed = async || load.failed.load(Ordering::Relaxed) == 0;
    holds_for(Duration::from_secs(seconds), "no call fails", none_failed).await;
    let during = load.sent.load(Ordering::Relaxed) - before;
    gateway
        .until_counted("a2a_gateway_audit_waiting_records", &[], 1.0)
        .await;
    gateway
        .until_counted("a2a_gateway_audit_spool_bytes", &[], 1.0)
        .await;
    gateway
        .until_counted("a2a_gateway_audit_lag_seconds", &[], 2.0)
        .await;
    postgres.restart();
    let (sent, failed) = load.stop().await;
    await_written(&gateway, sent).await;
    println!(
        "PostgreSQL away for {seconds} s: {during} calls meanwhile, {failed} of {sent} failed"
    );
    assert_eq!(failed, 0);
    assert_eq!(
        gateway.metric("a2a_gateway_audit_lost_total", &[]).await,
        0.0
    );
    end(&mut gateway);
    let (said, status) = audit(&gateway, &["verify"]);
    assert_eq!(status, Some(0), "{said}");
    print!("{said}");
    let (lines, _) = audit(
        &gateway,
        &["export", "--target", "target", "--event-type", "A2A_CALL"],
    );
    let mut ids: Vec<String> = lines
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["request_id"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), sent, "each call once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_leaves_its_spool_to_the_next() {
    let postgres = Postgres::start();
    let redis = Redis::start();
    let builder = Builder::new(Pair::External)
        .process()
        .stores(&postgres.database(), &redis.url());
    let mut gateway = builder.start().await;
    let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
    let request = |id: &str| {
        Request::post("/workspaces/target/a2a", CALL)
            .bearer(&caller.token)
            .field("X-Request-Id", id)
    };
    let ask = async || assert_eq!(gateway.call(&request("warm")).await.status, 200);
    gateway.until_warm(ask).await;
    assert_eq!(gateway.call(&request("before")).await.status, 200);
    recorded(&gateway, "request_id=before", 1).await;
    postgres.kill();
    for n in 0..20 {
        assert_eq!(
            gateway.call(&request(&format!("away-{n}"))).await.status,
            200
        );
    }
    gateway
        .until_counted("a2a_gateway_audit_spool_bytes", &[], 8000.0)
        .await;
    gateway.kill();
    postgres.restart();
    gateway.restart().await;
    let first = recorded(&gateway, "request_id=away-0", 1).await[0].clone();
    let last = recorded(&gateway, "request_id=away-19", 1).await[0].clone();
    assert_eq!(first["replica"], last["replica"]);
    end(&mut gateway);
    let (said, status) = audit(&gateway, &["verify"]);
    assert_eq!(status, Some(0), "{said}");
    let left = std::fs::read_dir(gateway.dir.join("data/audit")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "the spool is empty");
}
