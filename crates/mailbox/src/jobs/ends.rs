//! How jobs end. The periodic scan for jobs that no event leads to: passed deadlines, jobs of crashed replicas, results
//! that were not delivered to their delegators. Every replica scans each second.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use sqlx::Row as _;
use sqlx::any::AnyRow;
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;

use super::job::{DEFERRED_PREFIX, Ending, Job, Kind, State, deadline_expired, sender_lost};
use super::{Claim, GRACE, Jobs, LEASE, RENEWAL, RETRY_PAUSE, read_job, read_or_skip};
use crate::inbox::{ActivityType, InboxTask, NewActivity, Source};
use crate::mailbox::{item_columns, query};
use a2a::Generation;
use a2a::state::TaskState;
use access::identity::stored_chain;
use access::workspace::Timestamp;
use kernel::deadline::ticks;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::Account;
use kernel::telemetry::Chain;
use stores::store::Unavailable;

/// Interval of scans.
const EVERY: Duration = Duration::from_secs(1);

/// Rows of one kind per scan. A full scan is followed by the next at once.
const BATCH: u32 = 64;

/// Ends of jobs that are written concurrently.
const AT_ONCE: usize = 8;

/// Longest pause between two attempts to deliver a result, in milliseconds: a full inbox may be emptied.
const UNTOLD_PAUSE_MAX_MS: i64 = 60_000;

// Of holders that are gone.
const END_LEASES: &str = "UPDATE mailbox_items SET leased_until = 0 \
    WHERE leased_until > 0 AND leased_until < $1 AND state IN ('pending', 'dispatched')";

const IN_INBOX: &str = "UPDATE mailbox_items \
    SET state = 'dispatched', inbox_task = $3, attempts = attempts + 1, leased_until = 0, updated_at = $4 \
    WHERE id = $1 AND fence = $2 AND state = 'pending'";

const WAITING: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE state = 'dispatched' AND inbox_task IS NOT NULL AND id > $1 ORDER BY id LIMIT $2"
);

const WAITING_FOR: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE state = 'dispatched' AND inbox_task = $1"
);

// In an ended row `due_at` is the time of the next delivery attempt.
const UNTOLD: &str =
    "SELECT id FROM mailbox_items WHERE untold = 1 AND due_at <= $1 ORDER BY due_at LIMIT $2";

// The row is put off before its delivery, for as long again as it has waited, and $3 at most.
const TAKE_UNTOLD: &str = concat!(
    "UPDATE mailbox_items SET due_at = $2 + CASE WHEN $2 - updated_at > $3 THEN $3 ELSE $2 - updated_at END \
     WHERE id = $1 AND untold = 1 AND due_at <= $2 RETURNING ",
    item_columns!()
);

const TOLD: &str = "UPDATE mailbox_items SET untold = 0 WHERE id = $1";

impl Jobs {
    /// Scans regularly. A background task; runs until it is dropped.
    pub async fn run(&self) {
        let mut tick = ticks(EVERY);
        // On an SQLite file this process is the only worker: leases from before its start have no holder.
        let mut waiting = String::new();
        let alone = self.mailbox.db.is_embedded();
        let mut fresh = alone;
        let mut clock = ScanClock::new(Instant::now(), alone);
        loop {
            tick.tick().await;
            let looked = async {
                if fresh {
                    let end = query!(END_LEASES, self.started.after(LEASE).0);
                    self.mailbox.change("job_end_leases", end).await?;
                    fresh = false;
                }
                // Boxed, as is the path that ends a job: the stack of a thread is not deep enough for all of
                // it.
                Box::pin(self.scan_until_done(&mut waiting, &mut clock)).await
            };
            if let Err(error) = looked.await {
                tracing::debug!(error = %Chain(&error), "job scan failed; retrying");
            }
        }
    }

