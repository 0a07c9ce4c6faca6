//! Retention of inboxes: deletes entries that were acknowledged long ago, and all that are older than
//! `inbox.retention`. Every replica deletes small batches, so that no statement locks many rows.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Inbox;
use crate::deadline::ticks;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// Interval at which inboxes are pruned that were acknowledged on this replica.
const PRUNE_EVERY: Duration = Duration::from_secs(1);

/// Interval at which entries beyond the retention are deleted.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);

/// Rows that one statement deletes at most.
const ROWS_MAX: i64 = 1000;

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
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < WAITING_MAX {
            waiting.insert(workspace.clone());
        }
    }

    fn take(&self) -> HashSet<WorkspaceId> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inbox {
    /// Prunes until it is dropped.
    pub(super) async fn prune(&self) {
        let mut tick = ticks(PRUNE_EVERY);
        let mut expired: Option<Instant> = None;
        loop {
            tick.tick().await;
            let mut done = self.prune_acknowledged().await;
            if done.is_ok() && expired.is_none_or(|at| at.elapsed() >= EXPIRE_EVERY) {
                expired = Some(Instant::now());
                done = self.delete_expired().await;
            }
            if let Err(error) = done {
                tracing::debug!(error = %Chain(&error), "pruning of inboxes failed; will retry");
            }
        }
    }

    async fn prune_acknowledged(&self) -> Result<(), Unavailable> {
        let kept = self.config.get().inbox.max_messages;
        for workspace in self.to_prune.take() {
            let delete = || {
                let query = sqlx::query(PRUNE).bind(workspace.as_str());
                query.bind(kept).bind(ROWS_MAX)
            };
            while self.delete_rows(delete()).await? {}
        }
        Ok(())
    }

    async fn delete_expired(&self) -> Result<(), Unavailable> {
        let retention = self.config.get().inbox.retention;
        let oldest = first_id_at(Timestamp::now().before(retention));
        let delete = || sqlx::query(EXPIRE).bind(oldest.as_str()).bind(ROWS_MAX);
        while self.delete_rows(delete()).await? {}
        Ok(())
    }

    /// Runs a deletion. True if there may be more to delete.
    async fn delete_rows(
        &self,
        query: sqlx::query::Query<'_, sqlx::Any, sqlx::any::AnyArguments>,
    ) -> Result<bool, Unavailable> {
        let deleted = self.db.execute("inbox_prune", query).await?;
        self.metrics.inbox.pruned.inc_by(deleted);
        Ok(deleted >= ROWS_MAX.unsigned_abs())
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
