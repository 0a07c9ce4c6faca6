//! Records whose members are texts, in PostgreSQL. They are inserted many to a statement, each member as a parameter.

use std::fmt::Write as _;

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

use super::super::chain::ChainedRecord;
use super::super::filter::Filter;
use super::super::record::Record;
use super::super::row::read_record;
use super::super::usage;
use super::{BatchSums, ChainRow, Order, PRUNED_MAX, RecordPosition, STATE, new_records};
use crate::db::Db;
use crate::store::Unavailable;

const COLUMNS: &str = "replica, seq, time, event_type, request_id, trace_id, caller, credential_kind, \
    credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, \
    duration_ms, task_id, detail, prev, hash, client_address, bridged";

/// The number of columns.
const WIDTH: usize = 24;

/// The numbers of rows in one INSERT. The largest that fits is used, so few distinct statements are
/// prepared.
const ROWS: [usize; 4] = [64, 16, 4, 1];

// Acknowledged records must survive a crash of the server, whatever its settings.
const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', true) \
    WHERE current_setting('synchronous_commit') IN ('off', 'local')";

// Locked until the commit: one writer of a chain at a time adds to the sums.
const LAST: &str = "SELECT last_seq FROM audit_chains WHERE replica = $1 FOR UPDATE";

// From the signed beginning of their chain on. What is before it, or in no chain, proves nothing.
const RETAINED: &str = " AND EXISTS (SELECT 1 FROM audit_chains AS kept WHERE kept.replica = structure_events.replica \
    AND structure_events.seq >= kept.first_seq)";

const ANY_RECORD: &str = "SELECT 1 FROM structure_events WHERE replica = $1 LIMIT 1";

const PRUNE: &str = "DELETE FROM structure_events WHERE replica = $1 AND seq < $2 AND seq IN \
    (SELECT seq FROM structure_events WHERE replica = $1 AND seq < $2 ORDER BY seq LIMIT $3)";

/// The table of records in texts.
pub(in super::super) struct Texts {
    db: Db,
}

impl Texts {
    pub(super) fn new(db: Db) -> Self {
        Self { db }
    }

    /// Inserts records of one chain, their sums and the row of the chain, in one transaction.
    pub(super) async fn put_records(
        &self,
        records: &[ChainedRecord],
        chain: &ChainRow,
        summed: &BatchSums,
    ) -> Result<(), Unavailable> {
        let work = async {
            let mut tx = self.db.begin().await?;
            sqlx::query(DURABLE).execute(&mut *tx).await?;
            let mut rest = records;
            while !rest.is_empty() {
                let rows = ROWS.into_iter().find(|rows| *rows <= rest.len());
                let (now, later) = rest.split_at(rows.unwrap_or(1));
                insert_query(&chain.replica, now).execute(&mut *tx).await?;
                rest = later;
            }
            // Behind the records: a write of them that was given up, and goes on, is over when they are in.
            let last = sqlx::query_scalar(LAST).bind(&chain.replica);
            let last: Option<i64> = last.fetch_optional(&mut *tx).await?;
            let news = new_records(records, last.unwrap_or(0));
            let state = sqlx::query(STATE).bind(&chain.replica);
            let state = state.bind(chain.first_seq).bind(chain.last_seq);
            let state = state.bind(&chain.statement).bind(chain.signed_at);
            state.execute(&mut *tx).await?;
            // Last, since other replicas add to the same sums.
            usage::add_sums(&mut tx, &summed.sums_of(records, news)).await?;
            tx.commit().await
        };
        self.db.run("audit_put", work).await
    }

    /// Returns records that match `filter` and follow `after` in the given order.
    pub(super) async fn read_page(
        &self,
        filter: &Filter,
        order: Order,
        after: Option<&RecordPosition>,
        limit: usize,
    ) -> Result<Vec<(RecordPosition, Record)>, Unavailable> {
        let mut common = String::new();
        // A workspace may have very many records. Both columns that name it have an index in the order of
        // time.
        let mut sides = vec!["true".to_owned()];
        let mut texts: Vec<&str> = Vec::new();
        let mut times = Vec::new();
        for (condition, value) in filter.column_conditions() {
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
        for (comparison, at) in filter.time_bounds() {
            times.push(at.0);
            let n = texts.len() + times.len();
            let _ = write!(common, " AND time {comparison} ${n}");
        }
        if order != Order::Rows {
            common.push_str(RETAINED);
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
        if let Some(RecordPosition::Text { ms, replica, seq }) = after {
            query = query.bind(ms).bind(replica).bind(seq);
        }
        let rows = self.db.run("audit_page", query.fetch_all(self.db.pool()));
        let read = |row: &AnyRow| {
            let record = read_record(row);
            (RecordPosition::from_record(&record), record)
        };
        Ok(rows.await?.iter().map(read).collect())
    }

    pub(super) async fn has_records(&self, replica: &str) -> Result<bool, Unavailable> {
        let query = sqlx::query(ANY_RECORD).bind(replica);
        let found = query.fetch_optional(self.db.pool());
        let found = self.db.run("audit_prune", found);
        Ok(found.await?.is_some())
    }

    /// Deletes the records of a chain before `first`, in batches.
    pub(super) async fn prune_records(&self, replica: &str, first: i64) -> Result<(), Unavailable> {
        loop {
            let query = sqlx::query(PRUNE).bind(replica).bind(first);
            let query = query.bind(PRUNED_MAX);
            let rows = self.db.execute("audit_prune", query).await?;
            if rows < PRUNED_MAX.unsigned_abs() {
                return Ok(());
            }
        }
    }
}

/// Builds an INSERT. Rows that exist are skipped, so a write of unknown outcome can be retried.
fn insert_query<'q>(
    replica: &'q str,
    records: &'q [ChainedRecord],
) -> Query<'q, Any, AnyArguments> {
    let mut text = format!("INSERT INTO structure_events ({COLUMNS}) VALUES ");
    for row in 0..records.len() {
        for column in 0..WIDTH {
            let between = match (row, column) {
                (0, 0) => "(",
                (_, 0) => "), (",
                _ => ", ",
            };
            text.push_str(between);
            // Writing to a string cannot fail.
            let _ = write!(text, "${}", row * WIDTH + column + 1);
        }
    }
    text.push_str(") ON CONFLICT DO NOTHING");
    let mut query = sqlx::query(AssertSqlSafe(text));
    for record in records {
        let members = record.members();
        query = query
            .bind(replica)
            .bind(record.seq)
            .bind(record.ms)
            .bind(members.event_type)
            .bind(members.request_id)
            .bind(members.trace_id.as_deref())
            .bind(members.caller.as_deref())
            .bind(members.credential_kind)
            .bind(members.credential_prefix.as_deref())
            .bind(members.target)
            .bind(members.org.as_deref())
            .bind(members.rule)
            .bind(members.method)
            .bind(members.outcome)
            .bind(members.status)
            .bind(members.request_bytes)
            .bind(members.response_bytes)
            .bind(members.duration_ms)
            .bind(members.task_id.as_deref())
            .bind(members.detail.as_deref())
            .bind(hex::encode(record.prev))
            .bind(hex::encode(record.hash))
            .bind(members.client_address.as_deref())
            .bind(members.bridged);
    }
    query
}
