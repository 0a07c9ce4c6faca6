//! State that outlives a connection: inboxes of agents that poll, jobs (delegations and deferred calls),
//! calls with a key and their replay, logs of streams that callers resume.
//!
//! Everything that was acknowledged is in SQL. The shared state only carries wake-ups, and may be
//! unavailable.

mod backlog;
pub mod calls;
pub mod inbox;
pub mod jobs;
pub mod kept_bytes;
mod page;
mod purge;
pub mod streams;

use std::sync::Arc;

use self::calls::Calls;
use self::inbox::Inbox;
use self::jobs::Jobs;
use self::kept_bytes::KeptBytes;
use self::streams::Streams;
use crate::coherence::Coherence;
use crate::config::Live;
use crate::db::Db;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::shared::Shared;

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
    kept: Arc<KeptBytes>,
    metrics: Arc<Metrics>,
}

impl Delivery {
    /// Creates it; does not touch the stores.
    pub fn new(
        config: Live,
        (db, shared): (Db, Shared),
        events: Arc<Events>,
        coherence: &Coherence,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let kept = KeptBytes::new(config.clone(), db.clone(), Arc::clone(&metrics));
        let inbox = Inbox::new(
            config.clone(),
            (db.clone(), shared.clone()),
            Arc::clone(&kept),
            Arc::clone(&events),
            Arc::clone(&metrics),
        );
        Arc::new(Self {
            calls: Calls::new(
                config.clone(),
                (db.clone(), shared.clone()),
                Arc::clone(&kept),
                Arc::clone(&metrics),
            ),
            streams: Streams::new(config.clone(), shared, Arc::clone(&metrics)),
            jobs: Jobs::new(
                config,
                db,
                Arc::clone(&inbox),
                events,
                coherence,
                Arc::clone(&metrics),
            ),
            kept,
            metrics,
            inbox,
        })
    }

    /// Runs the background tasks. Runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.calls.run(),
            self.kept.run(),
            self.inbox.run(),
            self.jobs.run(),
            self.streams.run(),
            self.measure_backlog(),
        );
    }
}
