//! `GET /ws`: events over a WebSocket (`docs/reference/events.md`, "Events"; RFC 6455). The data plane completes the
//! handshake with this module's 101, and passes raw bytes: the request body carries the input and the response body the
//! output.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse as _, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{SinkExt, Stream, StreamExt};
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{HeaderName, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, duplex, join};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};
use tokio_util::io::{ReaderStream, StreamReader};

use super::watch::{EndReason, Step, Watch, Watcher};
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::metrics::EventReader;
use kernel::rejection::{Reason, Rejection};

/// Interval of pings. A client that has not answered one when the next is due is gone.
const PING_EVERY: Duration = Duration::from_secs(30);

/// Maximum time for writing a frame.
const WRITE_MAX: Duration = Duration::from_secs(12);

/// Maximum time for the client's answer to a close frame.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Buffered output bytes between this module and the connection.
const PIPE_BYTES: usize = 8 * 1024;

/// Maximum bytes of a received message: only pings and closes are expected.
const INBOUND_BYTES_MAX: usize = 4 * 1024;

/// Maximum messages received within [`INBOUND_SPAN`].
const INBOUND_MAX: u32 = 200;

/// Maximum bytes received within [`INBOUND_SPAN`]: fragments of an endless message count as no message, but cost time.
const INBOUND_SPAN_BYTES_MAX: usize = 1024 * 1024;

/// The interval of [`INBOUND_MAX`] and `INBOUND_SPAN_BYTES_MAX`.
const INBOUND_SPAN: Duration = Duration::from_secs(10);

/// The key of a valid handshake.
pub(super) struct Handshake(String);

impl<S: Send + Sync> FromRequestParts<S> for Handshake {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        Self::from_parts(parts)
    }
}

impl Handshake {
    /// Validates the handshake of a request.
    ///
    /// # Errors
    /// `upgrade_required`, or `invalid_request` with the violated rule.
    pub(super) fn from_parts(parts: &Parts) -> Result<Self, Rejection> {
        let headers = &parts.headers;
        if parts.version != Version::HTTP_11 {
            return Err(upgrade_required(
                "a WebSocket is opened over HTTP/1.1 here; or read GET /events, over any version",
            ));
        }
        if !has_token(headers, &UPGRADE, "websocket") || !has_token(headers, &CONNECTION, "upgrade")
        {
            return Err(upgrade_required(
                "this is a WebSocket: send `Connection: Upgrade` and `Upgrade: websocket`; or read GET /events",
            ));
        }
        if single_value(headers, &SEC_WEBSOCKET_VERSION) != Some("13") {
            return Err(upgrade_required(
                "the one version of WebSocket that is spoken here is 13",
            ));
        }
        let has_body = headers.contains_key(TRANSFER_ENCODING)
            || headers.get(CONTENT_LENGTH).is_some_and(|v| v != "0");
        if has_body {
            let message = "a WebSocket handshake has no body";
            return Err(Rejection::new(Reason::InvalidRequest, message));
        }
        let key = single_value(headers, &SEC_WEBSOCKET_KEY);
        let key = key.filter(|key| STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16));
        let key = key.ok_or_else(|| {
            let message = "`Sec-WebSocket-Key` is 16 bytes in base64, once";
            Rejection::new(Reason::InvalidRequest, message)
        })?;
        Ok(Self(key.to_owned()))
    }
}

fn upgrade_required(message: &'static str) -> Rejection {
    Rejection::new(Reason::UpgradeRequired, message)
        .with_field("upgrade", "websocket")
        .with_field("sec-websocket-version", "13")
}

/// Returns the value of a field that occurs once.
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?.trim();
    values.next().is_none().then_some(value)
}

/// True if a list field contains `token`, in any case.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
    let mut tokens = values.flat_map(|value| value.split(','));
    tokens.any(|found| found.trim().eq_ignore_ascii_case(token))
}

