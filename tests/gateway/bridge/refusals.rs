//! Calls, answers and events that have no translation, and calls while translation is off.

use serde_json::json;

use super::agents::{
    agent_1_0, agent_http_json, card_http_json, events, line, message_0_3, stream,
};
use super::{Case, card_1_0, ways};
use crate::harness::{Agent, Request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_bridge_the_caller_learns_what_the_agent_speaks() {
    let rows = [(-32601, "A2A 1.0 only"), (-32009, "A2A 0.3 only")];
    for ((case, caller, _, _), (code, speaks)) in ways().await.into_iter().zip(rows) {
        let off = case.gateway.patch("target", json!({"bridge": "off"})).await;
        assert_eq!(off.json()["bridge"], "off");
        let is_1_0 = caller.send == "SendMessage";
        let answer = case.call(caller.send, caller.message).await;
        let error = answer.json()["error"].clone();
        assert_eq!(answer.status, 200, "{error}");
        assert_eq!(error["code"], json!(code), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(speaks), "{message}");
        assert!(message.contains("a2a.bridge"), "{message}");
        let tail = if is_1_0 {
            "message:send"
        } else {
            "v1/message:send"
        };
        let rest = case.rest("POST", tail, "{}").await;
        assert_eq!(rest.reason(), "version_not_supported", "{}", rest.text());
        rest.says(speaks);
        // Its card was read for HTTP+JSON.
        let requests = case.target.agent.requests();
        assert!(requests.iter().all(|one| line(one).starts_with("GET ")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_counterpart_is_refused_before_the_agent() {
    let mut pushing = card_1_0("target");
    pushing["capabilities"] = json!({"pushNotifications": true});
    let case = Case::new(pushing, agent_1_0().await).await;
    let mut with_push = message_0_3();
    let hook = json!({"url": "http://127.0.0.1:9/hook"});
    with_push["configuration"]["pushNotificationConfig"] = hook.clone();
    let set = json!({"taskId": "t-1", "pushNotificationConfig": hook});
    for (method, params) in [
        ("message/send", with_push),
        ("tasks/pushNotificationConfig/set", set),
    ] {
        let json = case.call(method, params).await.json();
        assert_eq!(json["error"]["code"], -32003, "{method}: {json}");
    }
    assert_eq!(case.target.agent.count(), 0);
    let read = async |version: Option<&str>| {
        let mut request = Request::get("/workspaces/target/.well-known/agent-card.json");
        if let Some(version) = version {
            request = request.field("A2A-Version", version);
        }
        case.gateway.as_operator(request).await
    };
    for (version, pushes) in [("0.3", false), ("1.0", true)] {
        let card = read(Some(version)).await.json();
        assert_eq!(card["capabilities"]["pushNotifications"], pushes);
    }
    let both = read(None).await;
    both.has_field("vary", "Authorization, Origin, A2A-Version");
    let card = both.json();
    assert!(card["url"].is_string(), "{card}");
    assert!(card["protocolVersion"] == "0.3.0", "{card}");
    let versions = card["supportedInterfaces"].as_array().unwrap().iter();
    let versions = versions.map(|one| [&one["protocolBinding"], &one["protocolVersion"]]);
    let versions: Vec<_> = versions.collect();
    // Its own first.
    assert_eq!(versions[0], ["JSONRPC", "1.0"], "{versions:?}");
    let mut others = versions.iter();
    assert!(others.any(|one| *one == ["JSONRPC", "0.3"]), "{versions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_a_translation_is_never_passed_on() {
    let broken = r#"{"jsonrpc":"2.0","id":7,"result":{"task":{"id":"t-1","status":5}}}"#;
    let case = Case::new(card_1_0("target"), Agent::json(broken).await).await;
    let answer = case.call("message/send", message_0_3()).await;
    answer.errs(200, -32006);
    let agent = Agent::scripted(|_| {
        let good = r#"data: {"jsonrpc":"2.0","id":7,"result":{"task":{"id":"t-1","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}"#;
        let bad = r#"data: {"jsonrpc":"2.0","id":7,"result":{"statusUpdate":{"status":5}}}"#;
        stream(&format!("{good}\n\n{bad}\n\n"))
    });
    let case = Case::new(card_1_0("target"), agent.await).await;
    let streamed = case.call("message/stream", message_0_3()).await;
    let said = events(&streamed);
    assert_eq!(said[0]["result"]["kind"], "task", "{}", streamed.text());
    let last = &said.last().unwrap()["error"];
    assert_eq!(last["code"], -32006, "{}", streamed.text());
    assert!(!streamed.text().contains("statusUpdate"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_some_servers_read_as_another_path_reaches_no_agent() {
    let case = Case::new(card_http_json(), agent_http_json().await).await;
    for method in "GetTask CancelTask SubscribeToTask tasks/get tasks/cancel".split(' ') {
        for id in "tasks/t-1 t-1/pushNotificationConfigs .. t-1:subscribe t-1?x=1".split(' ') {
            let json = case.call(method, json!({"id": id})).await.json();
            assert_eq!(json["error"]["code"], -32602, "{method} {id}: {json}");
        }
    }
    let list = json!({"contextId": "c&pageSize=1"});
    let list = case.call("ListTasks", list).await.json();
    assert_eq!(list["error"]["code"], -32602, "{list}");
    let rest = case.rest("GET", "tasks/t-1%3Fx=1", "").await;
    assert_eq!(rest.reason(), "invalid_params", "{}", rest.text());
    let requests = case.target.agent.requests();
    assert!(requests.iter().all(|one| !line(one).contains("tasks")));
    assert_eq!(case.call("GetTask", json!({"id": "t-1"})).await.status, 200);
}
