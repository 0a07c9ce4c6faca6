//! JSON-RPC responses in place of a polling agent, in the caller's generation.

use std::fmt::Display;

use serde_json::{Value, json};

use a2a::Generation;
use a2a::agent_reply::Update;
use a2a::bridge::{Failure, write_result, write_task};
use a2a::state::TaskState;
use mailbox::inbox::{Activity, InboxTask, TaskUpdate};

/// Form of the responses to a caller.
#[derive(Clone)]
pub(super) struct ResponseForm {
    /// Id of its call, as spelled in the request.
    pub(super) id: String,
    /// Generation of the caller.
    pub(super) generation: Generation,
}

/// Parts of a task to include.
pub(super) struct TaskParts {
    /// Maximum messages of its history, the latest; `None`: all.
    pub(super) history: Option<u32>,
    /// True to include its artifacts.
    pub(super) artifacts: bool,
}

impl ResponseForm {
    /// Returns the response with a result, or with the reason that it has no translation.
    fn translated_response(&self, result: Result<String, Failure>) -> String {
        match result {
            Ok(result) => self.result_response(&result),
            Err(failure) => self
                .error_response(&json!({"code": failure.code(), "message": failure.to_string()})),
        }
    }

    /// Returns the response with a result.
    pub(super) fn result_response(&self, result: &impl Display) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.id)
    }

    /// Returns the response with an error.
    pub(super) fn error_response(&self, error: &Value) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, self.id)
    }

    /// Returns the error for a terminal task, which cannot be canceled (A2A: TaskNotCancelableError).
    pub(super) fn not_cancelable(&self, state: TaskState) -> String {
        let message = format!("the task is {} and cannot be canceled", state.as_str());
        self.error_response(&json!({"code": -32002, "message": message}))
    }

    /// Returns the response with a requested task.
    pub(super) fn task_response(&self, task: Value, what: &TaskParts) -> String {
        self.translated_response(write_task(self.generation, &trim_task(task, what)))
    }

    /// Returns the response with the task of a sent message.
    pub(super) fn message_response(&self, task: &Value) -> String {
        self.translated_response(write_result(self.generation, task))
    }

    /// Returns the response for a queued message: beside the result for platform clients, inside it for SDKs.
    pub(super) fn queued_response(
        &self,
        method: &str,
        task: &InboxTask,
        activity: &Activity,
    ) -> String {
        let document = task.document_at(activity.created_at);
        // Of the gateway's own making, so it has a translation.
        let result = write_result(self.generation, &document).unwrap_or_default();
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{result},"status":"queued","delivery_mode":"poll","method":{},"activity_id":{}}}"#,
            self.id,
            json!(method),
            json!(activity.id),
        )
    }

    /// Returns the agent's final answer, or `None` for an update of the task, which then has it.
    pub(super) fn final_response(&self, update: &Update) -> Option<String> {
        match update {
            Update::Message(message) => {
                Some(self.translated_response(write_result(self.generation, message)))
            }
            Update::Error(error) => Some(self.error_response(error)),
            Update::Task(_) | Update::StatusUpdate(_) | Update::ArtifactUpdate(_) => None,
        }
    }

    /// Returns one event of a stream.
    pub(super) fn stream_event(&self, result: &Value) -> String {
        format!(
            "data: {}\n\n",
            self.translated_response(write_result(self.generation, result))
        )
    }

    /// Returns the event of an update.
    pub(super) fn update_event(&self, task: &str, context: &str, update: &TaskUpdate) -> String {
        let event = match &update.update {
            Update::Error(error) => return format!("data: {}\n\n", self.error_response(error)),
            // After the task a client expects updates of it, and no message (A2A 0.3, 7.2).
            Update::Message(message) => {
                json!({"kind": "status-update", "taskId": task, "contextId": context,
                "status": {"state": "completed", "message": message, "timestamp": update.at}, "final": true})
            }
            Update::Task(said) | Update::StatusUpdate(said) | Update::ArtifactUpdate(said) => {
                return self.stream_event(said);
            }
        };
        self.stream_event(&event)
    }
}

/// Removes the parts that are not requested from a task.
pub(super) fn trim_task(mut task: Value, what: &TaskParts) -> Value {
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
