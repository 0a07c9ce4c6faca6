//! Calls with a key (`docs/reference/a2a.md`, "Idempotency keys"): an idempotency key is claimed before a call
//! is sent, the answer is stored before any caller gets it, and later calls with the key get the stored
//! answer.
//!
//! Their rows are in the table of the [mailbox](super::mailbox), whose wake-ups end waits on other replicas: without
//! them, waiting requests read the table once a second. A claim is held by a process as long as it renews its
//! lease. The outcome of the claims of a crashed process is unknown, and they are never sent again.
//!
//! Invariants: one dispatch per key, whatever fails; a replayed answer is the one that was stored.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sqlx::Row as _;
use sqlx::any::AnyRow;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::mailbox::{Lease, Mailbox, Settlement, decode_column, item_columns, query, read_json};
use crate::wake::Topic;
use a2a::state::TaskState;
use kernel::deadline::ticks;
use kernel::metrics::RetainedKind;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::telemetry::Chain;
use kernel::time::Timestamp;
use stores::store::Unavailable;

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
        let parts = [owner, target, word, name];
        Self {
            scope: hash_parts(&parts.map(str::as_bytes)),
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
        if let Some(row) = row.filter(|row| row.body_hash != key.body)
            && let Some(Outcome::Whole(answer)) = &row.outcome
            && let Some(state) = state_of(answer).await?
        {
            self.record_end(key.lease(row.fence), Some(state)).await?;
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

    /// Renews leases and retries failed writes. A background task; runs until it is dropped.
    pub async fn run(&self) {
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
            let renew = query!(RENEW, self.mailbox.holder.as_str(), until.0);
            if let Err(error) = self.mailbox.change("call_renew", renew).await {
                tracing::debug!(error = %Chain(&error), "failed to renew the leases of calls with a key; will retry");
            }
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

// Claims: the right to send a call once.

/// An unclaimed key, reserved on this replica: concurrent callers here wait for it. Dropping it releases the
/// reservation.
pub struct UnclaimedKey {
    claim: Claim,
    /// The fence of the claim that it replaces.
    replaced: Option<i64>,
}

/// The right to send a call, once. Dropped without a result it leaves the outcome unknown.
pub struct Claim {
    calls: Arc<Calls>,
    key: Key,
    fence: i64,
    tell: watch::Sender<Option<Outcome>>,
    stage: Stage,
}

/// The stage of a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing is written.
    Reserved,
    /// The claim is being written; nothing was sent.
    Claiming,
    /// The call may have been sent.
    Ours,
    /// The outcome is written, or the key was claimed elsewhere.
    Settled,
}

impl Calls {
    /// Reserves a key that was not found; waits if another task of this replica has reserved it.
    fn reserve_key(self: &Arc<Self>, key: &Key, replaced: Option<i64>) -> KeyStatus {
        match self.open_call(key) {
            Err(waiting) => KeyStatus::Wait(waiting),
            Ok(tell) => {
                let claim = Claim {
                    calls: Arc::clone(self),
                    key: key.clone(),
                    // Drawn by lot: a key that was released may be claimed again.
                    fence: uuid::Uuid::new_v4().as_u64_pair().0.cast_signed(),
                    tell,
                    stage: Stage::Reserved,
                };
                KeyStatus::Unclaimed(UnclaimedKey { claim, replaced })
            }
        }
    }

    /// Claims an unclaimed key. `None`: another replica claimed it first.
    ///
    /// # Errors
    /// `store_unavailable`: nothing may be sent.
    pub async fn claim(
        &self,
        unclaimed: UnclaimedKey,
    ) -> Result<Option<(Claim, OutcomeWatch)>, Rejection> {
        let UnclaimedKey {
            mut claim,
            replaced,
        } = unclaimed;
        claim.stage = Stage::Claiming;
        let (key, now) = (&claim.key, Timestamp::now());
        let write = query!(
            CLAIM,
            &key.scope,
            &key.owner,
            &key.body,
            &self.mailbox.holder
        )
        .bind(claim.fence)
        .bind(now.after(LEASE).0)
        .bind(now.0)
        .bind(self.expiry(now).0)
        .bind(replaced);
        if !self.mailbox.change("call_claim", write).await? {
            return Ok(None);
        }
        claim.stage = Stage::Ours;
        self.mailbox.metrics.calls.count_outcome("dispatched");
        let waiting = OutcomeWatch(claim.tell.subscribe());
        Ok(Some((claim, waiting)))
    }
}

impl Claim {
    fn lease(&self) -> Lease<'_> {
        self.key.lease(self.fence)
    }

    async fn settle(&self, end: ClaimEnd) {
        self.calls.settle_claim(self.lease(), end).await;
    }

    /// Stores the agent's complete answer, and returns whether it is kept for replay. A failure (`5xx`) is
    /// not kept and releases the key.
    pub async fn record_answer(
        mut self,
        mut answer: Answer,
        task_state: Option<TaskState>,
    ) -> bool {
        if answer.status >= 500 {
            self.settle(ClaimEnd::Release).await;
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
        let (calls, now) = (&self.calls, Timestamp::now());
        let end = Settlement {
            owner: &self.key.owner,
            state: "done",
            answer: StoredAnswer::to_json(answer, None),
            otherwise: ("unkept", None),
            always_fits: false,
            task_state: task_state.map(TaskState::as_str),
            due_at: now,
            expires_at: calls.expiry(now),
        };
        let settled = calls
            .mailbox
            .settle("call_keep", self.lease(), end, |_| Ok(()));
        match settled.await {
            Ok(settled) => {
                let kept = settled.is_some_and(|((), is_kept)| is_kept);
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
            Some(_) if rejection.facts.iter().any(is_5xx) => ClaimEnd::Release,
            Some(Delivery::Unknown | Delivery::Sent) => ClaimEnd::Unknown,
            None | Some(Delivery::NotSent) => ClaimEnd::Release,
        };
        self.settle(end).await;
        self.publish_outcome(Outcome::Refused(rejection));
    }

    /// Publishes the head of a streamed response: from now on other callers with the key follow the stream.
    pub async fn publish_stream(&self, head: Answer, stream: String) {
        let mailbox = &self.calls.mailbox;
        let answer = StoredAnswer::to_json(&head, Some(&stream));
        let record = query!(STREAM, &self.key.scope, self.fence, answer);
        if let Err(error) = mailbox.change("call_stream", record).await {
            tracing::warn!(error = %Chain(&error), "failed to record a stream for replay");
            mailbox.metrics.calls.unstored.inc();
        }
        let outcome = Outcome::Stream(Arc::new(head), stream);
        self.tell.send_replace(Some(outcome));
        mailbox.hub.wake([Topic::call(&self.key.scope)]);
    }

    /// Records that the stream is over.
    pub async fn record_stream_end(mut self, task_state: Option<TaskState>) {
        match self.calls.record_end(self.lease(), task_state).await {
            Ok(true) => {}
            // The head of the stream could not be written, so there is nothing to replay.
            Ok(false) => self.settle(ClaimEnd::Unknown).await,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "failed to record the end of a stream");
                self.calls.settle_later(self.lease(), ClaimEnd::Unknown);
            }
        }
        self.close_entry();
    }

    fn publish_outcome(&mut self, outcome: Outcome) {
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
        if stage == Stage::Settled {
            return;
        }
        // First, so that the key can be reserved again before the waiters are notified.
        self.close_entry();
        match stage {
            Stage::Ours => return self.calls.settle_later(self.lease(), ClaimEnd::Unknown),
            // The row may be committed all the same.
            Stage::Claiming => self.calls.settle_later(self.lease(), ClaimEnd::Release),
            Stage::Reserved | Stage::Settled => {}
        }
        self.tell.send_replace(Some(Outcome::Nothing));
    }
}

// Waiting for the outcome of a call that runs already, on this or another replica. All waiters of a replica share one
// poll of the table.

/// Interval of polls without a wake-up.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A request that waits for the outcome of a call.
pub struct OutcomeWatch(watch::Receiver<Option<Outcome>>);

impl OutcomeWatch {
    /// Waits for the outcome, without a limit: the call has its own timeouts. Cancel-safe.
    pub async fn wait_for_outcome(&mut self) -> Outcome {
        match self.0.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            // The task that ran it ended without a result, which is a bug.
            Ok(None) | Err(_) => Outcome::Refused(outcome_unknown()),
        }
    }
}

