//! Calls with a key (`docs/reference/a2a.md`, "Idempotency keys"): an idempotency key is claimed before a call
//! is sent, the answer is stored before any caller gets it, and later calls with the key get the stored
//! answer.
//!
//! Their rows are in the table of the [mailbox](super::mailbox), whose wake-ups end waits on other replicas: without
//! them, waiting requests read the table once a second. A claim is held by a process as long as it renews its
//! lease. The outcome of the claims of a crashed process is unknown, and they are never sent again.
//!
//! Invariants: one dispatch per key, whatever fails; a replayed answer is the one that was stored.

mod claim;
mod outcome_watch;
mod table;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

pub use self::claim::{Claim, UnclaimedKey};
pub use self::outcome_watch::OutcomeWatch;

use self::table::Row;
use crate::mailbox::{Lease, Mailbox, PURGE_EVERY};
use crate::repeat;
use a2a::state::TaskState;
use kernel::deadline::ticks;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::telemetry::Chain;
use kernel::time::Timestamp;

/// Duration of a lease without a renewal.
const LEASE: Duration = Duration::from_secs(20);

/// Interval of lease renewals.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// Claims without a written end that are remembered, at most. Further ones expire when this process ends.
const LOOSE_MAX: usize = 10_000;

/// The identity of a call: two calls with equal keys are one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Hash of the caller, the target and the idempotency key.
    scope: String,
    /// The caller, as `Proof::owner`.
    owner: String,
    /// Hash of the method and the body.
    body: String,
    /// True if a call with another body may follow when the agent waits for one.
    follows_up: bool,
}

/// The source of an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `Idempotency-Key`
    Field,
    /// `params.message.task_id`
    Task,
    /// `params.message.messageId`
    Message,
}

impl Key {
    /// Returns the lease on the key of the claim with this fence.
    fn lease(&self, fence: i64) -> Lease<'_> {
        Lease {
            id: &self.scope,
            fence,
        }
    }

    /// Returns the key of a call: the idempotency key `name` of the caller `owner` (`Proof::owner`) for
    /// `target`, with the hash of its method and its body as they arrived ([`call_hash`]).
    pub fn new(
        (owner, target): (&str, &str),
        (source, name): (Source, &str),
        call: String,
    ) -> Self {
        let word = match source {
            Source::Field => "field",
            Source::Task => "task",
            Source::Message => "message",
        };
        Self {
            scope: hash_parts(&[
                owner.as_bytes(),
                target.as_bytes(),
                word.as_bytes(),
                name.as_bytes(),
            ]),
            owner: owner.to_owned(),
            body: call,
            follows_up: source == Source::Task,
        }
    }
}

/// Returns the hash of a call: calls with the same key must not differ in it.
pub fn call_hash(method: &str, body: &[u8]) -> String {
    hash_parts(&[method.as_bytes(), body])
}

/// Returns the SHA-256 hash over parts, each preceded by its length, in hexadecimal digits.
fn hash_parts(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("{:x}", hash.finalize())
}

/// The agent's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The header fields; of a stored answer only those that describe the body.
    pub fields: HeaderMap,
    /// The body; empty for a stream.
    pub body: Bytes,
    /// True if later calls with the key get it. Where `limits.kept_bytes` are used up it is only passed on.
    pub kept: bool,
}

/// The outcome of a call.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The agent's answer.
    Whole(Arc<Answer>),
    /// A stream of that name, from its first event.
    Stream(Arc<Answer>, String),
    /// A rejection by the gateway.
    Refused(Rejection),
    /// The call was not sent after all, and may be sent now.
    Nothing,
}

/// The state of a key.
pub enum KeyStatus {
    /// The key is unclaimed. Its value names the run that is replaced.
    Unclaimed(UnclaimedKey),
    /// The call is running.
    Wait(OutcomeWatch),
    /// The call has an outcome.
    Settled(Outcome),
}

/// Calls with waiters.
type OpenCalls = HashMap<Key, watch::Receiver<Option<Outcome>>>;

/// Claims, waits for and replays calls with a key.
pub struct Calls {
    mailbox: Arc<Mailbox>,
    /// Calls that run or are waited for on this replica. More than one per scope only briefly.
    open: Mutex<OpenCalls>,
    /// Claims without a written end.
    loose: Mutex<Vec<(String, i64, ClaimEnd)>>,
}

/// The end of a claim that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimEnd {
    Release,
    Unknown,
}

impl Calls {
    /// Creates it; does not touch the stores.
    pub fn new(mailbox: Arc<Mailbox>) -> Arc<Self> {
        Arc::new(Self {
            mailbox,
            open: Mutex::default(),
            loose: Mutex::default(),
        })
    }

