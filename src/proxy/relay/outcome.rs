//! The end of a relay: its outcome, its clocks, and the waits on the caller that can end it.

use std::future::pending;
use std::time::Duration;

use http::header;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::{Instant, timeout, timeout_at};

use super::upstream::Failure;
use crate::config::Timeouts;
use crate::rejection::{Delivery, Reason, Rejection};

/// The outcome of a relayed exchange.
pub(in crate::proxy) enum Ended {
    /// The whole answer was sent.
    Answered,
    /// No byte of an answer was sent: the caller gets the rejection.
    Refused(Rejection),
    /// Part of the answer was sent. The connection must be aborted, so that the caller does not take the part for the
    /// whole.
    BrokenOff(Rejection),
    /// The caller left, and the call was cancelled.
    CallerLeft,
}

impl From<Rejection> for Ended {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

/// Reasons for having no body.
pub(in crate::proxy) enum NoBody {
    /// The request is rejected, and the caller gets an answer.
    Refused(Rejection),
    /// The caller left, so there is no answer.
    CallerLeft,
}

impl From<Rejection> for NoBody {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

impl From<NoBody> for Ended {
    fn from(none: NoBody) -> Self {
        match none {
            NoBody::Refused(rejection) => Self::Refused(rejection),
            NoBody::CallerLeft => Self::CallerLeft,
        }
    }
}

/// The connection (of HTTP/2, the stream) had to be aborted.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) enum BrokenOff {
    /// The caller left, or does not read.
    CallerLeft,
    /// The gateway aborted it: the agent broke off, or timed out, after part of its answer was sent.
    Ours,
}

impl BrokenOff {
    /// Returns the outcome of sending the gateway's own answer: it fails only because of the caller.
    pub(in crate::proxy) fn unless<E>(answered: Result<(), E>) -> Result<(), Self> {
        answered.map_err(|_| Self::CallerLeft)
    }
}

/// The clocks of one exchange (`docs/reference/a2a.md`, "Clocks and limits").
#[derive(Clone, Copy)]
pub(in crate::proxy) struct Clocks {
    /// Maximum time from the sent request to the response head.
    pub(in crate::proxy) head: Duration,
    /// Maximum silence between two pieces.
    pub(in crate::proxy) idle: Duration,
    /// Deadline of a unary exchange.
    pub(in crate::proxy) total: Instant,
    /// Deadline of a stream.
    pub(in crate::proxy) stream: Instant,
}

impl Clocks {
    /// Takes the configured clocks, or `idle` and what the request asks for instead.
    pub(in crate::proxy) fn new(
        timeouts: &Timeouts,
        started: Instant,
        asked: Option<Duration>,
        idle: Option<Duration>,
    ) -> Self {
        Self {
            head: asked.unwrap_or(timeouts.head),
            idle: idle.unwrap_or(timeouts.idle),
            total: started + asked.unwrap_or(timeouts.total),
            stream: started + timeouts.stream.max(asked.unwrap_or_default()),
        }
    }
}

/// Waits until the caller is gone. Bytes of a pipelined next request do not count.
pub(in crate::proxy) async fn client_disconnected(session: &mut ServerSession) {
    if let Ok(Some(_)) = session.read_body_or_idle(true).await {
        pending::<()>().await;
    }
}

/// Waits until the caller is gone; forever if there is no caller.
pub(in crate::proxy) async fn gone(session: &mut Option<&mut ServerSession>) {
    match session {
        Some(session) => client_disconnected(session).await,
        None => pending().await,
    }
}

/// Sets the framing of a body of unknown length: chunked for HTTP/1.1. HTTP/2 frames it, and an HTTP/1.0 caller
/// reads until the connection closes.
pub(in crate::proxy) fn chunk(
    session: &ServerSession,
    head: &mut ResponseHeader,
) -> pingora::Result<()> {
    if session.req_header().version == http::Version::HTTP_11 {
        head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
    }
    Ok(())
}

/// Writes to the caller before `deadline`. A write that fails or takes longer means that the caller left.
pub(in crate::proxy) async fn within<T>(
    deadline: Instant,
    write: impl Future<Output = pingora::Result<T>>,
) -> Result<T, Ended> {
    match timeout_at(deadline, write).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) | Err(_) => Err(Ended::CallerLeft),
    }
}

/// Writes to the caller with a time limit where Pingora has none: heads and flushes. `limit` is the session's
/// limit of other writes (`timeouts.write`).
///
/// # Errors
/// The caller left, or does not read.
pub(in crate::proxy) async fn write_with_timeout<T>(
    limit: Option<Duration>,
    write: impl Future<Output = pingora::Result<T>>,
) -> pingora::Result<T> {
    let Some(limit) = limit else {
        return write.await;
    };
    match timeout(limit, write).await {
        Ok(written) => written,
        Err(_) => {
            pingora::Error::e_explain(pingora::ErrorType::WriteTimedout, "the peer does not read")
        }
    }
}

pub(in crate::proxy) fn internal(error: Box<pingora::Error>) -> Rejection {
    Rejection::new(
        Reason::Internal,
        "the answer could not be built; this is a bug",
    )
    .cause(Failure(error))
}

/// Builds `agent_protocol_error`: the request was sent, and the response is not HTTP.
pub(in crate::proxy) fn broken_http(error: Option<Box<pingora::Error>>) -> Rejection {
    let rejection = Rejection::new(
        Reason::AgentProtocolError,
        "the agent closed the connection or broke HTTP before its answer was complete",
    )
    .delivered(Delivery::Sent);
    match error {
        Some(error) => rejection.cause(Failure(error)),
        None => rejection,
    }
}

/// Builds `agent_timeout`, with the name of the clock. The request was already sent.
pub(in crate::proxy) fn timed_out(clock: &'static str) -> Rejection {
    Rejection::new(
        Reason::AgentTimeout,
        format!("the agent did not answer in time (timeouts.{clock}); of a gateway, X-Timeout may ask for more"),
    )
    .fact("clock", clock)
    .delivered(Delivery::Sent)
}

/// Builds `shutting_down` for a call that was already started.
pub(in crate::proxy) fn shutting_down(delivered: Delivery) -> Rejection {
    Rejection::new(
        Reason::ShuttingDown,
        "this process is shutting down before the agent was done; ask again for the task",
    )
    .delivered(delivered)
}

/// Builds `agent_silent`.
pub(in crate::proxy) fn silent(idle: Duration) -> Rejection {
    Rejection::new(
        Reason::AgentSilent,
        format!(
            "the agent sent nothing for {}",
            humantime::format_duration(idle)
        ),
    )
    .fact("clock", "idle")
    .delivered(Delivery::Sent)
}

pub(in crate::proxy) fn too_large(limit: u64) -> Rejection {
    Rejection::new(
        Reason::ResponseTooLarge,
        format!("the agent's answer is larger than {limit} bytes"),
    )
    .fact("limit", limit)
    .delivered(Delivery::Sent)
}
