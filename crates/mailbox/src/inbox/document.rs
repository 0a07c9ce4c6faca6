//! A task as JSON, in the form of A2A 0.3: its initial state, with each update applied to it. Pure.
//!
//! The updates are stored, not the task: an answer in ten thousand pieces takes one row per piece, rather
//! than the whole answer each time.

use serde_json::{Value, json};

use a2a::agent_reply::{Subject, Update};
use a2a::state::TaskState;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;

/// Nesting of arrays and objects in an update at most. Stored forms add some levels, and at most 127 can be
/// parsed.
const LEVELS_MAX: usize = 100;

/// Rejects an update that could not be parsed again once it is stored.
///
/// # Errors
/// `invalid_params` when it nests too deeply.
pub(super) fn check_depth(update: &Update) -> Result<(), Rejection> {
    if update.nesting_depth() > LEVELS_MAX {
        return Err(too_deep());
    }
    Ok(())
}

/// Returns the rejection of a reply that nests too deeply.
pub fn too_deep() -> Rejection {
    let message = format!("the reply nests more than {LEVELS_MAX} levels deep");
    Rejection::new(Reason::InvalidParams, message)
}

/// Returns the task in its initial state.
pub(super) fn initial_document(subject: &Subject<'_>, at: Timestamp) -> Value {
    json!({"kind": "task", "id": subject.task, "contextId": subject.context,
        "status": {"state": TaskState::Submitted.as_str(), "timestamp": at}})
}

/// Applies an update. It was made for this task, and checked.
pub(super) fn apply(task: &mut Value, update: Update, at: Timestamp) {
    match update {
        Update::Message(message) => {
            set_status(task, TaskState::Completed, at, message);
        }
        Update::Error(error) => {
            let text = error["message"].as_str().unwrap_or("the agent failed");
            let message = json!({"kind": "message", "role": "agent", "parts": [{"kind": "text", "text": text}],
                "messageId": format!("{}-error", task["id"].as_str().unwrap_or_default()),
                "taskId": task["id"], "contextId": task["contextId"]});
            set_status(task, TaskState::Failed, at, message);
        }
        Update::Task(whole) => *task = whole,
        Update::StatusUpdate(mut event) => {
            archive_status_message(task);
            task["status"] = event["status"].take();
            merge(task, "metadata", event["metadata"].take());
        }
        Update::ArtifactUpdate(mut event) => {
            let (artifact, append) = (event["artifact"].take(), event["append"] == true);
            add_artifact(task, artifact, append);
        }
    }
}

fn set_status(task: &mut Value, state: TaskState, at: Timestamp, message: Value) {
    archive_status_message(task);
    task["status"] = json!({"state": state.as_str(), "timestamp": at, "message": message});
}

/// Moves the message of the status to the history.
fn archive_status_message(task: &mut Value) {
    let said = task["status"]["message"].take();
    if said.is_object() {
        push(task, "history", said);
    }
}

fn push(object: &mut Value, member: &str, value: Value) {
    match &mut object[member] {
        Value::Array(list) => list.push(value),
        other => *other = Value::Array(vec![value]),
    }
}

fn merge(object: &mut Value, member: &str, more: Value) {
    let Value::Object(more) = more else { return };
    match &mut object[member] {
        Value::Object(there) => there.extend(more),
        other => *other = Value::Object(more),
    }
}

