//! The log of one stream: its newest events within bounds, and how it ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use a2a::stamp::StampedBlocks;
use kernel::dialect::ReplyForm;
use kernel::ids::stream_id;

/// Octets of a log without events: itself, its places in the maps and lists of logs, which grow by doubling, and the
/// first places for its events.
pub(super) const COST: usize = to_allocated(size_of::<StreamLog>() + 2 * size_of::<usize>())
    + 2 * (size_of::<(Uuid, Arc<StreamLog>)>() + size_of::<(Instant, Uuid)>())
    + 4 * size_of::<KeptEvent>();

/// Octets of an event besides its buffer: its place in a list that grows by doubling.
const EVENT_COST: usize = 2 * size_of::<KeptEvent>();

/// Octets of a buffer besides its text: what was reserved and not written, and the count of its users.
const BUFFER_COST: usize = 64;

/// Returns the octets that the allocator takes for `size`: it has four sizes between two powers of two.
const fn to_allocated(size: usize) -> usize {
    let step = size.next_power_of_two() / 8;
    size.next_multiple_of(if step < 16 { 16 } else { step })
}

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
    pub(super) known: AtomicBool,
    state: Mutex<State>,
    held: ByteCounters,
    /// Octets that it takes without events.
    cost: usize,
}

/// An event that is kept.
struct KeptEvent {
    number: u64,
    bytes: Bytes,
    /// Octets that are free again once it is dropped: events that arrived together share a buffer, which goes with the
    /// last of them.
    held: usize,
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
    /// Counts what held `before` bytes and holds `now` ones.
    fn adjust(&self, before: usize, now: usize) {
        for counter in [&self.all, &self.own] {
            // Adding wraps around, as taking away does.
            counter.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}

struct State {
    events: VecDeque<KeptEvent>,
    /// Bytes of the payload of `events`.
    payload: usize,
    /// Bytes that `events` hold.
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
    /// True until it is evicted: its bytes are counted in `held`.
    counted: bool,
}

impl StreamLog {
    pub(super) fn new(access: StreamAccess, held: ByteCounters) -> Self {
        let form = access.form.rpc_id.as_ref().map_or(0, String::capacity);
        let texts = [access.owner.capacity(), access.target.capacity(), form];
        let cost = COST + texts.map(to_allocated).iter().sum::<usize>();
        held.adjust(0, cost);
        Self {
            id: stream_id(),
            cost,
            access,
            grown: Notify::new(),
            readers: AtomicUsize::new(0),
            queued: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
            known: AtomicBool::new(false),
            state: Mutex::new(State {
                events: VecDeque::new(),
                payload: 0,
                bytes: 0,
                last: 0,
                between: BytesMut::new(),
                over: None,
                copied: (0, false),
                read_at: Instant::now(),
                counted: true,
            }),
            held,
        }
    }

    /// Changes its state, and counts the bytes that it takes or frees.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        let before = state.held();
        change(&mut state);
        if state.counted {
            self.held.adjust(before, state.held());
        }
        drop(state);
        self.grown.notify_waiters();
    }

    /// Evicts the log. Current readers get a gap.
    pub(super) fn release(&self) {
        let mut state = self.state.lock();
        let freed = state.held();
        state.events = VecDeque::new();
        state.between = BytesMut::new();
        (state.bytes, state.payload) = (0, 0);
        if std::mem::take(&mut state.counted) {
            self.held.adjust(freed + self.cost, 0);
        }
        drop(state);
        self.grown.notify_waiters();
    }

    /// Appends events, within the bounds.
    pub(super) fn append_events(&self, stamped: &StampedBlocks, bounds: Bounds) {
        self.change(|state| {
            if !state.counted {
                return;
            }
            let mut from = 0;
            for end in &stamped.ends {
                let event = stamped.bytes.slice(from..*end);
                from = *end;
                let is_last = Some(end) == stamped.ends.last();
                state.push(event, if is_last { stamped.bytes.len() } else { 0 }, bounds);
            }
            let comments = &stamped.bytes[from..];
            if state.between.len() + comments.len() <= COMMENTS_MAX {
                state.between.extend_from_slice(comments);
            }
        });
    }

    /// Frees about `bytes` of the oldest events.
    pub(super) fn drop_oldest_bytes(&self, bytes: usize) {
        self.change(|state| {
            let before = state.bytes;
            while before - state.bytes < bytes && state.drop_oldest() {}
        });
    }

    /// Ends the log; the first end counts. The comments behind the last event, and `rest`, follow it; `None`:
    /// the stream was broken off.
    pub(super) fn record_end(&self, rest: Option<&[u8]>) {
        self.change(|state| {
            if state.over.is_none() {
                let mut behind = std::mem::take(&mut state.between);
                state.over = Some(rest.map_or(StreamEnd::Lost, |rest| {
                    behind.extend_from_slice(rest);
                    StreamEnd::Whole(behind.freeze())
                }));
            }
        });
    }

    /// Returns the bytes that all logs of its caller hold.
    pub(super) fn caller_bytes(&self) -> usize {
        self.held.own.load(Ordering::Relaxed)
    }

    /// Returns the number of the newest event.
    pub(super) fn last_number(&self) -> u64 {
        self.state.lock().last
    }

    /// Returns the entries after the event of that number, if there are any.
    pub(super) fn read_after(&self, after: u64) -> Option<LogRead> {
        let state = self.state.lock();
        let first = state
            .events
            .front()
            .map_or(state.last + 1, |event| event.number);
        let missed = first.saturating_sub(after + 1);
        let skipped = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let mut bytes = BytesMut::new();
        let mut up_to = after.max(first - 1);
        for event in state.events.iter().skip(skipped) {
            if !bytes.is_empty() && LOOK_BYTES < bytes.len() + event.bytes.len() {
                break;
            }
            bytes.extend_from_slice(&event.bytes);
            up_to = event.number;
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
        let state = self.state.lock();
        let (copied, end_copied) = state.copied;
        let events = state.events.iter().filter(|event| event.number > copied);
        let events = events
            .map(|event| (event.number, event.bytes.clone()))
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
        let mut state = self.state.lock();
        state.copied.0 = uncopied.up_to;
        state.copied.1 |= uncopied.over.is_some();
    }

    /// Returns the number of the last entry that was copied, the end included; `None`: none was.
    pub(super) fn last_copied(&self) -> Option<u64> {
        let (events, end) = self.state.lock().copied;
        let last = events + u64::from(end);
        (last > 0).then_some(last)
    }

    /// Marks the log as not copied, since the store lost its copy.
    pub(super) fn mark_uncopied(&self) {
        self.known.store(false, Ordering::Release);
        self.state.lock().copied = (0, false);
    }

    /// True if it may still grow.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().over.is_none()
    }

    /// True if all entries, the end included, are copied for other replicas.
    pub(super) fn is_copied(&self) -> bool {
        let state = self.state.lock();
        state.copied == (state.last, state.over.is_some())
    }

    /// Records a read.
    pub(super) fn record_read(&self) {
        self.state.lock().read_at = Instant::now();
    }

    /// Returns the time since the last read; zero while there are readers.
    pub(super) fn unread_for(&self) -> Duration {
        if self.readers.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        self.state.lock().read_at.elapsed()
    }
}

impl State {
    /// Returns the bytes of its buffers.
    fn held(&self) -> usize {
        let rest = match &self.over {
            Some(StreamEnd::Whole(rest)) => rest.len(),
            Some(StreamEnd::Lost) | None => 0,
        };
        self.bytes + self.between.capacity() + rest
    }

    /// Keeps an event. `buffer`: the length of the buffer that goes with it.
    fn push(&mut self, event: Bytes, mut buffer: usize, bounds: Bounds) {
        let event = if self.between.is_empty() {
            event
        } else {
            self.between.extend_from_slice(&event);
            buffer = self.between.capacity();
            std::mem::take(&mut self.between).freeze()
        };
        self.last += 1;
        if event.len() > bounds.bytes {
            // The event is dropped. Events before it would be followed by a gap in any case.
            while self.drop_oldest() {}
            return;
        }
        let buffer = match buffer {
            0 => 0,
            length => to_allocated(length + BUFFER_COST),
        };
        let held = EVENT_COST + buffer;
        self.bytes += held;
        self.payload += event.len();
        self.events.push_back(KeptEvent {
            number: self.last,
            bytes: event,
            held,
        });
        while bounds.events < self.events.len() || bounds.bytes < self.payload {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let oldest = self.events.pop_front();
        if let Some(event) = &oldest {
            self.bytes -= event.held;
            self.payload -= event.bytes.len();
        }
        oldest.is_some()
    }
}
