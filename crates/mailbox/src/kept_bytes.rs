//! Bytes kept in SQL for each owner: entries of inboxes, responses of calls with an idempotency key,
//! delegations and their results. An inbox is an owner of its own (`inbox:` and the workspace), so that senders
//! cannot use up the room of the workspace itself.
//!
//! Reads the table `kept_changes`, which triggers of the schema write in the transaction that adds or deletes
//! counted rows. The statements that add rows compare the sum with `limits.kept_bytes` themselves
//! ([`kept_of`]), so that no row costs another round trip. The sum over all owners (`limits.kept_bytes_total`)
//! is read in the background.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::mailbox::Mailbox;
use crate::repeat;
use kernel::config::value::ByteSize;
use kernel::metrics::RetainedKind;
use kernel::rejection::{Reason, Rejection};
use stores::store::Unavailable;

/// Bytes that are kept for an owner, as an SQL expression.
macro_rules! kept_of {
    ($owner:literal) => {
        concat!(
            "(SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM kept_changes WHERE owner = ",
            $owner,
            ")"
        )
    };
}
pub(super) use kept_of;

/// Interval of reads of the sum over all owners.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Number of rows of one owner from which they are merged into one.
const MERGE_FROM: i64 = 32;

/// Maximum owners with merged rows in one pass.
const MERGED_MAX: usize = 200;

/// `Retry-After` at the bound: entries must be acknowledged, or expire.
const PAUSE: Duration = Duration::from_secs(15);

const LOOK: &str = "SELECT owner, CAST(SUM(bytes) AS BIGINT) AS bytes, COUNT(*) AS changes \
    FROM kept_changes GROUP BY owner";

const OF: &str = concat!("SELECT ", kept_of!("$1"), " AS kept");

const TAKE: &str = "DELETE FROM kept_changes WHERE owner = $1 RETURNING bytes";

const PUT: &str = "INSERT INTO kept_changes (owner, bytes) VALUES ($1, $2)";

/// What is known of the bytes without asking the store.
#[derive(Default)]
pub(super) struct KeptBytes {
    /// Sum at the last read, and bytes added by this gateway since.
    total: AtomicI64,
    /// Bytes of the statements in progress, by owner.
    writing: Mutex<HashMap<String, i64>>,
}

/// Bytes that a statement is about to add. Dropped when it is done.
pub(super) struct PendingBytes<'a> {
    kept: &'a KeptBytes,
    owner: &'a str,
    bytes: i64,
    /// Maximum sum of the owner's rows, these bytes included.
    pub(super) limit: i64,
}

impl Mailbox {
    /// Announces a statement that adds bytes for an owner, so that concurrent statements count each other.
    pub(super) fn announce_bytes<'a>(&'a self, owner: &'a str, bytes: i64) -> PendingBytes<'a> {
        let mut writing = self.kept.writing.lock();
        let of_owner = writing.entry(owner.to_owned()).or_default();
        let others = *of_owner;
        *of_owner += bytes;
        drop(writing);
        let limit = if self.total_room() < bytes {
            -1
        } else {
            self.per_owner() - others
        };
        PendingBytes {
            kept: &self.kept,
            owner,
            bytes,
            limit,
        }
    }

    /// `limits.kept_bytes`
    pub(super) fn per_owner(&self) -> i64 {
        to_octets(self.config.get().limits.kept_bytes)
    }

    /// Returns the bytes that may be added before the sum over all owners reaches `limits.kept_bytes_total`.
    pub(super) fn total_room(&self) -> i64 {
        let max = to_octets(self.config.get().limits.kept_bytes_total);
        max.saturating_sub(self.kept.total.load(Ordering::Relaxed))
    }

    /// Counts added bytes until the next pass reads the sum.
    pub(super) fn count_added(&self, bytes: i64) {
        self.kept.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// True if that many bytes more may be kept for an owner.
    pub(super) async fn has_room(&self, owner: &str, bytes: usize) -> Result<bool, Unavailable> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let work = sqlx::query_scalar(OF).bind(owner).fetch_one(self.db.pool());
        let kept: i64 = self.db.run("kept_of", work).await?;
        Ok(bytes <= self.per_owner().saturating_sub(kept) && bytes <= self.total_room())
    }

    /// Returns and counts the rejection for want of room. `what` ends before the limits.
    pub(super) fn count_refusal(&self, kind: RetainedKind, what: &str) -> Rejection {
        self.metrics.kept.refused[kind].inc();
        self.limit_rejection(what)
    }

    /// Returns the rejection without counting it.
    pub(super) fn limit_rejection(&self, what: &str) -> Rejection {
        let limits = &self.config.get().limits;
        let message = format!(
            "{what} limits.kept_bytes ({} bytes), or all callers together limits.kept_bytes_total ({} bytes)",
            limits.kept_bytes.0, limits.kept_bytes_total.0
        );
        Rejection::new(Reason::AgentBusy, message)
            .with_retry_after(PAUSE)
            .with_fact("limit", limits.kept_bytes.0)
    }

    /// Reads the sum over all owners, and merges rows. Runs until it is dropped.
    pub(super) async fn sum_bytes(&self) {
        repeat(LOOK_EVERY, "sum of kept bytes", || self.read_totals()).await;
    }

    async fn read_totals(&self) -> Result<(), Unavailable> {
        let work = sqlx::query_as(LOOK).fetch_all(self.db.pool());
        let rows: Vec<(String, i64, i64)> = self.db.run("kept_look", work).await?;
        let total = rows.iter().map(|(_, bytes, _)| bytes).sum();
        let largest = rows.iter().map(|(_, bytes, _)| *bytes).max();
        self.kept.total.store(total, Ordering::Relaxed);
        let metrics = &self.metrics.kept;
        metrics.total.set(total);
        metrics.largest.set(largest.unwrap_or(0).max(0));
        let to_merge = rows.iter().filter(|(.., changes)| MERGE_FROM <= *changes);
        for (owner, ..) in to_merge.take(MERGED_MAX) {
            self.merge_rows(owner).await?;
        }
        Ok(())
    }

    /// Replaces an owner's rows by one row. Of two replicas that merge at once the second finds only rows that
    /// were added since.
    async fn merge_rows(&self, owner: &str) -> Result<(), Unavailable> {
        let work = async {
            let mut tx = self.db.begin().await?;
            let taken = sqlx::query_scalar(TAKE).bind(owner).fetch_all(&mut *tx);
            let taken: Vec<i64> = taken.await?;
            let bytes: i64 = taken.iter().sum();
            if bytes != 0 {
                let put = sqlx::query(PUT).bind(owner).bind(bytes);
                put.execute(&mut *tx).await?;
            }
            tx.commit().await
        };
        self.db.run("kept_merge", work).await
    }
}

impl Drop for PendingBytes<'_> {
    fn drop(&mut self) {
        let mut writing = self.kept.writing.lock();
        if let Some(bytes) = writing.get_mut(self.owner) {
            *bytes -= self.bytes;
            if *bytes <= 0 {
                writing.remove(self.owner);
            }
        }
    }
}

fn to_octets(size: ByteSize) -> i64 {
    i64::try_from(size.0).unwrap_or(i64::MAX)
}
