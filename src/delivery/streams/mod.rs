//! What passed in streams, for those who lost the connection (contract §6.3): the newest events of each,
//! numbered, in memory and bounded; followed by whoever comes back.
//!
//! The way of an event waits for nobody: [`Log::append`] numbers and keeps it, and that is all. With
//! replicas a background task copies what is kept to the shared state (`copy.rs`), where another replica
//! reads it (`elsewhere.rs`); what that lost is copied again (`lost.rs`). Owns `gw:stream:{id}` (the events), `gw:stream-meta:{id}` (whose),
//! `gw:stream-reader:{id}` (somebody reads it elsewhere) and `gw:replica:{id}` (its writer lives).
//!
//! Invariants: a stream is shown to nobody but its caller; what is missing is said.

mod copy;
mod elsewhere;
mod kept;
mod key;
mod linger;
mod log;
mod lost;
mod reader;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use uuid::Uuid;

pub use self::linger::Lingering;
pub use self::log::Log;
pub use self::reader::Reader;

use self::copy::Copies;
use self::kept::{Bounds, Held, Kept, Whose};
use self::reader::Places;
use crate::config::Live;
use crate::dialect::ReplyForm;
use crate::ids::WorkspaceId;
use crate::metrics::Metrics;
use crate::shared::Shared;

/// How often logs that nobody may ask for any more are looked for.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);

/// Logs whose copies wait to be deleted.
const GONE_MAX: usize = 10_000;

/// Events kept of a stream that nobody gets but from its log, where logs are off.
const EVENTS_WHERE_OFF: usize = 64;

/// The room.
pub struct Streams {
    config: Live,
    metrics: Arc<Metrics>,
    logs: Mutex<Logs>,
    /// Bytes that all logs hold.
    held: Arc<AtomicUsize>,
    /// What goes to other replicas; `None`: there are none.
    copies: Option<Copies>,
    places: Arc<Places>,
    lingering: AtomicUsize,
}

#[derive(Default)]
struct Logs {
    by_id: HashMap<Uuid, Arc<Kept>>,
    /// Those that ended, and until when they are kept; about in that order.
    ended: VecDeque<(Instant, Uuid)>,
    /// Bytes that the logs of each caller hold, as long as there is one.
    callers: HashMap<String, Weak<AtomicUsize>>,
    /// Those that were forgotten before their time, for want of room: their copies are deleted.
    gone: Vec<Uuid>,
}

