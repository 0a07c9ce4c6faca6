//! What somebody does to the records in SQL, and what `audit verify` says of it.

use a2a_gateway::db::Db;
use serde_json::Value;

use super::{audit, end, recorded};
use crate::harness::{Agent, CALL, Gateway, Pair, Request};
use crate::on_both_pairs;
use crate::stores::open_db;

/// What is done, and what is said of it; `{a}` is the first chain, which has ended, `{b}` the second.
const TAMPERINGS: &[(&str, &[&str], &str)] = &[
    (
        "a record is changed",
        &["UPDATE structure_events SET outcome = {answered} WHERE {of a} AND seq = 4"],
        "{a}: record 4 was changed",
    ),
    (
        "its caller is",
        &["UPDATE structure_events SET caller = NULL WHERE {of b} AND seq = 3"],
        "{b}: record 3 was changed",
    ),
    (
        "its time is",
        &["UPDATE structure_events SET time = time + 1 WHERE {of a} AND seq = 2"],
        "{a}: record 2 was changed",
    ),
    (
        "a hash is",
        &["UPDATE structure_events SET hash = '0' WHERE {of a} AND seq = 2"],
        "{a}: record 2 was changed",
    ),
    (
        "a record is removed",
        &["DELETE FROM structure_events WHERE {of a} AND seq = 5"],
        "{a}: record 6 comes too early: record 5 is missing",
    ),
    (
        "the first is",
        &["DELETE FROM structure_events WHERE {of a} AND seq = 1"],
        "{a}: record 2 is the first of its chain: records 1 to 1 are missing",
    ),
    (
        "the end is cut off",
        &["DELETE FROM structure_events WHERE {of a} AND seq > 6"],
        "{a}: record 7 is missing, and all behind it",
    ),
    (
        "the last is",
        &[
            "DELETE FROM structure_events WHERE {of b} AND seq = (SELECT MAX(seq) FROM structure_events WHERE {of b})",
        ],
        "is missing: it is signed as the end",
    ),
    (
        "the end and what is signed of it",
        &[
            "DELETE FROM structure_events WHERE {of a} AND seq > 6",
            "UPDATE audit_chains SET last_seq = 6 WHERE replica = '{a}'",
        ],
        "{a}: its row says something else than the signed statement in it",
    ),
    (
        "a whole chain is",
        &[
            "DELETE FROM structure_events WHERE {of a}",
            "DELETE FROM audit_chains WHERE replica = '{a}'",
        ],
        "{a}: the whole chain is missing: a checkpoint of {b} saw its record 9",
    ),
    (
        "what is signed is",
        &["DELETE FROM audit_chains WHERE replica = '{b}'"],
        "{b}: record 1 belongs to a chain of which nothing is signed",
    ),
    (
        "a checkpoint is changed",
        &[
            "UPDATE structure_events SET detail = '{\"statement\":\"x\"}' WHERE {of a} AND event_type = {checkpoint}",
        ],
        "was changed",
    ),
    (
        "the text of a checkpoint is none",
        &["UPDATE structure_events SET detail = 'x' WHERE {of a} AND event_type = {checkpoint}"],
        "was changed",
    ),
    (
        "a statement is forged",
        &[
            "UPDATE audit_chains SET statement = (SELECT statement FROM audit_chains WHERE replica = '{b}') WHERE replica = '{a}'",
        ],
        "{a}: its row says something else",
    ),
    (
        "its signature is",
        &[
            "UPDATE audit_chains SET statement = REPLACE(statement, '.', '.A') WHERE replica = '{a}'",
        ],
        "{a}: the statement of where it ends",
    ),
    (
        "what is nothing is written as such",
        &["UPDATE structure_events SET detail = 'null' WHERE {of a} AND seq = 4"],
        "{a}: record 4 was changed",
    ),
    (
        "a detail is written in another form",
        &[
            "UPDATE structure_events SET detail = REPLACE(detail, ':', ': ') WHERE {of a} AND seq = 1",
        ],
        "{a}: record 1 was changed",
    ),
    (
        "everything is removed",
        &["DELETE FROM structure_events", "DELETE FROM audit_chains"],
        "there is no record, so nothing is proven",
    ),
];

