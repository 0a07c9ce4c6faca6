//! The tables `structure_events` and `audit_chains`. Records come in as one JSON text, since a
//! statement with one parameter for each member of each record costs more than the record.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::chain::Chained;
use super::month::Month;
use super::record::{Record, detail_of};
use crate::db::Db;
use crate::store::Unavailable;
use crate::workspace::Timestamp;

const COLUMNS: &str = "replica, seq, time, event_type, request_id, trace_id, caller, credential_kind, \
    credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, \
    duration_ms, task_id, detail, prev, hash";

// Twice the same is once: what was tried and may have been done is tried again.
const PUT_SQLITE: &str = "INSERT INTO structure_events (replica, seq, time, event_type, request_id, \
    trace_id, caller, credential_kind, credential_prefix, target, org, rule, method, outcome, status, \
    request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash) \
    SELECT value->>'$.r.replica', value->>'$.r.seq', value->>'$.ms', value->>'$.r.event_type', \
    value->>'$.r.request_id', value->>'$.r.trace_id', value->>'$.r.caller', \
    value->>'$.r.credential_kind', value->>'$.r.credential_prefix', value->>'$.r.target', \
    value->>'$.r.org', value->>'$.r.rule', value->>'$.r.method', value->>'$.r.outcome', \
    value->>'$.r.status', value->>'$.r.request_bytes', value->>'$.r.response_bytes', \
    value->>'$.r.duration_ms', value->>'$.r.task_id', value->>'$.r.detail', value->>'$.r.prev', \
    value->>'$.hash' FROM json_each($1) WHERE true ON CONFLICT DO NOTHING";

const PUT_POSTGRES: &str = "INSERT INTO structure_events (replica, seq, time, event_type, request_id, \
    trace_id, caller, credential_kind, credential_prefix, target, org, rule, method, outcome, status, \
    request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash) \
    SELECT r.replica, r.seq, line.ms, r.event_type, r.request_id, r.trace_id, r.caller, \
    r.credential_kind, r.credential_prefix, r.target, r.org, r.rule, r.method, r.outcome, r.status, \
    r.request_bytes, r.response_bytes, r.duration_ms, r.task_id, r.detail, r.prev, line.hash \
    FROM json_to_recordset(CAST($1 AS json)) AS line(ms bigint, hash text, r json), \
    json_to_record(line.r) AS r(replica text, seq bigint, event_type text, request_id text, \
    trace_id text, caller text, credential_kind text, credential_prefix text, target text, org text, \
    rule text, method text, outcome text, status bigint, request_bytes bigint, response_bytes bigint, \
    duration_ms bigint, task_id text, detail text, prev text) ON CONFLICT DO NOTHING";

// What is said to be written must not be gone after a crash of the server, whatever else may be.
const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', true) \
    WHERE current_setting('synchronous_commit') IN ('off', 'local')";

// A chain only grows: who was slow says nothing that is over.
const STATE: &str = "INSERT INTO audit_chains (replica, first_seq, last_seq, statement, signed_at) \
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT (replica) DO UPDATE SET first_seq = excluded.first_seq, \
    last_seq = excluded.last_seq, statement = excluded.statement, signed_at = excluded.signed_at \
    WHERE audit_chains.last_seq <= excluded.last_seq";

const STATE_ANEW: &str = "UPDATE audit_chains SET first_seq = $3, statement = $4, signed_at = $5 \
    WHERE replica = $1 AND statement = $2";

const CHAINS: &str =
    "SELECT replica, first_seq, last_seq, statement, signed_at FROM audit_chains ORDER BY replica";

const FORGET_CHAIN: &str = "DELETE FROM audit_chains WHERE replica = $1 AND statement = $2";

// By time, which has an index: a chain may be long.
const LAST_OLD: &str = "SELECT seq FROM structure_events WHERE replica = $1 AND time < $2 \
    AND event_type = 'AUDIT_CHECKPOINT' ORDER BY time DESC, seq DESC LIMIT 1";

const NEWEST: &str =
    "SELECT time FROM structure_events WHERE replica = $1 ORDER BY seq DESC LIMIT 1";

const PRUNE: &str = "DELETE FROM structure_events WHERE replica = $1 AND seq < $2 AND seq IN \
    (SELECT seq FROM structure_events WHERE replica = $1 AND seq < $2 ORDER BY seq LIMIT $3)";

