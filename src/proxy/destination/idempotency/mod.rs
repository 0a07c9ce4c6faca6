//! Calls with an idempotency key: owner check, single execution, and replay (`docs/reference/a2a.md`,
//! "Idempotency keys").

mod answer;
mod call_task;
mod execution;

use std::borrow::Cow;
use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderName;
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::{Instant, sleep_until};

pub(super) use self::answer::{StoredResponse, mark_replay, send_stored_response, stream_expired};
use self::call_task::CallTask;
pub(super) use self::execution::{Execution, execute_own_once};
use crate::a2a::completion_steps::CompletionSteps;
use crate::a2a::envelope::CompletedCall;
use crate::a2a::method::Method;
use crate::a2a::task::Binding;
use crate::delivery::calls::{
    Key, KeyStatus, Outcome, OutcomeWatch, Source, UnclaimedKey, call_hash,
};
use crate::proxy::admit::single_field;
use crate::proxy::offload;
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::record::Exchange;
use crate::proxy::relay::failure::timed_out;
use crate::proxy::relay::upstream::AgentConnection;
use crate::proxy::relay::{CancelWatch, OutboundCall};
use crate::proxy::request::Request;
use crate::proxy::respond::client_disconnected;
use crate::rejection::{Delivery, Reason, Rejection};

pub(in crate::proxy) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Longest key in the field, in characters.
const KEY_LEN_MAX: usize = 255;

/// Returns the key of a call with `body`. `None`: it has none, or only reads. `completed`: the parsed call, if
/// it is JSON-RPC.
///
/// # Errors
/// `invalid_request`.
pub(in crate::proxy) async fn read_key(
    exchange: &Exchange,
    head: &RequestHeader,
    completed: Option<&CompletedCall>,
    body: &Bytes,
) -> Result<Option<Key>, Rejection> {
    if !exchange.method.sends() && exchange.method != Method::Other {
        return Ok(None);
    }
    let by_message = exchange.config.idempotency.message_id;
    let named = match (key_field(head)?, completed) {
        (Some(field), _) => Some((Source::Field, field)),
        (None, Some(completed)) => {
            let task = completed.idempotency_key.as_deref();
            let message = completed.message_id.as_deref().filter(|_| by_message);
            let task = task.map(|key| (Source::Task, key));
            task.or(message.map(|key| (Source::Message, key)))
        }
        (None, None) => None,
    };
    let (Some(named), Some(proof), Some(target)) = (named, &exchange.proof, exchange.life()) else {
        return Ok(None);
    };
    let owner = proof.owner();
    let line = match exchange.binding {
        Binding::Rpc => Cow::Borrowed::<'static>(exchange.method.label()),
        // The request line names the method.
        Binding::Rest => {
            let line = head.uri.path_and_query();
            let line = line.map_or_else(|| head.uri.path(), |line| line.as_str());
            format!("{} {line}", head.method).into()
        }
    };
    let call = offload::run_on_body(body, move |body| call_hash(&line, body)).await;
    Ok(Some(Key::new((&owner, &target.to_string()), named, call)))
}

/// # Errors
/// `invalid_request`.
fn key_field(head: &RequestHeader) -> Result<Option<&str>, Rejection> {
    let Some(field) = single_field(head, &IDEMPOTENCY_KEY)? else {
        return Ok(None);
    };
    let visible = field.iter().all(u8::is_ascii_graphic);
    let text = std::str::from_utf8(field).ok();
    let text = text.filter(|_| visible && (1..=KEY_LEN_MAX).contains(&field.len()));
    text.map(Some).ok_or_else(|| {
        let message = "Idempotency-Key is 1 to 255 visible ASCII characters";
        Rejection::new(Reason::InvalidRequest, message)
    })
}

/// State of a key after a request has looked for an earlier call with it.
pub(super) enum KeyState {
    /// No call has it: the request may claim it.
    Unclaimed(UnclaimedKey),
    /// The request is answered by replay.
    Replayed(ExchangeOutcome),
}

/// State of a key without a call in progress.
enum KeyLookup {
    Unclaimed(UnclaimedKey),
    Settled(Outcome),
}

/// An unclaimed key, and the call that claims it.
pub(super) struct KeyReservation {
    pub(super) key: Key,
    pub(super) unclaimed: UnclaimedKey,
    /// The completions of the call.
    pub(super) done: CompletionSteps,
}

/// Answers from the outcome of an earlier or concurrent call with the key, for which it waits until `until`, or returns
/// the key to be claimed. `done`: the completions of this call.
pub(super) async fn replay_or_reserve(
    request: &mut Request<'_>,
    key: &Key,
    until: Instant,
    done: CompletionSteps,
) -> Result<KeyState, ExchangeOutcome> {
    let outcome = match look_up_key(request, key, until).await? {
        KeyLookup::Unclaimed(unclaimed) => return Ok(KeyState::Unclaimed(unclaimed)),
        KeyLookup::Settled(outcome) => outcome,
    };
    let response = StoredResponse::new(outcome, true, done);
    send_stored_response(request, response)
        .await
        .map(KeyState::Replayed)
}

/// Looks a key up; waits for a call in progress until `until`.
async fn look_up_key(
    request: &mut Request<'_>,
    key: &Key,
    until: Instant,
) -> Result<KeyLookup, ExchangeOutcome> {
    let context = request.context;
    let calls = &context.gateway.delivery.calls;
    let metrics = &context.gateway.metrics.calls;
    loop {
        let outcome = match calls.look_up(key).await? {
            KeyStatus::Unclaimed(unclaimed) => return Ok(KeyLookup::Unclaimed(unclaimed)),
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
                await_outcome(request.session, waiting, Some((until, cut))).await?
            }
        };
        if !matches!(outcome, Outcome::Nothing) {
            return Ok(KeyLookup::Settled(outcome));
        }
    }
}

/// Executes the call in a task of its own, and answers with its outcome. A concurrent request may claim the key first.
pub(super) async fn execute_once(
    request: &mut Request<'_>,
    KeyReservation {
        key,
        unclaimed,
        done,
    }: KeyReservation,
    (forward, connection): (OutboundCall, AgentConnection),
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    let context = request.context;
    let until = forward.clocks.total;
    let Some((claim, waiting)) = context.gateway.delivery.calls.claim(unclaimed).await? else {
        // Release the slot at the target while waiting.
        drop((forward, connection));
        return match replay_or_reserve(request, &key, until, done).await? {
            KeyState::Replayed(ended) => Ok(ended),
            KeyState::Unclaimed(_) => Err(failed_meanwhile().into()),
        };
    };
    request.exchange.record_sent();
    let task = CallTask::new(Arc::clone(&context.relay), request.exchange, forward);
    let live = task.start(claim, connection);
    // The call has its own timeouts.
    let outcome = await_outcome(request.session, waiting, None).await?;
    request.exchange.answer.head = Some(request.exchange.started.elapsed());
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
) -> Result<Outcome, ExchangeOutcome> {
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
        () = client_disconnected(session) => Err(ExchangeOutcome::CallerLeft),
    }
}

/// Rejection: a concurrent request claimed the key, and its call was not delivered.
fn failed_meanwhile() -> Rejection {
    let message = "the same call was made at the same moment, and failed; send it again";
    let again = std::time::Duration::from_secs(1);
    Rejection::new(Reason::Overloaded, message).with_retry_after(again)
}
