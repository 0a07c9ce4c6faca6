//! Reads the caller's body, bounded in size and time, and completes the call.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Version, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::Request;
use super::origin::is_from_browser;
use crate::a2a::Generation;
use crate::a2a::accept::is_json;
use crate::a2a::envelope::{self, CompletedCall, Completion, Fault, FaultKind};
use crate::a2a::method::Method;
use crate::config::{CompletionMode, Config, Timeouts};
use crate::hierarchy::Permit;
use crate::identity::SLOW_BODY;
use crate::ids::WorkspaceId;
use crate::proxy::admit::{authorize_target, too_large};
use crate::proxy::connection::chunks;
use crate::proxy::load::Load;
use crate::proxy::offload;
use crate::proxy::outcome::{BodyError, ExchangeOutcome, box_cold_path};
use crate::proxy::record::Exchange;
use crate::proxy::respond::write_with_timeout;
use crate::rejection::{Reason, Rejection};
use crate::shares::{Account, Share};

/// Bytes of a body after which other calls of the thread have a turn.
const YIELD_EVERY: usize = 256 * 1024;

/// Checks the caller of a request again, and what it may reach.
///
/// # Errors
/// `unauthenticated`, `not_permitted`, `stopped`, `store_unavailable`.
pub(in crate::proxy) async fn recheck_caller(request: &mut Request<'_>) -> Result<(), Rejection> {
    let (gateway, exchange) = (&request.context.gateway, &mut *request.exchange);
    let (Some(proof), Some(target)) = (exchange.proof.clone(), exchange.callee.clone()) else {
        return Ok(());
    };
    gateway.identity.recheck(&proof).await?;
    authorize_target(gateway, exchange, proof, &target)
        .await
        .map(drop)
}

/// A body, with the share of the memory of bodies that it takes.
pub(in crate::proxy) struct ReceivedBody {
    pub(in crate::proxy) body: Bytes,
    pub(in crate::proxy) share: Share,
}

/// Checks the media type of a call of `account`, and reads its body.
///
/// # Errors
/// `unsupported_media_type`; as [`read_body`].
pub(in crate::proxy) async fn read_json(
    request: &mut Request<'_>,
    account: Account,
) -> Result<ReceivedBody, ExchangeOutcome> {
    check_media_type(&request.head().headers)?;
    read_any_type(request, account).await
}

/// Reads the whole body of any media type, and checks the caller again if that took long.
///
/// # Errors
/// As [`read_body`]; `unauthenticated`, `not_permitted`, `stopped`.
pub(in crate::proxy) async fn read_any_type(
    request: &mut Request<'_>,
    account: Account,
) -> Result<ReceivedBody, ExchangeOutcome> {
    let began = Instant::now();
    let (load, config) = (&request.context.relay.load, &request.exchange.config);
    let received = read_body(load, config, request.session, account).await?;
    if began.elapsed() >= SLOW_BODY {
        box_cold_path(recheck_caller(request)).await?;
    }
    Ok(received)
}

/// Reads the whole body of a request of `account`. Sends `100 Continue` first if the caller waits for it.
///
/// # Errors
/// `body_too_large`, `request_timeout`, `invalid_request` for broken framing, `overloaded` if the bodies of all
/// callers, or of this one, take too much memory; or the caller left.
pub(in crate::proxy) async fn read_body(
    load: &Load,
    config: &Config,
    session: &mut ServerSession,
    account: Account,
) -> Result<ReceivedBody, BodyError> {
    let limit = config.limits.request_bytes;
    let deadline = Instant::now() + config.timeouts.request_body;
    let mut share = load.new_share(account);
    send_continue(session).await?;
    let mut buffer = BodyBuffer::default();
    loop {
        let Some(piece) = next_piece(&config.timeouts, session, deadline).await? else {
            let body = buffer.into_bytes();
            return Ok(ReceivedBody { body, share });
        };
        if buffer.len() + piece.len() > limit.bytes() {
            return Err(too_large(limit.0).into());
        }
        load.reserve(&mut share, piece.len())?;
        let rounds = buffer.len() / YIELD_EVERY;
        buffer.push(piece);
        if buffer.len() / YIELD_EVERY > rounds {
            // A body that arrives as fast as it is read would be read in one turn of its thread.
            yield_now().await;
        }
    }
}

