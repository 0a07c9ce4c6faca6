//! What is kept of one stream: its newest events, within its bounds, and how it ended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use crate::a2a::stamp::Stamped;
use crate::dialect::ReplyForm;
use crate::ids::stream_id;

/// What a log takes besides its events, about.
pub(super) const COST: usize = 512;

/// What an event takes besides its bytes, about.
const EVENT_COST: usize = 64;

/// Comments between two events that are kept at most. What an agent says beyond it was sound, no news.
const COMMENTS_MAX: usize = 64 * 1024;

/// Bytes that one look brings, unless one event has more.
const LOOK_BYTES: usize = 64 * 1024;

/// Of one log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// `stream.log_events`
    pub(super) events: usize,
    /// `stream.log_bytes`
    pub(super) bytes: usize,
}

/// Who may read a stream, and what it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Whose {
    /// `Proof::owner` of the caller.
    pub(super) owner: String,
    /// The agent's workspace.
    pub(super) target: String,
    /// In which form the gateway tells its caller why it was broken off.
    #[serde(flatten)]
    pub(super) form: ReplyForm,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Its caller had all of it, or the reason why not, or would have had. Behind the last event come
    /// these bytes: comments, and what an agent left unfinished.
    Whole(Bytes),
    /// It was broken off in the middle, and nobody could say more.
    Lost,
}

/// What a reader finds behind the event that it has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Events that are not there any more.
    pub(super) missed: u64,
    /// The next ones.
    pub(super) bytes: Bytes,
    /// The number of the last of them.
    pub(super) up_to: u64,
    /// Set, if there is nothing behind them.
    pub(super) over: Option<Over>,
}

/// What is not copied to the shared state yet.
pub(super) struct Uncopied {
    pub(super) events: Vec<(u64, Bytes)>,
    /// The number of the last event, copied or passed over.
    pub(super) up_to: u64,
    pub(super) over: Option<Over>,
    /// Events that are kept.
    pub(super) kept: usize,
}

/// The log of one stream.
pub(super) struct Kept {
    pub(super) id: Uuid,
    pub(super) whose: Whose,
    /// Told of each change.
    pub(super) grown: Notify,
    /// Readers on this replica.
    pub(super) readers: AtomicUsize,
    /// It is queued to be copied.
    pub(super) queued: AtomicBool,
    /// Nobody but readers want it.
    pub(super) lingers: AtomicBool,
    /// Other replicas know whose it is.
    known: AtomicBool,
    state: Mutex<State>,
    held: Held,
}

/// Bytes that logs hold.
#[derive(Clone, Default)]
pub(super) struct Held {
    /// All logs together.
    pub(super) all: Arc<AtomicUsize>,
    /// Those of one caller.
    pub(super) own: Arc<AtomicUsize>,
}

impl Held {
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
    /// Bytes of `events`, with what they take besides.
    bytes: usize,
    /// The number of the newest event, kept or not.
    last: u64,
    /// Comments behind the last event.
    between: BytesMut,
    over: Option<Over>,
    /// Up to which event it is copied; and whether its end is.
    copied: (u64, bool),
    /// When somebody was last seen to read it.
    read_at: Instant,
    /// It counts among what is held.
    counted: bool,
}

