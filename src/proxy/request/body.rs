//! Reads the caller's body, bounded in size and time, and completes the call.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Version, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::Request;
use super::origin::browser_made;
use crate::a2a::Generation;
use crate::a2a::accept::is_json;
use crate::a2a::envelope::{self, Completed, Completion, Fault, FaultKind};
use crate::a2a::method::Method;
use crate::config::{Complete, Config, Timeouts};
use crate::hierarchy::Permit;
use crate::identity::SLOW_BODY;
use crate::ids::WorkspaceId;
use crate::proxy::admit::{permit, too_large};
use crate::proxy::beside;
use crate::proxy::connection::chunks;
use crate::proxy::load::Load;
use crate::proxy::outcome::{Ended, NoBody, rare};
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
pub(in crate::proxy) async fn check_again(request: &mut Request<'_>) -> Result<(), Rejection> {
    let (gateway, exchange) = (&request.context.gateway, &mut *request.exchange);
    let (Some(proof), Some(target)) = (exchange.proof.clone(), exchange.callee.clone()) else {
        return Ok(());
    };
    gateway.identity.check_again(&proof).await?;
    permit(gateway, exchange, proof, &target).await.map(drop)
}

/// A body, with the share of the memory of bodies that it takes.
pub(in crate::proxy) struct Received {
    pub(in crate::proxy) body: Bytes,
    pub(in crate::proxy) share: Share,
}

/// Checks the media type of a call of `account`, and reads its body.
///
/// # Errors
/// `unsupported_media_type`; as [`read`].
pub(in crate::proxy) async fn read_json(
    request: &mut Request<'_>,
    account: Account,
) -> Result<Received, Ended> {
    check_media_type(&request.head().headers)?;
    read_any(request, account).await
}

/// Reads the whole body of any media type, and checks the caller again if that took long.
///
/// # Errors
/// As [`read`]; `unauthenticated`, `not_permitted`, `stopped`.
pub(in crate::proxy) async fn read_any(
    request: &mut Request<'_>,
    account: Account,
) -> Result<Received, Ended> {
    let began = Instant::now();
    let (load, config) = (&request.context.relay.load, &request.exchange.config);
    let received = read(load, config, request.session, account).await?;
    if began.elapsed() >= SLOW_BODY {
        rare(check_again(request)).await?;
    }
    Ok(received)
}

/// Reads the whole body of a request of `account`. Sends `100 Continue` first if the caller waits for it.
///
/// # Errors
/// `body_too_large`, `request_timeout`, `invalid_request` for broken framing, `overloaded` if the bodies of all
/// callers, or of this one, take too much memory; or the caller left.
pub(in crate::proxy) async fn read(
    load: &Load,
    config: &Config,
    session: &mut ServerSession,
    account: Account,
) -> Result<Received, NoBody> {
    let limit = config.limits.request_bytes;
    let deadline = Instant::now() + config.timeouts.request_body;
    let mut share = load.share(account);
    bid_continue(session).await?;
    let mut held = Held::default();
    loop {
        let Some(piece) = next_piece(&config.timeouts, session, deadline).await? else {
            let body = held.into_bytes();
            return Ok(Received { body, share });
        };
        if held.len() + piece.len() > limit.bytes() {
            return Err(too_large(limit.0).into());
        }
        load.hold(&mut share, piece.len())?;
        let rounds = held.len() / YIELD_EVERY;
        held.keep(piece);
        if held.len() / YIELD_EVERY > rounds {
            // A body that arrives as fast as it is read would be read in one turn of its thread.
            yield_now().await;
        }
    }
}

/// Sends `100 Continue` if the caller waits for it.
///
/// # Errors
/// The caller left.
pub(in crate::proxy) async fn bid_continue(session: &mut ServerSession) -> Result<(), NoBody> {
    if !expects_continue(session.req_header()) {
        return Ok(());
    }
    let limit = session.get_write_timeout();
    let written = write_with_timeout(limit, session.write_continue_response()).await;
    written.map_err(|_| NoBody::CallerLeft)
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
) -> Result<Option<Bytes>, NoBody> {
    let read = timeout_at(deadline, session.read_request_body()).await;
    let failed = match read {
        Ok(Ok(piece)) => return Ok(piece),
        Ok(Err(error)) => broken(&error, timeouts),
        Err(_) => too_slow(timeouts).into(),
    };
    session.set_keepalive(None);
    Err(failed)
}

