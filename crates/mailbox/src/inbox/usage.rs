//! The contents of an inbox: the entries that are not acknowledged, in all and by sender, and the age of the oldest. No
//! sender has more than half of what the others leave.

use super::Inbox;
use crate::backlog::Backlog;
use crate::kept_bytes::kept_of;
use crate::mailbox::query;
use kernel::ids::WorkspaceId;
use kernel::shares::{Account, Amounts};
use stores::db::{Connection, Db};
use stores::store::Unavailable;

const HEAD: &str = concat!(
    "SELECT last_seq, acked_seq, ",
    kept_of!("'inbox:' || workspace_id"),
    " AS kept FROM inbox_heads WHERE workspace_id = $1"
);

const FIRST_OPEN: &str = "SELECT seq FROM activity_logs WHERE workspace_id = $1 AND seq > $2 \
    AND activity_type = 'a2a_receive' \
    AND status NOT IN ('completed', 'failed', 'canceled', 'rejected') ORDER BY seq LIMIT 1";

// Of entries that are not acknowledged.
const SENDERS: &str = "SELECT account, account_group, COUNT(*) AS entries FROM activity_logs \
    WHERE workspace_id = $1 AND seq > $2 GROUP BY account, account_group";

// One index lookup for each inbox with unacknowledged entries. Numbers have no gaps, so the first such entry
// that is still there gives their count.
const BACKLOG: &str = "SELECT CAST(COALESCE(SUM(h.last_seq - f.seq + 1), 0) AS BIGINT) AS entries, \
    MIN(f.created_at) AS oldest \
    FROM inbox_heads h JOIN activity_logs f ON f.workspace_id = h.workspace_id \
    AND f.seq = (SELECT MIN(seq) FROM activity_logs \
        WHERE workspace_id = h.workspace_id AND seq > h.acked_seq) \
    WHERE h.last_seq > h.acked_seq";

const BACKLOG_OF: &str = "SELECT h.last_seq - f.seq + 1 AS entries, f.created_at AS oldest \
    FROM inbox_heads h JOIN activity_logs f ON f.workspace_id = h.workspace_id \
    AND f.seq = (SELECT MIN(seq) FROM activity_logs \
        WHERE workspace_id = h.workspace_id AND seq > h.acked_seq) \
    WHERE h.workspace_id = $1 AND h.last_seq > h.acked_seq";

/// Returns the number up to which all unacknowledged entries are finished.
pub(super) async fn finished_up_to(
    connection: &mut Connection,
    workspace: &str,
    (last, acked): (i64, i64),
) -> Result<i64, sqlx::Error> {
    let open = sqlx::query_scalar(FIRST_OPEN).bind(workspace).bind(acked);
    let open: Option<i64> = open.fetch_optional(connection).await?;
    Ok(open.map_or(last, |seq| seq - 1))
}

/// Returns the entries that count toward the bound of an inbox, whether one more is within the share of the sender, and
/// the bytes that are kept for its workspace: as a batch of one entry would find them.
pub(super) async fn read_usage(
    db: &Db,
    (workspace, sender): (&str, Account),
    max_messages: i64,
) -> Result<(i64, bool, i64), sqlx::Error> {
    let mut connection = db.begin_reading().await?;
    let head = sqlx::query_as(HEAD).bind(workspace);
    let head: Option<(i64, i64, i64)> = head.fetch_optional(&mut connection).await?;
    let (last, mut acked, bytes) = head.unwrap_or_default();
    let mut by_sender = Amounts::default();
    if needs_shares(last + 1 - acked, max_messages) {
        acked = finished_up_to(&mut connection, workspace, (last, acked))
            .await?
            .max(acked);
        by_sender = count_by_sender(&mut connection, workspace, acked).await?;
    }
    let within_share = by_sender.has_share(sender, max_messages);
    Ok((last - acked, within_share, bytes))
}

/// True if a sender may have its share of so many entries. A user of an org has at least a quarter of an inbox.
pub(super) fn needs_shares(messages: i64, max_messages: i64) -> bool {
    messages > max_messages / 4
}

/// Counts the entries that are not acknowledged, by sender.
pub(super) async fn count_by_sender(
    tx: &mut Connection,
    workspace: &str,
    acked: i64,
) -> Result<Amounts, sqlx::Error> {
    let mut senders = Amounts::default();
    let query = sqlx::query_as(SENDERS).bind(workspace).bind(acked);
    let rows: Vec<(i64, i64, i64)> = query.fetch_all(tx).await?;
    for (own, group, entries) in rows {
        let (own, group) = (own.cast_unsigned(), group.cast_unsigned());
        senders.add_rows(Account { own, group }, entries);
    }
    Ok(senders)
}

impl Inbox {
    /// Returns the unacknowledged entries of a workspace's inbox.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn backlog_of(&self, workspace: &WorkspaceId) -> Result<Backlog, Unavailable> {
        let query = query!(BACKLOG_OF, workspace.as_str());
        let found = self.mailbox.fetch("inbox_backlog_of", query, Backlog::read);
        Ok(found.await?.unwrap_or_default())
    }

    /// Returns the unacknowledged entries of all inboxes.
    pub(crate) async fn read_backlog(&self) -> Result<Backlog, Unavailable> {
        let query = sqlx::query(BACKLOG);
        let found = self.mailbox.fetch("inbox_backlog", query, Backlog::read);
        Ok(found.await?.unwrap_or_default())
    }
}
