//! Calls that are sent again reach their agent once (contract §6.2): a key is claimed before anything is
//! sent, the answer is stored before anybody gets it, and whoever comes with the key again gets that.
//!
//! Owns the table `idempotent_calls` and the channel `gw:idem`, which only says where to look again: with
//! it down, whoever waits looks once a second. A claim is held by a process for as long as it renews its
//! lease; what a process had claimed when it died is unknown, and never sent again.
//!
//! Invariants: one dispatch for each key, whatever fails; an answer that is given as the kept one is the
//! one that was stored.

mod claim;
mod table;
mod waiting;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderMap;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval};

pub use self::claim::{Claim, Free};
pub use self::waiting::Waiting;

use self::table::{Row, State, Table, Times};
use crate::a2a::state::TaskState;
use crate::config::Live;
use crate::db::Db;
use crate::delivery::kept::KeptBytes;
use crate::metrics::Metrics;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shared::{Notice, Shared};
use crate::telemetry::Chain;

/// Where it is told that something came of a call: its scope.
const CHANNEL: &str = "gw:idem";

/// How long a claim counts as held after its process was last heard of.
const LEASE: Duration = Duration::from_secs(20);

/// How often a process is heard of.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// How often what lapsed is deleted.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// Claims whose end could not be written that are remembered. More of them lapse by themselves when this
/// process ends.
const LOOSE_MAX: usize = 10_000;

/// What makes two calls the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Hash of the caller, the target and the key.
    scope: String,
    /// Whose it is, as `Proof::owner` has it.
    owner: String,
    /// Hash of what was asked for.
    body: String,
    /// Another body may follow when the agent waits for one.
    follows_up: bool,
}

/// Where a key was found.
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
    /// The key `name` of the caller `owner` (`Proof::owner`) for `target`, on a call of a method and a body
    /// as they came.
    pub fn new(
        (owner, target): (&str, &str),
        (source, name): (Source, &str),
        (method, body): (&str, &[u8]),
    ) -> Self {
        let word = match source {
            Source::Field => "field",
            Source::Task => "task",
            Source::Message => "message",
        };
        Self {
            scope: hash(&[
                owner.as_bytes(),
                target.as_bytes(),
                word.as_bytes(),
                name.as_bytes(),
            ]),
            owner: owner.to_owned(),
            body: hash(&[method.as_bytes(), body]),
            follows_up: source == Source::Task,
        }
    }
}

/// SHA-256 over parts, each with its length before it, in hexadecimal digits.
fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("{:x}", hash.finalize())
}

/// What an agent answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Its fields; of a stored one those that say what the body is.
    pub fields: HeaderMap,
    /// The body; of a stream nothing.
    pub body: Bytes,
    /// Whether whoever comes with the key again gets it. Where `limits.kept_bytes` are used up it is passed on only.
    pub kept: bool,
}

/// What came of a call.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The agent's answer.
    Whole(Arc<Answer>),
    /// A stream of that name, from its first event.
    Stream(Arc<Answer>, String),
    /// The gateway's.
    Refused(Rejection),
    /// Nothing: the call was not made after all, and may be made now.
    Nothing,
}

/// What is known of a key.
pub enum Asked {
    /// Nobody has it. What is in it says whose place is taken.
    Free(Free),
    /// Its call runs.
    Wait(Waiting),
    /// Its call was made.
    Done(Outcome),
}

/// The room.
pub struct Calls {
    config: Live,
    metrics: Arc<Metrics>,
    table: Table,
    bytes: Arc<KeptBytes>,
    /// For notices; `None`: there are no other replicas.
    shared: Option<Shared>,
    /// The name of this process as a holder of claims.
    holder: String,
    /// Calls that run here, or are waited for here, by scope: of one body, but for a moment.
    open: Mutex<HashMap<String, Vec<Open>>>,
    /// Claims whose end is not written yet.
    loose: Mutex<Vec<(String, End)>>,
}

/// A call that somebody waits for.
struct Open {
    body: String,
    outcome: watch::Receiver<Option<Outcome>>,
    /// It may be time to look again.
    news: Arc<Notify>,
}

/// What is to be written of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Release,
    Unknown,
}

impl Calls {
    /// Assembles the room; asks nothing.
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

    /// What became of the call with that key, so far.
    ///
    /// # Errors
    /// `idempotency_conflict` when it has another body; `agent_protocol_error` when nobody knows;
    /// `store_unavailable`.
    pub async fn ask(self: &Arc<Self>, key: &Key) -> Result<Asked, Rejection> {
        if let Some(waiting) = self.waiting(key) {
            return Ok(Asked::Wait(waiting));
        }
        let Some(row) = self.table.find(&key.scope, now_ms()).await? else {
            return Ok(self.free(key, String::new()));
        };
        if row.body_hash != key.body {
            let waits = row.task_state.is_some_and(TaskState::is_interrupted);
            if key.follows_up && waits {
                return Ok(self.free(key, row.run));
            }
            self.metrics.calls.counted("conflict");
            return Err(conflict());
        }
        Ok(match self.outcome(row).await {
            Some(outcome) => Asked::Done(outcome),
            None => Asked::Wait(self.wait_elsewhere(key)),
        })
    }

