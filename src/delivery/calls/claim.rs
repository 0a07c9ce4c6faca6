//! Claims on idempotency keys: the right to send a call once.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Answer, Calls, ClaimEnd, Key, KeyStatus, Outcome, OutcomeWatch, claim_times};
use crate::a2a::state::TaskState;
use crate::metrics::RetainedKind;
use crate::rejection::{Delivery, Rejection};
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// An unclaimed key, reserved on this replica: concurrent callers here wait for it. Dropping it releases the
/// reservation.
pub struct UnclaimedKey {
    calls: Arc<Calls>,
    key: Key,
    /// The run that it replaces; empty: none.
    replaced: String,
    tell: Option<watch::Sender<Option<Outcome>>>,
}

/// The right to send a call, once. Dropped without a result it leaves the outcome unknown.
pub struct Claim {
    calls: Arc<Calls>,
    key: Key,
    pub(super) run: String,
    tell: watch::Sender<Option<Outcome>>,
    stage: Stage,
}

/// The stage of a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The claim is being written; nothing was sent.
    Claiming,
    /// The call may have been sent.
    Ours,
    /// The outcome is written, or the key was claimed elsewhere.
    Settled,
}

impl Calls {
    /// Reserves a key that was not found; waits if another task of this replica has reserved it.
    pub(super) fn reserve_key(self: &Arc<Self>, key: &Key, replaced: String) -> KeyStatus {
        match self.open_call(key) {
            Err(waiting) => KeyStatus::Wait(waiting),
            Ok((tell, _)) => KeyStatus::Unclaimed(UnclaimedKey {
                calls: Arc::clone(self),
                key: key.clone(),
                replaced,
                tell: Some(tell),
            }),
        }
    }

    /// Claims an unclaimed key. `None`: another replica claimed it first.
    ///
    /// # Errors
    /// `store_unavailable`: nothing may be sent.
    pub async fn claim(
        &self,
        mut unclaimed: UnclaimedKey,
    ) -> Result<Option<(Claim, OutcomeWatch)>, Rejection> {
        let Some(tell) = unclaimed.tell.take() else {
            return Ok(None);
        };
        let mut claim = Claim {
            calls: Arc::clone(&unclaimed.calls),
            key: unclaimed.key.clone(),
            run: uuid::Uuid::now_v7().simple().to_string(),
            tell,
            stage: Stage::Claiming,
        };
        let times = claim_times(self.config.get().idempotency.ttl);
        let names = (claim.run.as_str(), self.holder.as_str());
        let claimed = self
            .table
            .claim(&claim.key, names, times, &unclaimed.replaced);
        if !claimed.await? {
            return Ok(None);
        }
        claim.stage = Stage::Ours;
        self.metrics.calls.count_outcome("dispatched");
        let waiting = OutcomeWatch(claim.tell.subscribe());
        Ok(Some((claim, waiting)))
    }
}

impl Drop for UnclaimedKey {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            // First, so that the key can be reserved again before the waiters are notified.
            self.calls.close_call(&self.key);
            tell.send_replace(Some(Outcome::Nothing));
        }
    }
}

impl Claim {
    /// Stores the agent's complete answer, and returns whether it is kept for replay. A failure (`5xx`) is
    /// not kept and releases the key.
    pub async fn record_answer(
        mut self,
        mut answer: Answer,
        task_state: Option<TaskState>,
    ) -> bool {
        if answer.status >= 500 {
            self.calls.settle_claim(&self.run, ClaimEnd::Release).await;
        } else {
            answer.kept = self.store_answer(&answer, task_state).await;
        }
        let kept = answer.kept;
        self.publish_outcome(Outcome::Whole(Arc::new(answer))).await;
        kept
    }

    /// Settles a call with an answer that the gateway rejected for good. Replays get the rejection as `answer` has it.
    pub async fn record_rejection(mut self, rejection: Rejection, answer: &Answer) {
        self.store_answer(answer, None).await;
        self.publish_outcome(Outcome::Refused(rejection)).await;
    }

    /// Stores an answer. True if it is kept for replay.
    async fn store_answer(&self, answer: &Answer, task_state: Option<TaskState>) -> bool {
        let calls = &self.calls;
        let expires_at = Timestamp::now().after(calls.config.get().idempotency.ttl).0;
        let whose = (self.run.as_str(), self.key.owner.as_str(), &*calls.bytes);
        match calls
            .table
            .store_answer(whose, answer, task_state, expires_at)
            .await
        {
            Ok(kept) => {
                if !kept {
                    calls.metrics.calls.count_outcome("unkept");
                    calls.metrics.kept.count_refused(RetainedKind::Answer);
                }
                kept
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "failed to store an answer for replay");
                calls.metrics.calls.unstored.inc();
                calls.settle_later(self.run.clone(), ClaimEnd::Unknown);
                false
            }
        }
    }

    /// Settles a call that the gateway rejected or cut off. If nothing was delivered the key is unclaimed again.
    pub async fn record_refusal(mut self, rejection: Rejection) {
        let is_5xx =
            |(name, value): &(&str, String)| *name == "agent_status" && value.starts_with('5');
        let end = match rejection.delivered {
            // As an agent's `5xx` that can be read.
            _ if rejection.facts.iter().any(is_5xx) => ClaimEnd::Release,
            None | Some(Delivery::NotSent) => ClaimEnd::Release,
            Some(Delivery::Unknown | Delivery::Sent) => ClaimEnd::Unknown,
        };
        self.calls.settle_claim(&self.run, end).await;
        self.publish_outcome(Outcome::Refused(rejection)).await;
    }

    /// Publishes the head of a streamed response: from now on other callers with the key follow the stream.
    pub async fn publish_stream(&self, head: Answer, stream: String) {
        let written = self
            .calls
            .table
            .record_stream(&self.run, &head, &stream)
            .await;
        if let Err(error) = written {
            tracing::warn!(error = %Chain(&error), "failed to record a stream for replay");
            self.calls.metrics.calls.unstored.inc();
        }
        let outcome = Outcome::Stream(Arc::new(head), stream);
        self.tell.send_replace(Some(outcome));
        self.calls.announce_scope(&self.key.scope).await;
    }

    /// Records that the stream is over.
    pub async fn record_stream_end(mut self, task_state: Option<TaskState>) {
        match self.calls.table.record_end(&self.run, task_state).await {
            Ok(true) => {}
            // The head of the stream could not be written, so there is nothing to replay.
            Ok(false) => self.calls.settle_claim(&self.run, ClaimEnd::Unknown).await,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "failed to record the end of a stream");
                self.calls.settle_later(self.run.clone(), ClaimEnd::Unknown);
            }
        }
        self.close_entry();
    }

    pub(super) async fn publish_outcome(&mut self, outcome: Outcome) {
        self.tell.send_replace(Some(outcome));
        // A caller that comes now finds the outcome in the table.
        self.close_entry();
        self.calls.announce_scope(&self.key.scope).await;
    }

    /// Removes the entry of this call. Must run once: the key may have a new owner afterwards.
    fn close_entry(&mut self) {
        self.stage = Stage::Settled;
        self.calls.close_call(&self.key);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let stage = self.stage;
        if stage != Stage::Settled {
            self.close_entry();
        }
        match stage {
            Stage::Settled => {}
            Stage::Ours => self.calls.settle_later(self.run.clone(), ClaimEnd::Unknown),
            Stage::Claiming => {
                // The row may be committed all the same.
                self.calls.settle_later(self.run.clone(), ClaimEnd::Release);
                self.tell.send_replace(Some(Outcome::Nothing));
            }
        }
    }
}
