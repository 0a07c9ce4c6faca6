//! Forwards an admitted call and brings the answer back under its clocks and bounds.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{StatusCode, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v1::client::HttpSession;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::exchange::Exchange;
use super::fields::response_head;
use super::upstream::{Call, Failure};
use super::{Proxy, stream};
use crate::directory::Agent;
use crate::drain::Cut;
use crate::metrics::Shape;
use crate::rejection::{Reason, Rejection};

/// A unary answer is held back up to this size, so that most failures can still be told as an error
/// instead of a broken connection. A caller cannot use half a JSON document anyway.
const HELD_BYTES_MAX: usize = 32 * 1024;

/// How a relayed exchange ended.
pub(super) enum Ended {
    /// The answer went out whole.
    Answered,
    /// Nothing went out yet: the caller is told.
    Refused(Rejection),
    /// Part of the answer went out: the connection must be broken off, so that a cut is never taken
    /// for the whole.
    BrokenOff(Rejection),
    /// The caller is gone, and the call was cancelled.
    CallerLeft,
}

impl From<Rejection> for Ended {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

/// The clocks of one exchange (contract §3.3).
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    /// From the request sent to the response head.
    pub(super) head: Duration,
    /// Silence between two pieces.
    pub(super) idle: Duration,
    /// When a unary exchange must be over.
    pub(super) total: Instant,
    /// When a stream must be over.
    pub(super) stream: Instant,
}

impl Clocks {
    /// Reads the configured clocks, and what the request or the workspace asks for instead.
    pub(super) fn new(
        proxy: &Proxy,
        started: Instant,
        asked: Option<Duration>,
        agent: &Agent,
    ) -> Self {
        let timeouts = &proxy.gateway.config.timeouts;
        Self {
            head: asked.unwrap_or(timeouts.head),
            idle: agent.idle_timeout.unwrap_or(timeouts.idle),
            total: started + asked.unwrap_or(timeouts.total),
            stream: started + timeouts.stream.max(asked.unwrap_or_default()),
        }
    }
}

/// What is forwarded, and how it was completed.
pub(super) struct Forward {
    /// Where to.
    pub(super) agent: Arc<Agent>,
    /// The request for the wire.
    pub(super) call: Call,
    /// For `X-A2A-Completed`.
    pub(super) completed: Option<String>,
    /// When it must be over.
    pub(super) clocks: Clocks,
}

/// Runs the whole relay. Dropping the future cancels the call.
pub(super) async fn relay(
    proxy: &Proxy,
    session: &mut ServerSession,
    exchange: &mut Exchange,
    forward: Forward,
) -> Ended {
    run(proxy, session, exchange, forward)
        .await
        .unwrap_or_else(|ended| ended)
}

async fn run(
    proxy: &Proxy,
    session: &mut ServerSession,
    exchange: &mut Exchange,
    forward: Forward,
) -> Result<Ended, Ended> {
    let Forward {
        agent,
        call,
        completed,
        clocks,
    } = forward;
    let gateway = &proxy.gateway;
    let _slot = gateway.directory.slot(&agent)?;
    let address = gateway.directory.address(&agent.endpoint).await?;
    let peer = proxy.upstream.peer(&agent, address);
    let mut cut = gateway.cut();
    let sent = proxy
        .upstream
        .send(&peer, &call, clocks.total, &gateway.metrics);
    let mut upstream = tokio::select! {
        biased;
        sent = sent => sent?,
        () = cut.requested() => return Err(shutting_down("unknown").into()),
    };
    drop(call);
    await_head(session, &mut upstream, &clocks, &mut cut).await?;
    exchange.head = Some(exchange.started.elapsed());
    let head = upstream.resp_header().ok_or_else(|| broken_http(None))?;
    refuse_by_framing(head, &upstream.get_headers_raw_bytes())?;
    refuse_by_head(head, gateway.config.limits.response_bytes.0)?;
    let is_stream = is_event_stream(head);
    let mut answer = response_head(
        head,
        &session.req_header().headers,
        &proxy.origins,
        &exchange.request_id,
        completed,
    )
    .map_err(internal)?;
    exchange.status = head.status.as_u16();
    let length = content_length(head);
    let ended = if is_stream {
        exchange.shape = Shape::Stream;
        let framed = length.is_some() || head.headers.contains_key(header::TRANSFER_ENCODING);
        let ends = stream::Ends {
            clocks: &clocks,
            cut,
            framed,
        };
        stream::pass(proxy, session, exchange, &mut upstream, answer, ends).await?
    } else {
        let limit = gateway.config.limits.response_bytes.bytes();
        let mut unary = Unary {
            limit,
            clocks: &clocks,
            cut,
        };
        unary
            .pass(session, exchange, &mut upstream, &mut answer, length)
            .await?
    };
    // A stream that was cut leaves its connection in the middle of a body.
    if upstream.is_body_done() {
        proxy.upstream.release(upstream, &peer).await;
    }
    Ok(ended)
}

