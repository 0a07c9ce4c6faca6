//! Passes a request to the control plane in process. The request body is read on demand; the response is streamed
//! back. On `/ws`, the only WebSocket route, raw bytes pass both ways after the control plane answered 101.

pub(in crate::proxy) mod body_feed;
pub(in crate::proxy) mod span;

use crate::dialect::Dialect;
use crate::identity::ClientAddr;
use crate::ids::RequestId;
use crate::proxy::admission::client_address;
use crate::proxy::control_plane::body_feed::{discard_until_gone, feed_body};
use crate::proxy::listener::{set_chunked, write_head_with_timeout, write_with_timeout};
use crate::proxy::reject::send_rejection;
use crate::proxy::services::Context;
use crate::rejection::{Reason, RejectedRequest, Rejection};
use crate::shares::SlotGuard;
use crate::telemetry::traces::SpanFacts;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::response::Parts;
use http::{Method, StatusCode, Version, header};
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::timeout;
use tower::ServiceExt;

/// The only WebSocket route.
const SOCKET_PATH: &str = "/ws";

/// Maximum pieces from the caller that are buffered for a socket.
const INPUT_PIECES: usize = 2;

/// Maximum time for writing one piece to a reader of events.
const READER_MAX: Duration = Duration::from_secs(10);

/// Maximum time for writing one piece to any other caller.
const PIECE_MAX: Duration = Duration::from_secs(60);

/// Metadata of a request besides its head and body: its id and, if it is traced, the facts for its span.
#[derive(Clone)]
pub(super) struct ControlRequest<'a> {
    pub(super) request_id: &'a RequestId,
    pub(super) span_facts: Option<SpanFacts>,
}

/// Reasons for which a request did not get through the bridge.
enum PassError {
    Refused(Rejection),
    CallerLeft,
}

impl From<Rejection> for PassError {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

/// Passes one request to the control plane and streams its response back. An endless response releases its slot
/// among the exchanges: the control plane bounds those responses itself.
///
/// # Errors
/// The connection must be aborted.
pub(super) async fn pass_request(
    context: &Context,
    session: &mut ServerSession,
    asked: ControlRequest<'_>,
) -> Result<(), ()> {
    let passed = if opens_socket(session) {
        serve_socket(context, session, asked.clone()).await
    } else {
        run_request(context, session, asked.clone()).await
    };
    match passed {
        Ok(()) => Ok(()),
        Err(PassError::CallerLeft) => Err(()),
        Err(PassError::Refused(rejection)) => {
            reject_request(context, session, asked, rejection).await
        }
    }
}

/// Answers a request that is rejected before its route runs. The control plane formats, counts and records the
/// rejection like its own.
///
/// # Errors
/// The connection must be aborted.
pub(super) async fn reject_request(
    context: &Context,
    session: &mut ServerSession,
    asked: ControlRequest<'_>,
    rejection: Rejection,
) -> Result<(), ()> {
    let request_id = asked.request_id;
    let answered = match build_request(context, session, asked, Body::empty()) {
        Ok(mut request) => {
            request.extensions_mut().insert(RejectedRequest(rejection));
            let response = context.control.clone().oneshot(request).await;
            let response = response.unwrap_or_else(|never| match never {});
            stream_response(context, session, response, None).await
        }
        // A request that cannot be built for the router has no route.
        Err(_) => {
            let (origins, form) = (context.origins.get(), Dialect::Plain.into());
            let sent = send_rejection(session, &origins, request_id, &rejection, &form).await;
            sent.map_err(|_| PassError::CallerLeft)
        }
    };
    answered.map_err(|_| ())
}

async fn run_request(
    context: &Context,
    session: &mut ServerSession,
    asked: ControlRequest<'_>,
) -> Result<(), PassError> {
    let mut slot = Some(context.relay.load.take_slot()?);
    let (body, mut feed) = feed_body(session);
    let request = build_request(context, session, asked, body)?;
    let asked = context.control.clone().oneshot(request);
    let response = tokio::select! {
        biased;
        // A router answers every request: its error type is uninhabited.
        response = asked => response.unwrap_or_else(|never| match never {}),
        () = feed.supply_pieces(context, session, &mut slot) => return Err(PassError::CallerLeft),
    };
    feed.end(session);
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // Only a handshake recognized before its body was read may switch protocols.
        return Err(PassError::Refused(not_a_socket()));
    }
    stream_response(context, session, response, slot).await
}

/// Streams a response to the caller.
async fn stream_response(
    context: &Context,
    session: &mut ServerSession,
    response: Response,
    slot: Option<SlotGuard<'_>>,
) -> Result<(), PassError> {
    let (parts, mut body) = response.into_parts();
    let mut head = response_head(context, session, parts);
    let framed = head.headers.contains_key(header::CONTENT_LENGTH);
    if !framed && head.status != StatusCode::NO_CONTENT {
        set_chunked(session, &mut head).map_err(unbuilt_head)?;
    }
    let streams = head
        .headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value == "text/event-stream");
    // All other responses hold their slot until they are complete.
    let slot = slot.filter(|_| !streams);
    let patience = if streams { READER_MAX } else { PIECE_MAX };
    let begun = write_head_with_timeout(session, head).await;
    begun.map_err(|_| PassError::CallerLeft)?;
    loop {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = discard_until_gone(session) => return Err(PassError::CallerLeft),
        };
        match frame {
            None => break,
            Some(Err(_)) => return Err(PassError::CallerLeft),
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                write_piece(context, session, data, patience, streams).await?;
            }
        }
    }
    drop(slot);
    write_with_timeout(
        session.get_write_timeout(),
        session.write_response_body(Bytes::new(), true),
    )
    .await
    .map_err(|_| PassError::CallerLeft)
}

