//! Jobs: delegations between workspaces (`docs/reference/a2a.md`, "Delegations") and calls that were deferred because
//! the target was unavailable (`docs/reference/a2a.md`, "`Prefer: respond-async`"). One state machine serves both.
//!
//! Their rows are in the table of the [mailbox](super::mailbox). A row is inserted by [`Jobs::accept`] and claimed by
//! [`Jobs::claim_due`].
//! Its sender records that the call is about to leave ([`Jobs::record_dispatch`]), then how it ended
//! ([`Jobs::finish_job`]) or that nothing was delivered ([`Jobs::put_back`]). The data plane sends
//! (`data-plane/src/dispatch.rs`). [`ends`] looks for passed deadlines, jobs of crashed replicas and undelivered
//! results. [`task`] shows a deferred call as a task.
//!
//! Invariants: an accepted job is committed; only the holder of the claim that moved a row to `dispatched` sends it;
//! once its agent may have it, it is never sent again, whatever crashes; access is not decided here.

mod ends;
mod job;
pub mod task;
mod unavailable;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::{Instant, interval, sleep};

use self::job::{answer_not_kept, removed_target};
use self::unavailable::UnavailableTargets;
use crate::inbox::{Inbox, task_changed_event};
use crate::kept_bytes::kept_of;
use crate::mailbox::{
    Mailbox, Settlement, count_fitting, decode_column, item_columns, octets, query, read_json,
};
use a2a::state::TaskState;
use access::identity::stored_account;
use directory::events::{self, Event, Events, PayloadSubject};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::metrics::RetainedKind;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::Amounts;
use kernel::telemetry::Chain;
use kernel::time::Timestamp;
use stores::coherence::{Coherence, Invalidation};
use stores::db::Connection;
use stores::store::Unavailable;

pub use self::ends::{DelegationView, Listeners};
pub use self::job::{
    Call, Content, Ending, Job, Kind, NewJob, State, Task, TaskRun, deadline_expired,
    may_be_deferred, request_id,
};
pub use self::unavailable::Attempt;

/// Duration of a lease on a job without a renewal. Clocks of replicas must differ by less.
const LEASE: Duration = Duration::from_secs(30);

/// Interval of lease renewals: two may fail.
const RENEWAL: Duration = Duration::from_secs(10);

/// Time that the replica that ended a job has to deliver the result, before other replicas try.
const GRACE: Duration = Duration::from_secs(5);

/// Pause between two attempts to write the end of a job.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Answers up to this size are kept also where `limits.kept_bytes` are used up: delegations are bounded by
/// number.
const SMALL_ANSWER_BYTES: usize = 4096;

/// The rejection of a delegation for which there is no room. The limits follow.
const NO_ROOM: &str =
    "there is no room for another delegation or deferred call: what is kept for this caller has";

/// Accepts, claims and finishes jobs.
pub struct Jobs {
    mailbox: Arc<Mailbox>,
    inbox: Arc<Inbox>,
    events: Arc<Events>,
    started: Timestamp,
    targets: Arc<UnavailableTargets>,
    /// Callbacks of other modules for the ends and the replies of jobs.
    pub listeners: ArcSwapOption<Listeners>,
    closing: AtomicBool,
    /// Time of the last failed lease renewal.
    unrenewed: Mutex<Option<Instant>>,
}

/// A call that was accepted.
#[derive(Clone, Debug)]
pub struct AcceptedJob {
    /// The id of the job.
    pub id: String,
    /// The state.
    pub state: State,
    /// True if it was accepted before, under the same idempotency key.
    pub known: bool,
    /// Time of acceptance.
    pub created_at: Timestamp,
}

impl Jobs {
    /// Creates it; does not touch the stores.
    pub fn new(
        mailbox: Arc<Mailbox>,
        inbox: Arc<Inbox>,
        events: Arc<Events>,
        coherence: &Coherence,
    ) -> Arc<Self> {
        let targets = Arc::<UnavailableTargets>::default();
        let invalidated = Arc::clone(&targets);
        coherence.on_invalidation(move |what| {
            match &what {
                Invalidation::Address(id) | Invalidation::Workspace(id) => {
                    invalidated.mark_changed(Some(id))
                }
                Invalidation::Everything => invalidated.mark_changed(None),
                Invalidation::Credential(_)
                | Invalidation::Grant(..)
                | Invalidation::Lineage(_)
                | Invalidation::Revocations
                | Invalidation::Stops => {}
            }
            async {}
        });
        Arc::new(Self {
            mailbox,
            inbox,
            events,
            started: Timestamp::now(),
            targets,
            listeners: ArcSwapOption::empty(),
            closing: AtomicBool::new(false),
            unrenewed: Mutex::default(),
        })
    }

