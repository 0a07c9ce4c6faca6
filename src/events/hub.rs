//! What this replica knows of the log: the newest events for those who come back, and the live ones
//! for all readers, in one order and none twice.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout_at};

use super::record::Told;
use crate::shared::EntryId;
use crate::workspace::Timestamp;

/// Events kept for those who come back (contract §8.4).
pub(super) const REPLAY_MAX: usize = 1000;

/// How long they are kept.
pub(super) const REPLAY_FOR: Duration = Duration::from_secs(600);

/// Events that a reader may be behind before it is cut. They are shared, so this bounds all readers
/// together.
const BEHIND_MAX: usize = 4096;

/// The same of what only passes by. A reader further behind misses the oldest, and stays: a storm of
/// messages must not cost it what is kept.
pub(super) const PASSING_BEHIND_MAX: usize = 1024;

/// How long a reader that was further than we are waits for us: it comes from another replica, or we
/// have only just begun.
const CATCH_UP_MAX: Duration = Duration::from_secs(2);

/// From where a reader goes on.
pub(super) struct Resumed {
    /// What it missed, oldest first.
    pub(super) replay: VecDeque<Arc<Told>>,
    /// What comes.
    pub(super) live: broadcast::Receiver<Arc<Told>>,
}

pub(super) struct Hub {
    ring: Mutex<Ring>,
    live: broadcast::Sender<Arc<Told>>,
    passing: broadcast::Sender<Arc<Told>>,
    /// The newest id, or `None` before the log was read for the first time.
    reached: watch::Sender<Option<EntryId>>,
}

#[derive(Default)]
struct Ring {
    told: VecDeque<(EntryId, Arc<Told>)>,
    /// Every event after this one is in the ring. `None`: nobody knows where the log goes on.
    floor: Option<EntryId>,
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
    /// What the log held when we began to follow it.
    pub(super) fn fill(&self, backlog: Vec<Told>) {
        let mut ring = self.ring();
        for told in backlog {
            ring.keep(Arc::new(told));
        }
        ring.evict(now_ms());
        let newest = ring.newest();
        drop(ring);
        self.reached.send_replace(Some(newest));
    }

    /// The next event of the log.
    pub(super) fn spread(&self, told: Told) {
        let told = Arc::new(told);
        let mut ring = self.ring();
        ring.keep(Arc::clone(&told));
        ring.evict(now_ms());
        let newest = ring.newest();
        // Under the lock, so that whoever resumes meanwhile sees it once.
        let _ = self.live.send(told);
        drop(ring);
        self.reached.send_replace(Some(newest));
    }

    /// An event that is not kept.
    pub(super) fn pass(&self, told: Told) {
        let _ = self.passing.send(Arc::new(told));
    }

    /// The log is another one from here on: ids of before mean nothing any more.
    pub(super) fn lose(&self) {
        let mut ring = self.ring();
        ring.told.clear();
        ring.floor = None;
        let _ = self.live.send(Told::gap());
        drop(ring);
        self.reached.send_replace(Some(EntryId::START));
    }

    /// Goes on after `after`; `None`: with what comes. If what lies between is not known any more, a
    /// gap comes first, then what there is.
    pub(super) async fn resume(&self, after: Option<&str>) -> Resumed {
        let after = after.map(|text| text.parse::<EntryId>().ok());
        let deadline = Instant::now() + CATCH_UP_MAX;
        let mut reached = self.reached.subscribe();
        let needed = after.flatten().unwrap_or_default();
        // Bounded: whoever names the future gets a gap.
        let caught_up = reached.wait_for(|reached| reached.is_some_and(|at| needed <= at));
        let _ = timeout_at(deadline, caught_up).await;
        let mut ring = self.ring();
        ring.evict(now_ms());
        let live = self.live.subscribe();
        let replay = match after {
            None => VecDeque::new(),
            Some(Some(after)) if ring.follows(after) => ring.after(after),
            Some(_) => {
                let mut replay = ring.after(EntryId::START);
                replay.push_front(Told::gap());
                replay
            }
        };
        Resumed { replay, live }
    }

    /// A receiver that has heard nothing yet.
    pub(super) fn silent(&self) -> broadcast::Receiver<Arc<Told>> {
        self.live.subscribe()
    }

    /// A receiver of what passes by from here on.
    pub(super) fn passing(&self) -> broadcast::Receiver<Arc<Told>> {
        self.passing.subscribe()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // Each step leaves the ring whole, so a panic elsewhere cannot have broken it.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn keep(&mut self, told: Arc<Told>) {
        let Some(id) = told.id else { return };
        // The first one's predecessor: of what came before it we know nothing.
        self.floor.get_or_insert(id.before());
        self.told.push_back((id, told));
    }

    fn evict(&mut self, now_ms: u64) {
        let oldest_ms = now_ms.saturating_sub(u64::try_from(REPLAY_FOR.as_millis()).unwrap_or(0));
        while let Some((id, _)) = self.told.front()
            && (REPLAY_MAX < self.told.len() || id.ms < oldest_ms)
        {
            self.floor = Some(*id);
            self.told.pop_front();
        }
    }

    fn newest(&self) -> EntryId {
        let kept = self.told.back().map(|(id, _)| *id);
        kept.or(self.floor).unwrap_or_default()
    }

    /// Whether everything after `after` is here.
    fn follows(&self, after: EntryId) -> bool {
        self.floor.is_some_and(|floor| floor <= after) && after <= self.newest()
    }

    fn after(&self, after: EntryId) -> VecDeque<Arc<Told>> {
        let from = self.told.partition_point(|(id, _)| *id <= after);
        self.told
            .iter()
            .skip(from)
            .map(|(_, told)| Arc::clone(told))
            .collect()
    }
}

fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().0).unwrap_or(0)
}
