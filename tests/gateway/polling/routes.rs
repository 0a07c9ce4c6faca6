//! The same without JSON-RPC: the gateway speaks HTTP+JSON of 1.0 for agents that poll, and the older routes.

use serde_json::json;

use super::{Case, data, hello, hello_1_0};
use crate::harness::{Pair, Request};

#[tokio::test]
async fn the_routes_of_1_0_are_answered_in_its_words() {
    let case = Case::new(Pair::Embedded).await;
    let at = |verb: &str, tail: &str| {
        Request::new(verb, format!("/workspaces/poller/a2a/{tail}")).bearer(&case.caller.token)
    };
    let mut send = at("POST", "message:send").field("Content-Type", "application/json");
    let mut params = hello_1_0();
    params["configuration"] = json!({"returnImmediately": true});
    send.body = params.to_string().into_bytes();
    let sent = case.gateway.call(&send).await.has(200);
    let task = &sent.json()["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_SUBMITTED", "{task}");
    let id = task["id"].as_str().unwrap();
    let read = case.gateway.call(&at("GET", &format!("tasks/{id}"))).await;
    assert_eq!(read.status, 200, "{}", read.text());
    assert_eq!(read.json()["id"], json!(id), "{}", read.text());
    let cancel = at("POST", &format!("tasks/{id}:cancel"));
    let canceled = case.gateway.call(&cancel).await.json();
    let state = &canceled["status"]["state"];
    assert_eq!(state, "TASK_STATE_CANCELED", "{canceled}");
    let again = case.gateway.call(&cancel).await;
    assert_eq!((again.status, &again.json()["code"]), (400, &json!(-32002)));
    let subscribe = at("GET", &format!("tasks/{id}:subscribe"));
    let stream = case.gateway.call(&subscribe).await;
    assert_eq!(stream.field("content-type"), Some("text/event-stream"));
    assert_eq!(data(&stream)[0]["task"]["id"], id, "{}", stream.text());
    let old = case.gateway.call(&at("POST", "v1/message:send")).await;
    old.refuses(404, "not_found");
}

#[tokio::test]
async fn the_older_routes_are_answered_bare() {
    let case = Case::new(Pair::Embedded).await;
    let path = |tail: &str| format!("/workspaces/poller/a2a/{tail}");
    let send = Request::post(path("tasks/send"), hello().to_string()).bearer(&case.caller.token);
    let sent = case.gateway.call(&send).await.has(200);
    assert_eq!(sent.json()["kind"], "task", "{}", sent.text());
    let id = sent.json()["id"].as_str().unwrap().to_owned();
    let cancel = Request::post(path(&format!("tasks/{id}/cancel")), "").bearer(&case.caller.token);
    let canceled = case.gateway.call(&cancel.without("Content-Type")).await;
    let canceled = canceled.json();
    assert_eq!(canceled["status"]["state"], "canceled", "{canceled}");
}
