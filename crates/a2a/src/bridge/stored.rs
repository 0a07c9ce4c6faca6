//! Tasks, messages and updates that the gateway keeps itself, in the form of JSON-RPC 0.3, as callers read them.

use serde_json::Value;

use super::failure::Failure;
use super::nodes::TASK;
use super::pass::{Pass, Settings};
use super::result::write_outcome;
use super::rules::write_node;
use super::table::{FileBytes, Form};
use crate::generation::Generation;

/// Returns a task, a message or an update of 0.3 as the result of a send call or as that of an event: 1.0 has its kind
/// around it.
///
/// # Errors
/// [`Failure::Answer`].
pub fn write_result(generation: Generation, said: &Value) -> Result<String, Failure> {
    write_as(generation, said, |pass| {
        let told = write_outcome(pass, true)?;
        told.kind.map(drop).ok_or(Failure::NO_RESULT)
    })
}

/// Returns a task of 0.3 as the result of a call that has no other, such as `GetTask`.
///
/// # Errors
/// [`Failure::Answer`].
pub fn write_task(generation: Generation, task: &Value) -> Result<String, Failure> {
    write_as(generation, task, |pass| write_node(pass, &TASK))
}

fn write_as(
    generation: Generation,
    said: &Value,
    write: impl FnOnce(&mut Pass<'_>) -> Result<(), Failure>,
) -> Result<String, Failure> {
    let text = said.to_string();
    if generation == Generation::V0 {
        return Ok(text);
    }
    let settings = Settings {
        from: Form::V0,
        to: Form::V1,
        is_request: false,
        zero_is_all: false,
        without_history: false,
        files: FileBytes::Unknown,
        tenant: None,
    };
    let mut pass = Pass::new(text.as_bytes(), settings);
    write(&mut pass).map_err(Failure::of_answer)?;
    Ok(String::from_utf8_lossy(&pass.out).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_caller_reads_its_own_generation() {
        let task = json!({"kind": "task", "id": "t", "contextId": "c", "x": 1,
            "status": {"state": "input-required", "timestamp": "2026-11-26T10:00:00Z", "message": {"kind": "message",
                "role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": "which?", "metadata": {}}]}},
            "history": [{"kind": "message", "role": "user", "messageId": "q",
                "parts": [{"kind": "file", "file": {"bytes": "AA==", "mimeType": "a/b", "name": "n"}}]}]});
        let expected = json!({"id": "t", "contextId": "c",
            "status": {"state": "TASK_STATE_INPUT_REQUIRED", "timestamp": "2026-11-26T10:00:00Z", "message": {
                "role": "ROLE_AGENT", "messageId": "m", "parts": [{"text": "which?", "metadata": {}}]}},
            "history": [{"role": "ROLE_USER", "messageId": "q",
                "parts": [{"raw": "AA==", "mediaType": "a/b", "filename": "n"}]}]});
        let read = |text: Result<String, Failure>| -> Value {
            serde_json::from_str(&text.unwrap()).unwrap()
        };
        assert_eq!(read(write_task(Generation::V1, &task)), expected);
        assert_eq!(
            read(write_result(Generation::V1, &task)),
            json!({"task": expected})
        );
        assert_eq!(read(write_result(Generation::V0, &task)), task);
        let update = json!({"kind": "status-update", "final": true, "taskId": "t", "contextId": "c",
            "status": {"state": "failed"}});
        let expected = json!({"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_FAILED"}}});
        assert_eq!(read(write_result(Generation::V1, &update)), expected);
    }

    #[test]
    fn what_is_no_result_is_none_in_the_other_generation() {
        for odd in [
            json!({"kind": "answer"}),
            json!({"kind": "task", "status": 5}),
            json!(1),
        ] {
            assert!(write_result(Generation::V1, &odd).is_err(), "{odd}");
        }
    }
}
