//! Reads and writes of workspaces in a transaction of the caller, which changes many of them, and other tables, at once
//! (`crate::policy`). The rows are judged by the caller, under the lock of the hierarchy
//! ([`Db::begin_alone`](crate::db::Db::begin_alone)).

use std::collections::HashSet;

use sqlx::{AssertSqlSafe, Row as _};

use super::row::{id as id_of, optional_id, text, workspace};
use super::sql::{BEAR, BURY, HEIGHT, IS_ABOVE, LIVE, ORGS_BELOW};
use super::{
    Created, LINE_MAX, NewWorkspace, OriginTaken, Origins, Settings, Step, StoredInstance,
    Timestamp, Workspace, change, instances, table,
};
use crate::db::Connection;
use crate::ids::WorkspaceId;

/// Ids that one statement looks up at most.
const LOOKED_UP_MAX: usize = 500;

/// A removed workspace.
#[derive(Clone, Debug)]
pub struct Gone {
    /// Its parent.
    pub parent_id: Option<WorkspaceId>,
    /// Time of the removal.
    pub at: Timestamp,
}

/// Workspaces in a transaction of the caller.
pub struct InBulk;

impl InBulk {
    /// Returns all workspaces that are not removed, at most `limit`, in order of id. Of cards only whether there is one:
    /// an empty one stands for it.
    ///
    /// # Errors
    /// The error of the driver, as all of these.
    pub async fn live(tx: &mut Connection, limit: usize) -> Result<Vec<Workspace>, sqlx::Error> {
        let rows = sqlx::query(LIVE).bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = rows.fetch_all(tx).await?;
        rows.iter().map(workspace).collect()
    }

    /// Returns those of `ids` that were removed, and the removed ones above them.
    ///
    /// # Errors
    /// As [`InBulk::live`].
    pub async fn removed(
        tx: &mut Connection,
        ids: HashSet<WorkspaceId>,
    ) -> Result<Vec<(WorkspaceId, Gone)>, sqlx::Error> {
        let (mut found, mut known) = (Vec::new(), ids.clone());
        let mut asked: Vec<WorkspaceId> = ids.into_iter().collect();
        for _ in 0..=LINE_MAX {
            let mut above = Vec::new();
            for ids in asked.chunks(LOOKED_UP_MAX) {
                let places: Vec<String> = (1..=ids.len()).map(|n| format!("${n}")).collect();
                let text = format!(
                    "SELECT id, parent_id, updated_at FROM workspaces WHERE status = 'removed' AND id IN ({})",
                    places.join(", ")
                );
                let mut query = sqlx::query(AssertSqlSafe(text));
                for id in ids {
                    query = query.bind(id.as_str());
                }
                for row in query.fetch_all(&mut *tx).await? {
                    let gone = Gone {
                        parent_id: optional_id(&row, "parent_id")?,
                        at: Timestamp(row.try_get("updated_at")?),
                    };
                    let parent = gone.parent_id.clone();
                    above.extend(parent.filter(|id| known.insert(id.clone())));
                    found.push((id_of(&row, "id")?, gone));
                }
            }
            if above.is_empty() {
                break;
            }
            asked = above;
        }
        Ok(found)
    }

    /// Returns the named instances of a workspace, in order of id.
    ///
    /// # Errors
    /// As [`InBulk::live`].
    pub async fn instances(
        tx: &mut Connection,
        id: &WorkspaceId,
    ) -> Result<Vec<StoredInstance>, sqlx::Error> {
        instances::all(tx, id).await
    }

    /// Returns the workspace and its ancestors, nearest first, as [`Workspaces::line`](super::Workspaces::line).
    ///
    /// # Errors
    /// As [`InBulk::live`].
    pub async fn line(tx: &mut Connection, id: &WorkspaceId) -> Result<Vec<Step>, sqlx::Error> {
        table::read_line(tx, id).await
    }

