//! The effect of an [`Update`] on its task: the state after it, and the names and times that the task's owner adds.

use serde_json::{Value, json};

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
        let (kind, id) = match &self {
            Self::Message(_) => ("message", "taskId"),
            Self::Task(_) => ("task", "id"),
            Self::StatusUpdate(_) => ("status-update", "taskId"),
            Self::ArtifactUpdate(_) => ("artifact-update", "taskId"),
            Self::Error(_) => return self,
        };
        let Some(members) = self.said_mut().as_object_mut() else {
            return self;
        };
        members.insert("kind".into(), kind.into());
        members.insert(id.into(), subject.task.into());
        members.insert("contextId".into(), subject.context.into());
        match kind {
            "message" => {
                members.entry("role").or_insert_with(|| "agent".into());
                let id = || uuid::Uuid::new_v4().to_string().into();
                members.entry("messageId").or_insert_with(id);
            }
            "status-update" => {
                let last = state.is_some_and(TaskState::ends_turn)
                    || members.get("final") == Some(&true.into());
                members.insert("final".into(), last.into());
            }
            _ => {}
        }
        if matches!(kind, "task" | "status-update")
            && let Some(Value::Object(status)) = members.get_mut("status")
        {
            status.entry("timestamp").or_insert_with(|| at.into());
        }
        self
    }

    fn said_mut(&mut self) -> &mut Value {
        let (Self::Message(said)
        | Self::Task(said)
        | Self::StatusUpdate(said)
        | Self::ArtifactUpdate(said)
        | Self::Error(said)) = self;
        said
    }
}

fn nesting_depth_of(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(nesting_depth_of).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(nesting_depth_of).max().unwrap_or(0),
        _ => 0,
    }
}
