//! The order of the stages: of two faults of one call, the one that the earlier stage finds is answered.

use super::*;
use kernel::stage::Stage;

/// The settings of the gateway that the faults need.
const SETTINGS: &str = r#"
[[guard]]
name = "words"
builtin = "patterns"
patterns = [{name = "word", regex = "forbidden"}]

[[cap]]
name = "run-messages"
per = "run"
count = "messages"
limit = 1
"#;

/// The answer of the agent: a task of its caller.
const TASK: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"t-1","contextId":"c-1","status":{"state":"completed"}}}"#;

const BODY_BYTES_MAX: usize = 8 * 1024;

/// The stages that a call can fail at here, in their order.
const FAULTS: [Stage; 16] = [
    Stage::Http,
    Stage::Origin,
    Stage::Route,
    Stage::Target,
    Stage::Size,
    Stage::Caller,
    Stage::Claim,
    Stage::Rate,
    Stage::Rule,
    Stage::Stop,
    Stage::State,
    Stage::Fields,
    Stage::Body,
    Stage::Envelope,
    Stage::Push,
    Stage::Tasks,
];

/// The stages behind those, which the content decides or the agent.
const LATE_FAULTS: [Stage; 2] = [Stage::Guards, Stage::Caps];

/// The credentials of callers, as fields.
struct Callers {
    usual: String,
    /// One that has used up its rate.
    limited: String,
    /// One that may not reach the target.
    stranger: String,
    /// One that neither may nor has a rate left.
    limited_stranger: String,
}

async fn start_gateway() -> (TestGateway, Callers) {
    let gateway = TestGateway::new(unary_answer(TASK), |config| {
        let extra: Config = toml::from_str(&format!("{DEFAULT}{SETTINGS}")).unwrap();
        (config.guard, config.cap) = (extra.guard, extra.cap);
        config.limits.request_bytes.0 = BODY_BYTES_MAX as u64;
        config.a2a.push_notifications = false;
        (config.rate.caller_per_second, config.rate.caller_burst) = (1, 200);
        config.rate.failures_per_second = 10_000;
    })
    .await;
    let child = |id: &str| json!({"id": id, "name": id, "parent_id": "target"});
    let callers = {
        let usual = gateway.create_workspace(child("usual")).await;
        let limited = gateway.create_workspace(child("limited")).await;
        let admin = gateway.admin_field();
        let other = json!({"id": "other", "name": "other"}).to_string();
        gateway.send("POST /workspaces", &[&admin], &other).await;
        let stranger = json!({"id": "stranger", "name": "s", "parent_id": "other"});
        let stranger = gateway.create_workspace(stranger).await;
        let another = json!({"id": "another", "name": "a", "parent_id": "other"});
        let limited_stranger = gateway.create_workspace(another).await;
        Callers {
            usual,
            limited,
            stranger,
            limited_stranger,
        }
    };
    gateway.create_workspace(child("stopped")).await;
    let admin = gateway.admin_field();
    for id in ["offline", "offline-stopped"] {
        let new = child(id).to_string();
        gateway.send("POST /workspaces", &[&admin], &new).await;
    }
    for id in ["stopped", "offline-stopped"] {
        let stop = json!({"scope": {"workspace": id}, "mode": "new", "reason": "a test"});
        let stop = stop.to_string();
        let made = gateway.send("POST /stops", &[&admin], &stop).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    (gateway, callers)
}

fn random_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Builds the text of a call with these faults.
fn build_call(callers: &Callers, faults: &[Stage]) -> String {
    let has = |stage| faults.contains(&stage);
    let mut message = json!({"kind": "message", "role": "user", "messageId": random_id(),
        "parts": [{"kind": "text", "text": "hi"}]});
    let mut params = json!({"metadata": {"run_id": random_id()}});
    if has(Stage::Guards) {
        message["parts"][0]["text"] = "forbidden".into();
    }
    if has(Stage::Tasks) {
        message["taskId"] = "t-1".into();
    }
    if has(Stage::Size) {
        params["metadata"]["pad"] = "x".repeat(BODY_BYTES_MAX).into();
    }
    if has(Stage::Caps) {
        params["metadata"]["run_id"] = "spent".into();
    }
    if has(Stage::Push) {
        params["configuration"] = json!({"pushNotificationConfig": {"url": "https://e.example/"}});
    }
    params["message"] = message;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params});
    let mut body = call.to_string();
    if has(Stage::Envelope) {
        body.push('}');
    }
    let verb = if has(Stage::Route) { "PUT" } else { "POST" };
    let target = match (has(Stage::Stop), has(Stage::State)) {
        _ if has(Stage::Target) => "system:x",
        (false, false) => "target",
        (true, false) => "stopped",
        (false, true) => "offline",
        (true, true) => "offline-stopped",
    };
    let host = match has(Stage::Origin) {
        true => "evil.example",
        false => "127.0.0.1:8080",
    };
    let media_type = match has(Stage::Body) {
        true => "text/plain",
        false => "application/json",
    };
    let length = body.len();
    let mut head = format!(
        "{verb} /workspaces/{target}/a2a HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
         content-type: {media_type}\r\ncontent-length: {length}\r\n"
    );
    if has(Stage::Http) {
        head.push_str(&format!("host: {host}\r\n"));
    }
    if !has(Stage::Caller) {
        let caller = match (has(Stage::Rate), has(Stage::Rule)) {
            (false, false) => &callers.usual,
            (true, false) => &callers.limited,
            (false, true) => &callers.stranger,
            (true, true) => &callers.limited_stranger,
        };
        head.push_str(&format!("{caller}\r\n"));
    }
    if has(Stage::Claim) {
        head.push_str("x-workspace-id: other\r\n");
    }
    if has(Stage::Fields) {
        head.push_str("x-timeout: 0\r\n");
    }
    format!("{head}\r\n{body}")
}

