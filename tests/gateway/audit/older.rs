//! Records of releases that wrote texts to SQLite, in one database with rows.

use std::path::Path;
use std::sync::Arc;

use a2a_gateway::audit::{Audit, Cursor, Draft, EventType, Filter};
use a2a_gateway::db::Db;
use a2a_gateway::ids::{RequestId, WorkspaceId};
use a2a_gateway::time::Timestamp;
use serde_json::Value;

use super::alone::{exported, finish, start, verified, verified_export, whole_room};
use crate::harness::until_holds;

/// All that an export has.
async fn all_of(audit: &Audit) -> String {
    exported(audit, std::future::ready(())).await
}

/// Restores the tables of an earlier release, and drops those that came after.
const BACK: &str = "DROP TABLE structure_events; DROP TABLE audit_replicas; DROP TABLE audit_words; \
    DROP TABLE audit_blocks; DROP TABLE audit_seen; ALTER TABLE structure_events_1 RENAME TO structure_events; \
    DELETE FROM _sqlx_migrations WHERE version = 29;";

/// Writes some calls, and ends.
async fn calls(audit: &Arc<Audit>, target: &str) {
    let begun = Filter {
        event_type: Some("AUDIT_STARTED".to_owned()),
        ..Filter::default()
    };
    let before = pages(audit, &begun).await.len();
    let run = start(audit);
    // Texts are in the order of their times, and the chain's first record has to be the earliest.
    let has_begun = async || pages(audit, &begun).await.len() > before;
    until_holds("the chain has begun", has_begun).await;
    let target = WorkspaceId::parse(target).unwrap();
    for _ in 0..20 {
        audit.record(Draft {
            request_id: Some(RequestId::random()),
            outcome: "not_permitted",
            task_id: Some("task".to_owned()),
            ..Draft::new(EventType::A2aCall).with_target(&target)
        });
    }
    finish(audit, run).await;
}

/// Writes records as an earlier release did.
async fn insert(db: &Db, table: &str, records: &[Value]) {
    for record in records {
        let columns = record.as_object().unwrap().keys().map(String::as_str);
        let columns: Vec<&str> = columns.collect();
        let value = |column: &&str| match &record[*column] {
            Value::Null => "NULL".to_owned(),
            Value::Number(number) => number.to_string(),
            Value::String(text) if *column == "time" => {
                Timestamp::parse(text).unwrap().0.to_string()
            }
            Value::String(text) => format!("'{text}'"),
            other => format!("'{other}'"),
        };
        let values: Vec<String> = columns.iter().map(value).collect();
        let (columns, values) = (columns.join(", "), values.join(", "));
        let text = format!("INSERT INTO {table} ({columns}) VALUES ({values})");
        execute(db, &text).await;
    }
}

async fn execute(db: &Db, text: &str) {
    let text = sqlx::AssertSqlSafe(text.to_owned());
    sqlx::raw_sql(text).execute(db.pool()).await.unwrap();
}

/// The chain and the number of each record of a filter, the newest first, in small pages.
async fn pages(audit: &Audit, filter: &Filter) -> Vec<(String, i64)> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = audit
            .stored
            .read_page(filter, cursor.as_ref(), 7)
            .await
            .unwrap();
        for record in page["records"].as_array().unwrap() {
            let replica = record["replica"].as_str().unwrap();
            found.push((replica.to_owned(), record["seq"].as_i64().unwrap()));
        }
        let Some(next) = page["next_cursor"].as_str() else {
            return found;
        };
        cursor = Some(Cursor::parse(next).unwrap());
    }
}

