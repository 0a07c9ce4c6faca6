//! Reads what an agent that polls replies: in A2A 0.3, in 1.0, or in the looser forms that are written by hand (no
//! envelope, no ids, `content` for `parts`). It is stored in the form of 0.3, and [`crate::bridge::write_result`]
//! returns it in its caller's.
//!
//! Members that neither version defines are kept.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::state::TaskState;

/// An update of a task by its agent, in the form of 0.3: each but the error has its `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Update {
    /// The agent's answer: the task is completed.
    Message(Value),
    /// The current task, which replaces the stored one.
    Task(Value),
    /// A new status.
    StatusUpdate(Value),
    /// A piece of the result.
    ArtifactUpdate(Value),
    /// A JSON-RPC error: the task has failed.
    Error(Value),
}

/// The reply of an agent cannot be parsed; the text describes the valid forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidReply(pub(super) &'static str);

const FORMS: InvalidReply = InvalidReply(
    "a reply is one JSON object: a JSON-RPC response, whose `result` is a message or a task, or with an \
     `error`; or a status update, {\"status\": {\"state\": …}}; or an artifact update, {\"artifact\": {…}}",
);
const NO_STATE: InvalidReply = InvalidReply(
    "`status.state` is one of submitted, working, input-required, auth-required, completed, canceled, failed, \
     rejected, or its name in A2A 1.0",
);
const NO_PARTS: InvalidReply =
    InvalidReply("a message, and an artifact, has `parts`: an array of objects, at least one");
const NO_ERROR: InvalidReply =
    InvalidReply("an `error` has a `code`, a whole number, and a `message`, a string");

impl Update {
    /// Parses a reply in the form of either version. `fresh` generates the id of a message without
    /// one.
    ///
    /// # Errors
    /// [`InvalidReply`].
    pub fn parse(body: &Value, fresh: impl FnOnce() -> String) -> Result<Self, InvalidReply> {
        let body = body.as_object().ok_or(FORMS)?;
        if let Some(error) = body.get("error").filter(|error| !error.is_null()) {
            if !(error["code"].is_i64() && error["message"].is_string()) {
                return Err(NO_ERROR);
            }
            return Ok(Self::Error(error.clone()));
        }
        let said = match body.get("result") {
            Some(result) => result.as_object().ok_or(FORMS)?,
            None => body,
        };
        let (kind, said) = detect_kind(said).ok_or(FORMS)?;
        let mut said = said.clone();
        said.insert("kind".into(), kind.into());
        let update: fn(Value) -> Self = match kind {
            "message" => {
                normalize_message(&mut said, fresh)?;
                Self::Message
            }
            "task" => {
                normalize_task(&mut said, fresh)?;
                Self::Task
            }
            "status-update" => {
                let state = normalize_status(&mut said, fresh)?;
                said.insert("final".into(), state.ends_turn().into());
                Self::StatusUpdate
            }
            _ => {
                normalize_artifact(&mut said, fresh)?;
                Self::ArtifactUpdate
            }
        };
        Ok(update(said.into()))
    }
}

/// The kinds, with the name around each in 1.0.
const KINDS: [(&str, &str); 4] = [
    ("task", "task"),
    ("message", "message"),
    ("status-update", "statusUpdate"),
    ("artifact-update", "artifactUpdate"),
];

/// Detects the kind by `kind`, by the name around it (1.0), or by its members.
fn detect_kind(said: &Map<String, Value>) -> Option<(&'static str, &Map<String, Value>)> {
    if let Some(kind) = said.get("kind") {
        let (kind, _) = KINDS.into_iter().find(|(known, _)| kind == known)?;
        return Some((kind, said));
    }
    for (kind, name) in KINDS {
        if let (1, Some(inner)) = (said.len(), said.get(name)) {
            return Some((kind, inner.as_object()?));
        }
    }
    let has = |name: &str| said.contains_key(name);
    let kind = if has("status") {
        let whole = has("id") || has("artifacts") || has("history");
        if whole { "task" } else { "status-update" }
    } else if has("artifact") {
        "artifact-update"
    } else if has("parts") || has("content") {
        "message"
    } else {
        return None;
    };
    Some((kind, said))
}

type Members = Map<String, Value>;

