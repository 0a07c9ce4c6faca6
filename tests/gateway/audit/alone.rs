//! The room alone, in this process: what its spool keeps, loses and leaves to the next start.

use std::sync::Arc;
use std::time::Duration;

use a2a_gateway::audit::{Audit, Draft, EventType, Filter, Line, Scope, Verifier};
use a2a_gateway::config::load::{Layers, load};
use a2a_gateway::config::value::ByteSize;
use a2a_gateway::db::Db;
use a2a_gateway::ids::ReplicaId;
use a2a_gateway::metrics::{Format, Metrics};
use a2a_gateway::trust::{Keys, published_keys};

use super::asked;
use crate::harness::until_found;
use crate::harness::until_holds;

/// The room alone, on an SQLite file that is not migrated yet: it is away.
pub(super) fn room(folder: &std::path::Path, spool_bytes: u64) -> (Arc<Audit>, Db, Arc<Metrics>) {
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

/// Has it chain and write until it is flushed.
pub(super) fn start(audit: &Arc<Audit>) -> tokio::task::JoinHandle<()> {
    let running = Arc::clone(audit);
    tokio::spawn(async move { running.run().await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_small_spool_loses_is_counted_and_the_chain_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (audit, db, metrics) = room(folder.path(), 300_000);
    let run = start(&audit);
    let sent = 60_000;
    for n in 0..sent {
        audit.record(Draft::new(EventType::A2aCall));
        if n % 1000 == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    until_holds("the spool is full", async || lost(&metrics) > 0).await;
    db.migrate().await.unwrap();
    let lost = until_found("all are written or told of", async || {
        // What comes now has room.
        audit.record(Draft::new(EventType::ConfigChanged));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (calls, told): (i64, String) = (
            sqlx::query_scalar("SELECT COUNT(*) FROM structure_events WHERE event_type = (SELECT id FROM audit_words WHERE word = 'A2A_CALL')").fetch_one(db.pool()).await.unwrap(),
            sqlx::query_scalar::<_, String>("SELECT COALESCE(GROUP_CONCAT(detail), '') FROM structure_events WHERE event_type = (SELECT id FROM audit_words WHERE word = 'AUDIT_LOST')").fetch_one(db.pool()).await.unwrap(),
        );
        let told: u64 = told
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse::<u64>().ok())
            .sum();
        let lost = lost(&metrics);
        (told == lost && u64::try_from(calls).unwrap() + lost >= sent).then_some(lost)
    })
    .await;
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
    let run = start(&audit);
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
    let report = audit
        .stored
        .verify(Verifier::new(&keys, Scope::Database))
        .await
        .unwrap();
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
    let folder = tempfile::tempdir().unwrap();
    // More than may be in memory, and less than will come.
    let (audit, db, metrics) = room(folder.path(), 4_000_000);
    let run = start(&audit);
    for n in 0..20_000 {
        audit.record(Draft::new(EventType::A2aCall));
        if n % 1000 == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    until_holds("much is lost", async || lost(&metrics) >= 5000).await;
    audit.flush().await;
    run.abort();
    let _ = run.await;
    let lost = lost(&metrics);
    drop(audit);
    db.migrate().await.unwrap();
    // The next start writes what waits.
    let (next, db, _) = room(folder.path(), 100_000);
    db.take_as_it_is();
    let run = start(&next);
    let told = "SELECT COALESCE(GROUP_CONCAT(detail), '') FROM structure_events WHERE event_type IN (SELECT id FROM audit_words WHERE word IN ('AUDIT_LOST', 'AUDIT_STOPPED'))";
    until_holds("what was lost is told of", async || {
        let told: String = sqlx::query_scalar(told).fetch_one(db.pool()).await.unwrap();
        let sum: u64 = told
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse::<u64>().ok())
            .sum();
        sum == lost
    })
    .await;
    next.flush().await;
    run.abort();
    let keys = published_keys(&folder.path().join("keys")).unwrap();
    let verifier = Verifier::new(&keys, Scope::Database);
    let report = next.stored.verify(verifier).await.unwrap();
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
    until_holds("all wait", async || waits() >= 11.0).await;
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
    let run = start(&audit);
    let written = async |count: i64| {
        until_holds("they are written", async || newest(&db).await >= count).await;
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
    for n in 0..20_000 {
        left.record(Draft::new(EventType::A2aCall));
        if n % 1000 == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    left.flush().await;
    run.abort();
    let _ = run.await;
    drop(left);
    db.migrate().await.unwrap();
    // Now a database that takes all, and its time.
    let slow = "CREATE TRIGGER slow AFTER INSERT ON structure_events BEGIN \
         SELECT (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 1500) SELECT COUNT(*) FROM c); END";
    sqlx::raw_sql(slow).execute(db.pool()).await.unwrap();
    let (own, db, metrics) = room(folder.path(), 1 << 30);
    db.take_as_it_is();
    let run = start(&own);
    for _ in 0..5 {
        own.record(Draft::new(EventType::A2aCall));
    }
    let begun = "SELECT COUNT(*) FROM structure_events";
    let all = async || -> i64 {
        sqlx::query_scalar(begun)
            .fetch_one(db.pool())
            .await
            .unwrap()
    };
    until_holds("it has begun", async || all().await > 0).await;
    own.flush().await;
    run.abort();
    let _ = run.await;
    let written = all().await;
    assert!(written < 20_000, "it was to be slow: {written}");
    drop(own);
    assert_eq!(lost(&metrics), 0);
    sqlx::raw_sql("DROP TRIGGER slow")
        .execute(db.pool())
        .await
        .unwrap();
    // The next one writes whatever is still there of both.
    let (next, db, _) = room(folder.path(), 1 << 30);
    db.take_as_it_is();
    let run = start(&next);
    let ended = "SELECT replica FROM structure_events JOIN audit_replicas USING (chain) WHERE event_type = (SELECT id FROM audit_words WHERE word = 'AUDIT_STOPPED')";
    until_holds("all of it is written", async || {
        let ended: Vec<String> = sqlx::query_scalar(ended)
            .fetch_all(db.pool())
            .await
            .unwrap();
        let mut counts = Vec::new();
        for replica in ended {
            counts.push(rows_of(&db, &replica).await);
        }
        counts.sort_unstable();
        // The start, five calls, the stop and a checkpoint; and the others with theirs.
        matches!(counts[..], [8, most] if most > 20_000)
    })
    .await;
    next.flush().await;
    run.abort();
    let keys = published_keys(&folder.path().join("keys")).unwrap();
    let report = next
        .stored
        .verify(Verifier::new(&keys, Scope::Database))
        .await
        .unwrap();
    assert_eq!((report.problems.len(), report.chains), (0, 3), "{report:?}");
}
