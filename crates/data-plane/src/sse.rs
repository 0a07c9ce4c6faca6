//! Relays a stream of events, event by event, and ends a cut stream with an event that gives the reason.
//!
//! Only complete events are sent, so the caller is always between two events. Comments and the gateway's last event
//! are valid at that point, and a partly received event is dropped by not being sent.
//!
//! [`AgentStream`] is the agent's side, and [`CallerSide`] the caller's. When the caller leaves, the agent's side
//! continues alone ([`linger`]).

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::HttpPeer;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::fetch::BufferedRequest;
use crate::filters::Rewrite;
use crate::guard::stream::EventGuard;
use crate::listener::{begin_stream, client_disconnected, write_within};
use crate::record::{Answered, Exchange, ExchangeError, box_cold_path, outcome_of_cut};
use crate::upstream::{
    AgentResponse, CancelWatch, Clocks, Relay, WireRequest, agent_silent, broken_http,
    reject_answer, reject_unread, shutting_down, timed_out, too_large,
};
use a2a::event::{Framing, Splitter, Standing, states_in};
use assembly::access_watch::{CutOff, cut_off};
use directory::tasks::{Binder, EndRecorder, Learner};
use directory::{CallOutcome, Slot};
use http1::AnswerReader;
use kernel::config::{Config, Live};
use kernel::deadline::ticks_after;
use kernel::dialect::ReplyForm;
use kernel::drain::Drain;
use kernel::ids::{RequestId, stream_id};
use kernel::metrics::{InProgress, Metrics};
use kernel::offload;
use kernel::rejection::{Delivery, Reason, Rejection};
use mailbox::streams::LogWriter;

/// The state of a stream that begins, besides its connections.
pub(super) struct StreamSetup {
    pub(super) clocks: Clocks,
    /// The end of the shutdown's grace period.
    pub(super) cut: CancelWatch,
    /// True if the agent's framing marks the end of the body.
    pub(super) framed: bool,
    /// True if the caller cannot read a stream without events as an answer.
    pub(super) expects_events: bool,
    /// The rewrite of events.
    pub(super) rewrite: Option<Rewrite>,
    /// The request for the task with which the stream begins.
    pub(super) snapshot: Option<Box<SnapshotRequest>>,
    /// Searches for the task, until it is found.
    pub(super) learner: Option<Box<Learner>>,
    /// The concurrency slot of the call at its target.
    pub(super) slot: Option<Slot>,
    /// Ends when the caller loses access. `None` if it never does.
    pub(super) cut_off: Option<CutOff>,
}

/// A request for a task, to its agent.
pub(super) struct SnapshotRequest {
    pub(super) peer: Box<HttpPeer>,
    pub(super) call: WireRequest,
}

impl SnapshotRequest {
    /// Returns the request of a call that has one. A waiting stream does not hold the peer otherwise.
    pub(super) fn new(call: Option<WireRequest>, peer: Box<HttpPeer>) -> Option<Box<Self>> {
        call.map(|call| Box::new(Self { peer, call }))
    }
}

/// Relays the stream to its end.
pub(super) async fn relay_stream(
    relay: &Relay,
    session: &mut ServerSession,
    exchange: &mut Exchange,
    answering: AgentResponse<'_>,
    head: ResponseHeader,
    mut begun: StreamSetup,
) -> Result<Answered, ExchangeError> {
    let snapshot = begun.snapshot.take();
    let _open = InProgress::begin(&exchange.call.metrics.open_streams);
    let ids = (exchange.call.request_id.clone(), exchange.call.reply_form());
    let config = Arc::clone(&exchange.call.config);
    let log = begin_log(relay, exchange);
    let pace = EventPace::new(Arc::clone(&exchange.call.metrics), exchange.call.started);
    let mut feed = AgentStream::new((answering.upstream, pace), begun, config, ids, log);
    // Boxed, here and below: a waiting stream should not hold the state of steps that run once or briefly.
    Box::pin(begin_stream(session, head, &feed.name)).await?;
    let written = Instant::now();
    let alarm = Alarm::new(written + exchange.call.config.stream.keepalive);
    let mut caller = CallerSide {
        session,
        exchange,
        written,
        alarm,
        stream: feed.deadline(),
    };
    if let Some(snapshot) = snapshot {
        // The agent's stream has begun: what it sends meanwhile follows.
        let began = box_cold_path(caller.begin_with_task(relay, *snapshot, &mut feed));
        if let Some(ended) = began.await? {
            return Ok(ended);
        }
    }
    match caller.relay_events(&mut feed).await {
        Ok(last) => {
            answering.home.check_in(feed.upstream);
            caller.write_piece(last, true).await?;
            Ok(Answered)
        }
        Err(ended) => {
            linger(feed, relay.config.clone(), Arc::clone(&relay.drain));
            Err(ended)
        }
    }
}

