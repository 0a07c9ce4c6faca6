//! The log of one stream: its newest events within bounds, and how it ended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use crate::a2a::stamp::StampedBlocks;
use crate::dialect::ReplyForm;
use crate::ids::stream_id;

/// Approximate bytes of a log besides its events.
pub(super) const COST: usize = 512;

/// Approximate bytes of an event besides its payload.
const EVENT_COST: usize = 64;

/// Bytes of comments between two events that are kept at most. Comments beyond it are dropped; they carry no
/// data.
const COMMENTS_MAX: usize = 64 * 1024;

/// Bytes of one read, unless a single event is larger.
const LOOK_BYTES: usize = 64 * 1024;

/// The bounds of one log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// `stream.log_events`
    pub(super) events: usize,
    /// `stream.log_bytes`
    pub(super) bytes: usize,
}

/// The caller that may read a stream, and its request's form of reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamAccess {
    /// `Proof::owner` of the caller.
    pub(super) owner: String,
    /// The agent's workspace.
    pub(super) target: String,
    /// The form in which the gateway reports to its caller why the stream was broken off.
    #[serde(flatten)]
    pub(super) form: ReplyForm,
}

/// The end of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The stream is complete, or ends with the reason why it is not. These bytes follow the last event:
    /// comments, and an event that the agent left unfinished.
    Whole(Bytes),
    /// The stream was broken off, and no reason is known.
    Lost,
}

/// The result of a read after a given event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogRead {
    /// Events that are no longer kept.
    pub(super) missed: u64,
    /// The bytes of the next events.
    pub(super) bytes: Bytes,
    /// The number of the last of them.
    pub(super) up_to: u64,
    /// Set if nothing follows them.
    pub(super) over: Option<StreamEnd>,
}

/// Entries that are not copied to the shared state yet.
pub(super) struct UncopiedEvents {
    pub(super) events: Vec<(u64, Bytes)>,
    /// The number of the last event, copied or dropped.
    pub(super) up_to: u64,
    pub(super) over: Option<StreamEnd>,
    /// Events that are kept.
    pub(super) kept: usize,
}

/// The log of one stream.
pub(super) struct StreamLog {
    pub(super) id: Uuid,
    pub(super) access: StreamAccess,
    /// Notified of each change.
    pub(super) grown: Notify,
    /// Readers on this replica.
    pub(super) readers: AtomicUsize,
    /// True while it is queued to be copied.
    pub(super) queued: AtomicBool,
    /// True if the caller is gone and only resumed readers receive the stream.
    pub(super) lingers: AtomicBool,
    /// True if other replicas have its metadata.
    known: AtomicBool,
    state: Mutex<State>,
    held: ByteCounters,
}

/// Counters of the bytes that logs hold.
#[derive(Clone, Default)]
pub(super) struct ByteCounters {
    /// All logs together.
    pub(super) all: Arc<AtomicUsize>,
    /// The logs of one caller.
    pub(super) own: Arc<AtomicUsize>,
}

impl ByteCounters {
    fn add(&self, bytes: usize) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.own.fetch_add(bytes, Ordering::Relaxed);
    }

    fn sub(&self, bytes: usize) {
        self.all.fetch_sub(bytes, Ordering::Relaxed);
        self.own.fetch_sub(bytes, Ordering::Relaxed);
    }
}

struct State {
    events: VecDeque<(u64, Bytes)>,
    /// Bytes of `events`, with their overhead.
    bytes: usize,
    /// The number of the newest event, kept or not.
    last: u64,
    /// Comments behind the last event.
    between: BytesMut,
    over: Option<StreamEnd>,
    /// The number of the last event that is copied; and whether the end is.
    copied: (u64, bool),
    /// Time of the last known read.
    read_at: Instant,
    /// True if its bytes are counted in `held`.
    counted: bool,
}

impl StreamLog {
    pub(super) fn new(access: StreamAccess, held: ByteCounters) -> Self {
        Self {
            id: stream_id(),
            access,
            grown: Notify::new(),
            readers: AtomicUsize::new(0),
            queued: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
            known: AtomicBool::new(false),
            state: Mutex::new(State {
                events: VecDeque::new(),
                bytes: 0,
                last: 0,
                between: BytesMut::new(),
                over: None,
                copied: (0, false),
                read_at: Instant::now(),
                counted: false,
            }),
            held,
        }
    }

    /// Counts its bytes in `held` from here on.
    pub(super) fn start_counting(&self) {
        self.lock_state().counted = true;
        self.held.add(COST);
    }

    /// Evicts the log. Current readers get a gap.
    pub(super) fn release(&self) {
        let mut state = self.lock_state();
        state.events.clear();
        state.between.clear();
        let freed = std::mem::take(&mut state.bytes);
        if std::mem::take(&mut state.counted) {
            self.held.sub(freed + COST);
        }
        drop(state);
        self.grown.notify_waiters();
    }

    /// Appends events, within the bounds.
    pub(super) fn append_events(&self, stamped: &StampedBlocks, bounds: Bounds) {
        let mut state = self.lock_state();
        if !state.counted {
            return;
        }
        let before = state.bytes;
        let mut from = 0;
        for end in &stamped.ends {
            let event = stamped.bytes.slice(from..*end);
            from = *end;
            state.push(event, bounds);
        }
        let comments = &stamped.bytes[from..];
        if state.between.len() + comments.len() <= COMMENTS_MAX {
            state.between.extend_from_slice(comments);
        }
        self.adjust_counters(before, state.bytes);
        drop(state);
        self.grown.notify_waiters();
    }

