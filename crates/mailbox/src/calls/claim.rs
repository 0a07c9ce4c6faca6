//! Claims on idempotency keys: the right to send a call once.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Answer, Calls, ClaimEnd, Key, KeyStatus, Outcome, OutcomeWatch};
use crate::mailbox::Lease;
use crate::wake::Topic;
use a2a::state::TaskState;
use kernel::metrics::RetainedKind;
use kernel::rejection::{Delivery, Rejection};
use kernel::telemetry::Chain;

/// An unclaimed key, reserved on this replica: concurrent callers here wait for it. Dropping it releases the
/// reservation.
pub struct UnclaimedKey {
    calls: Arc<Calls>,
    key: Key,
    /// The fence of the claim that it replaces.
    replaced: Option<i64>,
    tell: Option<watch::Sender<Option<Outcome>>>,
}

/// The right to send a call, once. Dropped without a result it leaves the outcome unknown.
pub struct Claim {
    calls: Arc<Calls>,
    key: Key,
    pub(super) fence: i64,
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
    pub(super) fn reserve_key(self: &Arc<Self>, key: &Key, replaced: Option<i64>) -> KeyStatus {
        match self.open_call(key) {
            Err(waiting) => KeyStatus::Wait(waiting),
            Ok(tell) => KeyStatus::Unclaimed(UnclaimedKey {
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
            // Drawn by lot: a key that was released may be claimed again.
            fence: uuid::Uuid::new_v4().as_u64_pair().0.cast_signed(),
            tell,
            stage: Stage::Claiming,
        };
        let claimed = self.write_claim((&claim.key, claim.fence), unclaimed.replaced);
        if !claimed.await? {
            return Ok(None);
        }
        claim.stage = Stage::Ours;
        self.mailbox.metrics.calls.count_outcome("dispatched");
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
    pub(super) fn lease(&self) -> Lease<'_> {
        self.key.lease(self.fence)
    }

    /// Stores the agent's complete answer, and returns whether it is kept for replay. A failure (`5xx`) is
    /// not kept and releases the key.
    pub async fn record_answer(
        mut self,
        mut answer: Answer,
        task_state: Option<TaskState>,
    ) -> bool {
        if answer.status >= 500 {
            self.calls
                .settle_claim(self.lease(), ClaimEnd::Release)
                .await;
        } else {
            answer.kept = self.store_answer(&answer, task_state).await;
        }
        let kept = answer.kept;
        self.publish_outcome(Outcome::Whole(Arc::new(answer)));
        kept
    }

    /// Settles a call with an answer that the gateway rejected for good. Replays get the rejection as `answer` has it.
    pub async fn record_rejection(mut self, rejection: Rejection, answer: &Answer) {
        self.store_answer(answer, None).await;
        self.publish_outcome(Outcome::Refused(rejection));
    }

    /// Stores an answer. True if it is kept for replay.
    async fn store_answer(&self, answer: &Answer, task_state: Option<TaskState>) -> bool {
        let calls = &self.calls;
        let claim = (&self.key, self.fence);
        match calls.write_answer(claim, answer, task_state).await {
            Ok(kept) => {
                if !kept {
                    calls.mailbox.metrics.calls.count_outcome("unkept");
                    calls.mailbox.metrics.kept.refused[RetainedKind::Answer].inc();
                }
                kept
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "failed to store an answer for replay");
                calls.mailbox.metrics.calls.unstored.inc();
                calls.settle_later(self.lease(), ClaimEnd::Unknown);
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
        self.calls.settle_claim(self.lease(), end).await;
        self.publish_outcome(Outcome::Refused(rejection));
    }

    /// Publishes the head of a streamed response: from now on other callers with the key follow the stream.
    pub async fn publish_stream(&self, head: Answer, stream: String) {
        let written = self.calls.record_stream(self.lease(), &head, &stream).await;
        if let Err(error) = written {
            tracing::warn!(error = %Chain(&error), "failed to record a stream for replay");
            self.calls.mailbox.metrics.calls.unstored.inc();
        }
        let outcome = Outcome::Stream(Arc::new(head), stream);
        self.tell.send_replace(Some(outcome));
        self.calls.mailbox.hub.wake([Topic::call(&self.key.scope)]);
    }

    /// Records that the stream is over.
    pub async fn record_stream_end(mut self, task_state: Option<TaskState>) {
        match self.calls.record_end(self.lease(), task_state).await {
            Ok(true) => {}
            // The head of the stream could not be written, so there is nothing to replay.
            Ok(false) => {
                self.calls
                    .settle_claim(self.lease(), ClaimEnd::Unknown)
                    .await
            }
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "failed to record the end of a stream");
                self.calls.settle_later(self.lease(), ClaimEnd::Unknown);
            }
        }
        self.close_entry();
    }

    pub(super) fn publish_outcome(&mut self, outcome: Outcome) {
        self.tell.send_replace(Some(outcome));
        // A caller that comes now finds the outcome in the table.
        self.close_entry();
        self.calls.mailbox.hub.wake([Topic::call(&self.key.scope)]);
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
            Stage::Ours => self.calls.settle_later(self.lease(), ClaimEnd::Unknown),
            Stage::Claiming => {
                // The row may be committed all the same.
                self.calls.settle_later(self.lease(), ClaimEnd::Release);
                self.tell.send_replace(Some(Outcome::Nothing));
            }
        }
    }
}
