//! Workspaces in outline, for lists of all of them. Without card and URL, so that many are read at once.

use serde::{Serialize, Serializer};
use sqlx::any::AnyRow;

use super::{DeliveryMode, Liveness, Status, Timestamp, Workspaces};
use crate::rows::{fetch_with, from_row, read, select_in, sql, to_bigint};
use kernel::ids::WorkspaceId;
use stores::store::Unavailable;

macro_rules! outline {
    () => {
        "SELECT id, name, parent_id, org, status, delivery_mode, liveness, last_seen, active_tasks FROM workspaces"
    };
}

const PAGE: &str = concat!(
    outline!(),
    " WHERE id > $1 AND status <> 'removed' ORDER BY id LIMIT $2"
);

// Each liveness is named, so that these are four look-ups in the index on status, liveness and last_seen.
pub(super) const SEEN: &str = "SELECT id, last_seen, active_tasks FROM workspaces \
     WHERE status IN ('online', 'degraded') AND liveness IN ('heartbeat', 'assumed') AND last_seen >= $1 \
     ORDER BY last_seen DESC LIMIT $2";

/// Outline of a workspace. In JSON an array of its members in this order, since there are thousands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outline {
    /// Id, which is its name in URLs.
    pub id: WorkspaceId,
    /// Display name.
    pub name: String,
    /// Parent workspace.
    pub parent_id: Option<WorkspaceId>,
    /// Org that the workspace belongs to.
    pub org: Option<String>,
    /// Lifecycle status.
    pub status: Status,
    /// Delivery mode: push or poll.
    pub delivery_mode: DeliveryMode,
    /// Source of its liveness.
    pub liveness: Liveness,
    /// Time of the last heartbeat or registration.
    pub last_seen: Option<Timestamp>,
    /// Active tasks that it reported.
    pub active_tasks: u32,
}

impl Serialize for Outline {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let members = (
            self.id.as_str(),
            &self.name,
            self.parent_id.as_ref().map(WorkspaceId::as_str),
            &self.org,
            self.status,
            self.delivery_mode,
            self.liveness,
            self.last_seen.map(|at| at.0),
            self.active_tasks,
        );
        members.serialize(to)
    }
}

from_row! {
    Outline: id, name, parent_id, org, status, delivery_mode, liveness, last_seen, active_tasks
}

impl Workspaces {
    /// Returns the first `limit` workspaces after the id `after` that are not removed, in order of id.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn load_outlines(
        &self,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Outline>, Unavailable> {
        let query = sql!(PAGE, after, to_bigint(limit));
        self.db.fetch_all("workspace_outlines", query).await
    }

    /// Returns those of `ids` that exist, removed or not.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find_outlines(&self, ids: &[WorkspaceId]) -> Result<Vec<Outline>, Unavailable> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let query = select_in(concat!(outline!(), " WHERE id"), ids.iter(), "");
        self.db.fetch_all("workspace_outlines", query).await
    }

    /// Returns the last `limit` heartbeats of workspaces that are up, not before `since`, with their times and
    /// active tasks. The table is a second or two behind.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn seen_since(
        &self,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<(WorkspaceId, Timestamp, u32)>, Unavailable> {
        let query = sql!(SEEN, since.0, to_bigint(limit));
        let read = |row: &AnyRow| {
            Ok((
                read(row, "id")?,
                read(row, "last_seen")?,
                read(row, "active_tasks")?,
            ))
        };
        fetch_with(&self.db, "workspace_seen_since", query, read).await
    }
}
