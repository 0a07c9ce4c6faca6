//! The database is away: nobody waits for it, nothing is lost that there is room for, and what is lost
//! is counted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::{all_written, asked, end, exported, message, recorded, says};
use crate::harness::servers::{Postgres, Redis};
use crate::harness::{Agent, Builder, Connection, Gateway, Pair, holds_for, until_holds};

/// Calls at a steady rate until it is told to stop; how many, and how many were not answered.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    sent: AtomicUsize,
    failed: AtomicUsize,
}

const CALLERS: u64 = 20;

impl Load {
    fn start(gateway: &Gateway, token: &str, rate: u64) -> (Arc<Self>, JoinSet<()>) {
        let load = Arc::<Self>::default();
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let (load, public, token) = (load.clone(), gateway.public, token.to_owned());
            callers.spawn(async move {
                let mut connection = Connection::open(public).await;
                let every = Duration::from_secs(1) * u32::try_from(CALLERS).unwrap();
                let mut tick = tokio::time::interval(every / u32::try_from(rate).unwrap());
                while !load.stop.load(Ordering::Relaxed) {
                    tick.tick().await;
                    let number = load.sent.fetch_add(1, Ordering::Relaxed);
                    let request = message(&token, &format!("load-{number}"));
                    if connection.call(&request).await.status != 200 {
                        load.failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        (load, callers)
    }

    fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    fn failed(&self) -> usize {
        self.failed.load(Ordering::Relaxed)
    }
}

/// A gateway on servers of its own, of which the database is to be away.
async fn started() -> (Postgres, Redis, Gateway) {
    let (postgres, redis) = (Postgres::start(), Redis::start());
    let builder = Builder::new(Pair::External).process();
    let builder = builder.stores(&postgres.database(), &redis.url());
    let gateway = builder.start().await;
    (postgres, redis, gateway)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_away_under_load_and_every_record_is_there_afterwards() {
    let seconds = asked("A2A_GATEWAY_AUDIT_OUTAGE", 2);
    let rate = asked("A2A_GATEWAY_AUDIT_RATE", 100);
    let (postgres, _redis, mut gateway) = started().await;
    let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
    let (load, callers) = Load::start(&gateway, &caller.token, rate);
    let more = async || {
        let least = load.sent() + usize::try_from(rate).unwrap();
        until_holds("load", async || load.sent() >= least).await;
    };
    gateway.until_warm(more).await;
    postgres.kill();
    let none_failed = async || load.failed() == 0;
    holds_for(Duration::from_secs(seconds), "no call fails", none_failed).await;
    for (name, least) in [
        ("a2a_gateway_audit_waiting_records", 1.0),
        ("a2a_gateway_audit_spool_bytes", 1.0),
        ("a2a_gateway_audit_lag_seconds", 2.0),
    ] {
        gateway.until_counted(name, &[], least).await;
    }
    postgres.restart();
    load.stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
    // The records of all calls are chained and written.
    let sent = f64::from(u32::try_from(load.sent()).unwrap());
    let (records, calls) = ("a2a_gateway_audit_records_total", ["event=\"A2A_CALL\""]);
    gateway.until_counted(records, &calls, sent).await;
    all_written(&gateway).await;
    assert_eq!(load.failed(), 0);
    let lost = gateway.metric("a2a_gateway_audit_lost_total", &[]).await;
    assert_eq!(lost, 0.0);
    end(&mut gateway);
    print!("{}", says(&gateway, &["verify"], 0));
    let calls = ["--target", "target", "--event-type", "A2A_CALL"];
    let records = exported(&gateway, &calls);
    let ids = records.iter().map(|record| record["request_id"].as_str());
    let ids: BTreeSet<&str> = ids.map(Option::unwrap).collect();
    assert_eq!(ids.len(), load.sent(), "each call once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_leaves_its_spool_to_the_next() {
    let (postgres, _redis, mut gateway) = started().await;
    let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
    let request = |id: &str| message(&caller.token, id);
    let ask = async || assert_eq!(gateway.call(&request("warm")).await.status, 200);
    gateway.until_warm(ask).await;
    assert_eq!(gateway.call(&request("before")).await.status, 200);
    recorded(&gateway, "request_id=before", 1).await;
    postgres.kill();
    for n in 0..20 {
        let answer = gateway.call(&request(&format!("away-{n}"))).await;
        assert_eq!(answer.status, 200);
    }
    let spooled = gateway.until_counted("a2a_gateway_audit_spool_bytes", &[], 8000.0);
    spooled.await;
    gateway.kill();
    postgres.restart();
    gateway.restart().await;
    let first = recorded(&gateway, "request_id=away-0", 1).await[0].clone();
    let last = recorded(&gateway, "request_id=away-19", 1).await[0].clone();
    assert_eq!(first["replica"], last["replica"]);
    end(&mut gateway);
    says(&gateway, &["verify"], 0);
    let left = std::fs::read_dir(gateway.dir.join("data/audit")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "the spool is empty");
}