/// Begins the log of a stream, owned by its caller. `None` if nothing is stored.
fn begin_log(relay: &Relay, exchange: &Exchange) -> Option<LogWriter> {
    let streams = relay.streams.as_ref()?;
    let (proof, target) = (exchange.call.proof.as_ref()?, exchange.call.life()?);
    streams.begin_log(proof.owner(), &target, exchange.call.reply_form())
}

/// The caller's side.
struct CallerSide<'a> {
    session: &'a mut ServerSession,
    exchange: &'a mut Exchange,
    /// The time of the last write to the caller.
    written: Instant,
    /// Rings when a keep-alive is due.
    alarm: Alarm,
    /// The deadline of the stream.
    stream: Instant,
}

impl CallerSide<'_> {
    /// Sends the task with which a subscription of 1.0 begins. `Some`: the stream has ended with an error.
    async fn begin_with_task(
        &mut self,
        relay: &Relay,
        snapshot: SnapshotRequest,
        feed: &mut AgentStream,
    ) -> Result<Option<Answered>, ExchangeError> {
        let config = Arc::clone(&self.exchange.call.config);
        let question = BufferedRequest {
            peer: &snapshot.peer,
            call: snapshot.call,
            deadline: self.stream.min(Instant::now() + config.timeouts.head),
            bytes_max: config.limits.event_bytes.bytes(),
            idle: config.upstream.idle,
            late: || timed_out("head"),
        };
        let mut asked = pin!(question.send(&relay.upstream, &relay.metrics));
        let answered = loop {
            let keepalive = self.written + config.stream.keepalive;
            tokio::select! {
                answered = &mut asked => break answered,
                why = feed.ended_early() => break Err(why),
                () = self.alarm.wait_until(keepalive) => {
                    self.write_comment(feed.keepalive_comment()).await?;
                }
                () = client_disconnected(self.session) => return Err(ExchangeError::CallerLeft),
            }
        };
        let first = match answered {
            Ok((head, body)) => feed.begin_with(head.status.as_u16(), &body).await,
            Err(why) => Err(why),
        };
        let passed = first.unwrap_or_else(|why| feed.end_with(why));
        self.record_chunk(&passed);
        self.write_piece(passed.bytes, passed.over).await?;
        Ok(passed.over.then_some(Answered))
    }

    /// Relays events until the stream is over. Returns the bytes still to be written.
    ///
    /// # Errors
    /// The caller left.
    async fn relay_events(&mut self, feed: &mut AgentStream) -> Result<Bytes, ExchangeError> {
        loop {
            let keepalive = self.written + self.exchange.call.config.stream.keepalive;
            let arrived = tokio::select! {
                biased;
                arrived = feed.wait() => Some(arrived),
                () = self.alarm.wait_until(keepalive) => None,
                () = client_disconnected(self.session) => return Err(ExchangeError::CallerLeft),
            };
            let Some(arrived) = arrived else {
                self.write_comment(feed.keepalive_comment()).await?;
                continue;
            };
            let passed = match feed.guard.is_none() {
                true => feed.process(arrived).await,
                false => box_cold_path(self.take_guarded(feed, arrived)).await?,
            };
            if let Some(task) = feed.task.take() {
                self.exchange.record.task = Some(task);
            }
            self.record_chunk(&passed);
            if passed.over {
                return Ok(passed.bytes);
            }
            if !passed.bytes.is_empty() {
                self.write_piece(passed.bytes, false).await?;
            }
        }
    }

    /// Processes the end of a wait while guards are asked: comments keep the caller's connection alive. If the caller
    /// leaves, the events are in the log all the same.
    async fn take_guarded(
        &mut self,
        feed: &mut AgentStream,
        arrived: StreamInput,
    ) -> Result<StreamChunk, ExchangeError> {
        let comment = feed.keepalive_comment();
        let mut taken = pin!(feed.process(arrived));
        let mut left = None;
        loop {
            let keepalive = self.written + self.exchange.call.config.stream.keepalive;
            tokio::select! {
                biased;
                passed = &mut taken => return left.map_or(Ok(passed), Err),
                () = self.alarm.wait_until(keepalive), if left.is_none() => {
                    left = self.write_comment(comment).await.err();
                }
            }
        }
    }

    fn record_chunk(&mut self, chunk: &StreamChunk) {
        self.exchange.record.add_events(chunk.events);
        if let Some(cut) = &chunk.cut {
            self.exchange.record_rejection(cut);
        }
    }

    async fn write_comment(&mut self, comment: &'static str) -> Result<(), ExchangeError> {
        let comment = Bytes::from_static(comment.as_bytes());
        self.write_piece(comment, false).await
    }

    async fn write_piece(&mut self, bytes: Bytes, last: bool) -> Result<(), ExchangeError> {
        self.exchange.record.add_passed_bytes(bytes.len());
        let write = self.exchange.call.config.timeouts.write;
        let deadline = (Instant::now() + write).min(self.stream + write);
        let write = Box::pin(self.session.write_response_body(bytes, last));
        write_within(deadline, write).await?;
        self.written = Instant::now();
        Ok(())
    }
}