/// Waits for the head, past informational ones, until a clock or the caller ends it.
async fn await_head(
    session: &mut ServerSession,
    upstream: &mut HttpSession,
    clocks: &Clocks,
    cut: &mut Cut,
) -> Result<(), Ended> {
    let head = Instant::now() + clocks.head;
    let deadline = head.min(clocks.total);
    while upstream
        .resp_header()
        .is_none_or(|h| h.status.is_informational())
    {
        tokio::select! {
            biased;
            read = upstream.read_response() => {
                read.map_err(|e| broken_http(Some(e)))?;
            }
            () = sleep_until(deadline) => {
                let clock = if head <= clocks.total { "head" } else { "total" };
                return Err(timed_out(clock).into());
            }
            () = left(session) => return Err(Ended::CallerLeft),
            () = cut.requested() => return Err(shutting_down("true").into()),
        }
        if upstream
            .resp_header()
            .is_some_and(|h| h.status == StatusCode::SWITCHING_PROTOCOLS)
        {
            return Err(broken_http(None).into());
        }
    }
    Ok(())
}

/// Ends when the caller is gone. Bytes of a pipelined next request are no departure.
pub(super) async fn left(session: &mut ServerSession) {
    if let Ok(Some(_)) = session.read_body_or_idle(true).await {
        pending::<()>().await;
    }
}

/// Refuses an answer whose end is a matter of opinion, or whose coding would be lost on the way, as
/// we refuse such requests (RFC 9112, 6.1 and 6.3).
fn refuse_by_framing(head: &ResponseHeader, raw: &[u8]) -> Result<(), Rejection> {
    let mut codings = head.headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return Ok(());
    };
    // Pingora has dropped the Content-Length by now; the raw head still has it.
    let both = raw.split(|b| *b == b'\n').any(|line| {
        line.get(..15)
            .is_some_and(|name| name.eq_ignore_ascii_case(b"content-length:"))
    });
    let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    if both || !chunked {
        return Err(broken_http(None));
    }
    Ok(())
}

fn refuse_by_head(head: &ResponseHeader, limit: u64) -> Result<(), Rejection> {
    if head.status.is_redirection() {
        return Err(Rejection::new(
            Reason::AgentRedirected,
            "the agent answered with a redirect, which is never followed; register its final URL",
        )
        .fact("delivered", "true"));
    }
    let coded = head.headers.get(header::CONTENT_ENCODING);
    if is_event_stream(head) && coded.is_some_and(|c| c.as_bytes() != b"identity") {
        return Err(Rejection::new(
            Reason::AgentProtocolError,
            "the agent compressed a stream of events, which can't be passed on event by event",
        )
        .fact("delivered", "true"));
    }
    match content_length(head) {
        Some(length) if length > limit && !is_event_stream(head) => Err(too_large(limit)),
        _ => Ok(()),
    }
}

fn content_length(head: &ResponseHeader) -> Option<u64> {
    head.headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Decided by the response, never by the method: a streaming call may be answered by one error.
fn is_event_stream(head: &ResponseHeader) -> bool {
    const TYPE: &[u8] = b"text/event-stream";
    head.headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes().trim_ascii_start();
        value
            .get(..TYPE.len())
            .is_some_and(|essence| essence.eq_ignore_ascii_case(TYPE))
            && matches!(value.get(TYPE.len()), None | Some(b';' | b' ' | b'\t'))
    })
}

/// One answer in one body.
struct Unary<'a> {
    limit: usize,
    clocks: &'a Clocks,
    /// Says when a drain is over.
    cut: Cut,
}