/// The same where records are texts, in PostgreSQL.
const TAMPERINGS_OF_TEXTS: &[(&str, &[&str], &str)] = &[
    (
        "two are reordered",
        &[
            "UPDATE structure_events SET seq = -1 WHERE {of a} AND seq = 4",
            "UPDATE structure_events SET seq = 4 WHERE {of a} AND seq = 5",
            "UPDATE structure_events SET seq = 5 WHERE {of a} AND seq = -1",
        ],
        "{a}: record 4 was changed",
    ),
    (
        "a record is put in behind the end",
        &[
            "INSERT INTO structure_events (replica, seq, time, event_type, request_id, trace_id, caller, credential_kind, credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash) SELECT replica, seq + 1, time, event_type, request_id, trace_id, caller, credential_kind, credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash FROM structure_events WHERE {of a} AND seq = (SELECT MAX(seq) FROM structure_events WHERE {of a})",
        ],
        "was changed",
    ),
    (
        "a record is put in before the beginning",
        &[
            "INSERT INTO structure_events (replica, seq, time, event_type, request_id, trace_id, caller, credential_kind, credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash) SELECT replica, 0, time, event_type, request_id, trace_id, caller, credential_kind, credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash FROM structure_events WHERE {of a} AND seq = 4",
        ],
        "{a}: record 0 was",
    ),
];

/// The same for SQLite, where records are rows of numbers and words, and changes that only SQLite allows.
const TAMPERINGS_OF_ROWS: &[(&str, &[&str], &str)] = &[
    (
        "two are reordered",
        &[
            "UPDATE structure_events SET id = id + 1000 WHERE {of a} AND seq = 4",
            "UPDATE structure_events SET id = id - 1 WHERE {of a} AND seq = 5",
            "UPDATE structure_events SET id = id - 999 WHERE {of a} AND seq = 1004",
        ],
        "{a}: record 4 was changed",
    ),
    (
        "a record is put in behind the end",
        &[
            "INSERT INTO structure_events (id, {columns}) SELECT id + 1, {columns} FROM structure_events WHERE {of a} AND seq = (SELECT MAX(seq) FROM structure_events WHERE {of a})",
        ],
        "was changed",
    ),
    (
        "a record is put in before the beginning",
        &[
            "INSERT INTO structure_events (id, {columns}) SELECT id - 4, {columns} FROM structure_events WHERE {of a} AND seq = 4",
        ],
        "{a}: record 0 was",
    ),
    (
        "a record gets another one before it",
        &["UPDATE structure_events SET prev = zeroblob(32) WHERE {of a} AND seq = 4"],
        "{a}: record 4 was changed",
    ),
    (
        "a word is another one",
        &["UPDATE audit_words SET word = 'allowed' WHERE word = 'answered'"],
        "was changed",
    ),
    (
        "a word has no meaning",
        &["UPDATE structure_events SET rule = 9999 WHERE {of a} AND seq = 4"],
        "{a}: record 4 was changed",
    ),
    (
        "a word is written out",
        &["UPDATE structure_events SET event_type = 'A2A_CALL' WHERE {of a} AND seq = 4"],
        "{a}: record 4 was changed",
    ),
    (
        "a chain has another name",
        &["UPDATE audit_replicas SET replica = 'other' WHERE replica = '{a}'"],
        "{a}: record 1 is missing, and all behind it",
    ),
    (
        "a chain has no name",
        &["DELETE FROM audit_replicas WHERE replica = '{a}'"],
        "{a}: record 1 is missing, and all behind it",
    ),
    (
        "a number is a word",
        &["UPDATE structure_events SET request_bytes = 'none' WHERE {of a} AND seq = 1"],
        "{a}: record 1 was changed",
    ),
    (
        "a number is a fraction",
        &["UPDATE structure_events SET request_bytes = 0.5 WHERE {of a} AND seq = 1"],
        "{a}: record 1 was changed",
    ),
    (
        "what is nothing is bytes",
        &["UPDATE structure_events SET task_id = x'41' WHERE {of a} AND seq = 1"],
        "{a}: record 1 was changed",
    ),
    (
        "a text is bytes that are none",
        &["UPDATE structure_events SET task_id = CAST(x'fffe' AS TEXT) WHERE {of b} AND seq = 4"],
        "{b}: record 4 was changed",
    ),
    (
        "so is a hash",
        &["UPDATE structure_events SET hash = CAST(x'fffe' AS TEXT) WHERE {of a} AND seq = 1"],
        "{a}: record 1 was changed",
    ),
    (
        "so is what is signed",
        &["UPDATE audit_chains SET statement = CAST(x'fffe' AS TEXT) WHERE replica = '{a}'"],
        "{a}: its row in audit_chains was changed",
    ),
    (
        "there are very many without a number among the old ones",
        &[
            "INSERT INTO structure_events_1 (replica, seq, time, event_type, outcome, status, request_bytes, response_bytes, duration_ms, prev, hash) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4100) SELECT '{b}', 'x' || i, 1, 'A2A_CALL', 'answered', 0, 0, 0, 0, '', '' FROM n",
        ],
        "that is not a text or not a number: they were changed",
    ),
];

