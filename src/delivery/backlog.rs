//! Measures the backlog in SQL for metrics: the number of waiting entries, and the age of the oldest. Every
//! replica measures, with the same result.

use std::time::Duration;

use super::Delivery;
use crate::deadline::ticks;
use crate::metrics;
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// Interval of measurements: the usual scrape interval of Prometheus.
const EVERY: Duration = Duration::from_secs(15);

/// The backlog of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    /// Number of waiting entries.
    pub(super) entries: i64,
    /// Time since which the oldest one has waited.
    pub(super) oldest: Option<Timestamp>,
}

impl Delivery {
    /// Measures regularly, until it is dropped. While SQL is unavailable the last values stay.
    pub(super) async fn measure_backlog(&self) {
        let mut tick = ticks(EVERY);
        loop {
            tick.tick().await;
            if let Err(error) = self.record_backlog().await {
                tracing::debug!(error = %Chain(&error), "backlog measurement failed; will retry");
            }
        }
    }

    async fn record_backlog(&self) -> Result<(), Unavailable> {
        let (inbox, jobs) = (
            self.inbox.read_backlog().await?,
            self.jobs.read_backlog().await?,
        );
        let now = Timestamp::now();
        for (which, found) in [
            (metrics::Backlog::Inbox, inbox),
            (metrics::Backlog::Jobs, jobs),
        ] {
            let age = found.oldest.map_or(0, |oldest| now.0 - oldest.0);
            let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
            self.metrics.queues.set_backlog(which, found.entries, age);
        }
        self.metrics
            .inbox
            .unread
            .set(self.inbox.count_unread().await?);
        Ok(())
    }
}
