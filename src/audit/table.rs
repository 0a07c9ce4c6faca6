//! The tables `structure_events` and `audit_chains`. Records are inserted many to a statement, each member
//! as a parameter: SQLite takes twice as long to extract members from a JSON text.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::time::Duration;

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::chain::{Chained, END_TYP, Statement};
use super::month::Month;
use super::record::Record;
use super::row::{chain, record};
use crate::db::Db;
use crate::store::Unavailable;
use crate::trust::{Keys, SignError, TokenError};
use crate::workspace::Timestamp;

pub(super) const COLUMNS: &str = "replica, seq, time, event_type, request_id, trace_id, caller, credential_kind, \
    credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, \
    duration_ms, task_id, detail, prev, hash, client_address";

/// The number of columns.
const WIDTH: usize = 23;

/// The numbers of rows in one INSERT. The largest that fits is used, so few distinct statements are
/// prepared.
const ROWS: [usize; 4] = [64, 16, 4, 1];

// Acknowledged records must survive a crash of the server, whatever its settings.
const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', true) \
    WHERE current_setting('synchronous_commit') IN ('off', 'local')";

// A chain only grows, so a delayed writer must not overwrite a newer end.
const STATE: &str = "INSERT INTO audit_chains (replica, first_seq, last_seq, statement, signed_at) \
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT (replica) DO UPDATE SET first_seq = excluded.first_seq, \
    last_seq = excluded.last_seq, statement = excluded.statement, signed_at = excluded.signed_at \
    WHERE audit_chains.last_seq <= excluded.last_seq";

const STATE_ANEW: &str = "UPDATE audit_chains SET first_seq = $3, statement = $4, signed_at = $5 \
    WHERE replica = $1 AND statement = $2";

const CHAINS: &str =
    "SELECT replica, first_seq, last_seq, statement, signed_at FROM audit_chains ORDER BY replica";

const FORGET_CHAIN: &str = "DELETE FROM audit_chains WHERE replica = $1 AND statement = $2";

const ANY_RECORD: &str = "SELECT 1 FROM structure_events WHERE replica = $1 LIMIT 1";

// A row before the signed beginning of its chain, or in no chain, proves nothing.
const KEPT: &str = " AND EXISTS (SELECT 1 FROM audit_chains AS kept WHERE kept.replica = structure_events.replica \
    AND structure_events.seq >= kept.first_seq)";

const PRUNE: &str = "DELETE FROM structure_events WHERE replica = $1 AND seq < $2 AND seq IN \
    (SELECT seq FROM structure_events WHERE replica = $1 AND seq < $2 ORDER BY seq LIMIT $3)";

/// Prefix of the names of PostgreSQL partitions. The month follows.
const PARTITION: &str = "structure_events_";

const PARTITIONS: &str = "SELECT CAST(child.relname AS TEXT) AS name FROM pg_inherits \
    JOIN pg_class child ON child.oid = inhrelid \
    WHERE inhparent = to_regclass('structure_events') ORDER BY 1";

/// Maximum time to wait for the tables at startup, before records go to the spool.
const SCHEMA_MAX: Duration = Duration::from_secs(3);
const SCHEMA_PAUSE: Duration = Duration::from_millis(20);

/// Maximum number of rows in one DELETE.
const PRUNED_MAX: i64 = 5000;

/// A row of `audit_chains`. Only its signed statement proves that it is genuine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRow {
    /// The replica that owns the chain.
    pub replica: String,
    /// The sequence number of the first retained record.
    pub first_seq: i64,
    /// The sequence number of the last record.
    pub last_seq: i64,
    /// The signed statement.
    pub statement: String,
    /// The time of the signature, in milliseconds since 1970.
    pub signed_at: i64,
}

