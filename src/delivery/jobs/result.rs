//! How a job ended, told to whoever waits for it: in the delegator's inbox, once, whatever crashes in between;
//! and, of a job that went to an inbox itself, how its task there ended.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::job::{DEFERRED_PREFIX, Ending, Job, Kind, State, expired, unkept};
use super::{Jobs, RETRY_PAUSE};
use crate::a2a::state::TaskState;
use crate::delivery::inbox::{ActivityType, InboxTask, NewActivity, Source};
use crate::metrics::KeptKind;
use crate::rejection::{Reason, Rejection};
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// Jobs that wait for tasks in inboxes, read at once.
const WAITING_PAGE: u32 = 64;

/// Answers up to this size are kept also where `limits.kept_bytes` are used up: delegations are bounded by number.
const SMALL_ANSWER_BYTES: usize = 4096;

/// A delegation as it reads. What the agent answered stands in it as it came: a tree of it would lose digits, takes
/// many times the memory, and of some answers none can be made.
#[derive(Serialize)]
pub struct Shown<'a> {
    delegation_id: &'a str,
    target_id: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RawValue>,
}

impl<'a> Shown<'a> {
    /// That of a job which is one.
    pub fn of(job: &'a Job) -> Self {
        Self {
            delegation_id: &job.id,
            target_id: job.target.as_str(),
            status: job.state.word(),
            result: job.result.as_deref(),
            error: job.error.as_deref(),
        }
    }
}

impl Jobs {
    /// Puts how a delegation ended into the inbox of its delegator. Until it is there every replica tries; it
    /// is there once, since its id follows from the delegation.
    pub(super) async fn put_result(&self, job: &Job) {
        if let (Kind::Delegation, Some(source)) = (job.kind, &job.source) {
            let shown = match serde_json::to_string(&Shown::of(job)) {
                Ok(shown) => shown,
                Err(error) => return self.untold(&job.id, &error.to_string()),
            };
            let entry = NewActivity {
                workspace: source.clone(),
                kind: ActivityType::DelegateResult,
                source: Source::Agent(job.target.clone()),
                target: Some(source.clone()),
                method: None,
                request_body: None,
                response_body: Some(shown),
                context_id: None,
                owner: job.owner.clone(),
                continues: None,
                hops: Some(job.content.hops()),
                id: Some(entry_id(job)),
            };
            match self.inbox.put(entry).await {
                Ok(_) => {}
                Err(known) if known.reason == Reason::Conflict => {}
                Err(why) => return self.untold(&job.id, why.reason.word()),
            }
            if let Err(error) = self.table.told(&job.id).await {
                tracing::debug!(error = %Chain(&error), "That a delegator was told is not noted");
            }
        }
    }

    /// Counts and tells that a delegator does not know yet how its delegation ended.
    pub(super) fn untold(&self, job: &str, why: &str) {
        self.metrics.jobs.untold.inc();
        tracing::debug!(job, why, "A delegator is not told this time");
    }

    /// Puts the call of a job into the inbox of its target, which polls. The job is over when the task that begins
    /// there is. It is there once, however often this is tried, since its id follows from the job; so unlike a call
    /// to an agent it needs no word beforehand that it leaves. May take for as long as the store is away.
    ///
    /// # Errors
    /// As [`Inbox::put`](crate::delivery::inbox::Inbox::put).
    pub async fn deliver_to_inbox(
        &self,
        job: &Job,
        method: &str,
        body: String,
    ) -> Result<(), Rejection> {
        let source = job.source.clone().map_or(Source::Canvas, Source::Agent);
        let owner = job.owner.clone();
        let id = message_id(job);
        let entry = NewActivity {
            id: Some(id.clone()),
            hops: Some(job.content.hops()),
            ..NewActivity::message(&job.target, source, owner.clone(), method, body)
        };
        match self.inbox.put(entry).await {
            // By whoever had the job before.
            Err(known) if known.reason == Reason::Conflict => {}
            put => drop(put?),
        }
        // It is in the inbox: no failure from here on may say that it is not. Until it is noted whose task it
        // is the agent's answer is not heard of.
        let noted = loop {
            match self.table.in_inbox(job, &id, Timestamp::now()).await {
                Ok(noted) => break noted,
                Err(error) => {
                    tracing::warn!(job = job.id, error = %Chain(&error), "That a job is in an inbox is not written down; trying on");
                    sleep(RETRY_PAUSE).await;
                }
            }
        };
        if noted {
            self.tell_dispatched(job);
        } else if let Ok(Some(now)) = self.table.find(&job.id).await
            && now.state == State::Canceled
        {
            // A moment before. What fails here leaves the agent a message that nobody waits for.
            let canceled = self.inbox.cancel(&job.target, &id, Source::Canvas, owner);
            let _ = canceled.await;
        }
        Ok(())
    }

