//! State that outlives a connection: inboxes of agents that poll, jobs (delegations and deferred calls),
//! calls with a key and their replay, logs of streams that callers resume.
//!
//! Everything that was acknowledged is in SQL. The shared state only carries wake-ups, and may be
//! unavailable.

pub mod backlog;
pub mod calls;
pub mod inbox;
pub mod jobs;
mod kept_bytes;
pub mod mailbox;
#[cfg(test)]
mod model_tests;
pub mod streams;
mod wake;

use std::sync::Arc;
use std::time::Duration;

use self::calls::Calls;
use self::inbox::Inbox;
use self::jobs::Jobs;
use self::mailbox::Mailbox;
use self::streams::Streams;
use directory::events::Events;
use kernel::config::Live;
use kernel::deadline::ticks;
use kernel::metrics::Metrics;
use kernel::telemetry::Chain;
use stores::coherence::Coherence;
use stores::db::Db;
use stores::shared::Shared;
use stores::store::Unavailable;

/// Longest pause before background work that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Inboxes, calls with a key, stream logs and jobs.
pub struct Delivery {
    /// Messages for agents that poll, and the tasks that they begin.
    pub inbox: Arc<Inbox>,
    /// Calls with an idempotency key, and their answers.
    pub calls: Arc<Calls>,
    /// Logs of streams, for callers that resume them.
    pub streams: Arc<Streams>,
    /// Delegations and deferred calls.
    pub jobs: Arc<Jobs>,
    mailbox: Arc<Mailbox>,
}

impl Delivery {
    /// Creates it; does not touch the stores.
    pub fn new(
        config: Live,
        stores: (Db, Shared),
        events: Arc<Events>,
        coherence: &Coherence,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let mailbox = Mailbox::new(config, stores, metrics);
        let inbox = Inbox::new(Arc::clone(&mailbox), Arc::clone(&events));
        Arc::new(Self {
            calls: Calls::new(Arc::clone(&mailbox)),
            streams: Streams::new(&mailbox),
            jobs: Jobs::new(Arc::clone(&mailbox), Arc::clone(&inbox), events, coherence),
            inbox,
            mailbox,
        })
    }

    /// Runs the background tasks. Runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.mailbox.run(),
            self.calls.run(),
            self.inbox.run(),
            self.jobs.run(),
            self.streams.run(),
            self.measure_backlog(),
        );
    }
}

/// Runs `work` in an interval, until it is dropped. After a failure it is tried again soon.
async fn repeat<W>(every: Duration, what: &'static str, work: impl Fn() -> W)
where
    W: Future<Output = Result<(), Unavailable>>,
{
    let mut tick = ticks(every);
    loop {
        tick.tick().await;
        if let Err(error) = work().await {
            tracing::debug!(what, error = %Chain(&error), "background work failed; will retry");
            tick.reset_after(every.min(RETRY_PAUSE));
        }
    }
}