    /// Runs scans until one is not full. `waiting`: the id up to which inboxes were checked.
    async fn scan_until_done(
        &self,
        waiting: &mut String,
        clock: &mut ScanClock,
    ) -> Result<(), Unavailable> {
        loop {
            // The replica that goes on finds the jobs: the audit records of their ends might not be written
            // here any more.
            if self.closing.load(Ordering::Acquire) {
                return Ok(());
            }
            let now = Timestamp::now();
            let overdue = self.claim(Claim::Overdue, now, BATCH).await?;
            let unrenewed = *self.unrenewed.lock();
            let spares = clock.must_spare(Instant::now(), unrenewed);
            let lost = match spares {
                true => Vec::new(),
                false => self
                    .claim(Claim::Lost, now, BATCH)
                    .await
                    .inspect_err(|_| clock.extend_grace(Instant::now()))?,
            };
            // Marked here, since the following steps may wait for a store that becomes unavailable meanwhile.
            clock.record_scan(Instant::now());
            let mut count = overdue.len().max(lost.len());
            let mut ends = Vec::with_capacity(overdue.len() + lost.len());
            for job in &overdue {
                // The replica that put it into an inbox may not have got to write that.
                let message = message_id(job);
                let found = self.inbox.find_task(&job.target, &message).await;
                let delivered = match found {
                    Ok(None) => Delivery::NotSent,
                    Ok(Some(_)) => Delivery::Sent,
                    Err(_) => Delivery::Unknown,
                };
                ends.push((job, Ending::Expired(deadline_expired(delivered))));
            }
            let lost = lost
                .iter()
                .map(|job| (job, Ending::Failed(lost_job_rejection(job))));
            ends.extend(lost);
            // Concurrently, so that deliveries to inboxes share commits.
            let ends = stream::iter(ends);
            ends.for_each_concurrent(AT_ONCE, |(job, ending)| {
                catch_panic(&job.id, Box::pin(self.give_up(job, ending))).map(drop)
            })
            .await;
            self.check_inboxes(waiting).await?;
            count = count.max(self.deliver_results().await?);
            if count < BATCH as usize {
                return Ok(());
            }
        }
    }

    /// Writes that a job ended without an answer, and reports it.
    async fn give_up(&self, job: &Job, ending: Ending) {
        if self.closing.load(Ordering::Acquire) {
            return;
        }
        if let Some(settled) = self.settle_until_written(job, &ending).await {
            self.report_given_up(job, &ending);
            self.put_result(&settled).await;
        }
    }

    /// Reports a job that ended without an answer to the listener of [`Jobs::listeners`].
    fn report_given_up(&self, job: &Job, ending: &Ending) {
        if let (Ending::Expired(why) | Ending::Failed(why), Some(listeners)) =
            (ending, &*self.listeners.load())
        {
            (listeners.given_up)(job, why);
        }
    }

    /// Delivers results to delegators, and returns the number of attempts. Each job is put off before its
    /// attempt, so that one that cannot be delivered does not hold up the others, even if it crashes this
    /// process.
    async fn deliver_results(&self) -> Result<usize, Unavailable> {
        let (mailbox, now) = (&self.mailbox, Timestamp::now());
        let query = query!(UNTOLD, now.0, i64::from(BATCH));
        let read = |row: &AnyRow| row.try_get::<String, _>("id");
        let untold = mailbox.fetch_all("job_untold", query, read).await?;
        for id in &untold {
            let take = query!(TAKE_UNTOLD, id, now.0, UNTOLD_PAUSE_MAX_MS);
            let taken = mailbox.fetch("job_take_untold", take, read_job).await;
            let taken =
                taken.inspect_err(|error| self.count_undelivered(id, &Chain(error).to_string()));
            let Some(job) = taken? else { continue };
            if catch_panic(id, self.put_result(&job)).await.is_none() {
                self.count_undelivered(id, "a bug");
            }
        }
        Ok(untold.len())
    }
}

/// The time of the last scan. After a time without scans, the start included, leases may have expired because
/// the store was unavailable to their holders as well: the holders get time to renew them.
struct ScanClock {
    last: Instant,
    spared_until: Instant,
}

impl ScanClock {
    /// No scan yet. `alone`: no other process has leases.
    fn new(now: Instant, alone: bool) -> Self {
        let spared = if alone { Duration::ZERO } else { SPARED };
        Self {
            last: now,
            spared_until: now + spared,
        }
    }

    /// True while no job may be declared lost. `unrenewed`: when this replica last failed to renew a lease.
    fn must_spare(&mut self, now: Instant, unrenewed: Option<Instant>) -> bool {
        if now - self.last > RENEWAL {
            self.extend_grace(now);
        }
        if let Some(at) = unrenewed {
            self.extend_grace(at);
        }
        now < self.spared_until
    }

    /// The store may answer reads and reject writes.
    fn extend_grace(&mut self, at: Instant) {
        self.spared_until = self.spared_until.max(at + SPARED);
    }

