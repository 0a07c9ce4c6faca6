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
pub(in crate::proxy) use self::feed::Feed;
use self::feed::{Arrived, Passed};
use self::linger::linger;
pub(in crate::proxy) use self::pace::Pace;
use super::failure::timed_out;
use super::fetch::Question;
use super::rewrite::Rewrite;
use super::upstream::Call;
use super::{Answering, Relay};
use crate::delivery::streams::Log;
use crate::directory::Slot;
use crate::metrics::InProgress;
use crate::proxy::outcome::{Ended, rare};
use crate::proxy::record::Exchange;
use crate::proxy::relay::{Clocks, Cut};
use crate::proxy::respond::{begin_stream, client_disconnected, within};
use crate::standing::CutOff;

/// The state of a stream that begins, besides its connections.
pub(in crate::proxy) struct Begun {
    pub(in crate::proxy) clocks: Clocks,
    /// The end of the shutdown's grace period.
    pub(in crate::proxy) cut: Cut,
    /// True if the agent's framing marks the end of the body.
    pub(in crate::proxy) framed: bool,
    /// The rewrite of events.
    pub(in crate::proxy) rewrite: Option<Rewrite>,
    /// The request for the task with which the stream begins.
    pub(in crate::proxy) snapshot: Option<Box<Snapshot>>,
    /// The concurrency slot of the call at its target.
    pub(in crate::proxy) slot: Option<Slot>,
    /// Ends when the caller loses access. `None` if it never does.
    pub(in crate::proxy) cut_off: Option<CutOff>,
}

/// A request for a task, to its agent.
pub(in crate::proxy) struct Snapshot {
    pub(in crate::proxy) peer: Box<HttpPeer>,
    pub(in crate::proxy) call: Call,
}

impl Snapshot {
    /// Returns the request of a call that has one. A waiting stream does not hold the peer otherwise.
    pub(super) fn new(call: Option<Call>, peer: Box<HttpPeer>) -> Option<Box<Self>> {
        call.map(|call| Box::new(Self { peer, call }))
    }
}

/// Relays the stream to its end.
pub(super) async fn pass(
    relay: &Relay,
    session: &mut ServerSession,
    exchange: &mut Exchange,
    answering: Answering<'_>,
    head: ResponseHeader,
    mut begun: Begun,
) -> Result<Ended, Ended> {
    let snapshot = begun.snapshot.take();
    let _open = InProgress::begin(&exchange.metrics.open_streams);
    let ids = (exchange.request_id.clone(), exchange.form());
    let (config, learner) = (Arc::clone(&exchange.config), exchange.learner.take());
    let log = log(relay, exchange);
    let pace = Pace::new(Arc::clone(&exchange.metrics), exchange.started);
    let mut feed = Feed::new((answering.upstream, pace), begun, config, ids, learner, log);
    // Boxed, here and below: a waiting stream should not hold the state of steps that run once or briefly.
    Box::pin(begin_stream(session, exchange, head, &feed.name)).await?;
    let written = Instant::now();
    let alarm = Alarm::new(written + exchange.config.stream.keepalive);
    let mut caller = Caller {
        session,
        exchange,
        written,
        alarm,
        stream: feed.deadline(),
    };
    if let Some(snapshot) = snapshot {
        // The agent's stream has begun: what it sends meanwhile follows.
        let began = rare(caller.begin_with_task(relay, *snapshot, &mut feed));
        if let Some(ended) = began.await? {
            return Ok(ended);
        }
    }
    match caller.follow(&mut feed).await {
        Ok(last) => {
            answering.home.take_back(feed.upstream);
            caller.write(last, true).await?;
            Ok(Ended::Answered)
        }
        Err(ended) => {
            linger(feed, relay.config.clone(), Arc::clone(&relay.drain));
            Err(ended)
        }
    }
}

/// Begins the log of a stream, owned by its caller. `None` if nothing is stored.
fn log(relay: &Relay, exchange: &Exchange) -> Option<Log> {
    let streams = relay.streams.as_ref()?;
    let (proof, target) = (exchange.proof.as_ref()?, exchange.life()?);
    streams.begin(proof.owner(), &target, exchange.form())
}