fn add_artifact(task: &mut Value, mut artifact: Value, append: bool) {
    let list = task["artifacts"].as_array_mut();
    let there = list.and_then(|list| {
        list.iter_mut()
            .find(|one| one["artifactId"] == artifact["artifactId"])
    });
    match there {
        Some(there) if append => {
            if let (Some(parts), Value::Array(more)) =
                (there["parts"].as_array_mut(), artifact["parts"].take())
            {
                parts.extend(more);
            }
            merge(there, "metadata", artifact["metadata"].take());
        }
        Some(there) => *there = artifact,
        None => push(task, "artifacts", artifact),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Timestamp = Timestamp(5);

    fn folded(updates: Vec<Value>) -> Value {
        let subject = Subject {
            task: "t",
            context: "c",
        };
        let mut task = initial_document(&subject, Timestamp(0));
        for update in updates {
            let update: Update = serde_json::from_value(update).unwrap();
            update.state_after().unwrap();
            apply(
                &mut task,
                update.with_subject(&subject, &AT.to_string()),
                AT,
            );
        }
        task
    }

    fn said(text: &str) -> Value {
        json!({"role": "agent", "messageId": text, "parts": [{"kind": "text", "text": text}]})
    }

    #[test]
    fn a_message_completes_and_an_error_fails() {
        let task = folded(vec![json!({"message": said("done")})]);
        assert_eq!(task["id"], "t");
        assert_eq!(task["contextId"], "c");
        assert_eq!(task["status"]["state"], "completed");
        assert_eq!(task["status"]["timestamp"], "1970-01-01T00:00:00.005Z");
        assert_eq!(task["status"]["message"]["messageId"], "done");
        assert_eq!(task["status"]["message"]["taskId"], "t");
        let task = folded(vec![json!({"error": {"code": -32603, "message": "no"}})]);
        assert_eq!(task["status"]["state"], "failed");
        assert_eq!(task["status"]["message"]["parts"][0]["text"], "no");
    }

    #[test]
    fn what_a_status_said_becomes_history_and_pieces_become_one_artifact() {
        let piece = |text: &str, append: bool| {
            json!({"artifact-update": {"append": append, "artifact":
                {"artifactId": "a", "parts": [{"kind": "text", "text": text}]}}})
        };
        let working = json!({"status-update": {"status": {"state": "working", "message": said("busy")}, "metadata": {"k": 1}}});
        let done =
            json!({"status-update": {"status": {"state": "completed"}, "metadata": {"l": 2}}});
        let task = folded(vec![working, piece("o", false), piece("k", true), done]);
        assert_eq!(task["status"]["state"], "completed");
        assert_eq!(task["status"].get("message"), None);
        assert_eq!(task["history"][0]["messageId"], "busy");
        assert_eq!(task["metadata"], json!({"k": 1, "l": 2}));
        assert_eq!(task["artifacts"].as_array().unwrap().len(), 1);
        assert_eq!(task["artifacts"][0]["parts"][1]["text"], "k");
        let task = folded(vec![piece("o", false), piece("new", false)]);
        assert_eq!(task["artifacts"][0]["parts"].as_array().unwrap().len(), 1);
        // A continuation of an artifact that does not exist begins it.
        assert_eq!(
            folded(vec![piece("k", true)])["artifacts"][0]["parts"][0]["text"],
            "k"
        );
    }

    #[test]
    fn a_whole_task_takes_the_place_and_our_names() {
        let whole = json!({"task": {"id": "own", "contextId": "own", "status": {"state": "input-required"},
            "artifacts": [], "x": 1}});
        let task = folded(vec![
            json!({"status-update": {"status": {"state": "working", "message": said("busy")}}}),
            whole,
        ]);
        assert_eq!(
            (&task["id"], &task["contextId"]),
            (&json!("t"), &json!("c"))
        );
        assert_eq!((&task["kind"], &task["x"]), (&json!("task"), &json!(1)));
        assert_eq!(task["status"]["timestamp"], "1970-01-01T00:00:00.005Z");
        assert_eq!(task.get("history"), None);
    }

    #[test]
    fn an_event_says_whether_it_is_the_last_of_its_turn() {
        let subject = Subject {
            task: "t",
            context: "c",
        };
        for (state, given, last) in [
            ("working", Value::Null, false),
            ("working", json!(true), true),
            ("input-required", json!(false), true),
            ("completed", Value::Null, true),
        ] {
            let event = json!({"status": {"state": state}, "final": given});
            let Update::StatusUpdate(event) =
                Update::StatusUpdate(event).with_subject(&subject, &AT.to_string())
            else {
                panic!("another kind");
            };
            assert_eq!(event["final"], last, "{state} {given}");
            assert_eq!(
                (&event["taskId"], &event["kind"]),
                (&json!("t"), &json!("status-update"))
            );
        }
    }

    #[test]
    fn what_nests_too_deeply_is_refused_and_what_does_not_can_be_read_again() {
        let nested = |levels: usize| {
            let inner = (0..levels - 1).fold(json!([]), |inner, _| json!([inner]));
            // The event, its metadata, and the levels of the case.
            Update::StatusUpdate(json!({"status": {"state": "working"}, "metadata": {"a": inner}}))
        };
        let deepest = nested(LEVELS_MAX - 2);
        check_depth(&deepest).unwrap();
        let subject = Subject {
            task: "t",
            context: "c",
        };
        let kept = serde_json::to_string(&deepest.with_subject(&subject, &AT.to_string())).unwrap();
        serde_json::from_str::<Update>(&kept).unwrap();
        let refused = check_depth(&nested(LEVELS_MAX - 1)).unwrap_err();
        assert_eq!(refused.reason, Reason::InvalidParams);
    }

    #[test]
    fn what_has_no_state_or_no_parts_is_refused() {
        for wrong in [
            json!({"task": {"status": {"state": "unknown"}}}),
            json!({"task": {}}),
            json!({"status-update": []}),
            json!({"artifact-update": {"artifact": {"artifactId": "a"}}}),
            json!({"artifact-update": {"artifact": {"parts": []}}}),
            json!({"message": "done"}),
            json!({"error": null}),
        ] {
            let update: Update = serde_json::from_value(wrong.clone()).unwrap();
            assert!(update.state_after().is_err(), "{wrong}");
        }
    }
}
