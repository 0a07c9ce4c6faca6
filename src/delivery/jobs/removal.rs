//! The end of the jobs of a workspace before its id begins a new life.

use super::result::removed_target;
use super::sql::END_OF;
use crate::db::Connection;
use crate::ids::WorkspaceId;
use crate::workspace::Timestamp;

/// Fails the unfinished jobs of a removed workspace and those for it, in a transaction of the caller. No inbox is told
/// of the results of its own.
///
/// # Errors
/// The error of the driver.
pub async fn end_jobs_of(
    tx: &mut Connection,
    id: &WorkspaceId,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let end = sqlx::query(END_OF).bind(id.as_str());
    let end = end.bind(removed_target().to_string()).bind(now.0);
    end.execute(tx).await.map(drop)
}
