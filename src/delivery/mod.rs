//! What outlives a connection (contract §6): messages that wait to be fetched.
//!
//! Everything that was acknowledged is in SQL; the shared state only carries the word that there is news,
//! and may be away.

pub mod inbox;

use std::sync::Arc;

use self::inbox::Inbox;
use crate::config::Live;
use crate::db::Db;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::shared::Shared;

/// The room.
pub struct Delivery {
    /// Messages for those who fetch them, and the tasks that they begin.
    pub inbox: Arc<Inbox>,
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
            inbox: Inbox::new(config, db, shared, events, metrics),
        })
    }

    /// The work in the background. Runs until it is dropped.
    pub async fn run(&self) {
        self.inbox.run().await;
    }
}
