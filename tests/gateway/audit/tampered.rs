//! What somebody does to the records in SQL, and what `audit verify` says of it.

use a2a_gateway::db::Db;
use serde_json::Value;

use super::{audit, calls, end, execute, of_chain, says};
use crate::harness::{Agent, Gateway, Pair};
use crate::on_both_pairs;
use crate::operators::paired;
use crate::stores::open_db;

/// Changes, the findings they lead to, and their statements. `{a}` is the first chain, which has ended; `{b}` is
/// the second.
const TAMPERINGS: &str = r#"
a record is changed => {a}: record 4 was changed
    UPDATE structure_events SET outcome = {answered} WHERE {of a} AND seq = 4
its caller is => {b}: record 3 was changed
    UPDATE structure_events SET caller = NULL WHERE {of b} AND seq = 3
its time is => {a}: record 2 was changed
    UPDATE structure_events SET time = time + 1 WHERE {of a} AND seq = 2
a hash is => {a}: record 2 was changed
    UPDATE structure_events SET hash = '0' WHERE {of a} AND seq = 2
a record is removed => {a}: record 6 comes too early: record 5 is missing
    DELETE FROM structure_events WHERE {of a} AND seq = 5
the first is => {a}: record 2 is the first of its chain: records 1 to 1 are missing
    DELETE FROM structure_events WHERE {of a} AND seq = 1
the end is cut off => {a}: record 7 is missing, and all behind it
    DELETE FROM structure_events WHERE {of a} AND seq > 6
the last is => is missing: it is signed as the end
    DELETE FROM structure_events WHERE {of b} AND seq = (SELECT MAX(seq) FROM structure_events WHERE {of b})
the end and what is signed of it => {a}: its row says something else than the signed statement in it
    DELETE FROM structure_events WHERE {of a} AND seq > 6
    UPDATE audit_chains SET last_seq = 6 WHERE replica = '{a}'
a whole chain is => {a}: the whole chain is missing: a checkpoint of {b} saw its record 9
    DELETE FROM structure_events WHERE {of a}
    DELETE FROM audit_chains WHERE replica = '{a}'
what is signed is => {b}: record 1 belongs to a chain of which nothing is signed
    DELETE FROM audit_chains WHERE replica = '{b}'
a checkpoint is changed => was changed
    UPDATE structure_events SET detail = '{"statement":"x"}' WHERE {of a} AND event_type = {checkpoint}
the text of a checkpoint is none => was changed
    UPDATE structure_events SET detail = 'x' WHERE {of a} AND event_type = {checkpoint}
a statement is forged => {a}: its row says something else
    UPDATE audit_chains SET statement = (SELECT statement FROM audit_chains WHERE replica = '{b}') WHERE replica = '{a}'
its signature is => {a}: the statement of where it ends
    UPDATE audit_chains SET statement = REPLACE(statement, '.', '.A') WHERE replica = '{a}'
what is nothing is written as such => {a}: record 4 was changed
    UPDATE structure_events SET detail = 'null' WHERE {of a} AND seq = 4
a detail is written in another form => {a}: record 1 was changed
    UPDATE structure_events SET detail = REPLACE(detail, ':', ': ') WHERE {of a} AND seq = 1
everything is removed => there is no record, so nothing is proven
    DELETE FROM structure_events
    DELETE FROM audit_chains
"#;

/// The same where records are texts, in PostgreSQL.
const TAMPERINGS_OF_TEXTS: &str = "
two are reordered => {a}: record 4 was changed
    UPDATE structure_events SET seq = -1 WHERE {of a} AND seq = 4
    UPDATE structure_events SET seq = 4 WHERE {of a} AND seq = 5
    UPDATE structure_events SET seq = 5 WHERE {of a} AND seq = -1
a record is put in behind the end => was changed
    INSERT INTO structure_events (replica, seq, {texts}) SELECT replica, seq + 1, {texts} FROM structure_events WHERE {of a} AND seq = (SELECT MAX(seq) FROM structure_events WHERE {of a})
a record is put in before the beginning => {a}: record 0 was
    INSERT INTO structure_events (replica, seq, {texts}) SELECT replica, 0, {texts} FROM structure_events WHERE {of a} AND seq = 4
";

/// The same for SQLite, where records are rows of numbers and words, and changes that only SQLite allows.
const TAMPERINGS_OF_ROWS: &str = "
two are reordered => {a}: record 4 was changed
    UPDATE structure_events SET id = id + 1000 WHERE {of a} AND seq = 4
    UPDATE structure_events SET id = id - 1 WHERE {of a} AND seq = 5
    UPDATE structure_events SET id = id - 999 WHERE {of a} AND seq = 1004