    /// Returns the levels below a workspace, and the orgs of its children.
    ///
    /// # Errors
    /// As [`InBulk::live`].
    pub async fn below(
        tx: &mut Connection,
        id: &WorkspaceId,
    ) -> Result<(usize, Vec<Option<String>>), sqlx::Error> {
        let height = sqlx::query_scalar(HEIGHT).bind(id.as_str());
        let height: Option<i64> = height.fetch_one(&mut *tx).await?;
        let orgs = sqlx::query(ORGS_BELOW).bind(id.as_str());
        let orgs = orgs.fetch_all(tx).await?;
        let orgs = orgs.iter().map(|row| text(row, "org"));
        let height = usize::try_from(height.unwrap_or(0)).unwrap_or(usize::MAX);
        Ok((height, orgs.collect::<Result<_, _>>()?))
    }

    /// True if `upper` is `lower` or above it, with removed ones in between counted.
    ///
    /// # Errors
    /// As [`InBulk::live`].
    pub async fn is_above(
        tx: &mut Connection,
        upper: &WorkspaceId,
        lower: &WorkspaceId,
    ) -> Result<bool, sqlx::Error> {
        let up = sqlx::query(IS_ABOVE)
            .bind(lower.as_str())
            .bind(upper.as_str());
        Ok(up.fetch_optional(tx).await?.is_some())
    }

    /// Locks a row until the transaction ends, and returns it.
    ///
    /// # Errors
    /// As [`InBulk::live`].
    pub async fn hold(
        tx: &mut Connection,
        id: &WorkspaceId,
    ) -> Result<Option<Workspace>, sqlx::Error> {
        change::hold(tx, id).await
    }

    /// Inserts a workspace. The caller rolls back if an origin is taken.
    ///
    /// # Errors
    /// As [`InBulk::live`].
    pub async fn insert(
        tx: &mut Connection,
        new: &NewWorkspace,
        now: Timestamp,
    ) -> Result<Created, sqlx::Error> {
        table::insert(tx, new, new.org.as_deref(), now).await
    }

    /// Begins a new life of an id that was removed at `removed_at`; [`Created::Taken`] if it was not, or again since. The
    /// caller rolls back unless it is done, and ends what the other rooms keep of the earlier life.
    ///
    /// # Errors
    /// As [`InBulk::live`].
    pub async fn revive(
        tx: &mut Connection,
        new: &NewWorkspace,
        removed_at: Timestamp,
        now: Timestamp,
    ) -> Result<Created, sqlx::Error> {
        let bury = sqlx::query(BURY).bind(new.id.as_str()).bind(removed_at.0);
        let Some(before) = bury.fetch_optional(&mut *tx).await? else {
            return Ok(Created::Taken);
        };
        // Greater than any generation that a token of the earlier life has.
        let before: i64 = before.try_get("access_generation")?;
        let born_at = now.0.max(before.saturating_add(1));
        let created = Self::insert(tx, new, now).await?;
        let bear = sqlx::query(BEAR).bind(new.id.as_str()).bind(born_at);
        bear.execute(tx).await?;
        Ok(created)
    }

    /// Writes changed settings of a row that is held. The caller rolls back if an origin is taken.
    ///
    /// # Errors
    /// As [`InBulk::live`].
    pub async fn put(
        tx: &mut Connection,
        before: &Workspace,
        (settings, origins): (&Settings, &Origins),
        now: Timestamp,
    ) -> Result<Result<Option<Workspace>, OriginTaken>, sqlx::Error> {
        change::put(tx, before, settings, origins, now).await
    }

    /// Removes a workspace, as [`Workspaces::remove`](super::Workspaces::remove); false if it was removed before.
    ///
    /// # Errors
    /// As [`InBulk::live`].
    pub async fn remove(
        tx: &mut Connection,
        id: &WorkspaceId,
        now: Timestamp,
    ) -> Result<bool, sqlx::Error> {
        change::end(tx, id, now).await
    }
}