/// Partitions of PostgreSQL begin with this, and end with their month.
const PARTITION: &str = "structure_events_";

const PARTITIONS: &str = "SELECT CAST(child.relname AS TEXT) AS name FROM pg_inherits \
    JOIN pg_class child ON child.oid = inhrelid \
    WHERE inhparent = to_regclass('structure_events') ORDER BY 1";

/// How long a start may take to make the tables, before records go elsewhere.
const SCHEMA_MAX: Duration = Duration::from_secs(3);
const SCHEMA_PAUSE: Duration = Duration::from_millis(20);

/// Rows that one statement deletes at most.
const PRUNED_MAX: i64 = 5000;

/// A chain as its row has it. Whether that is true, its statement says, if its signature is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRow {
    /// Whose.
    pub replica: String,
    /// The number of the first record that is kept.
    pub first_seq: i64,
    /// The number of its last record.
    pub last_seq: i64,
    /// The signed statement.
    pub statement: String,
    /// When it was signed, in milliseconds since 1970.
    pub signed_at: i64,
}

/// The tables.
pub(super) struct Table {
    db: Db,
    /// Months for which PostgreSQL has a partition.
    months: Mutex<HashSet<Month>>,
}

impl Table {
    pub(super) fn new(db: Db) -> Self {
        Self {
            db,
            months: Mutex::default(),
        }
    }

    /// Writes records of one chain, and what is signed of it, at once.
    ///
    /// # Errors
    /// When the store fails; nothing is written then, or all.
    pub(super) async fn put(
        &self,
        records: &[Chained],
        chain: &ChainRow,
    ) -> Result<(), Unavailable> {
        if self.has_months() {
            for record in records {
                self.ensure(Month::of(record.ms)).await?;
            }
        }
        let put = if self.db.is_embedded() {
            PUT_SQLITE
        } else {
            PUT_POSTGRES
        };
        let lines = lines(records);
        let work = async {
            let mut tx = self.db.begin().await?;
            if self.has_months() {
                sqlx::query(DURABLE).execute(&mut *tx).await?;
            }
            if !records.is_empty() {
                sqlx::query(put).bind(&lines).execute(&mut *tx).await?;
            }
            let state = sqlx::query(STATE).bind(&chain.replica);
            let state = state.bind(chain.first_seq).bind(chain.last_seq);
            let state = state.bind(&chain.statement);
            state.bind(chain.signed_at).execute(&mut *tx).await?;
            tx.commit().await
        };
        self.db.run("audit_put", work).await
    }

    /// Makes the partition of a month, if it is not there.
    pub(super) async fn ensure(&self, month: Month) -> Result<(), Unavailable> {
        let mut known = self.months.lock().await;
        if known.contains(&month) {
            return Ok(());
        }
        let (name, [from, to]) = (format!("{PARTITION}{month}"), month.bounds());
        let text = format!(
            "CREATE TABLE IF NOT EXISTS {name} PARTITION OF structure_events FOR VALUES FROM ({from}) TO ({to})"
        );
        let work = async {
            let made = sqlx::query(AssertSqlSafe(text))
                .execute(self.db.pool())
                .await;
            match made {
                // Another replica made it at the same moment.
                Err(sqlx::Error::Database(error)) if is_there(&*error) => Ok(()),
                other => other.map(|_| ()),
            }
        };
        self.db.run("audit_partition", work).await?;
        known.insert(month);
        Ok(())
    }

    /// All chains.
    pub(super) async fn chains(&self) -> Result<Vec<ChainRow>, Unavailable> {
        let rows = sqlx::query(CHAINS).fetch_all(self.db.pool());
        let rows = self.db.run("audit_chains", rows).await?;
        Ok(rows.iter().map(chain).collect())
    }

    /// Puts `new` in the place of `row`, if that is still there.
    pub(super) async fn state_anew(
        &self,
        row: &ChainRow,
        new: &ChainRow,
    ) -> Result<bool, Unavailable> {
        let query = sqlx::query(STATE_ANEW).bind(&row.replica);
        let query = query.bind(&row.statement).bind(new.first_seq);
        let query = query.bind(&new.statement).bind(new.signed_at);
        let done = self.db.run("audit_prune", query.execute(self.db.pool()));
        Ok(done.await?.rows_affected() > 0)
    }

