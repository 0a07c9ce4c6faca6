//! Calls with an idempotency key: owner check, single execution, and replay (`docs/reference/a2a.md`,
//! "Idempotency keys").

pub(crate) mod answer;
mod call_task;

pub(super) use crate::idempotency::answer::StoredResponse;
pub(super) use crate::idempotency::answer::send_stored_response;
use crate::idempotency::call_task::CallTask;
use crate::listener::client_disconnected;
use crate::record::{Answered, ExchangeError};
use crate::response::OutboundCall;
use crate::services::Request;
use crate::upstream::{AgentConnection, CancelWatch, timed_out};
use a2a::completion_steps::CompletionSteps;
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::stage::Stage;
use mailbox::calls::{Answer, Key, KeyStatus, Outcome, OutcomeWatch, UnclaimedKey};
use pingora::protocols::http::ServerSession;
use std::future::pending;
use std::sync::Arc;
use tokio::time::{Instant, sleep_until};

/// State of a key after a request has looked for an earlier call with it.
pub(super) enum KeyState {
    /// No call has it: the request may claim it.
    Unclaimed(UnclaimedKey),
    /// The request is answered by replay.
    Replayed(Answered),
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
) -> Result<KeyState, ExchangeError> {
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
) -> Result<KeyLookup, ExchangeError> {
    let context = request.context;
    let calls = &context.gateway.delivery.calls;
    let metrics = &context.gateway.metrics.calls;
    loop {
        let outcome = match calls.look_up(key).await.at(Stage::Key)? {
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
                let waited = await_outcome(request.session, waiting, Some((until, cut)));
                waited.await.at(Stage::Key)?
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
) -> Result<Answered, ExchangeError> {
    let context = request.context;
    let until = forward.clocks.total;
    let calls = &context.gateway.delivery.calls;
    let Some((claim, waiting)) = calls.claim(unclaimed).await.at(Stage::Key)? else {
        // Release the slot at the target while waiting.
        drop((forward, connection));
        return match replay_or_reserve(request, &key, until, done).await? {
            KeyState::Replayed(ended) => Ok(ended),
            KeyState::Unclaimed(_) => Err(failed_meanwhile().into()),
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

/// Result of an execution.
pub(crate) enum Execution<T> {
    /// It was executed now.
    Fresh(Answer, T),
    /// It was executed before, or by a concurrent request.
    Replayed(Outcome),
}

/// Executes `work` unless it was executed for the key already, and keeps its answer. The work runs to its end, even
/// if its caller disconnects.
pub(crate) async fn execute_own_once<T: Send + 'static>(
    request: &mut Request<'_>,
    key: &Key,
    work: impl Future<Output = Result<(Answer, T), Rejection>> + Send + 'static,
) -> Result<Execution<T>, ExchangeError> {
    let context = request.context;
    let until = request.exchange.call.started + request.exchange.call.config.timeouts.total;
    let claim = loop {
        let unclaimed = match look_up_key(request, key, until).await? {
            KeyLookup::Unclaimed(unclaimed) => unclaimed,
            KeyLookup::Settled(outcome) => return Ok(Execution::Replayed(outcome)),
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
    let (answer, what) = done?;
    Ok(Execution::Fresh(answer, what))
}

/// Rejection: the task of the call panicked, which is a bug.
fn abandoned() -> Rejection {
    Rejection::new(Reason::Internal, "the call could not be answered")
}
