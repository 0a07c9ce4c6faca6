//! The tables `task_owners` and `task_bindings`: owners of tasks, and instances that have them, of a single gateway.

use std::time::Duration;

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, query_scalar};

use super::note::{BindingWrite, Note, QueuedNote, ReplaceRule, TaskClaim};
use access::workspace::Timestamp;
use stores::db::{Connection, Db};
use stores::store::Unavailable;

const BIND: &str = "INSERT INTO task_bindings (bound_key, value, owner, expires_at) VALUES ($1, $2, $3, $4) \
    ON CONFLICT (bound_key) DO UPDATE SET value = excluded.value, owner = excluded.owner, \
    expires_at = excluded.expires_at";

const RENEW_BINDING: &str =
    "UPDATE task_bindings SET expires_at = $3 WHERE bound_key = $1 AND value = $2";

const DELETE_OLDEST_BINDINGS: &str = "DELETE FROM task_bindings WHERE bound_key IN \
    (SELECT bound_key FROM task_bindings WHERE owner = $2 ORDER BY expires_at DESC LIMIT $1 OFFSET $3)";

const BOUND: &str = "SELECT value FROM task_bindings WHERE bound_key = $1 AND expires_at > $2";

const DELETE_LAPSED_BINDINGS: &str = "DELETE FROM task_bindings WHERE bound_key IN \
    (SELECT bound_key FROM task_bindings WHERE expires_at <= $2 LIMIT $1)";

// A lapsed row can be claimed by any owner.
const CLAIM: &str = "INSERT INTO task_owners (task_key, at_key, owner, target, started, expires_at) \
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (task_key) DO UPDATE SET at_key = excluded.at_key, \
    owner = excluded.owner, target = excluded.target, started = excluded.started, \
    expires_at = excluded.expires_at \
    WHERE task_owners.owner = excluded.owner OR task_owners.expires_at <= $7";

const RENEW: &str = "UPDATE task_owners SET expires_at = $2 WHERE task_key = $1";

const OWNER: &str = "SELECT owner FROM task_owners WHERE task_key = $1 AND expires_at > $2";

const TARGET: &str = "SELECT target FROM task_owners WHERE at_key = $1 AND expires_at > $2 \
    ORDER BY started LIMIT 1";

// The newest row beyond the bound of its owner.
const CUT: &str = "SELECT started FROM task_owners WHERE owner = $1 \
    ORDER BY started DESC LIMIT 1 OFFSET $2";

const DELETE_OLDEST: &str = "DELETE FROM task_owners WHERE task_key IN \
    (SELECT task_key FROM task_owners WHERE owner = $2 AND started <= $3 ORDER BY started LIMIT $1)";

const DELETE_LAPSED: &str = "DELETE FROM task_owners WHERE task_key IN \
    (SELECT task_key FROM task_owners WHERE expires_at <= $2 LIMIT $1)";

/// Value that is read by its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Owner,
    Target,
    Binding,
}

pub(super) struct Table(pub(super) Db);

/// Rows that notes did not replace.
#[derive(Default)]
pub(super) struct ConflictingRows {
    /// Tasks that belonged to another owner already, with that owner.
    pub(super) owners: Vec<(String, String)>,
    /// Bindings to another instance that takes calls, with their values.
    pub(super) bindings: Vec<(String, String)>,
}

impl Table {
    /// Writes notes in one transaction. Returns what was there already. The lifetimes are those of owners and of
    /// bindings.
    pub(super) async fn write_notes(
        &self,
        notes: &[QueuedNote],
        now: Timestamp,
        (owner_ttl, ttl): (Duration, Duration),
    ) -> Result<ConflictingRows, Unavailable> {
        let expires_at = now.after(owner_ttl);
        let work = async {
            let mut tx = self.0.begin().await?;
            let mut others = ConflictingRows::default();
            // Rows of one owner are ordered as they were written.
            for (started, queued) in (now.0.saturating_mul(1000)..).zip(notes) {
                match &queued.note {
                    Note::Claim(claimed) => {
                        let times = (started, now, expires_at);
                        if let Some(owner) = claim_task(&mut tx, claimed, times).await? {
                            others.owners.push((claimed.key.clone(), owner));
                        }
                    }
                    Note::Renew { key, .. } => {
                        let renew = sqlx::query(RENEW).bind(key).bind(expires_at.0);
                        renew.execute(&mut *tx).await?;
                    }
                    // Other tables have it.
                    Note::End(_) => {}
                    Note::Bind(one) => {
                        let expires_at = now.after(one.bound.clamp_ttl(ttl));
                        if let Some(first) = write_binding(&mut tx, one, now, expires_at).await? {
                            others.bindings.push((one.key.clone(), first));
                        }
                    }
                }
            }
            tx.commit().await?;
            Ok(others)
        };
        self.0.run("task_write", work).await
    }

