//! What the gateway says for an agent that polls, as JSON-RPC in the caller's words.

use std::fmt::Display;

use serde_json::{Value, json};

use crate::a2a::Generation;
use crate::a2a::dialect::{Update, bare, shown};
use crate::a2a::state::TaskState;
use crate::delivery::inbox::{Activity, InboxTask, TaskUpdate};

/// How a caller is answered.
#[derive(Clone)]
pub(super) struct Words {
    /// The id of its call, as it spelled it.
    pub(super) id: String,
    /// What it speaks.
    pub(super) generation: Generation,
}

/// What of a task is shown.
pub(super) struct Shown {
    /// So many messages of its history, the latest; `None`: all.
    pub(super) history: Option<u32>,
    /// Its results, too.
    pub(super) artifacts: bool,
}

impl Words {
    /// A result, as it is.
    pub(super) fn result(&self, result: &impl Display) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.id)
    }

    /// An error, as it is.
    pub(super) fn error(&self, error: &Value) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, self.id)
    }

    /// That a task is over and cannot be canceled (A2A: TaskNotCancelableError).
    pub(super) fn over(&self, state: TaskState) -> String {
        let message = format!("the task is {} and cannot be canceled", state.as_str());
        self.error(&json!({"code": -32002, "message": message}))
    }

    /// The task of whoever asks for one.
    pub(super) fn task(&self, task: Value, what: &Shown) -> String {
        self.result(&bare(&cut(task, what), self.generation))
    }

    /// The task that became of what was sent.
    pub(super) fn sent(&self, task: &Value) -> String {
        self.result(&shown(task, self.generation))
    }

    /// What was sent is in the inbox: for platform clients beside the result, for SDKs in it.
    pub(super) fn queued(&self, method: &str, task: &InboxTask, activity: &Activity) -> String {
        let result = shown(&task.submitted(activity.created_at), self.generation);
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{result},"status":"queued","delivery_mode":"poll","method":{},"activity_id":{}}}"#,
            self.id,
            json!(method),
            json!(activity.id),
        )
    }

    /// What the agent answered in the end, or `None` while it only told how far it is: the task says it then.
    pub(super) fn last(&self, update: &Update) -> Option<String> {
        match update {
            Update::Message(message) => Some(self.result(&shown(message, self.generation))),
            Update::Error(error) => Some(self.error(error)),
            Update::Task(_) | Update::StatusUpdate(_) | Update::ArtifactUpdate(_) => None,
        }
    }

    /// One event of a stream.
    pub(super) fn event(&self, result: &Value) -> String {
        format!("data: {}\n\n", self.result(&shown(result, self.generation)))
    }

    /// The event that says an update.
    pub(super) fn update(&self, task: &str, context: &str, update: &TaskUpdate) -> String {
        let event = match &update.update {
            Update::Error(error) => return format!("data: {}\n\n", self.error(error)),
            // Behind the task a client expects its updates, and no message (A2A 0.3, 7.2).
            Update::Message(message) => {
                json!({"kind": "status-update", "taskId": task, "contextId": context,
                "status": {"state": "completed", "message": message, "timestamp": update.at}, "final": true})
            }
            Update::Task(said) | Update::StatusUpdate(said) | Update::ArtifactUpdate(said) => {
                return self.event(said);
            }
        };
        self.event(&event)
    }
}

/// A task without what is not wanted.
pub(super) fn cut(mut task: Value, what: &Shown) -> Value {
    let Some(members) = task.as_object_mut() else {
        return task;
    };
    if !what.artifacts {
        members.remove("artifacts");
    }
    if let (Some(length), Some(Value::Array(history))) = (what.history, members.get_mut("history"))
    {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let passed = history.len().saturating_sub(length);
        history.drain(..passed);
        if history.is_empty() {
            members.remove("history");
        }
    }
    task
}
