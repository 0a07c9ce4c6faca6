//! Asks guards about the events of a stream ([`EventGuard`]). Of each block only its data and a known name pass: no guard
//! is asked about comments, ids and unknown fields.
//!
//! If a guard is asked about the last event of a turn only, the newest event is held back until it is known not to be
//! the last one: the agent may end the stream without a word that the task is over.

use std::sync::Arc;

use bytes::Bytes;

use super::Guarded;
use super::document::Document;
use crate::a2a::event::blocks;
use crate::a2a::texts::Block;
use crate::config::GuardPhase;
use crate::rejection::Rejection;

/// The guards of one stream.
pub(in crate::proxy) struct EventGuard {
    guarded: Arc<Guarded>,
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
    pub(in crate::proxy) fn of(guarded: &Arc<Guarded>) -> Option<Self> {
        guarded.has(GuardPhase::Event).then(|| Self {
            guarded: Arc::clone(guarded),
            waiting: Bytes::new(),
            holds: guarded.holds_events(),
            tail: Tail::default(),
        })
    }

    /// As [`EventGuard::of`], for a stream of which the gateway says itself that a turn is over.
    pub(in crate::proxy) fn of_turns(guarded: &Arc<Guarded>) -> Option<Self> {
        let guard = Self::of(guarded)?;
        Some(Self {
            holds: false,
            ..guard
        })
    }

    /// Takes the guards, to ask them; [`EventGuard::put`] puts them back.
    pub(in crate::proxy) fn take(&mut self) -> Guards {
        Guards {
            guarded: Arc::clone(&self.guarded),
            holds: self.holds,
            tail: std::mem::take(&mut self.tail),
        }
    }

    /// Puts the guards back.
    pub(in crate::proxy) fn put(&mut self, guards: Guards) {
        self.tail = guards.tail;
    }

    /// Returns what arrived up to the end of its first event, and keeps the rest: no event waits for the verdict on a later
    /// one.
    pub(in crate::proxy) fn first_event(&mut self, arrived: Bytes) -> Bytes {
        self.waiting = arrived;
        self.next_event().unwrap_or_default()
    }

    /// Returns what is kept, up to the end of its first event.
    pub(in crate::proxy) fn next_event(&mut self) -> Option<Bytes> {
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

/// The guards of one stream, while they are asked.
pub(in crate::proxy) struct Guards {
    guarded: Arc<Guarded>,
    holds: bool,
    tail: Tail,
}

impl Guards {
    /// Passes whole events on, and a rest that the agent left incomplete. `ends`: the agent's stream has ended, and the
    /// event before them was its last one.
    /// Returns the reason that one of them does not pass with those before it.
    pub(in crate::proxy) async fn pass(
        &mut self,
        events: Bytes,
        ends: bool,
    ) -> (Bytes, Option<Rejection>) {
        let mut passed = Vec::new();
        let why = self.pass_into(&events, ends, &mut passed).await.err();
        (passed.into(), why)
    }

    async fn pass_into(
        &mut self,
        events: &Bytes,
        ends: bool,
        passed: &mut Vec<u8>,
    ) -> Result<(), Rejection> {
        if ends {
            self.tail.is_over = true;
            self.release(true, passed).await?;
        }
        for whole in blocks(events) {
            let block = Block::read(whole);
            let Some(data) = &block.data else { continue };
            let data = Bytes::copy_from_slice(data);
            let Some(document) = self.guarded.answer(GuardPhase::Event, &data)? else {
                block.write(&data, passed);
                continue;
            };
            self.tail.is_over |= document.is_last();
            self.release(false, passed).await?;
            if self.holds && !self.tail.is_over && document.says_something() {
                self.tail.held = Some(events.slice_ref(whole));
            } else {
                self.judge(&block, (document, self.tail.is_over), passed)
                    .await?;
            }
        }
        Ok(())
    }

    /// Passes on what is held back.
    async fn release(&mut self, is_last: bool, passed: &mut Vec<u8>) -> Result<(), Rejection> {
        let Some(held) = self.tail.held.take() else {
            return Ok(());
        };
        let block = Block::read(&held);
        let data = Bytes::from(block.data.clone().unwrap_or_default());
        match self.guarded.answer(GuardPhase::Event, &data)? {
            Some(document) => self.judge(&block, (document, is_last), passed).await,
            None => Ok(()),
        }
    }

    /// Asks about an event, and writes it if it passes.
    async fn judge(
        &self,
        block: &Block<'_>,
        (document, is_last): (Document, bool),
        passed: &mut Vec<u8>,
    ) -> Result<(), Rejection> {
        let judged = self.guarded.pass(GuardPhase::Event, (document, is_last));
        let changed = judged.await?;
        let data = changed.as_deref().or(block.data.as_deref());
        block.write(data.unwrap_or_default(), passed);
        Ok(())
    }
}
