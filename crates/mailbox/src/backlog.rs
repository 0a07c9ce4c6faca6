//! Measures the backlog in SQL for metrics: the number of waiting entries, and the age of the oldest. Every
//! replica measures, with the same result.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::inbox::Inbox;
use super::mailbox::{Mailbox, Statement, query};
use super::{Delivery, repeat};
use kernel::ids::WorkspaceId;
use kernel::metrics;
use kernel::time::Timestamp;
use stores::store::Unavailable;

/// Interval of measurements: the usual scrape interval of Prometheus.
const EVERY: Duration = Duration::from_secs(15);

// One index lookup for each inbox with unacknowledged entries. Numbers have no gaps, so the first such entry
// that is still there gives their count.
const INBOXES: &str = "SELECT CAST(COALESCE(SUM(h.last_seq - f.seq + 1), 0) AS BIGINT) AS entries, \
    MIN(f.created_at) AS oldest \
    FROM inbox_heads h JOIN activity_logs f ON f.workspace_id = h.workspace_id \
    AND f.seq = (SELECT MIN(seq) FROM activity_logs \
        WHERE workspace_id = h.workspace_id AND seq > h.acked_seq) \
    WHERE h.last_seq > h.acked_seq";

const INBOX: &str = "SELECT h.last_seq - f.seq + 1 AS entries, f.created_at AS oldest \
    FROM inbox_heads h JOIN activity_logs f ON f.workspace_id = h.workspace_id \
    AND f.seq = (SELECT MIN(seq) FROM activity_logs \
        WHERE workspace_id = h.workspace_id AND seq > h.acked_seq) \
    WHERE h.workspace_id = $1 AND h.last_seq > h.acked_seq";

const JOBS: &str = "SELECT COUNT(*) AS entries, MIN(created_at) AS oldest FROM mailbox_items WHERE state = 'pending'";

/// The backlog of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Number of waiting entries.
    pub entries: i64,
    /// Time since which the oldest one has waited.
    pub oldest: Option<Timestamp>,
}

impl Mailbox {
    /// Reads the columns `entries` and `oldest`.
    async fn read_backlog(
        &self,
        operation: &'static str,
        query: Statement<'_>,
    ) -> Result<Backlog, Unavailable> {
        let read = |row: &AnyRow| {
            Ok(Backlog {
                entries: row.try_get("entries")?,
                oldest: row.try_get::<Option<i64>, _>("oldest")?.map(Timestamp),
            })
        };
        Ok(self
            .fetch(operation, query, read)
            .await?
            .unwrap_or_default())
    }
}

impl Inbox {
    /// Returns the unacknowledged entries of a workspace's inbox.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn backlog_of(&self, workspace: &WorkspaceId) -> Result<Backlog, Unavailable> {
        let query = query!(INBOX, workspace.as_str());
        self.mailbox.read_backlog("inbox_backlog_of", query).await
    }
}

impl Delivery {
    /// Measures regularly, until it is dropped. While SQL is unavailable the last values stay.
    pub(super) async fn measure_backlog(&self) {
        repeat(EVERY, "backlog measurement", || self.record_backlog()).await;
    }

    async fn record_backlog(&self) -> Result<(), Unavailable> {
        let (mailbox, metrics) = (&self.mailbox, &self.mailbox.metrics);
        let now = Timestamp::now();
        for (which, operation, text) in [
            (metrics::Backlog::Inbox, "inbox_backlog", INBOXES),
            (metrics::Backlog::Jobs, "job_backlog", JOBS),
        ] {
            let found = mailbox.read_backlog(operation, query!(text)).await?;
            let age = found.oldest.map(|oldest| now.since(oldest));
            let queues = &metrics.queues;
            queues.set_backlog(which, found.entries, age.unwrap_or_default());
        }
        metrics.inbox.unread.set(self.inbox.count_unread().await?);
        Ok(())
    }
}