// The agent's side of a stream. Splits it into events, numbers and stores them for resumption, and ends a cut stream
// with an event that gives the reason. Holds nothing of the caller's, so it can continue without a caller.

/// One stream from its agent.
pub(super) struct AgentStream {
    pub(super) upstream: AnswerReader,
    /// What it began with: its clocks, what may end it, and who watches it.
    setup: StreamSetup,
    /// The configuration at the start of the exchange.
    config: Arc<Config>,
    /// The guards that are asked about events, after the rewrite and before the log.
    guard: Option<Box<EventGuard>>,
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
    splitter: Splitter,
    /// Measures the events.
    pace: EventPace,
    /// The time of the agent's last bytes.
    heard: Instant,
    /// Ends a wait for the agent.
    alarm: Alarm,
    /// The time of the final event, if there was one.
    finished: Option<Instant>,
    /// Bytes of complete events so far, as received.
    bytes: u64,
}

/// What a wait for the agent ended with.
pub(super) enum StreamInput {
    Piece(Bytes),
    AgentEnded,
    /// The agent left a stream open after its final event.
    Finished,
    /// The caller has lost its access.
    Revoked(Rejection),
    Cut(Rejection),
}

/// Bytes for the caller.
#[derive(Default)]
pub(super) struct StreamChunk {
    pub(super) bytes: Bytes,
    /// The number of the agent's events in `bytes`.
    pub(super) events: u32,
    /// True for the last bytes.
    pub(super) over: bool,
    /// The rejection, if the agent did not end the stream itself.
    pub(super) cut: Option<Rejection>,
}

impl AgentStream {
    pub(super) fn new(
        (upstream, pace): (AnswerReader, EventPace),
        mut setup: StreamSetup,
        config: Arc<Config>,
        (request_id, form): (RequestId, ReplyForm),
        log: Option<LogWriter>,
    ) -> Self {
        let heard = Instant::now();
        let (rewrite, guard) = Rewrite::split_guards(setup.rewrite.take());
        setup.rewrite = rewrite;
        Self {
            upstream,
            config,
            guard: guard.map(Box::new),
            binder: None,
            ender: None,
            task: None,
            request_id,
            form,
            name: log
                .as_ref()
                .map_or_else(|| stream_id().simple().to_string(), LogWriter::name),
            log,
            splitter: Splitter::new(),
            pace,
            heard,
            alarm: Alarm::new(setup.clocks.stream.min(heard + setup.clocks.idle)),
            setup,
            finished: None,
            bytes: 0,
        }
    }

    /// Returns the deadline of the stream.
    pub(super) fn deadline(&self) -> Instant {
        self.setup.clocks.stream
    }

