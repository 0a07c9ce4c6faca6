//! Answers a call with an idempotency key from its kept response, to its caller only.

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::a2a::done::Done;
use crate::a2a::event::Framing;
use crate::delivery::calls::{Answer, Outcome};
use crate::delivery::streams::Reader;
use crate::metrics::InProgress;
use crate::proxy::outcome::Ended;
use crate::proxy::record::Exchange;
use crate::proxy::relay::Cut;
use crate::proxy::relay::refuse_redirect;
use crate::proxy::request::Request;
use crate::proxy::respond::PREFERENCE_APPLIED;
use crate::proxy::respond::{KEPT, REPLAY, begin_stream};
use crate::proxy::respond::{client_disconnected, internal, within};
use crate::rejection::{Delivery, Reason, Rejection};
use crate::standing::{Needs, cut_off};

/// Kept response, and how to send it.
pub(in crate::proxy::destination) struct KeptResponse {
    pub(in crate::proxy::destination) outcome: Outcome,
    /// True for a replay.
    pub(in crate::proxy::destination) replay: bool,
    /// Pieces of a live stream, for the request that made the call: none are lost.
    pub(in crate::proxy::destination) live: Option<mpsc::Receiver<Bytes>>,
    /// The completions of the call that is answered, for `X-A2A-Completed`.
    pub(in crate::proxy::destination) done: Done,
}

impl KeptResponse {
    /// Returns a response without a live stream.
    pub(in crate::proxy::destination) fn new(outcome: Outcome, replay: bool, done: Done) -> Self {
        Self {
            outcome,
            replay,
            live: None,
            done,
        }
    }
}

/// Answers from a kept response.
///
/// # Errors
/// The kept rejection; the caller left.
pub(in crate::proxy::destination) async fn respond_kept(
    request: &mut Request<'_>,
    mut kept: KeptResponse,
) -> Result<Ended, Ended> {
    match &kept.outcome {
        Outcome::Refused(rejection) => Err(rejection.clone().into()),
        Outcome::Nothing => Err(super::failed_meanwhile().into()),
        Outcome::Whole(answer) => {
            let mut head = head_of(request, answer, &kept)?;
            let body = answer.body.clone();
            head.insert_header(header::CONTENT_LENGTH, body.len())
                .map_err(internal)?;
            request.exchange.note_task(|scan| scan.push(&body));
            request.respond(head, body).await
        }
        Outcome::Stream(answer, name) => {
            let events = match kept.live.take() {
                Some(live) => Events::Live(live),
                None => Events::Kept(Box::new(read_stream(request, name).await?)),
            };
            let head = head_of(request, answer, &kept)?;
            let exchange = &mut *request.exchange;
            exchange.answer.status = answer.status;
            exchange.streams();
            begin_stream(request.session, exchange, head, name).await?;
            follow(request, events, name).await
        }
    }
}

fn head_of(
    request: &Request<'_>,
    answer: &Answer,
    kept: &KeptResponse,
) -> Result<ResponseHeader, Rejection> {
    let mut upstream =
        ResponseHeader::build(answer.status, Some(answer.fields.len())).map_err(internal)?;
    for (name, value) in &answer.fields {
        upstream.append_header(name, value).map_err(internal)?;
    }
    refuse_redirect(&upstream)?;
    let passed = request
        .context
        .relay
        .response_fields
        .get()
        .passed(&upstream);
    let mut passed = passed.map_err(internal)?;
    // A field of the gateway: an agent's is never kept.
    if let Some(applied) = answer.fields.get(PREFERENCE_APPLIED) {
        passed
            .insert_header(PREFERENCE_APPLIED, applied)
            .map_err(internal)?;
    }
    let mut head = request.response_head(passed, kept.done)?;
    mark(&mut head, kept.replay, answer.kept)?;
    Ok(head)
}

/// Marks the head of a replay, and that of an answer that is not kept for one.
///
/// # Errors
/// A field cannot be built, which is a bug.
pub(in crate::proxy::destination) fn mark(
    head: &mut ResponseHeader,
    replay: bool,
    kept: bool,
) -> Result<(), Rejection> {
    if replay {
        head.insert_header(REPLAY, "true").map_err(internal)?;
    }
    if !kept {
        head.insert_header(KEPT, "false").map_err(internal)?;
    }
    Ok(())
}

/// Returns a reader of the stream from its first event on.
async fn read_stream(request: &Request<'_>, name: &str) -> Result<Reader, Rejection> {
    let exchange = &*request.exchange;
    let (Some(proof), Some(target)) = (&exchange.proof, exchange.life()) else {
        return Err(forgotten());
    };
    let streams = &request.context.gateway.delivery.streams;
    let (owner, id) = (proof.owner(), exchange.request_id.clone());
    let reader = streams.follow((&owner, &target), name, id).await?;
    reader.ok_or_else(forgotten)
}

/// Rejection of a replay: the agent had the call, and its stream is not kept any more.
pub(in crate::proxy::destination) fn forgotten() -> Rejection {
    Rejection::new(
        Reason::AgentProtocolError,
        "the call with this key was answered by a stream that is not kept any more (stream.log_ttl; without Redis, until \
         the gateway ends); ask for the task, or use a new key",
    )
    .delivered(Delivery::Sent)
}

/// Source of the events of a stream.
enum Events {
    /// The call itself, with backpressure from this caller.
    Live(mpsc::Receiver<Bytes>),
    /// Kept events of the stream.
    Kept(Box<Reader>),
}

impl Events {
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
async fn follow(request: &mut Request<'_>, mut events: Events, name: &str) -> Result<Ended, Ended> {
    let Request {
        context,
        session,
        exchange,
    } = request;
    let relay = &context.relay;
    let mut cut = Cut::of_drain(&relay.drain);
    let (proof, callee) = (exchange.proof.as_ref(), exchange.callee.as_ref());
    let mut ends = relay.cut_off(Needs::Credential, proof, callee);
    let _open = InProgress::begin(&exchange.metrics.open_streams);
    let timeouts = exchange.config.timeouts.clone();
    let keepalive = exchange.config.stream.keepalive;
    let mut looked = false;
    loop {
        let quiet = Instant::now() + keepalive;
        let kept = matches!(events, Events::Kept(_));
        let (piece, parts) = tokio::select! {
            biased;
            // First: a stream without pauses must not hide the cut-off.
            why = cut_off(&mut ends) => (Some(last_event(exchange, name, &why)), true),
            piece = events.next() => (piece, false),
            why = cut.requested(Delivery::Sent), if kept => {
                (Some(last_event(exchange, name, &why)), true)
            }
            () = sleep_until(quiet) => (Some(Framing::Lf.keepalive(true).into()), false),
            () = client_disconnected(session) => return Err(Ended::CallerLeft),
        };
        let last = piece.is_none() || parts;
        let piece: Bytes = piece.unwrap_or_default();
        // The first event of a stream has the id of its task.
        if !std::mem::replace(&mut looked, true) {
            exchange.note_task(|scan| scan.push_events(&piece));
        }
        exchange.answer.bytes += piece.len() as u64;
        let deadline = Instant::now() + timeouts.write;
        within(deadline, session.write_response_body(piece, last)).await?;
        if last {
            return Ok(Ended::Answered);
        }
    }
}

/// Returns the last event of a stream that goes on without this reader.
fn last_event(exchange: &mut Exchange, name: &str, why: &Rejection) -> Bytes {
    exchange.rejected(why);
    why.last_event(&exchange.form(), &exchange.request_id, name, Framing::Lf)
}
