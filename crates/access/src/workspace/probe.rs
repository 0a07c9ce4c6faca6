//! Probe of an agent with assumed liveness, as stored and as shown, and the reads and the write that it needs of the
//! table (`docs/reference/http-api.md`, "Probes").

use serde::{Deserialize, Serialize};
use sqlx::any::AnyRow;

use super::sql::{PROBED, SET_PROBED_STATUS, change_status};
use super::{Status, Timestamp};
use crate::rows::{fetch_with, read, sql, to_bigint};
use kernel::ids::WorkspaceId;
use stores::db::Db;
use stores::store::Unavailable;

/// Probe of an agent, as stored, and as operators see it. It contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredProbe {
    /// Path with query that is asked at the origin of the agent's URL; `None`: its card is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// True if the agent's card is asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub card: bool,
    /// Shortest time between two probes, in seconds.
    pub every_seconds: u32,
    /// Failures in a row after which the workspace goes offline.
    pub failures: u32,
}

/// Workspaces with a probe in the SQL store.
#[derive(Clone)]
pub struct ProbedWorkspaces {
    pub(super) db: Db,
}

impl ProbedWorkspaces {
    /// Returns the workspaces with a probe that can be asked now, in order of id, at most `limit`, each with the time
    /// of its last change.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn list(&self, limit: usize) -> Result<Vec<(WorkspaceId, Timestamp)>, Unavailable> {
        let query = sql!(PROBED, to_bigint(limit));
        let read = |row: &AnyRow| Ok((read(row, "id")?, read(row, "updated_at")?));
        fetch_with(&self.db, "workspace_probed", query, read).await
    }

    /// Changes the status of a workspace with a probe from `from` to `to`; false if the status is not `from` any more,
    /// or it has no probe any more.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn set_status(
        &self,
        id: &WorkspaceId,
        from: Status,
        to: Status,
        now: Timestamp,
    ) -> Result<bool, Unavailable> {
        change_status(&self.db, SET_PROBED_STATUS, id, (from, to), now).await
    }
}
