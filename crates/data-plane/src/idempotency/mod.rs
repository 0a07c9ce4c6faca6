//! Calls with an idempotency key: owner check, single execution, and replay (`docs/reference/a2a.md`,
//! "Idempotency keys").

mod call_task;

use std::future::pending;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::idempotency::call_task::CallTask;
use crate::listener::{
    KEPT, PREFERENCE_APPLIED, REPLAY, begin_stream, client_disconnected, internal_error,
    write_within,
};
use crate::record::{Answered, Exchange, ExchangeError};
use crate::response::OutboundCall;
use crate::services::Request;
use crate::upstream::{AgentConnection, CancelWatch, Relay, refuse_redirect, timed_out};
use a2a::completion_steps::CompletionSteps;
use a2a::event::Framing;
use assembly::access_watch::{AccessBasis, cut_off};
use kernel::metrics::InProgress;
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::stage::Stage;
use mailbox::calls::{Answer, Key, KeyStatus, Outcome, OutcomeWatch, UnclaimedKey};
use mailbox::streams::Reader;

/// Answers from the outcome of an earlier or concurrent call with the key, for which it waits until `until`, or returns
/// the key, which the request may claim. `done`: the completions of this call.
pub(super) async fn replay_or_reserve(
    request: &mut Request<'_>,
    key: &Key,
    until: Instant,
    done: CompletionSteps,
) -> Result<ControlFlow<Answered, UnclaimedKey>, ExchangeError> {
    let outcome = match look_up_key(request, key, until).await? {
        Continue(unclaimed) => return Ok(Continue(unclaimed)),
        Break(outcome) => outcome,
    };
    let response = StoredResponse::new(outcome, true, done);
    send_stored_response(request, response).await.map(Break)
}

/// Looks a key up; waits for a call in progress until `until`. Returns the unclaimed key, or breaks with the outcome.
async fn look_up_key(
    request: &mut Request<'_>,
    key: &Key,
    until: Instant,
) -> Result<ControlFlow<Outcome, UnclaimedKey>, ExchangeError> {
    let context = request.context;
    let calls = &context.gateway.delivery.calls;
    let metrics = &context.gateway.metrics.calls;
    loop {
        let outcome = match calls.look_up(key).await.at(Stage::Key)? {
            KeyStatus::Unclaimed(unclaimed) => return Ok(Continue(unclaimed)),
            KeyStatus::Settled(outcome) => {
                metrics.count_outcome(match &outcome {
                    Outcome::Refused(_) => "unknown",
                    _ => "replayed",
                });
                outcome
            }
            KeyStatus::Wait(waiting) => {
                metrics.count_outcome("joined");
                let cut = context.relay.watch_exchange(request.exchange);
                let waited = await_outcome(request.session, waiting, Some((until, cut)));
                waited.await.at(Stage::Key)?
            }
        };
        if !matches!(outcome, Outcome::Nothing) {
            return Ok(Break(outcome));
        }
    }
}

/// Executes the call in a task of its own, and answers with its outcome. A concurrent request may claim the key first.
pub(super) async fn execute_once(
    request: &mut Request<'_>,
    (key, unclaimed, done): (Key, UnclaimedKey, CompletionSteps),
    (forward, connection): (OutboundCall, AgentConnection),
) -> Result<Answered, ExchangeError> {
    let context = request.context;
    let until = forward.clocks.total;
    let calls = &context.gateway.delivery.calls;
    let Some((claim, waiting)) = calls.claim(unclaimed).await.at(Stage::Key)? else {
        // Release the slot at the target while waiting.
        drop((forward, connection));
        return match replay_or_reserve(request, &key, until, done).await? {
            Break(ended) => Ok(ended),
            Continue(_) => Err(failed_meanwhile().into()),
        };
    };
    request.exchange.record.mark_sent();
    let task = CallTask::new(Arc::clone(&context.relay), request.exchange, forward);
    let live = task.start(claim, connection);
    // The call has its own timeouts.
    let outcome = await_outcome(request.session, waiting, None).await?;
    request.exchange.record_head_time();
    let response = StoredResponse {
        outcome,
        replay: false,
        live: Some(live),
        done,
    };
    send_stored_response(request, response).await
}

/// Waits for the outcome of a call in progress. `until` has the waiter's deadline and the shutdown signal; `None`
/// for the request's own call, which has timeouts and is cancelled at shutdown.
async fn await_outcome(
    session: &mut ServerSession,
    mut waiting: OutcomeWatch,
    until: Option<(Instant, CancelWatch)>,
) -> Result<Outcome, ExchangeError> {
    let over = async {
        let Some((until, mut cut)) = until else {
            return pending().await;
        };
        tokio::select! {
            () = sleep_until(until) => timed_out("total"),
            why = cut.cancelled(Delivery::Unknown) => why,
        }
    };
    tokio::select! {
        biased;
        outcome = waiting.wait_for_outcome() => Ok(outcome),
        rejection = over => Err(rejection.into()),
        () = client_disconnected(session) => Err(ExchangeError::CallerLeft),
    }
}

/// Rejection: a concurrent request claimed the key, and its call was not delivered.
fn failed_meanwhile() -> Rejection {
    let message = "the same call was made at the same moment, and failed; send it again";
    let again = std::time::Duration::from_secs(1);
    Rejection::new(Reason::Overloaded, message).with_retry_after(again)
}

// Calls with a key that the gateway answers itself: each is executed once.

