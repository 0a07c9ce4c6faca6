//! A call that is made later: what it is, how far it has come, how it ended.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::ids::{RequestId, WorkspaceId};
use crate::rejection::{Reason, Rejection};
use crate::workspace::{Timestamp, words};

/// What stands before the id of a deferred call: no task of a workspace's inbox begins with it.
pub(super) const DEFERRED_PREFIX: &str = "job-";

words! {
    /// Why it is made later.
    Kind {
        /// A workspace handed a task to another.
        Delegation => "delegation",
        /// Its target was away, and its caller did not want to wait.
        Deferred => "deferred",
    }
}

words! {
    /// How far it has come.
    State {
        /// Nothing was sent.
        Pending => "pending",
        /// It is being sent, or the agent works on it.
        Dispatched => "dispatched",
        /// The agent answered with a result.
        Completed => "completed",
        /// The agent answered with an error, or will not be heard of any more.
        Failed => "failed",
        /// Its deadline passed before there was an answer.
        Expired => "expired",
        /// Its caller gave it up before it was sent.
        Canceled => "canceled",
    }
}

impl State {
    /// Whether nothing can follow.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Dispatched)
    }
}

/// Whether `task` may be the id of a deferred call. Agents choose their ids, so it may be one of theirs, too.
pub fn may_be_deferred(task: &str) -> bool {
    let id = task.strip_prefix(DEFERRED_PREFIX);
    id.is_some_and(|id| id.len() == 36 && uuid::Uuid::try_parse(id).is_ok())
}

/// A call as it goes to the agent, and what of its request's head matters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The completed call.
    pub body: String,
    /// Its JSON-RPC method.
    pub method: Option<String>,
    /// Whether the gateway wrapped it for a 1.0 target, and so must say its version.
    pub version_1_0: bool,
    /// The caller's fields that pass to the agent.
    pub fields: Vec<(String, String)>,
    /// Where it came from.
    pub client: IpAddr,
    /// Gateways that it has gone through, this one included.
    pub hops: u32,
}

/// What a workspace delegates.
#[derive(Clone, Debug)]
pub struct Task {
    /// What is to be done, in words.
    pub text: String,
    /// Gateways that the call has gone through, this one included.
    pub hops: u32,
    /// Where the request to delegate came from; `None`: accepted by a release that did not keep it.
    pub client: Option<IpAddr>,
}

/// What is to be sent.
#[derive(Clone, Debug)]
pub enum Content {
    /// A text, of which a message is made when the target's generation of A2A is known.
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

/// A call that is to be made later.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// [`Proof::owner`](crate::identity::Proof::owner) of its caller.
    pub owner: String,
    /// The caller as [`Proof::stored`](crate::identity::Proof::stored) has it.
    pub caller: String,
    /// The calling workspace, if it is one.
    pub source: Option<WorkspaceId>,
    /// Whom.
    pub target: WorkspaceId,
    /// What.
    pub content: Content,
    /// Two of one caller with the same key are one.
    pub idempotency_key: Option<String>,
    /// Of those that wait for one target the greatest goes first.
    pub priority: i64,
    /// How long it may take.
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

/// A call that is made later, as it is stored.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its name. Ordered by time.
    pub id: String,
    /// Why it is made later.
    pub kind: Kind,
    /// Who owns it, and the task that comes of it.
    pub owner: String,
    /// In whose name it is made: for [`Identity::recall`](crate::identity::Identity::recall).
    pub caller: String,
    /// The calling workspace, if it is one.
    pub source: Option<WorkspaceId>,
    /// Whom.
    pub target: WorkspaceId,
    /// What.
    pub content: Content,
    /// How far it has come.
    pub state: State,
    /// Of those that wait for one target the greatest goes first.
    pub priority: i64,
    /// How often it was tried.
    pub attempts: i64,
    /// When it must be over.
    pub deadline: Timestamp,
    /// The task in the target's inbox that it waits for.
    pub inbox_task: Option<String>,
    /// What the agent answered.
    pub result: Option<Box<RawValue>>,
    /// Why there is no result: the agent's JSON-RPC error, or one in its form.
    pub error: Option<Box<RawValue>>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its state last changed.
    pub updated_at: Timestamp,
    /// Which claim it is held by.
    pub(super) fence: i64,
}

impl Job {
    /// When to try again after nothing was delivered: 1 s, 2 s, 4 s … 30 s.
    pub fn backoff(&self) -> Duration {
        let doublings = u32::try_from(self.attempts).unwrap_or(u32::MAX).min(5);
        Duration::from_secs(1 << doublings).min(BACKOFF_MAX)
    }
}

