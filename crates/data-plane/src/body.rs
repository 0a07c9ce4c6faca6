//! Reads the caller's body, bounded in size, memory and time.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Version, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use crate::admission::{Load, is_from_browser, too_large};
use crate::listener::{write_deadline, write_within};
use crate::policy::recheck_caller;
use crate::record::{ExchangeError, box_cold_path};
use crate::services::{ReceivedBody, Request};
use a2a::accept::is_json;
use access::identity::SLOW_BODY;
use http1::is_invalid_chunks;
use kernel::config::{Config, Timeouts};
use kernel::rejection::{AtStage as _, Reason, Rejection};
use kernel::shares::Account;
use kernel::stage::Stage;

/// Bytes of a body after which other calls of the thread have a turn.
const YIELD_EVERY: usize = 256 * 1024;

/// Checks the media type of a call of `account`, and reads its body.
///
/// # Errors
/// `unsupported_media_type`; as [`read_body`].
pub(super) async fn read_json(
    request: &mut Request<'_>,
    account: Account,
) -> Result<ReceivedBody, ExchangeError> {
    check_media_type(&request.head().headers).at(Stage::Body)?;
    read_any_type(request, account).await
}

/// Reads the whole body of any media type, and checks the caller again if that took long.
///
/// # Errors
/// As [`read_body`]; `unauthenticated`, `not_permitted`, `stopped`.
pub(super) async fn read_any_type(
    request: &mut Request<'_>,
    account: Account,
) -> Result<ReceivedBody, ExchangeError> {
    if let Some(received) = request.early_body.take() {
        return Ok(received);
    }
    let began = Instant::now();
    let (load, config) = (&request.context.relay.load, &request.exchange.call.config);
    let received = read_body(load, config, request.session, account).await;
    let received = received.at(Stage::Body)?;
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
pub(super) async fn read_body(
    load: &Load,
    config: &Config,
    session: &mut ServerSession,
    account: Account,
) -> Result<ReceivedBody, ExchangeError> {
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
pub(super) async fn send_continue(session: &mut ServerSession) -> Result<(), ExchangeError> {
    if !expects_continue(session.req_header()) {
        return Ok(());
    }
    write_within(write_deadline(session), session.write_continue_response()).await
}

/// Returns the next piece of a body; `None` at its end.
///
/// # Errors
/// `request_timeout`, `invalid_request` for broken framing; or the caller left. Bytes after such a body cannot be
/// parsed as a request, so the connection closes after the answer.
pub(super) async fn next_piece(
    timeouts: &Timeouts,
    session: &mut ServerSession,
    deadline: Instant,
) -> Result<Option<Bytes>, ExchangeError> {
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
pub(super) fn check_media_type(headers: &HeaderMap) -> Result<(), Rejection> {
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
pub(super) fn expects_continue(head: &RequestHeader) -> bool {
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

fn read_failure(error: &pingora::Error, timeouts: &Timeouts) -> ExchangeError {
    use pingora::ErrorType;
    match error.etype() {
        ErrorType::ReadTimedout => body_timeout(timeouts).into(),
        ErrorType::ReadError if is_invalid_chunks(error) => broken_framing(),
        ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::H2Error => {
            ExchangeError::CallerLeft
        }
        _ => broken_framing(),
    }
}

fn broken_framing() -> ExchangeError {
    ExchangeError::Refused(Rejection::new(
        Reason::InvalidRequest,
        "the framing of the request body is broken",
    ))
}