/// Executes `work` unless it was executed for the key already, or by a concurrent request, and keeps its answer; breaks
/// with the outcome if it was. The work runs to its end, even if its caller disconnects.
pub(crate) async fn execute_own_once<T: Send + 'static>(
    request: &mut Request<'_>,
    key: &Key,
    work: impl Future<Output = Result<(Answer, T), Rejection>> + Send + 'static,
) -> Result<ControlFlow<Outcome, (Answer, T)>, ExchangeError> {
    let context = request.context;
    let until = request.exchange.call.started + request.exchange.call.config.timeouts.total;
    let claim = loop {
        let unclaimed = match look_up_key(request, key, until).await? {
            Continue(unclaimed) => unclaimed,
            Break(outcome) => return Ok(Break(outcome)),
        };
        // If another replica claimed it first, wait for that call.
        let calls = &context.gateway.delivery.calls;
        if let Some((claim, _)) = calls.claim(unclaimed).await.at(Stage::Key)? {
            break claim;
        }
    };
    let running = context.relay.drain.count_work();
    let done = tokio::spawn(async move {
        let _running = running;
        match work.await {
            Ok((mut answer, what)) => {
                answer.kept = claim.record_answer(answer.clone(), None).await;
                Ok((answer, what))
            }
            Err(refused) => {
                claim.record_refusal(refused.clone()).await;
                Err(refused)
            }
        }
    });
    let done = done.await.map_err(|_| abandoned())?;
    Ok(Continue(done?))
}

/// Rejection: the task of the call panicked, which is a bug.
fn abandoned() -> Rejection {
    Rejection::new(Reason::Internal, "the call could not be answered")
}

// Answers a call from its kept response, to its caller only.

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
        Outcome::Nothing => Err(failed_meanwhile().into()),
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
            let relay = &request.context.relay;
            let stream = EventWriter::begin(request, (answer.status, head), name, true).await?;
            relay_stream(relay, stream, events).await
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
    relay: &Relay,
    mut stream: EventWriter<'_>,
    mut events: EventSource,
) -> Result<Answered, ExchangeError> {
    let mut cut = CancelWatch::for_drain(&relay.drain);
    let call = &stream.exchange.call;
    let mut ends = relay.cut_off(
        AccessBasis::Credential,
        call.proof.as_ref(),
        call.target.as_ref(),
    );
    let _open = InProgress::begin(&call.metrics.open_streams);
    let mut looked = false;
    loop {
        let kept = matches!(events, EventSource::Kept(_));
        let piece = tokio::select! {
            biased;
            // First: a stream without pauses must not hide the cut-off.
            why = cut_off(&mut ends) => return stream.end(&why).await,
            piece = events.next() => piece,
            why = cut.cancelled(Delivery::Sent), if kept => return stream.end(&why).await,
            () = sleep_until(stream.keepalive_at()) => {
                stream.send_keepalive().await?;
                continue;
            }
            () = client_disconnected(stream.session) => return Err(ExchangeError::CallerLeft),
        };
        let last = piece.is_none();
        let piece = piece.unwrap_or_default();
        // The first event of a stream has the id of its task.
        if !std::mem::replace(&mut looked, true) {
            stream.exchange.record_task(|scan| scan.push_events(&piece));
        }
        stream.send(piece, last).await?;
        if last {
            return Ok(Answered);
        }
    }
}

/// Writes a stream of events that are kept, with comments in its pauses that keep the connection of its caller alive.
pub(crate) struct EventWriter<'a> {
    pub(crate) session: &'a mut ServerSession,
    pub(crate) exchange: &'a mut Exchange,
    /// The id of the stream, as the caller knows it.
    name: String,
    /// True for numbered events of a log, which is where they are counted.
    is_log: bool,
    /// Time of the last write.
    written: Instant,
}

impl<'a> EventWriter<'a> {
    /// Begins the stream with its head.
    pub(crate) async fn begin(
        request: &'a mut Request<'_>,
        (status, head): (u16, ResponseHeader),
        name: &str,
        is_log: bool,
    ) -> Result<Self, ExchangeError> {
        let (session, exchange) = (&mut *request.session, &mut *request.exchange);
        exchange.record.status = status;
        exchange.record_stream();
        begin_stream(session, head, name).await?;
        Ok(Self {
            session,
            exchange,
            name: name.to_owned(),
            is_log,
            written: Instant::now(),
        })
    }

    /// Returns the time of the next comment.
    pub(crate) fn keepalive_at(&self) -> Instant {
        self.written + self.exchange.call.config.stream.keepalive
    }

    /// Writes a comment.
    pub(crate) async fn send_keepalive(&mut self) -> Result<(), ExchangeError> {
        let comment = Framing::Lf.keepalive_comment(self.is_log);
        self.send(comment.into(), false).await
    }

    /// Writes events.
    pub(crate) async fn send(&mut self, bytes: Bytes, last: bool) -> Result<(), ExchangeError> {
        let record = &mut self.exchange.record;
        record.add_passed_bytes(bytes.len());
        let is_event = !self.is_log && !bytes.is_empty() && !bytes.starts_with(b":");
        record.add_events(u32::from(is_event));
        let deadline = Instant::now() + self.exchange.call.config.timeouts.write;
        write_within(deadline, self.session.write_response_body(bytes, last)).await?;
        self.written = Instant::now();
        Ok(())
    }

    /// Ends a stream for this reader, with the reason as its last event.
    pub(crate) async fn end(&mut self, why: &Rejection) -> Result<Answered, ExchangeError> {
        self.exchange.record_rejection(why);
        let call = &self.exchange.call;
        let (form, id) = (call.reply_form(), &call.request_id);
        let event = why.last_event(&form, id, &self.name, Framing::Lf);
        self.send(event, true).await.map(|()| Answered)
    }
}
