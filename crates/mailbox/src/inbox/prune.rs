//! Retention of inboxes: deletes entries that were acknowledged long ago, and all that are older than
//! `inbox.retention`. Every replica deletes small batches, so that no statement locks many rows.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::any::AnyRow;
use tokio::time::Instant;

use super::Inbox;
use crate::mailbox::{PURGE_EVERY, Statement, query};
use crate::repeat;
use kernel::ids::WorkspaceId;
use kernel::time::Timestamp;
use stores::db::Connection;
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

impl Inbox {
    /// Has the entries pruned that were acknowledged in an inbox.
    pub(super) fn prune_later(&self, workspace: &WorkspaceId) {
        let mut waiting = self.to_prune.lock();
        if waiting.len() < WAITING_MAX {
            waiting.insert(workspace.clone());
        }
    }

    /// Deletes entries that were acknowledged on this replica, and those beyond their retention. Runs until it is
    /// dropped.
    pub(super) async fn prune(&self) {
        tokio::join!(
            repeat(PRUNE_EVERY, "pruning of inboxes", || self
                .prune_acknowledged()),
            repeat(PURGE_EVERY, "purge of inboxes", || self.purge()),
        );
    }

    async fn prune_acknowledged(&self) -> Result<(), Unavailable> {
        let kept = self.mailbox.config.get().inbox.max_messages;
        let waiting = std::mem::take(&mut *self.to_prune.lock());
        for workspace in waiting {
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

// Heartbeats of agents that poll: each read, follow, reply or acknowledgement is one. They are kept in the
// shared state for `registry.heartbeat_ttl`, so every gateway can count the inboxes with messages for an
// agent that is gone. The end of the inbox of a workspace that an operator recreates.

/// Heartbeats written within `registry.heartbeat_ttl` at most: further requests do not access the store.
const SIGNS_PER_TTL: u32 = 3;

/// Inboxes that one check reads at most.
const UNREAD_MAX: i64 = 1000;

/// Inboxes in which the oldest unacknowledged entry is a message from before $1. Agents with an address have
/// only delegation results in theirs, which need not be read.
const UNREAD: &str = "SELECT h.workspace_id AS id FROM inbox_heads h \
    JOIN activity_logs f ON f.workspace_id = h.workspace_id \
    AND f.seq = (SELECT MIN(seq) FROM activity_logs \
        WHERE workspace_id = h.workspace_id AND seq > h.acked_seq) \
    WHERE h.last_seq > h.acked_seq AND f.activity_type = 'a2a_receive' AND f.created_at < $1 LIMIT $2";

impl Inbox {
    /// Records a heartbeat of a workspace's agent. True a few times within `registry.heartbeat_ttl`: the
    /// directory is to be notified then. Best effort: the next heartbeat comes soon.
    pub async fn record_heartbeat(&self, workspace: &WorkspaceId) -> bool {
        let ttl = self.mailbox.config.get().registry.heartbeat_ttl;
        let now = Instant::now();
        let fresh = |noted: Instant| now.duration_since(noted) < ttl / SIGNS_PER_TTL;
        let noted = self.signs.get(workspace).map(|noted| *noted);
        if noted.is_some_and(fresh) {
            return false;
        }
        self.signs.insert(workspace.clone(), now);
        let noted = self
            .mailbox
            .shared
            .set(&heartbeat_key(workspace.as_str()), "1", Some(ttl))
            .await;
        if let Err(error) = noted {
            tracing::debug!(%error, workspace.id = %workspace, "failed to write the heartbeat of a polling agent; will retry");
        }
        true
    }

    /// Returns the number of inboxes in which a message has waited longer than `registry.heartbeat_ttl`
    /// without a heartbeat of the agent on any gateway: 1,000 at most.
    pub(crate) async fn count_unread(&self) -> Result<i64, Unavailable> {
        let ttl = self.mailbox.config.get().registry.heartbeat_ttl;
        self.signs.retain(|_, noted| noted.elapsed() < ttl);
        let span = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let before = Timestamp::now().0.saturating_sub(span);
        let unread = query!(UNREAD, before, UNREAD_MAX);
        let key = |row: &AnyRow| Ok(heartbeat_key(row.try_get("id")?));
        let keys = self.mailbox.fetch_all("inbox_unread", unread, key).await?;
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let signs = self.mailbox.shared.get_many(&keys).await?;
        let missing = signs.iter().filter(|sign| sign.is_none()).count();
        Ok(i64::try_from(missing).unwrap_or(i64::MAX))
    }
}

/// A new life of an id has no message of the earlier one, and its readers continue after them.
const EMPTY: [&str; 2] = [
    "DELETE FROM activity_logs WHERE workspace_id = $1",
    "UPDATE inbox_heads SET acked_seq = last_seq WHERE workspace_id = $1",
];

/// Empties the inbox of a removed workspace before its id begins a new life, in a transaction of the caller.
///
/// # Errors
/// The error of the driver.
pub async fn empty_inbox(tx: &mut Connection, id: &WorkspaceId) -> Result<(), sqlx::Error> {
    for text in EMPTY {
        sqlx::query(text)
            .bind(id.as_str())
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

fn heartbeat_key(workspace: &str) -> String {
    format!("inbox:{workspace}:agent")
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
