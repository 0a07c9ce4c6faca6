//! Passes a stream of events on, event by event, and ends it in words when it is cut.
//!
//! Only whole events go out, so the caller is always between two events: that is where our comments
//! and the last event may stand, and a half-received event is dropped by not having been sent.

use bytes::Bytes;
use http::{HeaderValue, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v1::client::HttpSession;
use tokio::time::{Instant, sleep_until};

use super::ended::{
    Clocks, Ended, broken_http, chunk, internal, left, shutting_down, silent, timed_out, too_large,
    within,
};
use super::exchange::Exchange;
use super::rewrite::Rewrite;
use super::upstream::Home;
use crate::a2a::event::{self, Splitter};
use crate::drain::Cut;
use crate::rejection::Rejection;

/// One stream in progress. The gauge falls when it is dropped.
pub(super) struct OpenStream(prometheus::IntGauge);

impl OpenStream {
    pub(super) fn begin(gauge: &prometheus::IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// What ends a stream besides its agent and its caller.
pub(super) struct Ends<'a> {
    pub(super) clocks: &'a Clocks,
    /// Says when a drain is over.
    pub(super) cut: Cut,
    /// Whether the agent's framing says where the body ends.
    pub(super) framed: bool,
    /// How events are changed on their way.
    pub(super) rewrite: Option<Rewrite>,
}

/// Relays the stream to its end.
pub(super) async fn pass(
    session: &mut ServerSession,
    exchange: &mut Exchange,
    (mut upstream, home): (HttpSession, Home<'_>),
    mut head: ResponseHeader,
    ends: Ends<'_>,
) -> Result<Ended, Ended> {
    let _open = OpenStream::begin(&exchange.metrics.open_streams);
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
    .await?;
    let mut events = Events::new(session, exchange, ends);
    let last = events.pass_on(&mut upstream).await?;
    home.take_back(upstream).await;
    events.write(last, true).await?;
    Ok(Ended::Answered)
}

/// The loop's state.
struct Events<'a> {
    session: &'a mut ServerSession,
    exchange: &'a mut Exchange,
    clocks: &'a Clocks,
    splitter: Splitter,
    /// When the agent was last heard.
    heard: Instant,
    /// When the caller was last written to.
    written: Instant,
    /// When the final event was passed on, if it was.
    finished: Option<Instant>,
    /// Says when a drain is over.
    cut: Cut,
    /// Whether the agent's framing says where the body ends.
    framed: bool,
    /// How events are changed on their way.
    rewrite: Option<Rewrite>,
}

/// What a wait ended with.
enum Step {
    Piece(Bytes),
    AgentEnded,
    Keepalive,
    Finished,
    Cut(Rejection),
}

impl<'a> Events<'a> {
    fn new(
        session: &'a mut ServerSession,
        exchange: &'a mut Exchange,
        Ends {
            clocks,
            cut,
            framed,
            rewrite,
        }: Ends<'a>,
    ) -> Self {
        let now = Instant::now();
        Self {
            session,
            exchange,
            clocks,
            splitter: Splitter::new(),
            heard: now,
            written: now,
            finished: None,
            cut,
            framed,
            rewrite,
        }
    }

    /// Passes events on until the agent ends the stream or something cuts it. What is left to write
    /// is returned.
    async fn pass_on(&mut self, upstream: &mut HttpSession) -> Result<Bytes, Ended> {
        loop {
            match self.step(upstream).await? {
                Step::Piece(piece) => {
                    self.heard = Instant::now();
                    if let Some(cut) = self.piece(piece).await? {
                        return Ok(self.parting(&cut));
                    }
                }
                Step::Keepalive => {
                    let comment = self.splitter.framing().keepalive();
                    self.write(Bytes::from_static(comment.as_bytes()), false)
                        .await?;
                }
                // Without framing a connection that breaks looks like one that ends: half an event
                // tells the two apart.
                Step::AgentEnded if !self.framed && self.splitter.pending_len() > 0 => {
                    return Ok(self.parting(&broken_http(None)));
                }
                Step::AgentEnded => {
                    let rest = std::mem::take(&mut self.splitter).take_rest();
                    return Ok(self.changed(rest));
                }
                Step::Finished => return Ok(Bytes::new()),
                Step::Cut(rejection) => return Ok(self.parting(&rejection)),
            }
        }
    }

    /// Waits for the next thing to happen: a piece, a clock, the caller's end, our own.
    async fn step(&mut self, upstream: &mut HttpSession) -> Result<Step, Ended> {
        let config = &self.exchange.config;
        let idle = self.heard + self.clocks.idle;
        let keepalive = self.written + config.stream.keepalive;
        let grace = self.finished.map(|at| at + config.stream.final_grace);
        let wake = [Some(idle), Some(keepalive), Some(self.clocks.stream), grace];
        let wake = wake.into_iter().flatten().min().unwrap_or(idle);
        tokio::select! {
            biased;
            read = upstream.read_body_bytes() => match read {
                Ok(Some(piece)) => Ok(Step::Piece(piece)),
                Ok(None) => Ok(Step::AgentEnded),
                Err(error) => Ok(Step::Cut(broken_http(Some(error)))),
            },
            () = sleep_until(wake) => Ok(if grace.is_some_and(|at| at <= wake) {
                Step::Finished
            } else if self.clocks.stream <= wake {
                Step::Cut(timed_out("stream"))
            } else if idle <= wake {
                Step::Cut(silent(self.clocks.idle))
            } else {
                Step::Keepalive
            }),
            () = self.cut.requested() => Ok(Step::Cut(shutting_down("true"))),
            () = left(self.session) => Err(Ended::CallerLeft),
        }
    }

    /// Sends the events that the piece completed.
    async fn piece(&mut self, piece: Bytes) -> Result<Option<Rejection>, Ended> {
        let passed = self.splitter.push(piece);
        let limit = self.exchange.config.limits.stream_bytes.0;
        let whole = self.exchange.response_bytes + passed.bytes.len() as u64;
        if whole + self.splitter.pending_len() as u64 > limit {
            return Ok(Some(too_large(limit)));
        }
        if passed.events > 0 {
            self.exchange.events += u64::from(passed.events);
            self.finished = passed.last_was_final.then(Instant::now);
            self.exchange.look_at_events(&passed.bytes).await;
        }
        if !passed.bytes.is_empty() {
            let events = self.changed(passed.bytes);
            self.write(events, false).await?;
        }
        Ok(None)
    }

    fn changed(&self, events: Bytes) -> Bytes {
        match &self.rewrite {
            Some(rewrite) => rewrite.events(events),
            None => events,
        }
    }

    async fn write(&mut self, bytes: Bytes, last: bool) -> Result<(), Ended> {
        self.exchange.response_bytes += bytes.len() as u64;
        let write = self.exchange.config.timeouts.write;
        let deadline = (Instant::now() + write).min(self.clocks.stream + write);
        within(deadline, self.session.write_response_body(bytes, last)).await?;
        self.written = Instant::now();
        Ok(())
    }

    /// The last event, which says why the stream was cut.
    fn parting(&mut self, cut: &Rejection) -> Bytes {
        let body = cut.rpc_body(&self.exchange.request_id, self.exchange.rpc_id.as_deref());
        self.exchange.rejected(cut);
        event::final_event(&body, self.splitter.framing())
    }
}
