//! The entries of an inbox: type, source, bodies, and the state of their task.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::mailbox::octets;
use a2a::state::TaskState;
use access::identity::{WITHHELD_CONTENT, WithheldContent};
use kernel::closed_set::words;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::shares::Account;
use kernel::time::Timestamp;

words! {
    /// The type of an entry.
    ActivityType {
        /// A message for the workspace. The first of a conversation begins a task.
        A2aReceive => "a2a_receive",
        /// A notice of the workspace to its user.
        Notify => "notify",
        /// The result of a delegation of the workspace.
        DelegateResult => "delegate_result",
    }
}

words! {
    /// The kind of a source.
    SourceKind {
        /// Another workspace, or the workspace itself.
        Agent => "agent",
        /// A user, an operator or an integration.
        Canvas => "canvas",
    }
}

/// The status of an entry without a task.
pub(super) const STATUS_OK: &str = "ok";

/// The source of an entry, as far as readers may know it.
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

/// An entry to be put into an inbox.
#[derive(Clone, Debug)]
pub struct NewActivity {
    /// The workspace that owns the inbox.
    pub workspace: WorkspaceId,
    /// The type. A message begins a task, unless it continues one.
    pub kind: ActivityType,
    /// The source.
    pub source: Source,
    /// The workspace it was meant for, if any.
    pub target: Option<WorkspaceId>,
    /// The JSON-RPC method.
    pub method: Option<String>,
    /// The request, as it arrived.
    pub request_body: Option<String>,
    /// The response, as it arrived.
    pub response_body: Option<String>,
    /// The conversation of a new task; `None`: a new one. A continued task keeps its own.
    pub context_id: Option<String>,
    /// [`Proof::owner`](access::identity::Proof::owner) of the sender: the owner of a new task.
    pub owner: String,
    /// Account of the sender: the entry takes a share of the inbox. The default, of what the workspace itself and the
    /// gateway put there: it takes no share.
    pub account: Account,
    /// The task that it continues.
    pub continues: Option<String>,
    /// The state that it gives to the task that it continues: `submitted` again, or `canceled`.
    pub continues_as: TaskState,
    /// Gateways that the call has gone through, this one included. `None`: it is no call.
    pub hops: Option<u32>,
    /// The chain of the call: a [`Chain`](access::identity::Chain) as JSON.
    pub chain: Option<String>,
    /// Its name, a UUID that nothing else has, where it must not be put there twice; `None`: a new one.
    pub id: Option<String>,
}

impl NewActivity {
    /// Returns an entry without content from `owner`.
    pub(crate) fn new(
        workspace: &WorkspaceId,
        kind: ActivityType,
        source: Source,
        owner: String,
    ) -> Self {
        Self {
            workspace: workspace.clone(),
            kind,
            source,
            target: None,
            method: None,
            request_body: None,
            response_body: None,
            context_id: None,
            owner,
            account: Account::default(),
            continues: None,
            continues_as: TaskState::Submitted,
            hops: None,
            chain: None,
            id: None,
        }
    }

    /// Returns a message of `owner` to `workspace`.
    pub fn message(
        workspace: &WorkspaceId,
        source: Source,
        owner: String,
        method: &str,
        body: String,
    ) -> Self {
        Self {
            target: Some(workspace.clone()),
            method: Some(method.to_owned()),
            request_body: Some(body),
            ..Self::new(workspace, ActivityType::A2aReceive, source, owner)
        }
    }

    /// Returns the octets of both bodies.
    pub(super) fn bytes(&self) -> i64 {
        let bodies = [&self.request_body, &self.response_body];
        bodies.into_iter().flatten().map(|body| octets(body)).sum()
    }

    /// Rejects texts with a NUL. PostgreSQL does not store them, and one would fail its whole batch.
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

/// True if `name` can exist: PostgreSQL rejects queries with a NUL.
pub(super) fn is_storable(name: &str) -> bool {
    !name.contains('\0')
}

/// An entry that was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Its id, which is also that of the task that it begins.
    pub id: String,
    /// Its number in the inbox.
    pub seq: i64,
    /// The task that it begins or continues.
    pub task_id: Option<String>,
    /// The conversation of that task.
    pub context_id: Option<String>,
    /// Time at which it was put.
    pub created_at: Timestamp,
}

/// An entry in the API's form (`docs/reference/http-api.md`, "Inboxes").
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Activity)]
pub struct Item {
    /// Its id.
    pub id: String,
    /// Its number in the inbox: without gaps, in the order of commits.
    #[schema(minimum = 1)]
    pub seq: i64,
    /// Its type.
    #[schema(value_type = ActivityType)]
    pub activity_type: String,
    /// The workspace it comes from; null for all other callers.
    pub source_id: Option<String>,
    /// The workspace it was meant for.
    pub target_id: Option<String>,
    /// The JSON-RPC method.
    #[schema(example = "message/send")]
    pub method: Option<String>,
    /// As it came; a call is translated where the registered card names only the other generation of A2A.
    #[schema(value_type = Value)]
    pub request_body: Option<Box<RawValue>>,
    /// The last answer as it came; null before there is one.
    #[schema(value_type = Value)]
    pub response_body: Option<Box<RawValue>>,
    /// The state of the task; `ok` for an entry without a task.
    #[schema(
        pattern = "^(submitted|working|input-required|auth-required|completed|failed|canceled|rejected|ok)$"
    )]
    pub status: String,
    /// The task: its own id, or that of the entry which it continues.
    pub task_id: Option<String>,
    /// Gateways that the call has gone through: `X-A2A-Hops` of calls made in answer. Null where there was no call.
    #[schema(minimum = 1)]
    pub hops: Option<i64>,
    /// The chain token of the call, for the workspace itself: hand it in with the calls made in answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_behalf_of: Option<String>,
    /// Why there is none: the chain has ended or was revoked. Such a call is not to be carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, pattern = "^chain_(expired|revoked|invalid)$")]
    pub on_behalf_of_refused: Option<&'static str>,
    /// The chain as it is stored.
    #[serde(skip)]
    pub chain: Option<String>,
    /// Time at which it was put there.
    pub created_at: Timestamp,
    /// Present if the bodies are kept from the reader.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<WithheldContent>,
}

impl Item {
    /// Takes the content out.
    pub fn withhold_content(&mut self) {
        (self.request_body, self.response_body) = (None, None);
        self.withheld = Some(WITHHELD_CONTENT);
    }
}
