//! Reads records from rows of SQLite.

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

use super::super::filter::Filter;
use super::super::record::Record;
use super::super::row::read_compact_record;
use super::row_keys::BLOCK_BITS;
use super::statement::{Value, page_statement};
use super::{Order, PRUNED_MAX, RecordPosition};
use crate::db::Db;
use crate::store::Unavailable;

/// The name of the chain of a row.
pub(in super::super) const REPLICA: &str =
    "COALESCE((SELECT replica FROM audit_replicas WHERE chain = id >> 40), '#' || (id >> 40))";

/// The columns that hold texts, or could.
pub(in super::super) const TEXTS: &str = "event_type, request_id, trace_id, caller, credential_kind, credential_prefix, \
    client_address, target, org, rule, method, outcome, task_id, detail, prev, hash";

const PRUNE: &str = "DELETE FROM structure_events WHERE id IN \
    (SELECT id FROM structure_events WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3)";

const PRUNE_BLOCKS: &str = "DELETE FROM audit_blocks WHERE block >= $1 AND block < $2";

const NEXT_KEYS: &str = "WITH RECURSIVE keys (key) AS \
    (SELECT MIN(key) FROM audit_seen WHERE key > $1 UNION ALL \
    SELECT (SELECT MIN(key) FROM audit_seen WHERE audit_seen.key > keys.key) FROM keys WHERE keys.key IS NOT NULL \
    LIMIT 500) SELECT key FROM keys WHERE key IS NOT NULL";

const PRUNE_SEEN: &str = "DELETE FROM audit_seen WHERE key IN (SELECT value FROM json_each($1)) \
    AND block >= $2 AND block < $3";

const CHAIN: &str = "SELECT chain FROM audit_replicas WHERE replica = $1";

const ANY_ROW: &str = "SELECT 1 FROM structure_events WHERE id >= $1 AND id < $2 LIMIT 1";

const FORGET: &str = "DELETE FROM audit_replicas WHERE replica = $1";

/// The table of rows, in SQLite.
pub(in super::super) struct Rows {
    db: Db,
}

impl Rows {
    pub(super) fn new(db: Db) -> Self {
        Self { db }
    }

    /// Returns records that match `filter` and follow `after`; a position of texts is before all rows.
    pub(super) async fn read_page(
        &self,
        filter: &Filter,
        order: Order,
        after: Option<&RecordPosition>,
        limit: usize,
    ) -> Result<Vec<(RecordPosition, Record)>, Unavailable> {
        let after = after.and_then(|position| match position {
            RecordPosition::Row(id) => Some(*id),
            RecordPosition::Text { .. } => None,
        });
        let (text, values) = page_statement(filter, order, after, limit);
        let query = bind_values(AssertSqlSafe(text), values);
        let rows = self.db.run("audit_page", query.fetch_all(self.db.pool()));
        let read = |row: &AnyRow| {
            let (id, record) = read_compact_record(row);
            (RecordPosition::Row(id), record)
        };
        Ok(rows.await?.iter().map(read).collect())
    }

    /// Returns the first id of a chain and the first behind it.
    async fn id_range(&self, replica: &str) -> Result<Option<[i64; 2]>, Unavailable> {
        let chain = sqlx::query_scalar(CHAIN).bind(replica);
        let chain = chain.fetch_optional(self.db.pool());
        let chain: Option<i64> = self.db.run("audit_prune", chain).await?;
        Ok(chain.and_then(|chain| {
            Some([
                super::row_keys::row_id(chain, 0)?,
                super::row_keys::row_id(chain + 1, 0)?,
            ])
        }))
    }

    pub(super) async fn has_records(&self, replica: &str) -> Result<bool, Unavailable> {
        let Some([first, end]) = self.id_range(replica).await? else {
            return Ok(false);
        };
        let query = sqlx::query(ANY_ROW).bind(first).bind(end);
        let found = query.fetch_optional(self.db.pool());
        Ok(self.db.run("audit_prune", found).await?.is_some())
    }

    /// Deletes the rows of a chain before `first`, and what finds them.
    pub(super) async fn prune_records(&self, replica: &str, first: i64) -> Result<(), Unavailable> {
        let Some([begin, _]) = self.id_range(replica).await? else {
            return Ok(());
        };
        let end = begin.saturating_add(first);
        let mut pruned = 0;
        loop {
            let query = sqlx::query(PRUNE).bind(begin).bind(end);
            let query = query.bind(PRUNED_MAX);
            let rows = self.db.execute("audit_prune", query).await?;
            pruned += rows;
            if rows < PRUNED_MAX.unsigned_abs() {
                break;
            }
        }
        if pruned > 0 {
            self.prune_blocks(begin >> BLOCK_BITS, end >> BLOCK_BITS)
                .await?;
        }
        Ok(())
    }

    async fn prune_blocks(&self, begin: i64, end: i64) -> Result<(), Unavailable> {
        let query = sqlx::query(PRUNE_BLOCKS).bind(begin).bind(end);
        self.db.execute("audit_prune", query).await?;
        let mut last = -1_i64;
        loop {
            let keys = sqlx::query_scalar(NEXT_KEYS).bind(last);
            let keys = keys.fetch_all(self.db.pool());
            let keys: Vec<i64> = self.db.run("audit_prune", keys).await?;
            let Some(key) = keys.last() else {
                return Ok(());
            };
            last = *key;
            let keys = serde_json::to_string(&keys).unwrap_or_default();
            let query = sqlx::query(PRUNE_SEEN).bind(keys).bind(begin).bind(end);
            self.db.execute("audit_prune", query).await?;
        }
    }

    /// Deletes the number of a chain without records.
    pub(super) async fn delete_chain(&self, replica: &str) -> Result<(), Unavailable> {
        let query = sqlx::query(FORGET).bind(replica);
        self.db.execute("audit_prune", query).await.map(|_| ())
    }
}

fn bind_values(
    text: AssertSqlSafe<String>,
    values: Vec<Value>,
) -> Query<'static, Any, AnyArguments> {
    values
        .into_iter()
        .fold(sqlx::query(text), |query, value| match value {
            Value::Text(text) => query.bind(text),
            Value::Number(number) => query.bind(number),
            Value::Bytes(bytes) => query.bind(bytes),
        })
}
