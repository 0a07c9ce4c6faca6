//! URL keys and lease of a workspace in the shared state. They are written after the row, so of two concurrent
//! changes the earlier may write last. Each writer therefore reads the row again, and writes until the shared
//! state matches the row.

use super::{Directory, URL_TTL};
use crate::coherence::Invalidation;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::store::Unavailable;
use crate::workspace::{Liveness, Status, Timestamp, Workspace};

/// Maximum reads of the row after a write. More than two are needed only while it keeps changing.
const LOOKS_MAX: usize = 5;

impl Directory {
    /// Writes lease and URL keys. A URL that is not registered any more is deleted at once, since it would take
    /// precedence over SQL.
    pub(super) async fn publish_presence(&self, workspace: &Workspace) -> Result<(), Unavailable> {
        let id = &workspace.id;
        if workspace.status == Status::Removed {
            return self.drop_presence(id).await;
        }
        let keys = [self.url_key.key(id), self.internal_url_key.key(id)];
        for (key, url) in keys.iter().zip([&workspace.url, &workspace.internal_url]) {
            match url {
                Some(url) => self.shared.set(key, url, Some(URL_TTL)).await?,
                None => self.shared.delete(&[key]).await?,
            }
        }
        if workspace.status.is_up() && workspace.liveness == Liveness::Heartbeat {
            self.leases.renew(id, Timestamp::now()).await?;
        }
        Ok(())
    }

    /// Deletes the URL keys and the lease.
    pub(super) async fn drop_presence(&self, id: &WorkspaceId) -> Result<(), Unavailable> {
        let (url, internal_url) = (self.url_key.key(id), self.internal_url_key.key(id));
        self.shared.delete(&[&url, &internal_url]).await?;
        self.leases.end(id).await
    }

    /// Compares the row with `written`, which was written to the shared state, and writes again if a concurrent
    /// change came in between.
    ///
    /// # Errors
    /// `store_unavailable`; `conflict` if the row keeps changing.
    pub(super) async fn catch_up(&self, written: &Workspace) -> Result<(), Rejection> {
        let mut written = written.clone();
        for _ in 0..LOOKS_MAX {
            let row = self.workspaces.find(&written.id).await?;
            let Some(row) = row.filter(|row| says_more(row, &written)) else {
                return Ok(());
            };
            self.publish_presence(&row).await?;
            let told = Invalidation::Workspace(row.id.clone());
            self.coherence.invalidate(told).await;
            written = row;
        }
        Err(Rejection::new(
            Reason::Conflict,
            "others change the workspace at the same time, again and again; look at it, and try again",
        ))
    }
}

/// True if `row` requires other values in the shared state than `written`.
fn says_more(row: &Workspace, written: &Workspace) -> bool {
    row.url != written.url
        || row.internal_url != written.internal_url
        || row.status != written.status
            && (row.status == Status::Removed || row.status.is_up() && !written.status.is_up())
}
