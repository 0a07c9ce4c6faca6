//! Writes to the caller: heads with the fields of every answer, whole answers of the gateway's own, and waits that end
//! when the caller leaves.

pub(in crate::proxy) mod reject;

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::{Instant, timeout, timeout_at};

use crate::identity::Allowance;
use crate::ids::RequestId;
use crate::proxy::outcome::{ExchangeOutcome, Failure};
use crate::proxy::record::Exchange;
use crate::proxy::request::origin::Origins;
use crate::rejection::{REFUSED, Reason, Rejection, STREAM};

/// Says that a preference was applied (RFC 7240).
pub(in crate::proxy) const PREFERENCE_APPLIED: HeaderName =
    HeaderName::from_static("preference-applied");

/// Writes head and body within the session's write timeout.
///
/// # Errors
/// The client left, or does not read.
pub(super) async fn write_response(
    session: &mut ServerSession,
    head: ResponseHeader,
    body: Bytes,
) -> pingora::Result<()> {
    write_with_timeout(
        session.get_write_timeout(),
        write_answer(session, head, body),
    )
    .await
}

async fn write_answer(
    session: &mut ServerSession,
    head: ResponseHeader,
    body: Bytes,
) -> pingora::Result<()> {
    write_head(session, Box::new(head)).await?;
    session.write_response_body(body, true).await
}

/// Writes a head. Every answer begins here.
fn write_head(
    session: &mut ServerSession,
    head: Box<ResponseHeader>,
) -> impl Future<Output = pingora::Result<()>> {
    session.write_response_header(head)
}

/// Writes the head of an answer whose body follows in pieces, before `deadline`.
///
/// # Errors
/// [`ExchangeOutcome::CallerLeft`].
pub(super) fn send_head(
    session: &mut ServerSession,
    deadline: Instant,
    head: Box<ResponseHeader>,
) -> impl Future<Output = Result<(), ExchangeOutcome>> {
    write_within(deadline, write_head(session, head))
}

/// Writes such a head within the session's write timeout.
///
/// # Errors
/// The client left, or does not read.
pub(super) fn write_head_with_timeout(
    session: &mut ServerSession,
    head: ResponseHeader,
) -> impl Future<Output = pingora::Result<()>> {
    let limit = session.get_write_timeout();
    write_with_timeout(limit, write_head(session, Box::new(head)))
}

/// Sends the head of a stream, with the name by which its caller can resume it.
pub(in crate::proxy) async fn begin_stream(
    session: &mut ServerSession,
    exchange: &Exchange,
    mut head: ResponseHeader,
    name: &str,
) -> Result<(), ExchangeOutcome> {
    head.insert_header(STREAM, name).map_err(internal_error)?;
    if !head.headers.contains_key(header::CACHE_CONTROL) {
        let value = HeaderValue::from_static("no-cache");
        head.insert_header(header::CACHE_CONTROL, value)
            .map_err(internal_error)?;
    }
    head.insert_header("x-accel-buffering", "no")
        .map_err(internal_error)?;
    set_chunked(session, &mut head).map_err(internal_error)?;
    let deadline = Instant::now() + exchange.config.timeouts.write;
    send_head(session, deadline, Box::new(head)).await
}

/// Sets `X-Request-Id`, which every answer has.
pub(super) fn put_request_id(
    head: &mut ResponseHeader,
    request_id: &RequestId,
) -> pingora::Result<()> {
    head.append_header("x-request-id", request_id.as_str())?;
    Ok(())
}

/// Writes the answer to an exchange within `timeouts.write`, and records its status and size.
///
/// # Errors
/// [`ExchangeOutcome::CallerLeft`].
pub(super) async fn respond(
    session: &mut ServerSession,
    exchange: &mut Exchange,
    head: ResponseHeader,
    body: Bytes,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    exchange.answer.status = head.status.as_u16();
    exchange.answer.bytes += body.len() as u64;
    let deadline = Instant::now() + exchange.config.timeouts.write;
    write_within(deadline, write_answer(session, head, body)).await?;
    Ok(ExchangeOutcome::Answered)
}

/// Builds the head for the caller: the passed fields of the agent's head, or the gateway's own head, and the fields
/// of every answer.
///
/// # Errors
/// A field cannot be built. The parsers on both sides rule this out.
pub(in crate::proxy) fn response_head(
    mut head: ResponseHeader,
    request: &HeaderMap,
    origins: &Origins,
    exchange: &Exchange,
    completed: Option<String>,
) -> pingora::Result<ResponseHeader> {
    put_request_id(&mut head, &exchange.request_id)?;
    for (name, value) in exchange.allowance.iter().flat_map(Allowance::header_fields) {
        head.append_header(name, value)?;
    }
    if let Some(done) = completed {
        head.append_header(
            "x-a2a-completed",
            HeaderValue::from_str(&done).map_err(|e| {
                pingora::Error::because(pingora::ErrorType::InternalError, "a completion word", e)
            })?,
        )?;
    }
    origins.put_browser_fields(request, &mut head);
    Ok(head)
}

/// Field that marks a replayed answer, or one that a concurrent request receives as well.
pub(in crate::proxy) const REPLAY: &str = "idempotent-replay";

/// Field whose value `false` marks an answer that is passed on but not stored for replay.
pub(in crate::proxy) const KEPT: &str = "idempotent-kept";

/// True for fields by which a caller distinguishes the gateway's own answers from an agent's.
pub(in crate::proxy) fn is_proof(name: &HeaderName) -> bool {
    matches!(name.as_str(), REFUSED | STREAM | REPLAY | KEPT)
}

/// Waits until the caller is gone. Bytes of a pipelined next request do not count.
pub(in crate::proxy) async fn client_disconnected(session: &mut ServerSession) {
    if let Ok(Some(_)) = session.read_body_or_idle(true).await {
        pending::<()>().await;
    }
}

/// Waits until the caller is gone; forever if there is no caller.
pub(in crate::proxy) async fn caller_gone(session: &mut Option<&mut ServerSession>) {
    match session {
        Some(session) => client_disconnected(session).await,
        None => pending().await,
    }
}

/// Sets the framing of a body of unknown length: chunked for HTTP/1.1. HTTP/2 frames it, and an HTTP/1.0 caller
/// reads until the connection closes.
pub(in crate::proxy) fn set_chunked(
    session: &ServerSession,
    head: &mut ResponseHeader,
) -> pingora::Result<()> {
    if session.req_header().version == http::Version::HTTP_11 {
        head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
    }
    Ok(())
}

/// Writes to the caller before `deadline`. A write that fails or takes longer means that the caller left.
pub(in crate::proxy) async fn write_within<T>(
    deadline: Instant,
    write: impl Future<Output = pingora::Result<T>>,
) -> Result<T, ExchangeOutcome> {
    match timeout_at(deadline, write).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) | Err(_) => Err(ExchangeOutcome::CallerLeft),
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

pub(in crate::proxy) fn internal_error(error: Box<pingora::Error>) -> Rejection {
    Rejection::new(
        Reason::Internal,
        "the answer could not be built; this is a bug",
    )
    .with_cause(Failure(error))
}
