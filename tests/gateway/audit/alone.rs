//! The room alone, in this process: what its spool keeps, loses and leaves to the next start.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use a2a_gateway::audit::{Audit, Draft, EventType, Filter, Line, Report, Scope, Verifier};
use a2a_gateway::config::load::{Layers, load};
use a2a_gateway::config::value::ByteSize;
use a2a_gateway::db::Db;
use a2a_gateway::ids::ReplicaId;
use a2a_gateway::metrics::{Format, Metrics};
use a2a_gateway::trust::{Keys, read_published_keys};
use tokio::task::JoinHandle;

use super::asked;
use crate::harness::until_holds;

/// The room alone, on an SQLite file that is not migrated yet: it is away.
pub(super) fn room(folder: &Path, spool_bytes: u64) -> (Arc<Audit>, Db, Arc<Metrics>) {
    let overrides = vec![
        format!("stores.sql=sqlite:{}", folder.join("gateway.db").display()),
        format!("audit.spool_dir={}", folder.join("spool").display()),
        // A busy machine makes a store slow, not unavailable.
        "stores.timeout=20s".to_owned(),
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

/// The same with its tables and room for everything.
pub(super) async fn whole_room(folder: &Path) -> (Arc<Audit>, Db) {
    let (audit, db, _) = room(folder, 1 << 30);
    db.migrate().await.unwrap();
    (audit, db)
}

/// Has it chain and write until it is flushed.
pub(super) fn start(audit: &Arc<Audit>) -> JoinHandle<()> {
    let running = Arc::clone(audit);
    tokio::spawn(async move { running.run().await })
}

/// Flushes it.
pub(super) async fn finish(audit: &Audit, run: JoinHandle<()>) {
    audit.flush().await;
    run.abort();
    let _ = run.await;
}

/// Records this many calls, with a pause after each thousand.
async fn flood(audit: &Audit, count: u64, pause: Duration) {
    for n in 0..count {
        audit.record(Draft::new(EventType::A2aCall));
        if n % 1000 == 0 {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Verifies the database.
pub(super) async fn verified(folder: &Path, audit: &Audit) -> Report {
    let keys = read_published_keys(&folder.join("keys")).unwrap();
    let verifier = Verifier::new(&keys, Scope::Database);
    audit.stored.verify_chains(verifier).await.unwrap()
}

/// An export, and what is done once it has begun.
pub(super) async fn exported(audit: &Audit, meanwhile: impl Future<Output = ()>) -> String {
    let everything = Filter::default();
    let mut export = audit.stored.start_export(&everything).await.unwrap();
    let mut text = export.next().await.unwrap();
    meanwhile.await;
    loop {
        let more = export.next().await.unwrap();
        if more.is_empty() {
            return text;
        }
        text.push_str(&more);
    }
}

/// Verifies an export.
pub(super) fn verified_export(folder: &Path, text: &str) -> Report {
    let keys = read_published_keys(&folder.join("keys")).unwrap();
    let mut verifier = Verifier::new(&keys, Scope::Export);
    let (mut chains, mut records) = (Vec::new(), Vec::new());
    for line in text.lines() {
        match Line::parse(line).unwrap() {
            Line::Chain(chain) => chains.push(chain),
            Line::Record(record) => records.push(record),
        }
    }
    chains.iter().for_each(|chain| verifier.add_chain(chain));
    records
        .iter()
        .for_each(|record| verifier.verify_record(record));
    verifier.finish(&chains)
}

/// The number of lost records that events of these types report.
async fn told(db: &Db, words: &str) -> u64 {
    let told = format!(
        "SELECT COALESCE(GROUP_CONCAT(detail), '') FROM structure_events WHERE event_type IN (SELECT id FROM audit_words WHERE word IN ({words}))"
    );
    let told = sqlx::query_scalar(sqlx::AssertSqlSafe(told));
    let told: String = told.fetch_one(db.pool()).await.unwrap();
    let numbers = told.split(|c: char| !c.is_ascii_digit());
    numbers.filter_map(|n| n.parse::<u64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_small_spool_loses_is_counted_and_the_chain_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (audit, db, metrics) = room(folder.path(), 300_000);
    let run = start(&audit);
    let sent = 60_000;
    flood(&audit, sent, Duration::from_millis(20)).await;
    until_holds("the spool is full", async || lost(&metrics) > 0).await;
    db.migrate().await.unwrap();
    until_holds("all are written or told of", async || {
        // What comes now has room.
        audit.record(Draft::new(EventType::ConfigChanged));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let calls = "SELECT COUNT(*) FROM structure_events WHERE event_type = (SELECT id FROM audit_words WHERE word = 'A2A_CALL')";
        let calls: i64 = sqlx::query_scalar(calls).fetch_one(db.pool()).await.unwrap();
        let told = told(&db, "'AUDIT_LOST'").await;
        let lost = lost(&metrics);
        told == lost && u64::try_from(calls).unwrap() + lost >= sent
    })
    .await;
    finish(&audit, run).await;
    let problems = verified(folder.path(), &audit).await.problems;
    assert_eq!(problems, [], "with what is missing, the chain is whole");
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
    let (audit, db) = whole_room(folder.path()).await;
    let run = start(&audit);
    let is_written = async |least: u64| newest(&db).await >= i64::try_from(least).unwrap();
    for n in 0..count {
        audit.record(Draft {
            request_bytes: n,
            ..Draft::new(EventType::A2aCall)
        });
        if n % 4000 == 3999 {
            // No faster than it writes.
            let least = n.saturating_sub(8000);
            until_holds("it keeps up", async || is_written(least).await).await;
        }
    }
    until_holds("all is written", async || is_written(count + 1).await).await;
    finish(&audit, run).await;
    let report = verified(folder.path(), &audit).await;
    assert_eq!(report.problems, []);
    assert!(report.records > count && report.checkpoints >= count / 1000);
}

/// The sum of a metric.
fn metric(metrics: &Metrics, name: &str) -> f64 {
    let text = metrics.render(Format::Text);
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>());
    values.map(Result::unwrap).sum()
}

/// How many records were lost, by the metrics.
fn lost(metrics: &Metrics) -> u64 {
    metric(metrics, "a2a_gateway_audit_lost_total{") as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_before_the_end_is_told_of_by_the_end() {
    let folder = tempfile::tempdir().unwrap();
    // More than may be in memory, and less than will come.
    let (audit, db, metrics) = room(folder.path(), 4_000_000);
    let run = start(&audit);
    flood(&audit, 20_000, Duration::from_millis(100)).await;
    until_holds("much is lost", async || lost(&metrics) >= 5000).await;
    finish(&audit, run).await;
    let lost = lost(&metrics);
    drop(audit);
    db.migrate().await.unwrap();
    // The next start writes what waits.
    let (next, db, _) = room(folder.path(), 100_000);
    db.accept_schema();
    let run = start(&next);
    until_holds("what was lost is told of", async || {
        told(&db, "'AUDIT_LOST', 'AUDIT_STOPPED'").await == lost
    })
    .await;
    finish(&next, run).await;
    let report = verified(folder.path(), &next).await;
    assert_eq!((report.problems.len(), report.chains), (0, 2), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_spool_what_is_not_written_by_the_end_is_counted_as_lost() {
    let folder = tempfile::tempdir().unwrap();
    // No folder can be made there.
    std::fs::write(folder.path().join("spool"), "").unwrap();
    let (audit, _db, metrics) = room(folder.path(), 1 << 20);
    let run = start(&audit);
    for _ in 0..10 {
        audit.record(Draft::new(EventType::A2aCall));
    }
    let waiting = "a2a_gateway_audit_waiting_records";
    until_holds("all wait", async || metric(&metrics, waiting) >= 11.0).await;
    finish(&audit, run).await;
    // The start and the stop of the chain, too, and its checkpoint.
    assert_eq!(lost(&metrics), 13);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_is_proven_also_when_records_come_while_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (audit, db) = whole_room(folder.path()).await;
    let run = start(&audit);
    let record = async |until: i64| {
        (0..3000).for_each(|_| audit.record(Draft::new(EventType::A2aCall)));
        until_holds("they are written", async || newest(&db).await >= until).await;
    };
    record(3000).await;
    let text = exported(&audit, record(6000)).await;
    finish(&audit, run).await;
    let report = verified_export(folder.path(), &text);
    assert_eq!(report.problems, []);
    assert!((3000..6000).contains(&report.records), "{}", report.records);
}

/// How many rows a chain has.
async fn rows_of(db: &Db, replica: &str) -> i64 {
    let count = "SELECT COUNT(*) FROM structure_events WHERE chain = (SELECT chain FROM audit_replicas WHERE replica = $1)";
    let count = sqlx::query_scalar(count).bind(replica);
    count.fetch_one(db.pool()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_left_holds_up_no_record_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    // A run without a database: all of it is left in the spool.
    let (left, db, _) = room(folder.path(), 1 << 30);
    let run = start(&left);
    flood(&left, 20_000, Duration::from_millis(50)).await;
    finish(&left, run).await;
    drop(left);
    db.migrate().await.unwrap();
    // Now a database that takes all, and its time.
    let slow = "CREATE TRIGGER slow AFTER INSERT ON structure_events BEGIN \
         SELECT (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 3000) SELECT COUNT(*) FROM c); END";
    sqlx::raw_sql(slow).execute(db.pool()).await.unwrap();
    let (own, db, metrics) = room(folder.path(), 1 << 30);
    db.accept_schema();
    let run = start(&own);
    for _ in 0..5 {
        own.record(Draft::new(EventType::A2aCall));
    }
    let all = async || -> i64 {
        let all = sqlx::query_scalar("SELECT COUNT(*) FROM structure_events");
        all.fetch_one(db.pool()).await.unwrap()
    };
    until_holds("it has begun", async || all().await > 0).await;
    finish(&own, run).await;
    let written = all().await;
    assert!(written < 20_000, "it was to be slow: {written}");
    drop(own);
    assert_eq!(lost(&metrics), 0);
    // Its last write may go on.
    let dropped = async || {
        let drop = sqlx::raw_sql("DROP TRIGGER slow").execute(db.pool());
        drop.await.is_ok()
    };
    until_holds("nothing is written", dropped).await;
    // The next one writes whatever is still there of both.
    let (next, db, _) = room(folder.path(), 1 << 30);
    db.accept_schema();
    let run = start(&next);
    let ended = "SELECT replica FROM structure_events JOIN audit_replicas USING (chain) WHERE event_type = (SELECT id FROM audit_words WHERE word = 'AUDIT_STOPPED')";
    until_holds("all of it is written", async || {
        let ended = sqlx::query_scalar(ended).fetch_all(db.pool()).await;
        let ended: Vec<String> = ended.unwrap();
        let mut counts = Vec::new();
        for replica in ended {
            counts.push(rows_of(&db, &replica).await);
        }
        counts.sort_unstable();
        // The start, five calls, the stop and a checkpoint; and the others with theirs.
        matches!(counts[..], [8, most] if most > 20_000)
    })
    .await;
    finish(&next, run).await;
    let report = verified(folder.path(), &next).await;
    assert_eq!((report.problems.len(), report.chains), (0, 3), "{report:?}");
}
