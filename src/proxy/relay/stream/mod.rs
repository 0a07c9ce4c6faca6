//! Relays a stream of events, event by event, and ends a cut stream with an event that gives the reason.
//!
//! Only complete events are sent, so the caller is always between two events. Comments and the gateway's last event
//! are valid at that point, and a partly received event is dropped by not being sent.
//!
//! [`feed`] is the agent's side, and the loop in `pass` is the caller's. When the caller leaves, the agent's side
//! continues alone ([`mod@linger`]).

mod alarm;
mod feed;
mod linger;
mod pace;

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::HttpPeer;
use tokio::time::Instant;

use self::alarm::Alarm;
pub(in crate::proxy) use self::feed::AgentStream;
use self::feed::{StreamChunk, StreamInput};
use self::linger::linger;
pub(in crate::proxy) use self::pace::EventPace;
use super::failure::timed_out;
use super::fetch::BufferedRequest;
use super::rewrite::Rewrite;
use super::upstream::WireRequest;
use super::{AgentResponse, Relay};
use crate::access_watch::CutOff;
use crate::delivery::streams::LogWriter;
use crate::directory::Slot;
use crate::metrics::InProgress;
use crate::proxy::outcome::{ExchangeOutcome, box_cold_path};
use crate::proxy::record::Exchange;
use crate::proxy::relay::{CancelWatch, Clocks};
use crate::proxy::respond::{begin_stream, client_disconnected, write_within};

/// The state of a stream that begins, besides its connections.
pub(in crate::proxy) struct StreamSetup {
    pub(in crate::proxy) clocks: Clocks,
    /// The end of the shutdown's grace period.
    pub(in crate::proxy) cut: CancelWatch,
    /// True if the agent's framing marks the end of the body.
    pub(in crate::proxy) framed: bool,
    /// The rewrite of events.
    pub(in crate::proxy) rewrite: Option<Rewrite>,
    /// The request for the task with which the stream begins.
    pub(in crate::proxy) snapshot: Option<Box<SnapshotRequest>>,
    /// The concurrency slot of the call at its target.
    pub(in crate::proxy) slot: Option<Slot>,
    /// Ends when the caller loses access. `None` if it never does.
    pub(in crate::proxy) cut_off: Option<CutOff>,
}

/// A request for a task, to its agent.
pub(in crate::proxy) struct SnapshotRequest {
    pub(in crate::proxy) peer: Box<HttpPeer>,
    pub(in crate::proxy) call: WireRequest,
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
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    let snapshot = begun.snapshot.take();
    let _open = InProgress::begin(&exchange.metrics.open_streams);
    let ids = (exchange.request_id.clone(), exchange.reply_form());
    let (config, learner) = (Arc::clone(&exchange.config), exchange.learner.take());
    let log = begin_log(relay, exchange);
    let pace = EventPace::new(Arc::clone(&exchange.metrics), exchange.started);
    let mut feed = AgentStream::new((answering.upstream, pace), begun, config, ids, learner, log);
    // Boxed, here and below: a waiting stream should not hold the state of steps that run once or briefly.
    Box::pin(begin_stream(session, exchange, head, &feed.name)).await?;
    let written = Instant::now();
    let alarm = Alarm::new(written + exchange.config.stream.keepalive);
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
            Ok(ExchangeOutcome::Answered)
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
    let (proof, target) = (exchange.proof.as_ref()?, exchange.life()?);
    streams.begin_log(proof.owner(), &target, exchange.reply_form())
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
    ) -> Result<Option<ExchangeOutcome>, ExchangeOutcome> {
        let config = Arc::clone(&self.exchange.config);
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
                    let comment = feed.keepalive_comment();
                    self.write_piece(Bytes::from_static(comment.as_bytes()), false).await?;
                }
                () = client_disconnected(self.session) => return Err(ExchangeOutcome::CallerLeft),
            }
        };
        let first = match answered {
            Ok((head, body)) => feed.begin_with(head.status.as_u16(), &body).await,
            Err(why) => Err(why),
        };
        let passed = first.unwrap_or_else(|why| feed.end_with(why));
        self.exchange.answer.events += u64::from(passed.events);
        if let Some(cut) = &passed.cut {
            self.exchange.record_rejection(cut);
        }
        self.write_piece(passed.bytes, passed.over).await?;
        Ok(passed.over.then_some(ExchangeOutcome::Answered))
    }

    /// Relays events until the stream is over. Returns the bytes still to be written.
    ///
    /// # Errors
    /// The caller left.
    async fn relay_events(&mut self, feed: &mut AgentStream) -> Result<Bytes, ExchangeOutcome> {
        loop {
            let keepalive = self.written + self.exchange.config.stream.keepalive;
            let arrived = tokio::select! {
                biased;
                arrived = feed.wait() => Some(arrived),
                () = self.alarm.wait_until(keepalive) => None,
                () = client_disconnected(self.session) => return Err(ExchangeOutcome::CallerLeft),
            };
            let Some(arrived) = arrived else {
                let comment = feed.keepalive_comment();
                self.write_piece(Bytes::from_static(comment.as_bytes()), false)
                    .await?;
                continue;
            };
            let passed = match feed.is_guarded() {
                false => feed.process(arrived).await,
                true => box_cold_path(self.take_guarded(feed, arrived)).await?,
            };
            self.exchange.answer.events += u64::from(passed.events);
            if let Some(task) = feed.task.take() {
                self.exchange.task = Some(task);
            }
            if let Some(cut) = &passed.cut {
                self.exchange.record_rejection(cut);
            }
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
    ) -> Result<StreamChunk, ExchangeOutcome> {
        let comment = feed.keepalive_comment();
        let mut taken = pin!(feed.process(arrived));
        let mut left = None;
        loop {
            let keepalive = self.written + self.exchange.config.stream.keepalive;
            tokio::select! {
                biased;
                passed = &mut taken => return left.map_or(Ok(passed), Err),
                () = self.alarm.wait_until(keepalive), if left.is_none() => {
                    let comment = Bytes::from_static(comment.as_bytes());
                    left = self.write_piece(comment, false).await.err();
                }
            }
        }
    }

    async fn write_piece(&mut self, bytes: Bytes, last: bool) -> Result<(), ExchangeOutcome> {
        self.exchange.record_passed(bytes.len());
        let write = self.exchange.config.timeouts.write;
        let deadline = (Instant::now() + write).min(self.stream + write);
        let write = Box::pin(self.session.write_response_body(bytes, last));
        write_within(deadline, write).await?;
        self.written = Instant::now();
        Ok(())
    }
}
