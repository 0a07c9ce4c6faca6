//! Processing of calls: `[a2a]`.

use std::time::Duration;

use a2a::CompletionMode;
use serde::Deserialize;

use super::value::{self, duration};
use crate::closed_set::words;
use crate::ids::WorkspaceId;

sections! {
    /// `[a2a]`: processing of calls.
    A2a {
        /// The parts of an incomplete call that the gateway adds.
        complete: CompletionMode,
        /// Translation of calls that the target does not speak; a workspace can override it.
        bridge: Bridging,
        /// The workspace with its card at `/.well-known/agent-card.json`.
        #[serde(default, deserialize_with = "value::workspace_id")]
        default_workspace: Option<WorkspaceId>,
        /// The HTTP status of refusals of JSON-RPC calls.
        refusal_status: RefusalStatus,
        /// True if callers may request push notifications; a workspace can override it.
        push_notifications: bool,
        /// Retention of a task's owner after the owner's last use of the task.
        task_ttl: Duration as "duration",
        /// Maximum tasks of one caller with a stored owner.
        tasks_per_caller: i64,
    }
}

words! {
    /// `a2a.refusal_status`: the HTTP status of refusals of JSON-RPC calls.
    RefusalStatus {
        /// That of the reason.
        Http => "http",
        /// 200, as agents answer: the Python SDKs read no body of any other.
        Ok => "200",
    }

    /// `a2a.bridge`, also per workspace: translation of calls in a generation or binding that the target does not speak.
    Bridging {
        /// They are translated, with their answers.
        Auto => "auto",
        /// They are rejected.
        Off => "off",
    }
}
