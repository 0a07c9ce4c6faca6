//! The job: a delegation or a deferred call, its state and its end.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::mailbox::Lease;
use access::workspace::Timestamp;
use kernel::closed_set::words;
use kernel::ids::{RequestId, WorkspaceId};
use kernel::rejection::{Delivery, Reason, Rejection};

/// Prefix of the id of a deferred call. No task id of an inbox begins with it.
pub(super) const DEFERRED_PREFIX: &str = "job-";

words! {
    /// The kind of a job.
    Kind {
        /// A workspace delegated a task to another.
        Delegation => "delegation",
        /// The target was unavailable, and the caller asked not to wait.
        Deferred => "deferred",
    }
}

words! {
    /// The state of a job.
    State {
        /// Nothing was sent.
        Pending => "pending",
        /// It is being sent, or the agent works on it.
        Dispatched => "dispatched",
        /// The agent answered with a result.
        Completed => "completed",
        /// The agent answered with an error, or no answer can be expected any more.
        Failed => "failed",
        /// Its deadline passed before there was an answer.
        Expired => "expired",
        /// Its caller canceled it before it was sent.
        Canceled => "canceled",
    }
}

impl State {
    /// True if no state can follow.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Dispatched)
    }
}

/// True if `task` may be the id of a deferred call. Agents choose their ids, so it may also be an agent's.
pub fn may_be_deferred(task: &str) -> bool {
    let id = task.strip_prefix(DEFERRED_PREFIX);
    id.is_some_and(|id| id.len() == 36 && uuid::Uuid::try_parse(id).is_ok())
}

/// A call as it is sent to the agent, with the relevant parts of its request's head.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The completed call.
    pub body: String,
    /// Its JSON-RPC method.
    pub method: Option<String>,
    /// True if the gateway wrapped it for a 1.0 target, and so must send the version.
    pub version_1_0: bool,
    /// The caller's header fields that are passed to the agent.
    pub fields: Vec<(String, String)>,
    /// The address of the client.
    pub client: IpAddr,
    /// Number of gateways that it has passed, this one included.
    pub hops: u32,
}

/// A delegated task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The task as text.
    pub text: String,
    /// Number of gateways that the call has passed, this one included.
    pub hops: u32,
    /// The address of the client that delegated, if it is known.
    pub client: Option<IpAddr>,
    /// The run that it serves, if its request named one.
    pub run: Option<TaskRun>,
}

/// The run that a delegated task serves.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct TaskRun {
    /// Its name: `metadata.run_id` of the request, else the trace id.
    pub name: String,
    /// The trace context of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// The content to send.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A text, from which a message is made when the target's generation of A2A is known.
    Task(Task),
    /// A call.
    Call(Box<Call>),
}

impl Content {
    /// Gateways that the call has gone through, this one included.
    pub fn hops(&self) -> u32 {
        match self {
            Self::Task(task) => task.hops,
            Self::Call(call) => call.hops,
        }
    }

    /// Octets that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Task(task) => task.text.len(),
            Self::Call(call) => call.body.len(),
        }
    }
}

/// A job to accept.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// [`Proof::owner`](access::identity::Proof::owner) of its caller.
    pub owner: String,
    /// The caller, as [`Proof::to_stored`](access::identity::Proof::to_stored) writes it.
    pub caller: String,
    /// The calling workspace, if the caller is one.
    pub source: Option<WorkspaceId>,
    /// The target workspace.
    pub target: WorkspaceId,
    /// The content to send.
    pub content: Content,
    /// The idempotency key: two jobs of one caller with the same key are one.
    pub idempotency_key: Option<String>,
    /// Of the jobs that wait for one target the greatest priority is sent first.
    pub priority: i64,
    /// The time until its deadline.
    pub patience: Duration,
}

impl NewJob {
    pub(super) fn kind(&self) -> Kind {
        match self.content {
            Content::Task(_) => Kind::Delegation,
            Content::Call(_) => Kind::Deferred,
        }
    }

