//! The database is away: nobody waits for it, nothing is lost that there is room for, and what is lost
//! is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use a2a_gateway::audit::{Audit, Draft, EventType, Filter, Line, Scope, Verifier};
use a2a_gateway::config::load::{Layers, load};
use a2a_gateway::config::value::ByteSize;
use a2a_gateway::db::Db;
use a2a_gateway::ids::ReplicaId;
use a2a_gateway::metrics::{Format, Metrics};
use a2a_gateway::trust::{Keys, published_keys};
use serde_json::Value;

use super::{audit, end, recorded};
use crate::harness::servers::{Postgres, Redis};
use crate::harness::{Agent, Builder, CALL, Connection, Gateway, Pair, Request, calmly};

/// A number from the environment, for whoever wants to see more than CI has time for.
#[expect(
    clippy::disallowed_methods,
    reason = "a setting of the test, not of the gateway"
)]
fn asked(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

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

async fn await_written(gateway: &Gateway) {
    let deadline = Instant::now() + Duration::from_secs(60);
    tokio::time::sleep(Duration::from_secs(2)).await;
    while gateway
        .metric("a2a_gateway_audit_waiting_records", &[])
        .await
        != 0.0
    {
        assert!(Instant::now() < deadline, "{}", gateway.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_away_under_load_and_every_record_is_there_afterwards() {
    calmly(async || {
        let (seconds, rate) = (
            asked("A2A_GATEWAY_AUDIT_OUTAGE", 5),
            asked("A2A_GATEWAY_AUDIT_RATE", 200),
        );
        let postgres = Postgres::start();
        let redis = Redis::start();
        let builder = Builder::new(Pair::External).stores(&postgres.database(), &redis.url());
        let mut gateway = builder.start().await;
        let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
        gateway.until_coherent().await;
        let load = Load::start(&gateway, &caller.token, rate);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = load.sent.load(Ordering::Relaxed);
        postgres.kill();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let during = load.sent.load(Ordering::Relaxed) - before;
        let (waiting, bytes) = (
            gateway
                .metric("a2a_gateway_audit_waiting_records", &[])
                .await,
            gateway.metric("a2a_gateway_audit_spool_bytes", &[]).await,
        );
        assert!(
            waiting > 0.0 && bytes > 0.0,
            "{waiting} records, {bytes} bytes"
        );
        let lag = gateway.metric("a2a_gateway_audit_lag_seconds", &[]).await;
        assert!(lag > 2.0, "{lag}");
        postgres.restart();
        let (sent, failed) = load.stop().await;
        let back = Instant::now();
        await_written(&gateway).await;
        println!(
            "PostgreSQL away for {seconds} s: {during} calls meanwhile, {failed} of {sent} failed; {waiting} records and {bytes} bytes waited, written {:?} after the last call",
            back.elapsed()
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
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_leaves_its_spool_to_the_next() {
    calmly(async || {
        let postgres = Postgres::start();
        let redis = Redis::start();
        let builder = Builder::new(Pair::External).stores(&postgres.database(), &redis.url());
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
        let deadline = Instant::now() + Duration::from_secs(10);
        while gateway.metric("a2a_gateway_audit_spool_bytes", &[]).await < 8000.0 {
            assert!(Instant::now() < deadline, "{}", gateway.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
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
    })
    .await;
}

/// The room alone, on an SQLite file that is not migrated yet: it is away.
fn room(folder: &std::path::Path, spool_bytes: u64) -> (Arc<Audit>, Db, Arc<Metrics>) {
    let overrides = vec![
        format!("stores.sql=sqlite:{}", folder.join("gateway.db").display()),
        format!("audit.spool_dir={}", folder.join("spool").display()),
    ];
    let layers = Layers {
        overrides,
        ..Layers::default()
    };
    let mut config = load(&layers).unwrap().config;
    config.audit.spool_bytes = ByteSize(spool_bytes);
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let keys = Arc::new(Keys::load_or_create(&folder.join("keys")).unwrap());
    let audit = Audit::new(
        config.into(),
        db.clone(),
        keys,
        Arc::clone(&metrics),
        ReplicaId::random(),
        serde_json::json!({}),
    );
    (audit, db, metrics)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_small_spool_loses_is_counted_and_the_chain_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (audit, db, metrics) = room(folder.path(), 300_000);
    let running = Arc::clone(&audit);
    let run = tokio::spawn(async move { running.run().await });
    let sent = 60_000;
    for n in 0..sent {
        audit.record(Draft::new(EventType::A2aCall));
        if n % 1000 == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(lost(&metrics) > 0);
    db.migrate().await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let lost = loop {
        // What comes now has room.
        audit.record(Draft::new(EventType::ConfigChanged));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (calls, told): (i64, String) = (
            sqlx::query_scalar("SELECT COUNT(*) FROM structure_events WHERE event_type = 'A2A_CALL'").fetch_one(db.pool()).await.unwrap(),
            sqlx::query_scalar::<_, String>("SELECT COALESCE(GROUP_CONCAT(detail), '') FROM structure_events WHERE event_type = 'AUDIT_LOST'").fetch_one(db.pool()).await.unwrap(),
        );
        let told: u64 = told
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse::<u64>().ok())
            .sum();
        let lost = lost(&metrics);
        if told == lost && u64::try_from(calls).unwrap() + lost >= sent {
            break lost;
        }
        assert!(
            Instant::now() < deadline,
            "{calls} written, {lost} lost, {told} told of"
        );
    };
    println!("{lost} of {sent} lost and told of");
    audit.flush().await;
    run.abort();
    let keys = published_keys(&folder.path().join("keys")).unwrap();
    let report = audit
        .stored
        .verify(Verifier::new(&keys, Scope::Database))
        .await
        .unwrap();
    assert_eq!(
        report.problems,
        [],
        "with what is missing, the chain is whole"
    );
}

/// The number of the newest record that is written.
async fn newest(db: &Db) -> i64 {
    let newest = "SELECT COALESCE(MAX(last_seq), 0) FROM audit_chains";
    let newest = sqlx::query_scalar(newest).fetch_one(db.pool());
    newest.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_chain_is_verified() {
    let count = asked("A2A_GATEWAY_AUDIT_RECORDS", 10_000);
    let folder = tempfile::tempdir().unwrap();
    let (audit, db, _) = room(folder.path(), 1 << 30);
    db.migrate().await.unwrap();
    let running = Arc::clone(&audit);
    let run = tokio::spawn(async move { running.run().await });
    for n in 0..count {
        audit.record(Draft {
            request_bytes: n,
            ..Draft::new(EventType::A2aCall)
        });
        if n % 4000 == 3999 {
            // No faster than it writes.
            let written = i64::try_from(n).unwrap() - 8000;
            while newest(&db).await < written {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    while newest(&db).await <= i64::try_from(count).unwrap() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    audit.flush().await;
    run.abort();
    let keys = published_keys(&folder.path().join("keys")).unwrap();
    let started = Instant::now();
    let report = audit
        .stored
        .verify(Verifier::new(&keys, Scope::Database))
        .await
        .unwrap();
    println!(
        "{} records, {} checkpoints verified in {:?}",
        report.records,
        report.checkpoints,
        started.elapsed()
    );
    assert_eq!(report.problems, []);
    assert!(report.records > count && report.checkpoints >= count / 1000);
}

/// How many records were lost, by the metrics.
fn lost(metrics: &Metrics) -> u64 {
    let text = metrics.render(Format::Text);
    let lines = text
        .lines()
        .filter(|line| line.starts_with("a2a_gateway_audit_lost_total{"));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_before_the_end_is_told_of_by_the_end() {
    calmly(async || {
        let folder = tempfile::tempdir().unwrap();
        // More than may be in memory, and less than will come.
        let (audit, db, metrics) = room(folder.path(), 4_000_000);
        let running = Arc::clone(&audit);
        let run = tokio::spawn(async move { running.run().await });
        for n in 0..20_000 {
            audit.record(Draft::new(EventType::A2aCall));
            if n % 1000 == 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        while lost(&metrics) < 5000 {
            assert!(Instant::now() < deadline, "{}", lost(&metrics));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        audit.flush().await;
        run.abort();
        let _ = run.await;
        let lost = lost(&metrics);
        drop(audit);
        db.migrate().await.unwrap();
        // The next start writes what waits.
        let (next, db, _) = room(folder.path(), 100_000);
        db.take_as_it_is();
        let running = Arc::clone(&next);
        let run = tokio::spawn(async move { running.run().await });
        let deadline = Instant::now() + Duration::from_secs(30);
        let told = "SELECT COALESCE(GROUP_CONCAT(detail), '') FROM structure_events WHERE event_type IN ('AUDIT_LOST', 'AUDIT_STOPPED')";
        loop {
            let told: String = sqlx::query_scalar(told).fetch_one(db.pool()).await.unwrap();
            let sum: u64 = told
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|n| n.parse::<u64>().ok())
                .sum();
            if sum == lost {
                break;
            }
            assert!(Instant::now() < deadline, "{told}: not {lost}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        next.flush().await;
        run.abort();
        let keys = published_keys(&folder.path().join("keys")).unwrap();
        let verifier = Verifier::new(&keys, Scope::Database);
        let report = next.stored.verify(verifier).await.unwrap();
        assert_eq!((report.problems.len(), report.chains), (0, 2), "{report:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_spool_what_is_not_written_by_the_end_is_counted_as_lost() {
    let folder = tempfile::tempdir().unwrap();
    // No folder can be made there.
    std::fs::write(folder.path().join("spool"), "").unwrap();
    let (audit, _db, metrics) = room(folder.path(), 1 << 20);
    let running = Arc::clone(&audit);
    let run = tokio::spawn(async move { running.run().await });
    for _ in 0..10 {
        audit.record(Draft::new(EventType::A2aCall));
    }
    let waits = || {
        let text = metrics.render(Format::Text);
        let line = text
            .lines()
            .find(|line| line.starts_with("a2a_gateway_audit_waiting_records"));
        line.unwrap()
            .rsplit(' ')
            .next()
            .unwrap()
            .parse::<f64>()
            .unwrap()
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while waits() < 11.0 {
        assert!(Instant::now() < deadline, "{} wait", waits());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    audit.flush().await;
    run.abort();
    // The start and the stop of the chain, too, and its checkpoint.
    assert_eq!(lost(&metrics), 13);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_is_proven_also_when_records_come_while_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (audit, db, _) = room(folder.path(), 1 << 30);
    db.migrate().await.unwrap();
    let running = Arc::clone(&audit);
    let run = tokio::spawn(async move { running.run().await });
    let written = async |count: i64| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while newest(&db).await < count {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let record = |count: u64| (0..count).for_each(|_| audit.record(Draft::new(EventType::A2aCall)));
    record(3000);
    written(3000).await;
    let everything = Filter::default();
    let mut export = audit.stored.export(&everything).await.unwrap();
    let mut text = export.next().await.unwrap();
    record(3000);
    written(6000).await;
    loop {
        let more = export.next().await.unwrap();
        if more.is_empty() {
            break;
        }
        text.push_str(&more);
    }
    audit.flush().await;
    run.abort();
    let keys = published_keys(&folder.path().join("keys")).unwrap();
    let lines: Vec<Line> = text
        .lines()
        .map(|line| Line::parse(line).unwrap())
        .collect();
    let mut verifier = Verifier::new(&keys, Scope::Export);
    let chains: Vec<_> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Chain(chain) => Some(chain.clone().row()),
            Line::Record(_) => None,
        })
        .collect();
    chains.iter().for_each(|chain| verifier.chain(chain));
    for line in &lines {
        if let Line::Record(record) = line {
            verifier.record(record);
        }
    }
    let report = verifier.finish(&chains);
    assert_eq!(report.problems, []);
    assert!((3000..6000).contains(&report.records), "{}", report.records);
}