/// Verifies the database, and its export.
async fn prove(folder: &Path, audit: &Audit) {
    let report = verified(folder, audit).await;
    assert_eq!((report.problems.as_slice(), report.chains), (&[][..], 2));
    let again = verified_export(folder, &all_of(audit).await);
    assert_eq!(again.problems, []);
    assert_eq!(again.records, report.records);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_an_earlier_release_are_shown_exported_and_proven() {
    let folder = tempfile::tempdir().unwrap();
    let (earlier, db) = whole_room(folder.path()).await;
    calls(&earlier, "old").await;
    let parse = |line: &str| serde_json::from_str(line).unwrap();
    let old: Vec<Value> = all_of(&earlier).await.lines().map(parse).collect();
    let (end, old) = old.split_last().unwrap();
    assert_eq!((old.len(), &end["last"]), (23, &Value::from(23)));
    execute(&db, BACK).await;
    insert(&db, "structure_events", old).await;
    db.migrate().await.unwrap();
    let (audit, db) = whole_room(folder.path()).await;
    calls(&audit, "new").await;
    prove(folder.path(), &audit).await;

    let all = pages(&audit, &Filter::default()).await;
    let [new_chain, old_chain] = [&all[0].0, &all[45].0];
    let numbers = |chain: &String| (1..=23).rev().map(|seq| (chain.clone(), seq)).collect();
    let expected: [Vec<_>; 2] = [numbers(new_chain), numbers(old_chain)];
    assert_eq!(all, expected.concat());
    for (target, chain) in [("new", new_chain), ("old", old_chain)] {
        let filter = Filter {
            target: Some(target.to_owned()),
            outcome: Some("not_permitted".to_owned()),
            ..Filter::default()
        };
        let found = pages(&audit, &filter).await;
        let numbers: Vec<_> = (2..=21).rev().map(|seq| (chain.clone(), seq)).collect();
        assert_eq!(found, numbers);
    }
    let first = old[1]["request_id"].as_str().unwrap().to_owned();
    let filter = Filter {
        request_id: Some(first),
        ..Filter::default()
    };
    assert_eq!(pages(&audit, &filter).await, [(old_chain.clone(), 2)]);

    // A chain whose end waited in the spool while the gateway changed.
    let lines = all_of(&audit).await;
    let new: Vec<Value> = lines.lines().map(parse).collect();
    let is_moved = |record: &&Value| {
        let seq = record["seq"].as_i64().unwrap_or(99);
        record["replica"] == new_chain.as_str() && seq <= 3
    };
    let moved: Vec<Value> = new.iter().filter(is_moved).cloned().collect();
    assert_eq!(moved.len(), 3);
    insert(&db, "structure_events_1", &moved).await;
    execute(&db, "UPDATE structure_events SET prev = (SELECT hash FROM structure_events WHERE seq = 3) WHERE seq = 4; DELETE FROM structure_events WHERE seq <= 3").await;
    prove(folder.path(), &audit).await;
    let mut again = pages(&audit, &Filter::default()).await;
    let mut expected = expected.concat();
    again.sort();
    expected.sort();
    assert_eq!(again, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_found_by_whatever_id_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let (audit, db) = whole_room(folder.path()).await;
    let run = start(&audit);
    let own = RequestId::random();
    let ids = [
        ("short", own.as_str().to_owned(), 3),
        ("long", RequestId::random().as_str().to_owned(), 90_000),
        ("early", "01900000-5b1e-7cc3-98c4-dc0c0c07398f".into(), 3),
        ("random", "c2b3f0a0-5b1e-4cc3-98c4-dc0c0c07398f".into(), 3),
        ("upper", RequestId::random().as_str().to_uppercase(), 3),
        ("free", "it's 1".replace(' ', "-"), 3),
    ];
    for (target, id, duration_ms) in &ids {
        let begun = Timestamp::now();
        audit.record(Draft {
            time: Timestamp(begun.0 + i64::try_from(*duration_ms).unwrap()),
            request_id: Some(RequestId::from_caller(Some(id.as_bytes()))),
            duration_ms: *duration_ms,
            ..Draft::new(EventType::A2aCall).with_target(&WorkspaceId::parse(target).unwrap())
        });
    }
    finish(&audit, run).await;
    for (target, id, _) in ids {
        let filter = Filter {
            request_id: Some(id.clone()),
            ..Filter::default()
        };
        let page = audit.stored.read_page(&filter, None, 10).await.unwrap();
        let records = page["records"].as_array().unwrap();
        assert_eq!(records.len(), 1, "{target}: {page}");
        let found = (&records[0]["target"], &records[0]["request_id"]);
        assert_eq!(found, (&target.into(), &id.into()));
    }
    let packed = "SELECT COUNT(*) FROM structure_events WHERE typeof(request_id) = 'blob'";
    let packed = sqlx::query_scalar::<_, i64>(packed).fetch_one(db.pool());
    assert_eq!(packed.await.unwrap(), 2);
}