    pub(super) fn fresh_id(&self) -> String {
        let id = uuid::Uuid::now_v7();
        match self.kind() {
            Kind::Delegation => id.to_string(),
            Kind::Deferred => format!("{DEFERRED_PREFIX}{id}"),
        }
    }
}

/// A job as it is stored.
#[derive(Clone, Debug)]
pub struct Job {
    /// The id. Ordered by time.
    pub id: String,
    /// The kind of the job.
    pub kind: Kind,
    /// The owner of the job, and of the task that it starts.
    pub owner: String,
    /// The caller that it is sent for, as read by
    /// [`Identity::restore_proof`](access::identity::Identity::restore_proof).
    pub caller: String,
    /// The calling workspace, if the caller is one.
    pub source: Option<WorkspaceId>,
    /// The target workspace.
    pub target: WorkspaceId,
    /// The content to send.
    pub content: Content,
    /// The state.
    pub state: State,
    /// Of the jobs that wait for one target the greatest priority is sent first.
    pub priority: i64,
    /// Attempts so far.
    pub attempts: i64,
    /// The time at which it expires.
    pub deadline: Timestamp,
    /// The task in the target's inbox that it waits for.
    pub inbox_task: Option<String>,
    /// The agent's result or JSON-RPC error, or the gateway's error in the same form.
    pub(super) answer: Option<Box<RawValue>>,
    /// Time of acceptance.
    pub created_at: Timestamp,
    /// Time of the last change of state.
    pub updated_at: Timestamp,
    /// The fencing token of the current claim.
    pub(crate) fence: i64,
}

impl Job {
    /// Returns the agent's result.
    pub fn result(&self) -> Option<&RawValue> {
        self.answer
            .as_deref()
            .filter(|_| self.state == State::Completed)
    }

    /// Returns the error, if there is no result.
    pub fn error(&self) -> Option<&RawValue> {
        self.answer
            .as_deref()
            .filter(|_| self.state != State::Completed)
    }

    pub(super) fn lease(&self) -> Lease<'_> {
        Lease {
            id: &self.id,
            fence: self.fence,
        }
    }

    /// Returns the pause before the next attempt after nothing was delivered: 1 s, 2 s, 4 s … 30 s.
    pub fn backoff(&self) -> Duration {
        let doublings = u32::try_from(self.attempts).unwrap_or(u32::MAX).min(5);
        Duration::from_secs(1 << doublings).min(BACKOFF_MAX)
    }
}

/// Longest pause between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The end of a job.
#[derive(Clone, Debug)]
pub enum Ending {
    /// The agent's result.
    Result(Box<RawValue>),
    /// The agent's JSON-RPC error.
    Error(Box<RawValue>),
    /// The gateway gives it up. The rejection states whether it was delivered.
    Failed(Rejection),
    /// Its deadline passed.
    Expired(Rejection),
}

impl Ending {
    /// Returns the failure that replaces the answer where it becomes part of a task and cannot be parsed.
    pub(super) fn as_unreadable(&self) -> Option<Self> {
        let (Self::Result(answer) | Self::Error(answer)) = self else {
            return None;
        };
        let read = serde_json::from_str::<Value>(answer.get());
        read.err().map(|why| Self::Failed(unreadable_answer(&why)))
    }

    /// Returns the state and the answer to store.
    pub(super) fn to_columns(&self) -> (State, String) {
        match self {
            Self::Result(result) => (State::Completed, result.get().to_owned()),
            Self::Error(error) => (State::Failed, error.get().to_owned()),
            Self::Failed(why) => (State::Failed, to_rpc_error(why).to_string()),
            Self::Expired(why) => (State::Expired, to_rpc_error(why).to_string()),
        }
    }
}

/// Rejection of an answer that is JSON, but cannot be parsed into a tree: it nests too deeply, or contains a
/// number or a character that cannot be represented.
pub(super) fn unreadable_answer(why: &serde_json::Error) -> Rejection {
    // serde's messages for these contain nothing of the answer.
    let message = format!("the agent's answer holds what cannot be read: {why}");
    Rejection::new(Reason::AgentProtocolError, message).with_delivery(Delivery::Sent)
}