impl Calls {
    /// Returns a waiter for the call of that key and body, if there is an entry for it here.
    fn find_watch(&self, key: &Key) -> Option<OutcomeWatch> {
        self.open.lock().get(key).cloned().map(OutcomeWatch)
    }

    /// Adds an entry for a call. `Err`: there is one already.
    fn open_call(&self, key: &Key) -> Result<watch::Sender<Option<Outcome>>, OutcomeWatch> {
        match self.open.lock().entry(key.clone()) {
            Entry::Occupied(open) => Err(OutcomeWatch(open.get().clone())),
            Entry::Vacant(free) => {
                let (tell, outcome) = watch::channel(None);
                free.insert(outcome);
                Ok(tell)
            }
        }
    }

    /// Removes the entry of a call that has no waiters, or has an outcome in the table.
    fn close_call(&self, key: &Key) {
        self.open.lock().remove(key);
    }

    /// Waits for a call that runs on another replica.
    fn wait_elsewhere(self: &Arc<Self>, key: &Key) -> OutcomeWatch {
        let tell = match self.open_call(key) {
            Ok(begun) => begun,
            Err(waiting) => return waiting,
        };
        let waiting = OutcomeWatch(tell.subscribe());
        let (calls, key) = (Arc::clone(self), key.clone());
        let mut news = self.mailbox.hub.watch_topic(Topic::call(&key.scope));
        tokio::spawn(async move {
            // The entry in the map holds one receiver.
            while tell.receiver_count() > 1 {
                let _ = timeout(LOOK_EVERY, news.changed()).await;
                let outcome = match calls.find(&key.scope).await {
                    Ok(Some(row)) if row.body_hash == key.body => {
                        calls.outcome_of_row(&key, row).await
                    }
                    Ok(_) => Some(Outcome::Nothing),
                    // Polls until the store is back, or no waiter is left.
                    Err(_) => None,
                };
                if outcome.is_some() {
                    tell.send_replace(outcome);
                    break;
                }
            }
            calls.close_call(&key);
        });
        waiting
    }
}