/// The columns of a row but its id.
const COLUMNS: &str = "time, event_type, request_id, trace_id, caller, credential_kind, credential_prefix, client_address, target, org, rule, method, outcome, status, request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash";

/// Fills in how a database names chains and words.
fn filled(pair: Pair, text: &str, [first, second]: [&str; 2]) -> String {
    let rows = matches!(pair, Pair::Embedded);
    let of = |replica: &str| {
        if rows {
            format!("chain = (SELECT chain FROM audit_replicas WHERE replica = '{replica}')")
        } else {
            format!("replica = '{replica}'")
        }
    };
    let word = |word: &str| {
        if rows {
            format!("(SELECT id FROM audit_words WHERE word = '{word}')")
        } else {
            format!("'{word}'")
        }
    };
    text.replace("{of a}", &of(first))
        .replace("{of b}", &of(second))
        .replace("{answered}", &word("answered"))
        .replace("{checkpoint}", &word("AUDIT_CHECKPOINT"))
        .replace("{columns}", COLUMNS)
        .replace("{a}", first)
        .replace("{b}", second)
}

async fn execute(db: &Db, text: &str) -> u64 {
    let query = sqlx::query(sqlx::AssertSqlSafe(text.to_owned()));
    query
        .execute(db.pool())
        .await
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .rows_affected()
}

/// The tables, with the columns that are kept.
fn tables(pair: Pair) -> Vec<(&'static str, String)> {
    let mut tables = vec![("audit_chains", "*".to_owned())];
    if matches!(pair, Pair::Embedded) {
        tables.push(("structure_events", format!("id, {COLUMNS}")));
        let whole = ["structure_events_1", "audit_replicas", "audit_words"];
        tables.extend(whole.map(|table| (table, "*".to_owned())));
    } else {
        tables.push(("structure_events", "*".to_owned()));
    }
    tables
}

async fn keep(db: &Db, pair: Pair) {
    for (table, columns) in tables(pair) {
        let kept = format!("CREATE TABLE kept_{table} AS SELECT {columns} FROM {table}");
        execute(db, &kept).await;
    }
}

/// The tables as they were.
async fn restore(db: &Db, pair: Pair) {
    for (table, columns) in tables(pair) {
        execute(db, &format!("DELETE FROM {table}")).await;
        let into = if columns == "*" {
            String::new()
        } else {
            format!(" ({columns})")
        };
        let kept = format!("INSERT INTO {table}{into} SELECT * FROM kept_{table}");
        execute(db, &kept).await;
    }
}

async fn calls(gateway: &Gateway, token: &str, id: &str) {
    for n in 0..4 {
        let request = Request::post("/workspaces/target/a2a", CALL).bearer(token);
        let request = request.field("X-Request-Id", format!("{id}-{n}"));
        assert_eq!(gateway.call(&request).await.status, 200);
    }
    recorded(gateway, &format!("request_id={id}-3"), 1).await;
}

