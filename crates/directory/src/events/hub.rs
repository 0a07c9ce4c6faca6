//! Event hub of this replica: the newest events for readers that resume, and the live ones for all readers, in
//! one order and without duplicates.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout_at};

use super::record::PublishedEvent;
use super::ring::Ring;
use stores::shared::EntryId;

/// Maximum events that a reader may be behind before it is cut. Events are shared, so this bounds all readers
/// together.
const BEHIND_MAX: usize = 4096;

/// Maximum backlog of a reader in passing events. A reader further behind misses the oldest and stays
/// connected: a burst of messages must not cost it the state changes.
pub(super) const PASSING_BEHIND_MAX: usize = 1024;

/// Maximum wait of a reader that resumes after an event this replica does not have yet: it comes from another
/// replica, or this one has just started.
const CATCH_UP_MAX: Duration = Duration::from_secs(2);

/// Start position of a reader.
pub(super) struct ResumePoint {
    /// Missed events, oldest first.
    pub(super) replay: VecDeque<Arc<PublishedEvent>>,
    /// Missed events that are not kept any more, one of each workspace. A reader that may see one of them has
    /// missed it.
    pub(super) dropped: Vec<Arc<PublishedEvent>>,
    /// Future events.
    pub(super) live: broadcast::Receiver<Arc<PublishedEvent>>,
}

pub(super) struct Hub {
    ring: Mutex<Ring>,
    /// Events of the log, from now on.
    pub(super) live: broadcast::Sender<Arc<PublishedEvent>>,
    /// Events that are not kept, from now on.
    pub(super) passing: broadcast::Sender<Arc<PublishedEvent>>,
    /// Newest id, or `None` before the log was first read.
    reached: watch::Sender<Option<EntryId>>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            ring: Mutex::default(),
            live: broadcast::Sender::new(BEHIND_MAX),
            passing: broadcast::Sender::new(PASSING_BEHIND_MAX),
            reached: watch::Sender::new(None),
        }
    }
}

impl Hub {
    /// Adds the entries that the log had when this replica began to follow it.
    pub(super) fn load_backlog(&self, backlog: Vec<PublishedEvent>) {
        let mut ring = self.ring.lock();
        for event in backlog {
            ring.push(Arc::new(event));
        }
        ring.drop_old();
        let newest = ring.newest_id();
        drop(ring);
        self.reached.send_replace(Some(newest));
    }

    /// Broadcasts the next event of the log.
    pub(super) fn publish_logged(&self, event: PublishedEvent) {
        let event = Arc::new(event);
        let mut ring = self.ring.lock();
        ring.push(Arc::clone(&event));
        ring.drop_old();
        let newest = ring.newest_id();
        // Under the lock, so that a reader that resumes meanwhile gets it once.
        let _ = self.live.send(event);
        drop(ring);
        self.reached.send_replace(Some(newest));
    }

    /// Handles a new log: earlier ids have no meaning any more.
    pub(super) fn reset(&self) {
        let mut ring = self.ring.lock();
        *ring = Ring::default();
        let _ = self.live.send(PublishedEvent::new_gap());
        drop(ring);
        self.reached.send_replace(Some(EntryId::START));
    }

    /// Resumes after `after`; `None`: with the next event. If events in between are not known any more, a gap
    /// comes first, then the known events.
    pub(super) async fn resume(&self, after: Option<&str>) -> ResumePoint {
        let after = after.map(|text| text.parse::<EntryId>().ok());
        let deadline = Instant::now() + CATCH_UP_MAX;
        let mut reached = self.reached.subscribe();
        let needed = after.flatten().unwrap_or_default();
        // Bounded: a reader that names a future event gets a gap.
        let caught_up = reached.wait_for(|reached| reached.is_some_and(|at| needed <= at));
        let _ = timeout_at(deadline, caught_up).await;
        let mut ring = self.ring.lock();
        ring.drop_old();
        let live = self.live.subscribe();
        let mut dropped = Vec::new();
        let replay = match after {
            None => VecDeque::new(),
            Some(Some(after)) if ring.has_all_after(after) => {
                dropped = ring.dropped_after(after);
                ring.events_after(after)
            }
            Some(_) => {
                let mut replay = ring.events_after(EntryId::START);
                replay.push_front(PublishedEvent::new_gap());
                replay
            }
        };
        ResumePoint {
            replay,
            dropped,
            live,
        }
    }
}
