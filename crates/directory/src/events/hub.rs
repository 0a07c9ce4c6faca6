//! Event hub of this replica: the newest events for readers that resume, and the live ones for all readers, in
//! one order and without duplicates.
//!
//! Replay buffer: the newest events, with a bound for each org, so that a busy org does not push out the events
//! of other orgs. Within an org the events of the workspace with the most go first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout_at};

use super::record::PublishedEvent;
use access::workspace::Timestamp;
use kernel::ids::WorkspaceId;
use kernel::shares::Bound;
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
            // All events after it are here, except those that were dropped.
            Some(Some(after))
                if ring.floor.is_some_and(|floor| floor <= after) && after <= ring.newest_id() =>
            {
                let later = ring.dropped.values().filter(|(id, _)| after < *id);
                dropped = later.map(|(_, event)| Arc::clone(event)).collect();
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

/// Maximum events of an org that is alone: half of the capacity.
pub(super) const REPLAY_MAX: usize = 1000;

/// Maximum events of all orgs.
pub(super) const KEPT_MAX: usize = 2 * REPLAY_MAX;

/// Retention of an event.
pub(super) const REPLAY_FOR: Duration = Duration::from_secs(600);

/// Maximum workspaces with a record of dropped events.
const DROPPED_MAX: usize = 1024;

/// Org of an event. Workspaces without an org count as one org.
type Org = Option<String>;

/// Events in the order of the log.
#[derive(Default)]
pub(super) struct Ring {
    events: VecDeque<(EntryId, Arc<PublishedEvent>)>,
    /// Every event after this one is in the ring, or in `dropped`. `None`: the position in the log is unknown.
    floor: Option<EntryId>,
    /// Events kept, by org and workspace.
    kept: HashMap<Org, HashMap<WorkspaceId, usize>>,
    /// The newest event of each workspace that was dropped for want of room.
    dropped: HashMap<WorkspaceId, (EntryId, Arc<PublishedEvent>)>,
}

impl Ring {
    /// Adds the newest event, and drops events beyond the bounds.
    pub(super) fn push(&mut self, event: Arc<PublishedEvent>) {
        let Some(id) = event.id else { return };
        // The predecessor of the first event: earlier ones are unknown.
        self.floor.get_or_insert(id.before());
        let Some(subject) = &event.subject else {
            return;
        };
        let (org, workspace) = (subject.org().cloned(), subject.workspace.clone());
        self.events.push_back((id, event));
        let of_org = self.kept.entry(org.clone()).or_default();
        *of_org.entry(workspace).or_default() += 1;
        let own: usize = of_org.values().sum();
        if own > Bound::with_places(KEPT_MAX).max_for(self.events.len() - own) {
            let busiest = of_org.iter().max_by_key(|(_, count)| **count);
            if let Some(busiest) = busiest.map(|(id, _)| id.clone()) {
                let is_its = |event: &PublishedEvent| {
                    let subject = event.subject.as_ref();
                    subject.is_some_and(|it| it.org() == org.as_ref() && it.workspace == busiest)
                };
                let at = self.events.iter().position(|(_, event)| is_its(event));
                self.drop_at(at.unwrap_or_default());
            }
        }
        if KEPT_MAX < self.events.len() {
            self.drop_at(0);
        }
    }

    /// Drops events older than [`REPLAY_FOR`].
    pub(super) fn drop_old(&mut self) {
        let now_ms = u64::try_from(Timestamp::now().0).unwrap_or(0);
        let oldest_ms = now_ms.saturating_sub(u64::try_from(REPLAY_FOR.as_millis()).unwrap_or(0));
        while let Some((id, _)) = self.events.front()
            && id.ms < oldest_ms
        {
            self.floor = Some(*id);
            self.take_at(0);
        }
        let floor = self.floor.unwrap_or_default();
        self.dropped
            .retain(|_, (id, _)| floor < *id && id.ms >= oldest_ms);
    }

    /// Returns the id of the newest event.
    pub(super) fn newest_id(&self) -> EntryId {
        let kept = self.events.back().map(|(id, _)| *id);
        kept.or(self.floor).unwrap_or_default()
    }

    /// Returns the kept events after `after`.
    pub(super) fn events_after(&self, after: EntryId) -> VecDeque<Arc<PublishedEvent>> {
        let from = self.events.partition_point(|(id, _)| *id <= after);
        let kept = self.events.iter().skip(from);
        kept.map(|(_, event)| Arc::clone(event)).collect()
    }

    fn drop_at(&mut self, at: usize) {
        let Some((id, event)) = self.take_at(at) else {
            return;
        };
        let Some(subject) = &event.subject else {
            return;
        };
        self.dropped.insert(subject.workspace.clone(), (id, event));
        if DROPPED_MAX < self.dropped.len() {
            // From here on a reader that resumes from an earlier event gets a gap, without a search for what it
            // missed.
            let oldest = self.dropped.values().map(|(id, _)| *id).min();
            self.floor = self.floor.max(oldest);
            let floor = self.floor.unwrap_or_default();
            self.dropped.retain(|_, (id, _)| floor < *id);
        }
    }

    fn take_at(&mut self, at: usize) -> Option<(EntryId, Arc<PublishedEvent>)> {
        let (id, event) = self.events.remove(at)?;
        if let Some(subject) = &event.subject
            && let Some(of_org) = self.kept.get_mut(&subject.org().cloned())
        {
            if let Some(count) = of_org.get_mut(&subject.workspace) {
                *count -= 1;
                if *count == 0 {
                    of_org.remove(&subject.workspace);
                }
            }
            if of_org.is_empty() {
                self.kept.remove(&subject.org().cloned());
            }
        }
        Some((id, event))
    }
}