    /// Forgets a chain that has no record any more.
    pub(super) async fn forget(&self, row: &ChainRow) -> Result<bool, Unavailable> {
        let query = sqlx::query(FORGET_CHAIN).bind(&row.replica);
        let query = query.bind(&row.statement);
        let done = self.db.run("audit_prune", query.execute(self.db.pool()));
        Ok(done.await?.rows_affected() > 0)
    }

    /// Records that fit `filter`, behind `after`, in its order.
    pub(super) async fn page(
        &self,
        filter: &super::query::Filter,
        order: Order,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<Vec<Record>, Unavailable> {
        let mut text = format!("SELECT {COLUMNS} FROM structure_events WHERE true");
        let mut texts: Vec<&str> = Vec::new();
        let mut times = Vec::new();
        for (condition, value) in filter.conditions() {
            texts.push(value);
            let n = texts.len();
            // Constants of this program; the values are bound.
            let _ = match condition {
                "workspace" => write!(text, " AND (caller = ${n} OR target = ${n})"),
                column => write!(text, " AND {column} = ${n}"),
            };
        }
        for (comparison, at) in filter.times() {
            times.push(at.0);
            let n = texts.len() + times.len();
            let _ = write!(text, " AND time {comparison} ${n}");
        }
        let n = texts.len() + times.len();
        let (compared, sorted) = match order {
            Order::Newest => (
                format!(
                    "(time, replica, seq) < (${}, ${}, ${})",
                    n + 1,
                    n + 2,
                    n + 3
                ),
                "time DESC, replica DESC, seq DESC",
            ),
            Order::Chains => (
                format!("(replica, seq) > (${}, ${})", n + 1, n + 2),
                "replica, seq",
            ),
        };
        if after.is_some() {
            let _ = write!(text, " AND {compared}");
        }
        let _ = write!(text, " ORDER BY {sorted} LIMIT {limit}");
        let mut query = sqlx::query(AssertSqlSafe(text));
        for value in texts {
            query = query.bind(value);
        }
        for time in times {
            query = query.bind(time);
        }
        if let Some(place) = after {
            if order == Order::Newest {
                query = query.bind(place.ms);
            }
            query = query.bind(&place.replica).bind(place.seq);
        }
        let rows = self.db.run("audit_page", query.fetch_all(self.db.pool()));
        Ok(rows.await?.iter().map(record).collect())
    }

    /// The last checkpoint of a chain that was made before `oldest`.
    pub(super) async fn last_old(
        &self,
        replica: &str,
        oldest: Timestamp,
    ) -> Result<Option<i64>, Unavailable> {
        let query = sqlx::query_scalar(LAST_OLD).bind(replica).bind(oldest.0);
        let found = query.fetch_optional(self.db.pool());
        self.db.run("audit_prune", found).await
    }

    /// When the last record of a chain was made.
    pub(super) async fn newest(&self, replica: &str) -> Result<Option<Timestamp>, Unavailable> {
        let query = sqlx::query_scalar(NEWEST).bind(replica);
        let newest = self
            .db
            .run("audit_prune", query.fetch_optional(self.db.pool()));
        Ok(newest.await?.map(Timestamp))
    }

    /// Deletes the records of a chain before `first`; a part of them at a time.
    pub(super) async fn prune(&self, replica: &str, first: i64) -> Result<u64, Unavailable> {
        let mut pruned = 0;
        loop {
            let query = sqlx::query(PRUNE)
                .bind(replica)
                .bind(first)
                .bind(PRUNED_MAX);
            let done = self.db.run("audit_prune", query.execute(self.db.pool()));
            let rows = done.await?.rows_affected();
            pruned += rows;
            if rows < PRUNED_MAX.unsigned_abs() {
                return Ok(pruned);
            }
        }
    }

    /// Drops PostgreSQL's partitions of months before `oldest` in which no chain keeps a record.
    pub(super) async fn drop_old(&self, oldest: Timestamp) -> Result<(), Unavailable> {
        let names = sqlx::query_scalar(PARTITIONS).fetch_all(self.db.pool());
        let names: Vec<String> = self.db.run("audit_prune", names).await?;
        let old = |name: &&String| {
            let month = name.strip_prefix(PARTITION).and_then(Month::parse);
            month.is_some_and(|month| month.bounds()[1] <= oldest.0)
        };
        for name in names.iter().filter(old) {
            let kept = format!(
                "SELECT part.seq FROM {name} part JOIN audit_chains ON audit_chains.replica = part.replica \
                 WHERE part.seq >= audit_chains.first_seq LIMIT 1"
            );
            let kept = sqlx::query(AssertSqlSafe(kept)).fetch_optional(self.db.pool());
            if self.db.run("audit_partition", kept).await?.is_none() {
                let gone = sqlx::query(AssertSqlSafe(format!("DROP TABLE IF EXISTS {name}")));
                let gone = self.db.run("audit_prune", gone.execute(self.db.pool()));
                gone.await?;
                self.months.lock().await.clear();
            }
        }
        Ok(())
    }

    /// Waits until the tables are there, for a while: at a start they may be made at this moment.
    pub(super) async fn await_schema(&self) {
        let begun = Instant::now();
        while !self.db.is_migrated() && begun.elapsed() < SCHEMA_MAX {
            sleep(SCHEMA_PAUSE).await;
        }
    }

    /// Whether records are kept in parts, a month each.
    pub(super) fn has_months(&self) -> bool {
        !self.db.is_embedded()
    }
}

/// In which order records are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The newest first.
    Newest,
    /// Chain by chain.
    Chains,
}

