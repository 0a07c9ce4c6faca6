//! Answers a call with an idempotency key from its kept response, to its caller only.

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::listener::{
    KEPT, PREFERENCE_APPLIED, REPLAY, begin_stream, client_disconnected, internal_error,
    write_within,
};
use crate::record::{Answered, Exchange, ExchangeError};
use crate::services::Request;
use crate::upstream::{CancelWatch, refuse_redirect};
use a2a::completion_steps::CompletionSteps;
use a2a::event::Framing;
use assembly::access_watch::{AccessBasis, cut_off};
use kernel::metrics::InProgress;
use kernel::rejection::{Delivery, Reason, Rejection};
use mailbox::calls::{Answer, Outcome};
use mailbox::streams::Reader;

/// Stored response, and how to send it.
pub(crate) struct StoredResponse {
    pub(crate) outcome: Outcome,
    /// True for a replay.
    pub(crate) replay: bool,
    /// Pieces of a live stream, for the request that made the call: none are lost.
    pub(crate) live: Option<mpsc::Receiver<Bytes>>,
    /// The completions of the call that is answered, for `X-A2A-Completed`.
    pub(crate) done: CompletionSteps,
}

impl StoredResponse {
    /// Returns a response without a live stream.
    pub(crate) fn new(outcome: Outcome, replay: bool, done: CompletionSteps) -> Self {
        Self {
            outcome,
            replay,
            live: None,
            done,
        }
    }
}

/// Sends a stored response.
///
/// # Errors
/// The kept rejection; the caller left.
pub(crate) async fn send_stored_response(
    request: &mut Request<'_>,
    mut response: StoredResponse,
) -> Result<Answered, ExchangeError> {
    match &response.outcome {
        Outcome::Refused(rejection) => Err(rejection.clone().into()),
        Outcome::Nothing => Err(super::failed_meanwhile().into()),
        Outcome::Whole(answer) => {
            let mut head = stored_head(request, answer, &response)?;
            let body = answer.body.clone();
            head.insert_header(header::CONTENT_LENGTH, body.len())
                .map_err(internal_error)?;
            request.exchange.record_task(|scan| scan.push(&body));
            request.respond(head, body).await
        }
        Outcome::Stream(answer, name) => {
            let events = match response.live.take() {
                Some(live) => EventSource::Live(live),
                None => EventSource::Kept(Box::new(read_stream(request, name).await?)),
            };
            let head = stored_head(request, answer, &response)?;
            let exchange = &mut *request.exchange;
            exchange.record.status = answer.status;
            exchange.record_stream();
            begin_stream(request.session, head, name).await?;
            relay_stream(request, events, name).await
        }
    }
}

fn stored_head(
    request: &Request<'_>,
    answer: &Answer,
    response: &StoredResponse,
) -> Result<ResponseHeader, Rejection> {
    let mut upstream =
        ResponseHeader::build(answer.status, Some(answer.fields.len())).map_err(internal_error)?;
    for (name, value) in &answer.fields {
        upstream
            .append_header(name, value)
            .map_err(internal_error)?;
    }
    refuse_redirect(&upstream)?;
    let passed = request
        .context
        .relay
        .response_fields
        .get()
        .filter_head(&upstream);
    let mut passed = passed.map_err(internal_error)?;
    // A field of the gateway: an agent's is never kept.
    if let Some(applied) = answer.fields.get(PREFERENCE_APPLIED) {
        passed
            .insert_header(PREFERENCE_APPLIED, applied)
            .map_err(internal_error)?;
    }
    let mut head = request.response_head(passed, response.done)?;
    mark_replay(&mut head, response.replay, answer.kept)?;
    Ok(head)
}

/// Marks the head of a replay, and that of an answer that is not kept for one.
///
/// # Errors
/// A field cannot be built, which is a bug.
pub(crate) fn mark_replay(
    head: &mut ResponseHeader,
    replay: bool,
    kept: bool,
) -> Result<(), Rejection> {
    if replay {
        head.insert_header(REPLAY, "true").map_err(internal_error)?;
    }
    if !kept {
        head.insert_header(KEPT, "false").map_err(internal_error)?;
    }
    Ok(())
}

