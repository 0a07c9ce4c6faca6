//! The forms of errors: by `A2A-Version`, which calls that are translated declare, and by `a2a.refusal_status`.

use super::*;
use kernel::config::RefusalStatus;

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"message","role":"agent","messageId":"m-2","parts":[{"kind":"text","text":"ho"}]}}"#;

const MESSAGE: &str =
    r#"{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;

/// Sends a message over HTTP+JSON of 1.0, which the agent does not speak.
async fn send(gateway: &TestGateway, fields: &[&str]) -> Reply {
    let admin = gateway.admin_field();
    let fields = [fields, &[&admin]].concat();
    gateway
        .send("POST /workspaces/target/a2a/message:send", &fields, MESSAGE)
        .await
}

/// Pauses the target, so that each call is refused with a time to wait.
async fn pause(gateway: &TestGateway) {
    let admin = gateway.admin_field();
    let line = "POST /workspaces/target/pause";
    assert_eq!(gateway.send(line, &[&admin], "").await.status, 200);
}

/// Returns the names of the members of a body.
fn members(reply: &Reply) -> Vec<String> {
    let body = reply.json();
    body.as_object().unwrap().keys().cloned().collect()
}

#[tokio::test]
async fn a_version_that_is_not_served_is_refused_where_the_call_is_translated() {
    let gateway = TestGateway::new(unary_answer(ANSWER), |_| ()).await;
    for version in ["1.0", "1", "1.0.0", " 1.0 ", "0.3", "0.3.0", ""] {
        let reply = send(&gateway, &[&format!("a2a-version: {version}")]).await;
        assert_eq!(reply.status, 200, "{version}: {}", reply.body);
        assert_eq!(reply.json()["message"]["messageId"], "m-2", "{version}");
    }
    assert_eq!(send(&gateway, &[]).await.status, 200);
    for version in ["99.0", "2.0", "1.1", "0.2", "one", "1.0.0.0"] {
        let before = gateway.agent.requests().len();
        let reply = send(&gateway, &[&format!("a2a-version: {version}")]).await;
        assert_eq!(
            (reply.status, reply.refusal()),
            (400, Some("version_not_supported")),
            "{version}"
        );
        let detail = &reply.json()["error"]["details"][0];
        assert_eq!(detail["reason"], "VERSION_NOT_SUPPORTED", "{version}");
        let calls = gateway.agent.requests().split_off(before);
        let calls = calls.iter().filter(|call| call.starts_with("POST"));
        assert_eq!(calls.count(), 0, "{version}: nothing is sent");
    }
    // A call that passes as it is is judged by its agent.
    let passed = gateway.call(&["a2a-version: 99.0"], CALL).await;
    assert_eq!(passed.status, 200, "{}", passed.body);
}

#[tokio::test]
async fn an_error_stands_alone_for_a_caller_of_1_0() {
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no task"}}"#;
    let gateway = TestGateway::new(unary_answer(error), |_| ()).await;
    let refused = async |fields: &[&str]| {
        let line = "POST /workspaces/target/a2a/message:send";
        gateway.send(line, fields, MESSAGE).await
    };
    for (version, flat) in [("1.0", false), ("1", false), ("0.3", true), ("", true)] {
        let field = format!("a2a-version: {version}");
        for reply in [send(&gateway, &[&field]).await, refused(&[&field]).await] {
            assert!(reply.status >= 400, "{}", reply.body);
            assert!(
                reply.json()["error"]["details"].is_array(),
                "{}",
                reply.body
            );
            assert_eq!(members(&reply).len() > 1, flat, "{version}: {}", reply.body);
            assert_eq!(reply.field("content-type"), Some("application/json"));
        }
    }
}

#[tokio::test]
async fn a_refusal_has_the_status_that_is_set_and_says_how_long_to_wait() {
    for (setting, status) in [(RefusalStatus::Http, 503), (RefusalStatus::Ok, 200)] {
        let gateway = TestGateway::new(unary_answer(ANSWER), |config| {
            config.a2a.refusal_status = setting;
        })
        .await;
        pause(&gateway).await;
        let reply = gateway.call(&[], CALL).await;
        let refusal = (reply.status, reply.refusal());
        assert_eq!(refusal, (status, Some("workspace_offline")));
        let wait = reply.field("retry-after").unwrap();
        let message = reply.json()["error"]["message"].to_string();
        let said = format!("Retry-After: {wait} s");
        assert!(message.contains(&said), "{message}");
        // Over HTTP+JSON the status is the reason's.
        assert_eq!(send(&gateway, &[]).await.status, 503);
    }
}

#[tokio::test]
async fn a_workspace_sets_the_status_of_the_refusals_of_its_calls() {
    let gateway = TestGateway::new(unary_answer(ANSWER), |_| ()).await;
    let new = json!({"id": "caller", "name": "caller"});
    let caller = gateway.create_workspace(new).await;
    pause(&gateway).await;
    let admin = gateway.admin_field();
    for (wanted, status) in [
        (json!("200"), 200),
        (json!("http"), 503),
        (Value::Null, 503),
    ] {
        let change = json!({"refusal_status": wanted}).to_string();
        let line = "PATCH /workspaces/caller";
        let changed = gateway.send(line, &[&admin], &change).await;
        assert_eq!(changed.status, 200, "{}", changed.body);
        assert_eq!(changed.json()["refusal_status"], wanted);
        let line = "POST /workspaces/target/a2a";
        let reply = gateway.send(line, &[&caller], CALL).await;
        let refusal = (reply.status, reply.refusal());
        assert_eq!(refusal, (status, Some("workspace_offline")), "{wanted}");
    }
}

#[tokio::test]
async fn a_streaming_call_that_is_refused_with_200_gets_an_event() {
    let gateway = TestGateway::new(unary_answer(ANSWER), |config| {
        config.a2a.refusal_status = RefusalStatus::Ok;
    })
    .await;
    pause(&gateway).await;
    let reply = gateway.call(&["accept: text/event-stream"], CALL).await;
    assert_eq!(reply.field("content-type"), Some("text/event-stream"));
    assert!(reply.body.starts_with("data: {"), "{}", reply.body);
}

#[tokio::test]
async fn a_file_of_the_python_sdk_arrives_as_its_bytes() {
    let gateway = TestGateway::new(unary_answer(ANSWER), |_| ()).await;
    let body = r#"{"message":{"messageId":"m-1","role":"ROLE_USER","content":[{"file":{"fileWithBytes":"YUdWc2JHOD0=","mimeType":"text/plain"}}]}}"#;
    let admin = gateway.admin_field();
    let line = "POST /workspaces/target/a2a/v1/message:send";
    let fields = [admin.as_str(), "user-agent: python-httpx/0.28.1"];
    let reply = gateway.send(line, &fields, body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let sent = gateway.agent.requests().pop().unwrap();
    assert!(sent.contains(r#""bytes":"aGVsbG8=""#), "{sent}");
    // Of another client nothing shows what it means.
    let reply = gateway.send(line, &fields[..1], body).await;
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert_eq!(reply.json()["code"], -32005, "{}", reply.body);
}
