//! Logs of streams, for callers that lost the connection (`docs/reference/a2a.md`, "Resuming a stream"): the newest
//! events of each stream, numbered, in memory and bounded. A caller that comes back reads on from its last
//! event.
//!
//! The path of an event never waits: [`LogWriter::append`] numbers and keeps it. With several replicas a background
//! task copies logs to the shared state (`copy.rs`), where other replicas read them. Owns `gw:stream:{id}` (the
//! events), `gw:stream-meta:{id}` (the caller), `gw:stream-reader:{id}` (a reader on another replica) and
//! `gw:replica:{id}` (the writer's heartbeat).
//!
//! Invariants: only its caller can read a stream; missing events are reported as a gap.

mod copy;
mod reader;
mod stream_log;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

pub use self::reader::Reader;

use self::copy::Copies;
use self::stream_log::{Bounds, ByteCounters, StreamAccess, StreamLog};
use crate::mailbox::Mailbox;
use a2a::stamp::Stamper;
use kernel::config::Live;
use kernel::deadline::ticks;
use kernel::dialect::ReplyForm;
use kernel::ids::WorkspaceIncarnation;
use kernel::metrics::{InProgress, Metrics};
use kernel::shares::{Account, Bound, Share, Shares};

/// Interval between checks for logs beyond their retention.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);

/// Logs with copies that wait to be deleted, at most.
const GONE_MAX: usize = 10_000;

/// Events kept of a stream that is read only from its log, where logs are off.
const EVENTS_WHERE_OFF: usize = 64;

/// The logs of all streams on this replica.
pub struct Streams {
    config: Live,
    metrics: Arc<Metrics>,
    logs: Mutex<Logs>,
    /// Bytes that all logs hold.
    held: Arc<AtomicUsize>,
    /// Copies for other replicas; `None`: there are none.
    copies: Option<Copies>,
    /// Places of readers of resumed streams.
    readers: Arc<Shares>,
    lingering: Arc<Shares>,
}

#[derive(Default)]
struct Logs {
    by_id: HashMap<Uuid, Arc<StreamLog>>,
    /// Logs that ended, and the end of their retention; approximately in that order.
    ended: VecDeque<(Instant, Uuid)>,
    /// Bytes that the logs of each caller hold, as long as there is one.
    callers: HashMap<String, Weak<AtomicUsize>>,
    /// Logs that were evicted before the end of their retention, for want of room: their copies are deleted.
    gone: Vec<Uuid>,
}

impl Streams {
    /// Creates it; does not touch the stores.
    pub fn new(mailbox: &Mailbox) -> Arc<Self> {
        let shared = mailbox.shared.clone();
        Arc::new(Self {
            logs: Mutex::default(),
            held: Arc::default(),
            copies: (!shared.is_embedded()).then(|| Copies::new(shared)),
            readers: Arc::default(),
            lingering: Arc::default(),
            config: mailbox.config.clone(),
            metrics: Arc::clone(&mailbox.metrics),
        })
    }

    /// Begins the log of a stream that `target` sends to `owner` (`Proof::owner`), in response to a request
    /// with this form of reply. `None`: the stream cannot be resumed, since logs are off or there is no room.
    pub fn begin_log(
        self: &Arc<Self>,
        owner: String,
        target: &WorkspaceIncarnation,
        form: ReplyForm,
    ) -> Option<LogWriter> {
        if self.config.get().stream.log_events == 0 {
            return None;
        }
        let mut logs = self.logs.lock();
        logs.drop_expired(Instant::now());
        if !self.make_room(&mut logs, stream_log::COST) {
            drop(logs);
            self.metrics.streams.unresumable.inc();
            return None;
        }
        drop(logs);
        Some(self.begin_needed(owner, target, form))
    }

