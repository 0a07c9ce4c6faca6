//! Backfills `agent_origins` for workspaces that registered before the table existed: until a workspace has its
//! rows, another one could register its server.
//!
//! Each gateway does this at its start. Batches are small, and one gateway at a time has one, so several may
//! start at once. If two workspaces are on one server already, they share it from then on.

use sqlx::any::AnyRow;

use super::Workspaces;
use super::origins::{Origin, Origins, take};
use super::row::{id, text};
use crate::db::Connection;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;

/// Workspaces per transaction: a few hundred statements, within `stores.timeout` even if each takes some
/// milliseconds.
const BATCH_MAX: i64 = 25;

const WITHOUT: &str = "SELECT id, url, internal_url, card_url FROM workspaces \
     WHERE id > $1 AND status <> 'removed' AND COALESCE(url, internal_url, card_url) IS NOT NULL \
       AND NOT EXISTS (SELECT 1 FROM agent_origins WHERE workspace_id = workspaces.id) \
     ORDER BY id LIMIT $2";

const OTHER: &str = "SELECT workspace_id FROM agent_origins WHERE origin = $1 AND workspace_id <> $2 \
     ORDER BY workspace_id LIMIT 1";

/// Two workspaces with agents on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedServer {
    /// Shared server.
    pub origin: String,
    /// Workspace that holds it.
    pub holder: WorkspaceId,
    /// Workspace that shares it.
    pub sharer: WorkspaceId,
}

/// Result of one batch of workspaces.
#[derive(Clone, Debug)]
pub struct Backfilled {
    /// Last workspace of the batch; `None`: the batch was empty.
    pub last: Option<WorkspaceId>,
    /// Servers that are shared from now on.
    pub shared: Vec<SharedServer>,
}

impl Workspaces {
    /// Writes the origins of a batch of workspaces after `after` that have none. `origins_of` reads them from a
    /// URL.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn backfill_origins(
        &self,
        after: Option<&WorkspaceId>,
        origins_of: impl Fn(&str) -> Vec<Origin>,
    ) -> Result<Backfilled, Unavailable> {
        let work = async {
            let mut tx = self.db.begin_alone().await?;
            let rows = sqlx::query(WITHOUT)
                .bind(after.map_or("", WorkspaceId::as_str))
                .bind(BATCH_MAX);
            let rows = rows.fetch_all(&mut *tx).await?;
            let mut done = Backfilled {
                last: None,
                shared: Vec::new(),
            };
            for row in &rows {
                let workspace = id(row, "id")?;
                let urls = urls(row)?;
                let origins = urls.iter().flat_map(|url| origins_of(url));
                for one in Origins::new(origins.collect()).all {
                    let shared = take_or_share(&mut tx, &workspace, one).await?;
                    done.shared.extend(shared);
                }
                done.last = Some(workspace);
            }
            tx.commit().await?;
            Ok(done)
        };
        self.db.run("workspace_backfill", work).await
    }
}

fn urls(row: &AnyRow) -> Result<Vec<String>, sqlx::Error> {
    let urls = ["url", "internal_url", "card_url"].map(|column| text(row, column));
    let urls: Result<Vec<_>, _> = urls.into_iter().collect();
    Ok(urls?.into_iter().flatten().collect())
}

/// Takes the server, or shares it if another workspace holds it.
async fn take_or_share(
    connection: &mut Connection,
    workspace: &WorkspaceId,
    one: Origin,
) -> Result<Option<SharedServer>, sqlx::Error> {
    let mut holder = other(connection, workspace, &one).await?;
    let is_shared = one.is_shared || holder.is_some();
    if !take(connection, workspace, &one, is_shared).await? {
        // A concurrent registration took it.
        holder = other(connection, workspace, &one).await?;
        if holder.is_some() {
            take(connection, workspace, &one, true).await?;
        }
    }
    let holder = holder.filter(|_| !one.is_shared);
    Ok(holder.map(|holder| SharedServer {
        holder,
        sharer: workspace.clone(),
        origin: one.origin,
    }))
}

/// Returns another workspace on this server.
async fn other(
    connection: &mut Connection,
    workspace: &WorkspaceId,
    one: &Origin,
) -> Result<Option<WorkspaceId>, sqlx::Error> {
    let other = sqlx::query(OTHER).bind(&one.origin);
    let other = other.bind(workspace.as_str());
    let row = other.fetch_optional(connection).await?;
    row.map(|row| id(&row, "workspace_id")).transpose()
}