// The statements on the table of the mailbox.

/// Bytes of the longest field value that is kept.
const KEPT_FIELD_BYTES_MAX: usize = 1024;

/// Header fields of an agent that are kept with its answer: they describe the body and the negotiated
/// features.
const KEPT_FIELDS: &str =
    "content-type preference-applied content-encoding a2a-version a2a-extensions x-a2a-extensions";

const FIND: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE id = $1 AND kind = 'keyed' AND expires_at > $2"
);

/// Takes a free key, one that lapsed, or that of a claim that is replaced.
const CLAIM: &str = "INSERT INTO mailbox_items \
     (id, kind, owner, body, holder, fence, state, leased_until, created_at, updated_at, expires_at) \
     VALUES ($1, 'keyed', $2, $3, $4, $5, 'running', $6, $7, $7, $8) \
     ON CONFLICT (id) DO UPDATE SET body = excluded.body, holder = excluded.holder, fence = excluded.fence, \
     state = 'running', leased_until = excluded.leased_until, answer = NULL, task_state = NULL, kept_bytes = 0, \
     created_at = excluded.created_at, updated_at = excluded.updated_at, expires_at = excluded.expires_at \
     WHERE mailbox_items.expires_at <= excluded.created_at OR mailbox_items.fence = $9";

const RENEW: &str =
    "UPDATE mailbox_items SET leased_until = $2 WHERE holder = $1 AND state = 'running'";

const STREAM: &str = "UPDATE mailbox_items SET answer = $3 WHERE id = $1 AND fence = $2";

/// Ends a row with an answer or a recorded stream.
const ENDED: &str = "UPDATE mailbox_items SET state = 'done', task_state = $3 \
     WHERE id = $1 AND fence = $2 AND answer IS NOT NULL";

/// Deletes an item: its key is free.
const RELEASE: &str = "DELETE FROM mailbox_items WHERE id = $1 AND fence = $2";

/// A row with a recorded stream keeps it as its outcome.
const UNKNOWN: &str = "UPDATE mailbox_items SET state = 'unknown' \
     WHERE id = $1 AND fence = $2 AND state = 'running' AND answer IS NULL";