    /// Stops giving up jobs, since the process ends.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Accepts a call to be made later. It is committed when this returns.
    ///
    /// # Errors
    /// `idempotency_conflict`; `agent_busy` when the caller, its share of the target, or the target is full;
    /// `invalid_params`; `store_unavailable`: then the outcome is unknown.
    pub async fn accept(&self, new: &NewJob) -> Result<AcceptedJob, Rejection> {
        if let Some(known) = self.find_accepted(new).await? {
            return Ok(known);
        }
        let (id, now) = (new.fresh_id(), Timestamp::now());
        let unfinished_max = self.mailbox.config.get().delegation.max_pending;
        let inserted = self.insert((&id, now), new, unfinished_max).await;
        // The row may be committed all the same, so an idempotency key of the request is not free.
        let inserted =
            inserted.map_err(|away| Rejection::from(away).with_delivery(Delivery::Unknown));
        if !inserted? {
            // A concurrent request inserted the same key.
            return match self.find_accepted(new).await? {
                Some(known) => Ok(known),
                None => Err(self.rejection_when_full(new, unfinished_max).await),
            };
        }
        self.mailbox
            .metrics
            .jobs
            .accepted
            .with_label_values(&[new.kind().as_str()])
            .inc();
        let changed = match new.kind() {
            Kind::Delegation => new.source.as_ref().map(|source| {
                let payload = json!({"delegation_id": id, "target_id": new.target.as_str()});
                delegation_event(events::Kind::DelegationSent, (source, &new.target), payload)
            }),
            Kind::Deferred => {
                let state = TaskState::Submitted.as_str();
                Some(task_changed_event(&new.target, &id, state))
            }
        };
        changed
            .into_iter()
            .for_each(|event| self.events.publish(event));
        self.targets.news.notify_one();
        Ok(AcceptedJob {
            id,
            state: State::Pending,
            known: false,
            created_at: now,
        })
    }

    /// Finds the job of an idempotency key, except one that failed or expired.
    async fn find_accepted(&self, new: &NewJob) -> Result<Option<AcceptedJob>, Rejection> {
        let Some(key) = &new.idempotency_key else {
            return Ok(None);
        };
        let query = query!(FIND_KEY, new.kind().as_str(), &new.owner, key);
        let found = self.mailbox.fetch("job_find_key", query, read_job);
        let Some(job) = found.await? else {
            return Ok(None);
        };
        let same = match (&job.content, &new.content) {
            (Content::Task(one), Content::Task(other)) => one.text == other.text,
            (Content::Call(one), Content::Call(other)) => one.body == other.body,
            _ => false,
        };
        if !same || job.target != new.target {
            let message = "the key was used for something else; use a key for one thing only";
            return Err(Rejection::new(Reason::IdempotencyConflict, message));
        }
        Ok(Some(AcceptedJob {
            id: job.id,
            state: job.state,
            known: true,
            created_at: job.created_at,
        }))
    }

    async fn rejection_when_full(&self, new: &NewJob, unfinished_max: i64) -> Rejection {
        self.mailbox.metrics.jobs.refused.inc();
        let kept = &self.mailbox;
        if let Ok(false) = kept.has_room(&new.owner, new.content.bytes()).await {
            return kept.count_refusal(RetainedKind::Delegation, NO_ROOM);
        }
        let is_share = self.within_share(new, unfinished_max).await;
        let is_share = is_share.is_ok_and(|within| !within);
        let message = "as many calls of this caller, or for this target, as may be wait to be made or answered, or half of \
            what others leave for it from this caller (delegation.max_pending)";
        Rejection::new(Reason::AgentBusy, message)
            .with_retry_after(Duration::from_secs(15))
            .with_fact("limit", unfinished_max)
            .with_share(is_share)
    }

