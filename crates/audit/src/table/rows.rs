//! Reads records from rows of SQLite.

use super::row_keys::{BLOCK_BITS, row_id};
use stores::db::{BATCH_MAX, Db};
use stores::store::Unavailable;

/// The name of the chain of a row.
pub(in super::super) const REPLICA: &str =
    "COALESCE((SELECT replica FROM audit_replicas WHERE chain = id >> 40), '#' || (id >> 40))";

/// The columns that hold texts, or could.
pub(in super::super) const TEXTS: &str = "event_type, request_id, trace_id, caller, credential_kind, credential_prefix, \
    client_address, target, org, rule, method, outcome, task_id, detail, prev, hash, root, txn, \
    depth, link, sent, run, context";

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

/// Returns the first id of a chain and the first behind it.
async fn id_range(db: &Db, replica: &str) -> Result<Option<[i64; 2]>, Unavailable> {
    let chain = sqlx::query(CHAIN).bind(replica);
    let chain: Option<(i64,)> = db.fetch_optional("audit_prune", chain).await?;
    Ok(chain.and_then(|(chain,)| Some([row_id(chain, 0)?, row_id(chain + 1, 0)?])))
}

pub(super) async fn has_records(db: &Db, replica: &str) -> Result<bool, Unavailable> {
    let Some([first, end]) = id_range(db, replica).await? else {
        return Ok(false);
    };
    let query = sqlx::query(ANY_ROW).bind(first).bind(end);
    let found: Option<(i64,)> = db.fetch_optional("audit_prune", query).await?;
    Ok(found.is_some())
}

/// Deletes the rows of a chain before `first`, and what finds them.
pub(super) async fn prune_records(db: &Db, replica: &str, first: i64) -> Result<(), Unavailable> {
    let Some([begin, _]) = id_range(db, replica).await? else {
        return Ok(());
    };
    let end = begin.saturating_add(first);
    let prune = || sqlx::query(PRUNE).bind(begin).bind(end).bind(BATCH_MAX);
    let pruned = db.execute_in_batches("audit_prune", prune).await?;
    if pruned > 0 {
        prune_blocks(db, begin >> BLOCK_BITS, end >> BLOCK_BITS).await?;
    }
    Ok(())
}

async fn prune_blocks(db: &Db, begin: i64, end: i64) -> Result<(), Unavailable> {
    let query = sqlx::query(PRUNE_BLOCKS).bind(begin).bind(end);
    db.execute("audit_prune", query).await?;
    let mut last = -1_i64;
    loop {
        let keys = sqlx::query(NEXT_KEYS).bind(last);
        let keys: Vec<(i64,)> = db.fetch_all("audit_prune", keys).await?;
        let keys: Vec<i64> = keys.into_iter().map(|(key,)| key).collect();
        let Some(key) = keys.last() else {
            return Ok(());
        };
        last = *key;
        let keys = serde_json::to_string(&keys).unwrap_or_default();
        let query = sqlx::query(PRUNE_SEEN).bind(keys).bind(begin).bind(end);
        db.execute("audit_prune", query).await?;
    }
}

/// Deletes the number of a chain without records.
pub(super) async fn delete_chain(db: &Db, replica: &str) -> Result<(), Unavailable> {
    let query = sqlx::query(FORGET).bind(replica);
    db.execute("audit_prune", query).await.map(|_| ())
}
