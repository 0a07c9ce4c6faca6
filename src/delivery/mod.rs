//! What outlives a connection (contract §6): messages that wait to be fetched, streams that are taken up again
//! where they broke off.
//!
//! Everything that was acknowledged is in SQL; the shared state only carries the word that there is news,
//! and may be away.

pub mod inbox;
pub mod streams;

use std::sync::Arc;

use self::inbox::Inbox;
use self::streams::Streams;
use crate::config::Live;
use crate::db::Db;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::shared::Shared;

/// The room.
pub struct Delivery {
    /// Messages for those who fetch them, and the tasks that they begin.
    pub inbox: Arc<Inbox>,
    /// What passed in streams, for those who come back.
    pub streams: Arc<Streams>,
}

impl Delivery {
    /// Assembles the room; asks nothing.
    pub fn new(
        config: Live,
        db: Db,
        shared: Shared,
        events: Arc<Events>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            streams: Streams::new(config.clone(), shared.clone(), Arc::clone(&metrics)),
            inbox: Inbox::new(config, db, shared, events, metrics),
        })
    }

    /// The work in the background. Runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.inbox.run(), self.streams.run());
    }
}
