//! Calls with a key (`docs/reference/a2a.md`, "Idempotency keys"): an idempotency key is claimed before a call
//! is sent, the answer is stored before any caller gets it, and later calls with the key get the stored
//! answer.
//!
//! Owns the table `idempotent_calls` and the channel `gw:idem`, which only carries wake-ups: without it,
//! waiting requests read the table once a second. A claim is held by a process as long as it renews its
//! lease. The outcome of the claims of a crashed process is unknown, and they are never sent again.
//!
//! Invariants: one dispatch per key, whatever fails; a replayed answer is the one that was stored.

mod claim;
mod outcome_watch;
mod table;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};

pub use self::claim::{Claim, UnclaimedKey};
pub use self::outcome_watch::OutcomeWatch;

use self::table::{Row, State, Table, Times};
use crate::a2a::state::TaskState;
use crate::config::Live;
use crate::db::Db;
use crate::deadline::ticks;
use crate::delivery::kept_bytes::KeptBytes;
use crate::delivery::purge::purge_regularly;
use crate::metrics::Metrics;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shared::{Notice, Shared};
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// The channel on which the scopes of finished calls are announced.
const CHANNEL: &str = "gw:idem";

/// Duration of a lease without a renewal.
const LEASE: Duration = Duration::from_secs(20);

/// Interval of lease renewals.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// Claims without a written end that are remembered, at most. Further ones expire when this process ends.
const LOOSE_MAX: usize = 10_000;

/// The identity of a call: two calls with equal keys are one.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// Claims, waits for and replays calls with a key.
pub struct Calls {
    config: Live,
    metrics: Arc<Metrics>,
    table: Table,
    bytes: Arc<KeptBytes>,
    /// The wake-up channel; `None`: there are no other replicas.
    shared: Option<Shared>,
    /// The name of this process as a holder of claims.
    holder: String,
    /// Calls that run or are waited for on this replica, by scope. More than one per scope only briefly.
    open: Mutex<HashMap<String, Vec<OpenCall>>>,
    /// Claims without a written end.
    loose: Mutex<Vec<(String, ClaimEnd)>>,
}

/// A call with waiters.
struct OpenCall {
    body: String,
    outcome: watch::Receiver<Option<Outcome>>,
    /// Notified when the table may have changed.
    news: Arc<Notify>,
}

/// The end of a claim that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimEnd {
    Release,
    Unknown,
}

impl Calls {
    /// Creates it; does not touch the stores.
    pub fn new(
        config: Live,
        (db, shared): (Db, Shared),
        bytes: Arc<KeptBytes>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            config,
            metrics,
            table: Table(db),
            bytes,
            shared: (!shared.is_embedded()).then_some(shared),
            holder: uuid::Uuid::now_v7().simple().to_string(),
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
        let Some(row) = self.table.find(&key.scope, Timestamp::now().0).await? else {
            return Ok(self.reserve_key(key, String::new()));
        };
        if row.body_hash != key.body {
            let waits = row.task_state.is_some_and(TaskState::is_interrupted);
            if key.follows_up && waits {
                return Ok(self.reserve_key(key, row.run));
            }
            self.metrics.calls.count_outcome("conflict");
            return Err(key_conflict());
        }
        Ok(match self.outcome_of_row(row).await {
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
        let row = self.table.find(&key.scope, Timestamp::now().0).await?;
        let other = row.filter(|row| row.body_hash != key.body);
        let Some((run, State::Kept(answer))) = other.map(|row| (row.run, row.state)) else {
            return Ok(());
        };
        if let Some(state) = state_of(&answer).await? {
            self.table.record_end(&run, Some(state)).await?;
        }
        Ok(())
    }

    /// Returns the outcome in a row; `None`: the call is running.
    async fn outcome_of_row(&self, row: Row) -> Option<Outcome> {
        match row.state {
            State::Kept(answer) => Some(Outcome::Whole(Arc::new(answer))),
            State::Streams { answer, stream } => Some(Outcome::Stream(Arc::new(answer), stream)),
            State::Unknown => Some(Outcome::Refused(outcome_unknown())),
            State::Unkept => Some(Outcome::Refused(answer_not_kept())),
            State::Running => {
                // In a single gateway this process holds every running call; another holder has crashed.
                let gone = match self.shared {
                    Some(_) => row.lease_until < Timestamp::now().0,
                    None => row.holder != self.holder,
                };
                if !gone {
                    return None;
                }
                self.settle_claim(&row.run, ClaimEnd::Unknown).await;
                Some(Outcome::Refused(outcome_unknown()))
            }
        }
    }

    /// Renews leases, retries failed writes, purges lapsed rows, and listens for outcomes on other replicas.
    /// A background task; runs until it is dropped.
    pub async fn run(&self) {
        let purge = || self.table.purge_lapsed(Timestamp::now().0);
        tokio::join!(
            self.renew_leases(),
            purge_regularly("calls with a key", purge),
            self.receive_wake_ups(),
        );
    }

    async fn renew_leases(&self) {
        let mut tick = ticks(RENEW_EVERY);
        loop {
            tick.tick().await;
            let loose = std::mem::take(&mut *self.lock_loose());
            for (run, end) in loose {
                self.settle_claim(&run, end).await;
            }
            if self.lock_open().is_empty() {
                continue;
            }
            if let Err(error) = self
                .table
                .renew(&self.holder, Timestamp::now().after(LEASE).0)
                .await
            {
                tracing::debug!(error = %Chain(&error), "failed to renew the leases of calls with a key; will retry");
            }
        }
    }

    async fn receive_wake_ups(&self) {
        let Some(shared) = &self.shared else { return };
        let mut notices = shared.subscribe(CHANNEL);
        loop {
            if let Notice::Message(scope) = notices.next().await {
                let open = self.lock_open();
                let open = open.get(&scope).into_iter().flatten();
                open.for_each(|open| open.news.notify_one());
            }
        }
    }

    /// Writes the end of a claim, now or later.
    async fn settle_claim(&self, run: &str, end: ClaimEnd) {
        let written = match end {
            ClaimEnd::Release => self.table.release(run).await,
            ClaimEnd::Unknown => self.table.mark_unknown(run).await,
        };
        if let Err(error) = written {
            tracing::debug!(error = %Chain(&error), "failed to write the end of a call with a key; will retry");
            self.settle_later(run.to_owned(), end);
        }
    }

    fn settle_later(&self, run: String, end: ClaimEnd) {
        let mut loose = self.lock_loose();
        if loose.len() < LOOSE_MAX {
            loose.push((run, end));
        }
    }

    /// Wakes the waiters on other replicas. Best effort: they also poll the table.
    async fn announce_scope(&self, scope: &str) {
        if let Some(shared) = &self.shared
            && let Err(error) = shared.publish(CHANNEL, scope).await
        {
            tracing::debug!(error = %Chain(&error), "failed to notify other replicas of an answer");
        }
    }

    fn lock_open(&self) -> MutexGuard<'_, HashMap<String, Vec<OpenCall>>> {
        // Each step leaves the map consistent, so a panic elsewhere cannot have broken it.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_loose(&self) -> MutexGuard<'_, Vec<(String, ClaimEnd)>> {
        self.loose.lock().unwrap_or_else(PoisonError::into_inner)
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

fn claim_times(ttl: Duration) -> Times {
    let now = Timestamp::now();
    Times {
        now: now.0,
        lease_until: now.after(LEASE).0,
        expires_at: now.after(ttl).0,
    }
}