fn normalize_message(
    message: &mut Members,
    fresh: impl FnOnce() -> String,
) -> Result<(), InvalidReply> {
    message.insert("kind".into(), "message".into());
    let from_user =
        matches!(message.get("role"), Some(role) if role == "user" || role == "ROLE_USER");
    let role = if from_user { "user" } else { "agent" };
    message.insert("role".into(), role.into());
    fill_id(message, "messageId", "message_id", fresh);
    normalize_parts(message)
}

/// Sets the id of a message or an artifact, unless it has one.
fn fill_id(holder: &mut Members, name: &str, snake: &str, fresh: impl FnOnce() -> String) {
    let snake = holder.remove(snake).filter(Value::is_string);
    if !holder.get(name).is_some_and(Value::is_string) {
        holder.insert(name.into(), snake.unwrap_or_else(|| fresh().into()));
    }
}

/// Normalizes `parts`, which the HTTP+JSON binding of 0.3 calls `content`.
fn normalize_parts(holder: &mut Members) -> Result<(), InvalidReply> {
    if !holder.contains_key("parts")
        && let Some(content) = holder.remove("content")
    {
        holder.insert("parts".into(), content);
    }
    let parts = holder.get_mut("parts").and_then(Value::as_array_mut);
    let parts = parts.filter(|parts| !parts.is_empty()).ok_or(NO_PARTS)?;
    for part in parts {
        to_v0_part(part.as_object_mut().ok_or(NO_PARTS)?);
    }
    Ok(())
}

fn normalize_task(task: &mut Members, fresh: impl FnOnce() -> String) -> Result<(), InvalidReply> {
    normalize_status(task, fresh)?;
    if let Some(artifacts) = task.get_mut("artifacts") {
        for one in artifacts.as_array_mut().ok_or(FORMS)? {
            normalize_parts(one.as_object_mut().ok_or(FORMS)?)?;
        }
    }
    if let Some(history) = task.get_mut("history") {
        for one in history.as_array_mut().ok_or(FORMS)? {
            // Messages of the history need no new ids.
            normalize_message(one.as_object_mut().ok_or(FORMS)?, String::new)?;
        }
    }
    Ok(())
}

fn normalize_status(
    holder: &mut Members,
    fresh: impl FnOnce() -> String,
) -> Result<TaskState, InvalidReply> {
    let status = holder.get_mut("status").and_then(Value::as_object_mut);
    let status = status.ok_or(NO_STATE)?;
    let state = status.get("state").and_then(Value::as_str);
    let state = state.and_then(TaskState::parse).ok_or(NO_STATE)?;
    status.insert("state".into(), state.as_str().into());
    match status.get_mut("message") {
        Some(Value::Null) => drop(status.remove("message")),
        Some(said) => normalize_message(said.as_object_mut().ok_or(FORMS)?, fresh)?,
        None => {}
    }
    Ok(state)
}

fn normalize_artifact(
    update: &mut Members,
    fresh: impl FnOnce() -> String,
) -> Result<(), InvalidReply> {
    let artifact = update.get_mut("artifact").and_then(Value::as_object_mut);
    let artifact = artifact.ok_or(FORMS)?;
    normalize_parts(artifact)?;
    fill_id(artifact, "artifactId", "artifact_id", fresh);
    Ok(())
}

/// Converts a part to the form of 0.3; a part that has none stays as it is.
fn to_v0_part(part: &mut Members) {
    if part.contains_key("kind") {
        return;
    }
    if let Some(kind) = part.remove("type") {
        part.insert("kind".into(), kind);
        return;
    }
    let kind = if part.contains_key("text") {
        "text"
    } else if part.contains_key("url") || part.contains_key("raw") {
        let content = match part.contains_key("url") {
            true => ("url", "uri"),
            false => ("raw", "bytes"),
        };
        let names = [content, ("mediaType", "mimeType"), ("filename", "name")];
        let members = names.into_iter();
        let members = members.filter_map(|(from, to)| Some((to.to_owned(), part.remove(from)?)));
        let file: Members = members.collect();
        part.insert("file".into(), file.into());
        "file"
    } else if let Some(file) = part.get_mut("file").and_then(Value::as_object_mut) {
        for (from, to) in [("fileWithUri", "uri"), ("fileWithBytes", "bytes")] {
            if let Some(value) = file.remove(from) {
                file.insert(to.into(), value);
            }
        }
        "file"
    } else if let Some(data) = part.get_mut("data") {
        // An object in 0.3, any JSON in 1.0.
        if !data.is_object() {
            *data = json!({"value": data});
        }
        "data"
    } else {
        return;
    };
    part.insert("kind".into(), kind.into());
}

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
        let (kind, id, said) = match &mut self {
            Self::Message(said) => ("message", "taskId", said),
            Self::Task(said) => ("task", "id", said),
            Self::StatusUpdate(said) => ("status-update", "taskId", said),
            Self::ArtifactUpdate(said) => ("artifact-update", "taskId", said),
            Self::Error(_) => return self,
        };
        let Some(members) = said.as_object_mut() else {
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
}

