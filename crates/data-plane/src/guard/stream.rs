//! Asks guards about the events of a stream ([`EventGuard`]). Of each block only its data and a known name pass: no
//! guard is asked about comments, ids and unknown fields.
//!
//! If a guard is asked about the last event of a turn only, the newest event is held back until it is known not to be
//! the last one: the agent may end the stream without a word that the task is over.

use std::sync::Arc;

use bytes::Bytes;

use crate::guard::CallGuards;
use a2a::event::split_blocks;
use a2a::texts::{Block, Document};
use kernel::config::GuardPhase;
use kernel::rejection::Rejection;

/// The guards of one stream.
pub(crate) struct EventGuard {
    guarded: Arc<CallGuards>,
    /// Bytes that the agent has sent after the event that is asked about.
    waiting: Bytes,
    /// True if the newest event is held back.
    holds: bool,
    tail: Tail,
}

/// The end of a stream so far.
#[derive(Default)]
struct Tail {
    /// The newest block, if it is held back.
    held: Option<Bytes>,
    /// True once an event was the last one of its turn. The agent may send more.
    is_over: bool,
}

impl EventGuard {
    /// Returns the guards of a call's stream; `None` if no guard is asked about events.
    pub(crate) fn for_call(guarded: &Arc<CallGuards>) -> Option<Self> {
        guarded.has_phase(GuardPhase::Event).then(|| Self {
            guarded: Arc::clone(guarded),
            waiting: Bytes::new(),
            holds: guarded.delays_events(),
            tail: Tail::default(),
        })
    }

    /// As [`EventGuard::for_call`], for a stream of which the gateway says itself that a turn is over.
    pub(crate) fn for_turns(guarded: &Arc<CallGuards>) -> Option<Self> {
        let guard = Self::for_call(guarded)?;
        Some(Self {
            holds: false,
            ..guard
        })
    }

    /// Takes the check of the next events; [`EventGuard::put`] puts it back.
    pub(crate) fn take(&mut self) -> EventCheck {
        EventCheck {
            guarded: Arc::clone(&self.guarded),
            holds: self.holds,
            tail: std::mem::take(&mut self.tail),
        }
    }

    /// Puts the check back.
    pub(crate) fn put(&mut self, check: EventCheck) {
        self.tail = check.tail;
    }

    /// Returns what arrived up to the end of its first event, and keeps the rest: no event waits for the verdict on a
    /// later one.
    pub(crate) fn first_event(&mut self, arrived: Bytes) -> Bytes {
        self.waiting = arrived;
        self.next_event().unwrap_or_default()
    }

    /// Returns what is kept, up to the end of its first event.
    pub(crate) fn next_event(&mut self) -> Option<Bytes> {
        if self.waiting.is_empty() {
            return None;
        }
        let ends = |line: &[u8]| line == b"\n\n" || line == b"\r\r";
        let bytes = &self.waiting;
        let two = bytes.windows(2).position(ends).map(|at| at + 2);
        let three = bytes.windows(3).position(|line| line == b"\n\r\n");
        let three = three.map(|at| at + 3);
        let end = two.into_iter().chain(three).min().unwrap_or(bytes.len());
        Some(self.waiting.split_to(end))
    }
}

/// A check of events in progress: the guards of one stream, while they are asked.
pub(crate) struct EventCheck {
    guarded: Arc<CallGuards>,
    holds: bool,
    tail: Tail,
}

impl EventCheck {
    /// Passes whole events on, and a rest that the agent left incomplete. `ends`: the agent's stream has ended, and the
    /// event before them was its last one.
    /// Returns the reason that one of them does not pass with those before it.
    pub(crate) async fn check_events(
        &mut self,
        events: Bytes,
        ends: bool,
    ) -> (Bytes, Option<Rejection>) {
        let mut passed = Vec::new();
        let why = self.check_into(&events, ends, &mut passed).await.err();
        (passed.into(), why)
    }

    async fn check_into(
        &mut self,
        events: &Bytes,
        ends: bool,
        passed: &mut Vec<u8>,
    ) -> Result<(), Rejection> {
        if ends {
            self.tail.is_over = true;
            self.release_held(true, passed).await?;
        }
        for whole in split_blocks(events) {
            let block = Block::parse(whole);
            let Some(data) = &block.data else { continue };
            let data = Bytes::copy_from_slice(data);
            let Some(document) = self.guarded.read_answer(GuardPhase::Event, &data)? else {
                block.write(&data, passed);
                continue;
            };
            self.tail.is_over |= document.is_last();
            self.release_held(false, passed).await?;
            if self.holds && !self.tail.is_over && document.has_content() {
                self.tail.held = Some(events.slice_ref(whole));
            } else {
                self.judge_event(&block, (document, self.tail.is_over), passed)
                    .await?;
            }
        }
        Ok(())
    }

    /// Passes on what is held back.
    async fn release_held(&mut self, is_last: bool, passed: &mut Vec<u8>) -> Result<(), Rejection> {
        let Some(held) = self.tail.held.take() else {
            return Ok(());
        };
        let block = Block::parse(&held);
        let data = Bytes::from(block.data.clone().unwrap_or_default());
        match self.guarded.read_answer(GuardPhase::Event, &data)? {
            Some(document) => self.judge_event(&block, (document, is_last), passed).await,
            None => Ok(()),
        }
    }

    /// Asks about an event, and writes it if it passes.
    async fn judge_event(
        &self,
        block: &Block<'_>,
        (document, is_last): (Document, bool),
        passed: &mut Vec<u8>,
    ) -> Result<(), Rejection> {
        let asked = (document, is_last);
        let changed = self.guarded.run_phase(GuardPhase::Event, asked).await?;
        let data = changed.as_deref().or(block.data.as_deref());
        block.write(data.unwrap_or_default(), passed);
        Ok(())
    }
}