/// Returns a reader of the stream from its first event on.
async fn read_stream(request: &Request<'_>, name: &str) -> Result<Reader, Rejection> {
    let exchange = &*request.exchange;
    let (Some(proof), Some(target)) = (exchange.call.proof.as_ref(), exchange.call.life()) else {
        return Err(stream_expired());
    };
    let streams = &request.context.gateway.delivery.streams;
    let (owner, id) = (proof.owner(), exchange.call.request_id.clone());
    let reader = streams.follow_stream((&owner, &target), name, id).await?;
    reader.ok_or_else(stream_expired)
}

/// Rejection of a replay: the agent had the call, and its stream is not kept any more.
pub(crate) fn stream_expired() -> Rejection {
    Rejection::new(
        Reason::AgentProtocolError,
        "the call with this key was answered by a stream that is not kept any more (stream.log_ttl; without Redis, until \
         the gateway ends); ask for the task, or use a new key",
    )
    .with_delivery(Delivery::Sent)
}

/// Source of the events of a stream.
enum EventSource {
    /// The call itself, with backpressure from this caller.
    Live(mpsc::Receiver<Bytes>),
    /// Kept events of the stream.
    Kept(Box<Reader>),
}

impl EventSource {
    /// Returns the next events; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        match self {
            Self::Live(pieces) => pieces.recv().await,
            Self::Kept(reader) => reader.next().await,
        }
    }
}

/// Passes a stream on until it ends, its reader loses access, or this process shuts down. A live stream of this process
/// ends by itself at shutdown.
async fn relay_stream(
    request: &mut Request<'_>,
    mut events: EventSource,
    name: &str,
) -> Result<Answered, ExchangeError> {
    let Request {
        context,
        session,
        exchange,
    } = request;
    let relay = &context.relay;
    let mut cut = CancelWatch::for_drain(&relay.drain);
    let (proof, callee) = (exchange.call.proof.as_ref(), exchange.call.target.as_ref());
    let mut ends = relay.cut_off(AccessBasis::Credential, proof, callee);
    let _open = InProgress::begin(&exchange.call.metrics.open_streams);
    let timeouts = exchange.call.config.timeouts.clone();
    let keepalive = exchange.call.config.stream.keepalive;
    let mut looked = false;
    loop {
        let quiet = Instant::now() + keepalive;
        let kept = matches!(events, EventSource::Kept(_));
        let (piece, parts) = tokio::select! {
            biased;
            // First: a stream without pauses must not hide the cut-off.
            why = cut_off(&mut ends) => (Some(last_event(exchange, name, &why)), true),
            piece = events.next() => (piece, false),
            why = cut.cancelled(Delivery::Sent), if kept => {
                (Some(last_event(exchange, name, &why)), true)
            }
            () = sleep_until(quiet) => (Some(Framing::Lf.keepalive_comment(true).into()), false),
            () = client_disconnected(session) => return Err(ExchangeError::CallerLeft),
        };
        let last = piece.is_none() || parts;
        let piece: Bytes = piece.unwrap_or_default();
        // The first event of a stream has the id of its task.
        if !std::mem::replace(&mut looked, true) {
            exchange.record_task(|scan| scan.push_events(&piece));
        }
        exchange.record.add_bytes(piece.len());
        let deadline = Instant::now() + timeouts.write;
        write_within(deadline, session.write_response_body(piece, last)).await?;
        if last {
            return Ok(Answered);
        }
    }
}

/// Returns the last event of a stream that goes on without this reader.
pub(crate) fn last_event(exchange: &mut Exchange, name: &str, why: &Rejection) -> Bytes {
    exchange.record_rejection(why);
    why.last_event(
        &exchange.call.reply_form(),
        &exchange.call.request_id,
        name,
        Framing::Lf,
    )
}
