//! `GET /workspaces/{id}/streams/{stream}`: resumes a stream with the missed events and the new ones
//! (`docs/reference/a2a.md`, "Resuming a stream").

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use tokio::time::{Duration, Instant, sleep_until};

use super::events::{last_event, named_event};
use super::extract::{LastEventId, MessageCaller, PathId, PathStream};
use super::watch::{ConnectionWatch, WaitOutcome};
use access::identity::Proof;
use assembly::access_watch::{AccessBasis, CutOff};
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::ids::RequestId;
use kernel::rejection::{Reason, Rejection, STREAM};
use mailbox::streams::Reader;

/// Longest wait for the last event of a call that a stop ended.
const LAST_EVENT_MAX: Duration = Duration::from_millis(300);

/// The comment that keeps a silent stream alive.
const KEEPALIVE: &[u8] = b": keepalive\n";

/// `GET /workspaces/{id}/streams/{stream}`.
pub(super) async fn resume_stream(
    State(gateway): State<Arc<Gateway>>,
    PathId(target): PathId,
    MessageCaller(proof): MessageCaller,
    PathStream(stream): PathStream,
    LastEventId(after): LastEventId,
    Extension(request_id): Extension<RequestId>,
) -> Result<Response, Rejection> {
    let permit = gateway.hierarchy.permit(&proof, &target).await?;
    let look = ChangeFacts::for_content_read(&proof, Some(&target)).map(Extension);
    gateway.check_chain(&proof, &permit).await?;
    gateway.stops.check(&permit)?;
    let (owner, life) = (proof.owner(), permit.life());
    let reader =
        gateway
            .delivery
            .streams
            .open((&owner, &life), &stream, after.as_deref(), request_id);
    let quiet = gateway.config().stream.keepalive;
    let open = StreamState::Open(Box::new(OpenStream {
        reader: reader.await?,
        cut_off: Some(gateway.cut_off(AccessBasis::Credential, Arc::clone(&proof), target)),
        stopped: None,
        proof,
        supervision: ConnectionWatch::new(Arc::clone(&gateway), quiet),
    }));
    let pieces = futures_util::stream::unfold(open, |position| async {
        let (piece, next) = position.advance().await?;
        Some((Ok::<_, Infallible>(piece), next))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    set_stream_fields(response.headers_mut(), &stream);
    Ok((look, response).into_response())
}

/// Sets the fields of the original stream.
fn set_stream_fields(headers: &mut HeaderMap, stream: &str) {
    if let Ok(stream) = HeaderValue::from_str(stream) {
        headers.insert(STREAM, stream);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// The end of a wait.
enum NextPiece {
    Piece(Option<Bytes>),
    Stopped(Rejection),
}

/// Returns the next piece, or the stop that ends the stream. The call itself ends with an event that tells of it, which
/// is waited for.
async fn next_piece(
    reader: &mut Reader,
    cut_off: &mut Option<CutOff>,
    stopped: &mut Option<(Instant, Rejection)>,
) -> NextPiece {
    loop {
        let over = async {
            match stopped {
                Some((at, _)) => sleep_until(*at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            piece = reader.next() => return NextPiece::Piece(piece),
            () = over => {}
            why = assembly::access_watch::cut_off(cut_off) => {
                *cut_off = None;
                // Other reasons end the call itself, or the credential.
                if why.reason == Reason::Stopped {
                    *stopped = Some((Instant::now() + LAST_EVENT_MAX, why));
                }
                continue;
            }
        }
        if let Some((_, why)) = stopped.take() {
            return NextPiece::Stopped(why);
        }
    }
}

/// The state of a resumed stream.
enum StreamState {
    Open(Box<OpenStream>),
    Over,
}

struct OpenStream {
    reader: Reader,
    /// Ends with the reason why the stream must end; taken once it has.
    cut_off: Option<CutOff>,
    /// The stop that ends the stream, and the time at which it does if the stream has not told of it by then.
    stopped: Option<(Instant, Rejection)>,
    proof: Arc<Proof>,
    supervision: ConnectionWatch,
}

impl StreamState {
    async fn advance(self) -> Option<(Bytes, Self)> {
        let Self::Open(mut open) = self else {
            return None;
        };
        let next = next_piece(&mut open.reader, &mut open.cut_off, &mut open.stopped);
        match open.supervision.wait(&open.proof, next).await {
            WaitOutcome::Next(NextPiece::Piece(piece)) => Some((piece?, Self::Open(open))),
            WaitOutcome::Next(NextPiece::Stopped(why)) => {
                let end = named_event("end", why.reason.as_str(), &why.message);
                Some((end, Self::Over))
            }
            WaitOutcome::Quiet => Some((Bytes::from_static(KEEPALIVE), Self::Open(open))),
            WaitOutcome::End(end) => Some((last_event(end), Self::Over)),
        }
    }
}