    /// As [`Streams::begin_log`], for a stream that is read only from its log: always succeeds.
    pub fn begin_needed(
        self: &Arc<Self>,
        owner: String,
        target: &WorkspaceIncarnation,
        form: ReplyForm,
    ) -> LogWriter {
        let access = StreamAccess {
            owner,
            target: target.to_string(),
            form,
        };
        let mut logs = self.logs.lock();
        let held = ByteCounters {
            all: Arc::clone(&self.held),
            own: logs.held_by(&access.owner),
        };
        let log_bytes = self.log_bounds().bytes;
        let max = self.own_max(held.own.load(Ordering::Relaxed));
        while held.own.load(Ordering::Relaxed).saturating_add(log_bytes) > max
            && logs.forget_oldest_of(&access.owner)
        {}
        let kept = Arc::new(StreamLog::new(access, held));
        logs.by_id.insert(kept.id, Arc::clone(&kept));
        drop(logs);
        self.metrics.streams.log_bytes.set(self.held_bytes());
        LogWriter::new(Arc::clone(self), kept)
    }

    /// Copies logs for other replicas and drops expired logs. A background task; runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.copy_queued(),
            self.renew_regularly(),
            self.expire_regularly()
        );
    }

    async fn expire_regularly(&self) {
        let mut tick = ticks(EXPIRE_EVERY);
        loop {
            tick.tick().await;
            self.logs.lock().drop_expired(Instant::now());
            self.metrics.streams.log_bytes.set(self.held_bytes());
        }
    }

    /// Returns the logs that are so.
    fn logs_where(&self, are: impl Fn(&StreamLog) -> bool) -> Vec<Arc<StreamLog>> {
        let logs = self.logs.lock();
        let chosen = logs.by_id.values().filter(|kept| are(kept));
        chosen.map(Arc::clone).collect()
    }

    /// Returns the log of a stream on this replica.
    fn find_local(&self, id: Uuid) -> Option<Arc<StreamLog>> {
        let mut logs = self.logs.lock();
        logs.drop_expired(Instant::now());
        logs.by_id.get(&id).map(Arc::clone)
    }

    /// Starts the retention of a log that ended.
    fn start_retention(&self, kept: &Arc<StreamLog>) {
        let until = Instant::now() + self.config.get().stream.log_ttl;
        self.logs.lock().ended.push_back((until, kept.id));
        self.copy_later(kept);
    }

    /// Frees `bytes` below `stream.logs_bytes` by evicting logs that ended, the oldest first. True if that
    /// was enough.
    fn make_room(&self, logs: &mut Logs, bytes: usize) -> bool {
        let max = self.config.get().stream.logs_bytes.bytes();
        while self.held.load(Ordering::Relaxed) + bytes > max {
            if !logs.forget_early(0) {
                return false;
            }
        }
        true
    }

    /// Brings all logs together below their bound again: evicts logs that ended, then the oldest events of
    /// the one that grew.
    fn enforce_bounds(&self, grown: &StreamLog) {
        let own = grown.caller_bytes();
        let beyond = own.saturating_sub(self.own_max(own));
        if beyond > 0 {
            grown.drop_oldest_bytes(beyond);
        }
        let max = self.config.get().stream.logs_bytes.bytes();
        if self.held.load(Ordering::Relaxed) <= max || self.make_room(&mut self.logs.lock(), 0) {
            return;
        }
        grown.drop_oldest_bytes(self.held.load(Ordering::Relaxed) - max);
    }

    /// Returns the most bytes that the logs of a caller may hold, which hold `own` now.
    fn own_max(&self, own: usize) -> usize {
        let config = self.config.get();
        let (all, least) = (config.stream.logs_bytes, config.stream.log_bytes);
        let others = self.held.load(Ordering::Relaxed).saturating_sub(own);
        let share = Bound::with_least(all.bytes(), least.bytes()).max_for(others);
        share.min(config.limits.kept_bytes.bytes())
    }

    fn log_bounds(&self) -> Bounds {
        let stream = &self.config.get().stream;
        Bounds {
            events: match stream.log_events {
                // Only logs of calls with an idempotency key exist, and their readers follow closely.
                0 => EVENTS_WHERE_OFF,
                events => events,
            },
            bytes: stream.log_bytes.bytes(),
        }
    }

    fn held_bytes(&self) -> i64 {
        i64::try_from(self.held.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    }
}

impl Logs {
    fn drop_expired(&mut self, now: Instant) {
        while self.ended.front().is_some_and(|(until, _)| *until <= now) {
            self.evict(0);
        }
    }

    /// Returns the counter of the bytes that a caller's logs hold.
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

