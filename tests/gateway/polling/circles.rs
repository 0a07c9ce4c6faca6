//! Agents that poll and call one another in a circle are stopped: an entry says how many gateways its call has gone
//! through, and the agent passes that on.

use serde_json::{Value, json};

use super::{hello, poller};
use crate::harness::{Answer, Gateway, Pair, Request, card};

async fn send(gateway: &Gateway, target: &str, token: &str, hops: &str) -> Answer {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": hello()});
    let mut request = Request::post(format!("/workspaces/{target}/a2a"), call.to_string());
    if !hops.is_empty() {
        request = request.field("X-A2A-Hops", hops);
    }
    gateway.call(&request.bearer(token)).await
}

/// The newest entry of an inbox.
async fn newest(gateway: &Gateway, token: &str) -> Value {
    let request = Request::get("/activity?limit=1").bearer(token);
    let answer = gateway.call(&request).await.has(200);
    answer.json()[0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_poll_and_call_in_a_circle_are_stopped() {
    let gateway = Gateway::with("forward.max_hops=4").await;
    let one = ("one", poller(&gateway, "one", card("one")).await);
    let two = ("two", poller(&gateway, "two", card("two")).await);
    assert_eq!(send(&gateway, two.0, &one.1, "").await.status, 200);
    let (mut from, mut to) = (&two, &one);
    let mut seen = Vec::new();
    let refused = loop {
        let hops = newest(&gateway, &from.1).await["hops"].to_string();
        seen.push(hops.clone());
        assert!(seen.len() < 10, "the circle goes on: {seen:?}");
        let answer = send(&gateway, to.0, &from.1, &hops).await;
        if answer.status != 200 {
            break answer;
        }
        (from, to) = (to, from);
    };
    assert_eq!(seen, ["1", "2", "3", "4"]);
    refused.refuses(508, "loop_detected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegation_counts_at_an_agent_that_polls_and_in_its_result() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let one = poller(&gateway, "one", card("one")).await;
    let two = poller(&gateway, "two", card("two")).await;
    let body = json!({"target_id": "two", "task": "x"}).to_string();
    let request = Request::post("/workspaces/one/delegate", body).bearer(&one);
    let answer = gateway.call(&request.field("X-A2A-Hops", "2")).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let asked = Request::get("/activity?limit=1&wait=30&type=a2a_receive").bearer(&two);
    let entry = gateway.call(&asked).await.json()[0].clone();
    assert_eq!(entry["hops"], 3, "{entry}");
    let id = entry["id"].as_str().unwrap();
    let path = format!("/workspaces/two/activity/{id}/reply");
    let said = json!({"result": {"kind": "message", "messageId": "r", "role": "agent",
        "parts": [{"kind": "text", "text": "done"}]}});
    let reply = Request::post(path, said.to_string()).bearer(&two);
    gateway.call(&reply).await.has(200);
    let asked = Request::get("/activity?limit=1&wait=30&type=delegate_result").bearer(&one);
    let result = gateway.call(&asked).await.json()[0].clone();
    assert_eq!(result["hops"], 3, "{result}");
    // What the workspace tells its user is no call.
    let note = Request::post("/workspaces/one/notify", r#"{"message":"hi"}"#).bearer(&one);
    assert!(gateway.call(&note).await.status < 300);
    assert_eq!(newest(&gateway, &one).await["hops"], Value::Null);
}
