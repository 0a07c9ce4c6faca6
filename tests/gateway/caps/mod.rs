//! Caps: what calls use in total, counted for all replicas without a store for a message (contract §17).

mod counted;
mod kept;
mod observed;
mod replicas;
mod shown;

use serde_json::{Value, json};

use crate::harness::{Answer, Builder, Gateway, Pair, Recorded, Request, Seat, Step, ok_json};

/// A gateway with these caps.
fn capped(pair: Pair, caps: &Value) -> Builder {
    Builder::new(pair).set("cap", &caps.to_string())
}

/// A cap of messages for each run, for good.
fn per_run(limit: u64) -> Value {
    json!([{"name": "run", "per": "run", "count": "messages", "limit": limit}])
}

/// A message in a run.
fn in_run(run: &str) -> Value {
    json!({"metadata": {"run_id": run}, "message": {"role": "user", "kind": "message",
        "messageId": "m-1", "parts": [{"kind": "text", "text": "hi"}]}})
}

/// A call that sends a message.
fn send(to: &Seat, by: &Seat, params: &Value) -> Request {
    let call = json!({"jsonrpc": "2.0", "id": "c-1", "method": "message/send", "params": params});
    by.sends(to, call.to_string())
}

/// Answers with a message.
fn hello(_: &Recorded) -> Vec<Step> {
    let result = json!({"kind": "message", "role": "agent", "messageId": "a-1", "parts": []});
    vec![Step::Write(ok_json(&rpc(&result)))]
}

/// Answers with a task that it begins.
fn task(_: &Recorded) -> Vec<Step> {
    let status = json!({"state": "working"});
    let result = json!({"kind": "task", "id": "t-1", "contextId": "c-1", "status": status});
    vec![Step::Write(ok_json(&rpc(&result)))]
}

fn rpc(result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": "c-1", "result": result}).to_string()
}

/// Returns the answer of `GET /caps` for the cap `name`.
async fn cap(gateway: &Gateway, name: &str) -> Value {
    let shown = Request::get(format!("/caps?cap={name}"));
    let answer = gateway.as_operator(shown).await.has(200);
    answer.json()["caps"][0].clone()
}

/// The use of the only subject of a cap; 0 without one.
async fn used(gateway: &Gateway, name: &str) -> u64 {
    let shown = cap(gateway, name).await;
    let subjects = shown["subjects"].as_array().unwrap();
    assert!(subjects.len() <= 1, "{shown}");
    let first = subjects.first();
    first.map_or(0, |subject| subject["used"].as_u64().unwrap())
}

fn assert_reached(answer: &Answer, name: &str) {
    answer.refuses(429, "cap_reached");
    assert_eq!(answer.fact("cap").as_deref(), Some(name));
    assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
}
