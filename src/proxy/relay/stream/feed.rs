//! The agent's side of a stream. Splits it into events, numbers and stores them for resumption, and ends a cut stream
//! with an event that gives the reason. Holds nothing of the caller's, so it can continue without a caller.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::alarm::Alarm;
use super::{Begun, Pace};
use crate::a2a::event::{Framing, Splitter};
use crate::config::Config;
use crate::delivery::streams::Log;
use crate::dialect::ReplyForm;
use crate::directory::{CallOutcome, Slot};
use crate::ids::{RequestId, stream_id};
use crate::proxy::beside;
use crate::proxy::guard::stream::EventGuard;
use crate::proxy::relay::answer::AnswerReader;
use crate::proxy::relay::failure::{broken_http, silent, timed_out, too_large};
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::relay::verdict::of_cut;
use crate::proxy::relay::{Clocks, Cut};
use crate::rejection::{Delivery, Rejection};
use crate::standing::{CutOff, cut_off};
use crate::tasks::{Binder, Ender, Learner};

/// One stream from its agent.
pub(in crate::proxy) struct Feed {
    pub(super) upstream: AnswerReader,
    clocks: Clocks,
    /// The configuration at the start of the exchange.
    config: Arc<Config>,
    /// The end of the shutdown's grace period.
    cut: Cut,
    /// Ends when the caller loses access.
    cut_off: Option<CutOff>,
    /// True if the agent's framing marks the end of the body.
    framed: bool,
    /// The rewrite of events.
    rewrite: Option<Rewrite>,
    /// The guards that are asked about events, after the rewrite and before the log.
    guard: Option<Box<EventGuard>>,
    /// Searches for the task, until it is found.
    learner: Option<Box<Learner>>,
    /// Binds the task to its instance, until it has ended.
    binder: Option<Box<Binder>>,
    /// Notes the end of the task, until it has ended.
    ender: Option<Box<Ender>>,
    /// The task of the stream, once it is known.
    pub(super) task: Option<String>,
    /// The request id in a last event that the gateway writes.
    request_id: RequestId,
    form: ReplyForm,
    /// The name by which the caller resumes it. The agent does not know it.
    pub(super) name: String,
    /// The stored events. `None` if the stream cannot be resumed.
    pub(super) log: Option<Log>,
    /// The concurrency slot of the call at its target.
    slot: Option<Slot>,
    splitter: Splitter,
    /// Measures the events.
    pace: Pace,
    /// The time of the agent's last bytes.
    heard: Instant,
    /// Ends a wait for the agent.
    alarm: Alarm,
    /// The time of the first final event, if there was one.
    finished: Option<Instant>,
    /// Bytes of complete events so far, as received.
    bytes: u64,
}

/// The end of a wait.
pub(in crate::proxy) enum Arrived {
    Piece(Bytes),
    AgentEnded,
    /// The agent left a stream open after its final event.
    Finished,
    Cut(Rejection),
}

/// Bytes for the caller.
#[derive(Default)]
pub(in crate::proxy) struct Passed {
    pub(in crate::proxy) bytes: Bytes,
    /// The number of the agent's events in `bytes`.
    pub(super) events: u32,
    /// True for the last bytes.
    pub(in crate::proxy) over: bool,
    /// The rejection, if the agent did not end the stream itself.
    pub(super) cut: Option<Rejection>,
}

impl Feed {
    pub(in crate::proxy) fn new(
        (upstream, pace): (AnswerReader, Pace),
        begun: Begun,
        config: Arc<Config>,
        (request_id, form): (RequestId, ReplyForm),
        learner: Option<Box<Learner>>,
        log: Option<Log>,
    ) -> Self {
        let heard = Instant::now();
        let (rewrite, guard) = Rewrite::split(begun.rewrite);
        Self {
            upstream,
            clocks: begun.clocks,
            config,
            cut: begun.cut,
            cut_off: begun.cut_off,
            framed: begun.framed,
            rewrite,
            guard: guard.map(Box::new),
            learner,
            binder: None,
            ender: None,
            task: None,
            request_id,
            form,
            name: log
                .as_ref()
                .map_or_else(|| stream_id().simple().to_string(), Log::name),
            log,
            slot: begun.slot,
            splitter: Splitter::new(),
            pace,
            heard,
            alarm: Alarm::new(begun.clocks.stream.min(heard + begun.clocks.idle)),
            finished: None,
            bytes: 0,
        }
    }

    /// Returns the deadline of the stream.
    pub(super) fn deadline(&self) -> Instant {
        self.clocks.stream
    }

    /// Waits until the caller loses access, or the process is cut.
    pub(super) async fn ended_early(&mut self) -> Rejection {
        tokio::select! {
            why = cut_off(&mut self.cut_off) => why,
            why = self.cut.requested(Delivery::Sent) => why,
        }
    }

