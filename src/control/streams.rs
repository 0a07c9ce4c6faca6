//! `GET /workspaces/{id}/streams/{stream}`: resumes a stream with the missed events and the new ones
//! (`docs/reference/a2a.md`, "Resuming a stream").

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};

use super::events::last_event;
use super::extract::{LastEventId, MessageCaller, PathId, PathStream};
use super::watch::{Kept, Vigil};
use crate::delivery::streams::Reader;
use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::RequestId;
use crate::rejection::{Rejection, STREAM};

/// The comment that keeps a silent stream alive.
const KEEPALIVE: &[u8] = b": keepalive\n";

/// `GET /workspaces/{id}/streams/{stream}`.
pub(super) async fn resume(
    State(gateway): State<Arc<Gateway>>,
    PathId(target): PathId,
    MessageCaller(proof): MessageCaller,
    PathStream(stream): PathStream,
    LastEventId(after): LastEventId,
    Extension(request_id): Extension<RequestId>,
) -> Result<Response, Rejection> {
    gateway.hierarchy.permit(&proof, &target).await?;
    let owner = proof.owner();
    let reader =
        gateway
            .delivery
            .streams
            .open((&owner, &target), &stream, after.as_deref(), request_id);
    let quiet = gateway.config().stream.keepalive;
    let open = Position::Open(Box::new(Open {
        reader: reader.await?,
        proof,
        vigil: Vigil::new(Arc::clone(&gateway), quiet),
    }));
    let pieces = futures_util::stream::unfold(open, |position| async {
        let (piece, next) = position.advance().await?;
        Some((Ok::<_, Infallible>(piece), next))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    head(response.headers_mut(), &stream);
    Ok(response)
}

/// Sets the fields of the original stream.
fn head(headers: &mut HeaderMap, stream: &str) {
    if let Ok(stream) = HeaderValue::from_str(stream) {
        headers.insert(STREAM, stream);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// The state of a resumed stream.
enum Position {
    Open(Box<Open>),
    Over,
}

struct Open {
    reader: Reader,
    proof: Arc<Proof>,
    vigil: Vigil,
}

impl Position {
    async fn advance(self) -> Option<(Bytes, Self)> {
        let Self::Open(mut open) = self else {
            return None;
        };
        let next = open.reader.next();
        match open.vigil.over(&open.proof, next).await {
            Kept::Next(piece) => Some((piece?, Self::Open(open))),
            Kept::Quiet => Some((Bytes::from_static(KEEPALIVE), Self::Open(open))),
            Kept::End(end) => Some((last_event(end), Self::Over)),
        }
    }
}