    /// Frees about `bytes` of the oldest events.
    pub(super) fn drop_oldest_bytes(&self, bytes: usize) {
        let mut state = self.lock_state();
        let before = state.bytes;
        while before - state.bytes < bytes && state.drop_oldest() {}
        if state.counted {
            self.adjust_counters(before, state.bytes);
        }
    }

    fn adjust_counters(&self, before: usize, now: usize) {
        if before <= now {
            self.held.add(now - before);
        } else {
            self.held.sub(before - now);
        }
    }

    /// Ends the log; the first end counts. The comments behind the last event, and `rest`, follow it; `None`:
    /// the stream was broken off.
    pub(super) fn record_end(&self, rest: Option<&[u8]>) {
        let mut state = self.lock_state();
        if state.over.is_none() {
            let mut behind = std::mem::take(&mut state.between);
            state.over = Some(rest.map_or(StreamEnd::Lost, |rest| {
                behind.extend_from_slice(rest);
                StreamEnd::Whole(behind.freeze())
            }));
        }
        drop(state);
        self.grown.notify_waiters();
    }

    /// Returns the bytes that all logs of its caller hold.
    pub(super) fn caller_bytes(&self) -> usize {
        self.held.own.load(Ordering::Relaxed)
    }

    /// Returns the number of the newest event.
    pub(super) fn last_number(&self) -> u64 {
        self.lock_state().last
    }

    /// Returns the entries after the event of that number, if there are any.
    pub(super) fn read_after(&self, after: u64) -> Option<LogRead> {
        let state = self.lock_state();
        let first = state.events.front().map_or(state.last + 1, |(n, _)| *n);
        let missed = first.saturating_sub(after + 1);
        let skipped = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let mut bytes = BytesMut::new();
        let mut up_to = after.max(first - 1);
        for (n, event) in state.events.iter().skip(skipped) {
            if !bytes.is_empty() && LOOK_BYTES < bytes.len() + event.len() {
                break;
            }
            bytes.extend_from_slice(event);
            up_to = *n;
        }
        let over = state.over.clone().filter(|_| state.last <= up_to);
        let news = missed > 0 || !bytes.is_empty() || over.is_some();
        news.then(|| LogRead {
            missed,
            bytes: bytes.freeze(),
            up_to,
            over,
        })
    }

    /// Returns the entries that are not copied yet, if there are any.
    pub(super) fn uncopied_events(&self) -> Option<UncopiedEvents> {
        let state = self.lock_state();
        let (copied, end_copied) = state.copied;
        let events: Vec<_> = state
            .events
            .iter()
            .filter(|(n, _)| *n > copied)
            .cloned()
            .collect();
        let over = state.over.clone().filter(|_| !end_copied);
        (copied < state.last || over.is_some()).then(|| UncopiedEvents {
            events,
            up_to: state.last,
            over,
            kept: state.events.len(),
        })
    }

    /// Marks them as copied.
    pub(super) fn mark_copied(&self, uncopied: &UncopiedEvents) {
        let mut state = self.lock_state();
        state.copied.0 = uncopied.up_to;
        state.copied.1 |= uncopied.over.is_some();
    }

    /// Returns the number of the last entry that was copied, the end included; `None`: none was.
    pub(super) fn last_copied(&self) -> Option<u64> {
        let (events, end) = self.lock_state().copied;
        let last = events + u64::from(end);
        (last > 0).then_some(last)
    }

    /// Marks the log as not copied, since the store lost its copy.
    pub(super) fn mark_uncopied(&self) {
        self.known.store(false, Ordering::Release);
        self.lock_state().copied = (0, false);
    }

    /// Marks the metadata as written for other replicas.
    pub(super) fn mark_known(&self) {
        self.known.store(true, Ordering::Release);
    }

    /// True if the metadata is written for other replicas.
    pub(super) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    /// True if it may still grow.
    pub(super) fn is_open(&self) -> bool {
        self.lock_state().over.is_none()
    }

    /// True if all entries, the end included, are copied for other replicas.
    pub(super) fn is_copied(&self) -> bool {
        let state = self.lock_state();
        state.copied == (state.last, state.over.is_some())
    }

    /// Records a read.
    pub(super) fn record_read(&self) {
        self.lock_state().read_at = Instant::now();
    }

    /// Returns the time since the last read; zero while there are readers.
    pub(super) fn unread_for(&self) -> Duration {
        if self.readers.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        self.lock_state().read_at.elapsed()
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        // Each step leaves the state consistent, so a panic elsewhere cannot have broken it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, event: Bytes, bounds: Bounds) {
        let event = if self.between.is_empty() {
            event
        } else {
            self.between.extend_from_slice(&event);
            self.between.split().freeze()
        };
        self.last += 1;
        if event.len() > bounds.bytes {
            // The event is dropped. Events before it would be followed by a gap in any case.
            while self.drop_oldest() {}
            return;
        }
        self.bytes += event.len() + EVENT_COST;
        self.events.push_back((self.last, event));
        while bounds.events < self.events.len()
            || bounds.bytes < self.bytes - EVENT_COST * self.events.len()
        {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let oldest = self.events.pop_front();
        if let Some((_, event)) = &oldest {
            self.bytes -= event.len() + EVENT_COST;
        }
        oldest.is_some()
    }
}
