//! Reads and writes of workspaces in a transaction of the caller, which changes many of them, and other tables, at once
//! (`assembly::policy`). The rows are judged by the caller, under the lock of the hierarchy
//! ([`Db::begin_alone`](stores::db::Db::begin_alone)).

use std::collections::HashSet;

use sqlx::AssertSqlSafe;

pub use super::change::{apply_settings, lock_row, mark_removed};
pub use super::instances::load_instances;
use super::row::{read, read_workspace};
use super::sql::{BEAR, BURY, HEIGHT, IS_ABOVE, LIVE, ORGS_BELOW};
pub use super::table::{insert, read_line};
use super::{CreateOutcome, LINE_MAX, NewWorkspace, Timestamp, Workspace};
use kernel::ids::WorkspaceId;
use stores::db::Connection;

/// Ids that one statement looks up at most.
const LOOKED_UP_MAX: usize = 500;

/// A removed workspace.
#[derive(Clone, Debug)]
pub struct Tombstone {
    /// Its parent.
    pub parent_id: Option<WorkspaceId>,
    /// Time of the removal.
    pub at: Timestamp,
}

/// Returns all workspaces that are not removed, at most `limit`, in order of id. Of cards only whether there is one:
/// an empty one stands for it.
///
/// # Errors
/// The error of the driver, as all of these.
pub async fn load_live(tx: &mut Connection, limit: usize) -> Result<Vec<Workspace>, sqlx::Error> {
    let rows = sqlx::query(LIVE.as_str()).bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let rows = rows.fetch_all(tx).await?;
    rows.iter().map(read_workspace).collect()
}

/// Returns those of `ids` that were removed, and the removed ones above them.
///
/// # Errors
/// As [`load_live`].
pub async fn load_removed(
    tx: &mut Connection,
    ids: HashSet<WorkspaceId>,
) -> Result<Vec<(WorkspaceId, Tombstone)>, sqlx::Error> {
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
                let gone = Tombstone {
                    parent_id: read(&row, "parent_id")?,
                    at: read(&row, "updated_at")?,
                };
                let parent = gone.parent_id.clone();
                above.extend(parent.filter(|id| known.insert(id.clone())));
                found.push((read(&row, "id")?, gone));
            }
        }
        if above.is_empty() {
            break;
        }
        asked = above;
    }
    Ok(found)
}

/// Returns the levels below a workspace, and the orgs of its children.
///
/// # Errors
/// As [`load_live`].
pub async fn measure_below(
    tx: &mut Connection,
    id: &WorkspaceId,
) -> Result<(usize, Vec<Option<String>>), sqlx::Error> {
    let height = sqlx::query_scalar(HEIGHT).bind(id.as_str());
    let height: Option<i64> = height.fetch_one(&mut *tx).await?;
    let orgs = sqlx::query(ORGS_BELOW).bind(id.as_str());
    let orgs = orgs.fetch_all(tx).await?;
    let orgs = orgs.iter().map(|row| read(row, "org"));
    let height = usize::try_from(height.unwrap_or(0)).unwrap_or(usize::MAX);
    Ok((height, orgs.collect::<Result<_, _>>()?))
}

/// True if `upper` is `lower` or above it, with removed ones in between counted.
///
/// # Errors
/// As [`load_live`].
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

/// Begins a new life of an id that was removed at `removed_at`; [`CreateOutcome::Taken`] if it was not, or again
/// since. The caller rolls back unless it is done, and ends what the other rooms keep of the earlier life.
///
/// # Errors
/// As [`load_live`].
pub async fn revive(
    tx: &mut Connection,
    new: &NewWorkspace,
    removed_at: Timestamp,
    now: Timestamp,
) -> Result<CreateOutcome, sqlx::Error> {
    let bury = sqlx::query(BURY).bind(new.id.as_str()).bind(removed_at.0);
    let Some(before) = bury.fetch_optional(&mut *tx).await? else {
        return Ok(CreateOutcome::Taken);
    };
    // Greater than any generation that a token of the earlier life has.
    let before: i64 = read(&before, "access_generation")?;
    let born_at = now.0.max(before.saturating_add(1));
    let created = insert(tx, new, now).await?;
    let bear = sqlx::query(BEAR).bind(new.id.as_str()).bind(born_at);
    bear.execute(tx).await?;
    Ok(created)
}