on_both_pairs! {
    async fn whatever_is_done_to_a_record_is_named(pair: Pair) {
        let mut gateway = Gateway::start(pair).await;
        let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
        calls(&gateway, &caller.token, "one").await;
        let first = recorded(&gateway, "request_id=one-0", 1).await[0]["replica"].as_str().unwrap().to_owned();
        end(&mut gateway);
        gateway.restart().await;
        calls(&gateway, &caller.token, "two").await;
        let second = recorded(&gateway, "request_id=two-0", 1).await[0]["replica"].as_str().unwrap().to_owned();
        assert_ne!(first, second);
        end(&mut gateway);
        let (said, status) = audit(&gateway, &["verify"]);
        assert_eq!(status, Some(0), "untouched: {said}");
        assert!(said.contains("2 chains, 2 signed checkpoints"), "{said}");
        let db = open_db(&gateway.sql_url());
        keep(&db, pair).await;
        let last: i64 = sqlx::query_scalar("SELECT last_seq FROM audit_chains WHERE replica = $1")
            .bind(&first).fetch_one(db.pool()).await.unwrap();
        let of_form = if matches!(pair, Pair::Embedded) { TAMPERINGS_OF_ROWS } else { TAMPERINGS_OF_TEXTS };
        let own = |text: &str| filled(pair, text, [&first, &second]);
        for (what, statements, named) in TAMPERINGS.iter().chain(of_form) {
            for statement in *statements {
                assert_ne!(execute(&db, &own(statement)).await, 0, "{what}");
            }
            let (said, status) = audit(&gateway, &["verify"]);
            assert_eq!(status, Some(1), "{what}: {said}");
            let named = own(named).replace("its record 9", &format!("its record {last}"));
            assert!(said.contains(&named), "{what}: {said}");
            restore(&db, pair).await;
        }
        let (said, status) = audit(&gateway, &["verify"]);
        assert_eq!(status, Some(0), "restored: {said}");
        // What a checkpoint carries is no end, although the same key signed it.
        let carried = Checkpoint::of(&gateway, &db, pair, &second).await;
        for statement in [
            own(&format!("DELETE FROM structure_events WHERE {{of b}} AND seq >= {}", carried.seq)),
            format!("UPDATE audit_chains SET last_seq = {}, statement = '{}' WHERE replica = '{second}'", carried.seq - 1, carried.statement),
        ] {
            assert_ne!(execute(&db, &statement).await, 0);
        }
        let (said, status) = audit(&gateway, &["verify"]);
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains(&format!("{second}: the statement of where it ends is no signed")), "{said}");
        restore(&db, pair).await;
        // The newest chain as a whole: nobody saw it, but for who kept a line of the log.
        let expect = format!("{second}:{}:{}", carried.seq, carried.hash);
        assert_eq!(audit(&gateway, &["verify", "--expect", &expect]).1, Some(0));
        for statement in ["DELETE FROM structure_events WHERE {of b}", "DELETE FROM audit_chains WHERE replica = '{b}'"] {
            execute(&db, &own(statement)).await;
        }
        let (said, status) = audit(&gateway, &["verify", "--expect", &expect]);
        assert_eq!(status, Some(1), "{said}");
        let missing = format!("{second}: the whole chain is missing: the checkpoint that you give saw its record {}", carried.seq);
        assert!(said.contains(&missing), "{said}");
    }
}

/// The last checkpoint of a chain.
struct Checkpoint {
    seq: i64,
    hash: String,
    statement: String,
}

impl Checkpoint {
    async fn of(gateway: &Gateway, db: &Db, pair: Pair, replica: &str) -> Self {
        let last = "SELECT detail FROM structure_events WHERE {of a} AND event_type = {checkpoint} ORDER BY seq DESC LIMIT 1";
        let last = sqlx::AssertSqlSafe(filled(pair, last, [replica, ""]));
        let detail: String = sqlx::query_scalar(last).fetch_one(db.pool()).await.unwrap();
        let detail: Value = serde_json::from_str(&detail).unwrap();
        // As the log of a gateway has it.
        let log = gateway.log();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut said = lines
            .filter(|line| line["message"] == "Audit checkpoint" && line["replica"] == replica);
        let said = said.next_back().expect("a line of the log");
        Self {
            seq: said["seq"].as_i64().unwrap(),
            hash: said["hash"].as_str().unwrap().to_owned(),
            statement: detail["statement"].as_str().unwrap().to_owned(),
        }
    }
}

/// Where a page of records ends that is read at once.
#[tokio::test]
async fn a_copy_of_a_record_is_found_also_between_two_pages() {
    let mut gateway = Gateway::start(Pair::External).await;
    let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
    calls(&gateway, &caller.token, "one").await;
    let replica = recorded(&gateway, "request_id=one-0", 1).await[0]["replica"].to_string();
    let replica = replica.trim_matches('"').to_owned();
    end(&mut gateway);
    let db = open_db(&gateway.sql_url());
    // Chains that come before it fill the page, up to its third record.
    let filler = format!(
        "SELECT '!', n, time, event_type, request_id, trace_id, caller, credential_kind, credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash FROM structure_events, generate_series(1, 1997) AS n WHERE replica = '{replica}' AND seq = 1"
    );
    assert_eq!(
        execute(&db, &format!("INSERT INTO structure_events {filler}")).await,
        1997
    );
    let (said, status) = audit(&gateway, &["verify"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(!said.contains(&format!("{replica}: ")), "{said}");
    let copy = format!(
        "INSERT INTO structure_events (replica, seq, time, event_type, request_id, trace_id, caller, credential_kind, credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash) SELECT replica, seq, time + 1, event_type, request_id, trace_id, 'somebody', credential_kind, credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash FROM structure_events WHERE replica = '{replica}' AND seq = 3"
    );
    assert_eq!(execute(&db, &copy).await, 1);
    let (said, status) = audit(&gateway, &["verify"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains(&format!("{replica}: record 3 was changed")),
        "{said}"
    );
}