/// The caller's side.
struct Caller<'a> {
    session: &'a mut ServerSession,
    exchange: &'a mut Exchange,
    /// The time of the last write to the caller.
    written: Instant,
    /// Rings when a keep-alive is due.
    alarm: Alarm,
    /// The deadline of the stream.
    stream: Instant,
}

impl Caller<'_> {
    /// Sends the task with which a subscription of 1.0 begins. `Some`: the stream has ended with an error.
    async fn begin_with_task(
        &mut self,
        relay: &Relay,
        snapshot: Snapshot,
        feed: &mut Feed,
    ) -> Result<Option<Ended>, Ended> {
        let config = Arc::clone(&self.exchange.config);
        let question = Question {
            peer: &snapshot.peer,
            call: snapshot.call,
            deadline: self.stream.min(Instant::now() + config.timeouts.head),
            bytes_max: config.limits.event_bytes.bytes(),
            idle: config.upstream.idle,
            late: || timed_out("head"),
        };
        let mut asked = pin!(question.ask(&relay.upstream, &relay.metrics));
        let answered = loop {
            let keepalive = self.written + config.stream.keepalive;
            tokio::select! {
                answered = &mut asked => break answered,
                why = feed.ended_early() => break Err(why),
                () = self.alarm.ring(keepalive) => {
                    let comment = feed.keepalive();
                    self.write(Bytes::from_static(comment.as_bytes()), false).await?;
                }
                () = client_disconnected(self.session) => return Err(Ended::CallerLeft),
            }
        };
        let first = match answered {
            Ok((head, body)) => feed.begin_with(head.status.as_u16(), &body).await,
            Err(why) => Err(why),
        };
        let passed = first.unwrap_or_else(|why| feed.part(why));
        self.exchange.answer.events += u64::from(passed.events);
        if let Some(cut) = &passed.cut {
            self.exchange.rejected(cut);
        }
        self.write(passed.bytes, passed.over).await?;
        Ok(passed.over.then_some(Ended::Answered))
    }

    /// Relays events until the stream is over. Returns the bytes still to be written.
    ///
    /// # Errors
    /// The caller left.
    async fn follow(&mut self, feed: &mut Feed) -> Result<Bytes, Ended> {
        loop {
            let keepalive = self.written + self.exchange.config.stream.keepalive;
            let arrived = tokio::select! {
                biased;
                arrived = feed.wait() => Some(arrived),
                () = self.alarm.ring(keepalive) => None,
                () = client_disconnected(self.session) => return Err(Ended::CallerLeft),
            };
            let Some(arrived) = arrived else {
                let comment = feed.keepalive();
                self.write(Bytes::from_static(comment.as_bytes()), false)
                    .await?;
                continue;
            };
            let passed = match feed.is_guarded() {
                false => feed.take(arrived).await,
                true => rare(self.take_guarded(feed, arrived)).await?,
            };
            self.exchange.answer.events += u64::from(passed.events);
            if let Some(task) = feed.task.take() {
                self.exchange.task = Some(task);
            }
            if let Some(cut) = &passed.cut {
                self.exchange.rejected(cut);
            }
            if passed.over {
                return Ok(passed.bytes);
            }
            if !passed.bytes.is_empty() {
                self.write(passed.bytes, false).await?;
            }
        }
    }

    /// Processes the end of a wait while guards are asked: comments keep the caller's connection alive. If the caller
    /// leaves, the events are in the log all the same.
    async fn take_guarded(&mut self, feed: &mut Feed, arrived: Arrived) -> Result<Passed, Ended> {
        let comment = feed.keepalive();
        let mut taken = pin!(feed.take(arrived));
        let mut left = None;
        loop {
            let keepalive = self.written + self.exchange.config.stream.keepalive;
            tokio::select! {
                biased;
                passed = &mut taken => return left.map_or(Ok(passed), Err),
                () = self.alarm.ring(keepalive), if left.is_none() => {
                    let comment = Bytes::from_static(comment.as_bytes());
                    left = self.write(comment, false).await.err();
                }
            }
        }
    }

    async fn write(&mut self, bytes: Bytes, last: bool) -> Result<(), Ended> {
        self.exchange.passed(bytes.len());
        let write = self.exchange.config.timeouts.write;
        let deadline = (Instant::now() + write).min(self.stream + write);
        let write = Box::pin(self.session.write_response_body(bytes, last));
        within(deadline, write).await?;
        self.written = Instant::now();
        Ok(())
    }
}
