//! How a job ended, told to whoever waits for it: in the delegator's inbox, once, whatever crashes in between;
//! and, of a job that went to an inbox itself, how its task there ended.

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::Jobs;
use super::job::{Ending, Job, Kind, expired};
use crate::a2a::state::TaskState;
use crate::delivery::inbox::{ActivityType, InboxTask, NewActivity, Source};
use crate::rejection::{Reason, Rejection};
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// Jobs that wait for tasks in inboxes, read at once.
const WAITING_PAGE: u32 = 64;

impl Jobs {
    /// A delegation as it reads.
    pub fn shown(job: &Job) -> Value {
        let mut shown = json!({
            "delegation_id": job.id,
            "target_id": job.target.as_str(),
            "status": job.state.word(),
        });
        if let Some(result) = &job.result {
            shown["result"] = json!(result);
        }
        if let Some(error) = &job.error {
            shown["error"] = json!(error);
        }
        shown
    }

    /// Puts how a delegation ended into the inbox of its delegator. Until it is there every replica tries; it
    /// is there once, since its id follows from the delegation.
    pub(super) async fn put_result(&self, job: &Job) {
        if let (Kind::Delegation, Some(source)) = (job.kind, &job.source) {
            let entry = NewActivity {
                workspace: source.clone(),
                kind: ActivityType::DelegateResult,
                source: Source::Agent(job.target.clone()),
                target: Some(source.clone()),
                method: None,
                request_body: None,
                response_body: Some(Self::shown(job).to_string()),
                context_id: None,
                owner: job.owner.clone(),
                continues: None,
                id: Some(entry_id(job)),
            };
            match self.inbox.put(entry).await {
                Ok(_) => {}
                Err(known) if known.reason == Reason::Conflict => {}
                Err(why) => {
                    let (job, reason) = (&job.id, why.reason.word());
                    return tracing::debug!(job, reason, "A delegator is not told this time");
                }
            }
            if let Err(error) = self.table.told(&job.id).await {
                tracing::debug!(error = %Chain(&error), "That a delegator was told is not noted");
            }
        }
    }

    /// Puts the call of a job that has begun into the inbox of its target, which polls. It is over when the
    /// task that begins there is.
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
        let entry = NewActivity::message(&job.target, source, owner, method, body);
        let task = self.inbox.put(entry).await?.id;
        // If this fails nobody knows whose task it is, and the job is given up as lost.
        self.table.in_inbox(job, &task).await?;
        Ok(())
    }

    /// A task in an inbox is over: so is the job that waits for it, if there is one. Whoever takes an agent's
    /// reply says so; otherwise it is found out by [`Jobs::look_at_inboxes`], later.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn task_ended(&self, task: &InboxTask) -> Result<(), Rejection> {
        if task.state.is_terminal()
            && let Some(job) = self.table.waiting_for(&task.id).await?
            && let Some(ending) = self.ending(task).await
        {
            self.finish(&job, ending).await;
        }
        Ok(())
    }

    /// Ends the jobs whose tasks in inboxes are over, or too late: of the next few beyond the id `after`,
    /// which is moved on, so that all have their turn.
    pub(super) async fn look_at_inboxes(&self, after: &mut String) -> Result<(), Unavailable> {
        let waiting = self.table.waiting(after, WAITING_PAGE).await?;
        for job in &waiting {
            let task = job.inbox_task.as_deref().unwrap_or_default();
            let ended = match self.inbox.task(&job.target, task).await {
                Ok(Some(task)) if task.state.is_terminal() => self.ending(&task).await,
                Ok(Some(_)) if Timestamp::now() < job.deadline => None,
                Ok(_) => Some(Ending::Expired(expired("true"))),
                Err(_) => None,
            };
            if let Some(ending) = ended {
                self.finish(job, ending).await;
            }
        }
        let last = waiting
            .last()
            .filter(|_| waiting.len() >= WAITING_PAGE as usize);
        *after = last.map(|job| job.id.clone()).unwrap_or_default();
        Ok(())
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

fn raw(value: &Value) -> Option<Box<RawValue>> {
    to_raw_value(value).ok()
}