    /// Records a scan that the store answered.
    fn record_scan(&mut self, now: Instant) {
        self.last = now;
    }
}

/// Time that live holders need to renew their leases once the store is back.
const SPARED: Duration = RENEWAL.saturating_add(GRACE);

/// Returns the rejection of a job after its holder crashed.
fn lost_job_rejection(job: &Job) -> Rejection {
    tracing::warn!(
        job = job.id,
        "job lost: the gateway that sent it ended before there was an answer"
    );
    sender_lost()
}

// Delivery of a job's end: a delegation's result is put into the delegator's inbox, exactly once, even
// across crashes. A job that was itself delivered to an inbox ends with its task there.

/// Jobs that wait for tasks in inboxes, read at once.
const WAITING_PAGE: i64 = 64;

/// A delegation in the API's form. The agent's answer is embedded as it came: parsing it into a tree would
/// lose digits and take many times the memory, and some answers cannot be parsed.
#[derive(Serialize, ToSchema)]
pub struct DelegationView<'a> {
    delegation_id: &'a str,
    #[schema(value_type = kernel::ids::WorkspaceId)]
    target_id: &'a str,
    status: State,
    /// What the agent answered: a message or a task. Of what is completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value, required = false)]
    result: Option<&'a RawValue>,
    /// The agent's JSON-RPC error, or one in its form with `reason` and `delivered`. Of what failed or expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value, required = false)]
    error: Option<&'a RawValue>,
}

impl<'a> DelegationView<'a> {
    /// Returns the form of a job that is a delegation, with the agent's answer if the reader sees content.
    pub fn new(job: &'a Job, sees_content: bool) -> Self {
        Self {
            delegation_id: &job.id,
            target_id: job.target.as_str(),
            status: job.state,
            result: job.result().filter(|_| sees_content),
            error: job.error().filter(|_| sees_content),
        }
    }
}

impl Jobs {
    /// Puts the end of a delegation into the inbox of its delegator. Every replica retries until it is there.
    /// It is there once, since its id is derived from the delegation.
    pub(super) async fn put_result(&self, job: &Job) {
        if let (Kind::Delegation, Some(source)) = (job.kind, &job.source) {
            let shown = match serde_json::to_string(&DelegationView::new(job, true)) {
                Ok(shown) => shown,
                Err(error) => return self.count_undelivered(&job.id, &error.to_string()),
            };
            let (kind, from) = (
                ActivityType::DelegateResult,
                Source::Agent(job.target.clone()),
            );
            let entry = NewActivity {
                target: Some(source.clone()),
                response_body: Some(shown),
                hops: Some(job.content.hops()),
                id: Some(entry_id(job)),
                ..NewActivity::new(source, kind, from, job.owner.clone())
            };
            match self.inbox.put(entry).await {
                Ok(_) => {}
                Err(known) if known.reason == Reason::Conflict => {}
                Err(why) => return self.count_undelivered(&job.id, why.reason.as_str()),
            }
            if let Err(error) = self.mailbox.change("job_told", query!(TOLD, &job.id)).await {
                tracing::debug!(error = %Chain(&error), "failed to record that a delegation result was delivered");
            }
        }
    }

    /// Puts the call of a job into the inbox of its target, which polls. The job ends with the task that begins there,
    /// and takes a share of `account`. The message is there once, however often this is retried, since its id is
    /// derived from the job; so, unlike a call to an agent, it needs no record before it is sent. May take as long as
    /// the store is unavailable.
    ///
    /// # Errors
    /// As [`Inbox::put`](crate::inbox::Inbox::put).
    pub async fn deliver_to_inbox(
        &self,
        (job, account): (&Job, Account),
        method: &str,
        body: String,
    ) -> Result<(), Rejection> {
        let source = job.source.clone().map_or(Source::Canvas, Source::Agent);
        let owner = job.owner.clone();
        let id = message_id(job);
        let entry = NewActivity {
            id: Some(id.clone()),
            hops: Some(job.content.hops()),
            chain: stored_chain(&job.caller),
            account,
            ..NewActivity::message(&job.target, source, owner.clone(), method, body)
        };
        match self.inbox.put(entry).await {
            // Put there by an earlier holder of the job.
            Err(known) if known.reason == Reason::Conflict => {}
            put => drop(put?),
        }
        // The message is in the inbox, so no later failure may report that it is not. Until the job's row
        // names the task, the agent's answer does not reach the job.
        let noted = loop {
            let record = query!(IN_INBOX, &job.id, job.fence, &id, Timestamp::now().0);
            match self.mailbox.change("job_in_inbox", record).await {
                Ok(noted) => break noted,
                Err(error) => {
                    tracing::warn!(job = job.id, error = %Chain(&error), "failed to record that a job is in an inbox; retrying");
                    sleep(RETRY_PAUSE).await;
                }
            }
        };
        if noted {
            self.publish_change(job, State::Dispatched);
        } else if let Ok(Some(now)) = self.find(&job.id).await
            && now.state == State::Canceled
        {
            // Canceled a moment before. If this fails, the agent answers a message in vain.
            let by = (Source::Canvas, owner);
            let generation = Generation::of_method(method);
            let canceled = self.inbox.cancel(&job.target, &id, by, generation);
            let _ = canceled.await;
        }
        Ok(())
    }

