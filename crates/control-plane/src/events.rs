//! `GET /events`: the event stream; and `POST /ws/tickets` (`docs/reference/events.md`, "Events").

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use secrecy::ExposeSecret;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::extract::Caller;
use super::watch::{EndReason, Step, Watch, Watcher};
use access::identity::TICKET_TTL;
use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::metrics::EventReader;
use kernel::rejection::Rejection;

/// Silence after which a comment is sent: proxies cut connections that are silent for longer.
pub(super) const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// The comment that keeps the stream alive.
pub(super) const COMMENT: &[u8] = b": keepalive\n";

/// The first bytes of a stream: the reconnection time for browsers, and a comment that shows that it is open.
pub(super) const BEGIN: &[u8] = b"retry: 2000\n\n: open\n\n";

#[derive(Serialize, ToSchema)]
pub(super) struct TicketResponse<'a> {
    #[schema(pattern = "^a2at_[A-Za-z0-9_-]{43}$")]
    ticket: &'a str,
    expires_at: Timestamp,
    /// Seconds.
    #[schema(value_type = String, pattern = "^30$")]
    expires_in: u64,
}

/// `POST /ws/tickets`. Needs no body.
pub(super) async fn issue_ticket(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
) -> Result<Response, Rejection> {
    if let Some(id) = caller.principal().workspace() {
        gateway.hierarchy.require_running(id).await?;
    }
    let (identity, shared) = (&gateway.identity, &gateway.shared);
    let (ticket, lapses) = identity.issue_ticket(shared, &caller.0).await?;
    let answer = TicketResponse {
        ticket: ticket.expose_secret(),
        expires_at: Timestamp(lapses),
        expires_in: TICKET_TTL.as_secs(),
    };
    Ok((StatusCode::CREATED, Answer(answer)).into_response())
}

/// `GET /events`.
pub(super) async fn open_stream(
    State(gateway): State<Arc<Gateway>>,
    watcher: Watcher,
) -> Result<Response, Rejection> {
    // Messages to users are content.
    let look = ChangeFacts::for_content_read(&watcher.proof, None).map(Extension);
    let watch = Watch::open(gateway, watcher, EventReader::Stream, COMMENT_EVERY).await?;
    let pieces = stream::unfold(StreamState::Begin(watch), |position| async {
        let (piece, next) = position.advance().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), next))
    });
    Ok((look, event_stream(Body::from_stream(pieces))).into_response())
}

/// Builds the response of an event stream.
pub(super) fn event_stream(pieces: Body) -> Response {
    let mut response = Response::new(pieces);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The state of a stream.
enum StreamState {
    Begin(Watch),
    Open(Watch),
    Over,
}

impl StreamState {
    async fn advance(self) -> Option<(Bytes, Self)> {
        let mut watch = match self {
            Self::Begin(watch) => return Some((Bytes::from_static(BEGIN), Self::Open(watch))),
            Self::Open(watch) => watch,
            Self::Over => return None,
        };
        Some(match watch.next().await {
            Step::Frame(frame) => (frame.as_sse(), Self::Open(watch)),
            Step::Quiet => (Bytes::from_static(COMMENT), Self::Open(watch)),
            Step::End(end) => (last_event(end), Self::Over),
        })
    }
}

/// Builds the last event, with the reason for the end.
pub(super) fn last_event(end: EndReason) -> Bytes {
    let (reason, message) = end.reason_and_message();
    named_event("end", reason, message)
}

/// Builds an event about the stream itself.
pub(super) fn named_event(name: &str, reason: &str, message: &str) -> Bytes {
    let data = json!({"reason": reason, "message": message});
    format!("event: {name}\ndata: {data}\n\n").into()
}
