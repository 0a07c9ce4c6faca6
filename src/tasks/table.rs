//! The table `task_owners`: owners of tasks of a single gateway.

use sqlx::Row as _;

use super::note::{Claimed, Note};
use crate::db::{Connection, Db};
use crate::ids::WorkspaceId;
use crate::store::Unavailable;
use crate::workspace::Timestamp;

/// Rows that one statement deletes at most.
const DELETED_MAX: i64 = 1000;

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
    (SELECT task_key FROM task_owners WHERE owner = $1 AND started <= $2 ORDER BY started LIMIT $3)";

const DELETE_LAPSED: &str = "DELETE FROM task_owners WHERE task_key IN \
    (SELECT task_key FROM task_owners WHERE expires_at <= $1 LIMIT $2)";

pub(super) struct Table(pub(super) Db);

impl Table {
    /// Writes notes in one transaction. Returns the tasks that belonged to another owner already, with that
    /// owner.
    pub(super) async fn write(
        &self,
        notes: &[Note],
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<Vec<(String, String)>, Unavailable> {
        let work = async {
            let mut tx = self.0.begin().await?;
            let mut others = Vec::new();
            // Rows of one owner are ordered as they were written.
            for (started, note) in (now.0.saturating_mul(1000)..).zip(notes) {
                match note {
                    Note::Claim(claimed) => {
                        let times = (started, now, expires_at);
                        if let Some(owner) = claim(&mut tx, claimed, times).await? {
                            others.push((claimed.key.clone(), owner));
                        }
                    }
                    Note::Renew { key, .. } => {
                        let renew = sqlx::query(RENEW).bind(key).bind(expires_at.0);
                        renew.execute(&mut *tx).await?;
                    }
                }
            }
            tx.commit().await?;
            Ok(others)
        };
        self.0.run("task_write", work).await
    }

    pub(super) async fn owner(&self, key: &str) -> Result<Option<String>, Unavailable> {
        let query = sqlx::query(OWNER).bind(key).bind(Timestamp::now().0);
        let work = async {
            let row = query.fetch_optional(self.0.pool()).await?;
            row.map(|row| row.try_get("owner")).transpose()
        };
        self.0.run("task_owner", work).await
    }

    pub(super) async fn target(&self, at: &str) -> Result<Option<WorkspaceId>, Unavailable> {
        let query = sqlx::query(TARGET).bind(at).bind(Timestamp::now().0);
        let work = async {
            let row = query.fetch_optional(self.0.pool()).await?;
            let target = row.map(|row| row.try_get::<String, _>("target"));
            target.transpose()
        };
        let target = self.0.run("task_target", work).await?;
        Ok(target.and_then(|target| WorkspaceId::parse(&target).ok()))
    }

    /// Deletes the oldest tasks of an owner, beyond `max`.
    pub(super) async fn keep_newest(&self, owner: &str, max: i64) -> Result<(), Unavailable> {
        let cut = sqlx::query(CUT).bind(owner).bind(max);
        let work = async {
            let row = cut.fetch_optional(self.0.pool()).await?;
            row.map(|row| row.try_get::<i64, _>("started")).transpose()
        };
        let Some(cut) = self.0.run("task_cut", work).await? else {
            return Ok(());
        };
        loop {
            let delete = sqlx::query(DELETE_OLDEST).bind(owner).bind(cut);
            let delete = delete.bind(DELETED_MAX);
            let work = async { Ok(delete.execute(self.0.pool()).await?.rows_affected()) };
            if self.0.run("task_cut", work).await? < DELETED_MAX.unsigned_abs() {
                return Ok(());
            }
        }
    }

    /// Deletes lapsed rows.
    pub(super) async fn purge(&self) -> Result<(), Unavailable> {
        loop {
            let delete = sqlx::query(DELETE_LAPSED).bind(Timestamp::now().0);
            let delete = delete.bind(DELETED_MAX);
            let work = async { Ok(delete.execute(self.0.pool()).await?.rows_affected()) };
            if self.0.run("task_purge", work).await? < DELETED_MAX.unsigned_abs() {
                return Ok(());
            }
        }
    }
}

/// Claims the task. Returns its owner if another one had claimed it before.
async fn claim(
    tx: &mut Connection,
    claimed: &Claimed,
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
    let other = sqlx::query(OWNER).bind(&claimed.key).bind(now.0);
    let other = other.fetch_optional(&mut *tx).await?;
    other.map(|row| row.try_get("owner")).transpose()
}
