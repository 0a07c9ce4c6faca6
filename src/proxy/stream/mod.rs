//! Passes a stream of events on, event by event, and ends it in words when it is cut.
//!
//! Only whole events go out, so the caller is always between two events: that is where our comments
//! and the last event may stand, and a half-received event is dropped by not having been sent.

//!
//! [`feed`] has the agent's side, the loop here the caller's. When the caller leaves, the first goes on
//! without the second ([`mod@linger`]).

mod feed;
mod linger;
mod pace;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v1::client::HttpSession;
use tokio::time::{Instant, sleep_until};

pub(super) use self::feed::Feed;
use self::linger::linger;
pub(super) use self::pace::Pace;
use super::ended::{Clocks, Ended, chunk, internal, left, within};
use super::exchange::Exchange;
use super::relay::Relay;
use super::rewrite::Rewrite;
use super::upstream::Home;
use crate::delivery::streams::Log;
use crate::directory::Slot;
use crate::drain::Cut;
use crate::metrics::InProgress;
use crate::rejection::STREAM;
use crate::standing::CutOff;

/// A stream that begins, besides its connections.
pub(super) struct Begun {
    pub(super) clocks: Clocks,
    /// Says when a drain is over.
    pub(super) cut: Cut,
    /// Whether the agent's framing says where the body ends.
    pub(super) framed: bool,
    /// How events are changed on their way.
    pub(super) rewrite: Option<Rewrite>,
    /// The call's place at its target.
    pub(super) slot: Option<Slot>,
    /// Ends when its caller may not follow it any more. `None`: it always may.
    pub(super) cut_off: Option<CutOff>,
}

/// Relays the stream to its end.
pub(super) async fn pass(
    relay: &Relay,
    session: &mut ServerSession,
    exchange: &mut Exchange,
    (upstream, home): (Box<HttpSession>, Home<'_>),
    head: ResponseHeader,
    begun: Begun,
) -> Result<Ended, Ended> {
    let _open = InProgress::begin(&exchange.metrics.open_streams);
    let ids = (exchange.request_id.clone(), exchange.form());
    let (config, learner) = (Arc::clone(&exchange.config), exchange.learner.take());
    let log = log(relay, exchange);
    let pace = Pace::new(Arc::clone(&exchange.metrics), exchange.started);
    let mut feed = Feed::new((upstream, pace), begun, config, ids, learner, log);
    // Boxed, here and below: what a stream does once, or for a moment, it should not hold while it waits.
    Box::pin(begin(session, exchange, head, &feed.name)).await?;
    let mut caller = Caller {
        session,
        exchange,
        written: Instant::now(),
        stream: feed.deadline(),
    };
    match caller.follow(&mut feed).await {
        Ok(last) => {
            Box::pin(home.take_back(feed.upstream)).await;
            caller.write(last, true).await?;
            Ok(Ended::Answered)
        }
        Err(ended) => {
            linger(feed, relay.config.clone(), Arc::clone(&relay.drain));
            Err(ended)
        }
    }
}

/// Sends the head of a stream, with the name by which its caller knows it.
pub(super) async fn begin(
    session: &mut ServerSession,
    exchange: &Exchange,
    mut head: ResponseHeader,
    name: &str,
) -> Result<(), Ended> {
    head.insert_header(STREAM, name).map_err(internal)?;
    if !head.headers.contains_key(header::CACHE_CONTROL) {
        let value = HeaderValue::from_static("no-cache");
        head.insert_header(header::CACHE_CONTROL, value)
            .map_err(internal)?;
    }
    head.insert_header("x-accel-buffering", "no")
        .map_err(internal)?;
    chunk(session, &mut head).map_err(internal)?;
    within(
        Instant::now() + exchange.config.timeouts.write,
        session.write_response_header(Box::new(head)),
    )
    .await
}

/// What is kept of it, in the name of whoever asked. `None`: nothing is.
fn log(relay: &Relay, exchange: &Exchange) -> Option<Log> {
    let streams = relay.streams.as_ref()?;
    let (proof, target) = (exchange.proof.as_ref()?, exchange.callee.as_ref()?);
    streams.begin(proof.owner(), target, exchange.form())
}

/// The caller's side.
struct Caller<'a> {
    session: &'a mut ServerSession,
    exchange: &'a mut Exchange,
    /// When the caller was last written to.
    written: Instant,
    /// When the stream must be over.
    stream: Instant,
}

impl Caller<'_> {
    /// Passes events on until the stream is over. What is left to write is returned.
    ///
    /// # Errors
    /// When the caller left.
    async fn follow(&mut self, feed: &mut Feed) -> Result<Bytes, Ended> {
        loop {
            let keepalive = self.written + self.exchange.config.stream.keepalive;
            let arrived = tokio::select! {
                biased;
                arrived = feed.wait() => Some(arrived),
                () = sleep_until(keepalive) => None,
                () = left(self.session) => return Err(Ended::CallerLeft),
            };
            let Some(arrived) = arrived else {
                let comment = feed.keepalive();
                self.write(Bytes::from_static(comment.as_bytes()), false)
                    .await?;
                continue;
            };
            let passed = feed.take(arrived).await;
            self.exchange.events += u64::from(passed.events);
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

    async fn write(&mut self, bytes: Bytes, last: bool) -> Result<(), Ended> {
        self.exchange.response_bytes += bytes.len() as u64;
        let write = self.exchange.config.timeouts.write;
        let deadline = (Instant::now() + write).min(self.stream + write);
        let write = Box::pin(self.session.write_response_body(bytes, last));
        within(deadline, write).await?;
        self.written = Instant::now();
        Ok(())
    }
}