/// The place of a record in either order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) ms: i64,
    pub(super) replica: String,
    pub(super) seq: i64,
}

impl Place {
    pub(super) fn of(record: &Record) -> Self {
        Self {
            ms: Timestamp::parse(&record.time).map_or(0, |at| at.0),
            replica: record.replica.clone(),
            seq: record.seq,
        }
    }
}

/// Records as one JSON list.
fn lines(records: &[Chained]) -> String {
    let bytes: usize = records.iter().map(|one| one.text.len() + 120).sum();
    let mut lines = String::with_capacity(bytes);
    lines.push('[');
    for record in records {
        if lines.len() > 1 {
            lines.push(',');
        }
        let (ms, hash, text) = (record.ms, &record.hash, &record.text);
        // Writing to a string does not fail.
        let _ = write!(lines, r#"{{"ms":{ms},"hash":"{hash}","r":{text}}}"#);
    }
    lines.push(']');
    lines
}

/// Whether a partition was there already: `duplicate_table`, or the same by its name in a catalogue.
fn is_there(error: &(dyn sqlx::error::DatabaseError + 'static)) -> bool {
    error
        .code()
        .is_some_and(|code| code == "42P07" || code == "23505")
}

fn chain(row: &AnyRow) -> ChainRow {
    ChainRow {
        replica: text(row, "replica"),
        first_seq: number(row, "first_seq"),
        last_seq: number(row, "last_seq"),
        statement: text(row, "statement"),
        signed_at: number(row, "signed_at"),
    }
}

/// A row as a record. Somebody may have put anything there: what cannot be read is empty, and the hash
/// tells.
fn record(row: &AnyRow) -> Record {
    Record {
        caller: optional(row, "caller"),
        credential_kind: optional(row, "credential_kind"),
        credential_prefix: optional(row, "credential_prefix"),
        detail: optional(row, "detail").and_then(detail_of),
        duration_ms: number(row, "duration_ms"),
        event_type: text(row, "event_type"),
        hash: Some(text(row, "hash")),
        method: optional(row, "method"),
        org: optional(row, "org"),
        outcome: text(row, "outcome"),
        prev: text(row, "prev"),
        replica: text(row, "replica"),
        request_bytes: number(row, "request_bytes"),
        request_id: optional(row, "request_id"),
        response_bytes: number(row, "response_bytes"),
        rule: optional(row, "rule"),
        seq: number(row, "seq"),
        status: number(row, "status"),
        target: optional(row, "target"),
        task_id: optional(row, "task_id"),
        time: Timestamp(number(row, "time")).to_string(),
        trace_id: optional(row, "trace_id"),
    }
}

fn text(row: &AnyRow, column: &str) -> String {
    row.try_get(column).unwrap_or_default()
}

fn number(row: &AnyRow, column: &str) -> i64 {
    row.try_get(column).unwrap_or_default()
}

fn optional(row: &AnyRow, column: &str) -> Option<String> {
    row.try_get(column).ok().flatten()
}
