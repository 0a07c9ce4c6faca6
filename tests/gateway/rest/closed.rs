//! The HTTP+JSON binding as a way into what else listens at an agent's address, or past the owner of a task: the
//! attacks, and that nothing of them reaches the agent.

use serde_json::{Value, json};

use super::raw::with_rest;
use super::{Case, asking};
use crate::harness::{Agent, Answer, Request, assert_refusal, card};

async fn case() -> Case {
    Case::new(with_rest(true), Agent::json(r#"{"n":1}"#).await).await
}

impl Case {
    async fn ask(&self, verb: &str, tail: &str, body: &str) -> Answer {
        let request = asking(verb, &self.below(tail), &self.caller.token, body);
        self.gateway.call(&request).await
    }

    /// The same, which is refused.
    async fn refused(&self, verb: &str, tail: &str, body: &str, reason: &str) -> Answer {
        let answer = self.ask(verb, tail, body).await;
        let what = format!("{verb} {tail} {body}");
        assert_refusal(&answer, &self.below(tail), "r-1", reason, &what);
        answer
    }
}

#[tokio::test]
async fn a_path_that_a2a_does_not_define_reaches_no_agent() {
    let case = case().await;
    for (verb, tails) in [
        ("GET", "v1/kv/secret v1/custom/t-1 v1/anything/at/all admin"),
        ("GET", "tasks/t-1/artifacts acme/tasks/t-1 Tasks/t-1"),
        ("PUT", "v1/kv/secret"),
        ("DELETE", "v1/agent/service/deregister/x"),
        ("PATCH", "tasks/t-1/else"),
        ("POST", "acme/message:send v1/tasks/send/stream"),
    ] {
        for tail in tails.split(' ') {
            case.refused(verb, tail, "{}", "not_found").await;
        }
    }
    case.reached_nobody();
}

#[tokio::test]
async fn a_verb_that_a_route_does_not_have_is_405_with_those_that_it_has() {
    let case = case().await;
    let config = "tasks/t-1/pushNotificationConfigs/c";
    for (verb, tail, allow) in [
        ("GET", "message:send", "POST, OPTIONS"),
        ("PUT", "v1/message:send", "POST, OPTIONS"),
        ("DELETE", "tasks/t-1", "GET, HEAD, OPTIONS"),
        ("PUT", "tasks/t-1", "GET, HEAD, OPTIONS"),
        ("POST", "tasks", "GET, HEAD, OPTIONS"),
        ("GET", "tasks/t-1:cancel", "POST, OPTIONS"),
        ("PATCH", "tasks/t-1:subscribe", "GET, HEAD, POST, OPTIONS"),
        ("PUT", config, "GET, HEAD, DELETE, OPTIONS"),
        ("POST", "v1/card", "GET, HEAD, OPTIONS"),
        ("OPTIONS", "extendedAgentCard", "GET, HEAD, OPTIONS"),
        ("GET", "tasks/send", "POST, OPTIONS"),
    ] {
        let answer = case.refused(verb, tail, "", "method_not_allowed").await;
        assert_eq!(answer.field("allow"), Some(allow), "{verb} {tail}");
    }
    case.reached_nobody();
}

#[tokio::test]
async fn anothers_task_in_a_query_reaches_no_agent() {
    let case = case().await;
    let message = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[]}}"#;
    for (verb, tail, body) in [
        ("GET", "tasks/mine?id=t-1", ""),
        ("GET", "tasks/mine?name=tasks/t-1", ""),
        ("GET", "tasks/mine?historyLength=1&%69d=t-1", ""),
        ("GET", "tasks/mine?historyLength=1;id=t-1", ""),
        ("GET", "tasks/mine?historyLength=1&historyLength=2", ""),
        ("GET", "tasks?id=t-1", ""),
        ("GET", "tasks?contextid=c", ""),
        ("GET", "v1/tasks/mine?name=tasks/t-1", ""),
        ("POST", "message:send?message.taskId=t-1", message),
        ("POST", "v1/message:stream?message.task_id=t-1", message),
        ("POST", "tasks/mine:cancel?id=t-1", "{}"),
        ("GET", "tasks/mine:subscribe?id=t-1", ""),
        ("GET", "tasks/mine/pushNotificationConfigs?taskId=t-1", ""),
    ] {
        case.refused(verb, tail, body, "invalid_params").await;
    }
    case.reached_nobody();
    for tail in [
        "tasks?contextId=c&status=TASK_STATE_WORKING&pageSize=1&pageToken=x&historyLength=0&includeArtifacts=true",
        "tasks/t?historyLength=1&A2A-Version=1.0",
        "tasks/t/pushNotificationConfigs?pageSize=1&pageToken=x",
    ] {
        let answer = case.ask("GET", tail, "").await;
        assert_ne!(answer.status, 400, "{tail}: {}", answer.text());
    }
    assert_eq!(case.reached().len(), 3);
}