/// The bytes read so far. A body that came in one piece is kept as that piece, without a copy.
#[derive(Default)]
struct Held {
    first: Bytes,
    rest: BytesMut,
}

impl Held {
    fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    fn keep(&mut self, piece: Bytes) {
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
        None if browser_made(headers) => refuse("send Content-Type: application/json"),
        None => Ok(()),
        Some(value) if value.to_str().is_ok_and(is_json) => Ok(()),
        Some(_) => refuse("send Content-Type: application/json"),
    }
}

/// True if the caller waits for `100 Continue`. HTTP/1.0 has none (RFC 9110, 10.1.1).
pub(in crate::proxy) fn expects_continue(head: &RequestHeader) -> bool {
    head.version > Version::HTTP_10 && head.headers.contains_key(header::EXPECT)
}

fn too_slow(timeouts: &Timeouts) -> Rejection {
    Rejection::new(
        Reason::RequestTimeout,
        "the request body did not arrive in time",
    )
    .fact("clock", "request_body")
    .fact("limit", humantime::format_duration(timeouts.request_body))
}

fn broken(error: &pingora::Error, timeouts: &Timeouts) -> NoBody {
    use pingora::ErrorType;
    match error.etype() {
        ErrorType::ReadTimedout => too_slow(timeouts).into(),
        ErrorType::ReadError if chunks::broke(error) => broken_framing(),
        ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::H2Error => {
            NoBody::CallerLeft
        }
        _ => broken_framing(),
    }
}

fn broken_framing() -> NoBody {
    NoBody::Refused(Rejection::new(
        Reason::InvalidRequest,
        "the framing of the request body is broken",
    ))
}

/// Completes the call for its target (`docs/reference/a2a.md`, "Completion"), and records what was read from it.
///
/// # Errors
/// `parse_error`, `invalid_request`, `invalid_params`.
pub(in crate::proxy) async fn complete(
    exchange: &mut Exchange,
    permit: &Permit,
    body: &Bytes,
    call: &CallShape,
) -> Result<Completed, Rejection> {
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
    let completed = if beside::is_long(body.len()) {
        let (body, target, caller) = (body.clone(), target.clone(), caller.cloned());
        rare(beside::run(move || {
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
            let refusal = refusal(fault);
            Err(match is_object {
                true => refusal,
                false => Rejection::new(refusal.reason, MESSAGE_WANTED),
            })
        }
    }
}

/// The inputs to the completion of a call besides its body.
pub(in crate::proxy) struct CallShape {
    /// The extent of completion.
    pub(in crate::proxy) complete: Complete,
    /// The protocol generation of the target.
    pub(in crate::proxy) generation: Generation,
    /// True if the caller prefers a stream.
    pub(in crate::proxy) prefers_stream: bool,
    /// True if the body must be a message without an envelope.
    pub(in crate::proxy) message_only: bool,
}

impl CallShape {
    /// Returns the extent of completion of a call that the gateway builds: it has an envelope in any case.
    pub(in crate::proxy) const fn with_envelope(complete: Complete) -> Complete {
        match complete {
            Complete::Off => Complete::Bare,
            complete => complete,
        }
    }
}

/// Message for a body that is no message.
pub(in crate::proxy) const MESSAGE_WANTED: &str = "this route takes a message alone, {\"message\": {…}}, or in a JSON-RPC call that sends one; POST other calls to \
     /workspaces/{id}/a2a";

/// Checks that the body was a message, and became the call that its route sends.
fn require_message(completed: &Completed, shape: &CallShape) -> Result<(), Rejection> {
    let expected = if shape.prefers_stream {
        Method::SendStreamingMessage
    } else {
        Method::SendMessage
    };
    if completed.wrapped && completed.method == expected {
        return Ok(());
    }
    Err(Rejection::new(Reason::InvalidRequest, MESSAGE_WANTED))
}

pub(in crate::proxy) fn refusal(fault: Fault) -> Rejection {
    let reason = match fault.kind {
        FaultKind::ParseError => Reason::ParseError,
        FaultKind::InvalidRequest => Reason::InvalidRequest,
        FaultKind::InvalidParams => Reason::InvalidParams,
    };
    Rejection::new(reason, fault.message)
}
