//! Calls, answers and events that have no translation, and calls while translation is off.

use serde_json::json;

use super::agents::{
    agent_0_3, agent_1_0, agent_http_json, card_http_json, events, line, message_0_3, message_1_0,
    stream,
};
use super::{Case, card, card_1_0};
use crate::harness::{ADMIN, Agent, Request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_bridge_the_caller_learns_what_the_agent_speaks() {
    for (card, agent, call, code, speaks) in [
        (
            card("target"),
            agent_0_3().await,
            ("SendMessage", message_1_0()),
            -32009,
            "A2A 0.3 only",
        ),
        (
            card_1_0("target"),
            agent_1_0().await,
            ("message/send", message_0_3()),
            -32601,
            "A2A 1.0 only",
        ),
    ] {
        let case = Case::new(card, agent).await;
        let off = json!({"bridge": "off"});
        let patched = Request::patch("/workspaces/target", off.to_string());
        assert_eq!(
            case.gateway.as_operator(patched).await.json()["bridge"],
            "off"
        );
        let answer = case.call(call.0, call.1).await;
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["code"]),
            (200, &json!(code)),
            "{error}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(speaks) && message.contains("a2a.bridge"),
            "{message}"
        );
        let tail = if call.0 == "SendMessage" {
            "message:send"
        } else {
            "v1/message:send"
        };
        let rest = case.rest("POST", tail, "{}").await;
        assert_eq!(rest.reason(), "version_not_supported", "{}", rest.text());
        rest.says(speaks);
        // Its card was read for HTTP+JSON.
        let requests = case.target.agent.requests();
        assert!(
            requests
                .iter()
                .all(|request| line(request).starts_with("GET "))
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_counterpart_is_refused_before_the_agent() {
    let mut pushing = card_1_0("target");
    pushing["capabilities"] = json!({"pushNotifications": true});
    let case = Case::new(pushing, agent_1_0().await).await;
    let mut with_push = message_0_3();
    with_push["configuration"]["pushNotificationConfig"] =
        json!({"url": "http://127.0.0.1:9/hook"});
    for (method, params) in [
        ("message/send", with_push),
        (
            "tasks/pushNotificationConfig/set",
            json!({"taskId": "t-1", "pushNotificationConfig": {"url": "http://127.0.0.1:9/hook"}}),
        ),
    ] {
        let answer = case.call(method, params).await;
        assert_eq!(
            answer.json()["error"]["code"],
            -32003,
            "{method}: {}",
            answer.text()
        );
    }
    assert_eq!(case.target.agent.count(), 0);
    let read = async |version: Option<&str>| {
        let mut request =
            Request::get("/workspaces/target/.well-known/agent-card.json").bearer(ADMIN);
        if let Some(version) = version {
            request = request.field("A2A-Version", version);
        }
        case.gateway.call(&request).await
    };
    assert_eq!(
        read(Some("0.3")).await.json()["capabilities"]["pushNotifications"],
        false
    );
    assert_eq!(
        read(Some("1.0")).await.json()["capabilities"]["pushNotifications"],
        true
    );
    let both = read(None).await;
    assert_eq!(
        both.field("vary"),
        Some("Authorization, Origin, A2A-Version")
    );
    let card = both.json();
    assert!(
        card["url"].is_string() && card["protocolVersion"] == "0.3.0",
        "{card}"
    );
    let versions: Vec<_> = card["supportedInterfaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (
                one["protocolBinding"].clone(),
                one["protocolVersion"].clone(),
            )
        })
        .collect();
    assert_eq!(
        versions[0],
        (json!("JSONRPC"), json!("1.0")),
        "its own first: {versions:?}"
    );
    assert!(
        versions.contains(&(json!("JSONRPC"), json!("0.3"))),
        "{versions:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_a_translation_is_never_passed_on() {
    let broken = r#"{"jsonrpc":"2.0","id":7,"result":{"task":{"id":"t-1","status":5}}}"#;
    let case = Case::new(card_1_0("target"), Agent::json(broken).await).await;
    let answer = case.call("message/send", message_0_3()).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (200, &json!(-32006)),
        "{}",
        answer.text()
    );
    let agent = Agent::scripted(|_| {
        let good = r#"data: {"jsonrpc":"2.0","id":7,"result":{"task":{"id":"t-1","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}"#;
        stream(&format!(
            "{good}\n\ndata: {{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{{\"statusUpdate\":{{\"status\":5}}}}}}\n\n"
        ))
    });
    let case = Case::new(card_1_0("target"), agent.await).await;
    let streamed = case.call("message/stream", message_0_3()).await;
    let said = events(&streamed);
    assert_eq!(said[0]["result"]["kind"], "task", "{}", streamed.text());
    assert_eq!(
        said.last().unwrap()["error"]["code"],
        -32006,
        "{}",
        streamed.text()
    );
    assert!(!streamed.text().contains("statusUpdate"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_some_servers_read_as_another_path_reaches_no_agent() {
    let case = Case::new(card_http_json(), agent_http_json().await).await;
    for method in [
        "GetTask",
        "CancelTask",
        "SubscribeToTask",
        "tasks/get",
        "tasks/cancel",
    ] {
        for id in [
            "tasks/t-1",
            "t-1/pushNotificationConfigs",
            "..",
            "t-1:subscribe",
            "t-1?x=1",
        ] {
            let answer = case.call(method, json!({"id": id})).await;
            assert_eq!(
                answer.json()["error"]["code"],
                -32602,
                "{method} {id}: {}",
                answer.text()
            );
        }
    }
    let answer = case
        .call("ListTasks", json!({"contextId": "c&pageSize=1"}))
        .await;
    assert_eq!(answer.json()["error"]["code"], -32602, "{}", answer.text());
    let rest = case.rest("GET", "tasks/t-1%3Fx=1", "").await;
    assert_eq!(rest.reason(), "invalid_params", "{}", rest.text());
    let requests = case.target.agent.requests();
    assert!(
        requests
            .iter()
            .all(|request| !line(request).contains("tasks"))
    );
    assert_eq!(case.call("GetTask", json!({"id": "t-1"})).await.status, 200);
}
