//! The agent's side of a stream, whoever reads it: cut into events, numbered and kept for those who come
//! back, and ended in words when it is cut. Nothing of it is the caller's, so it can go on alone.

use std::sync::Arc;

use bytes::Bytes;
use pingora::protocols::http::v1::client::HttpSession;
use tokio::time::{Instant, sleep_until};

use crate::a2a::event::{self, Framing, Splitter};
use crate::config::Config;
use crate::delivery::streams::Log;
use crate::directory::Slot;
use crate::drain::Cut;
use crate::ids::RequestId;
use crate::proxy::ended::{Clocks, broken_http, shutting_down, silent, timed_out, too_large};
use crate::proxy::rewrite::Rewrite;
use crate::rejection::Rejection;
use crate::tasks::Learner;

/// One stream from its agent.
pub(super) struct Feed {
    pub(super) upstream: HttpSession,
    pub(super) clocks: Clocks,
    /// As it was when the exchange began.
    pub(super) config: Arc<Config>,
    /// Says when a drain is over.
    pub(super) cut: Cut,
    /// Whether the agent's framing says where the body ends.
    pub(super) framed: bool,
    /// How events are changed on their way.
    pub(super) rewrite: Option<Rewrite>,
    /// Looks for the task, until it is found.
    pub(super) learner: Option<Box<Learner>>,
    /// For the last event, if it is ours.
    pub(super) request_id: RequestId,
    pub(super) rpc_id: Option<String>,
    /// What is kept for those who come back. `None`: nobody can.
    pub(super) log: Option<Log>,
    /// The call's place at its target.
    pub(super) _slot: Option<Slot>,
    pub(super) progress: Progress,
}

/// How far it has come.
pub(super) struct Progress {
    splitter: Splitter,
    /// When the agent was last heard.
    heard: Instant,
    /// When the final event was passed on, if it was.
    finished: Option<Instant>,
    /// Bytes of whole events so far, as they came.
    bytes: u64,
}

impl Progress {
    pub(super) fn none() -> Self {
        Self {
            splitter: Splitter::new(),
            heard: Instant::now(),
            finished: None,
            bytes: 0,
        }
    }
}

/// What a wait ended with.
pub(super) enum Arrived {
    Piece(Bytes),
    AgentEnded,
    /// It left a stream open that was final.
    Finished,
    Cut(Rejection),
}

/// What goes to the caller.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) bytes: Bytes,
    /// Events of the agent in there.
    pub(super) events: u32,
    /// It is the last.
    pub(super) over: bool,
    /// Why, if the agent did not end it itself.
    pub(super) cut: Option<Rejection>,
}

impl Feed {
    /// Waits for the next thing to happen. May be dropped and called again without losing any.
    pub(super) async fn wait(&mut self) -> Arrived {
        let progress = &self.progress;
        let idle = progress.heard + self.clocks.idle;
        let grace = progress.finished;
        let grace = grace.map(|at| at + self.config.stream.final_grace);
        let wake = grace.map_or(idle, |grace| grace.min(idle));
        let wake = wake.min(self.clocks.stream);
        tokio::select! {
            biased;
            read = self.upstream.read_body_bytes() => match read {
                Ok(Some(piece)) => Arrived::Piece(piece),
                Ok(None) => Arrived::AgentEnded,
                Err(error) => Arrived::Cut(broken_http(Some(error))),
            },
            () = sleep_until(wake) => if grace.is_some_and(|at| at <= wake) {
                Arrived::Finished
            } else if self.clocks.stream <= wake {
                Arrived::Cut(timed_out("stream"))
            } else {
                Arrived::Cut(silent(self.clocks.idle))
            },
            () = self.cut.requested() => Arrived::Cut(shutting_down("true")),
        }
    }

    /// What becomes of it.
    pub(super) async fn take(&mut self, arrived: Arrived) -> Passed {
        match arrived {
            Arrived::Piece(piece) => {
                self.progress.heard = Instant::now();
                self.piece(piece).await
            }
            // Without framing a connection that breaks looks like one that ends: half an event tells the
            // two apart.
            Arrived::AgentEnded if !self.framed && !self.progress.splitter.at_boundary() => {
                self.part(broken_http(None))
            }
            Arrived::AgentEnded => {
                let rest = std::mem::take(&mut self.progress.splitter).take_rest();
                let rest = self.changed(rest);
                self.over(rest)
            }
            Arrived::Finished => self.over(Bytes::new()),
            Arrived::Cut(rejection) => self.part(rejection),
        }
    }

    /// The events that the piece completed.
    async fn piece(&mut self, piece: Bytes) -> Passed {
        let progress = &mut self.progress;
        let passed = progress.splitter.push(piece);
        progress.bytes += passed.bytes.len() as u64;
        let limit = self.config.limits.stream_bytes.0;
        if progress.bytes + progress.splitter.pending_len() as u64 > limit {
            return self.part(too_large(limit));
        }
        if passed.events > 0 {
            progress.finished = passed.last_was_final.then(Instant::now);
            self.look_at(&passed.bytes).await;
        }
        Passed {
            events: passed.events,
            bytes: if passed.bytes.is_empty() {
                passed.bytes
            } else {
                let blocks = self.changed(passed.bytes);
                self.numbered(blocks)
            },
            ..Passed::default()
        }
    }

    /// Ends it with an event that says why.
    pub(super) fn part(&mut self, cut: Rejection) -> Passed {
        let body = cut.rpc_body(&self.request_id, self.rpc_id.as_deref());
        let last = event::final_event(&body, self.framing());
        let bytes = self.numbered(last);
        if let Some(log) = self.log.take() {
            log.end(&[]);
        }
        Passed {
            bytes,
            events: 0,
            over: true,
            cut: Some(cut),
        }
    }

    /// Ends it with what the agent left unfinished.
    fn over(&mut self, rest: Bytes) -> Passed {
        if let Some(log) = self.log.take() {
            log.end(&rest);
        }
        Passed {
            bytes: rest,
            over: true,
            ..Passed::default()
        }
    }

    fn changed(&self, blocks: Bytes) -> Bytes {
        match &self.rewrite {
            Some(rewrite) => rewrite.events(blocks),
            None => blocks,
        }
    }

    fn numbered(&mut self, blocks: Bytes) -> Bytes {
        match &mut self.log {
            Some(log) => log.append(&blocks),
            None => blocks,
        }
    }

    async fn look_at(&mut self, events: &[u8]) {
        let Some(learner) = &mut self.learner else {
            return;
        };
        if let Some(task) = learner.look_at_events(events)
            && let Some(learner) = self.learner.take()
        {
            // Boxed: once in a stream, and it would widen every one's future.
            Box::pin(learner.learn(task)).await;
        }
    }

    pub(super) fn framing(&self) -> Framing {
        self.progress.splitter.framing()
    }
}
