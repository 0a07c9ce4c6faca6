//! Claims on idempotency keys: the right to send a call once.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Answer, Asked, Calls, End, Key, Outcome, Waiting, times};
use crate::a2a::state::TaskState;
use crate::metrics::KeptKind;
use crate::rejection::{Delivery, Rejection};
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// An unclaimed key, reserved on this replica: concurrent callers here wait for it. Dropping it releases the
/// reservation.
pub struct Unclaimed {
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
    pub(super) fn reserve(self: &Arc<Self>, key: &Key, replaced: String) -> Asked {
        match self.begin(key) {
            Err(waiting) => Asked::Wait(waiting),
            Ok((tell, _)) => Asked::Unclaimed(Unclaimed {
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
        mut unclaimed: Unclaimed,
    ) -> Result<Option<(Claim, Waiting)>, Rejection> {
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
        let times = times(self.config.get().idempotency.ttl);
        let names = (claim.run.as_str(), self.holder.as_str());
        let claimed = self
            .table
            .claim(&claim.key, names, times, &unclaimed.replaced);
        if !claimed.await? {
            return Ok(None);
        }
        claim.stage = Stage::Ours;
        self.metrics.calls.counted("dispatched");
        let waiting = Waiting(claim.tell.subscribe());
        Ok(Some((claim, waiting)))
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            // First, so that the key can be reserved again before the waiters are notified.
            self.calls.close(&self.key);
            tell.send_replace(Some(Outcome::Nothing));
        }
    }
}

impl Claim {
    /// Stores the agent's complete answer, and returns whether it is kept for replay. A failure (`5xx`) is
    /// not kept and releases the key.
    pub async fn answered(mut self, mut answer: Answer, task_state: Option<TaskState>) -> bool {
        if answer.status >= 500 {
            self.calls.settle(&self.run, End::Release).await;
        } else {
            answer.kept = self.keep(&answer, task_state).await;
        }
        let kept = answer.kept;
        self.over(Outcome::Whole(Arc::new(answer))).await;
        kept
    }

    /// Settles a call with an answer that the gateway rejected for good. Replays get the rejection as `answer` has it.
    pub async fn rejected(mut self, rejection: Rejection, answer: &Answer) {
        self.keep(answer, None).await;
        self.over(Outcome::Refused(rejection)).await;
    }

    /// Stores an answer. True if it is kept for replay.
    async fn keep(&self, answer: &Answer, task_state: Option<TaskState>) -> bool {
        let calls = &self.calls;
        let expires_at = Timestamp::now().after(calls.config.get().idempotency.ttl).0;
        let whose = (self.run.as_str(), self.key.owner.as_str(), &*calls.bytes);
        match calls
            .table
            .keep(whose, answer, task_state, expires_at)
            .await
        {
            Ok(kept) => {
                if !kept {
                    calls.metrics.calls.counted("unkept");
                    calls.metrics.kept.refused(KeptKind::Answer);
                }
                kept
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "failed to store an answer for replay");
                calls.metrics.calls.unstored.inc();
                calls.settle_later(self.run.clone(), End::Unknown);
                false
            }
        }
    }

    /// Settles a call that the gateway rejected or cut off. If nothing was delivered the key is unclaimed again.
    pub async fn refused(mut self, rejection: Rejection) {
        let end = match rejection.delivered {
            None | Some(Delivery::NotSent) => End::Release,
            Some(Delivery::Unknown | Delivery::Sent) => End::Unknown,
        };
        self.calls.settle(&self.run, end).await;
        self.over(Outcome::Refused(rejection)).await;
    }

    /// Publishes the head of a streamed response: from now on other callers with the key follow the stream.
    pub async fn streams(&self, head: Answer, stream: String) {
        let written = self.calls.table.stream(&self.run, &head, &stream).await;
        if let Err(error) = written {
            tracing::warn!(error = %Chain(&error), "failed to record a stream for replay");
            self.calls.metrics.calls.unstored.inc();
        }
        let outcome = Outcome::Stream(Arc::new(head), stream);
        self.tell.send_replace(Some(outcome));
        self.calls.tell(&self.key.scope).await;
    }

    /// Records that the stream is over.
    pub async fn ended(mut self, task_state: Option<TaskState>) {
        match self.calls.table.ended(&self.run, task_state).await {
            Ok(true) => {}
            // The head of the stream could not be written, so there is nothing to replay.
            Ok(false) => self.calls.settle(&self.run, End::Unknown).await,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "failed to record the end of a stream");
                self.calls.settle_later(self.run.clone(), End::Unknown);
            }
        }
        self.close();
    }

    pub(super) async fn over(&mut self, outcome: Outcome) {
        self.tell.send_replace(Some(outcome));
        // A caller that comes now finds the outcome in the table.
        self.close();
        self.calls.tell(&self.key.scope).await;
    }

    /// Removes the entry of this call. Must run once: the key may have a new owner afterwards.
    fn close(&mut self) {
        self.stage = Stage::Settled;
        self.calls.close(&self.key);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let stage = self.stage;
        if stage != Stage::Settled {
            self.close();
        }
        match stage {
            Stage::Settled => {}
            Stage::Ours => self.calls.settle_later(self.run.clone(), End::Unknown),
            Stage::Claiming => {
                // The row may be committed all the same.
                self.calls.settle_later(self.run.clone(), End::Release);
                self.tell.send_replace(Some(Outcome::Nothing));
            }
        }
    }
}