impl Unary<'_> {
    async fn pass(
        &mut self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        upstream: &mut HttpSession,
        head: &mut ResponseHeader,
        length: Option<u64>,
    ) -> Result<Ended, Ended> {
        let mut held = BytesMut::new();
        let mut read = 0_usize;
        let mut sent = false;
        loop {
            let piece = match self.piece(session, upstream).await {
                Ok(piece) => piece,
                Err(Ended::Refused(rejection)) if sent => return Err(Ended::BrokenOff(rejection)),
                Err(ended) => return Err(ended),
            };
            let Some(piece) = piece else { break };
            read += piece.len();
            if read > self.limit {
                let rejection = too_large(self.limit as u64);
                return Err(if sent {
                    Ended::BrokenOff(rejection)
                } else {
                    rejection.into()
                });
            }
            if !sent && held.len() + piece.len() <= HELD_BYTES_MAX {
                // The usual answer comes in one piece and is not copied again.
                held = if held.is_empty() {
                    BytesMut::from(piece)
                } else {
                    joined(held, &piece)
                };
                continue;
            }
            if !sent {
                sent = true;
                self.begin(session, head, length).await?;
                self.write(session, exchange, held.split().freeze(), false)
                    .await?;
            }
            self.write(session, exchange, piece, false).await?;
        }
        if !sent {
            self.begin(session, head, Some(held.len() as u64)).await?;
        }
        self.write(session, exchange, held.freeze(), true).await?;
        Ok(Ended::Answered)
    }

    /// The next piece of the body, or what ended the wait for it.
    async fn piece(
        &mut self,
        session: &mut ServerSession,
        upstream: &mut HttpSession,
    ) -> Result<Option<Bytes>, Ended> {
        if upstream.is_body_done() {
            return Ok(None);
        }
        let idle = Instant::now() + self.clocks.idle;
        tokio::select! {
            biased;
            read = upstream.read_body_bytes() => read.map_err(|e| broken_http(Some(e)).into()),
            () = sleep_until(idle.min(self.clocks.total)) => {
                Err(if idle < self.clocks.total { silent(self.clocks.idle) } else { timed_out("total") }.into())
            }
            () = left(session) => Err(Ended::CallerLeft),
            () = self.cut.requested() => Err(shutting_down("true").into()),
        }
    }

    async fn begin(
        &self,
        session: &mut ServerSession,
        head: &mut ResponseHeader,
        length: Option<u64>,
    ) -> Result<(), Ended> {
        let bodiless = matches!(
            head.status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT
        );
        match length {
            Some(_) if bodiless && head.status == StatusCode::NO_CONTENT => {}
            Some(length) => {
                head.insert_header(header::CONTENT_LENGTH, length)
                    .map_err(internal)?;
            }
            None => chunk(session, head).map_err(internal)?,
        }
        within(
            self.clocks.total,
            session.write_response_header(Box::new(head.clone())),
        )
        .await
    }

    async fn write(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        piece: Bytes,
        last: bool,
    ) -> Result<(), Ended> {
        exchange.response_bytes += piece.len() as u64;
        within(self.clocks.total, session.write_response_body(piece, last)).await
    }
}

fn joined(mut held: BytesMut, piece: &[u8]) -> BytesMut {
    held.extend_from_slice(piece);
    held
}

/// A body of unknown length is chunked for HTTP/1.1; HTTP/2 frames it, and an HTTP/1.0 caller reads
/// until the connection closes.
pub(super) fn chunk(session: &ServerSession, head: &mut ResponseHeader) -> pingora::Result<()> {
    if session.req_header().version == http::Version::HTTP_11 {
        head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
    }
    Ok(())
}

/// A write towards the caller. One that blocks past the deadline, or fails, means nobody reads.
pub(super) async fn within<T>(
    deadline: Instant,
    write: impl Future<Output = pingora::Result<T>>,
) -> Result<T, Ended> {
    match timeout_at(deadline, write).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) | Err(_) => Err(Ended::CallerLeft),
    }
}

pub(super) fn internal(error: Box<pingora::Error>) -> Rejection {
    Rejection::new(
        Reason::Internal,
        "the gateway could not build its answer; this is a bug",
    )
    .cause(Failure(error))
}

/// `agent_protocol_error`: the request was sent, and what came back is no HTTP.
pub(super) fn broken_http(error: Option<Box<pingora::Error>>) -> Rejection {
    let rejection = Rejection::new(
        Reason::AgentProtocolError,
        "the agent closed the connection or broke HTTP before its answer was complete",
    )
    .fact("delivered", "true");
    match error {
        Some(error) => rejection.cause(Failure(error)),
        None => rejection,
    }
}

/// `agent_timeout`, naming the clock. The request had been sent.
pub(super) fn timed_out(clock: &'static str) -> Rejection {
    Rejection::new(
        Reason::AgentTimeout,
        format!("the agent did not answer in time (timeouts.{clock}); X-Timeout may ask for more"),
    )
    .fact("clock", clock)
    .fact("delivered", "true")
}

/// `shutting_down`, for a call that was begun.
pub(super) fn shutting_down(delivered: &'static str) -> Rejection {
    Rejection::new(
        Reason::ShuttingDown,
        "the gateway is shutting down before the agent was done; ask again for the task",
    )
    .fact("delivered", delivered)
}

/// `agent_silent`.
pub(super) fn silent(idle: Duration) -> Rejection {
    Rejection::new(
        Reason::AgentSilent,
        format!(
            "the agent sent nothing for {}",
            humantime::format_duration(idle)
        ),
    )
    .fact("clock", "idle")
    .fact("delivered", "true")
}

pub(super) fn too_large(limit: u64) -> Rejection {
    Rejection::new(
        Reason::ResponseTooLarge,
        format!("the agent's answer is larger than {limit} bytes"),
    )
    .fact("limit", limit)
    .fact("delivered", "true")
}