impl ChainRow {
    /// Signs a statement and returns its row.
    ///
    /// # Errors
    /// [`SignError`].
    pub(super) fn of(said: &Statement, keys: &Keys) -> Result<Self, SignError> {
        Ok(Self {
            replica: said.replica.clone(),
            first_seq: said.first,
            last_seq: said.last,
            statement: said.sign(keys)?,
            signed_at: Timestamp::now().0,
        })
    }

    /// Verifies and returns the signed statement, which may differ from the other columns.
    ///
    /// # Errors
    /// As [`Keys::verify_statement`].
    pub(super) fn stated(&self, keys: &Keys) -> Result<Statement, TokenError> {
        keys.verify_statement(&self.statement, END_TYP)
    }
}

/// The audit tables.
pub(super) struct Table {
    pub(super) db: Db,
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

    /// Inserts records of one chain and updates its signed statement, in one transaction.
    ///
    /// # Errors
    /// When the store fails. Then either all or nothing was written.
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
        let work = async {
            let mut tx = self.db.begin().await?;
            if self.has_months() {
                sqlx::query(DURABLE).execute(&mut *tx).await?;
            }
            let mut rest = records;
            while !rest.is_empty() {
                let rows = ROWS.into_iter().find(|rows| *rows <= rest.len());
                let (now, later) = rest.split_at(rows.unwrap_or(1));
                insert(now, self.db.is_embedded()).execute(&mut *tx).await?;
                rest = later;
            }
            let state = sqlx::query(STATE).bind(&chain.replica);
            let state = state.bind(chain.first_seq).bind(chain.last_seq);
            let state = state.bind(&chain.statement);
            state.bind(chain.signed_at).execute(&mut *tx).await?;
            tx.commit().await
        };
        self.db.run("audit_put", work).await
    }

    /// Creates the partition of a month, if it does not exist.
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
                // Another replica created it at the same moment.
                Err(sqlx::Error::Database(error)) if is_there(&*error) => Ok(()),
                other => other.map(|_| ()),
            }
        };
        self.db.run("audit_partition", work).await?;
        known.insert(month);
        Ok(())
    }

    /// Returns all chains.
    pub(super) async fn chains(&self) -> Result<Vec<ChainRow>, Unavailable> {
        let rows = sqlx::query(CHAINS).fetch_all(self.db.pool());
        match self.db.run("audit_chains", rows).await {
            Ok(rows) => Ok(rows.iter().map(chain).collect()),
            Err(error) => Err(self.named_chain(error).await),
        }
    }

    /// Replaces `row` by `new`. Returns false if the row changed meanwhile.
    pub(super) async fn state_anew(
        &self,
        row: &ChainRow,
        new: &ChainRow,
    ) -> Result<bool, Unavailable> {
        let query = sqlx::query(STATE_ANEW).bind(&row.replica);
        let query = query.bind(&row.statement).bind(new.first_seq);
        let query = query.bind(&new.statement).bind(new.signed_at);
        Ok(self.db.execute("audit_prune", query).await? > 0)
    }

    /// Deletes the row of a chain without records. Returns false if the row changed meanwhile.
    pub(super) async fn forget(&self, row: &ChainRow) -> Result<bool, Unavailable> {
        let query = sqlx::query(FORGET_CHAIN).bind(&row.replica);
        let query = query.bind(&row.statement);
        Ok(self.db.execute("audit_prune", query).await? > 0)
    }

    /// Returns records that match `filter` and follow `after` in the given order.
    pub(super) async fn page(
        &self,
        filter: &super::query::Filter,
        order: Order,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<Vec<Record>, Unavailable> {
        let mut common = String::new();
        // A workspace may have very many records. Both columns that name it have an index in the order of
        // time.
        let mut sides = vec!["true".to_owned()];
        let mut texts: Vec<&str> = Vec::new();
        let mut times = Vec::new();
        for (condition, value) in filter.conditions() {
            texts.push(value);
            let n = texts.len();
            // The conditions are constants of this program; the values are bound. Writing to a string
            // cannot fail.
            if condition == "workspace" {
                sides = vec![format!("caller = ${n}"), format!("target = ${n}")];
            } else {
                let _ = write!(common, " AND {condition} = ${n}");
            }
        }
        for (comparison, at) in filter.times() {
            times.push(at.0);
            let n = texts.len() + times.len();
            let _ = write!(common, " AND time {comparison} ${n}");
        }
        if order != Order::Rows {
            common.push_str(KEPT);
        }
        let n = texts.len() + times.len();
        let [time, replica, seq] = [n + 1, n + 2, n + 3];
        let (compared, sorted) = match order {
            // The time is compared twice: an index without the other columns needs the simple condition.
            Order::Newest => (
                format!("time <= ${time} AND (time, replica, seq) < (${time}, ${replica}, ${seq})"),
                "time DESC, replica DESC, seq DESC",
            ),
            // The time comes last: PostgreSQL's key admits two rows with one sequence number.
            Order::Chains | Order::Rows => (
                format!("(replica, seq, time) > (${replica}, ${seq}, ${time})"),
                "replica, seq, time",
            ),
        };
        if after.is_some() {
            let _ = write!(common, " AND {compared}");
        }
        let sides = sides.iter().map(|side| {
            format!(
                "SELECT * FROM (SELECT {COLUMNS} FROM structure_events WHERE {side}{common} \
                 ORDER BY {sorted} LIMIT {limit}) AS side"
            )
        });
        let sides = sides.collect::<Vec<_>>().join(" UNION ");
        let text = format!("{sides} ORDER BY {sorted} LIMIT {limit}");
        let mut query = sqlx::query(AssertSqlSafe(text));
        for value in texts {
            query = query.bind(value);
        }
        for time in times {
            query = query.bind(time);
        }
        if let Some(place) = after {
            query = query.bind(place.ms).bind(&place.replica);
            query = query.bind(place.seq);
        }
        let rows = self.db.run("audit_page", query.fetch_all(self.db.pool()));
        Ok(rows.await?.iter().map(record).collect())
    }

    /// True if a chain has a record.
    pub(super) async fn has_records(&self, replica: &str) -> Result<bool, Unavailable> {
        let query = sqlx::query(ANY_RECORD).bind(replica);
        let found = query.fetch_optional(self.db.pool());
        let found = self.db.run("audit_prune", found);
        Ok(found.await?.is_some())
    }

    /// Deletes the records of a chain before `first`, in batches. Returns their number.
    pub(super) async fn prune(&self, replica: &str, first: i64) -> Result<u64, Unavailable> {
        let mut pruned = 0;
        loop {
            let query = sqlx::query(PRUNE)
                .bind(replica)
                .bind(first)
                .bind(PRUNED_MAX);
            let rows = self.db.execute("audit_prune", query).await?;
            pruned += rows;
            if rows < PRUNED_MAX.unsigned_abs() {
                return Ok(pruned);
            }
        }
    }

    /// Drops the PostgreSQL partitions of months before `oldest` in which no chain retains a record.
    /// `firsts` maps each chain to its signed beginning. A record of any other chain retains its partition.
    pub(super) async fn drop_old(
        &self,
        oldest: Timestamp,
        firsts: &BTreeMap<String, i64>,
    ) -> Result<(), Unavailable> {
        let firsts = serde_json::to_string(firsts).unwrap_or_default();
        let names = sqlx::query_scalar(PARTITIONS).fetch_all(self.db.pool());
        let names: Vec<String> = self.db.run("audit_prune", names).await?;
        let old = |name: &&String| {
            let month = name.strip_prefix(PARTITION).and_then(Month::parse);
            month.is_some_and(|month| month.bounds()[1] <= oldest.0)
        };
        for name in names.iter().filter(old) {
            let kept = format!(
                "SELECT part.seq FROM {name} part \
                 LEFT JOIN jsonb_each_text(CAST($1 AS JSONB)) AS chain (replica, first_seq) ON chain.replica = part.replica \
                 WHERE chain.first_seq IS NULL OR part.seq >= CAST(chain.first_seq AS BIGINT) LIMIT 1"
            );
            let kept = sqlx::query(AssertSqlSafe(kept)).bind(firsts.as_str());
            let kept = kept.fetch_optional(self.db.pool());
            if self.db.run("audit_partition", kept).await?.is_none() {
                let gone = sqlx::query(AssertSqlSafe(format!("DROP TABLE IF EXISTS {name}")));
                self.db.execute("audit_prune", gone).await?;
                self.months.lock().await.clear();
            }
        }
        Ok(())
    }

    /// Waits until the tables exist, up to `SCHEMA_MAX`: at startup another task may be creating them.
    pub(super) async fn await_schema(&self) {
        let begun = Instant::now();
        while !self.db.is_migrated() && begun.elapsed() < SCHEMA_MAX {
            sleep(SCHEMA_PAUSE).await;
        }
    }

    /// True if a page of [`Order::Chains`] or [`Order::Rows`] ends after the page before it. Values of
    /// wrong types in SQLite break the order; PostgreSQL orders texts by its own collation.
    pub(super) fn goes_on(&self, before: &Place, last: &Place) -> bool {
        let of_chain = |place: &Place| (place.seq, place.ms);
        match last.replica.cmp(&before.replica) {
            Ordering::Equal => of_chain(last) > of_chain(before),
            Ordering::Less => !self.db.is_embedded(),
            Ordering::Greater => true,
        }
    }

    /// True if records are partitioned by month.
    pub(super) fn has_months(&self) -> bool {
        !self.db.is_embedded()
    }
}

