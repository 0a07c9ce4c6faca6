//! Answers of an agent as lines for a terminal: results, refusals, events of a stream.

use gateway_client::{advice_for, in_commands};
use serde_json::Value;

use super::super::failure::Failure;
use super::super::table::format_json;

/// States of a task that goes on: it is read, continued and cancelled by its id.
const OPEN: [&str; 4] = ["submitted", "working", "input-required", "auth-required"];

/// A refusal, by the gateway or the agent.
#[derive(Debug, thiserror::Error)]
#[error("{reason}: {message}")]
pub(crate) struct Refusal {
    pub(crate) reason: String,
    message: String,
}

impl Refusal {
    /// Says the refusal with the id under which the audit and the log have the request, and what to do. `token` was
    /// sent.
    pub(super) fn into_failure(self, id: Option<String>, token: Option<&str>) -> Failure {
        let mut message = in_commands(&self.to_string());
        if let Some(id) = id {
            message += &format!(" (request {id})");
        }
        if let Some(advice) = advice_for(&self.reason, token) {
            message += &format!("; {advice}");
        }
        Failure::new(message)
    }
}

/// Formats a result as `--json` asks: a document, one line of JSON for an event, or text.
pub(crate) fn format_result(result: &Value, json: bool, is_event: bool) -> String {
    match (json, is_event) {
        (true, true) => format!("{result}\n"),
        (true, false) => format_json(result),
        (false, _) => format_line(result) + "\n",
    }
}

/// Returns the member of a result that is a message, a task or an event of one: A2A 1.0 names the kind by the member,
/// 0.3 by `kind`.
fn event_of(result: &Value) -> &Value {
    let named = ["message", "task", "statusUpdate", "artifactUpdate"]
        .into_iter()
        .map(|name| &result[name])
        .find(|member| member.is_object() && result["kind"].is_null());
    named.unwrap_or(result)
}

/// Returns the state of a task in the words of 0.3: `input-required` also for `TASK_STATE_INPUT_REQUIRED`.
pub(crate) fn state_of(result: &Value) -> Option<String> {
    let state = event_of(result)["status"]["state"].as_str()?;
    let state = state.trim_start_matches("TASK_STATE_");
    Some(state.to_lowercase().replace('_', "-"))
}

/// Returns the id of the task of a result that goes on, with its state.
pub(crate) fn open_task(result: &Value) -> Option<(String, String)> {
    let state = state_of(result).filter(|state| OPEN.contains(&state.as_str()))?;
    let event = event_of(result);
    // An update names its task so, a task is one.
    let id = event["taskId"].as_str().or(event["id"].as_str())?;
    Some((id.to_owned(), state))
}

/// True for a state in which the agent works on, without its caller.
pub(crate) fn is_busy(state: &str) -> bool {
    matches!(state, "submitted" | "working")
}

/// Returns advice for an agent that rejects the gateway's credential.
pub(super) fn credential_advice(status: u16) -> &'static str {
    match status {
        401 | 403 => {
            "; the agent refuses, not the gateway: an operator gives its credential in upstream_auth"
        }
        _ => "",
    }
}

/// Returns the agent's result, or the error.
pub(crate) fn extract_result(mut answer: Value, status: u16) -> Result<Value, Refusal> {
    let error = &answer["error"];
    if error.is_null() && status < 400 {
        return Ok(match answer.get_mut("result") {
            Some(result) => result.take(),
            None => answer,
        });
    }
    // Rejections of the gateway are a string on some routes; an agent's errors have a code and no reason.
    let reason = error["data"][0]["reason"]
        .as_str()
        .or(answer["reason"].as_str())
        .map_or_else(
            || match &error["code"] {
                Value::Null => format!("the agent answered with status {status}"),
                code => format!("agent error {code}"),
            },
            str::to_lowercase,
        );
    let said = [
        &error["message"],
        error,
        &answer["message"],
        &answer["detail"],
    ];
    let message = said.into_iter().find_map(Value::as_str);
    let mut message = message.map_or_else(|| answer.to_string(), str::to_owned);
    // The reason of a guard.
    if let Some(why) = error["data"][0]["metadata"]["why"].as_str() {
        message = format!("{message}: {why}");
    }
    // A rejection of the gateway has a reason; any other error is the agent's.
    let advice = if reason.starts_with("the agent") {
        credential_advice(status)
    } else {
        ""
    };
    Err(Refusal {
        reason,
        message: message + advice,
    })
}

