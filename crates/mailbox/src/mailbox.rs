//! The mailbox: what the gateway has accepted and must not lose, in SQL. Jobs, calls with a key and the entries of
//! inboxes are its items; each kind has a policy of its own in `jobs`, `calls` and `inbox`.
//!
//! The mechanism is here: leases with a fence, the end of an item within the bound on kept bytes, pages, the deletion
//! of what is beyond its retention. Wake-ups are in `wake.rs`, bytes in `kept_bytes.rs`.
//! Items that are worked on are in the table `mailbox_items`.
//!
//! Invariants: an item is committed before it is acknowledged; each claim of an item gives it another fence, and a
//! holder that writes with an earlier one changes nothing.

use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Row as _};

use super::kept_bytes::{KeptBytes, kept_of};
use super::wake::Hub;
use crate::repeat;
use kernel::config::Live;
use kernel::metrics::Metrics;
use kernel::time::Timestamp;
use stores::db::Db;
use stores::shared::Shared;
use stores::store::Unavailable;

/// Octets of bodies after which a page of a list ends, since it is in memory as a whole. A page has at least one
/// entry.
const PAGE_BYTES_MAX: i64 = 4 << 20;

/// Interval at which items beyond their retention are deleted, on every replica.
pub(super) const PURGE_EVERY: Duration = Duration::from_secs(60);

/// Rows that one statement deletes at most, so that none locks many.
const DELETE_MAX: i64 = 1000;

/// The columns of an item. Their order does not matter.
macro_rules! item_columns {
    () => {
        "id, kind, owner, caller, source_id, target_id, body, answer, state, task_state, holder, leased_until, fence, \
         priority, attempts, inbox_task, created_at, updated_at, expires_at"
    };
}
pub(super) use item_columns;

/// A statement with these values for `$1`, `$2` and so on.
macro_rules! query {
    ($text:expr $(, $value:expr)* $(,)?) => { sqlx::query($text)$(.bind($value))* };
}
pub(super) use query;

const ENDED_JOBS: &str =
    "state IN ('completed', 'failed', 'expired', 'canceled') AND untold = 0 AND updated_at < $1";

const LAPSED_CALLS: &str = "kind = 'keyed' AND expires_at <= $1";

/// Selects `$then` if the owner's kept bytes stay within $6 with another $5 bytes.
macro_rules! if_room {
    ($then:literal, $otherwise:literal) => {
        concat!(
            "CASE WHEN ",
            kept_of!("mailbox_items.owner"),
            " + $5 <= $6 THEN ",
            $then,
            " ELSE ",
            $otherwise,
            " END"
        )
    };
}

// A call with a key that was given up as lost may still be answered.
const SETTLE: &str = concat!(
    "UPDATE mailbox_items SET state = ",
    if_room!("$3", "$7"),
    ", answer = ",
    if_room!("$4", "$8"),
    ", kept_bytes = kept_bytes + ",
    if_room!("$5", "$9"),
    ", leased_until = 0, updated_at = $10, due_at = $11, task_state = $12, \
     expires_at = CASE WHEN kind = 'keyed' THEN $13 ELSE expires_at END, \
     untold = CASE WHEN kind = 'delegation' THEN 1 ELSE 0 END \
     WHERE id = $1 AND fence = $2 AND (kind = 'keyed' OR state IN ('pending', 'dispatched')) RETURNING ",
    item_columns!()
);

/// A statement that is not run yet.
pub(super) type Statement<'q> = Query<'q, Any, AnyArguments>;

/// The stores behind all kinds of items, with their bounds and wake-ups.
pub struct Mailbox {
    pub(super) config: Live,
    pub(super) db: Db,
    pub(super) shared: Shared,
    pub(super) metrics: Arc<Metrics>,
    pub(super) kept: KeptBytes,
    pub(super) hub: Arc<Hub>,
    /// The name of this process as a holder of leases.
    pub(super) holder: String,
}

/// The right of one holder to change an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease<'a> {
    pub(super) id: &'a str,
    /// The number of its claim.
    pub(super) fence: i64,
}

/// The end of an item.
pub(super) struct Settlement<'a> {
    pub(super) owner: &'a str,
    pub(super) state: &'static str,
    pub(super) answer: String,
    /// The state and the answer that are written where there is no room for `answer`.
    pub(super) otherwise: (&'static str, Option<String>),
    /// True for an answer that needs no room within `limits.kept_bytes`.
    pub(super) always_fits: bool,
    pub(super) task_state: Option<&'static str>,
    pub(super) due_at: Timestamp,
    pub(super) expires_at: Timestamp,
}

