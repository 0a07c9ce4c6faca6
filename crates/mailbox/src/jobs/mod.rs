//! Jobs: delegations between workspaces (`docs/reference/a2a.md`, "Delegations") and calls that were deferred because
//! the target was unavailable (`docs/reference/a2a.md`, "`Prefer: respond-async`"). One state machine serves both.
//!
//! Their rows are in the table of the [mailbox](super::mailbox). A row is inserted by [`Jobs::accept`] and claimed by
//! [`Jobs::claim_due`].
//! Its sender records that the call is about to leave ([`Jobs::record_dispatch`]), then how it ended
//! ([`Jobs::finish_job`]) or that nothing was delivered ([`Jobs::put_back`]). The data plane sends
//! (`data-plane/src/dispatch/`). [`scan`] looks for passed deadlines, jobs of crashed replicas, undelivered results and
//! rows beyond their retention. [`task`] shows a deferred call as a task.
//!
//! Invariants: an accepted job is committed; only the holder of the claim that moved a row to `dispatched`
//! sends it, and it is never sent again, whatever crashes; access is not decided here.

mod job;
mod result;
mod scan;
mod table;
pub mod task;
mod unavailable;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, interval, sleep};

pub use self::job::{
    Call, Content, Ending, Job, Kind, NewJob, State, Task, TaskRun, deadline_expired,
    may_be_deferred, request_id,
};
pub use self::unavailable::Attempt;

pub use self::result::{DelegationView, Listeners, ReplyFilter};
pub use self::table::end_jobs_of;

use self::job::answer_not_kept;
use self::table::{CANCEL, Claim, DISPATCH, PARK, PUT_BACK, Table, UNPARK, read_job};
use self::unavailable::UnavailableTargets;
use crate::inbox::Inbox;
use crate::mailbox::{Mailbox, Settlement, query};
use access::workspace::Timestamp;
use directory::events::{self, Event, Events, PayloadSubject};
use kernel::ids::WorkspaceId;
use kernel::metrics::RetainedKind;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::telemetry::Chain;
use stores::coherence::{Coherence, Invalidation};
use stores::store::Unavailable;

/// Duration of a lease on a job without a renewal. Clocks of replicas must differ by less.
const LEASE: Duration = Duration::from_secs(30);

/// Interval of lease renewals: two may fail.
const RENEWAL: Duration = Duration::from_secs(10);

/// Time that the replica that ended a job has to deliver the result, before other replicas try.
const GRACE: Duration = Duration::from_secs(5);

/// Pause between two attempts to write the end of a job.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Attempts to put a job back.
const PUT_BACK_TRIES: u32 = 3;

/// Answers up to this size are kept also where `limits.kept_bytes` are used up: delegations are bounded by
/// number.
const SMALL_ANSWER_BYTES: usize = 4096;

/// The rejection of a delegation for which there is no room. The limits follow.
const NO_ROOM: &str =
    "there is no room for another delegation or deferred call: what is kept for this caller has";