    /// Waits until the caller loses access, or the process is cut.
    pub(super) async fn ended_early(&mut self) -> Rejection {
        tokio::select! {
            why = cut_off(&mut self.setup.cut_off) => why,
            why = self.setup.cut.cancelled(Delivery::Sent) => why,
        }
    }

    /// Waits for the next event of any kind. Cancel-safe: dropping it loses nothing.
    pub(super) async fn wait(&mut self) -> StreamInput {
        // An agent that sends without a pause leaves no poll to the clock below.
        if self.heard >= self.setup.clocks.stream {
            return StreamInput::Cut(timed_out("stream"));
        }
        if let Some(piece) = self.guard.as_mut().and_then(|guard| guard.next_event()) {
            return StreamInput::Piece(piece);
        }
        let quiet = match self.finished {
            Some(at) => at + self.config.stream.final_grace,
            // A person takes as long as the stream may last.
            None if self.splitter.standing() == Standing::Interrupted => self.setup.clocks.stream,
            None => self.heard + self.setup.clocks.idle,
        };
        let wake = quiet.min(self.setup.clocks.stream);
        tokio::select! {
            biased;
            // First: an agent that sends without a pause must not delay the end of the caller's access.
            why = cut_off(&mut self.setup.cut_off) => StreamInput::Revoked(why),
            read = self.upstream.read_piece() => match read {
                Ok(Some(piece)) => StreamInput::Piece(match &mut self.guard {
                    Some(guard) => guard.first_event(piece),
                    None => piece,
                }),
                Ok(None) => StreamInput::AgentEnded,
                Err(error) => StreamInput::Cut(reject_unread(error)),
            },
            () = self.alarm.wait_until(wake) => if self.setup.clocks.stream <= wake {
                StreamInput::Cut(timed_out("stream"))
            } else if self.finished.is_some() {
                StreamInput::Finished
            } else {
                StreamInput::Cut(agent_silent(self.setup.clocks.idle))
            },
            why = self.setup.cut.cancelled(Delivery::Sent) => StreamInput::Cut(why),
        }
    }