/// The order in which records are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Newest first.
    Newest,
    /// Chain by chain.
    Chains,
    /// Chain by chain, with rows that belong to no chain or precede its beginning.
    Rows,
}

/// The position of a record in either order.
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

/// Builds an INSERT. Rows that exist are skipped, so a write of unknown outcome can be retried.
fn insert(records: &[Chained], embedded: bool) -> Query<'_, Any, AnyArguments> {
    let mut text = format!("INSERT INTO structure_events ({COLUMNS}) VALUES ");
    for row in 0..records.len() {
        for column in 0..WIDTH {
            let between = match (row, column) {
                (0, 0) => "(",
                (_, 0) => "), (",
                _ => ", ",
            };
            text.push_str(between);
            if embedded {
                // Not `$n`: SQLite looks up each numbered parameter among all of them.
                text.push('?');
            } else {
                // Writing to a string cannot fail.
                let _ = write!(text, "${}", row * WIDTH + column + 1);
            }
        }
    }
    text.push_str(") ON CONFLICT DO NOTHING");
    let mut query = sqlx::query(AssertSqlSafe(text));
    for Chained { ms, record, .. } in records {
        query = query
            .bind(&record.replica)
            .bind(record.seq)
            .bind(ms)
            .bind(&record.event_type)
            .bind(&record.request_id)
            .bind(&record.trace_id)
            .bind(&record.caller)
            .bind(&record.credential_kind)
            .bind(&record.credential_prefix)
            .bind(&record.target)
            .bind(&record.org)
            .bind(&record.rule)
            .bind(&record.method)
            .bind(&record.outcome)
            .bind(record.status)
            .bind(record.request_bytes)
            .bind(record.response_bytes)
            .bind(record.duration_ms)
            .bind(&record.task_id)
            .bind(record.detail.as_ref().map(|detail| detail.get()))
            .bind(&record.prev)
            .bind(record.hash())
            .bind(&record.client_address);
    }
    query
}

/// True if the error means that the partition exists: `duplicate_table`, or its name is in the catalogue.
fn is_there(error: &(dyn sqlx::error::DatabaseError + 'static)) -> bool {
    error
        .code()
        .is_some_and(|code| code == "42P07" || code == "23505")
}
