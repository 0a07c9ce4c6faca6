//! What outlives a connection (contract §6): messages that wait to be fetched, calls that are made later,
//! calls that are sent again, streams that are taken up again where they broke off.
//!
//! Everything that was acknowledged is in SQL; the shared state only carries the word that there is news,
//! and may be away.

mod backlog;
pub mod calls;
pub mod inbox;
pub mod jobs;
pub mod kept;
mod page;
pub mod streams;

use std::sync::Arc;

use self::calls::Calls;
use self::inbox::Inbox;
use self::jobs::Jobs;
use self::kept::KeptBytes;
use self::streams::Streams;
use crate::coherence::Coherence;
use crate::config::Live;
use crate::db::Db;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::shared::Shared;

/// The room.
pub struct Delivery {
    /// Messages for those who fetch them, and the tasks that they begin.
    pub inbox: Arc<Inbox>,
    /// Calls with a key, and what came of them.
    pub calls: Arc<Calls>,
    /// What passed in streams, for those who come back.
    pub streams: Arc<Streams>,
    /// Calls that are made later.
    pub jobs: Arc<Jobs>,
    kept: Arc<KeptBytes>,
    metrics: Arc<Metrics>,
}

impl Delivery {
    /// Assembles the room; asks nothing.
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

    /// The work in the background. Runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.calls.run(),
            self.kept.run(),
            self.inbox.run(),
            self.jobs.run(),
            self.streams.run(),
            self.measure(),
        );
    }
}
