//! Reads and acknowledges the entries of an inbox.

use serde_json::value::RawValue;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::Inbox;
use super::activity::{ActivityType, Item, SourceKind, is_storable};
use crate::mailbox::{count_fitting, query};
use crate::wake::{Topic, Watch};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;

// The head of an inbox: if it has nothing new, nothing else is read.
const HEAD: &str = "SELECT last_seq, acked_seq, \
    (SELECT MIN(seq) FROM activity_logs WHERE workspace_id = $1) AS oldest_seq \
    FROM inbox_heads WHERE workspace_id = $1";

// Sizes are read first, so that rows that do not fit into a page are not read. They are read by a query of
// their own, since PostgreSQL plans a join badly before it has analyzed the table.
macro_rules! rows {
    ($columns:literal, $beyond:literal, $order:literal) => {
        concat!(
            "SELECT ", $columns, " FROM activity_logs WHERE workspace_id = $1 AND seq ", $beyond,
            " $2 AND ($3 = '' OR activity_type = $3) AND ($4 = '' OR source_kind = $4) \
             ORDER BY seq ", $order, " LIMIT $5"
        )
    };
    ($beyond:literal, $order:literal) => {
        [
            rows!("request_bytes + response_bytes AS bytes", $beyond, $order),
            rows!(
                "id, seq, activity_type, source_id, target_id, method, request_body, response_body, status, \
                 task_id, hops, chain, created_at",
                $beyond, $order
            ),
        ]
    };
}

const OLDEST_FIRST: [&str; 2] = rows!(">", "ASC");

const NEWEST_FIRST: [&str; 2] = rows!("<", "DESC");

const POSITION: &str = "SELECT seq FROM activity_logs WHERE id = $1 AND workspace_id = $2";

// Held until the commit, so that concurrent acknowledgements are serialized.
const LOCK_HEAD: &str =
    "UPDATE inbox_heads SET last_seq = last_seq WHERE workspace_id = $1 RETURNING acked_seq";

const ACKNOWLEDGE: &str = "UPDATE inbox_heads SET acked_seq = $2 WHERE workspace_id = $1";

/// The entries to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The type of the entries.
    pub kind: Option<ActivityType>,
    /// The kind of their source.
    pub source: Option<SourceKind>,
}

/// The position and the order of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The newest first.
    Newest,
    /// Older than this number, newest first.
    Before(i64),
    /// Newer than this number, oldest first.
    After(i64),
}

/// A page of an inbox.
#[derive(Clone, Debug)]
pub struct Page {
    /// The entries, in the requested order.
    pub items: Vec<Item>,
    /// True if there are more right now.
    pub more: bool,
    /// The oldest number that exists: earlier entries were pruned. The last number plus one if all were.
    pub oldest: i64,
    /// The last number that was assigned.
    pub last: i64,
}

impl Page {
    /// The page of an inbox that never had an entry.
    const EMPTY: Self = Self {
        items: Vec::new(),
        more: false,
        oldest: 1,
        last: 0,
    };
}

