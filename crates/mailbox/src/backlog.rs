//! Measures the backlog in SQL for metrics: the number of waiting entries, and the age of the oldest. Every
//! replica measures, with the same result.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{Delivery, repeat};
use kernel::metrics;
use kernel::time::Timestamp;
use stores::store::Unavailable;

/// Interval of measurements: the usual scrape interval of Prometheus.
const EVERY: Duration = Duration::from_secs(15);

/// The backlog of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Number of waiting entries.
    pub entries: i64,
    /// Time since which the oldest one has waited.
    pub oldest: Option<Timestamp>,
}

impl Backlog {
    /// Reads the columns `entries` and `oldest`.
    pub(super) fn read(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let oldest: Option<i64> = row.try_get("oldest")?;
        Ok(Self {
            entries: row.try_get("entries")?,
            oldest: oldest.map(Timestamp),
        })
    }
}

impl Delivery {
    /// Measures regularly, until it is dropped. While SQL is unavailable the last values stay.
    pub(super) async fn measure_backlog(&self) {
        repeat(EVERY, "backlog measurement", || self.record_backlog()).await;
    }

    async fn record_backlog(&self) -> Result<(), Unavailable> {
        let (inbox, jobs) = (
            self.inbox.read_backlog().await?,
            self.jobs.table.read_backlog().await?,
        );
        let now = Timestamp::now();
        for (which, found) in [
            (metrics::Backlog::Inbox, inbox),
            (metrics::Backlog::Jobs, jobs),
        ] {
            let age = found
                .oldest
                .map(|oldest| now.since(oldest))
                .unwrap_or_default();
            self.mailbox
                .metrics
                .queues
                .set_backlog(which, found.entries, age);
        }
        self.mailbox
            .metrics
            .inbox
            .unread
            .set(self.inbox.count_unread().await?);
        Ok(())
    }
}
