//! Calls with a key that the gateway answers itself: each is executed once.

use super::{KeyLookup, look_up_key};
use crate::delivery::calls::{Answer, Key, Outcome};
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::request::Request;
use crate::rejection::{Reason, Rejection};

/// Result of an execution.
pub(in crate::proxy::destination) enum Execution<T> {
    /// It was executed now.
    Fresh(Answer, T),
    /// It was executed before, or by a concurrent request.
    Replayed(Outcome),
}

/// Executes `work` unless it was executed for the key already, and keeps its answer. The work runs to its end, even
/// if its caller disconnects.
pub(in crate::proxy::destination) async fn execute_own_once<T: Send + 'static>(
    request: &mut Request<'_>,
    key: &Key,
    work: impl Future<Output = Result<(Answer, T), Rejection>> + Send + 'static,
) -> Result<Execution<T>, ExchangeOutcome> {
    let context = request.context;
    let until = request.exchange.started + request.exchange.config.timeouts.total;
    let claim = loop {
        let unclaimed = match look_up_key(request, key, until).await? {
            KeyLookup::Unclaimed(unclaimed) => unclaimed,
            KeyLookup::Settled(outcome) => return Ok(Execution::Replayed(outcome)),
        };
        // If another replica claimed it first, wait for that call.
        if let Some((claim, _)) = context.gateway.delivery.calls.claim(unclaimed).await? {
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
