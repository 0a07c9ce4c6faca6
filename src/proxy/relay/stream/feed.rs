//! The agent's side of a stream. Splits it into events, numbers and stores them for resumption, and ends a cut stream
//! with an event that gives the reason. Holds nothing of the caller's, so it can continue without a caller.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::alarm::Alarm;
use super::{EventPace, StreamSetup};
use crate::a2a::event::{Framing, Splitter};
use crate::access_watch::{CutOff, cut_off};
use crate::config::Config;
use crate::delivery::streams::LogWriter;
use crate::dialect::ReplyForm;
use crate::directory::{CallOutcome, Slot};
use crate::ids::{RequestId, stream_id};
use crate::proxy::guard::stream::EventGuard;
use crate::proxy::offload;
use crate::proxy::relay::answer::AnswerReader;
use crate::proxy::relay::failure::{agent_silent, broken_http, timed_out, too_large};
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::relay::verdict::outcome_of_cut;
use crate::proxy::relay::{CancelWatch, Clocks};
use crate::rejection::{Delivery, Rejection};
use crate::tasks::{Binder, EndRecorder, Learner};

/// One stream from its agent.
pub(in crate::proxy) struct AgentStream {
    pub(super) upstream: AnswerReader,
    clocks: Clocks,
    /// The configuration at the start of the exchange.
    config: Arc<Config>,
    /// The end of the shutdown's grace period.
    cut: CancelWatch,
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
    ender: Option<Box<EndRecorder>>,
    /// The task of the stream, once it is known.
    pub(super) task: Option<String>,
    /// The request id in a last event that the gateway writes.
    request_id: RequestId,
    form: ReplyForm,
    /// The name by which the caller resumes it. The agent does not know it.
    pub(super) name: String,
    /// The stored events. `None` if the stream cannot be resumed.
    pub(super) log: Option<LogWriter>,
    /// The concurrency slot of the call at its target.
    slot: Option<Slot>,
    splitter: Splitter,
    /// Measures the events.
    pace: EventPace,
    /// The time of the agent's last bytes.
    heard: Instant,
    /// Ends a wait for the agent.
    alarm: Alarm,
    /// The time of the first final event, if there was one.
    finished: Option<Instant>,
    /// Bytes of complete events so far, as received.
    bytes: u64,
}

/// What a wait for the agent ended with.
pub(in crate::proxy) enum StreamInput {
    Piece(Bytes),
    AgentEnded,
    /// The agent left a stream open after its final event.
    Finished,
    Cut(Rejection),
}

/// Bytes for the caller.
#[derive(Default)]
pub(in crate::proxy) struct StreamChunk {
    pub(in crate::proxy) bytes: Bytes,
    /// The number of the agent's events in `bytes`.
    pub(super) events: u32,
    /// True for the last bytes.
    pub(in crate::proxy) over: bool,
    /// The rejection, if the agent did not end the stream itself.
    pub(super) cut: Option<Rejection>,
}