    /// Cancels a deferred call that was not sent; `None`: it was sent, or is over.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn cancel(&self, id: &str) -> Result<Option<Job>, Rejection> {
        let cancel = query!(CANCEL, id, Timestamp::now().0);
        let canceled = self.mailbox.fetch("job_cancel", cancel, read_job).await?;
        if let Some(job) = &canceled {
            self.publish_change(job, job.state);
        }
        Ok(canceled)
    }

    /// Resolves when there may be something new to send.
    pub async fn wait_for_news(&self) {
        self.targets.news.notified().await;
    }

    /// Claims at most `limit` jobs to send now. No other replica sends them while [`Jobs::hold_lease`] is awaited.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn claim_due(&self, limit: u32) -> Result<Vec<Job>, Unavailable> {
        let now = Timestamp::now();
        let returned = self.targets.take();
        for target in &returned {
            let unpark = query!(UNPARK, target.as_str(), now.0);
            if let Err(error) = self.mailbox.change("job_unpark", unpark).await {
                self.targets.put_back(returned);
                return Err(error);
            }
        }
        self.claim(Claim::Due, now, limit).await
    }

    /// Claims jobs that were sent by a gateway that is gone.
    #[cfg(test)]
    pub(super) async fn claim_lost(&self, limit: u32) -> Result<Vec<Job>, Unavailable> {
        self.claim(Claim::Lost, Timestamp::now(), limit).await
    }

    /// Renews the lease of a job. Resolves when another holder has claimed it nevertheless.
    pub async fn hold_lease(&self, job: &Job) {
        let mut tick = interval(RENEWAL);
        tick.tick().await;
        loop {
            tick.tick().await;
            let until = Timestamp::now().after(LEASE);
            let renew = query!(RENEW, &job.id, job.fence, until.0);
            match self.mailbox.change("job_renew", renew).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    *self.unrenewed.lock() = Some(Instant::now());
                    tracing::debug!(error = %Chain(&error), "failed to renew the lease of a job; will retry")
                }
            }
        }
    }

    /// Records that the call is about to leave: it is never sent again from here on. False: it must not be sent.
    ///
    /// # Errors
    /// When the store cannot be asked; then it must not be sent, and may be given up as lost.
    pub async fn record_dispatch(&self, job: &Job) -> Result<bool, Unavailable> {
        let now = Timestamp::now();
        let dispatch = query!(DISPATCH, &job.id, job.fence, now.after(LEASE).0, now.0);
        let begun = self.mailbox.change("job_dispatch", dispatch).await?;
        if begun {
            self.publish_change(job, State::Dispatched);
        }
        Ok(begun)
    }

    /// Makes a job due again after `pause`, since nothing was delivered. `tried`: it counts as an attempt. `tries`: how
    /// often the write is tried; if all fail it is due when its lease ends.
    pub async fn put_back(&self, job: &Job, pause: Duration, tried: bool, tries: u32) {
        for left in (0..tries).rev() {
            let now = Timestamp::now();
            let due_at = now.after(pause).0;
            let put = query!(
                PUT_BACK,
                &job.id,
                job.fence,
                due_at,
                i64::from(tried),
                now.0
            );
            match self.mailbox.change("job_put_back", put).await {
                Ok(_) if tried => return self.mailbox.metrics.jobs.retries.inc(),
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "failed to put a job back");
                }
            }
            if left > 0 {
                sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Begins an attempt at a target, before anything is known about it.
    pub fn begin_attempt(&self, target: &WorkspaceId) -> Attempt {
        self.targets.begin_attempt(target)
    }

    /// Puts off all jobs of a target that is unavailable or takes no more: nothing is due for `pause`, unless
    /// the target returns, or did since the attempt began.
    pub async fn park_target(&self, attempt: Attempt, pause: Duration) {
        self.targets.mark_unavailable(&attempt.target);
        let now = Timestamp::now();
        let park = query!(PARK, attempt.target.as_str(), now.after(pause).0, now.0);
        if let Err(error) = self.mailbox.change("job_park", park).await {
            tracing::debug!(error = %Chain(&error), "failed to put off the jobs of a target");
        }
        attempt.record_failure();
    }

    /// Records that the target may take one more.
    pub fn mark_returned(&self, target: &WorkspaceId) {
        self.targets.mark_changed(Some(target));
    }

    /// Writes the end of a job, retrying until it is written, and reports it, unless another holder claimed the job.
    pub async fn finish_job(&self, job: &Job, ending: &Ending) {
        if let Some(settled) = self.settle_until_written(job, ending).await {
            self.put_result(&settled).await;
        }
    }

    /// As [`Jobs::finish_job`], without the delivery to the delegator's inbox. `None`: another holder claimed it.
    async fn settle_until_written(&self, job: &Job, ending: &Ending) -> Option<Job> {
        let mut doubted = false;
        loop {
            match Box::pin(self.try_settle(job, ending, doubted)).await {
                Ok(settled) => return settled,
                Err(error) => {
                    doubted = true;
                    tracing::warn!(job = job.id, error = %Chain(&error), "failed to write the end of a job; retrying");
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// As `settle_until_written`, in one attempt. `doubted`: an earlier one may be committed without the store's reply.
    async fn try_settle(
        &self,
        job: &Job,
        ending: &Ending,
        doubted: bool,
    ) -> Result<Option<Job>, Unavailable> {
        let unreadable = ending
            .as_unreadable()
            .filter(|_| job.kind == Kind::Deferred);
        let ending = unreadable.as_ref().unwrap_or(ending);
        let (state, answer) = ending.to_columns();
        let (state_otherwise, unkept) = Ending::Failed(answer_not_kept()).to_columns();
        let end = Settlement {
            owner: &job.owner,
            state: state.as_str(),
            always_fits: answer.len() <= SMALL_ANSWER_BYTES,
            answer,
            otherwise: (state_otherwise.as_str(), Some(unkept)),
            task_state: None,
            due_at: Timestamp::now().after(GRACE),
            expires_at: job.deadline,
        };
        let settled = self
            .mailbox
            .settle("job_finish", job.lease(), end, read_job);
        let finished = match settled.await? {
            None if doubted => {
                let row = self.find(&job.id).await?;
                // A new claim raises the fence.
                row.filter(|row| row.fence == job.fence && row.state.is_final())
            }
            settled => settled.map(|(job, is_kept)| {
                if !is_kept {
                    self.mailbox.metrics.kept.refused[RetainedKind::Result].inc();
                }
                job
            }),
        };
        match &finished {
            None => tracing::warn!(
                job = job.id,
                "job was given up as lost before its answer came"
            ),
            Some(finished) => {
                let labels = [finished.kind.as_str(), finished.state.as_str()];
                let finished_jobs = &self.mailbox.metrics.jobs.finished;
                finished_jobs.with_label_values(&labels).inc();
                self.publish_change(finished, finished.state);
            }
        }
        Ok(finished)
    }

    /// Publishes an event with ids and states, never content.
    fn publish_change(&self, job: &Job, state: State) {
        let event = match (job.kind, &job.source) {
            (Kind::Delegation, Some(source)) => {
                let mut payload = json!({
                    "delegation_id": job.id,
                    "target_id": job.target.as_str(),
                    "status": state.as_str(),
                });
                let kind = match state {
                    State::Completed => events::Kind::DelegationComplete,
                    State::Failed | State::Expired => {
                        let error = job.error().map(|error| task::error_reason(error.get()));
                        payload["error"] = error.into();
                        events::Kind::DelegationFailed
                    }
                    State::Pending | State::Dispatched | State::Canceled => {
                        events::Kind::DelegationStatus
                    }
                };
                delegation_event(kind, (source, &job.target), payload)
            }
            _ => task::changed_event(job, state),
        };
        self.events.publish(event);
    }
}

fn delegation_event(
    kind: events::Kind,
    (source, target): (&WorkspaceId, &WorkspaceId),
    payload: Value,
) -> Event {
    let target = PayloadSubject::from_workspaces([target]);
    Event::new(kind, source, payload).restrict_members(target, &["target_id"])
}

// The statements on the table of the mailbox.

// The bounds are counted in the same statement. Concurrent inserts of several replicas may exceed them by
// their number.
// A caller has none for the target, or has one more within half of what the others leave of $15.
const INSERT: &str = concat!(
    "INSERT INTO mailbox_items (id, kind, owner, caller, source_id, target_id, body, idempotency_key, state, priority, \
    due_at, expires_at, created_at, updated_at, kept_bytes) \
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, 'pending', $9, $10, $11, $10, $10, $13 \
    WHERE (SELECT COUNT(*) FROM mailbox_items \
        WHERE owner = $3 AND state IN ('pending', 'dispatched')) < $12 \
    AND (SELECT COUNT(*) FROM mailbox_items \
        WHERE target_id = $6 AND state IN ('pending', 'dispatched')) < $12 \
    AND (SELECT COUNT(CASE WHEN caller = $4 THEN 1 END) \
        * (COUNT(CASE WHEN caller = $4 THEN 1 END) + COUNT(*) + 2 - $15) FROM mailbox_items \
        WHERE target_id = $6 AND state IN ('pending', 'dispatched')) <= 0 \
    AND ",
    kept_of!("$3"),
    " + $13 <= $14 ON CONFLICT DO NOTHING"
);

const CALLERS: &str = "SELECT caller, COUNT(*) AS jobs FROM mailbox_items \
    WHERE target_id = $1 AND state IN ('pending', 'dispatched') GROUP BY caller";

const FIND: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE id = $1 AND kind <> 'keyed'"
);

const FIND_KEY: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE kind = $1 AND owner = $2 AND idempotency_key = $3 \
     AND state NOT IN ('failed', 'expired')"
);

/// Selects the delegations of one life of a workspace, for all roots.
macro_rules! delegations_page {
    () => {
        " FROM mailbox_items WHERE source_id = $1 AND kind = 'delegation' AND ($2 = '' OR id < $2) \
         AND (owner = $3 OR SUBSTR(owner, 1, LENGTH($3) + 5) = $3 || ' for ') ORDER BY id DESC LIMIT $4"
    };
}

// Sizes are read first, so that rows that do not fit into a page are not read.
const LIST_SIZES: &str = concat!(
    "SELECT CAST(OCTET_LENGTH(body) + COALESCE(OCTET_LENGTH(answer), 0) AS BIGINT) AS bytes",
    delegations_page!()
);

const LIST: &str = concat!("SELECT ", item_columns!(), delegations_page!());

const DISPATCH: &str = "UPDATE mailbox_items \
    SET state = 'dispatched', attempts = attempts + 1, leased_until = $3, updated_at = $4 \
    WHERE id = $1 AND fence = $2 AND state = 'pending'";

// Raises the fence: later writes of the former holder have no effect.
const PUT_BACK: &str = "UPDATE mailbox_items \
    SET state = 'pending', leased_until = 0, fence = fence + 1, due_at = $3, attempts = attempts + $4, updated_at = $5 \
    WHERE id = $1 AND fence = $2 AND state IN ('pending', 'dispatched')";

const RENEW: &str = "UPDATE mailbox_items SET leased_until = $3 \
    WHERE id = $1 AND fence = $2 AND state IN ('pending', 'dispatched')";

const PARK: &str = "UPDATE mailbox_items SET due_at = $2 \
    WHERE target_id = $1 AND state = 'pending' AND leased_until <= $3 AND due_at < $2";

const UNPARK: &str = "UPDATE mailbox_items SET due_at = $2 \
    WHERE target_id = $1 AND state = 'pending' AND due_at > $2";

const CANCEL: &str = concat!(
    "UPDATE mailbox_items SET state = 'canceled', fence = fence + 1, leased_until = 0, updated_at = $2 \
     WHERE id = $1 AND state = 'pending' RETURNING ",
    item_columns!()
);

// A new life of an id has no jobs of the earlier one: those for it fail, and its own results go to no inbox.
// Raises the fence: their holders can write nothing any more.
const END_OF: &str = "UPDATE mailbox_items SET fence = fence + 1, leased_until = 0, updated_at = $3, \
    untold = CASE WHEN source_id = $1 THEN 0 \
      WHEN kind = 'delegation' AND state IN ('pending', 'dispatched') THEN 1 ELSE untold END, \
    due_at = CASE WHEN state IN ('pending', 'dispatched') THEN $3 ELSE due_at END, \
    answer = CASE WHEN state IN ('pending', 'dispatched') THEN $2 ELSE answer END, \
    state = CASE WHEN state IN ('pending', 'dispatched') THEN 'failed' ELSE state END \
    WHERE source_id = $1 OR (target_id = $1 AND state IN ('pending', 'dispatched'))";

/// The jobs to claim.
#[derive(Clone, Copy)]
enum Claim {
    /// Jobs to be sent now.
    Due,
    /// Jobs that expired before anything was sent.
    Overdue,
    /// Jobs that were sent by a replica that crashed.
    Lost,
}

impl Claim {
    /// Returns the condition on their rows at the time `$1`, and their order.
    const fn conditions(self) -> [&'static str; 2] {
        match self {
            // No pause is ever ten times the longest one (`BACKOFF_MAX`): such a row was written while the clock was
            // ahead, and is due.
            Self::Due => [
                "state = 'pending' AND (due_at <= $1 OR due_at > $1 + 300000) AND leased_until <= $1 AND expires_at > $1",
                " ORDER BY priority DESC, created_at, id",
            ],
            Self::Overdue => [
                "state = 'pending' AND expires_at <= $1 AND leased_until <= $1",
                "",
            ],
            Self::Lost => [
                "state = 'dispatched' AND leased_until <= $1 AND inbox_task IS NULL",
                "",
            ],
        }
    }
}

impl Jobs {
    /// Returns the job with this id.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find(&self, id: &str) -> Result<Option<Job>, Unavailable> {
        let find = query!(FIND, id);
        self.mailbox.fetch("job_find", find, read_job).await
    }

    /// Inserts a job. False if its owner or its target has `unfinished_max` jobs already, its caller has its share of
    /// the target's, its idempotency key is in use, or there is no room for its bytes.
    async fn insert(
        &self,
        (id, now): (&str, Timestamp),
        new: &NewJob,
        unfinished_max: i64,
    ) -> Result<bool, Unavailable> {
        if !self.within_share(new, unfinished_max).await? {
            return Ok(false);
        }
        let is_told_apart = stored_account(&new.caller).own != 0;
        let share_of = if is_told_apart {
            unfinished_max
        } else {
            i64::from(u32::MAX)
        };
        let body = serde_json::to_string(&new.content).expect("its members are text and numbers");
        let kept = octets(&body);
        let bytes = &self.mailbox;
        let adding = bytes.announce_bytes(&new.owner, kept);
        let insert = query!(INSERT, id, new.kind().as_str(), &new.owner, &new.caller)
            .bind(new.source.as_ref().map(WorkspaceId::as_str))
            .bind(new.target.as_str())
            .bind(body)
            .bind(new.idempotency_key.as_deref())
            .bind(new.priority)
            .bind(now.0)
            .bind(now.after(new.patience).0)
            .bind(unfinished_max)
            .bind(kept)
            .bind(adding.limit)
            .bind(share_of);
        let inserted = self.mailbox.change("job_insert", insert).await?;
        if inserted {
            bytes.count_added(kept);
        }
        Ok(inserted)
    }

    /// True if one more job is within the share of its caller among the unfinished ones for its target.
    async fn within_share(&self, new: &NewJob, max: i64) -> Result<bool, Unavailable> {
        let db = &self.mailbox.db;
        let query = sqlx::query_as(CALLERS).bind(new.target.as_str());
        let rows: Vec<(String, i64)> = db.run("job_callers", query.fetch_all(db.pool())).await?;
        let mut callers = Amounts::default();
        for (caller, jobs) in rows {
            callers.add_rows(stored_account(&caller), jobs);
        }
        Ok(callers.has_share(stored_account(&new.caller), max))
    }

    /// Returns delegations of a workspace before the id `before` (empty: all), newest first, and whether there
    /// are more. At most `limit`; fewer, and at least one, when they are large.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn list_delegations(
        &self,
        life: &WorkspaceIncarnation,
        before: &str,
        limit: u32,
    ) -> Result<(Vec<Job>, bool), Unavailable> {
        let db = &self.mailbox.db;
        let (id, owner) = (life.id.as_str(), life.to_string());
        let work = async {
            let sizes = sqlx::query_scalar(LIST_SIZES).bind(id).bind(before);
            let sizes = sizes
                .bind(&owner)
                .bind(i64::from(limit) + 1)
                .fetch_all(db.pool());
            let sizes: Vec<i64> = sizes.await?;
            let count = count_fitting(&sizes, limit);
            let rows = query!(
                LIST,
                id,
                before,
                &owner,
                i64::try_from(count).unwrap_or(i64::MAX)
            );
            let rows = rows.fetch_all(db.pool()).await?;
            let jobs = rows.iter().filter_map(read_or_skip).collect();
            Ok((jobs, count < sizes.len()))
        };
        db.run("job_list", work).await
    }

    /// Claims at most `limit` jobs for the time of a lease; the greatest priority first, then the oldest. Raises the
    /// fence: their former holders can write nothing any more.
    async fn claim(
        &self,
        what: Claim,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<Job>, Unavailable> {
        let [of, order] = what.conditions();
        let lock = self.mailbox.skip_locked();
        let any = format!("SELECT id FROM mailbox_items WHERE {of} LIMIT 1");
        let claim = format!(
            "UPDATE mailbox_items SET leased_until = $2, fence = fence + 1 \
             WHERE id IN (SELECT id FROM mailbox_items WHERE {of}{order} LIMIT $3{lock}) AND {of} RETURNING {}",
            item_columns!()
        );
        let claim = query!(
            AssertSqlSafe(claim),
            now.0,
            now.after(LEASE).0,
            i64::from(limit)
        );
        let pool = self.mailbox.db.pool();
        let work = async {
            // Checked first, so that a second without such rows writes nothing.
            let any = query!(AssertSqlSafe(any), now.0);
            if any.fetch_optional(pool).await?.is_none() {
                return Ok(Vec::new());
            }
            let rows = claim.fetch_all(pool).await?;
            let mut claimed: Vec<Job> = rows.iter().filter_map(read_or_skip).collect();
            claimed.sort_by(|one, other| {
                let age = (one.created_at, &one.id).cmp(&(other.created_at, &other.id));
                other.priority.cmp(&one.priority).then(age)
            });
            Ok(claimed)
        };
        self.mailbox.db.run("job_claim", work).await
    }
}

/// Fails the unfinished jobs of a removed workspace and those for it before its id begins a new life, in a transaction
/// of the caller. Its own results go to no inbox.
///
/// # Errors
/// The error of the driver.
pub async fn end_jobs_of(
    tx: &mut Connection,
    id: &WorkspaceId,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let end = query!(END_OF, id.as_str(), removed_target().to_string(), now.0);
    end.execute(tx).await.map(drop)
}

/// Reads a row. One that cannot be read is left out.
fn read_or_skip(row: &AnyRow) -> Option<Job> {
    let read = read_job(row);
    if let Err(error) = &read {
        let id: String = row.try_get("id").unwrap_or_default();
        tracing::error!(job = id, error = %Chain(error), "unreadable job row; skipped");
    }
    read.ok()
}

fn read_job(row: &AnyRow) -> Result<Job, sqlx::Error> {
    let word = || sqlx::Error::Decode("an unknown word".into());
    let workspace = |id: &str| decode_column(WorkspaceId::parse(id));
    let source: Option<&str> = row.try_get("source_id")?;
    Ok(Job {
        id: row.try_get("id")?,
        kind: Kind::parse(row.try_get("kind")?).ok_or_else(word)?,
        owner: row.try_get("owner")?,
        caller: row.try_get("caller")?,
        source: source.map(workspace).transpose()?,
        target: workspace(row.try_get("target_id")?)?,
        content: read_json(row, "body")?.ok_or_else(word)?,
        state: State::parse(row.try_get("state")?).ok_or_else(word)?,
        priority: row.try_get("priority")?,
        attempts: row.try_get("attempts")?,
        deadline: Timestamp(row.try_get("expires_at")?),
        inbox_task: row.try_get("inbox_task")?,
        answer: read_json(row, "answer")?,
        created_at: Timestamp(row.try_get("created_at")?),
        updated_at: Timestamp(row.try_get("updated_at")?),
        fence: row.try_get("fence")?,
    })
}