impl Kept {
    pub(super) fn new(whose: Whose, held: Held) -> Self {
        Self {
            id: stream_id(),
            whose,
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

    /// From here on it counts among what is held.
    pub(super) fn hold(&self) {
        self.state().counted = true;
        self.held.add(COST);
    }

    /// It is forgotten: who reads it still is told of a gap.
    pub(super) fn release(&self) {
        let mut state = self.state();
        state.events.clear();
        state.between.clear();
        let freed = std::mem::take(&mut state.bytes);
        if std::mem::take(&mut state.counted) {
            self.held.sub(freed + COST);
        }
        drop(state);
        self.grown.notify_waiters();
    }

    /// Keeps what passes.
    pub(super) fn keep(&self, stamped: &Stamped, bounds: Bounds) {
        let mut state = self.state();
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
        self.recount(before, state.bytes);
        drop(state);
        self.grown.notify_waiters();
    }

    /// Frees about `bytes` of the oldest events.
    pub(super) fn shorten(&self, bytes: usize) {
        let mut state = self.state();
        let before = state.bytes;
        while before - state.bytes < bytes && state.drop_oldest() {}
        if state.counted {
            self.recount(before, state.bytes);
        }
    }

    fn recount(&self, before: usize, now: usize) {
        if before <= now {
            self.held.add(now - before);
        } else {
            self.held.sub(before - now);
        }
    }

    /// Nothing comes any more. What was said first counts. Behind the last event stand its comments, and
    /// `rest`; `None`: it was broken off.
    pub(super) fn end(&self, rest: Option<&[u8]>) {
        let mut state = self.state();
        if state.over.is_none() {
            let mut behind = std::mem::take(&mut state.between);
            state.over = Some(rest.map_or(Over::Lost, |rest| {
                behind.extend_from_slice(rest);
                Over::Whole(behind.freeze())
            }));
        }
        drop(state);
        self.grown.notify_waiters();
    }

    /// Bytes that all logs of its caller hold.
    pub(super) fn held_by_caller(&self) -> usize {
        self.held.own.load(Ordering::Relaxed)
    }

    /// The number of the newest event.
    pub(super) fn last(&self) -> u64 {
        self.state().last
    }

    /// What comes after the event of that number, if there is anything.
    pub(super) fn look(&self, after: u64) -> Option<Look> {
        let state = self.state();
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
        news.then(|| Look {
            missed,
            bytes: bytes.freeze(),
            up_to,
            over,
        })
    }

    /// What is not copied yet, if there is anything.
    pub(super) fn uncopied(&self) -> Option<Uncopied> {
        let state = self.state();
        let (copied, end_copied) = state.copied;
        let events: Vec<_> = state
            .events
            .iter()
            .filter(|(n, _)| *n > copied)
            .cloned()
            .collect();
        let over = state.over.clone().filter(|_| !end_copied);
        (copied < state.last || over.is_some()).then(|| Uncopied {
            events,
            up_to: state.last,
            over,
            kept: state.events.len(),
        })
    }

    /// That is copied now.
    pub(super) fn copied(&self, uncopied: &Uncopied) {
        let mut state = self.state();
        state.copied.0 = uncopied.up_to;
        state.copied.1 |= uncopied.over.is_some();
    }

    /// The number of the last entry that was copied, the end included; `None`: none was.
    pub(super) fn last_copied(&self) -> Option<u64> {
        let (events, end) = self.state().copied;
        let last = events + u64::from(end);
        (last > 0).then_some(last)
    }

    /// Other replicas have nothing of it any more.
    pub(super) fn forget_copy(&self) {
        self.known.store(false, Ordering::Release);
        self.state().copied = (0, false);
    }

    /// Other replicas know whose it is.
    pub(super) fn known(&self) {
        self.known.store(true, Ordering::Release);
    }

    /// Whether they do.
    pub(super) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    /// Whether it may still grow.
    pub(super) fn is_open(&self) -> bool {
        self.state().over.is_none()
    }

    /// Whether all that there is, the end included, is with the other replicas.
    pub(super) fn is_copied(&self) -> bool {
        let state = self.state();
        state.copied == (state.last, state.over.is_some())
    }

    /// Somebody reads it, or did until now.
    pub(super) fn read_now(&self) {
        self.state().read_at = Instant::now();
    }

    /// For how long nobody has read it.
    pub(super) fn unread_for(&self) -> Duration {
        if self.readers.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        self.state().read_at.elapsed()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each step leaves it whole, so a panic elsewhere cannot have broken it.
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
            // What comes after it would follow upon a gap in any case.
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
