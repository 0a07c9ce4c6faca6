//! Retention of inboxes: deletes entries that were acknowledged long ago, and all that are older than
//! `inbox.retention`. Every replica deletes small batches, so that no statement locks many rows.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;

use super::Inbox;
use crate::mailbox::{PURGE_EVERY, Statement, query};
use crate::repeat;
use kernel::ids::WorkspaceId;
use kernel::time::Timestamp;
use stores::store::Unavailable;

/// Interval at which inboxes are pruned that were acknowledged on this replica.
const PRUNE_EVERY: Duration = Duration::from_secs(1);

/// Inboxes that wait to be pruned at most. Further ones are pruned after their next acknowledgement.
const WAITING_MAX: usize = 10_000;

// $2 acknowledged entries stay: an answer may come after the acknowledgement, and readers continue after the
// last acknowledged entry.
const PRUNE: &str = "DELETE FROM activity_logs WHERE id IN (SELECT id FROM activity_logs \
    WHERE workspace_id = $1 AND seq <= (SELECT acked_seq FROM inbox_heads WHERE workspace_id = $1) - $2 \
    ORDER BY seq LIMIT $3)";

// Ids begin with their time.
const EXPIRE: &str = "DELETE FROM activity_logs \
    WHERE id IN (SELECT id FROM activity_logs WHERE id < $1 ORDER BY id LIMIT $2)";

/// Inboxes with new acknowledgements.
#[derive(Default)]
pub(super) struct PruneQueue(Mutex<HashSet<WorkspaceId>>);

impl PruneQueue {
    pub(super) fn insert(&self, workspace: &WorkspaceId) {
        let mut waiting = self.0.lock();
        if waiting.len() < WAITING_MAX {
            waiting.insert(workspace.clone());
        }
    }

    fn take(&self) -> HashSet<WorkspaceId> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Inbox {
    /// Deletes entries that were acknowledged on this replica, and those beyond their retention. Runs until it is dropped.
    pub(super) async fn prune(&self) {
        tokio::join!(
            repeat(PRUNE_EVERY, "pruning of inboxes", || self
                .prune_acknowledged()),
            repeat(PURGE_EVERY, "purge of inboxes", || self.purge()),
        );
    }

    async fn prune_acknowledged(&self) -> Result<(), Unavailable> {
        let kept = self.mailbox.config.get().inbox.max_messages;
        for workspace in self.to_prune.take() {
            let delete = || query!(PRUNE, workspace.as_str(), kept);
            self.delete_entries(delete).await?;
        }
        Ok(())
    }

    /// Deletes entries beyond their retention.
    async fn purge(&self) -> Result<(), Unavailable> {
        let retention = self.mailbox.config.get().inbox.retention;
        let oldest = first_id_at(Timestamp::now().before(retention));
        self.delete_entries(|| query!(EXPIRE, oldest.as_str()))
            .await
    }

    async fn delete_entries<'q>(
        &self,
        delete: impl Fn() -> Statement<'q>,
    ) -> Result<(), Unavailable> {
        let deleted = self.mailbox.delete_all("inbox_prune", delete).await?;
        self.mailbox.metrics.inbox.pruned.inc_by(deleted);
        Ok(())
    }
}

/// Returns the least id that an entry of this time can have: its first 48 bits are milliseconds since 1970.
fn first_id_at(at: Timestamp) -> String {
    let ms = u64::try_from(at.0).unwrap_or(0);
    let digits = format!("{ms:012x}");
    let (high, low) = digits.split_at(8);
    format!("{high}-{low}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_in_the_order_of_time() {
        let id = uuid::Uuid::now_v7().to_string();
        let now = Timestamp::now();
        let minute = Duration::from_secs(60);
        assert!(first_id_at(now.before(minute)) < id);
        assert!(id < first_id_at(now.after(minute)));
        assert_eq!(first_id_at(Timestamp(0x0199_0000_abcd)), "01990000-abcd");
    }
}
