//! `a2a-gateway send`: one message to a workspace, and its answer on standard output.

use std::time::Duration;

use gateway_client::{Request, Response};
use http::Method;
use serde_json::{Value, json};

use super::access::GatewayUrl;
use super::client::{is_id, path_of};
use super::failure::Failure;
use super::sse::EventStream;
use super::{complete, print};

/// A little longer than the gateway's default for the longest stream, so that the gateway ends it with a
/// reason.
const WITHIN: Duration = Duration::from_secs(31 * 60);

/// `a2a-gateway send WORKSPACE TEXT`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The workspace whose agent gets the message
    #[arg(add = complete::by_workspace())]
    workspace: String,
    /// What to say
    text: String,
    /// Print each event of the answer as it comes
    #[arg(long)]
    stream: bool,
    /// Credential of the caller [env: A2A_GATEWAY_TOKEN]; better given there, where other users cannot see it
    #[arg(long)]
    token: Option<String>,
    #[command(flatten)]
    gateway: GatewayUrl,
}

/// A refusal, by the gateway or the agent.
#[derive(Debug, thiserror::Error)]
#[error("{reason}: {message}")]
struct Refusal {
    reason: String,
    message: String,
}

/// Runs `a2a-gateway send`.
pub async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let workspace = &arguments.workspace;
    if !is_id(workspace) {
        return Err(Failure::usage(format!(
            "{workspace:?} is no id of a workspace"
        )));
    }
    let path = path_of("workspaces", workspace, "/a2a")?;
    let client = arguments.gateway.build_client(&arguments.token)?;
    // A bare message: the gateway completes it in the agent's generation.
    let body = json!({"message": {"text": arguments.text}});
    let request = Request {
        accept: match arguments.stream {
            true => "text/event-stream",
            false => "application/json",
        },
        within: WITHIN,
        ..client.request(Method::POST, &path, &[])
    };
    let answer = request.with_body(&body).send().await?;
    // The agent decides whether the response is a stream: it may answer a stream request with JSON.
    if answer.is_stream() {
        return print_stream(answer).await;
    }
    let status = answer.status().as_u16();
    let id = answer.request_id().map(str::to_owned);
    let body = answer.read_body().await?;
    let Ok(answer) = serde_json::from_slice(&body) else {
        let advice = credential_advice(status);
        return Err(Failure::new(format!(
            "the answer has status {status} and is not JSON{advice}"
        )));
    };
    match extract_result(answer, status) {
        Ok(result) => Ok(format_line(result) + "\n"),
        Err(refusal) => {
            let mut message = refusal.to_string();
            // The audit and the log have the request under this id.
            if let Some(id) = id {
                message += &format!(" (request {id})");
            }
            if refusal.reason == "unauthenticated" && client.token.is_none() {
                message += "; give a credential with --token or in A2A_GATEWAY_TOKEN";
            }
            Err(Failure::new(message))
        }
    }
}

/// Prints the events of a stream as they come.
async fn print_stream(answer: Response) -> Result<String, Failure> {
    let mut events = EventStream::new(answer);
    while let Some(event) = events.next_event().await? {
        let event: Value = serde_json::from_str(&event).unwrap_or(Value::String(event));
        print(&format!("{}\n", format_line(extract_result(event, 200)?)))?;
    }
    Ok(String::new())
}

/// Returns advice for an agent that rejects the gateway's credential.
fn credential_advice(status: u16) -> &'static str {
    match status {
        401 | 403 => {
            "; the agent refuses, not the gateway: an operator gives its credential in upstream_auth"
        }
        _ => "",
    }
}

/// Returns the agent's result, or the error.
fn extract_result(mut answer: Value, status: u16) -> Result<Value, Refusal> {
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
fn format_line(result: Value) -> String {
    // 1.0 names the kind by the member, 0.3 by `kind`.
    let named = ["message", "task", "statusUpdate", "artifactUpdate"]
        .into_iter()
        .map(|name| &result[name])
        .find(|member| member.is_object() && result["kind"].is_null());
    let event = named.unwrap_or(&result);
    let status = &event["status"];
    let state = status["state"].as_str().map(|state| {
        let state = state.trim_start_matches("TASK_STATE_");
        format!("[{}]", state.to_lowercase().replace('_', "-"))
    });
    let artifacts = event["artifacts"].as_array().into_iter().flatten();
    let said = artifacts
        .chain([&event["artifact"], &status["message"], event])
        .map(|holder| format_parts(&holder["parts"]))
        .filter(|text| !text.is_empty());
    // A task that goes on is read, continued and cancelled by its id.
    let goes_on = state.as_deref().is_some_and(|state| {
        [
            "[submitted]",
            "[working]",
            "[input-required]",
            "[auth-required]",
        ]
        .contains(&state)
    });
    let id = event["id"].as_str().filter(|_| goes_on);
    let id = id.map(|id| format!("(task {id})"));
    let words: Vec<String> = state.into_iter().chain(said).chain(id).collect();
    if words.is_empty() {
        result.to_string()
    } else {
        words.join(" ")
    }
}

/// Returns the text of parts; other parts as JSON.
fn format_parts(parts: &Value) -> String {
    let parts = parts.as_array().into_iter().flatten();
    let shown: Vec<String> = parts
        .map(|part| {
            part["text"]
                .as_str()
                .map_or_else(|| part.to_string(), str::to_owned)
        })
        .collect();
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(answer: Value) -> String {
        match extract_result(answer, 200) {
            Ok(result) => format_line(result),
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