/// Between two tries at most.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// How a job ended.
#[derive(Clone, Debug)]
pub enum Ending {
    /// The agent's result.
    Result(Box<RawValue>),
    /// The agent's JSON-RPC error.
    Error(Box<RawValue>),
    /// The gateway gives it up. `delivered` is among the facts.
    Failed(Rejection),
    /// Its deadline passed.
    Expired(Rejection),
}

impl Ending {
    /// What it is instead where the answer becomes part of a task, if it cannot be read.
    pub(super) fn unreadable(&self) -> Option<Self> {
        let (Self::Result(answer) | Self::Error(answer)) = self else {
            return None;
        };
        let read = serde_json::from_str::<Value>(answer.get());
        read.err().map(|why| Self::Failed(unreadable(&why)))
    }

    /// The state, the result and the error that are written down.
    pub(super) fn columns(&self) -> (State, Option<String>, Option<String>) {
        match self {
            Self::Result(result) => (State::Completed, Some(result.get().to_owned()), None),
            Self::Error(error) => (State::Failed, None, Some(error.get().to_owned())),
            Self::Failed(why) => (State::Failed, None, Some(error(why).to_string())),
            Self::Expired(why) => (State::Expired, None, Some(error(why).to_string())),
        }
    }
}

/// An answer of which no tree can be made, though it is JSON: it nests too deeply, or has a number or a character that
/// cannot be held.
pub(super) fn unreadable(why: &serde_json::Error) -> Rejection {
    // serde's words for these repeat nothing of the answer.
    let message = format!("the agent's answer holds what cannot be read: {why}");
    Rejection::new(Reason::AgentProtocolError, message).fact("delivered", "true")
}

/// A refusal as a JSON-RPC error, with the reason and the facts beside its message.
pub(super) fn error(why: &Rejection) -> Value {
    let mut error = json!({
        "code": why.rpc_code.unwrap_or_else(|| why.reason.rpc_code()),
        "message": why.message,
        "reason": why.reason.word(),
    });
    for (name, value) in &why.facts {
        error[*name] = value.as_str().into();
    }
    error
}

/// The deadline passed; `delivered`: whether the agent got the call, `false`, `true` or `unknown`.
pub fn expired(delivered: &'static str) -> Rejection {
    let message = match delivered {
        "false" => "the deadline passed before the target could be reached; nothing was delivered",
        _ => "the deadline passed before the agent answered; it may still work on it",
    };
    Rejection::new(Reason::AgentTimeout, message)
        .fact("clock", "deadline")
        .fact("delivered", delivered)
}

/// Whoever sent it is gone, and nobody knows what became of it.
pub(super) fn lost() -> Rejection {
    Rejection::new(
        Reason::AgentProtocolError,
        "the gateway that sent it ended before there was an answer: the agent may have got it, and it is not sent again",
    )
    .fact("delivered", "unknown")
}

/// The agent answered, and there was no room for what it said.
pub(super) fn unkept() -> Rejection {
    Rejection::new(
        Reason::AgentProtocolError,
        "the agent answered, and the answer was not kept, since limits.kept_bytes were used up; ask the agent for the task",
    )
    .fact("delivered", "true")
}

/// The request id of everything that is sent for a job.
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
            let (state, result, _) = Ending::Result(answer()).columns();
            assert_eq!((state, result.as_deref()), (State::Completed, Some(text)));
            for ending in [Ending::Result(answer()), Ending::Error(answer())] {
                let (state, result, error) = ending.unreadable().unwrap().columns();
                assert_eq!((state, result), (State::Failed, None));
                assert!(error.unwrap().contains("agent_protocol_error"));
            }
        }
        let answer = RawValue::from_string("[1]".to_owned()).unwrap();
        assert!(Ending::Result(answer).unreadable().is_none());
    }

    #[test]
    fn a_refusal_becomes_a_json_rpc_error_with_its_facts() {
        let (state, result, error) = Ending::Failed(lost()).columns();
        assert_eq!((state, result), (State::Failed, None));
        let error: Value = serde_json::from_str(&error.unwrap()).unwrap();
        assert_eq!(error["code"], -32_000);
        assert_eq!(error["reason"], "agent_protocol_error");
        assert_eq!(error["delivered"], "unknown");
        let (state, _, error) = Ending::Expired(expired("false")).columns();
        assert_eq!(state, State::Expired);
        assert!(error.unwrap().contains(r#""delivered":"false""#));
    }
}