    /// Waits for the next event of any kind. Cancel-safe: dropping it loses nothing.
    pub(in crate::proxy) async fn wait(&mut self) -> Arrived {
        // An agent that sends without a pause leaves no poll to the clock below.
        if self.heard >= self.clocks.stream {
            return Arrived::Cut(timed_out("stream"));
        }
        if let Some(piece) = self.guard.as_mut().and_then(|guard| guard.next_event()) {
            return Arrived::Piece(piece);
        }
        let idle = self.heard + self.clocks.idle;
        let grace = self.finished;
        let grace = grace.map(|at| at + self.config.stream.final_grace);
        let wake = grace.map_or(idle, |grace| grace.min(idle));
        let wake = wake.min(self.clocks.stream);
        tokio::select! {
            biased;
            // First: an agent that sends without a pause must not delay the end of the caller's access.
            why = cut_off(&mut self.cut_off) => Arrived::Cut(why),
            read = self.upstream.read_piece() => match read {
                Ok(Some(piece)) => Arrived::Piece(match &mut self.guard {
                    Some(guard) => guard.first_event(piece),
                    None => piece,
                }),
                Ok(None) => Arrived::AgentEnded,
                Err(rejection) => Arrived::Cut(rejection),
            },
            () = self.alarm.ring(wake) => if grace.is_some_and(|at| at <= wake) {
                Arrived::Finished
            } else if self.clocks.stream <= wake {
                Arrived::Cut(timed_out("stream"))
            } else {
                Arrived::Cut(silent(self.clocks.idle))
            },
            why = self.cut.requested(Delivery::Sent) => Arrived::Cut(why),
        }
    }

    /// Processes the end of a wait.
    pub(in crate::proxy) async fn take(&mut self, arrived: Arrived) -> Passed {
        let ends = matches!(arrived, Arrived::AgentEnded | Arrived::Finished);
        if self.guard.is_none() || !ends {
            return self.taken(arrived).await;
        }
        // Boxed: a stream without guards should not hold its state.
        let (held, failed) = Box::pin(self.guarded(Bytes::new(), true)).await;
        let held = match held.is_empty() {
            true => held,
            false => self.numbered(held),
        };
        let last = match failed {
            Some(why) => {
                self.finish(Some(CallOutcome::ANSWERED));
                self.part(why)
            }
            None => self.taken(arrived).await,
        };
        Passed {
            bytes: [held, last.bytes].concat().into(),
            ..last
        }
    }

    async fn taken(&mut self, arrived: Arrived) -> Passed {
        match arrived {
            Arrived::Piece(piece) => {
                self.heard = Instant::now();
                if let Some(slot) = &mut self.slot {
                    slot.answering();
                }
                self.piece(piece).await
            }
            // Without framing, a broken connection looks like one that ends. A partial event reveals it.
            Arrived::AgentEnded if !self.framed && !self.splitter.at_boundary() => {
                let broken = broken_http(None);
                self.finish(of_cut(&broken));
                self.part(broken)
            }
            Arrived::AgentEnded => {
                self.finish(Some(CallOutcome::ANSWERED));
                let whole = self.splitter.ends_whole();
                let rest = std::mem::take(&mut self.splitter).take_rest();
                let (rest, failed) = self.changed(rest).await;
                if let Some(why) = failed {
                    return self.part(why);
                }
                if whole {
                    // An event without a number of the gateway's would look like one of the gateway's own events.
                    let last = self.numbered(rest);
                    return Passed {
                        bytes: last,
                        ..self.over(Bytes::new())
                    };
                }
                self.over(rest)
            }
            Arrived::Finished => {
                self.finish(Some(CallOutcome::ANSWERED));
                self.over(Bytes::new())
            }
            Arrived::Cut(rejection) => {
                self.finish(of_cut(&rejection));
                self.part(rejection)
            }
        }
    }

    /// Notes what the end of the stream tells of its agent.
    fn finish(&mut self, outcome: Option<CallOutcome>) {
        if let (Some(slot), Some(outcome)) = (&mut self.slot, outcome) {
            slot.finish(outcome);
        }
    }

