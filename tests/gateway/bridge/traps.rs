//! Traps of the translation that need the whole way: streams that end in the middle, subscriptions under load, versions
//! and extensions that are named twice or wrongly, bodies whose kind comes last.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::agents::{agent_1_0, call_in, events, message_0_3, message_1_0, task_0_3, task_1_0};
use super::{Case, card, card_1_0, kinds, ways};
use crate::harness::{Agent, Connection, Gateway, LAST_CHUNK, SSE_HEAD, Step, chunk, ok_json};

/// Events of the agent while a subscriber waits for the task.
const BUSY: usize = 200;

fn event_1_0(result: &Value) -> String {
    let reply = json!({"jsonrpc": "2.0", "id": 7, "result": result});
    format!("data: {reply}\n\n")
}

/// An agent of 1.0 whose stream is these bytes.
async fn streaming(body: String, end: &'static str) -> Agent {
    Agent::scripted(move |_| {
        let bytes = [SSE_HEAD.as_bytes(), &chunk(&body), end.as_bytes()].concat();
        vec![Step::Write(bytes), Step::Close]
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_in_the_middle_has_a_last_event_in_the_callers_form() {
    let task = event_1_0(&json!({"task": task_1_0("TASK_STATE_WORKING")}));
    let update = json!({"statusUpdate": {"taskId": "t-1", "contextId": "c-1",
        "status": {"state": "TASK_STATE_WORKING"}}});
    let update = event_1_0(&update);
    let streamed = async |body: String, end| {
        let agent = streaming(body, end).await;
        let case = Case::new(card_1_0("target"), agent).await;
        case.call("message/stream", message_0_3()).await
    };
    // It ends without a final event.
    let answer = streamed(format!("{task}{update}"), LAST_CHUNK).await;
    assert_eq!(kinds(&events(&answer)), ["task", "status-update"]);
    // The connection breaks in the middle of an event.
    let answer = streamed(format!("{task}data: {{\"jsonrpc\""), "").await;
    let said = events(&answer);
    assert_eq!(said[0]["result"]["kind"], "task", "{}", answer.text());
    let last = &said[1]["error"]["data"][0]["reason"];
    assert_eq!(last, "AGENT_PROTOCOL_ERROR", "{}", answer.text());
    // The agent ends its body behind an event without a blank line.
    let answer = streamed(format!("{task}{}", update.trim_end()), LAST_CHUNK).await;
    assert!(!answer.text().contains("statusUpdate"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_misses_no_event_while_the_task_is_asked_for() {
    let agent = Agent::scripted(|request| {
        let call = call_in(request);
        let reply = |result: Value| json!({"jsonrpc": "2.0", "id": call["id"], "result": result});
        if call["method"] == "tasks/get" {
            let body = reply(task_0_3("working")).to_string();
            let answer = Step::Write(ok_json(&body));
            return vec![Step::Wait(Duration::from_millis(150)), answer];
        }
        let mut steps = vec![Step::write(SSE_HEAD)];
        for n in 0..BUSY {
            let update = reply(
                json!({"kind": "artifact-update", "taskId": "t-1", "contextId": "c-1", "append": true,
                "artifact": {"artifactId": "a-1", "parts": [{"kind": "text", "text": n.to_string()}]}}),
            );
            steps.push(Step::Write(chunk(format!("data: {update}\n\n"))));
            steps.push(Step::Wait(Duration::from_millis(2)));
        }
        let over = reply(
            json!({"kind": "status-update", "taskId": "t-1", "contextId": "c-1",
            "status": {"state": "completed"}, "final": true}),
        );
        steps.push(Step::Write(chunk(format!("data: {over}\n\n"))));
        steps.push(Step::write(LAST_CHUNK));
        steps
    });
    let case = Case::new(card("target"), agent.await).await;
    let answer = case.call("SubscribeToTask", json!({"id": "t-1"})).await;
    let said = events(&answer);
    assert_eq!(said.len(), BUSY + 2, "{}", answer.text());
    assert_eq!(said[0]["result"]["task"]["id"], "t-1");
    for (n, event) in said[1..=BUSY].iter().enumerate() {
        let part = &event["result"]["artifactUpdate"]["artifact"]["parts"][0];
        assert_eq!(part["text"], n.to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_to_a_task_that_is_unknown_or_over_says_so() {
    let agent = Agent::scripted(|request| {
        let call = call_in(request);
        let error = json!({"code": -32001, "message": "no such task"});
        let body = json!({"jsonrpc": "2.0", "id": call["id"], "error": error});
        vec![Step::Write(ok_json(&body.to_string()))]
    });
    let case = Case::new(card("target"), agent.await).await;
    let answer = case.call("SubscribeToTask", json!({"id": "t-9"})).await;
    assert_eq!(answer.json()["error"]["code"], -32001, "{}", answer.text());
    let rest = case.rest("GET", "tasks/t-9:subscribe", "").await.has(404);
    rest.says("TASK_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_method_decides_whatever_version_is_named() {
    let ways = ways().await;
    for version in ["none", "0.3", "1.0", "1.0.3", "0.3.0", ""] {
        for (case, caller, _, label) in &ways {
            let mut request = case.request(caller.send, caller.message.clone());
            if version != "none" {
                request = request.field("A2A-Version", version);
            }
            let answer = case.gateway.call(&request).await;
            let said = format!("{label}, {version:?}: {}", answer.text());
            assert_eq!(answer.field("x-a2a-bridged"), Some(*label), "{said}");
            assert!(answer.json()["result"].is_object(), "{said}");
            // The agent reads its own version, once.
            let expected = &label[4..];
            let sent = case.last();
            assert_eq!(sent.fields("a2a-version"), [expected], "{said}");
        }
    }
    let up = &ways[0].0;
    let mut request = up.request("message/send", message_0_3());
    request.path += "?A2A-Version=1.0";
    let answer = up.gateway.call(&request).await;
    assert_eq!(answer.json()["result"]["kind"], "task", "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extensions_have_the_name_of_each_generation() {
    let agent = Agent::scripted(|request| {
        let id = call_in(request)["id"].clone();
        let task = json!({"task": task_1_0("TASK_STATE_COMPLETED")});
        let body = json!({"jsonrpc": "2.0", "id": id, "result": task}).to_string();
        let answer = String::from_utf8(ok_json(&body)).unwrap();
        let named = "\r\nA2A-Extensions: https://e/1\r\n";
        vec![Step::write(answer.replacen("\r\n", named, 1))]
    });
    let case = Case::new(card_1_0("target"), agent.await).await;
    let request = case
        .request("message/send", message_0_3())
        .field("X-A2A-Extensions", "https://e/1")
        .field("A2A-Extensions", "https://e/2")
        .field("X-A2A-Extensions", "https://e/3, https://e/1");
    let answer = case.gateway.call(&request).await.has(200);
    assert_eq!(answer.field("x-a2a-extensions"), Some("https://e/1"));
    assert_eq!(answer.field("a2a-extensions"), None);
    let sent = case.last();
    assert!(sent.fields("x-a2a-extensions").is_empty());
    let named = sent.fields("a2a-extensions").join(", ");
    for extension in ["https://e/1", "https://e/2", "https://e/3"] {
        assert!(named.contains(extension), "{named}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kind_of_an_answer_may_come_after_megabytes() {
    let text = "x".repeat(64 * 1024);
    let part = format!(r#"{{"text":"{text}","kind":"text"}}"#);
    let parts = vec![part; 80].join(",");
    let task = format!(
        r#"{{"artifacts":[{{"parts":[{parts}],"artifactId":"a-1"}}],"status":{{"state":"completed"}},"contextId":"c-1","id":"t-1","\u006bind":"task"}}"#
    );
    let body = format!(r#"{{"result":{task},"id":7,"jsonrpc":"2.0"}}"#);
    let case = Case::new(card("target"), Agent::json(&body).await).await;
    let answer = case.call("SendMessage", message_1_0()).await;
    let task = answer.json()["result"]["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    let parts = task["artifacts"][0]["parts"].as_array().map(Vec::len);
    assert_eq!(parts, Some(80));
    assert!(!answer.text().contains("kind"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_spelling_of_a_member_reaches_the_task_of_another_caller() {
    let case = Case::new(card_1_0("target"), agent_1_0().await).await;
    let begun = case.call("message/send", message_0_3()).await;
    assert_eq!(begun.json()["result"]["id"], "t-1", "{}", begun.text());
    let long = format!("id{}", "_".repeat(50));
    for name in ["id", "_id", "id_", &long] {
        let mut message = message_0_3()["message"].clone();
        message[name.replace("id", "taskId")] = json!("t-1");
        message[name.replace("id", "metadata")] = json!({"source_workspace_id": "caller"});
        for (method, params) in [
            ("tasks/get", json!({name: "t-1"})),
            ("tasks/cancel", json!({name: "t-1"})),
            ("message/send", json!({"message": message})),
        ] {
            let before = case.target.agent.count();
            let answer = case.strange(method, params).await.text();
            if case.target.agent.count() > before {
                let (at_agent, sent) = case.at_agent();
                let sent = sent.to_string();
                assert!(!sent.contains("t-1"), "{at_agent} {sent}: {answer}");
                let forged = r#""source_workspace_id":"caller""#;
                assert!(!sent.contains(forged), "{sent}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_for_one_answer_is_none() {
    let task = event_1_0(&json!({"task": task_1_0("TASK_STATE_COMPLETED")}));
    let case = Case::new(card_1_0("target"), streaming(task, LAST_CHUNK).await).await;
    for (method, params) in [
        ("message/send", message_0_3()),
        ("tasks/get", json!({"id": "t-1"})),
    ] {
        let answer = case.call(method, params).await;
        assert_eq!(answer.reason(), "agent_protocol_error", "{}", answer.text());
        assert!(!answer.text().contains("TASK_STATE"), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_is_kept_alive_while_the_task_is_asked_for() {
    let asked = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&asked);
    let agent = Agent::scripted(move |request| {
        let call = call_in(request);
        let reply = |result: Value| json!({"jsonrpc": "2.0", "id": call["id"], "result": result});
        if call["method"] == "tasks/get" {
            let body = reply(task_0_3("working")).to_string();
            let answer = Step::Write(ok_json(&body));
            return vec![Step::Held(Arc::clone(&held)), answer];
        }
        let over = reply(
            json!({"kind": "status-update", "taskId": "t-1", "contextId": "c-1",
            "status": {"state": "completed"}, "final": true}),
        );
        let events = [SSE_HEAD.as_bytes(), &chunk(format!("data: {over}\n\n"))].concat();
        vec![Step::Write(events), Step::write(LAST_CHUNK)]
    });
    let gateway = Gateway::with("stream.keepalive=100ms").await;
    let case = Case::at(gateway, card("target"), agent.await).await;
    let mut connection = Connection::open(case.gateway.public).await;
    let subscribe = case.request("SubscribeToTask", json!({"id": "t-1"}));
    connection.ask(&subscribe).await;
    let head = connection.read_head().await.unwrap();
    let before = connection.next_chunk().await.unwrap();
    assert!(before.starts_with(b":"), "{before:?}");
    asked.add_permits(1);
    let answer = connection.read_body(head).await;
    let said = events(&answer);
    assert_eq!(said.len(), 2, "{}", answer.text());
    assert_eq!(said[0]["result"]["task"]["id"], "t-1");
}