a record is put in behind the end => was changed
    INSERT INTO structure_events (id, {columns}) SELECT id + 1, {columns} FROM structure_events WHERE {of a} AND seq = (SELECT MAX(seq) FROM structure_events WHERE {of a})
a record is put in before the beginning => {a}: record 0 was
    INSERT INTO structure_events (id, {columns}) SELECT id - 4, {columns} FROM structure_events WHERE {of a} AND seq = 4
a record gets another one before it => {a}: record 4 was changed
    UPDATE structure_events SET prev = zeroblob(32) WHERE {of a} AND seq = 4
a word is another one => was changed
    UPDATE audit_words SET word = 'allowed' WHERE word = 'answered'
a word has no meaning => {a}: record 4 was changed
    UPDATE structure_events SET rule = 9999 WHERE {of a} AND seq = 4
a word is written out => {a}: record 4 was changed
    UPDATE structure_events SET event_type = 'A2A_CALL' WHERE {of a} AND seq = 4
a chain has another name => {a}: record 1 is missing, and all behind it
    UPDATE audit_replicas SET replica = 'other' WHERE replica = '{a}'
a chain has no name => {a}: record 1 is missing, and all behind it
    DELETE FROM audit_replicas WHERE replica = '{a}'
a number is a word => {a}: record 1 was changed
    UPDATE structure_events SET request_bytes = 'none' WHERE {of a} AND seq = 1
a number is a fraction => {a}: record 1 was changed
    UPDATE structure_events SET request_bytes = 0.5 WHERE {of a} AND seq = 1
what is nothing is bytes => {a}: record 1 was changed
    UPDATE structure_events SET task_id = x'41' WHERE {of a} AND seq = 1
a text is bytes that are none => {b}: record 4 was changed
    UPDATE structure_events SET task_id = CAST(x'fffe' AS TEXT) WHERE {of b} AND seq = 4
so is a hash => {a}: record 1 was changed
    UPDATE structure_events SET hash = CAST(x'fffe' AS TEXT) WHERE {of a} AND seq = 1
so is what is signed => {a}: its row in audit_chains was changed
    UPDATE audit_chains SET statement = CAST(x'fffe' AS TEXT) WHERE replica = '{a}'
";

/// The columns of a row but its id.
const COLUMNS: &str = "time, event_type, request_id, trace_id, caller, credential_kind, credential_prefix, client_address, target, org, rule, method, outcome, status, request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash, root, txn, depth, link, sent, run, context";

/// Fills in how a database names chains and words.
fn filled(pair: Pair, text: &str, [first, second]: [&str; 2]) -> String {
    let word = |word: &str| match pair {
        Pair::Embedded => format!("(SELECT id FROM audit_words WHERE word = '{word}')"),
        Pair::External => format!("'{word}'"),
    };
    text.replace("{of a}", &of_chain(pair, first))
        .replace("{of b}", &of_chain(pair, second))
        .replace("{answered}", &word("answered"))
        .replace("{checkpoint}", &word("AUDIT_CHECKPOINT"))
        .replace("{columns}", COLUMNS)
        .replace(
            "{texts}",
            &COLUMNS
                .replace("client_address, ", "")
                .replace("sent", "chain"),
        )
        .replace("{a}", first)
        .replace("{b}", second)
}

/// Changes of the records of such a database.
fn tamperings(pair: Pair) -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let of_form = match pair {
        Pair::Embedded => TAMPERINGS_OF_ROWS,
        Pair::External => TAMPERINGS_OF_TEXTS,
    };
    let mut all = Vec::<(_, _, Vec<_>)>::new();
    let lines = TAMPERINGS.lines().chain(of_form.lines());
    for line in lines.filter(|line| !line.is_empty()) {
        if let Some(statement) = line.strip_prefix("    ") {
            all.last_mut().unwrap().2.push(statement);
        } else {
            let (what, said) = line.split_once(" => ").unwrap();
            all.push((what, said, Vec::new()));
        }
    }
    assert!(all.iter().all(|(_, _, statements)| !statements.is_empty()));
    all
}