    /// Writes the end of a job, in one attempt, and reports it.
    async fn finish_now(&self, job: &Job, ending: &Ending) -> Result<(), Unavailable> {
        if let Some(settled) = Box::pin(self.try_settle(job, ending, false)).await? {
            self.report_given_up(job, ending);
            self.put_result(&settled).await;
        }
        Ok(())
    }

    /// Ends the job that waits for a task in an inbox, if the task is over and there is one. Called when an
    /// agent's reply is taken; otherwise, or if this fails, [`Jobs::check_inboxes`] finds it later.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn task_ended(&self, task: &InboxTask) -> Result<(), Rejection> {
        if !task.state.is_terminal() {
            return Ok(());
        }
        let query = query!(WAITING_FOR, &task.id);
        let found = self.mailbox.fetch("job_waiting_for", query, read_job);
        if let Some(job) = found.await?
            && let Some(ending) = self.judged_ending(&job, task).await
        {
            // One attempt only: the agent waits for its response.
            self.finish_now(&job, &ending).await?;
        }
        Ok(())
    }

    /// Ends jobs that expired, or that wait for a task which is over: of the next page beyond the id `after`,
    /// which is advanced, so that all jobs are checked in turn.
    async fn check_inboxes(&self, after: &mut String) -> Result<(), Unavailable> {
        let query = query!(WAITING, after.as_str(), WAITING_PAGE);
        let read = |row: &AnyRow| Ok((row.try_get("id")?, read_or_skip(row)));
        let waiting = self.mailbox.fetch_all("job_waiting", query, read).await?;
        for job in waiting.iter().filter_map(|(_, job)| job.as_ref()) {
            catch_panic(&job.id, Box::pin(self.check_inbox_of(job)))
                .await
                .unwrap_or(Ok(()))?;
        }
        // Empty at the end.
        let is_full = i64::try_from(waiting.len()).is_ok_and(|count| WAITING_PAGE <= count);
        let last = waiting.into_iter().last().filter(|_| is_full);
        *after = last.map(|(id, _)| id).unwrap_or_default();
        Ok(())
    }

    async fn check_inbox_of(&self, job: &Job) -> Result<(), Unavailable> {
        let task = job.inbox_task.as_deref().unwrap_or_default();
        let ended = match self.inbox.find_task(&job.target, task).await {
            Ok(Some(task)) if task.state.is_terminal() => self.judged_ending(job, &task).await,
            Ok(Some(_)) if Timestamp::now() < job.deadline => None,
            Ok(Some(_)) => Some(Ending::Expired(deadline_expired(Delivery::Sent))),
            Ok(None) => Some(Ending::Failed(pruned_unanswered())),
            Err(_) => None,
        };
        match ended {
            Some(ending) => self.finish_now(job, &ending).await,
            None => Ok(()),
        }
    }

    /// Returns the end of a job from its task in an inbox, as the judge of replies passes it. `None`: the task cannot
    /// be read or judged now.
    async fn judged_ending(&self, job: &Job, task: &InboxTask) -> Option<Ending> {
        let (document, _) = self.inbox.read_document(task).await.ok()?;
        let (ending, said): (fn(_) -> _, _) = match task.state {
            TaskState::Completed => (Ending::Result, document),
            state => {
                let error = json!({
                    "code": Reason::AgentProtocolError.rpc_code(),
                    "message": format!("the task ended as {}", state.as_str()),
                    "data": document,
                });
                (Ending::Error, error)
            }
        };
        let said = to_raw_value(&said).ok()?;
        let Some(listeners) = self.listeners.load_full() else {
            return Some(ending(said));
        };
        match (listeners.judge)(job, &said).await {
            Ok(other) => Some(ending(other.unwrap_or(said))),
            Err(why) if why.reason == Reason::GuardRejected => Some(Ending::Failed(why)),
            // It is asked again until the job expires.
            Err(why) => (job.deadline <= Timestamp::now()).then_some(Ending::Failed(why)),
        }
    }

    /// Counts and logs a result that could not be delivered to its delegator yet.
    fn count_undelivered(&self, job: &str, why: &str) {
        self.mailbox.metrics.jobs.untold.inc();
        tracing::debug!(job, why, "failed to deliver delegation result; will retry");
    }
}