impl AgentStream {
    pub(in crate::proxy) fn new(
        (upstream, pace): (AnswerReader, EventPace),
        begun: StreamSetup,
        config: Arc<Config>,
        (request_id, form): (RequestId, ReplyForm),
        learner: Option<Box<Learner>>,
        log: Option<LogWriter>,
    ) -> Self {
        let heard = Instant::now();
        let (rewrite, guard) = Rewrite::split_guards(begun.rewrite);
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
                .map_or_else(|| stream_id().simple().to_string(), LogWriter::name),
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
            why = self.cut.cancelled(Delivery::Sent) => why,
        }
    }

    /// Waits for the next event of any kind. Cancel-safe: dropping it loses nothing.
    pub(in crate::proxy) async fn wait(&mut self) -> StreamInput {
        // An agent that sends without a pause leaves no poll to the clock below.
        if self.heard >= self.clocks.stream {
            return StreamInput::Cut(timed_out("stream"));
        }
        if let Some(piece) = self.guard.as_mut().and_then(|guard| guard.next_event()) {
            return StreamInput::Piece(piece);
        }
        let idle = self.heard + self.clocks.idle;
        let grace = self.finished;
        let grace = grace.map(|at| at + self.config.stream.final_grace);
        let wake = grace.map_or(idle, |grace| grace.min(idle));
        let wake = wake.min(self.clocks.stream);
        tokio::select! {
            biased;
            // First: an agent that sends without a pause must not delay the end of the caller's access.
            why = cut_off(&mut self.cut_off) => StreamInput::Cut(why),
            read = self.upstream.read_piece() => match read {
                Ok(Some(piece)) => StreamInput::Piece(match &mut self.guard {
                    Some(guard) => guard.first_event(piece),
                    None => piece,
                }),
                Ok(None) => StreamInput::AgentEnded,
                Err(rejection) => StreamInput::Cut(rejection),
            },
            () = self.alarm.wait_until(wake) => if grace.is_some_and(|at| at <= wake) {
                StreamInput::Finished
            } else if self.clocks.stream <= wake {
                StreamInput::Cut(timed_out("stream"))
            } else {
                StreamInput::Cut(agent_silent(self.clocks.idle))
            },
            why = self.cut.cancelled(Delivery::Sent) => StreamInput::Cut(why),
        }
    }

    /// Processes what a wait ended with.
    pub(in crate::proxy) async fn process(&mut self, arrived: StreamInput) -> StreamChunk {
        let ends = matches!(arrived, StreamInput::AgentEnded | StreamInput::Finished);
        if self.guard.is_none() || !ends {
            return self.process_unguarded(arrived).await;
        }
        // Boxed: a stream without guards should not hold its state.
        let (held, failed) = Box::pin(self.apply_guards(Bytes::new(), true)).await;
        let held = match held.is_empty() {
            true => held,
            false => self.number_events(held),
        };
        let last = match failed {
            Some(why) => {
                self.finish_slot(Some(CallOutcome::ANSWERED));
                self.end_with(why)
            }
            None => self.process_unguarded(arrived).await,
        };
        StreamChunk {
            bytes: [held, last.bytes].concat().into(),
            ..last
        }
    }

    async fn process_unguarded(&mut self, arrived: StreamInput) -> StreamChunk {
        match arrived {
            StreamInput::Piece(piece) => {
                self.heard = Instant::now();
                if let Some(slot) = &mut self.slot {
                    slot.record_stream_start();
                }
                self.process_piece(piece).await
            }
            // Without framing, a broken connection looks like one that ends. A partial event reveals it.
            StreamInput::AgentEnded if !self.framed && !self.splitter.at_boundary() => {
                let broken = broken_http(None);
                self.finish_slot(outcome_of_cut(&broken));
                self.end_with(broken)
            }
            StreamInput::AgentEnded => {
                self.finish_slot(Some(CallOutcome::ANSWERED));
                let whole = self.splitter.ends_whole();
                let rest = std::mem::take(&mut self.splitter).take_rest();
                let (rest, failed) = self.transform_events(rest).await;
                if let Some(why) = failed {
                    return self.end_with(why);
                }
                if whole {
                    // An event without a number of the gateway's would look like one of the gateway's own events.
                    let last = self.number_events(rest);
                    return StreamChunk {
                        bytes: last,
                        ..self.end_with_rest(Bytes::new())
                    };
                }
                self.end_with_rest(rest)
            }
            StreamInput::Finished => {
                self.finish_slot(Some(CallOutcome::ANSWERED));
                self.end_with_rest(Bytes::new())
            }
            StreamInput::Cut(rejection) => {
                self.finish_slot(outcome_of_cut(&rejection));
                self.end_with(rejection)
            }
        }
    }

    /// Records what the end of the stream tells of its agent.
    fn finish_slot(&mut self, outcome: Option<CallOutcome>) {
        if let (Some(slot), Some(outcome)) = (&mut self.slot, outcome) {
            slot.finish(outcome);
        }
    }

    /// Returns the events that the piece completed.
    async fn process_piece(&mut self, piece: Bytes) -> StreamChunk {
        let passed = self.splitter.push(piece);
        self.bytes += passed.bytes.len() as u64;
        let limit = self.config.limits.stream_bytes.0;
        let pending = self.splitter.pending_len();
        if self.bytes + pending as u64 > limit {
            return self.end_with(too_large(limit));
        }
        let rewrite = self.rewrite.as_ref();
        if let Some(Err(too_long)) = rewrite.map(|rewrite| rewrite.check_pending(pending)) {
            return self.end_with(too_long);
        }
        if passed.events > 0 {
            if passed.final_seen {
                self.finished.get_or_insert(self.heard);
            }
            let ended = self.pace.observe_events(self.heard, &passed.bytes);
            self.learn_from(&passed.bytes).await;
            if ended && let Some(ender) = self.ender.take() {
                ender.record_end();
            }
            if ended && let Some(mut binder) = self.binder.take() {
                Box::pin(async move { binder.record_end().await }).await;
            }
        }
        let (blocks, failed) = match passed.bytes.is_empty() {
            true => (passed.bytes, None),
            false => self.transform_events(passed.bytes).await,
        };
        let bytes = match blocks.is_empty() {
            true => blocks,
            false => self.number_events(blocks),
        };
        let events = passed.events;
        let Some(why) = failed else {
            return StreamChunk {
                events,
                bytes,
                ..StreamChunk::default()
            };
        };
        let last = self.end_with(why);
        StreamChunk {
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
    ) -> Result<StreamChunk, Rejection> {
        let Some(Rewrite::Bridged(back, then)) = &mut self.rewrite else {
            return Ok(StreamChunk::default());
        };
        let (mut event, goes_on) = back.translate_snapshot(status, body)?;
        if let Some(then) = then {
            (event, _) = then.rewrite_events(event);
        }
        let (event, failed) = self.apply_guards(event, !goes_on).await;
        if let Some(why) = failed {
            return Err(why);
        }
        let bytes = match event.is_empty() {
            true => event,
            false => self.number_events(event),
        };
        if goes_on {
            return Ok(StreamChunk {
                bytes,
                events: 1,
                ..StreamChunk::default()
            });
        }
        let last = self.end_with_rest(Bytes::new());
        Ok(StreamChunk {
            bytes,
            events: 1,
            ..last
        })
    }

    /// Ends the stream with an event that gives the reason.
    pub(super) fn end_with(&mut self, cut: Rejection) -> StreamChunk {
        let last = cut.last_event(&self.form, &self.request_id, &self.name, self.framing());
        let bytes = self.number_events(last);
        if let Some(log) = self.log.take() {
            log.end(&[]);
        }
        StreamChunk {
            bytes,
            events: 0,
            over: true,
            cut: Some(cut),
        }
    }

    /// Ends the stream with the rest that the agent left incomplete.
    fn end_with_rest(&mut self, rest: Bytes) -> StreamChunk {
        if let Some(log) = self.log.take() {
            log.end(&rest);
        }
        StreamChunk {
            bytes: rest,
            over: true,
            ..StreamChunk::default()
        }
    }

    /// True if events wait for guards.
    pub(super) fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Returns events as they go to the caller, and the reason that the stream ends with them.
    async fn transform_events(&mut self, blocks: Bytes) -> (Bytes, Option<Rejection>) {
        let (blocks, failed) = self.rewrite_events(blocks).await;
        if self.guard.is_none() {
            return (blocks, failed);
        }
        // Boxed: a stream without guards should not hold its state.
        let (passed, why) = Box::pin(self.apply_guards(blocks, false)).await;
        (passed, why.or(failed))
    }

    /// Asks guards about events. `ends`: the agent's stream has ended before them.
    async fn apply_guards(&mut self, blocks: Bytes, ends: bool) -> (Bytes, Option<Rejection>) {
        let guard = self.guard.as_mut();
        let Some(guard) = guard.filter(|_| ends || !blocks.is_empty()) else {
            return (blocks, None);
        };
        let mut check = guard.take();
        let deadline = self.clocks.stream;
        let passed = tokio::select! {
            biased;
            passed = check.check_events(blocks, ends) => passed,
            why = self.ended_early() => (Bytes::new(), Some(why)),
            () = sleep_until(deadline) => (Bytes::new(), Some(timed_out("stream"))),
        };
        if let Some(guard) = &mut self.guard {
            guard.put(check);
        }
        passed
    }

    async fn rewrite_events(&mut self, blocks: Bytes) -> (Bytes, Option<Rejection>) {
        let Some(rewrite) = &mut self.rewrite else {
            return (blocks, None);
        };
        if !offload::is_long(blocks.len()) {
            return rewrite.rewrite_events(blocks);
        }
        let rewrite = self.rewrite.take();
        let work = offload::run(move || {
            let mut rewrite = rewrite;
            let changed = rewrite
                .as_mut()
                .map(|rewrite| rewrite.rewrite_events(blocks));
            (rewrite, changed)
        });
        // Boxed: rarely taken.
        let (rewrite, changed) = Box::pin(work).await;
        self.rewrite = rewrite;
        changed.unwrap_or_default()
    }

    fn number_events(&mut self, blocks: Bytes) -> Bytes {
        match &mut self.log {
            Some(log) => log.append(&blocks),
            None => blocks,
        }
    }

    async fn learn_from(&mut self, events: &[u8]) {
        let Some(learner) = &mut self.learner else {
            return;
        };
        // `pace` observes the state in these events and later ones.
        let task = learner.push_events(events);
        if task.is_some() || learner.has_more_to_learn(None) {
            // Boxed: rarely taken.
            Box::pin(learner.record_task(task.as_deref(), None)).await;
        }
        if task.is_some()
            && let Some(learner) = self.learner.take()
        {
            self.ender = task
                .as_deref()
                .and_then(|task| learner.end_recorder_for(task));
            self.task = task;
            self.binder = learner.into_binder();
        }
    }

    /// Returns the bytes that keep the stream alive while the agent is silent.
    pub(super) fn keepalive_comment(&self) -> &'static str {
        let numbered = self.log.as_ref().is_some_and(|log| log.last() > 0);
        self.framing().keepalive_comment(numbered)
    }

    fn framing(&self) -> Framing {
        self.splitter.framing()
    }
}
