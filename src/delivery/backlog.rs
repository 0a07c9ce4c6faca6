//! What waits in SQL, for those who watch: how much, and for how long. Every replica looks now and then, and all see
//! the same.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::Delivery;
use crate::metrics;
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// Between two looks: as often as Prometheus usually asks.
const EVERY: Duration = Duration::from_secs(15);

/// What waits in one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    /// How much.
    pub(super) entries: i64,
    /// Since when the oldest of it has.
    pub(super) oldest: Option<Timestamp>,
}

impl Delivery {
    /// Looks regularly, until it is dropped. While SQL is away the last look counts.
    pub(super) async fn measure(&self) {
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Err(error) = self.look_at_backlog().await {
                tracing::debug!(error = %Chain(&error), "No look at what waits this time");
            }
        }
    }

    async fn look_at_backlog(&self) -> Result<(), Unavailable> {
        let (inbox, jobs) = (self.inbox.backlog().await?, self.jobs.backlog().await?);
        let now = Timestamp::now();
        for (which, found) in [
            (metrics::Backlog::Inbox, inbox),
            (metrics::Backlog::Jobs, jobs),
        ] {
            let age = found.oldest.map_or(0, |oldest| now.0 - oldest.0);
            let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
            self.metrics.queues.backlog(which, found.entries, age);
        }
        self.metrics.inbox.unread.set(self.inbox.unread().await?);
        Ok(())
    }
}