/// Judges what an agent that polls replied to a job, before its caller gets it. Returns another form of the reply;
/// `None`: it passes as it is. A rejection other than `guard_rejected` is one that may pass later.
type ReplyFilter = Box<
    dyn for<'a> Fn(&'a Job, &'a RawValue) -> BoxFuture<'a, Result<Option<Box<RawValue>>, Rejection>>
        + Send
        + Sync,
>;

/// Returns the id of the inbox entry with a delegation's result: the delegation's id with the time of its
/// end, since retention goes by the time in entry ids.
fn entry_id(job: &Job) -> String {
    let id = uuid::Uuid::try_parse(&job.id).unwrap_or_default();
    let mut bytes = id.into_bytes();
    bytes[..6].copy_from_slice(&job.updated_at.0.to_be_bytes()[2..]);
    uuid::Uuid::from_bytes(bytes).to_string()
}

/// Returns the id of the inbox entry with a job's message: the job's id with one bit flipped, since its end
/// may come in the same millisecond.
fn message_id(job: &Job) -> String {
    let id = job.id.strip_prefix(DEFERRED_PREFIX).unwrap_or(&job.id);
    let mut bytes = uuid::Uuid::try_parse(id).unwrap_or_default().into_bytes();
    bytes[15] ^= 1;
    uuid::Uuid::from_bytes(bytes).to_string()
}

/// Runs the work on one job and catches panics, so that a bug in one job does not hold up the others. `None`:
/// it panicked.
async fn catch_panic<T>(job: &str, work: impl Future<Output = T>) -> Option<T> {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    if done.is_err() {
        tracing::error!(
            job,
            "work on a job panicked, which is a bug; retrying later"
        );
    }
    done.ok()
}

/// Returns the rejection of a job after its inbox entry was pruned without an answer.
fn pruned_unanswered() -> Rejection {
    let message = "the agent acknowledged the message without a reply, or it is older than inbox.retention, and it \
        was forgotten: there will be no answer";
    Rejection::new(Reason::AgentProtocolError, message).with_delivery(Delivery::Sent)
}

/// Hears of a job that ends, with the reason.
type OnGivenUp = Box<dyn Fn(&Job, &Rejection) + Send + Sync>;

/// The listeners of jobs. None until they are set.
pub struct Listeners {
    /// For jobs that end without a further attempt to send (too late, or lost), with the reason.
    pub given_up: OnGivenUp,
    /// Judges what agents that poll reply to jobs.
    pub judge: ReplyFilter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_time_without_looks_nothing_is_lost_until_everybody_could_say_that_it_lives() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut clock = ScanClock::new(start, false);
        let mut scan = |now| {
            let spares = clock.must_spare(now, None);
            clock.record_scan(now);
            spares
        };
        for (at_seconds, spared) in [(0, true), (9, true), (15, false), (24, false)] {
            assert_eq!(scan(at(at_seconds)), spared, "{at_seconds}");
        }
        for during in [60, 67, 74] {
            assert!(scan(at(during)), "{during}");
        }
        assert!(!scan(at(75)));
        let mut alone = ScanClock::new(start, true);
        assert!(!alone.must_spare(start, None));
        assert!(alone.must_spare(at(3), Some(at(2))));
        alone.record_scan(at(12));
        assert!(alone.must_spare(at(16), Some(at(2))));
        assert!(!alone.must_spare(at(17), Some(at(2))));
    }
}