/// `GET /ws`.
pub(super) async fn open_socket(
    State(gateway): State<Arc<Gateway>>,
    watcher: Watcher,
    Handshake(key): Handshake,
    body: Body,
) -> Result<Response, Rejection> {
    let look = ChangeFacts::for_content_read(&watcher.proof, None).map(Extension);
    let watch = Watch::open(gateway, watcher, EventReader::Socket, PING_EVERY).await?;
    let input = StreamReader::new(metered_pieces(body));
    let (near, far) = duplex(PIPE_BYTES);
    // Ends with the connection, the credential, a reader that is too slow, or the process.
    tokio::spawn(serve(join(input, near), watch));
    let mut response = Response::new(Body::from_stream(ReaderStream::new(far)));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    Ok((look, response).into_response())
}

/// Returns the input, up to [`INBOUND_SPAN_BYTES_MAX`] in each span.
fn metered_pieces(body: Body) -> impl Stream<Item = io::Result<Bytes>> + Unpin {
    let mut span = (Instant::now(), 0_usize);
    body.into_data_stream().map(move |piece| {
        let piece = piece.map_err(io::Error::other)?;
        if INBOUND_SPAN < span.0.elapsed() {
            span = (Instant::now(), 0);
        }
        span.1 += piece.len();
        if INBOUND_SPAN_BYTES_MAX < span.1 {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        Ok(piece)
    })
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, mut watch: Watch) {
    let config = WebSocketConfig::default()
        .read_buffer_size(INBOUND_BYTES_MAX)
        .write_buffer_size(0)
        .max_message_size(Some(INBOUND_BYTES_MAX))
        .max_frame_size(Some(INBOUND_BYTES_MAX));
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let Some((code, reason)) = run(&mut socket, &mut watch).await else {
        return;
    };
    // A reader that was cut holds no more memory.
    drop(watch);
    let reason = Utf8Bytes::from_static(reason);
    let close = async {
        let sent = socket.close(Some(CloseFrame { code, reason })).await;
        while sent.is_ok() && matches!(socket.next().await, Some(Ok(_))) {}
    };
    let _ = timeout(CLOSE_MAX, close).await;
}

/// Sends events until there is a reason to close. `None` if the client closed the connection or is gone.
async fn run<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    watch: &mut Watch,
) -> Option<(CloseCode, &'static str)> {
    let mut heard = true;
    let mut inbound = (Instant::now(), 0_u32);
    loop {
        // Unbiased: under a storm of events, pongs and closes are read as well.
        let message = tokio::select! {
            step = watch.next() => match step {
                Step::Frame(frame) => Message::Text(Utf8Bytes::try_from(frame.as_json()).ok()?),
                Step::Quiet if heard => {
                    heard = false;
                    Message::Ping(Bytes::new())
                }
                Step::Quiet => {
                    watch.count_cut("silent");
                    return Some((CloseCode::Policy, "a ping was not answered"));
                }
                Step::End(end) => return Some((code_of(end), end.reason_and_message().1)),
            },
            message = socket.next() => {
                match message? {
                    Ok(Message::Close(_)) => {
                        // The answer is queued; this sends it.
                        let _ = timeout(CLOSE_MAX, socket.flush()).await;
                        return None;
                    }
                    // Any message shows that the client is alive.
                    Ok(_) => heard = true,
                    Err(Error::Capacity(_)) => {
                        return Some((CloseCode::Size, "nothing is read here but pings and closes"));
                    }
                    Err(Error::Protocol(_) | Error::Utf8(_)) => {
                        return Some((CloseCode::Protocol, "that was no WebSocket frame"));
                    }
                    Err(Error::Io(error)) if error.kind() == ErrorKind::QuotaExceeded => {
                        return Some(flood_close(watch));
                    }
                    Err(_) => return None,
                }
                if INBOUND_SPAN < inbound.0.elapsed() {
                    inbound = (Instant::now(), 0);
                }
                inbound.1 += 1;
                if INBOUND_MAX < inbound.1 {
                    return Some(flood_close(watch));
                }
                continue;
            }
        };
        timeout(WRITE_MAX, socket.send(message)).await.ok()?.ok()?;
    }
}

fn flood_close(watch: &Watch) -> (CloseCode, &'static str) {
    watch.count_cut("flood");
    let reason = "too many messages; nothing is read here";
    (CloseCode::Policy, reason)
}

fn code_of(end: EndReason) -> CloseCode {
    match end {
        EndReason::ShuttingDown => CloseCode::Away,
        EndReason::Credential => CloseCode::Library(4401),
        EndReason::Slow => CloseCode::Again,
    }
}