/// Sends `100 Continue` if the caller waits for it.
///
/// # Errors
/// The caller left.
pub(in crate::proxy) async fn send_continue(session: &mut ServerSession) -> Result<(), BodyError> {
    if !expects_continue(session.req_header()) {
        return Ok(());
    }
    let limit = session.get_write_timeout();
    let written = write_with_timeout(limit, session.write_continue_response()).await;
    written.map_err(|_| BodyError::CallerLeft)
}

/// Returns the next piece of a body; `None` at its end.
///
/// # Errors
/// `request_timeout`, `invalid_request` for broken framing; or the caller left. Bytes after such a body cannot be
/// parsed as a request, so the connection closes after the answer.
pub(in crate::proxy) async fn next_piece(
    timeouts: &Timeouts,
    session: &mut ServerSession,
    deadline: Instant,
) -> Result<Option<Bytes>, BodyError> {
    let read = timeout_at(deadline, session.read_request_body()).await;
    let failed = match read {
        Ok(Ok(piece)) => return Ok(piece),
        Ok(Err(error)) => read_failure(&error, timeouts),
        Err(_) => body_timeout(timeouts).into(),
    };
    session.set_keepalive(None);
    Err(failed)
}

/// The bytes read so far. A body that came in one piece is kept as that piece, without a copy.
#[derive(Default)]
struct BodyBuffer {
    first: Bytes,
    rest: BytesMut,
}

impl BodyBuffer {
    fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    fn push(&mut self, piece: Bytes) {
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = piece;
            return;
        }
        if !self.first.is_empty() {
            self.rest.reserve(2 * (self.first.len() + piece.len()));
            self.rest
                .extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.rest.extend_from_slice(&piece);
    }

    fn into_bytes(self) -> Bytes {
        if self.rest.is_empty() {
            self.first
        } else {
            self.rest.freeze()
        }
    }
}

/// Checks that the body is declared as JSON, without a content encoding. A missing type is accepted, except from a
/// browser: a cross-site page needs no preflight for a request without a type.
///
/// # Errors
/// `unsupported_media_type`.
pub(in crate::proxy) fn check_media_type(headers: &HeaderMap) -> Result<(), Rejection> {
    let refuse = |why: &'static str| Err(Rejection::new(Reason::UnsupportedMediaType, why));
    if headers.contains_key(header::CONTENT_ENCODING) {
        return refuse("send the body without Content-Encoding");
    }
    if headers.get_all(header::CONTENT_TYPE).iter().count() > 1 {
        return refuse("the request has several Content-Type fields; send one");
    }
    match headers.get(header::CONTENT_TYPE) {
        None if is_from_browser(headers) => refuse("send Content-Type: application/json"),
        None => Ok(()),
        Some(value) if value.to_str().is_ok_and(is_json) => Ok(()),
        Some(_) => refuse("send Content-Type: application/json"),
    }
}

/// True if the caller waits for `100 Continue`. HTTP/1.0 has none (RFC 9110, 10.1.1).
pub(in crate::proxy) fn expects_continue(head: &RequestHeader) -> bool {
    head.version > Version::HTTP_10 && head.headers.contains_key(header::EXPECT)
}

fn body_timeout(timeouts: &Timeouts) -> Rejection {
    Rejection::new(
        Reason::RequestTimeout,
        "the request body did not arrive in time",
    )
    .with_fact("clock", "request_body")
    .with_fact("limit", humantime::format_duration(timeouts.request_body))
}

fn read_failure(error: &pingora::Error, timeouts: &Timeouts) -> BodyError {
    use pingora::ErrorType;
    match error.etype() {
        ErrorType::ReadTimedout => body_timeout(timeouts).into(),
        ErrorType::ReadError if chunks::is_invalid_chunks(error) => broken_framing(),
        ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::H2Error => {
            BodyError::CallerLeft
        }
        _ => broken_framing(),
    }
}