impl Streams {
    /// Assembles the room; asks nothing.
    pub fn new(config: Live, shared: Shared, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            logs: Mutex::default(),
            held: Arc::default(),
            copies: (!shared.is_embedded()).then(|| Copies::new(shared)),
            places: Arc::new(Places::new(metrics.streams.readers.clone())),
            lingering: AtomicUsize::new(0),
            config,
            metrics,
        })
    }

    /// Begins the log of a stream that `owner` (`Proof::owner`) is sent from `target`, in answer to a
    /// request that is answered in this form. `None`: it cannot be resumed, since logs are off, or there is
    /// no room for another one.
    pub fn begin(
        self: &Arc<Self>,
        owner: String,
        target: &WorkspaceId,
        form: ReplyForm,
    ) -> Option<Log> {
        if self.config.get().stream.log_events == 0 {
            return None;
        }
        let mut logs = self.logs();
        logs.expire(Instant::now());
        if !self.make_room(&mut logs, kept::COST) {
            drop(logs);
            self.metrics.streams.unresumable.inc();
            return None;
        }
        drop(logs);
        Some(self.begin_needed(owner, target, form))
    }

    /// As [`Streams::begin`], for a stream that nobody gets but from its log: there is always one.
    pub fn begin_needed(
        self: &Arc<Self>,
        owner: String,
        target: &WorkspaceId,
        form: ReplyForm,
    ) -> Log {
        let whose = Whose {
            owner,
            target: target.as_str().to_owned(),
            form,
        };
        let mut logs = self.logs();
        let held = Held {
            all: Arc::clone(&self.held),
            own: logs.held_by(&whose.owner),
        };
        let log_bytes = self.bounds().bytes;
        let max = self.config.get().limits.kept_bytes.bytes();
        while held.own.load(Ordering::Relaxed).saturating_add(log_bytes) > max
            && logs.forget_oldest_of(&whose.owner)
        {}
        let kept = Arc::new(Kept::new(whose, held));
        kept.hold();
        logs.by_id.insert(kept.id, Arc::clone(&kept));
        drop(logs);
        self.metrics.streams.log_bytes.set(self.held());
        Log::new(Arc::clone(self), kept)
    }

    /// What goes on beside streams: copies for other replicas, and forgetting. A background task; runs
    /// until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.copy(), self.keep_known(), self.expire_regularly());
    }

    async fn expire_regularly(&self) {
        let mut tick = interval(EXPIRE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.logs().expire(Instant::now());
            self.metrics.streams.log_bytes.set(self.held());
        }
    }

    /// The log of a stream on this replica.
    fn here(&self, id: Uuid) -> Option<Arc<Kept>> {
        let mut logs = self.logs();
        logs.expire(Instant::now());
        logs.by_id.get(&id).map(Arc::clone)
    }

    /// The log ended: from now on it is kept for a while.
    fn ended(&self, kept: &Arc<Kept>) {
        let until = Instant::now() + self.config.get().stream.log_ttl;
        self.logs().ended.push_back((until, kept.id));
        self.copy_later(kept);
    }

    /// Frees `bytes` below `stream.logs_bytes`, by logs that ended, the oldest first. Whether that was
    /// enough.
    fn make_room(&self, logs: &mut Logs, bytes: usize) -> bool {
        let max = self.config.get().stream.logs_bytes.bytes();
        while self.held.load(Ordering::Relaxed) + bytes > max {
            if !logs.forget_early() {
                return false;
            }
        }
        true
    }

    /// Brings all logs together below their bound again: by those that ended, then by what is oldest in
    /// the one that grew.
    fn relieve(&self, grown: &Kept) {
        let own_max = self.config.get().limits.kept_bytes.bytes();
        let beyond = grown.held_by_caller().saturating_sub(own_max);
        if beyond > 0 {
            grown.shorten(beyond);
        }
        let max = self.config.get().stream.logs_bytes.bytes();
        if self.held.load(Ordering::Relaxed) <= max || self.make_room(&mut self.logs(), 0) {
            return;
        }
        grown.shorten(self.held.load(Ordering::Relaxed) - max);
    }

    fn bounds(&self) -> Bounds {
        let stream = &self.config.get().stream;
        Bounds {
            events: match stream.log_events {
                // There are those of calls with a key, whose readers are at their heels.
                0 => EVENTS_WHERE_OFF,
                events => events,
            },
            bytes: stream.log_bytes.bytes(),
        }
    }

    fn held(&self) -> i64 {
        i64::try_from(self.held.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    }

    fn logs(&self) -> MutexGuard<'_, Logs> {
        // Each step leaves them whole, so a panic elsewhere cannot have broken them.
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Logs {
    fn expire(&mut self, now: Instant) {
        while self.ended.front().is_some_and(|(until, _)| *until <= now) {
            self.forget_oldest();
        }
    }

    /// What counts the bytes of a caller's logs.
    fn held_by(&mut self, owner: &str) -> Arc<AtomicUsize> {
        if let Some(held) = self.callers.get(owner).and_then(Weak::upgrade) {
            return held;
        }
        if self.by_id.len() < self.callers.len() {
            self.callers.retain(|_, held| held.strong_count() > 0);
        }
        let held = Arc::<AtomicUsize>::default();
        self.callers.insert(owner.to_owned(), Arc::downgrade(&held));
        held
    }

    /// Forgets the log of a caller that ended first. Whether there was one.
    fn forget_oldest_of(&mut self, owner: &str) -> bool {
        let is_of_owner = |id: &Uuid| {
            self.by_id
                .get(id)
                .is_some_and(|kept| kept.whose.owner == owner)
        };
        let Some(at) = self.ended.iter().position(|(_, id)| is_of_owner(id)) else {
            return false;
        };
        let gone = self
            .ended
            .remove(at)
            .and_then(|(_, id)| self.by_id.remove(&id));
        self.gone(gone.as_ref().map(|kept| kept.id));
        gone.inspect(|kept| kept.release()).is_some()
    }

    /// The same, for want of room.
    fn forget_early(&mut self) -> bool {
        let oldest = self.ended.front().map(|(_, id)| *id);
        self.gone(oldest);
        self.forget_oldest()
    }

    /// Has the copy of a log deleted. Of too many at once it lapses by itself.
    fn gone(&mut self, id: Option<Uuid>) {
        if self.gone.len() < GONE_MAX {
            self.gone.extend(id);
        }
    }

    /// Forgets the log that ended first. Whether there was one.
    fn forget_oldest(&mut self) -> bool {
        let Some((_, id)) = self.ended.pop_front() else {
            return false;
        };
        if let Some(kept) = self.by_id.remove(&id) {
            kept.release();
        }
        true
    }
}