    /// Writes down how a job ended, tried once, and tells of it.
    /// What is written down of an end: of a large answer for which there is no room, that it came.
    pub(super) async fn columns_that_fit(
        &self,
        job: &Job,
        ending: &Ending,
    ) -> Result<(State, Option<String>, Option<String>), Unavailable> {
        let columns = ending.columns();
        let answer = columns.1.as_ref().or(columns.2.as_ref());
        let bytes = answer.map_or(0, String::len);
        if bytes <= SMALL_ANSWER_BYTES || self.inbox.kept().has_room(&job.owner, bytes).await? {
            return Ok(columns);
        }
        self.metrics.kept.refused(KeptKind::Result);
        Ok(Ending::Failed(unkept()).columns())
    }

    async fn finish_now(&self, job: &Job, ending: &Ending) -> Result<(), Unavailable> {
        if let Some(settled) = Box::pin(self.settle(job, ending, false)).await? {
            self.tell_given_up(job, ending);
            self.put_result(&settled).await;
        }
        Ok(())
    }

    /// Whether a job that is pending is in the inbox of its target all the same: whoever put it there did not get
    /// to write it down. `None`: nobody knows.
    pub(super) async fn is_in_inbox(&self, job: &Job) -> Option<bool> {
        let found = self.inbox.task(&job.target, &message_id(job)).await;
        found.ok().map(|task| task.is_some())
    }

    /// A task in an inbox is over: so is the job that waits for it, if there is one. Whoever takes an agent's
    /// reply says so; otherwise, or if this fails, it is found out by [`Jobs::look_at_inboxes`], later.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn task_ended(&self, task: &InboxTask) -> Result<(), Rejection> {
        if task.state.is_terminal()
            && let Some(job) = self.table.waiting_for(&task.id).await?
            && let Some(ending) = self.ending(task).await
        {
            // Once: the agent waits for its answer.
            self.finish_now(&job, &ending).await?;
        }
        Ok(())
    }

    /// Ends the jobs whose tasks in inboxes are over, or too late: of the next few beyond the id `after`,
    /// which is moved on, so that all have their turn.
    pub(super) async fn look_at_inboxes(&self, after: &mut String) -> Result<(), Unavailable> {
        let (waiting, next) = self.table.waiting(after, WAITING_PAGE).await?;
        for job in &waiting {
            apart(&job.id, Box::pin(self.look_at_inbox_of(job)))
                .await
                .unwrap_or(Ok(()))?;
        }
        *after = next;
        Ok(())
    }

    async fn look_at_inbox_of(&self, job: &Job) -> Result<(), Unavailable> {
        let task = job.inbox_task.as_deref().unwrap_or_default();
        let ended = match self.inbox.task(&job.target, task).await {
            Ok(Some(task)) if task.state.is_terminal() => self.ending(&task).await,
            Ok(Some(_)) if Timestamp::now() < job.deadline => None,
            Ok(Some(_)) => Some(Ending::Expired(expired("true"))),
            Ok(None) => Some(Ending::Failed(forgotten())),
            Err(_) => None,
        };
        match ended {
            Some(ending) => self.finish_now(job, &ending).await,
            None => Ok(()),
        }
    }

    async fn ending(&self, task: &InboxTask) -> Option<Ending> {
        let (document, _) = self.inbox.document(task).await.ok()?;
        let ending = if task.state == TaskState::Completed {
            Ending::Result
        } else {
            Ending::Error
        };
        raw(&match task.state {
            TaskState::Completed => document,
            state => json!({
                "code": Reason::AgentProtocolError.rpc_code(),
                "message": format!("the task ended as {}", state.word()),
                "data": document,
            }),
        })
        .map(ending)
    }
}

/// The id of the entry that says how a delegation ended: the delegation's, with the time of its end, since
/// entries are forgotten by the time in their ids.
fn entry_id(job: &Job) -> String {
    let id = uuid::Uuid::try_parse(&job.id).unwrap_or_default();
    let mut bytes = id.into_bytes();
    bytes[..6].copy_from_slice(&job.updated_at.0.to_be_bytes()[2..]);
    uuid::Uuid::from_bytes(bytes).to_string()
}

/// The id of the entry that a job is in the inbox of its target: the job's, but for a bit, since its end may come in
/// the same moment.
fn message_id(job: &Job) -> String {
    let id = job.id.strip_prefix(DEFERRED_PREFIX).unwrap_or(&job.id);
    let mut bytes = uuid::Uuid::try_parse(id).unwrap_or_default().into_bytes();
    bytes[15] ^= 1;
    uuid::Uuid::from_bytes(bytes).to_string()
}

/// What there is to do about one job, apart from the others: a bug that shows in one of them must not keep all
/// others from their turn. `None`: there is a bug.
pub(super) async fn apart<T>(job: &str, work: impl Future<Output = T>) -> Option<T> {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    if done.is_err() {
        tracing::error!(
            job,
            "What is to be done about a job panicked, which is a bug; it is tried again later"
        );
    }
    done.ok()
}

/// Its entry in the inbox was pruned before there was an answer.
fn forgotten() -> Rejection {
    let message = "the agent acknowledged the message without a reply, or it is older than inbox.retention, and it \
        was forgotten: there will be no answer";
    Rejection::new(Reason::AgentProtocolError, message).fact("delivered", "true")
}

fn raw(value: &Value) -> Option<Box<RawValue>> {
    to_raw_value(value).ok()
}
