//! Calls that pass all stages, and calls that end at one.

use super::*;

/// The answer of an agent to [`CALL`].
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"message","role":"agent","messageId":"m-2","parts":[{"kind":"text","text":"ho"}]}}"#;

/// The events of a stream that completes a task.
pub(super) const STREAMED: [&str; 2] = [
    r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"t-1","contextId":"c-1","status":{"state":"working"}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"status-update","taskId":"t-1","contextId":"c-1","status":{"state":"completed"},"final":true}}"#,
];

async fn start_gateway() -> TestGateway {
    TestGateway::new(unary_answer(ANSWER), |_| ()).await
}

#[tokio::test]
async fn a_call_without_a_credential_is_refused() {
    let gateway = start_gateway().await;
    let reply = gateway.send("POST /workspaces/target/a2a", &[], CALL).await;
    assert_eq!(
        (reply.status, reply.refusal()),
        (401, Some("unauthenticated"))
    );
    assert!(reply.field("www-authenticate").is_some());
    assert_eq!(gateway.agent.requests().len(), 0);
}

#[tokio::test]
async fn a_call_without_permission_is_refused() {
    let gateway = start_gateway().await;
    let parent = json!({"id": "other", "name": "other"}).to_string();
    let admin = gateway.admin_field();
    let created = gateway.send("POST /workspaces", &[&admin], &parent).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let child = json!({"id": "child", "name": "child", "parent_id": "other"});
    let stranger = gateway.create_workspace(child).await;
    let reply = gateway
        .send("POST /workspaces/target/a2a", &[&stranger], CALL)
        .await;
    assert_eq!(
        (reply.status, reply.refusal()),
        (403, Some("not_permitted"))
    );
    assert_eq!(gateway.agent.requests().len(), 0);
}

#[tokio::test]
async fn a_unary_answer_passes_and_the_body_is_completed() {
    let gateway = start_gateway().await;
    let reply = gateway.call(&["x-request-id: r-1"], CALL).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, ANSWER));
    assert_eq!(reply.field("x-request-id"), Some("r-1"));
    assert!(reply.field("x-a2a-completed").is_some(), "{}", reply.head);
    let [request] = &gateway.agent.requests()[..] else {
        panic!("the agent is asked once");
    };
    assert!(request.contains("\"messageId\":"), "{request}");
    assert!(request.contains("x-request-id: r-1\r\n"), "{request}");
}

#[tokio::test]
async fn the_events_of_a_stream_pass_with_numbers() {
    let gateway = TestGateway::new(stream_answer(&STREAMED, true), |_| ()).await;
    let call = CALL.replace("message/send", "message/stream");
    let reply = gateway.call(&[], &call).await;
    let name = reply.field(kernel::rejection::STREAM).unwrap();
    for (number, event) in STREAMED.iter().enumerate() {
        assert!(reply.body.contains(event), "{}", reply.body);
        let id = format!("id: {name}-{}", number + 1);
        assert!(reply.body.contains(&id), "{}", reply.body);
    }
    assert!(reply.body.ends_with("0\r\n\r\n"), "{}", reply.body);
}

#[tokio::test]
async fn a_stream_that_is_cut_ends_with_the_reason() {
    let gateway = TestGateway::new(stream_answer(&STREAMED[..1], false), |_| ()).await;
    let call = CALL.replace("message/send", "message/stream");
    let reply = gateway.call(&[], &call).await;
    assert!(reply.body.contains(STREAMED[0]), "{}", reply.body);
    assert!(
        reply.body.contains("AGENT_PROTOCOL_ERROR"),
        "{}",
        reply.body
    );
    assert!(reply.body.ends_with("0\r\n\r\n"), "{}", reply.body);
}

#[tokio::test]
async fn a_call_with_a_key_is_sent_once() {
    let gateway = start_gateway().await;
    let key = ["idempotency-key: k-1"];
    let first = gateway.call(&key, CALL).await;
    let again = gateway.call(&key, CALL).await;
    assert_eq!((first.status, again.status), (200, 200), "{}", again.body);
    assert_eq!(first.body, again.body);
    assert_eq!(first.field("idempotent-replay"), None);
    assert_eq!(again.field("idempotent-replay"), Some("true"));
    assert_eq!(gateway.agent.requests().len(), 1);
}

#[tokio::test]
async fn a_call_to_a_paused_target_is_deferred_where_the_caller_prefers_that() {
    let gateway = start_gateway().await;
    let admin = gateway.admin_field();
    let paused = gateway
        .send("POST /workspaces/target/pause", &[&admin], "")
        .await;
    assert_eq!(paused.status, 200, "{}", paused.body);
    let refused = gateway.call(&[], CALL).await;
    assert_eq!(refused.refusal(), Some("workspace_offline"));
    let kept = gateway.call(&["prefer: respond-async"], CALL).await;
    assert_eq!(kept.status, 202, "{}", kept.body);
    assert_eq!(kept.field("preference-applied"), Some("respond-async"));
    assert_eq!(kept.json()["status"], "queued");
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let gateway = start_gateway().await;
    let large = CALL.replace("hi", &"x".repeat(11 << 20));
    let admin = gateway.admin_field();
    let length = format!("content-length: {}", large.len());
    let fields = [admin.as_str(), "content-type: application/json", &length];
    let reply = gateway
        .send("POST /workspaces/target/a2a", &fields, "")
        .await;
    assert_eq!(
        (reply.status, reply.refusal()),
        (413, Some("body_too_large"))
    );
}

#[tokio::test]
async fn other_routes_are_those_of_the_control_plane() {
    let gateway = start_gateway().await;
    let admin = gateway.admin_field();
    let reply = gateway.send("GET /workspaces/target", &[&admin], "").await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(reply.body.contains("\"target\""), "{}", reply.body);
    let refused = gateway.send("GET /nowhere", &[], "").await;
    assert_eq!(
        (refused.status, refused.refusal()),
        (404, Some("not_found"))
    );
}

#[tokio::test]
async fn a_call_over_http_json_is_translated() {
    let gateway = start_gateway().await;
    let admin = gateway.admin_field();
    let call: Value = serde_json::from_str(CALL).unwrap();
    let body = call["params"].to_string();
    let reply = gateway
        .send("POST /workspaces/target/a2a/tasks/send", &[&admin], &body)
        .await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["messageId"], "m-2");
    let [request] = &gateway.agent.requests()[..] else {
        panic!("the agent is asked once");
    };
    assert!(request.contains("\"method\":\"message/send\""), "{request}");
}