    /// Processes what a wait ended with.
    pub(super) async fn process(&mut self, arrived: StreamInput) -> StreamChunk {
        let arrived = self.judge_end(arrived);
        let ends = matches!(arrived, StreamInput::AgentEnded | StreamInput::Finished);
        if self.guard.is_none() || !ends {
            return self.process_unguarded(arrived).await;
        }
        // Boxed: a stream without guards should not hold its state.
        let (held, failed) = Box::pin(self.apply_guards(Bytes::new(), true)).await;
        let held = self.number_events(held);
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

    /// Decides whether the stream is whole where it ends.
    fn judge_end(&self, arrived: StreamInput) -> StreamInput {
        let (standing, at_boundary) = (self.splitter.standing(), self.splitter.at_boundary());
        match arrived {
            StreamInput::Revoked(why) => StreamInput::Cut(why),
            // Behind a final event every other end is the end.
            StreamInput::Cut(_) if standing.is_final() => StreamInput::Finished,
            // The agent has said that it goes on with another call.
            StreamInput::Cut(why)
                if standing == Standing::Interrupted
                    && why.reason == Reason::AgentProtocolError =>
            {
                StreamInput::Finished
            }
            StreamInput::AgentEnded if self.setup.expects_events && at_boundary => {
                StreamInput::Cut(reject_answer("the agent ended its stream without an event"))
            }
            // Without framing, a broken connection looks like one that ends.
            StreamInput::AgentEnded if !self.setup.framed && standing == Standing::Open => {
                StreamInput::Cut(broken_http(None))
            }
            StreamInput::AgentEnded
                if !self.splitter.ends_whole() && (!self.setup.framed || standing.is_final()) =>
            {
                // Without an event that was not received whole.
                StreamInput::Finished
            }
            arrived => arrived,
        }
    }

    async fn process_unguarded(&mut self, arrived: StreamInput) -> StreamChunk {
        match arrived {
            StreamInput::Piece(piece) => {
                self.heard = Instant::now();
                if let Some(slot) = &mut self.setup.slot {
                    slot.record_stream_start();
                }
                self.process_piece(piece).await
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
            StreamInput::Cut(rejection) | StreamInput::Revoked(rejection) => {
                self.finish_slot(outcome_of_cut(&rejection));
                self.end_with(rejection)
            }
        }
    }

    /// Records what the end of the stream tells of its agent.
    fn finish_slot(&mut self, outcome: Option<CallOutcome>) {
        if let (Some(slot), Some(outcome)) = (&mut self.setup.slot, outcome) {
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
        let rewrite = self.setup.rewrite.as_ref();
        if let Some(Err(too_long)) = rewrite.map(|rewrite| rewrite.check_pending(pending)) {
            return self.end_with(too_long);
        }
        if passed.events > 0 {
            let standing = self.splitter.standing();
            if standing == Standing::Interrupted {
                // The person's answer may be the next call.
                self.finish_slot(Some(CallOutcome::ANSWERED));
            }
            if passed.is_final || !standing.is_final() {
                self.finished = standing.is_final().then_some(self.heard);
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
        let events = passed.events;
        self.setup.expects_events &= events == 0 || blocks.is_empty();
        let bytes = self.number_events(blocks);
        let Some(why) = failed else {
            return StreamChunk {
                events,
                bytes,
                ..StreamChunk::default()
            };
        };
        let last = self.end_with(why);
        let bytes = [bytes, last.bytes].concat().into();
        StreamChunk {
            events,
            bytes,
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
        let Some(Rewrite::Bridged(back, then)) = &mut self.setup.rewrite else {
            return Ok(StreamChunk::default());
        };
        let (mut event, goes_on) = back.translate_snapshot(status, body)?;
        self.setup.expects_events = false;
        if let Some(then) = then {
            (event, _) = then.rewrite_events(event);
        }
        let (event, failed) = self.apply_guards(event, !goes_on).await;
        if let Some(why) = failed {
            return Err(why);
        }
        let bytes = self.number_events(event);
        let end = match goes_on {
            true => StreamChunk::default(),
            false => self.end_with_rest(Bytes::new()),
        };
        Ok(StreamChunk {
            bytes,
            events: 1,
            ..end
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
        let deadline = self.setup.clocks.stream;
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
        let Some(rewrite) = &mut self.setup.rewrite else {
            return (blocks, None);
        };
        if !offload::is_long(blocks.len()) {
            return rewrite.rewrite_events(blocks);
        }
        let rewrite = self.setup.rewrite.take();
        let work = offload::run(move || {
            let mut rewrite = rewrite;
            let changed = rewrite
                .as_mut()
                .map(|rewrite| rewrite.rewrite_events(blocks));
            (rewrite, changed)
        });
        // Boxed: rarely taken.
        let (rewrite, changed) = Box::pin(work).await;
        self.setup.rewrite = rewrite;
        changed.unwrap_or_default()
    }

    fn number_events(&mut self, blocks: Bytes) -> Bytes {
        match &mut self.log {
            Some(log) if !blocks.is_empty() => {
                log.append(&blocks, self.splitter.standing().is_final())
            }
            _ => blocks,
        }
    }

    async fn learn_from(&mut self, events: &[u8]) {
        let Some(learner) = &mut self.setup.learner else {
            return;
        };
        // `pace` observes the state in these events and later ones.
        let task = learner.push_events(events);
        if task.is_some() || learner.has_more_to_learn(None) {
            // Boxed: rarely taken.
            Box::pin(learner.record_task(task.as_deref(), None)).await;
        }
        if task.is_some()
            && let Some(learner) = self.setup.learner.take()
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

// A clock for a deadline that moves later with each event.

/// One timer for all waits of a stream. A later deadline leaves it armed as it is: it rings early and is set again, so
/// that an event costs no change of the runtime's timers.
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
}

impl Alarm {
    /// Begins a timer that rings at `deadline`.
    pub(super) fn new(deadline: Instant) -> Self {
        Self {
            sleep: Box::pin(sleep_until(deadline)),
        }
    }

    /// Waits until `deadline`. Cancel-safe.
    pub(super) async fn wait_until(&mut self, deadline: Instant) {
        if self.sleep.deadline() > deadline || self.sleep.is_elapsed() {
            self.sleep.as_mut().reset(deadline);
        }
        loop {
            self.sleep.as_mut().await;
            if self.sleep.deadline() >= deadline {
                return;
            }
            self.sleep.as_mut().reset(deadline);
        }
    }
}

// Metrics of a stream's events: the times between them, and the task states that they report.

/// The measurement of one stream's events, as the agent sends them.
pub(super) struct EventPace {
    metrics: Arc<Metrics>,
    /// The time of the request head at first, then of the last event.
    since: Instant,
    begun: bool,
}

impl EventPace {
    /// Creates the measurement of a stream whose request head was complete at `started`.
    pub(super) fn new(metrics: Arc<Metrics>, started: Instant) -> Self {
        Self {
            metrics,
            since: started,
            begun: false,
        }
    }

    /// Observes complete events that arrived together at `now`: they count as one arrival. Returns true if one of them
    /// reports that the task has ended.
    pub(super) fn observe_events(&mut self, now: Instant, events: &[u8]) -> bool {
        let waited = now.duration_since(self.since).as_secs_f64();
        let streams = &self.metrics.streams;
        if self.begun {
            streams.between_events.observe(waited);
        } else {
            streams.first_event.observe(waited);
        }
        self.begun = true;
        self.since = now;
        let mut ended = false;
        for state in states_in(events) {
            self.metrics.tasks.states[state].inc();
            ended |= state.is_terminal();
        }
        ended
    }
}

// Continues a stream for a while after its caller left, for resumption (`docs/reference/a2a.md`, "Resuming a stream").

/// Interval of checks for readers.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Continues the stream in a task of its own if it can be resumed: a caller that got no event has no name for it.
pub(super) fn linger(feed: AgentStream, config: Live, drain: Arc<Drain>) {
    let log = feed.log.as_ref().filter(|log| log.last() > 0);
    let Some(lingering) = log.and_then(|log| log.linger()) else {
        return;
    };
    // After a handover to another process it may continue to its end.
    let running = drain.count_work();
    tokio::spawn(async move {
        let _running = running;
        let how = follow_stream(feed, &config, &drain).await;
        lingering.record_end(how);
    });
}

/// Follows the stream to its end, and returns how it ended. Dropping the future cancels the call, frees its slot, and
/// tells readers that the stream was cut.
async fn follow_stream(mut feed: AgentStream, config: &Live, drain: &Drain) -> &'static str {
    let mut look = ticks_after(LOOK_EVERY, LOOK_EVERY);
    let mut draining = std::pin::pin!(drain.wait_for_begin());
    loop {
        tokio::select! {
            biased;
            () = &mut draining => {
                feed.end_with(shutting_down(Delivery::Sent));
                return "drained";
            }
            _ = look.tick() => {
                let unread = feed.log.as_ref().map(|log| log.unread_for());
                if unread.is_none_or(|unread| config.get().stream.linger <= unread) {
                    return "unread";
                }
            }
            arrived = feed.wait() => {
                if feed.process(arrived).await.over {
                    return "ended";
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_rings_at_the_deadline_of_the_last_wait() {
        let began = Instant::now();
        let mut alarm = Alarm::new(began + SECOND);
        for (deadline, waited) in [(10, 0), (10, 5), (8, 7), (20, 15)] {
            let at = began + SECOND * waited;
            tokio::time::advance(at.saturating_duration_since(Instant::now())).await;
            let rang = timeout(
                Duration::from_millis(500),
                alarm.wait_until(began + SECOND * deadline),
            );
            assert!(rang.await.is_err(), "{deadline} at {waited}");
        }
        alarm.wait_until(began + SECOND * 20).await;
        assert_eq!(began.elapsed(), SECOND * 20);
        // One that has rung rings again, also for a deadline that has passed.
        alarm.wait_until(began + SECOND * 21).await;
        assert_eq!(began.elapsed(), SECOND * 21);
        alarm.wait_until(began + SECOND).await;
        assert_eq!(began.elapsed(), SECOND * 21);
        // An earlier deadline than the armed one.
        let armed = timeout(SECOND, alarm.wait_until(began + SECOND * 90));
        assert!(armed.await.is_err());
        alarm.wait_until(began + SECOND * 25).await;
        assert_eq!(began.elapsed(), SECOND * 25);
    }
}
