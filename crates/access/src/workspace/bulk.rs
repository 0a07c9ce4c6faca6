//! Reads and writes of workspaces in a transaction of the caller, which changes many of them, and other tables, at once
//! (`assembly::policy`). The rows are judged by the caller, under the lock of the hierarchy
//! ([`Db::begin_alone`](stores::db::Db::begin_alone)).

use std::collections::HashSet;

use super::change::measure_height;
pub use super::change::{apply_settings, is_above, mark_removed};
pub use super::instances::load_instances;
pub use super::sql::lock_row;
use super::sql::{BEAR, BURY, LIVE, ORGS_BELOW};
pub use super::table::{insert, read_line};
use super::{CreateOutcome, LINE_MAX, NewWorkspace, Timestamp, Workspace};
use crate::rows::{execute, fetch_all, fetch_optional, read, select_in, sql, to_bigint};
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
    fetch_all(tx, sql!(LIVE.as_str(), to_bigint(limit))).await
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
            let select =
                "SELECT id, parent_id, updated_at FROM workspaces WHERE status = 'removed' AND id";
            let query = select_in(select, ids.iter(), "");
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
    let height = measure_height(tx, id).await?;
    let orgs: Vec<(Option<String>,)> = fetch_all(tx, sql!(ORGS_BELOW, id.as_str())).await?;
    Ok((height, orgs.into_iter().map(|(org,)| org).collect()))
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
    let bury = sql!(BURY, new.id.as_str(), removed_at.0);
    let Some((before,)) = fetch_optional::<(i64,)>(tx, bury).await? else {
        return Ok(CreateOutcome::Taken);
    };
    // Greater than any generation that a token of the earlier life has.
    let born_at = now.0.max(before.saturating_add(1));
    let created = insert(tx, new, now).await?;
    execute(tx, sql!(BEAR, new.id.as_str(), born_at)).await?;
    Ok(created)
}
