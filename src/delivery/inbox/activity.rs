//! What stands in an inbox: who put it there, what it is, how far its task has come.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::workspace::{Timestamp, words};

words! {
    /// What an entry is.
    ActivityType {
        /// A message for the workspace. The first of a conversation begins a task.
        A2aReceive => "a2a_receive",
        /// The workspace told its user something.
        Notify => "notify",
        /// What became of something that the workspace delegated.
        DelegateResult => "delegate_result",
    }
}

words! {
    /// From whom.
    SourceKind {
        /// Another workspace, or the workspace itself.
        Agent => "agent",
        /// A user, an operator or an integration.
        Canvas => "canvas",
    }
}

/// What stands for a status where there is no task.
pub(super) const STATUS_OK: &str = "ok";

/// Who put an entry there, as far as readers may know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A workspace.
    Agent(WorkspaceId),
    /// A user, an operator or an integration.
    Canvas,
}

impl Source {
    pub(super) fn id(&self) -> Option<&str> {
        match self {
            Self::Agent(id) => Some(id.as_str()),
            Self::Canvas => None,
        }
    }

    pub(super) fn kind(&self) -> SourceKind {
        match self {
            Self::Agent(_) => SourceKind::Agent,
            Self::Canvas => SourceKind::Canvas,
        }
    }
}

/// What is to be put into an inbox.
#[derive(Clone, Debug)]
pub struct NewActivity {
    /// Whose inbox.
    pub workspace: WorkspaceId,
    /// What it is. A message begins a task, unless it continues one.
    pub kind: ActivityType,
    /// Who put it there.
    pub source: Source,
    /// For whom it was, if for a workspace.
    pub target: Option<WorkspaceId>,
    /// The JSON-RPC method.
    pub method: Option<String>,
    /// What was asked, as it came.
    pub request_body: Option<String>,
    /// What was answered, as it came.
    pub response_body: Option<String>,
    /// The conversation of a new task; `None`: a new one. One that is continued keeps its own.
    pub context_id: Option<String>,
    /// [`Proof::owner`](crate::identity::Proof::owner) of whoever put it there: the owner of a new task.
    pub owner: String,
    /// The task that it continues; it is `submitted` again.
    pub continues: Option<String>,
    /// Gateways that the call has gone through, this one included. `None`: it is no call.
    pub hops: Option<u32>,
    /// Its name, a UUID that nothing else has, where it must not be put there twice; `None`: a new one.
    pub id: Option<String>,
}

impl NewActivity {
    /// A message of `owner` to `workspace`.
    pub fn message(
        workspace: &WorkspaceId,
        source: Source,
        owner: String,
        method: &str,
        body: String,
    ) -> Self {
        Self {
            workspace: workspace.clone(),
            kind: ActivityType::A2aReceive,
            source,
            target: Some(workspace.clone()),
            method: Some(method.to_owned()),
            request_body: Some(body),
            response_body: None,
            context_id: None,
            owner,
            continues: None,
            hops: None,
            id: None,
        }
    }

    /// Octets of both bodies.
    pub(super) fn bytes(&self) -> usize {
        octets(self.request_body.as_ref()) + octets(self.response_body.as_ref())
    }

    /// The same, as the tables count them.
    pub(super) fn kept_bytes(&self) -> i64 {
        i64::try_from(self.bytes()).unwrap_or(i64::MAX)
    }

    /// PostgreSQL keeps every text but one with a NUL, and that one would take a whole batch with it.
    pub(super) fn check(&self) -> Result<(), Rejection> {
        let texts = [
            &self.method,
            &self.request_body,
            &self.response_body,
            &self.context_id,
            &self.continues,
        ];
        let mut texts = texts.into_iter().flatten().chain([&self.owner]);
        if texts.any(|text| text.contains('\0')) {
            let message = "a NUL character cannot be kept; leave it out";
            return Err(Rejection::new(Reason::InvalidParams, message));
        }
        Ok(())
    }
}

/// Whether anything can have that name: PostgreSQL takes no NUL, and asked for one it fails.
pub(super) fn may_be(name: &str) -> bool {
    !name.contains('\0')
}

pub(super) fn octets(text: Option<&String>) -> usize {
    text.map_or(0, String::len)
}

/// What became of it: it is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Its name; that of its task, too, if it begins one.
    pub id: String,
    /// Its number in the inbox.
    pub seq: i64,
    /// The task that it begins or continues.
    pub task_id: Option<String>,
    /// The conversation of that task.
    pub context_id: Option<String>,
    /// When it was put there.
    pub created_at: Timestamp,
}

/// An entry, as it reads (contract §6.1).
#[derive(Clone, Debug, Serialize)]
pub struct Item {
    /// Its name.
    pub id: String,
    /// Its number in the inbox, without gaps, in the order of commits.
    pub seq: i64,
    /// What it is.
    pub activity_type: String,
    /// The workspace it comes from.
    pub source_id: Option<String>,
    /// The workspace it was for.
    pub target_id: Option<String>,
    /// The JSON-RPC method.
    pub method: Option<String>,
    /// What was asked: as JSON if it is.
    pub request_body: Option<Box<RawValue>>,
    /// The last answer: as JSON if it is.
    pub response_body: Option<Box<RawValue>>,
    /// How far its task has come; `ok` where there is none.
    pub status: String,
    /// The task that it begins or continues.
    pub task_id: Option<String>,
    /// Gateways that the call has gone through: `X-A2A-Hops` of calls that the agent makes in answer.
    pub hops: Option<i64>,
    /// When it was put there.
    pub created_at: Timestamp,
}