fn nesting_depth_of(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(nesting_depth_of).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(nesting_depth_of).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Update, InvalidReply> {
        Update::parse(&body, || "new".into())
    }

    #[test]
    fn a_reply_is_read_in_the_words_of_both_versions() {
        let message = json!({"kind": "message", "role": "agent", "messageId": "m",
            "parts": [{"kind": "text", "text": "hi"}]});
        for body in [
            json!({"jsonrpc": "2.0", "id": 1, "result": message}),
            json!({"result": {"role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": "hi"}]}}),
            json!({"result": {"message": {"role": "ROLE_AGENT", "messageId": "m", "parts": [{"text": "hi"}]}}}),
            json!({"result": {"message_id": "m", "content": [{"type": "text", "text": "hi"}]}}),
        ] {
            assert_eq!(
                read(body.clone()),
                Ok(Update::Message(message.clone())),
                "{body}"
            );
        }
        let update =
            json!({"kind": "status-update", "status": {"state": "working"}, "final": false});
        for body in [
            json!({"status": {"state": "working"}}),
            json!({"kind": "status-update", "status": {"state": "TASK_STATE_WORKING"}, "final": true}),
            json!({"result": {"statusUpdate": {"status": {"state": "TASK_STATE_WORKING", "message": null}}}}),
        ] {
            assert_eq!(
                read(body.clone()),
                Ok(Update::StatusUpdate(update.clone())),
                "{body}"
            );
        }
        let task = json!({"kind": "task", "id": "t", "status": {"state": "completed"},
            "artifacts": [{"artifactId": "a", "parts": [{"kind": "file", "file": {"uri": "u", "mimeType": "t"}}]}]});
        for body in [
            json!({"result": task}),
            json!({"result": {"task": {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"},
                "artifacts": [{"artifactId": "a", "parts": [{"url": "u", "mediaType": "t"}]}]}}}),
        ] {
            assert_eq!(read(body.clone()), Ok(Update::Task(task.clone())), "{body}");
        }
        let error = json!({"code": -32000, "message": "no"});
        assert_eq!(
            read(json!({"error": error, "id": null})),
            Ok(Update::Error(error))
        );
        let artifact = json!({"kind": "artifact-update", "artifact": {"artifactId": "new",
            "parts": [{"kind": "data", "data": {"value": 1}}]}});
        let said = read(json!({"artifact": {"parts": [{"data": 1}]}}));
        assert_eq!(said, Ok(Update::ArtifactUpdate(artifact)));
    }

    #[test]
    fn what_says_nothing_is_refused_with_what_would() {
        for (body, expected) in [
            (json!([]), FORMS),
            (json!({}), FORMS),
            (json!({"result": "done"}), FORMS),
            (json!({"result": {"kind": "answer"}}), FORMS),
            (json!({"result": {"message": "hi"}}), FORMS),
            (json!({"error": "no"}), NO_ERROR),
            (json!({"error": {"code": "1", "message": "no"}}), NO_ERROR),
            (json!({"status": {"state": "done"}}), NO_STATE),
            (json!({"status": "working"}), NO_STATE),
            (json!({"result": {"parts": []}}), NO_PARTS),
            (json!({"result": {"kind": "message"}}), NO_PARTS),
            (json!({"artifact": {"parts": ["x"]}}), NO_PARTS),
        ] {
            assert_eq!(read(body.clone()), Err(expected), "{body}");
        }
    }
}
