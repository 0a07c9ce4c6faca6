//! The audit's tables. In SQLite records are compact rows ([`rows`], written by [`row_writer`]); in PostgreSQL they are
//! texts ([`texts`]).

mod partitions;
mod row_keys;
mod row_writer;
mod rows;
mod statement;
mod texts;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Transaction;
use serde::{Deserialize, Serialize};
use sqlx::FromRow;
use sqlx::any::AnyRow;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

pub(super) use self::partitions::Month;
pub(super) use self::rows::{REPLICA, TEXTS};
use super::chain::{ChainedRecord, END_TYP, Statement};
use super::filter::{Filter, RecordPosition};
use super::pace::Pace;
use super::record::Record;
use super::row::{Reader, read_record};
use super::usage::{Batch, BatchRows, Call, Orgs};
use access::workspace::{Timestamp, orgs_of};
use stores::db::Db;
use stores::store::Unavailable;
use trust::{Keys, SignError, TokenError};

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

/// Maximum time to wait for the tables at startup, before records go to the spool.
const SCHEMA_MAX: Duration = Duration::from_secs(3);
const SCHEMA_PAUSE: Duration = Duration::from_millis(20);

/// A row of `audit_chains`, or its line in an export. Only its signed statement proves that it is genuine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainRow {
    /// The sequence number of the first retained record.
    #[serde(rename = "first")]
    pub first_seq: i64,
    /// The sequence number of the last record.
    #[serde(rename = "last")]
    pub last_seq: i64,
    /// The replica that owns the chain.
    pub replica: String,
    /// The signed statement.
    pub statement: String,
    /// The time of the signature, in milliseconds since 1970.
    #[serde(skip)]
    pub signed_at: i64,
}

impl ChainRow {
    /// Signs a statement and returns its row.
    ///
    /// # Errors
    /// [`SignError`].
    pub(super) fn sign(said: &Statement, keys: &Keys) -> Result<Self, SignError> {
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
    pub(super) fn verify_statement(&self, keys: &Keys) -> Result<Statement, TokenError> {
        keys.verify_statement(&self.statement, END_TYP)
    }
}

/// Only its signed statement proves that a row is genuine.
impl FromRow<'_, AnyRow> for ChainRow {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let mut read = Reader::new(row);
        Ok(Self {
            replica: read.read_text("replica"),
            first_seq: read.read_number("first_seq"),
            last_seq: read.read_number("last_seq"),
            statement: read.read_text("statement"),
            signed_at: read.read_number("signed_at"),
        })
    }
}

/// Returns those of the records of a chain that follow `last`, its last one in SQL: the sums of usage have the others.
/// The row of the chain is locked.
fn new_records(records: &[ChainedRecord], last: i64) -> &[ChainedRecord] {
    &records[records.partition_point(|record| record.seq <= last)..]
}

/// The sums of records that are being written.
struct BatchSums {
    orgs: Orgs,
    /// Of all of them: nearly always all are new.
    all: BatchRows,
}

impl BatchSums {
    async fn compute(
        db: &Db,
        records: &[ChainedRecord],
        pace: &mut Pace,
    ) -> Result<Self, Unavailable> {
        let batch = Batch::from_calls(pace.pieces(records).filter_map(Call::from_record));
        let orgs = orgs_of(db, &batch.workspace_ids()).await?;
        let all = batch.into_rows(&orgs);
        Ok(Self { orgs, all })
    }

    /// Returns the sums of `news`, the last ones of `records`.
    fn sums_of(&self, records: &[ChainedRecord], news: &[ChainedRecord]) -> Cow<'_, BatchRows> {
        if news.len() == records.len() {
            return Cow::Borrowed(&self.all);
        }
        let batch = Batch::from_calls(news.iter().filter_map(Call::from_record));
        Cow::Owned(batch.into_rows(&self.orgs))
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