/// The row of a key.
struct Row {
    body_hash: String,
    fence: i64,
    holder: String,
    leased_until: i64,
    /// The outcome of its call; `None`: it runs.
    outcome: Option<Outcome>,
    task_state: Option<TaskState>,
}

/// An answer as it is kept.
#[derive(Serialize, Deserialize)]
struct StoredAnswer {
    status: u16,
    fields: Vec<(String, String)>,
    /// In Base64.
    body: String,
    /// The name of the stream, if it is one.
    stream: Option<String>,
}

impl StoredAnswer {
    /// Leaves out the fields that are not kept, and values that are not text.
    fn to_json(answer: &Answer, stream: Option<&str>) -> String {
        let fields = KEPT_FIELDS.split(' ').flat_map(|name| {
            let values = answer.fields.get_all(name).iter();
            let values = values.filter(|value| value.len() <= KEPT_FIELD_BYTES_MAX);
            values.filter_map(move |value| Some((name.to_owned(), value.to_str().ok()?.to_owned())))
        });
        let stored = Self {
            status: answer.status,
            fields: fields.collect(),
            body: STANDARD.encode(&answer.body),
            stream: stream.map(str::to_owned),
        };
        serde_json::to_string(&stored).expect("its members are text and numbers")
    }

    fn into_answer(self) -> Result<Arc<Answer>, sqlx::Error> {
        let body = STANDARD.decode(self.body);
        let mut fields = HeaderMap::new();
        for (name, value) in self.fields {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                fields.append(name, value);
            }
        }
        Ok(Arc::new(Answer {
            status: self.status,
            fields,
            body: decode_column(body)?.into(),
            kept: true,
        }))
    }
}

impl Calls {
    async fn find(&self, scope: &str) -> Result<Option<Row>, Unavailable> {
        let find = query!(FIND, scope, Timestamp::now().0);
        self.mailbox.fetch("call_find", find, read_row).await
    }

    /// Returns the time at which what is written `now` is forgotten.
    fn expiry(&self, now: Timestamp) -> Timestamp {
        now.after(self.mailbox.config.get().idempotency.ttl)
    }

    /// Records the end; true if there was a row to end.
    async fn record_end(
        &self,
        lease: Lease<'_>,
        task_state: Option<TaskState>,
    ) -> Result<bool, Unavailable> {
        let state = task_state.map(TaskState::as_str);
        let end = query!(ENDED, lease.id, lease.fence, state);
        self.mailbox.change("call_ended", end).await
    }

    /// Writes the end of a claim, now or later.
    async fn settle_claim(&self, lease: Lease<'_>, end: ClaimEnd) {
        let (operation, text) = match end {
            ClaimEnd::Release => ("call_release", RELEASE),
            ClaimEnd::Unknown => ("call_unknown", UNKNOWN),
        };
        let write = query!(text, lease.id, lease.fence);
        if let Err(error) = self.mailbox.change(operation, write).await {
            tracing::debug!(error = %Chain(&error), "failed to write the end of a call with a key; will retry");
            self.settle_later(lease, end);
        }
    }
}

fn read_row(row: &AnyRow) -> Result<Row, sqlx::Error> {
    let stored: Option<StoredAnswer> = read_json(row, "answer")?;
    let outcome = match (row.try_get("state")?, stored) {
        ("unknown", _) => Some(Outcome::Refused(outcome_unknown())),
        ("unkept", _) => Some(Outcome::Refused(answer_not_kept())),
        (state, Some(mut stored)) => match stored.stream.take() {
            Some(stream) => Some(Outcome::Stream(stored.into_answer()?, stream)),
            None if state == "done" => Some(Outcome::Whole(stored.into_answer()?)),
            None => None,
        },
        (_, None) => None,
    };
    let task_state: Option<&str> = row.try_get("task_state")?;
    Ok(Row {
        body_hash: row.try_get("body")?,
        fence: row.try_get("fence")?,
        holder: row.try_get("holder")?,
        leased_until: row.try_get("leased_until")?,
        task_state: task_state.and_then(TaskState::parse),
        outcome,
    })
}