fn broken_framing() -> BodyError {
    BodyError::Refused(Rejection::new(
        Reason::InvalidRequest,
        "the framing of the request body is broken",
    ))
}

/// Completes the call for its target (`docs/reference/a2a.md`, "Completion"), and records what was read from it.
///
/// # Errors
/// `parse_error`, `invalid_request`, `invalid_params`.
pub(in crate::proxy) async fn complete_body(
    exchange: &mut Exchange,
    permit: &Permit,
    body: &Bytes,
    call: &CallShape,
) -> Result<CompletedCall, Rejection> {
    // A body that is not even an object gets the general message of a route that takes messages only.
    let is_object = !call.message_only || body.trim_ascii_start().starts_with(b"{");
    let (complete, generation, accept_prefers_stream) =
        (call.complete, call.generation, call.prefers_stream);
    let completed = move |body: &Bytes, target: &WorkspaceId, caller: Option<&WorkspaceId>| {
        let completion = Completion {
            target: target.as_str(),
            caller: caller.map(WorkspaceId::as_str),
            complete,
            generation,
            accept_prefers_stream,
        };
        envelope::complete(body, &completion)
    };
    let (target, caller) = (permit.target(), permit.caller());
    let completed = if offload::is_long(body.len()) {
        let (body, target, caller) = (body.clone(), target.clone(), caller.cloned());
        box_cold_path(offload::run(move || {
            completed(&body, &target, caller.as_ref())
        }))
        .await
    } else {
        completed(body, target, caller)
    };
    match completed {
        Ok(mut completed) => {
            exchange.method = completed.method;
            exchange.rpc_id = completed.rpc_id.take();
            exchange.request_bytes = completed.body.len() as u64;
            if call.message_only {
                require_message(&completed, call)?;
            }
            Ok(completed)
        }
        Err(fault) => {
            exchange.rpc_id.clone_from(&fault.rpc_id);
            let refusal = fault_rejection(fault);
            Err(match is_object {
                true => refusal,
                false => Rejection::new(refusal.reason, NOT_A_MESSAGE),
            })
        }
    }
}

/// The inputs to the completion of a call besides its body.
pub(in crate::proxy) struct CallShape {
    /// The extent of completion.
    pub(in crate::proxy) complete: CompletionMode,
    /// The protocol generation of the target.
    pub(in crate::proxy) generation: Generation,
    /// True if the caller prefers a stream.
    pub(in crate::proxy) prefers_stream: bool,
    /// True if the body must be a message without an envelope.
    pub(in crate::proxy) message_only: bool,
}

impl CallShape {
    /// Returns the extent of completion of a call that the gateway builds: it has an envelope in any case.
    pub(in crate::proxy) const fn with_envelope(complete: CompletionMode) -> CompletionMode {
        match complete {
            CompletionMode::Off => CompletionMode::Bare,
            complete => complete,
        }
    }
}

/// Message for a body that is no message.
pub(in crate::proxy) const NOT_A_MESSAGE: &str = "this route takes a message alone, {\"message\": {…}}, or in a JSON-RPC call that sends one; POST other calls to \
     /workspaces/{id}/a2a";

/// Checks that the body was a message, and became the call that its route sends.
fn require_message(completed: &CompletedCall, shape: &CallShape) -> Result<(), Rejection> {
    let expected = if shape.prefers_stream {
        Method::SendStreamingMessage
    } else {
        Method::SendMessage
    };
    if completed.wrapped && completed.method == expected {
        return Ok(());
    }
    Err(Rejection::new(Reason::InvalidRequest, NOT_A_MESSAGE))
}

pub(in crate::proxy) fn fault_rejection(fault: Fault) -> Rejection {
    let reason = match fault.kind {
        FaultKind::ParseError => Reason::ParseError,
        FaultKind::InvalidRequest => Reason::InvalidRequest,
        FaultKind::InvalidParams => Reason::InvalidParams,
    };
    Rejection::new(reason, fault.message)
}
