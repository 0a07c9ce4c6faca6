//! The effect of an [`Update`] on its task: the state after it, and the names and times that the task's owner adds.

use serde_json::{Map, Value, json};

use super::agent_reply::{InvalidReply, Update};
use super::state::TaskState;

/// The task that an update belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its id.
    pub task: &'a str,
    /// The id of its context.
    pub context: &'a str,
}

impl Update {
    /// A status update to `state` without a message.
    pub fn from_state(state: TaskState) -> Self {
        Self::StatusUpdate(json!({"status": {"state": state.as_str()}}))
    }

    /// Levels of arrays and objects that it nests.
    pub fn nesting_depth(&self) -> usize {
        let (Self::Message(said)
        | Self::Task(said)
        | Self::StatusUpdate(said)
        | Self::ArtifactUpdate(said)
        | Self::Error(said)) = self;
        nesting_depth_of(said)
    }

    /// The state of the task afterwards; `None`: unchanged.
    ///
    /// # Errors
    /// [`InvalidReply`] when a required member is missing.
    pub fn state_after(&self) -> Result<Option<TaskState>, InvalidReply> {
        match self {
            Self::Message(Value::Object(_)) => Ok(Some(TaskState::Completed)),
            Self::Error(Value::Object(_)) => Ok(Some(TaskState::Failed)),
            Self::Task(of) | Self::StatusUpdate(of) => {
                let word = of["status"]["state"].as_str();
                let state = word.and_then(TaskState::parse);
                state.map(Some).ok_or(InvalidReply(
                    "`status.state` is the state of a task, such as `working` or `completed`",
                ))
            }
            Self::ArtifactUpdate(event) => {
                let artifact = &event["artifact"];
                let whole = artifact["artifactId"].is_string() && artifact["parts"].is_array();
                let problem = InvalidReply("`artifact` is an object with `artifactId` and `parts`");
                whole.then_some(None).ok_or(problem)
            }
            Self::Message(_) | Self::Error(_) => {
                Err(InvalidReply("a message or an error is an object"))
            }
        }
    }

    /// True if the agent's turn is over afterwards: the task ended, or waits for its caller.
    pub fn ends_turn(&self) -> bool {
        let state = self.state_after().ok().flatten();
        state.is_some_and(TaskState::ends_turn)
    }

    /// The same with the ids of `subject`, and the RFC 3339 time `at` where it has none.
    #[must_use]
    pub fn with_subject(mut self, subject: &Subject<'_>, at: &str) -> Self {
        let state = self.state_after().ok().flatten();
        match &mut self {
            Self::Message(Value::Object(message)) => {
                message.insert("kind".into(), "message".into());
                message.entry("role").or_insert_with(|| "agent".into());
                let id = || uuid::Uuid::new_v4().to_string().into();
                message.entry("messageId").or_insert_with(id);
                put_ids(message, "taskId", subject);
            }
            Self::Task(Value::Object(task)) => {
                task.insert("kind".into(), "task".into());
                put_ids(task, "id", subject);
                put_time(task, at);
            }
            Self::StatusUpdate(Value::Object(event)) => {
                event.insert("kind".into(), "status-update".into());
                put_ids(event, "taskId", subject);
                put_time(event, at);
                let last = state.is_some_and(TaskState::ends_turn)
                    || event.get("final") == Some(&true.into());
                event.insert("final".into(), last.into());
            }
            Self::ArtifactUpdate(Value::Object(event)) => {
                event.insert("kind".into(), "artifact-update".into());
                put_ids(event, "taskId", subject);
            }
            _ => {}
        }
        self
    }
}

fn nesting_depth_of(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(nesting_depth_of).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(nesting_depth_of).max().unwrap_or(0),
        _ => 0,
    }
}

fn put_ids(object: &mut Map<String, Value>, task: &str, subject: &Subject<'_>) {
    object.insert(task.into(), subject.task.into());
    object.insert("contextId".into(), subject.context.into());
}

/// Adds `at` to a status without a time.
fn put_time(object: &mut Map<String, Value>, at: &str) {
    if let Some(Value::Object(status)) = object.get_mut("status") {
        status.entry("timestamp").or_insert_with(|| at.into());
    }
}
