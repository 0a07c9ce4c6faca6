//! Workspaces in outline, for lists of all of them. Without card and URL, so that many are read at once.

use serde::ser::{Serialize, SerializeTuple as _, Serializer};
use sqlx::AssertSqlSafe;
use sqlx::any::AnyRow;

use super::row::read;
use super::{DeliveryMode, Liveness, Status, Timestamp, Workspaces};
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
        let mut members = to.serialize_tuple(9)?;
        members.serialize_element(self.id.as_str())?;
        members.serialize_element(&self.name)?;
        members.serialize_element(&self.parent_id.as_ref().map(WorkspaceId::as_str))?;
        members.serialize_element(&self.org)?;
        members.serialize_element(&self.status)?;
        members.serialize_element(&self.delivery_mode)?;
        members.serialize_element(&self.liveness)?;
        members.serialize_element(&self.last_seen.map(|at| at.0))?;
        members.serialize_element(&self.active_tasks)?;
        members.end()
    }
}

fn read_outline(row: &AnyRow) -> Result<Outline, sqlx::Error> {
    Ok(Outline {
        id: read(row, "id")?,
        name: read(row, "name")?,
        parent_id: read(row, "parent_id")?,
        org: read(row, "org")?,
        status: read(row, "status")?,
        delivery_mode: read(row, "delivery_mode")?,
        liveness: read(row, "liveness")?,
        last_seen: read(row, "last_seen")?,
        active_tasks: read::<Option<u32>>(row, "active_tasks")?.unwrap_or(0),
    })
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
        let query = sqlx::query(PAGE).bind(after);
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let work = async {
            let rows = query.fetch_all(self.db.pool()).await?;
            rows.iter().map(read_outline).collect()
        };
        self.db.run("workspace_outlines", work).await
    }

    /// Returns those of `ids` that exist, removed or not.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find_outlines(&self, ids: &[WorkspaceId]) -> Result<Vec<Outline>, Unavailable> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let places: Vec<_> = (1..=ids.len()).map(|n| format!("${n}")).collect();
        let places = places.join(", ");
        let text = format!(concat!(outline!(), " WHERE id IN ({})"), places);
        let mut query = sqlx::query(AssertSqlSafe(text));
        for id in ids {
            query = query.bind(id.as_str());
        }
        let work = async {
            let rows = query.fetch_all(self.db.pool()).await?;
            rows.iter().map(read_outline).collect()
        };
        self.db.run("workspace_outlines", work).await
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
        let query = sqlx::query(SEEN).bind(since.0);
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let work = async {
            let rows = query.fetch_all(self.db.pool()).await?;
            let seen = rows.iter().map(|row| {
                let tasks = read::<Option<u32>>(row, "active_tasks")?;
                Ok((
                    read(row, "id")?,
                    read(row, "last_seen")?,
                    tasks.unwrap_or(0),
                ))
            });
            seen.collect()
        };
        self.db.run("workspace_seen_since", work).await
    }
}
