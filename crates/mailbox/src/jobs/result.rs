//! Delivery of a job's end: a delegation's result is put into the delegator's inbox, exactly once, even
//! across crashes. A job that was itself delivered to an inbox ends with its task there.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::sleep;
use utoipa::ToSchema;

use super::job::{DEFERRED_PREFIX, Ending, Job, Kind, State, deadline_expired};
use super::table::{IN_INBOX, TOLD, WAITING_FOR, read_job};
use super::{Jobs, RETRY_PAUSE};
use crate::inbox::{ActivityType, Inbox, InboxTask, NewActivity, Source};
use crate::mailbox::query;
use a2a::Generation;
use a2a::state::TaskState;
use access::workspace::Timestamp;
use kernel::metrics::Metrics;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::Account;
use kernel::telemetry::Chain;
use stores::store::Unavailable;

/// Jobs that wait for tasks in inboxes, read at once.
const WAITING_PAGE: u32 = 64;

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
                Err(error) => {
                    return count_undelivered(&self.mailbox.metrics, &job.id, &error.to_string());
                }
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
                Err(why) => {
                    return count_undelivered(&self.mailbox.metrics, &job.id, why.reason.as_str());
                }
            }
            if let Err(error) = self.mailbox.change("job_told", query!(TOLD, &job.id)).await {
                tracing::debug!(error = %Chain(&error), "failed to record that a delegation result was delivered");
            }
        }
    }

    /// Puts the call of a job into the inbox of its target, which polls. The job ends with the task that
    /// begins there, and takes a share of `account`. The message is there once, however often this is retried, since its id is derived from
    /// the job; so, unlike a call to an agent, it needs no record before it is sent. May take as long as the
    /// store is unavailable.
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
        } else if let Ok(Some(now)) = self.table.find(&job.id).await
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

    /// True if a job that is pending is already in the inbox of its target: the replica that put it there did
    /// not get to write that. `None`: unknown.
    pub(super) async fn is_in_inbox(&self, job: &Job) -> Option<bool> {
        let found = self.inbox.find_task(&job.target, &message_id(job)).await;
        found.ok().map(|task| task.is_some())
    }

    /// Ends the job that waits for a task in an inbox, if the task is over and there is one. Called when an
    /// agent's reply is taken; otherwise, or if this fails, [`Jobs::check_inboxes`] finds it later.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn task_ended(&self, task: &InboxTask) -> Result<(), Rejection> {
        if task.state.is_terminal()
            && let Some(job) = self.find_waiting_for(&task.id).await?
            && let Some(ending) = judged_ending(self, &job, task).await
        {
            // One attempt only: the agent waits for its response.
            self.finish_now(&job, &ending).await?;
        }
        Ok(())
    }

    async fn find_waiting_for(&self, task: &str) -> Result<Option<Job>, Unavailable> {
        let query = query!(WAITING_FOR, task);
        self.mailbox.fetch("job_waiting_for", query, read_job).await
    }

    /// Ends jobs that expired, or that wait for a task which is over: of the next page beyond the id `after`,
    /// which is advanced, so that all jobs are checked in turn.
    pub(super) async fn check_inboxes(&self, after: &mut String) -> Result<(), Unavailable> {
        let (waiting, next) = self.table.list_waiting(after, WAITING_PAGE).await?;
        for job in &waiting {
            catch_panic(&job.id, Box::pin(self.check_inbox_of(job)))
                .await
                .unwrap_or(Ok(()))?;
        }
        *after = next;
        Ok(())
    }

    async fn check_inbox_of(&self, job: &Job) -> Result<(), Unavailable> {
        let task = job.inbox_task.as_deref().unwrap_or_default();
        let ended = match self.inbox.find_task(&job.target, task).await {
            Ok(Some(task)) if task.state.is_terminal() => judged_ending(self, job, &task).await,
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
}

/// Judges what an agent that polls replied to a job, before its caller gets it. Returns another form of the reply;
/// `None`: it passes as it is. A rejection other than `guard_rejected` is one that may pass later.
pub type ReplyFilter = Box<
    dyn for<'a> Fn(&'a Job, &'a RawValue) -> BoxFuture<'a, Result<Option<Box<RawValue>>, Rejection>>
        + Send
        + Sync,
>;

/// Counts and logs a result that could not be delivered to its delegator yet.
pub(super) fn count_undelivered(metrics: &Metrics, job: &str, why: &str) {
    metrics.jobs.untold.inc();
    tracing::debug!(job, why, "failed to deliver delegation result; will retry");
}

/// Returns the end of a job from its task in an inbox, as the judge of replies passes it. `None`: the task cannot be
/// read or judged now.
async fn judged_ending(jobs: &Jobs, job: &Job, task: &InboxTask) -> Option<Ending> {
    let ending = read_ending(&jobs.inbox, task).await?;
    let listeners = jobs.listeners.get();
    let (Some(listeners), Ending::Result(said) | Ending::Error(said)) = (&listeners, &ending)
    else {
        return Some(ending);
    };
    match ((listeners.judge)(job, said).await, ending) {
        (Ok(None), ending) => Some(ending),
        (Ok(Some(other)), Ending::Error(_)) => Some(Ending::Error(other)),
        (Ok(Some(other)), _) => Some(Ending::Result(other)),
        (Err(why), _) if why.reason == Reason::GuardRejected => Some(Ending::Failed(why)),
        // It is asked again until the job expires.
        (Err(why), _) => (job.deadline <= Timestamp::now()).then_some(Ending::Failed(why)),
    }
}

/// Returns the end of a job from its task in an inbox. `None`: the task cannot be read now.
async fn read_ending(inbox: &Inbox, task: &InboxTask) -> Option<Ending> {
    let (document, _) = inbox.read_document(task).await.ok()?;
    let ending = if task.state == TaskState::Completed {
        Ending::Result
    } else {
        Ending::Error
    };
    to_raw_value(&match task.state {
        TaskState::Completed => document,
        state => json!({
            "code": Reason::AgentProtocolError.rpc_code(),
            "message": format!("the task ended as {}", state.as_str()),
            "data": document,
        }),
    })
    .ok()
    .map(ending)
}

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
pub(super) async fn catch_panic<T>(job: &str, work: impl Future<Output = T>) -> Option<T> {
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

/// A listener for jobs that are given up here, with the reason.
type GiveUpListener = Box<dyn Fn(&Job, &Rejection) + Send + Sync>;

/// The listeners of jobs. None until they are set.
#[derive(Default)]
pub struct Listeners(ArcSwapOption<ListenerSet>);

/// The listeners that are set.
pub(super) struct ListenerSet {
    pub(super) given_up: GiveUpListener,
    /// Judges what agents that poll reply.
    pub(super) judge: ReplyFilter,
}

impl Listeners {
    /// Sets the listener for jobs that end without a further attempt to send (too late, or lost), and the judge of what
    /// agents that poll reply to jobs.
    pub fn set(
        &self,
        given_up: impl Fn(&Job, &Rejection) + Send + Sync + 'static,
        judge: ReplyFilter,
    ) {
        let given_up = Box::new(given_up);
        self.0
            .store(Some(Arc::new(ListenerSet { given_up, judge })));
    }

    /// Drops them.
    pub fn clear(&self) {
        self.0.store(None);
    }

    pub(super) fn get(&self) -> Option<Arc<ListenerSet>> {
        self.0.load_full()
    }
}