    /// Returns the state of the call with that key.
    ///
    /// # Errors
    /// `idempotency_conflict` when the key was used with another body; `agent_protocol_error` when the outcome is
    /// unknown; `store_unavailable`.
    pub async fn look_up(self: &Arc<Self>, key: &Key) -> Result<KeyStatus, Rejection> {
        if let Some(waiting) = self.find_watch(key) {
            return Ok(KeyStatus::Wait(waiting));
        }
        let Some(row) = self.find(&key.scope).await? else {
            return Ok(self.reserve_key(key, None));
        };
        if row.body_hash != key.body {
            let waits = row.task_state.is_some_and(TaskState::is_interrupted);
            if key.follows_up && waits {
                return Ok(self.reserve_key(key, Some(row.fence)));
            }
            self.mailbox.metrics.calls.count_outcome("conflict");
            return Err(key_conflict());
        }
        Ok(match self.outcome_of_row(key, row).await {
            Some(outcome) => KeyStatus::Settled(outcome),
            None => KeyStatus::Wait(self.wait_elsewhere(key)),
        })
    }

    /// Refreshes the task state of an earlier call that the call of that key may follow up: `state_of` reads
    /// it from the earlier answer.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn refresh_task_state(
        &self,
        key: &Key,
        state_of: impl AsyncFnOnce(&Answer) -> Result<Option<TaskState>, Rejection>,
    ) -> Result<(), Rejection> {
        if !key.follows_up {
            return Ok(());
        }
        let row = self.find(&key.scope).await?;
        let other = row.filter(|row| row.body_hash != key.body);
        let other = other.and_then(|row| Some((row.fence, row.outcome?)));
        let Some((fence, Outcome::Whole(answer))) = other else {
            return Ok(());
        };
        if let Some(state) = state_of(answer.as_ref()).await? {
            self.record_end(key.lease(fence), Some(state)).await?;
        }
        Ok(())
    }

    /// Returns the outcome in a row; `None`: the call is running.
    async fn outcome_of_row(&self, key: &Key, row: Row) -> Option<Outcome> {
        if row.outcome.is_some() {
            return row.outcome;
        }
        // In a single gateway this process holds every running call; another holder has crashed.
        let gone = if self.mailbox.shared.is_embedded() {
            row.holder != self.mailbox.holder
        } else {
            row.leased_until < Timestamp::now().0
        };
        if !gone {
            return None;
        }
        let lease = key.lease(row.fence);
        self.settle_claim(lease, ClaimEnd::Unknown).await;
        Some(Outcome::Refused(outcome_unknown()))
    }

    /// Renews leases, retries failed writes and purges lapsed rows. A background task; runs until it is dropped.
    pub async fn run(&self) {
        let purge = || self.purge();
        tokio::join!(
            self.renew_leases(),
            repeat(PURGE_EVERY, "purge of calls with a key", purge)
        );
    }

    async fn renew_leases(&self) {
        let mut tick = ticks(RENEW_EVERY);
        loop {
            tick.tick().await;
            let loose = std::mem::take(&mut *self.loose.lock());
            for (id, fence, end) in loose {
                self.settle_claim(Lease { id: &id, fence }, end).await;
            }
            if self.open.lock().is_empty() {
                continue;
            }
            let until = Timestamp::now().after(LEASE);
            if let Err(error) = self.mailbox.renew_all(until).await {
                tracing::debug!(error = %Chain(&error), "failed to renew the leases of calls with a key; will retry");
            }
        }
    }

    /// Writes the end of a claim, now or later.
    async fn settle_claim(&self, lease: Lease<'_>, end: ClaimEnd) {
        let written = match end {
            ClaimEnd::Release => self.mailbox.release(lease).await,
            ClaimEnd::Unknown => self.mark_unknown(lease).await,
        };
        if let Err(error) = written {
            tracing::debug!(error = %Chain(&error), "failed to write the end of a call with a key; will retry");
            self.settle_later(lease, end);
        }
    }

    fn settle_later(&self, lease: Lease<'_>, end: ClaimEnd) {
        let mut loose = self.loose.lock();
        if loose.len() < LOOSE_MAX {
            loose.push((lease.id.to_owned(), lease.fence, end));
        }
    }
}

fn key_conflict() -> Rejection {
    Rejection::new(
        Reason::IdempotencyConflict,
        "the key was used for a call with another body; send that one again, or use a new key",
    )
}

/// Returns the rejection of a call that may have been delivered, with an unknown outcome.
fn outcome_unknown() -> Rejection {
    Rejection::new(
        Reason::AgentProtocolError,
        "the call with this key was sent, and its outcome is not known; ask for the task, or use a new key",
    )
    .with_delivery(Delivery::Unknown)
}

/// Returns the rejection for an answer that was passed on once and not kept.
fn answer_not_kept() -> Rejection {
    Rejection::new(
        Reason::AgentProtocolError,
        "the call with this key was answered, and its answer was not kept, since limits.kept_bytes were used up; it is not \
         sent again: ask for the task, or use a new key",
    )
    .with_delivery(Delivery::Sent)
}
