//! Lapses that nobody noticed: one look at SQL a second for workspaces that have not been seen for a
//! TTL, each verified against its lease, since SQL runs behind the heartbeats.

use super::Directory;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;
use crate::workspace::Timestamp;

/// Workspaces looked at in one round trip.
const BATCH_MAX: usize = 500;
/// Round trips in one sweep; the rest waits for the next, a second later.
const BATCHES_MAX: usize = 20;

impl Directory {
    /// Moves workspaces whose heartbeat lapsed to `offline`; returns which. Call it every second, on
    /// every replica: each lapse is noted by one of them.
    ///
    /// # Errors
    /// When a store does not answer: then no lapse can be proven.
    pub async fn sweep(&self) -> Result<Vec<WorkspaceId>, Unavailable> {
        let mut lapsed = Vec::new();
        let mut after = String::new();
        for _ in 0..BATCHES_MAX {
            let now = Timestamp::now();
            let cutoff = now.before(self.leases.ttl());
            let overdue = self.workspaces.overdue(cutoff, &after, BATCH_MAX).await?;
            let Some((last, _)) = overdue.last() else {
                break;
            };
            after = last.as_str().to_owned();
            let ids: Vec<WorkspaceId> = overdue.iter().map(|(id, _)| id.clone()).collect();
            let held = self.leases.held(&ids).await?;
            for ((id, last_seen), held) in overdue.into_iter().zip(held) {
                let heard = self.news.of(&id).map(|seen| seen.last_seen);
                let doubtful = self.leases.benefit_of_doubt(last_seen.max(heard), now);
                if !held && doubtful.is_none() && self.note_lapse(&id).await {
                    lapsed.push(id);
                }
            }
            if ids.len() < BATCH_MAX {
                break;
            }
        }
        Ok(lapsed)
    }
}
