//! Asks guards about the events of a stream ([`EventGuard`]). Comments of the agent are dropped: they are no events, and
//! no guard is asked about them.

use std::sync::Arc;

use bytes::Bytes;

use super::Guarded;
use super::document::{Document, Form};
use crate::a2a::event::blocks;
use crate::a2a::texts::Block;
use crate::config::GuardPhase;
use crate::rejection::Rejection;

/// The guards of one stream.
pub(in crate::proxy) struct EventGuard {
    guarded: Arc<Guarded>,
    /// Bytes that the agent has sent after the event that is asked about.
    waiting: Bytes,
}

impl EventGuard {
    /// Returns the guards of a call's stream; `None` if no guard is asked about events.
    pub(in crate::proxy) fn of(guarded: &Arc<Guarded>) -> Option<Self> {
        guarded.has(GuardPhase::Event).then(|| Self {
            guarded: Arc::clone(guarded),
            waiting: Bytes::new(),
        })
    }

    /// Returns the guards.
    pub(in crate::proxy) fn guards(&self) -> Guards {
        Guards(Arc::clone(&self.guarded))
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
pub(in crate::proxy) struct Guards(Arc<Guarded>);

impl Guards {
    /// Passes whole events on, and a rest that the agent left incomplete. Returns the reason that one of them does not
    /// pass with those before it.
    pub(in crate::proxy) async fn pass(&self, events: Bytes) -> (Bytes, Option<Rejection>) {
        let mut passed = Vec::new();
        for whole in blocks(&events) {
            let block = Block::read(whole);
            let Some(data) = &block.data else {
                block.write(None, &mut passed);
                continue;
            };
            let changed = match self.judge(data).await {
                Ok(changed) => changed,
                Err(why) => return (passed.into(), Some(why)),
            };
            match changed {
                Some(changed) => block.write(Some(&changed), &mut passed),
                None if block.has_comment => block.write(Some(data), &mut passed),
                None => passed.extend_from_slice(whole),
            }
        }
        (passed.into(), None)
    }

    async fn judge(&self, data: &[u8]) -> Result<Option<Bytes>, Rejection> {
        let is_rpc = self.0.is_rpc;
        let data = Bytes::copy_from_slice(data);
        match Document::read(data, Form::Answer { is_rpc }) {
            Some(document) => self.0.pass(GuardPhase::Event, document).await,
            None => Ok(None),
        }
    }
}