/// Returns a rejection as a JSON-RPC error, with the reason and the facts as further members.
pub(super) fn to_rpc_error(why: &Rejection) -> Value {
    let mut error = json!({
        "code": why.rpc_code.unwrap_or_else(|| why.reason.rpc_code()),
        "message": why.message,
        "reason": why.reason.as_str(),
    });
    for (name, value) in why.facts() {
        error[name] = value.into();
    }
    error
}

/// Returns the error of a job whose target, or delegator, was removed before it was made.
pub(super) fn removed_target() -> Value {
    let why =
        "the workspace was removed, and its id was given away again: delegate to the present one";
    to_rpc_error(&Rejection::new(Reason::WorkspaceRemoved, why).with_delivery(Delivery::Unknown))
}

/// Returns the rejection of a call that expired.
pub fn deadline_expired(delivered: Delivery) -> Rejection {
    let message = match delivered {
        Delivery::NotSent => {
            "the deadline passed before the target could be reached; nothing was delivered"
        }
        Delivery::Unknown | Delivery::Sent => {
            "the deadline passed before the agent answered; it may still work on it"
        }
    };
    Rejection::new(Reason::AgentTimeout, message)
        .with_fact("clock", "deadline")
        .with_delivery(delivered)
}

/// Returns the rejection of a call after its sender crashed: the outcome is unknown.
pub(super) fn sender_lost() -> Rejection {
    Rejection::new(
        Reason::AgentProtocolError,
        "the gateway that sent it ended before there was an answer: the agent may have got it, and it is not sent again",
    )
    .with_delivery(Delivery::Unknown)
}

/// Returns the rejection for an answer that was not kept, for want of room.
pub(super) fn answer_not_kept() -> Rejection {
    Rejection::new(
        Reason::AgentProtocolError,
        "the agent answered, and the answer was not kept, since limits.kept_bytes were used up; ask the agent for the task",
    )
    .with_delivery(Delivery::Sent)
}

/// Returns the request id of everything that is sent for a job.
pub fn request_id(job: &Job) -> RequestId {
    RequestId::from_caller(Some(job.id.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_of_our_form_are_looked_for() {
        let id = uuid::Uuid::now_v7();
        assert!(may_be_deferred(&format!("job-{id}")));
        let others = [
            id.to_string(),
            format!("job-{}", id.simple()),
            "job-".into(),
            "job-12".into(),
            format!("task-{id}"),
            format!("job-{id}0"),
        ];
        for other in others {
            assert!(!may_be_deferred(&other), "{other}");
        }
    }

    #[test]
    fn an_answer_of_which_no_tree_can_be_made_is_kept_as_it_came_and_known() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in [&*deep, "1e999", "\"\\ud800\""] {
            let answer = || RawValue::from_string(text.to_owned()).unwrap();
            let stored = Ending::Result(answer()).to_columns();
            assert_eq!(stored, (State::Completed, text.to_owned()));
            for ending in [Ending::Result(answer()), Ending::Error(answer())] {
                let (state, error) = ending.as_unreadable().unwrap().to_columns();
                assert_eq!(state, State::Failed);
                assert!(error.contains("agent_protocol_error"));
            }
        }
        let answer = RawValue::from_string("[1]".to_owned()).unwrap();
        assert!(Ending::Result(answer).as_unreadable().is_none());
    }

    #[test]
    fn a_refusal_becomes_a_json_rpc_error_with_its_facts() {
        let (state, error) = Ending::Failed(sender_lost()).to_columns();
        assert_eq!(state, State::Failed);
        let error: Value = serde_json::from_str(&error).unwrap();
        assert_eq!(error["code"], -32_000);
        assert_eq!(error["reason"], "agent_protocol_error");
        assert_eq!(error["delivered"], "unknown");
        let (state, error) = Ending::Expired(deadline_expired(Delivery::NotSent)).to_columns();
        assert_eq!(state, State::Expired);
        assert!(error.contains(r#""delivered":"false""#));
    }
}