    /// Inserts records of one chain, adds them to the sums of usage and updates the signed statement of the chain, in
    /// one transaction.
    ///
    /// # Errors
    /// When the store fails. Then either all or nothing was written, or will be.
    pub(super) async fn put_records(
        &self,
        records: &Arc<Vec<ChainedRecord>>,
        chain: &ChainRow,
        mut pace: Pace,
    ) -> Result<(), Unavailable> {
        let summed = BatchSums::compute(&self.db, records, &mut pace).await?;
        if self.is_partitioned() {
            for record in pace.pieces(records.iter()) {
                self.ensure_partition(Month::from_millis(record.ms)).await?;
            }
            return texts::put_records(&self.db, records, chain, &summed).await;
        }
        let (records, chain) = (Arc::clone(records), chain.clone());
        let work = move |to: &Transaction<'_>| {
            row_writer::write_records(to, &records, &chain, &summed, &mut pace)
        };
        self.db.write_to_file("audit_put", work).await
    }

    /// Returns all chains.
    pub(super) async fn read_chains(&self) -> Result<Vec<ChainRow>, Unavailable> {
        match self.db.fetch_all("audit_chains", sqlx::query(CHAINS)).await {
            Ok(rows) => Ok(rows),
            Err(error) => Err(self.name_corrupt_chain(error).await),
        }
    }

    /// Replaces `row` by `new`. Returns false if the row changed meanwhile.
    pub(super) async fn replace_chain(
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
    pub(super) async fn delete_chain(&self, row: &ChainRow) -> Result<bool, Unavailable> {
        let query = sqlx::query(FORGET_CHAIN).bind(&row.replica);
        let query = query.bind(&row.statement);
        let forgotten = self.db.execute("audit_prune", query).await? > 0;
        if forgotten && !self.is_partitioned() {
            rows::delete_chain(&self.db, &row.replica).await?;
        }
        Ok(forgotten)
    }

    /// Returns records that match `filter` and follow `after` in the given order.
    pub(super) async fn read_page(
        &self,
        filter: &Filter,
        order: Order,
        after: Option<&RecordPosition>,
        limit: usize,
    ) -> Result<Vec<(RecordPosition, Record<'static>)>, Unavailable> {
        let (text, values) = match self.is_partitioned() {
            true => texts::page_statement(filter, order, after, limit),
            false => {
                let after = match after {
                    Some(RecordPosition::Row(id)) => Some(*id),
                    _ => None,
                };
                statement::page_statement(filter, order, after, limit)
            }
        };
        let query = values.into_query(text);
        let rows = self.db.run("audit_page", query.fetch_all(self.db.pool()));
        let read = |row: &AnyRow| {
            let (id, record) = read_record(row);
            let position = match id {
                Some(id) => RecordPosition::Row(id),
                None => RecordPosition::from_record(&record),
            };
            (position, record)
        };
        Ok(rows.await?.iter().map(read).collect())
    }

    /// True if a chain has a record.
    pub(super) async fn has_records(&self, replica: &str) -> Result<bool, Unavailable> {
        match self.is_partitioned() {
            true => texts::has_records(&self.db, replica).await,
            false => rows::has_records(&self.db, replica).await,
        }
    }

    /// Deletes the records of a chain before `first`, in batches. Not where partitions are dropped.
    pub(super) async fn prune_records(&self, replica: &str, first: i64) -> Result<(), Unavailable> {
        rows::prune_records(&self.db, replica, first).await
    }

    /// Waits until the tables exist, up to `SCHEMA_MAX`: at startup another task may be creating them.
    pub(super) async fn wait_for_schema(&self) {
        let begun = Instant::now();
        while !self.db.is_migrated() && begun.elapsed() < SCHEMA_MAX {
            sleep(SCHEMA_PAUSE).await;
        }
    }

    /// True if a page of [`Order::Chains`] or [`Order::Rows`] ends after the page before it. PostgreSQL orders texts by
    /// its own collation.
    pub(super) fn is_ordered(&self, before: &RecordPosition, last: &RecordPosition) -> bool {
        match (before, last) {
            (RecordPosition::Row(before), RecordPosition::Row(last)) => last > before,
            (
                RecordPosition::Text(ms, replica, seq),
                RecordPosition::Text(last_ms, last_replica, last_seq),
            ) => last_replica != replica || (last_seq, last_ms) > (seq, ms),
            _ => false,
        }
    }

    /// True if records are partitioned by month.
    pub(super) fn is_partitioned(&self) -> bool {
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