/// Accepts, claims and finishes jobs.
pub struct Jobs {
    mailbox: Arc<Mailbox>,
    pub(super) table: Table,
    inbox: Arc<Inbox>,
    events: Arc<Events>,
    started: Timestamp,
    /// Notified when there may be something to send.
    news: Notify,
    targets: Arc<UnavailableTargets>,
    /// Callbacks of other modules for the ends and the replies of jobs.
    pub listeners: Listeners,
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
                | Invalidation::Stops => {}
            }
            async {}
        });
        Arc::new(Self {
            table: Table(Arc::clone(&mailbox)),
            mailbox,
            inbox,
            events,
            started: Timestamp::now(),
            news: Notify::new(),
            targets,
            listeners: Listeners::default(),
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
        let inserted = self.table.insert((&id, now), new, unfinished_max).await;
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
            Kind::Deferred => Some(task::accepted_event(&new.target, &id)),
        };
        changed
            .into_iter()
            .for_each(|event| self.events.publish(event));
        self.news.notify_one();
        Ok(AcceptedJob {
            id,
            state: State::Pending,
            known: false,
            created_at: now,
        })
    }

    async fn find_accepted(&self, new: &NewJob) -> Result<Option<AcceptedJob>, Rejection> {
        let Some(key) = &new.idempotency_key else {
            return Ok(None);
        };
        let Some(job) = self.table.find_key(new.kind(), &new.owner, key).await? else {
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
        let kept = &self.mailbox.kept;
        if let Ok(false) = kept.has_room(&new.owner, new.content.bytes()).await {
            return kept.count_refusal(RetainedKind::Delegation, NO_ROOM);
        }
        let is_share = self.table.within_share(new, unfinished_max).await;
        let is_share = is_share.is_ok_and(|within| !within);
        let message = "as many calls of this caller, or for this target, as may be wait to be made or answered, or half of \
            what others leave for it from this caller (delegation.max_pending)";
        Rejection::new(Reason::AgentBusy, message)
            .with_retry_after(Duration::from_secs(15))
            .with_fact("limit", unfinished_max)
            .with_share(is_share)
    }

    /// Returns the job with this id.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn find(&self, id: &str) -> Result<Option<Job>, Rejection> {
        Ok(self.table.find(id).await?)
    }

    /// Returns delegations of `owner` before the id `before` (empty: all), newest first, and whether there
    /// are more. At most `limit`; fewer, and at least one, when they are large.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn list_delegations(
        &self,
        owner: &str,
        before: &str,
        limit: u32,
    ) -> Result<(Vec<Job>, bool), Rejection> {
        Ok(self.table.read_page(owner, before, limit).await?)
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
        tokio::select! {
            () = self.news.notified() => {}
            () = self.targets.wait_for_change() => {}
        }
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
        self.table.claim(Claim::Due, now, limit).await
    }

    /// Claims jobs that were sent by a gateway that is gone.
    #[cfg(test)]
    pub(super) async fn claim_lost(&self, limit: u32) -> Result<Vec<Job>, Unavailable> {
        self.table.claim(Claim::Lost, Timestamp::now(), limit).await
    }

    /// Renews the lease of a job. Resolves when another holder has claimed it nevertheless.
    pub async fn hold_lease(&self, job: &Job) {
        let mut tick = interval(RENEWAL);
        tick.tick().await;
        loop {
            tick.tick().await;
            let until = Timestamp::now().after(LEASE);
            match self.mailbox.renew(job.lease(), until).await {
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

    /// Makes a job due again after `pause`, since nothing was delivered. `tried`: it counts as an attempt.
    /// True if that was written; otherwise it is due when its lease ends.
    pub async fn put_back(&self, job: &Job, pause: Duration, tried: bool) -> bool {
        let now = Timestamp::now();
        let put = query!(
            PUT_BACK,
            &job.id,
            job.fence,
            now.after(pause).0,
            i64::from(tried),
            now.0
        );
        let put = self.mailbox.change("job_put_back", put).await;
        if let Err(error) = &put {
            tracing::debug!(error = %Chain(error), "failed to put a job back");
        } else if tried {
            self.mailbox.metrics.jobs.retries.inc();
        }
        put.is_ok()
    }

    /// As [`Jobs::put_back`], after an attempt that may have recorded that the call leaves: without the write
    /// the job would be lost when its lease ends. So the write is tried a few times.
    pub async fn put_back_surely(&self, job: &Job, pause: Duration, tried: bool) {
        for left in (0..PUT_BACK_TRIES).rev() {
            if self.put_back(job, pause, tried).await || left == 0 {
                return;
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Begins an attempt at a target, before anything is known about it.
    pub fn begin_attempt(&self, target: &WorkspaceId) -> Attempt {
        self.targets.begin_attempt(target)
    }

    /// Puts off all jobs of a target that is unavailable or takes no more: nothing is due for `pause`, unless
    /// the target returns, or did since the attempt began.
    pub async fn park_target(&self, attempt: Attempt, pause: Duration) {
        let target = attempt.target();
        self.targets.mark_unavailable(target);
        let now = Timestamp::now();
        let park = query!(PARK, target.as_str(), now.after(pause).0, now.0);
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
                let row = self.table.find(&job.id).await?;
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