/// Formats a message, a task or an event, of A2A 0.3 or 1.0, as one line; any other value as JSON.
pub(crate) fn format_line(result: &Value) -> String {
    let event = event_of(result);
    let status = &event["status"];
    let state = state_of(result).map(|state| format!("[{state}]"));
    let artifacts = event["artifacts"].as_array().into_iter().flatten();
    let said = artifacts
        .chain([&event["artifact"], &status["message"], event])
        .map(|holder| format_parts(&holder["parts"]))
        .filter(|text| !text.is_empty());
    let id = open_task(result).map(|(id, _)| format!("(task {id})"));
    let words: Vec<String> = state.into_iter().chain(said).chain(id).collect();
    if words.is_empty() {
        result.to_string()
    } else {
        words.join(" ")
    }
}

/// Returns the text of parts; of files name and size, for `--json` has their bytes; other parts as JSON.
fn format_parts(parts: &Value) -> String {
    let parts = parts.as_array().into_iter().flatten();
    let shown: Vec<String> = parts
        .map(|part| match part["text"].as_str() {
            Some(text) => text.to_owned(),
            None => format_file(part).unwrap_or_else(|| part.to_string()),
        })
        .collect();
    shown.join("\n")
}

/// Returns a file of A2A 0.3 or 1.0 in words.
fn format_file(part: &Value) -> Option<String> {
    let file = &part["file"];
    let word = |old: &str, new: &str| file[old].as_str().or(part[new].as_str());
    let held = match (word("uri", "url"), word("bytes", "raw")) {
        (Some(url), _) => url.to_owned(),
        // Of base64.
        (None, Some(bytes)) => format!("{} bytes", bytes.trim_end_matches('=').len() * 3 / 4),
        (None, None) => return None,
    };
    let about = [
        word("name", "filename"),
        word("mimeType", "mediaType"),
        Some(&held),
    ];
    let about: Vec<&str> = about.into_iter().flatten().collect();
    Some(format!("(file {})", about.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(answer: Value) -> String {
        match extract_result(answer, 200) {
            Ok(result) => format_line(&result),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn answers_of_both_generations_are_one_line_of_text() {
        for (answer, expected) in [
            (
                json!({"result": {"kind": "message", "parts": [{"kind": "text", "text": "hi"}]}}),
                "hi",
            ),
            (
                json!({"result": {"message": {"parts": [{"text": "hi"}]}}}),
                "hi",
            ),
            (
                json!({"result": {"kind": "task", "status": {"state": "completed"}, "artifacts": [{"parts": [{"text": "done"}]}]}}),
                "[completed] done",
            ),
            (
                json!({"result": {"statusUpdate": {"status": {"state": "TASK_STATE_INPUT_REQUIRED", "message": {"parts": [{"text": "which?"}]}}}}}),
                "[input-required] which?",
            ),
            (
                json!({"result": {"kind": "artifact-update", "artifact": {"parts": [{"text": "a"}]}}}),
                "a",
            ),
            (json!({"result": {"odd": 1}}), r#"{"odd":1}"#),
            (
                json!({"result": {"message": {"parts": [{"raw": "AAAA", "filename": "a.png", "mediaType": "image/png"}]}}}),
                "(file a.png, image/png, 3 bytes)",
            ),
            (
                json!({"result": {"kind": "message", "parts": [{"kind": "file", "file": {"uri": "https://x/y"}}]}}),
                "(file https://x/y)",
            ),
            (
                json!({"result": {"kind": "status-update", "taskId": "t-1", "status": {"state": "input-required"}}}),
                "[input-required] (task t-1)",
            ),
            (
                json!({"error": {"code": -32000, "message": "no", "data": [{"reason": "NOT_PERMITTED"}]}}),
                "not_permitted: no",
            ),
            (
                json!({"error": {"code": -32602, "message": "no"}}),
                "agent error -32602: no",
            ),
            (
                json!({"error": "no", "reason": "unauthenticated"}),
                "unauthenticated: no",
            ),
        ] {
            assert_eq!(shown(answer.clone()), expected, "{answer}");
        }
    }

    #[test]
    fn an_agent_that_refuses_and_a_task_that_waits_are_told() {
        let refused = |body: Value| extract_result(body, 401).unwrap_err().to_string();
        for body in [
            json!({"error": "no such key"}),
            json!({"message": "no such key"}),
            json!({"detail": "no such key"}),
        ] {
            let told = refused(body);
            assert!(
                told.starts_with(
                    "the agent answered with status 401: no such key; the agent refuses"
                ),
                "{told}"
            );
            assert!(told.contains("upstream_auth"), "{told}");
        }
        let task =
            json!({"result": {"kind": "task", "id": "t-1", "status": {"state": "submitted"}}});
        assert_eq!(shown(task), "[submitted] (task t-1)");
    }
}