impl Mailbox {
    /// Creates it; does not touch the stores.
    pub fn new(config: Live, (db, shared): (Db, Shared), metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            kept: KeptBytes::default(),
            hub: Hub::new(!shared.is_embedded()),
            holder: uuid::Uuid::now_v7().simple().to_string(),
            config,
            db,
            shared,
            metrics,
        })
    }

    /// Sends and receives wake-ups, sums up kept bytes, and deletes items beyond their retention. A background task;
    /// runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.sum_bytes(),
            self.hub.publish_wake_ups(&self.shared),
            self.hub.receive_wake_ups(&self.shared, &self.db),
            repeat(PURGE_EVERY, "purge of the mailbox", || self.purge_items()),
        );
    }

    /// Deletes jobs beyond their retention, and calls with a lapsed key.
    async fn purge_items(&self) -> Result<(), Unavailable> {
        let now = Timestamp::now();
        let ended = now.before(self.config.get().delegation.retention);
        for (operation, are, at) in [
            ("job_purge", ENDED_JOBS, ended),
            ("call_purge", LAPSED_CALLS, now),
        ] {
            let text = format!(
                "DELETE FROM mailbox_items WHERE id IN (SELECT id FROM mailbox_items WHERE {are} LIMIT $2{})",
                self.skip_locked()
            );
            let delete = || query!(AssertSqlSafe(text.clone()), at.0);
            self.delete_all(operation, delete).await?;
        }
        Ok(())
    }

    /// Runs one statement. True if it changed a row.
    pub(super) async fn change(
        &self,
        operation: &'static str,
        statement: Statement<'_>,
    ) -> Result<bool, Unavailable> {
        Ok(self.db.execute(operation, statement).await? > 0)
    }

    /// Runs one statement and reads the rows that it returns.
    pub(super) async fn fetch_all<T>(
        &self,
        operation: &'static str,
        statement: Statement<'_>,
        read: impl Fn(&AnyRow) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, Unavailable> {
        // All rows, also where there is one at most: SQLite commits a change behind its last row.
        let work = async {
            let rows = statement.fetch_all(self.db.pool()).await?;
            rows.iter().map(read).collect()
        };
        self.db.run(operation, work).await
    }

    /// As [`Mailbox::fetch_all`], for one row at most.
    pub(super) async fn fetch<T>(
        &self,
        operation: &'static str,
        statement: Statement<'_>,
        read: impl Fn(&AnyRow) -> Result<T, sqlx::Error>,
    ) -> Result<Option<T>, Unavailable> {
        Ok(self.fetch_all(operation, statement, read).await?.pop())
    }

    /// Writes the end of an item and returns it as it is afterwards, and whether there was room for the answer. `None`:
    /// another holder has claimed it.
    pub(super) async fn settle<T>(
        &self,
        operation: &'static str,
        lease: Lease<'_>,
        end: Settlement<'_>,
        read: impl Fn(&AnyRow) -> Result<T, sqlx::Error>,
    ) -> Result<Option<(T, bool)>, Unavailable> {
        let bytes = octets(&end.answer);
        let adding = self.announce_bytes(end.owner, bytes);
        let limit = if end.always_fits {
            i64::MAX
        } else {
            adding.limit
        };
        let (state, answer) = end.otherwise;
        let bytes_otherwise = answer.as_deref().map_or(0, octets);
        let settle = query!(
            SETTLE,
            lease.id,
            lease.fence,
            end.state,
            end.answer,
            bytes,
            limit
        )
        .bind(state)
        .bind(answer)
        .bind(bytes_otherwise)
        .bind(Timestamp::now().0)
        .bind(end.due_at.0)
        .bind(end.task_state)
        .bind(end.expires_at.0);
        let read = |row: &AnyRow| {
            let answer: Option<String> = row.try_get("answer")?;
            Ok((read(row)?, answer.as_deref().map(octets) == Some(bytes)))
        };
        let settled = self.fetch(operation, settle, read).await?;
        if let Some((_, true)) = settled {
            self.count_added(bytes);
        }
        Ok(settled)
    }

    /// Lets a statement that selects rows to change pass by those that another replica changes right now, rather than
    /// wait for it. SQLite has one writer at a time.
    pub(super) fn skip_locked(&self) -> &'static str {
        if self.db.is_embedded() {
            ""
        } else {
            " FOR UPDATE SKIP LOCKED"
        }
    }

    /// Runs a deletion whose last value is the number of rows, until nothing is left. Returns the number of rows.
    pub(super) async fn delete_all<'q>(
        &self,
        operation: &'static str,
        delete: impl Fn() -> Statement<'q>,
    ) -> Result<u64, Unavailable> {
        let mut total = 0;
        loop {
            let deleted = self
                .db
                .execute(operation, delete().bind(DELETE_MAX))
                .await?;
            total += deleted;
            if deleted < DELETE_MAX.unsigned_abs() {
                return Ok(total);
            }
        }
    }
}

/// Returns the number of entries, of these sizes, that make a page of at most `limit`.
pub(super) fn count_fitting(sizes: &[i64], limit: u32) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut bytes = 0;
    let fits = |size: &&i64| {
        let fits = bytes < PAGE_BYTES_MAX;
        bytes += **size;
        fits
    };
    sizes.iter().take(limit).take_while(fits).count()
}

/// Returns the length of a text in the type of the tables.
pub(super) fn octets(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

/// Turns a decoding failure of a column into an `sqlx::Error`.
pub(super) fn decode_column<T, E: std::error::Error + Send + Sync + 'static>(
    read: Result<T, E>,
) -> Result<T, sqlx::Error> {
    read.map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// Reads a column with JSON.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(
    row: &AnyRow,
    column: &str,
) -> Result<Option<T>, sqlx::Error> {
    let text: Option<String> = row.try_get(column)?;
    let read = text.as_deref().map(serde_json::from_str);
    decode_column(read.transpose())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_behind_the_entry_that_passes_the_bound() {
        const LARGE: i64 = 3 << 20;
        assert_eq!(count_fitting(&[], 5), 0);
        assert_eq!(count_fitting(&[1, 1, 1], 2), 2);
        assert_eq!(count_fitting(&[LARGE; 5], 5), 2);
        assert_eq!(count_fitting(&[10 << 20, 0], 5), 1);
        assert_eq!(count_fitting(&[0, PAGE_BYTES_MAX, 0], 5), 2);
    }
}