/// Writes one piece to the caller. A caller that does not read it in time counts as gone.
async fn write_piece(
    context: &Context,
    session: &mut ServerSession,
    data: Bytes,
    patience: Duration,
    reader: bool,
) -> Result<(), PassError> {
    match timeout(patience, session.write_response_body(data, false)).await {
        Ok(written) => written.map_err(|_| PassError::CallerLeft),
        Err(_) => {
            if reader {
                context.gateway.metrics.count_event_reader_cut("slow");
            }
            Err(PassError::CallerLeft)
        }
    }
}

/// True if the request is a WebSocket handshake on the only WebSocket route. No other request switches protocols,
/// whatever it asks for.
fn opens_socket(session: &ServerSession) -> bool {
    let head = session.req_header();
    let names = |field: header::HeaderName, token: &str| {
        let values = head.headers.get_all(field).iter();
        values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|found| found.trim().eq_ignore_ascii_case(token))
    };
    head.version == Version::HTTP_11
        && head.method == Method::GET
        && head.uri.path() == SOCKET_PATH
        && names(header::UPGRADE, "websocket")
        && names(header::CONNECTION, "upgrade")
        && !head.headers.contains_key(header::TRANSFER_ENCODING)
        && !head.headers.contains_key(header::EXPECT)
        && head
            .headers
            .get(header::CONTENT_LENGTH)
            .is_none_or(|length| length == "0")
}

/// Opens a socket: after the 101, the request body carries its input and the response body its output.
///
/// The body is not read before the 101 is written. Bytes that came too early are then parsed as frames of the
/// socket. After a rejection the connection is closed, so they are never parsed as a request.
async fn serve_socket(
    context: &Context,
    session: &mut ServerSession,
    asked: ControlRequest<'_>,
) -> Result<(), PassError> {
    let slot = context.relay.load.take_slot()?;
    session.set_keepalive(None);
    let (input, body) = Channel::<Bytes, Infallible>::new(INPUT_PIECES);
    let request = build_request(context, session, asked, Body::new(body))?;
    let asked = context.control.clone().oneshot(request);
    let response = asked.await.unwrap_or_else(|never| match never {});
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return stream_response(context, session, response, Some(slot)).await;
    }
    drop(slot);
    let (parts, output) = response.into_parts();
    let head = response_head(context, session, parts);
    let begun = write_head_with_timeout(session, head).await;
    begun.map_err(|_| PassError::CallerLeft)?;
    // The pings of the socket detect a caller that left.
    session.set_read_timeout(None);
    pump_bytes(context, session, input, output).await
}

/// Copies raw bytes both ways until one side is done.
async fn pump_bytes(
    context: &Context,
    session: &mut ServerSession,
    mut input: Sender<Bytes, Infallible>,
    mut output: Body,
) -> Result<(), PassError> {
    // At most one piece waits for the socket. No other is read meanwhile (backpressure).
    let mut waiting: Option<Bytes> = None;
    loop {
        tokio::select! {
            biased;
            frame = output.frame() => match frame {
                None => break,
                Some(Err(_)) => return Err(PassError::CallerLeft),
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    write_piece(context, session, data, READER_MAX, true).await?;
                }
            },
            sent = input.send_data(waiting.clone().unwrap_or_default()), if waiting.is_some() => {
                if sent.is_err() {
                    break;
                }
                waiting = None;
            }
            read = session.read_request_body(), if waiting.is_none() => match read {
                Ok(Some(piece)) => waiting = Some(piece),
                Ok(None) | Err(_) => return Err(PassError::CallerLeft),
            },
        }
    }
    let _ = write_with_timeout(
        session.get_write_timeout(),
        session.write_response_body(Bytes::new(), true),
    )
    .await;
    // The connection of a socket carries no further request.
    Err(PassError::CallerLeft)
}

/// Builds the head of the response. The control plane has already put the request id into it.
fn response_head(context: &Context, session: &ServerSession, parts: Parts) -> ResponseHeader {
    let mut head = ResponseHeader::from(parts);
    context
        .origins
        .get()
        .put_browser_fields(&session.req_header().headers, &mut head);
    head
}

fn not_a_socket() -> Rejection {
    Rejection::new(
        Reason::InvalidRequest,
        "this request cannot become a WebSocket: send a GET without a body over HTTP/1.1",
    )
}

fn build_request(
    context: &Context,
    session: &ServerSession,
    ControlRequest {
        request_id,
        span_facts,
    }: ControlRequest<'_>,
    body: Body,
) -> Result<http::Request<Body>, PassError> {
    let head = session.req_header();
    // Routes match the path and query only, whatever form the request target had.
    let target = head
        .uri
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str);
    let mut request = http::Request::builder()
        .method(head.method.clone())
        .version(head.version)
        .uri(target);
    if let Some(headers) = request.headers_mut() {
        headers.extend(head.headers.iter().map(|(n, v)| (n.clone(), v.clone())));
    }
    let mut request = request.body(body).map_err(|_| {
        PassError::Refused(Rejection::new(
            Reason::InvalidRequest,
            "the request target is not valid",
        ))
    })?;
    request.extensions_mut().insert(request_id.clone());
    if let Some(facts) = span_facts {
        request.extensions_mut().insert(facts);
    }
    request.extensions_mut().insert(ClientAddr(client_address(
        session,
        &context.gateway.config().server,
    )));
    Ok(request)
}

fn unbuilt_head(error: Box<pingora::Error>) -> PassError {
    PassError::Refused(crate::proxy::listener::internal_error(error))
}