    /// Evicts the log of a caller that ended first, for want of room. True if there was one.
    fn forget_oldest_of(&mut self, owner: &str) -> bool {
        let is_of_owner = |(_, id): &(Instant, Uuid)| {
            let log = self.by_id.get(id);
            log.is_some_and(|kept| kept.access.owner == owner)
        };
        let at = self.ended.iter().position(is_of_owner);
        at.is_some_and(|at| self.forget_early(at))
    }

    /// Evicts a log that ended, for want of room. True if there is one. Its copy is deleted; beyond `GONE_MAX` it
    /// lapses by its time to live.
    fn forget_early(&mut self, at: usize) -> bool {
        let gone = self.evict(at);
        if self.gone.len() < GONE_MAX {
            self.gone.extend(gone);
        }
        gone.is_some()
    }

    /// Drops a log that ended.
    fn evict(&mut self, at: usize) -> Option<Uuid> {
        let (_, id) = self.ended.remove(at)?;
        if let Some(kept) = self.by_id.remove(&id) {
            kept.release();
        }
        Some(id)
    }
}

// The writing side of one stream, also after its caller has disconnected.

/// Numbers and keeps the events of one stream. A log that is dropped before [`LogWriter::end`] was broken off.
pub struct LogWriter {
    streams: Arc<Streams>,
    kept: Arc<StreamLog>,
    stamper: Stamper,
}

impl LogWriter {
    fn new(streams: Arc<Streams>, kept: Arc<StreamLog>) -> Self {
        let stamper = Stamper::new(kept.id.simple().to_string());
        Self {
            streams,
            kept,
            stamper,
        }
    }

    /// Keeps whole blocks, and returns them numbered, as they are sent to the caller. Behind a final event comments are
    /// dropped: they have no blank line, and at the end of a stream readers take them for an event that was cut off.
    pub fn append(&mut self, blocks: &[u8], is_final: bool) -> Bytes {
        let mut stamped = self.stamper.stamp(blocks);
        if is_final {
            let events = stamped.ends.last().copied().unwrap_or_default();
            stamped.bytes.truncate(events);
        }
        self.kept.append_events(&stamped, self.streams.log_bounds());
        self.streams.enforce_bounds(&self.kept);
        self.streams.copy_later(&self.kept);
        stamped.bytes
    }

    /// Returns the name of the stream.
    pub fn name(&self) -> String {
        self.kept.id.simple().to_string()
    }

    /// Returns the number of the last event; 0 before the first.
    pub fn last(&self) -> u64 {
        self.stamper.last_number()
    }

    /// Ends the stream; `rest` are the bytes that the agent sent behind the last event.
    pub fn end(self, rest: &[u8]) {
        self.kept.record_end(Some(rest));
    }

    /// Returns the time since the last read, on this or another replica.
    pub fn unread_for(&self) -> Duration {
        self.kept.unread_for()
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        // No effect after `end`.
        self.kept.record_end(None);
        self.streams.start_retention(&self.kept);
    }
}

/// A stream that goes on without its caller. Dropping it frees its place.
pub struct LingeringStream {
    streams: Arc<Streams>,
    _place: (Share, InProgress),
}

impl LogWriter {
    /// Lets the stream go on for readers that resume it. `None`: `stream.lingering` streams do so already, its caller
    /// has half of what others leave of them, or `stream.linger` is 0.
    pub fn linger(&self) -> Option<LingeringStream> {
        let (bound, linger) = {
            let stream = &self.streams.config.get().stream;
            (Bound::with_places(stream.lingering), stream.linger)
        };
        if linger.is_zero() {
            return None;
        }
        let metrics = &self.streams.metrics.streams;
        let account = Account::of_owner(&self.kept.access.owner);
        let Ok(share) = self.streams.lingering.take(account, 1, bound) else {
            metrics.lingered.with_label_values(&["full"]).inc();
            return None;
        };
        self.kept.record_read();
        self.kept.lingers.store(true, Ordering::Release);
        Some(LingeringStream {
            streams: Arc::clone(&self.streams),
            _place: (share, InProgress::begin(&metrics.lingering)),
        })
    }
}

impl LingeringStream {
    /// Counts how it ended, by a label of a closed set: `ended`, `unread`, `drained`.
    pub fn record_end(&self, how: &'static str) {
        self.streams
            .metrics
            .streams
            .lingered
            .with_label_values(&[how])
            .inc();
    }
}
