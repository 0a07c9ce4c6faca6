//! Agents that poll and call one another in a circle are stopped: an entry says how many gateways its call has gone
//! through, and the agent passes that on.

use serde_json::{Value, json};

use super::{hello, poller};
use crate::harness::{Answer, Builder, Gateway, Pair, Request, card};

async fn send(gateway: &Gateway, target: &str, token: &str, hops: Option<&str>) -> Answer {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": hello()});
    let request =
        Request::post(format!("/workspaces/{target}/a2a"), call.to_string()).bearer(token);
    let request = match hops {
        Some(hops) => request.field("X-A2A-Hops", hops),
        None => request,
    };
    gateway.call(&request).await
}

/// The newest entry of an inbox.
async fn newest(gateway: &Gateway, token: &str) -> Value {
    let request = Request::get("/activity?limit=1").bearer(token);
    let answer = gateway.call(&request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()[0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_poll_and_call_in_a_circle_are_stopped() {
    let gateway = Builder::new(Pair::Embedded)
        .set("forward.max_hops", "4")
        .start()
        .await;
    let one = ("one", poller(&gateway, "one", card("one")).await);
    let two = ("two", poller(&gateway, "two", card("two")).await);
    assert_eq!(send(&gateway, two.0, &one.1, None).await.status, 200);
    let (mut from, mut to) = (&two, &one);
    let mut seen = Vec::new();
    let refused = loop {
        let hops = newest(&gateway, &from.1).await["hops"].to_string();
        seen.push(hops.clone());
        assert!(seen.len() < 10, "the circle goes on: {seen:?}");
        let answer = send(&gateway, to.0, &from.1, Some(&hops)).await;
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
    let gateway = Builder::new(Pair::Embedded).start().await;
    let (one, two) = (
        poller(&gateway, "one", card("one")).await,
        poller(&gateway, "two", card("two")).await,
    );
    let body = json!({"target_id": "two", "task": "x"}).to_string();
    let request = Request::post("/workspaces/one/delegate", body).bearer(&one);
    let answer = gateway.call(&request.field("X-A2A-Hops", "2")).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let asked = Request::get("/activity?limit=1&wait=30&type=a2a_receive").bearer(&two);
    let entry = gateway.call(&asked).await.json()[0].clone();
    assert_eq!(entry["hops"], 3, "{entry}");
    let path = format!(
        "/workspaces/two/activity/{}/reply",
        entry["id"].as_str().unwrap()
    );
    let said = json!({"result": {"kind": "message", "messageId": "r", "role": "agent",
        "parts": [{"kind": "text", "text": "done"}]}});
    let replied = gateway
        .call(&Request::post(path, said.to_string()).bearer(&two))
        .await;
    assert_eq!(replied.status, 200, "{}", replied.text());
    let asked = Request::get("/activity?limit=1&wait=30&type=delegate_result").bearer(&one);
    let result = gateway.call(&asked).await.json()[0].clone();
    assert_eq!(result["hops"], 3, "{result}");
    // What the workspace tells its user is no call.
    let note = Request::post("/workspaces/one/notify", r#"{"message":"hi"}"#).bearer(&one);
    assert!(gateway.call(&note).await.status < 300);
    assert_eq!(newest(&gateway, &one).await["hops"], Value::Null);
}