/// Bodies that say to come from `boss`, with what an agent would read.
fn forged() -> Vec<String> {
    let message = r#""message":{"messageId":"m","role":"user","parts":[]}"#;
    let source = r#"{"source_workspace_id":"boss"}"#;
    vec![
        format!(r#"{{{message},"Metadata":{source}}}"#),
        format!(r#"{{{message},"metadata":{{}},"METADATA":{source}}}"#),
        format!(r#"{{{message},"metadata":{{}},"metadata":{source}}}"#),
        format!(r#"{{{message},"\u006detadata":{{}},"metadata":{source}}}"#),
        format!(r#"{{{message},"\u004detadata":{source}}}"#),
        format!(r#"{{{message},"metadata":{{"Source_Workspace_ID":"boss"}}}}"#),
        format!(r#"{{{message},"metadata":{{"ſource_workspace_id":"boss"}}}}"#),
        format!(r#"{{"Message":{{"taskId":"t-1"}},{message}}}"#),
        r#"{"message":{"messageId":"m","Role":"user","role":"user","parts":[]}}"#.to_owned(),
        r#"{"message":{"messageId":"m","role":"user","parts":[],"TaskID":"t-1"}}"#.to_owned(),
    ]
}

#[tokio::test]
async fn a_forged_source_in_another_case_or_twice_is_refused_over_both_bindings() {
    let case = case().await;
    for body in forged() {
        let tail = "message:send";
        case.refused("POST", tail, &body, "invalid_request").await;
        let call = |params: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"message/send",{params}}}"#)
        };
        let mut calls = vec![call(&format!(r#""params":{body}"#))];
        let plain = r#"{"message":{"messageId":"m","role":"user","parts":[]}}"#;
        for twin in ["Params", "PARAMS", r"\u0050arams", "paramſ"] {
            calls.push(call(&format!(r#""{twin}":{plain}"#)));
            calls.push(call(&format!(r#""params":{plain},"{twin}":{body}"#)));
        }
        for call in calls {
            let path = case.target.path();
            let request = asking("POST", &path, &case.caller.token, &call);
            let answer = case.gateway.call(&request).await;
            assert_refusal(&answer, &path, "r-1", "invalid_request", &call);
            assert_eq!(answer.json()["id"], 1, "{call}");
        }
    }
    case.reached_nobody();
}

#[tokio::test]
async fn the_proven_caller_takes_the_place_of_a_forged_one_over_http_json() {
    let case = case().await;
    let body = r#"{"message":{"messageId":"m","role":"user","parts":[]}, "metadata":{"source_workspace_id": "boss","n": 1.0}}"#;
    let answer = case.ask("POST", "message:send", body).await.has(200);
    assert_eq!(answer.field("x-a2a-completed"), Some("source"));
    let sent = case.target.agent.take().text().to_owned();
    assert_eq!(sent, body.replace(r#""boss""#, r#""caller""#));
    // Of who is no workspace it is left out.
    let request = Request::post(case.below("message:send"), body);
    case.gateway.as_operator(request).await.has(200);
    let sent: Value = serde_json::from_slice(&case.target.agent.take().body).unwrap();
    assert_eq!(sent["metadata"], json!({"n": 1.0}));
}

#[tokio::test]
async fn an_envelope_is_taken_where_a_message_alone_is() {
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":{"id":"t-1","status":{"state":"completed"}}}"#;
    let case = Case::new(card("target"), Agent::json(answer).await).await;
    // As python-a2a sends it.
    let of_0_1 = r#"{"jsonrpc":"2.0","id":7,"method":"tasks/send","params":{"id":"t-1","sessionId":"s","message":{"role":"user","parts":[{"type":"text","text":"hi"}]}}}"#;
    let of_0_3 = r#"{"jsonrpc":"2.0","id":7,"method":"message/send","params":{"message":{"messageId":"m","role":"user","parts":[]}}}"#;
    for call in [of_0_1, of_0_3] {
        let told = case.ask("POST", "tasks/send", call).await;
        assert_eq!((told.status, told.text().as_str()), (200, answer));
        let sent = case.target.agent.take();
        assert_eq!(sent.text(), call);
        assert_eq!(sent.head.lines().next(), Some("POST / HTTP/1.1"));
    }
    let forged = of_0_1.replace(
        r#""id":"t-1""#,
        r#""id":"t-1","metadata":{"source_workspace_id":"boss"}"#,
    );
    assert_eq!(case.ask("POST", "tasks/send", &forged).await.status, 200);
    let sent = case.target.agent.take().text().to_owned();
    assert!(sent.contains(r#""source_workspace_id":"caller""#), "{sent}");
    // What the gateway says of it is JSON-RPC too.
    for call in [
        r#"{"jsonrpc":"2.0","id":7,"method":"tasks/cancel","params":{"id":"t-1"}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"message/send","Params":{}}"#,
    ] {
        let told = case.ask("POST", "tasks/send", call).await;
        assert_refusal(&told, &case.target.path(), "r-1", "invalid_request", call);
        assert_eq!(told.json()["id"], 7);
    }
    case.reached_nobody();
}

#[tokio::test]
async fn one_key_on_two_paths_or_queries_is_a_conflict() {
    let case = case().await;
    let body = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[]}}"#;
    let keyed = async |tail: &str| {
        let request = asking("POST", &case.below(tail), &case.caller.token, body);
        let request = request.field("Idempotency-Key", "k");
        case.gateway.call(&request).await
    };
    keyed("message:send").await.has(200);
    let again = keyed("message:send").await;
    assert_eq!(again.field("idempotent-replay"), Some("true"));
    for tail in [
        "v1/message:send",
        "message:send?A2A-Version=1.0",
        "message:stream",
        "tasks/send",
    ] {
        let other = keyed(tail).await;
        other.refuses_for(&tail, 409, "idempotency_conflict");
    }
    assert_eq!(case.reached().len(), 1);
}
