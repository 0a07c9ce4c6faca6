//! How a relay ends: its clocks, what is said of each end, and the waits on the caller that can end it.

use std::future::pending;
use std::time::Duration;

use http::header;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::{Instant, timeout, timeout_at};

use super::body::NoBody;
use super::upstream::Failure;
use crate::config::Timeouts;
use crate::rejection::{Delivery, Reason, Rejection};

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

impl From<NoBody> for Ended {
    fn from(none: NoBody) -> Self {
        match none {
            NoBody::Refused(rejection) => Self::Refused(rejection),
            NoBody::CallerLeft => Self::CallerLeft,
        }
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
    /// Reads the configured clocks, and what the request asks for, or `idle`, instead.
    pub(super) fn new(
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

/// Ends when the caller is gone. Bytes of a pipelined next request are no departure.
pub(super) async fn left(session: &mut ServerSession) {
    if let Ok(Some(_)) = session.read_body_or_idle(true).await {
        pending::<()>().await;
    }
}

/// The same, if there is a caller.
pub(super) async fn gone(session: &mut Option<&mut ServerSession>) {
    match session {
        Some(session) => left(session).await,
        None => pending().await,
    }
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

/// A write towards the caller for which Pingora has no clock: those of heads, and what flushes.
/// `limit` is what the session has for the others (`timeouts.write`).
///
/// # Errors
/// When the caller is gone, or does not read.
pub(super) async fn patiently<T>(
    limit: Option<Duration>,
    write: impl Future<Output = pingora::Result<T>>,
) -> pingora::Result<T> {
    let Some(limit) = limit else {
        return write.await;
    };
    match timeout(limit, write).await {
        Ok(written) => written,
        Err(_) => pingora::Error::e_explain(pingora::ErrorType::WriteTimedout, "nobody reads"),
    }
}

pub(super) fn internal(error: Box<pingora::Error>) -> Rejection {
    Rejection::new(
        Reason::Internal,
        "the answer could not be built; this is a bug",
    )
    .cause(Failure(error))
}

/// `agent_protocol_error`: the request was sent, and what came back is no HTTP.
pub(super) fn broken_http(error: Option<Box<pingora::Error>>) -> Rejection {
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

/// `agent_timeout`, naming the clock. The request had been sent.
pub(super) fn timed_out(clock: &'static str) -> Rejection {
    Rejection::new(
        Reason::AgentTimeout,
        format!("the agent did not answer in time (timeouts.{clock}); of a gateway, X-Timeout may ask for more"),
    )
    .fact("clock", clock)
    .delivered(Delivery::Sent)
}

/// `shutting_down`, for a call that was begun.
pub(super) fn shutting_down(delivered: Delivery) -> Rejection {
    Rejection::new(
        Reason::ShuttingDown,
        "this process is shutting down before the agent was done; ask again for the task",
    )
    .delivered(delivered)
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
    .delivered(Delivery::Sent)
}

pub(super) fn too_large(limit: u64) -> Rejection {
    Rejection::new(
        Reason::ResponseTooLarge,
        format!("the agent's answer is larger than {limit} bytes"),
    )
    .fact("limit", limit)
    .delivered(Delivery::Sent)
}
