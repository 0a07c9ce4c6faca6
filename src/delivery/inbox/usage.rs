//! The room in an inbox: the entries that are not acknowledged, in all and by sender. No sender has more than half of
//! what the others leave.

use sqlx::Row as _;

use crate::db::{Connection, Db};
use crate::delivery::kept_bytes::kept_of;
use crate::shares::{Account, Amounts};

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

/// The contents of an inbox.
pub(super) struct InboxUsage {
    /// Entries that count toward the bound.
    pub(super) messages: i64,
    /// True if one more is within the share of the sender.
    pub(super) within_share: bool,
    /// Bytes that are kept for its workspace.
    pub(super) bytes: i64,
}

/// Returns the number up to which all unacknowledged entries are finished.
pub(super) async fn finished_up_to(
    connection: &mut Connection,
    workspace: &str,
    (last, acked): (i64, i64),
) -> Result<i64, sqlx::Error> {
    let open = sqlx::query(FIRST_OPEN).bind(workspace).bind(acked);
    let open = open.fetch_optional(connection).await?;
    let open = open.map(|row| row.try_get::<i64, _>("seq")).transpose()?;
    Ok(open.map_or(last, |seq| seq - 1))
}

/// Returns the contents of an inbox, as a batch of one entry would find them.
pub(super) async fn read_usage(
    db: &Db,
    (workspace, sender): (&str, Account),
    max_messages: i64,
) -> Result<InboxUsage, sqlx::Error> {
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
    Ok(InboxUsage {
        messages: last - acked,
        within_share: by_sender.has_share(sender, max_messages),
        bytes,
    })
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