    /// Returns the events that the piece completed.
    async fn piece(&mut self, piece: Bytes) -> Passed {
        let passed = self.splitter.push(piece);
        self.bytes += passed.bytes.len() as u64;
        let limit = self.config.limits.stream_bytes.0;
        let pending = self.splitter.pending_len();
        if self.bytes + pending as u64 > limit {
            return self.part(too_large(limit));
        }
        let rewrite = self.rewrite.as_ref();
        if let Some(Err(too_long)) = rewrite.map(|rewrite| rewrite.check_pending(pending)) {
            return self.part(too_long);
        }
        if passed.events > 0 {
            if passed.final_seen {
                self.finished.get_or_insert(self.heard);
            }
            let ended = self.pace.events(self.heard, &passed.bytes);
            self.look_at(&passed.bytes).await;
            if ended && let Some(ender) = self.ender.take() {
                ender.end();
            }
            if ended && let Some(mut binder) = self.binder.take() {
                Box::pin(async move { binder.end().await }).await;
            }
        }
        let (blocks, failed) = match passed.bytes.is_empty() {
            true => (passed.bytes, None),
            false => self.changed(passed.bytes).await,
        };
        let bytes = match blocks.is_empty() {
            true => blocks,
            false => self.numbered(blocks),
        };
        let events = passed.events;
        let Some(why) = failed else {
            return Passed {
                events,
                bytes,
                ..Passed::default()
            };
        };
        let last = self.part(why);
        Passed {
            events,
            bytes: [bytes, last.bytes].concat().into(),
            ..last
        }
    }

    /// Begins a stream with the agent's answer about its task.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub(super) async fn begin_with(
        &mut self,
        status: u16,
        body: &[u8],
    ) -> Result<Passed, Rejection> {
        let Some(Rewrite::Bridged(back, then)) = &mut self.rewrite else {
            return Ok(Passed::default());
        };
        let (mut event, goes_on) = back.snapshot(status, body)?;
        if let Some(then) = then {
            (event, _) = then.events(event);
        }
        let (event, failed) = self.guarded(event, !goes_on).await;
        if let Some(why) = failed {
            return Err(why);
        }
        let bytes = match event.is_empty() {
            true => event,
            false => self.numbered(event),
        };
        if goes_on {
            return Ok(Passed {
                bytes,
                events: 1,
                ..Passed::default()
            });
        }
        let last = self.over(Bytes::new());
        Ok(Passed {
            bytes,
            events: 1,
            ..last
        })
    }

    /// Ends the stream with an event that gives the reason.
    pub(super) fn part(&mut self, cut: Rejection) -> Passed {
        let last = cut.last_event(&self.form, &self.request_id, &self.name, self.framing());
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

    /// Ends the stream with the rest that the agent left incomplete.
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

    /// True if events wait for guards.
    pub(super) fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Returns events as they go to the caller, and the reason that the stream ends with them.
    async fn changed(&mut self, blocks: Bytes) -> (Bytes, Option<Rejection>) {
        let (blocks, failed) = self.rewritten(blocks).await;
        if self.guard.is_none() {
            return (blocks, failed);
        }
        // Boxed: a stream without guards should not hold its state.
        let (passed, why) = Box::pin(self.guarded(blocks, false)).await;
        (passed, why.or(failed))
    }

    /// Asks guards about events. `ends`: the agent's stream has ended before them.
    async fn guarded(&mut self, blocks: Bytes, ends: bool) -> (Bytes, Option<Rejection>) {
        let guard = self.guard.as_mut();
        let Some(guard) = guard.filter(|_| ends || !blocks.is_empty()) else {
            return (blocks, None);
        };
        let mut guards = guard.take();
        let deadline = self.clocks.stream;
        let passed = tokio::select! {
            biased;
            passed = guards.pass(blocks, ends) => passed,
            why = self.ended_early() => (Bytes::new(), Some(why)),
            () = sleep_until(deadline) => (Bytes::new(), Some(timed_out("stream"))),
        };
        if let Some(guard) = &mut self.guard {
            guard.put(guards);
        }
        passed
    }

    async fn rewritten(&mut self, blocks: Bytes) -> (Bytes, Option<Rejection>) {
        let Some(rewrite) = &mut self.rewrite else {
            return (blocks, None);
        };
        if !beside::is_long(blocks.len()) {
            return rewrite.events(blocks);
        }
        let rewrite = self.rewrite.take();
        let work = beside::run(move || {
            let mut rewrite = rewrite;
            let changed = rewrite.as_mut().map(|rewrite| rewrite.events(blocks));
            (rewrite, changed)
        });
        // Boxed: rarely taken.
        let (rewrite, changed) = Box::pin(work).await;
        self.rewrite = rewrite;
        changed.unwrap_or_default()
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
        // `pace` observes the state in these events and later ones.
        let task = learner.look_at_events(events);
        if task.is_some() || learner.has_more_to_learn(None) {
            // Boxed: rarely taken.
            Box::pin(learner.learn(task.as_deref(), None)).await;
        }
        if task.is_some()
            && let Some(learner) = self.learner.take()
        {
            self.ender = task.as_deref().and_then(|task| learner.ender_of(task));
            self.task = task;
            self.binder = learner.into_binder();
        }
    }

    /// Returns the bytes that keep the stream alive while the agent is silent.
    pub(super) fn keepalive(&self) -> &'static str {
        let numbered = self.log.as_ref().is_some_and(|log| log.last() > 0);
        self.framing().keepalive(numbered)
    }

    fn framing(&self) -> Framing {
        self.splitter.framing()
    }
}