/// The tables, with the columns that are kept.
fn tables(pair: Pair) -> Vec<(&'static str, String)> {
    let mut tables = vec![("audit_chains", "*".to_owned())];
    if matches!(pair, Pair::Embedded) {
        tables.push(("structure_events", format!("id, {COLUMNS}")));
        let whole = ["audit_replicas", "audit_words"];
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
        let into = columns.replace('*', "");
        let into = if into.is_empty() {
            into
        } else {
            format!("({into})")
        };
        let kept = format!("INSERT INTO {table} {into} SELECT * FROM kept_{table}");
        execute(db, &kept).await;
    }
}

on_both_pairs! {
    async fn whatever_is_done_to_a_record_is_named(pair: Pair) {
        let (mut gateway, caller, _target) = paired(pair, Agent::json("{}").await).await;
        let first = calls(&gateway, &caller.token, "one").await;
        end(&mut gateway);
        gateway.restart().await;
        let second = calls(&gateway, &caller.token, "two").await;
        assert_ne!(first, second);
        end(&mut gateway);
        let said = says(&gateway, &["verify"], 0);
        assert!(said.contains("2 chains, 2 signed checkpoints"), "{said}");
        let db = open_db(&gateway.sql_url());
        keep(&db, pair).await;
        let last: i64 = sqlx::query_scalar("SELECT last_seq FROM audit_chains WHERE replica = $1")
            .bind(&first).fetch_one(db.pool()).await.unwrap();
        let own = |text: &str| filled(pair, text, [&first, &second]);
        for (what, named, statements) in tamperings(pair) {
            for statement in statements {
                assert_ne!(execute(&db, &own(statement)).await, 0, "{what}");
            }
            let (said, status) = audit(&gateway, &["verify"]);
            assert_eq!(status, Some(1), "{what}: {said}");
            let named = own(named).replace("its record 9", &format!("its record {last}"));
            assert!(said.contains(&named), "{what}: {said}");
            restore(&db, pair).await;
        }
        says(&gateway, &["verify"], 0);
        // What a checkpoint carries is no end, although the same key signed it.
        let carried = Checkpoint::of(&gateway, &db, pair, &second).await;
        for statement in [
            own(&format!("DELETE FROM structure_events WHERE {{of b}} AND seq >= {}", carried.seq)),
            format!("UPDATE audit_chains SET last_seq = {}, statement = '{}' WHERE replica = '{second}'", carried.seq - 1, carried.statement),
        ] {
            assert_ne!(execute(&db, &statement).await, 0);
        }
        let said = says(&gateway, &["verify"], 1);
        assert!(said.contains(&format!("{second}: the statement of where it ends is no signed")), "{said}");
        restore(&db, pair).await;
        // The newest chain as a whole: nobody saw it, but for who kept a line of the log.
        let expect = format!("{second}:{}:{}", carried.seq, carried.hash);
        says(&gateway, &["verify", "--expect", &expect], 0);
        for statement in ["DELETE FROM structure_events WHERE {of b}", "DELETE FROM audit_chains WHERE replica = '{b}'"] {
            execute(&db, &own(statement)).await;
        }
        let said = says(&gateway, &["verify", "--expect", &expect], 1);
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
            .filter_map(|line| serde_json::from_str(line).ok());
        let mut said = lines.filter(|line: &Value| {
            line["message"] == "Audit checkpoint" && line["replica"] == replica
        });
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
    let (mut gateway, caller, _target) = paired(Pair::External, Agent::json("{}").await).await;
    let replica = calls(&gateway, &caller.token, "one").await;
    end(&mut gateway);
    let db = open_db(&gateway.sql_url());
    let own = |text: &str| filled(Pair::External, text, [&replica, ""]);
    // Chains that come before it fill the page, up to its third record.
    let filler = "INSERT INTO structure_events (replica, seq, {texts}) SELECT '!', n, {texts} FROM structure_events, generate_series(1, 1997) AS n WHERE {of a} AND seq = 1";
    assert_eq!(execute(&db, &own(filler)).await, 1997);
    let said = says(&gateway, &["verify"], 1);
    assert!(!said.contains(&format!("{replica}: ")), "{said}");
    let copied = own("{texts}").replace("time,", "time + 1,");
    let copied = copied.replace("caller,", "'somebody',");
    let copy = "INSERT INTO structure_events (replica, seq, {texts}) SELECT replica, seq, {copied} FROM structure_events WHERE {of a} AND seq = 3";
    let copy = own(&copy.replace("{copied}", &copied));
    assert_eq!(execute(&db, &copy).await, 1);
    let said = says(&gateway, &["verify"], 1);
    let changed = format!("{replica}: record 3 was changed");
    assert!(said.contains(&changed), "{said}");
}