impl Inbox {
    /// Reads at most `limit` entries; fewer, and at least one, when they are large.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn read_page(
        &self,
        workspace: &WorkspaceId,
        filter: Filter,
        start: Start,
        limit: u32,
    ) -> Result<Page, Rejection> {
        let ([sizes, rows], beyond) = match start {
            Start::Newest => (NEWEST_FIRST, i64::MAX),
            Start::Before(seq) => (NEWEST_FIRST, seq),
            Start::After(seq) => (OLDEST_FIRST, seq),
        };
        let select = |text: &'static str, limit: i64| {
            sqlx::query(text)
                .bind(workspace.as_str())
                .bind(beyond)
                .bind(filter.kind.map_or("", ActivityType::as_str))
                .bind(filter.source.map_or("", SourceKind::as_str))
                .bind(limit)
        };
        let work = async {
            // Woken readers take turns, since other work needs connections, too.
            let _turn = self.turns.acquire().await;
            let mut connection = self.mailbox.db.begin_reading().await?;
            let head = sqlx::query_as(HEAD).bind(workspace.as_str());
            let head: Option<(i64, i64, Option<i64>)> =
                head.fetch_optional(&mut connection).await?;
            let Some((last, _, oldest)) = head else {
                return Ok(Page::EMPTY);
            };
            let mut page = Page {
                oldest: oldest.unwrap_or(last + 1),
                last,
                ..Page::EMPTY
            };
            if matches!(start, Start::After(seq) if last <= seq) {
                return Ok(page);
            }
            let found = select(sizes, i64::from(limit) + 1).fetch_all(&mut connection);
            let found = found.await?;
            let found = found.iter().map(|row| row.try_get("bytes"));
            let found = found.collect::<Result<Vec<_>, _>>()?;
            let count = count_fitting(&found, limit);
            page.more = count < found.len();
            let rows = select(rows, i64::try_from(count).unwrap_or(i64::MAX))
                .fetch_all(&mut connection)
                .await?;
            page.items = rows.iter().map(read_item).collect::<Result<_, _>>()?;
            // It includes entries that were committed since the head was read, so that readers can continue
            // after `last`.
            let newest = page.items.iter().map(|item| item.seq).max();
            page.last = page.last.max(newest.unwrap_or(0));
            Ok(page)
        };
        Ok(self.mailbox.db.run("inbox_page", work).await?)
    }

    /// Returns the number of the entry `id`.
    ///
    /// # Errors
    /// `cursor_gone` when there is no such entry in this inbox, or it was pruned; `store_unavailable`.
    pub async fn find_position(&self, workspace: &WorkspaceId, id: &str) -> Result<i64, Rejection> {
        if !is_storable(id) {
            return Err(cursor_gone());
        }
        let find = query!(POSITION, id, workspace.as_str());
        let read = |row: &AnyRow| row.try_get("seq");
        let found = self.mailbox.fetch("inbox_position", find, read).await?;
        found.ok_or_else(cursor_gone)
    }

    /// Returns the number up to which entries are acknowledged.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn read_acknowledged(&self, workspace: &WorkspaceId) -> Result<i64, Rejection> {
        let head = query!(HEAD, workspace.as_str());
        let read = |row: &AnyRow| row.try_get("acked_seq");
        let acked = self.mailbox.fetch("inbox_head", head, read).await?;
        Ok(acked.unwrap_or(0))
    }

    /// Acknowledges all entries up to `id`; returns how many were not acknowledged before. Never goes back.
    ///
    /// # Errors
    /// `cursor_gone` when there is no such entry in this inbox, or it was pruned; `store_unavailable`.
    pub async fn acknowledge(&self, workspace: &WorkspaceId, id: &str) -> Result<i64, Rejection> {
        if !is_storable(id) {
            return Err(cursor_gone());
        }
        let work = async {
            let mut tx = self.mailbox.db.begin().await?;
            let lock = sqlx::query_scalar(LOCK_HEAD).bind(workspace.as_str());
            let acked: Option<i64> = lock.fetch_optional(&mut *tx).await?;
            let find = sqlx::query_scalar(POSITION)
                .bind(id)
                .bind(workspace.as_str());
            let seq: Option<i64> = find.fetch_optional(&mut *tx).await?;
            let (Some(acked), Some(seq)) = (acked, seq) else {
                return Ok(None);
            };
            if acked < seq {
                let set = query!(ACKNOWLEDGE, workspace.as_str(), seq);
                set.execute(&mut *tx).await?;
                tx.commit().await?;
            }
            Ok(Some((seq - acked).max(0)))
        };
        let count = self.mailbox.db.run("inbox_acknowledge", work).await?;
        let count = count.ok_or_else(cursor_gone)?;
        if count > 0 {
            self.prune_later(workspace);
        }
        Ok(count)
    }

    /// Subscribes to new entries of an inbox, on any replica.
    pub fn watch_inbox(&self, workspace: &WorkspaceId) -> Watch {
        self.mailbox.hub.watch_topic(Topic::inbox(workspace))
    }
}

fn cursor_gone() -> Rejection {
    let message = "there is no such entry in this inbox, or none any more; read what there is (GET /activity, \
        without since_id), and go on from an entry of it";
    Rejection::new(Reason::CursorGone, message)
}

fn read_item(row: &AnyRow) -> Result<Item, sqlx::Error> {
    Ok(Item {
        id: row.try_get("id")?,
        seq: row.try_get("seq")?,
        activity_type: row.try_get("activity_type")?,
        source_id: row.try_get("source_id")?,
        target_id: row.try_get("target_id")?,
        method: row.try_get("method")?,
        request_body: stored_json(row.try_get("request_body")?)?,
        response_body: stored_json(row.try_get("response_body")?)?,
        status: row.try_get("status")?,
        task_id: row.try_get("task_id")?,
        hops: row.try_get("hops")?,
        on_behalf_of: None,
        on_behalf_of_refused: None,
        chain: row.try_get("chain")?,
        created_at: Timestamp(row.try_get("created_at")?),
        withheld: None,
    })
}

/// Returns stored JSON as it is, and other text as a JSON string.
fn stored_json(text: Option<String>) -> Result<Option<Box<RawValue>>, sqlx::Error> {
    let Some(text) = text else { return Ok(None) };
    let value = RawValue::from_string(text.clone());
    let value = value.or_else(|_| serde_json::value::to_raw_value(&text));
    value
        .map(Some)
        .map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