/// What tells one refusal from another: its status, its reason and its message.
fn refusal(reply: &Reply) -> (u16, String, String) {
    let body = reply.json();
    let error = &body["error"];
    let message = error["message"].as_str().or(error.as_str());
    let reason = reply.refusal().unwrap_or_default().to_owned();
    // Where the body is broken depends on what else it has.
    let message = message.unwrap_or_default().split(" at byte ").next();
    (reply.status, reason, message.unwrap_or_default().to_owned())
}

/// Sends a call with these faults. The rate of the callers that have used it up is used up before it and behind it.
async fn refuse(
    gateway: &TestGateway,
    callers: &Callers,
    faults: &[Stage],
) -> (u16, String, String) {
    let is_limited = faults.contains(&Stage::Rate) && !faults.contains(&Stage::Caller);
    let mut probe = vec![Stage::Rate];
    probe.extend(faults.iter().filter(|stage| **stage == Stage::Rule));
    let is_spent = async || {
        let probed = gateway.send_text(&build_call(callers, &probe)).await;
        probed.refusal() == Some("rate_limited")
    };
    loop {
        while is_limited && !is_spent().await {}
        let reply = gateway.send_text(&build_call(callers, faults)).await;
        if !is_limited || is_spent().await {
            return refusal(&reply);
        }
    }
}

#[tokio::test]
async fn of_two_faults_the_one_of_the_earlier_stage_is_answered() {
    let (gateway, callers) = start_gateway().await;
    // `limited` owns the task, and the run is spent.
    let owned = build_call(&callers, &[]).replace(&callers.usual, &callers.limited);
    assert_eq!(gateway.send_text(&owned).await.status, 200);
    let spending = build_call(&callers, &[Stage::Caps]);
    assert_eq!(gateway.send_text(&spending).await.status, 200);
    let faults: Vec<_> = FAULTS.into_iter().chain(LATE_FAULTS).collect();
    let mut alone = Vec::new();
    for fault in &faults {
        let refused = refuse(&gateway, &callers, &[*fault]).await;
        assert!(
            refused.0 >= 400 || !refused.1.is_empty(),
            "{fault:?}: {refused:?}"
        );
        assert!(
            !alone.contains(&refused),
            "{fault:?} is told apart: {refused:?}"
        );
        alone.push(refused);
    }
    for (second, late) in faults.iter().enumerate() {
        for (first, early) in faults[..second].iter().enumerate() {
            let refused = refuse(&gateway, &callers, &[*early, *late]).await;
            assert_eq!(refused, alone[first], "{early:?} before {late:?}");
        }
    }
    gateway.agent.serving.abort();
    let unreachable = refuse(&gateway, &callers, &[]).await;
    assert_eq!(unreachable.1, "agent_unreachable");
    for (fault, alone) in faults.iter().zip(&alone) {
        let refused = refuse(&gateway, &callers, &[*fault]).await;
        assert_eq!(refused, *alone, "{fault:?} before the connection");
    }
    assert!(
        faults.is_sorted_by_key(|stage| *stage as usize),
        "the documented order"
    );
}
