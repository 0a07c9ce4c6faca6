//! A deferred call as an A2A task, in the vocabulary of 0.3 (`docs/reference/a2a.md`).

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::job::{Job, State, to_rpc_error, unreadable_answer};
use crate::inbox::task_changed_event;
use a2a::agent_reply::Update;
use a2a::state::TaskState;
use access::workspace::Timestamp;
use directory::events::Event;

/// Returns the task of a job. It contains the agent's answer: the id of the agent's own task is
/// `metadata.agent_task_id`.
pub fn from_job(job: &Job) -> Value {
    let mut shown = build_task(&job.id, to_task_state(job.state), job.updated_at);
    let read = |answer: &RawValue| {
        let read = serde_json::from_str::<Value>(answer.get());
        read.map_err(|why| to_rpc_error(&unreadable_answer(&why)))
    };
    let mut failed = job
        .error()
        .map(|error| read(error).unwrap_or_else(|why| why));
    if let Some(result) = job.result() {
        let answer = match read(result) {
            Ok(result) => json!({"result": result}),
            Err(why) => {
                shown = build_task(&job.id, TaskState::Failed, job.updated_at);
                failed = Some(why);
                Value::Null
            }
        };
        match Update::parse(&answer, || job.id.clone()) {
            Ok(Update::Task(theirs)) => return with_theirs(shown, theirs),
            Ok(Update::Message(message)) => {
                if message["contextId"].is_string() {
                    shown["contextId"] = message["contextId"].clone();
                }
                shown["status"]["message"] = message;
            }
            // Tolerant, as everywhere with answers: an answer that A2A has no form for is included as it
            // came.
            Ok(Update::StatusUpdate(_) | Update::ArtifactUpdate(_) | Update::Error(_)) | Err(_) => {
                shown["metadata"] = answer;
            }
        }
    }
    if let Some(error) = failed {
        let text = error["message"].as_str().unwrap_or_default();
        shown["status"]["message"] = json!({
            "kind": "message",
            "role": "agent",
            "messageId": format!("{}-error", job.id),
            "parts": [{"kind": "text", "text": text}],
        });
        shown["metadata"] = json!({"error": error});
    }
    shown
}

/// Returns the agent's task under the job's id: everything but the id is the agent's.
fn with_theirs(ours: Value, mut theirs: Value) -> Value {
    let id = std::mem::replace(&mut theirs["id"], ours["id"].clone());
    if !theirs["metadata"].is_object() {
        theirs["metadata"] = json!({});
    }
    theirs["metadata"]["agent_task_id"] = id;
    if !theirs["contextId"].is_string() {
        theirs["contextId"] = ours["contextId"].clone();
    }
    theirs
}

/// Returns a task in `state`, without an answer.
pub fn build_task(id: &str, state: TaskState, at: Timestamp) -> Value {
    json!({
        "kind": "task",
        "id": id,
        "contextId": id,
        "status": {"state": state.as_str(), "timestamp": at},
    })
}

fn to_task_state(state: State) -> TaskState {
    match state {
        State::Pending => TaskState::Submitted,
        State::Dispatched => TaskState::Working,
        State::Completed => TaskState::Completed,
        State::Failed | State::Expired => TaskState::Failed,
        State::Canceled => TaskState::Canceled,
    }
}

/// Returns the event for a deferred call that is in `state` now: the state that its task shows, which may be the
/// agent's.
pub(super) fn changed_event(job: &Job, state: State) -> Event {
    let shown = match state {
        State::Completed => from_job(job)["status"]["state"].take(),
        other => to_task_state(other).as_str().into(),
    };
    task_changed_event(&job.target, &job.id, shown)
}

/// Returns the reason of an error for the event: the gateway's own, or `agent_error`.
pub(super) fn error_reason(error: &str) -> String {
    let error: Value = serde_json::from_str(error).unwrap_or_default();
    let reason = error["reason"].as_str();
    reason.unwrap_or("agent_error").to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::jobs::{Content, Kind as JobKind};
    use kernel::ids::WorkspaceId;

    #[test]
    fn an_answer_that_cannot_be_read_is_a_failed_task() {
        let now = Timestamp::now();
        let raw = |text: &str| RawValue::from_string(text.to_owned()).ok();
        let job = |state, answer| Job {
            id: "job-1".into(),
            kind: JobKind::Deferred,
            owner: "caller".into(),
            caller: String::new(),
            source: None,
            target: WorkspaceId::parse("target").unwrap(),
            content: Content::Task(crate::jobs::Task {
                text: String::new(),
                hops: 1,
                client: None,
                run: None,
            }),
            state,
            priority: 50,
            attempts: 1,
            deadline: now.after(Duration::from_secs(1)),
            inbox_task: None,
            answer,
            created_at: now,
            updated_at: now,
            fence: 1,
        };
        for odd in ["1e999", "\"\\ud800\"", &"[".repeat(200)[..]] {
            let odd = odd.to_owned() + &"]".repeat(odd.matches('[').count());
            let shown = from_job(&job(State::Completed, raw(&odd)));
            assert_eq!(shown["status"]["state"], "failed", "{odd}");
            let error = &shown["metadata"]["error"];
            assert_eq!(error["reason"], "agent_protocol_error", "{odd}");
            let shown = from_job(&job(State::Failed, raw(&odd)));
            assert_eq!(shown["metadata"]["error"]["delivered"], "true", "{odd}");
        }
        let shown = from_job(&job(State::Completed, raw("[1]")));
        assert_eq!(shown["metadata"], json!({"result": [1]}));
    }
}