    /// Where the call of that key may follow up another one, notes the state that the task of that one is in
    /// by now: its answer says what `state_of` looks for.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn look_again(
        &self,
        key: &Key,
        state_of: impl AsyncFnOnce(&Answer) -> Result<Option<TaskState>, Rejection>,
    ) -> Result<(), Rejection> {
        if !key.follows_up {
            return Ok(());
        }
        let row = self.table.find(&key.scope, now_ms()).await?;
        let other = row.filter(|row| row.body_hash != key.body);
        let Some((run, State::Kept(answer))) = other.map(|row| (row.run, row.state)) else {
            return Ok(());
        };
        if let Some(state) = state_of(&answer).await? {
            self.table.ended(&run, Some(state)).await?;
        }
        Ok(())
    }

    /// What a row says came of its call; `None`: it runs.
    async fn outcome(&self, row: Row) -> Option<Outcome> {
        match row.state {
            State::Kept(answer) => Some(Outcome::Whole(Arc::new(answer))),
            State::Streams { answer, stream } => Some(Outcome::Stream(Arc::new(answer), stream)),
            State::Unknown => Some(Outcome::Refused(unknown())),
            State::Unkept => Some(Outcome::Refused(unkept())),
            State::Running => {
                // Alone, this process holds what runs, or it was another one, which is gone.
                let gone = match self.shared {
                    Some(_) => row.lease_until < now_ms(),
                    None => row.holder != self.holder,
                };
                if !gone {
                    return None;
                }
                self.settle(&row.run, End::Unknown).await;
                Some(Outcome::Refused(unknown()))
            }
        }
    }

    /// Renews what is held here, writes what could not be written, deletes what lapsed, and hears what comes
    /// of calls elsewhere. A background task; runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.hold(), self.purge_regularly(), self.listen());
    }

    async fn hold(&self) {
        let mut tick = interval(RENEW_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let loose = std::mem::take(&mut *self.loose());
            for (run, end) in loose {
                self.settle(&run, end).await;
            }
            if self.open().is_empty() {
                continue;
            }
            if let Err(error) = self.table.renew(&self.holder, now_ms() + ms(LEASE)).await {
                tracing::debug!(error = %Chain(&error), "Claims of calls are not renewed this time");
            }
        }
    }

    async fn purge_regularly(&self) {
        let mut tick = interval(PURGE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            while let Ok(true) = self.table.purge(now_ms()).await {}
        }
    }

    async fn listen(&self) {
        let Some(shared) = &self.shared else { return };
        let mut notices = shared.subscribe(CHANNEL);
        loop {
            if let Notice::Message(scope) = notices.next().await {
                let open = self.open();
                let open = open.get(&scope).into_iter().flatten();
                open.for_each(|open| open.news.notify_one());
            }
        }
    }

    /// Writes the end of a claim, now or later.
    async fn settle(&self, run: &str, end: End) {
        let written = match end {
            End::Release => self.table.release(run).await,
            End::Unknown => self.table.unknown(run).await,
        };
        if let Err(error) = written {
            tracing::debug!(error = %Chain(&error), "The end of a call is not written down yet");
            self.settle_later(run.to_owned(), end);
        }
    }

    fn settle_later(&self, run: String, end: End) {
        let mut loose = self.loose();
        if loose.len() < LOOSE_MAX {
            loose.push((run, end));
        }
    }

    /// Tells other replicas that something came of it. Best effort: who waits looks by itself.
    async fn tell(&self, scope: &str) {
        if let Some(shared) = &self.shared
            && let Err(error) = shared.publish(CHANNEL, scope).await
        {
            tracing::debug!(error = %Chain(&error), "Other replicas are not told of an answer");
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Vec<Open>>> {
        // Each step leaves it whole, so a panic elsewhere cannot have broken it.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loose(&self) -> MutexGuard<'_, Vec<(String, End)>> {
        self.loose.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn conflict() -> Rejection {
    Rejection::new(
        Reason::IdempotencyConflict,
        "the key was used for a call with another body; send that one again, or use a new key",
    )
}

/// It may have been delivered, and nobody knows what came of it.
fn unknown() -> Rejection {
    Rejection::new(
        Reason::AgentProtocolError,
        "the call with this key was sent, and nobody knows what came of it; ask for the task, or use a new key",
    )
    .delivered(Delivery::Unknown)
}

/// The agent answered, and the answer was passed on once.
fn unkept() -> Rejection {
    Rejection::new(
        Reason::AgentProtocolError,
        "the call with this key was answered, and its answer was not kept, since limits.kept_bytes were used up; it is not \
         sent again: ask for the task, or use a new key",
    )
    .delivered(Delivery::Sent)
}

fn times(ttl: Duration) -> Times {
    let now = now_ms();
    Times {
        now,
        lease_until: now + ms(LEASE),
        expires_at: now.saturating_add(ms(ttl)),
    }
}

/// Milliseconds since 1970.
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, ms)
}

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
