//! Heartbeats of agents that poll: each read, follow, reply or acknowledgement is one. They are kept in the
//! shared state for `registry.heartbeat_ttl`, so every gateway can count the inboxes with messages for an
//! agent that is gone. The end of the inbox of a workspace that an operator recreates.

use sqlx::Row as _;
use sqlx::any::AnyRow;
use tokio::time::Instant;

use super::Inbox;
use crate::mailbox::query;
use kernel::ids::WorkspaceId;
use kernel::time::Timestamp;
use stores::db::Connection;
use stores::store::Unavailable;

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