    pub(super) async fn load(
        &self,
        column: Column,
        key: &str,
    ) -> Result<Option<String>, Unavailable> {
        let (operation, query) = match column {
            Column::Owner => ("task_owner", OWNER),
            Column::Target => ("task_target", TARGET),
            Column::Binding => ("task_bound", BOUND),
        };
        let query = query_scalar(query).bind(key).bind(Timestamp::now().0);
        let work = async { query.fetch_optional(self.0.pool()).await };
        self.0.run(operation, work).await
    }

    /// Deletes the oldest tasks and bindings of an owner, beyond `max` of each.
    pub(super) async fn keep_newest(&self, owner: &str, max: i64) -> Result<(), Unavailable> {
        let cut = query_scalar(CUT).bind(owner).bind(max);
        let work = async { cut.fetch_optional(self.0.pool()).await };
        let cut: Option<i64> = self.0.run("task_cut", work).await?;
        if let Some(cut) = cut {
            let delete = |oldest: Delete<'static>| oldest.bind(owner.to_owned()).bind(cut);
            delete_all(&self.0, ("task_cut", DELETE_OLDEST), delete).await?;
        }
        let delete = |oldest: Delete<'static>| oldest.bind(owner.to_owned()).bind(max);
        delete_all(&self.0, ("task_cut", DELETE_OLDEST_BINDINGS), delete).await
    }

    /// Deletes lapsed rows.
    pub(super) async fn delete_lapsed(&self) -> Result<(), Unavailable> {
        for lapsed in [DELETE_LAPSED, DELETE_LAPSED_BINDINGS] {
            delete_all(&self.0, ("task_purge", lapsed), bind_now).await?;
        }
        Ok(())
    }
}

type Delete<'q> = Query<'q, Any, AnyArguments>;

/// Rows that one statement deletes at most.
const DELETED_MAX: i64 = 1000;

/// Deletes rows until none is left, in steps: the first argument of the statement bounds one, the others are bound by
/// `bind`.
pub(super) async fn delete_all(
    db: &Db,
    (operation, statement): (&'static str, &'static str),
    bind: impl Fn(Delete<'static>) -> Delete<'static>,
) -> Result<(), Unavailable> {
    loop {
        let delete = bind(sqlx::query(statement).bind(DELETED_MAX));
        if db.execute(operation, delete).await? < DELETED_MAX.unsigned_abs() {
            return Ok(());
        }
    }
}

/// Binds the present time, for a statement that deletes lapsed rows.
pub(super) fn bind_now(delete: Delete<'static>) -> Delete<'static> {
    delete.bind(Timestamp::now().0)
}

/// Writes a binding. Returns the value that is there instead.
async fn write_binding(
    tx: &mut Connection,
    one: &BindingWrite,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<Option<String>, sqlx::Error> {
    let text = one.bound.to_text();
    if matches!(one.over, ReplaceRule::Renewed) {
        let renew = sqlx::query(RENEW_BINDING).bind(&one.key).bind(text);
        renew.bind(expires_at.0).execute(&mut *tx).await?;
        return Ok(None);
    }
    let found = query_scalar(BOUND).bind(&one.key).bind(now.0);
    let found: Option<String> = found.fetch_optional(&mut *tx).await?;
    if let Some(first) = found.filter(|first| !one.may_replace(first)) {
        return Ok(Some(first));
    }
    let put = sqlx::query(BIND).bind(&one.key).bind(text);
    let put = put.bind(&*one.owner).bind(expires_at.0);
    put.execute(&mut *tx).await?;
    Ok(None)
}

/// Claims the task. Returns its owner if another one had claimed it before.
async fn claim_task(
    tx: &mut Connection,
    claimed: &TaskClaim,
    (started, now, expires_at): (i64, Timestamp, Timestamp),
) -> Result<Option<String>, sqlx::Error> {
    let claim = sqlx::query(CLAIM)
        .bind(&claimed.key)
        .bind(&claimed.at)
        .bind(&*claimed.owner)
        .bind(claimed.target.as_str())
        .bind(started)
        .bind(expires_at.0)
        .bind(now.0);
    if claim.execute(&mut *tx).await?.rows_affected() > 0 {
        return Ok(None);
    }
    let other = query_scalar(OWNER).bind(&claimed.key).bind(now.0);
    other.fetch_optional(&mut *tx).await
}
