//! Calls that an operator stops: whose are refused, what ends, what waits, and what goes on (contract §17).

mod bounds;
mod commands;
mod replicas;
mod running;
mod scopes;
mod tasks;
mod waiting;

use serde_json::{Value, json};

use crate::harness::{Answer, CALL, Gateway, Request, Seat, until_holds as until};

const REASON: &str = "it answers itself in a loop; ask ops";

/// Makes a stop; answers its id.
async fn stop(gateway: &Gateway, scope: Value, mode: &str) -> String {
    let body = json!({"scope": scope, "mode": mode, "reason": REASON});
    made(gateway, &body).await["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn made(gateway: &Gateway, body: &Value) -> Value {
    let request = Request::post("/stops", body.to_string());
    let answer = gateway.as_operator(request).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()
}

async fn release(gateway: &Gateway, id: &str) -> Value {
    let request = Request::new("DELETE", format!("/stops/{id}"));
    let answer = gateway.as_operator(request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn listed(gateway: &Gateway) -> Vec<Value> {
    let answer = gateway.as_operator(Request::get("/stops")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["stops"].as_array().unwrap().clone()
}

fn call(token: &str, target: &str) -> Request {
    let request = Request::post(format!("/workspaces/{target}/a2a"), CALL);
    request.bearer(token).field("X-Request-Id", "seen")
}

/// Asserts that a call over JSON-RPC or HTTP+JSON is refused by the stop.
fn assert_stopped(answer: &Answer, stop: &str, what: &str) {
    let shown = format!("{what}: {} {}", answer.status, answer.text());
    assert_eq!(answer.status, 403, "{shown}");
    assert_eq!(answer.reason(), "stopped", "{shown}");
    assert_eq!(answer.fact("stop").as_deref(), Some(stop), "{shown}");
    assert_eq!(answer.json()["error"]["message"], REASON, "{shown}");
}

async fn beat(gateway: &Gateway, seat: &Seat) -> u16 {
    let body = json!({"workspace_id": seat.id}).to_string();
    let request = Request::post("/registry/heartbeat", body).bearer(&seat.token);
    gateway.call(&request).await.status
}
