//! Cancels known unfinished tasks at their agents, and writes the outcome of each down.

use serde_json::{Value, json};

use super::{REASON, call, listed, made, release, until};
use crate::harness::{Agent, Gateway, Pair, Recorded, Step, ok_json};
use crate::on_embedded;

/// The message's text.
fn text(call: &Value) -> &str {
    call["params"]["message"]["parts"][0]["text"]
        .as_str()
        .unwrap_or_default()
}

/// An agent of which each message begins a task of the message's text, in the state that the text begins with.
fn behave(request: &Recorded) -> Vec<Step> {
    let call: Value = serde_json::from_str(request.text()).unwrap_or_default();
    let task = |id: &str, state: &str| {
        json!({"jsonrpc": "2.0", "id": call["id"], "result":
            {"kind": "task", "id": id, "contextId": "c", "status": {"state": state}}})
    };
    let answer = match call["method"].as_str().unwrap_or_default() {
        "tasks/cancel" => match call["params"]["id"].as_str().unwrap() {
            id if id.contains("Over") => {
                json!({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32002, "message": "over"}})
            }
            id if id.contains("Broken") => {
                json!({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32603, "message": "no"}})
            }
            id => task(id, "canceled"),
        },
        "tasks/get" => task(call["params"]["id"].as_str().unwrap(), "completed"),
        _ => {
            let text = text(&call);
            let state = text.split('-').next().unwrap_or_default();
            task(text, state)
        }
    };
    vec![Step::Write(ok_json(&answer.to_string()))]
}

on_embedded! {
    async fn each_unfinished_task_is_canceled_and_its_outcome_written_down() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let (caller, target) = gateway.pair(Agent::scripted(behave).await).await;
        let other = gateway.seat("other", "", Agent::scripted(behave).await).await;
        for (token, to, text) in [
            (&caller.token, "target", "working-One"),
            (&caller.token, "target", "submitted-Two"),
            (&caller.token, "target", "working-Over"),
            (&caller.token, "target", "working-Broken"),
            (&caller.token, "target", "completed-Done"),
            (&caller.token, "target", "working-Read"),
            (&target.token, "other", "working-Below"),
            (&caller.token, "other", "working-Elsewhere"),
        ] {
            let mut request = call(token, to);
            let body = String::from_utf8(request.body.clone()).unwrap().replace("\"hi\"", &format!("\"{text}\""));
            request.body = body.into_bytes();
            let answer = gateway.call(&request).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        // Its caller saw it end.
        let read = json!({"jsonrpc": "2.0", "id": "r", "method": "tasks/get", "params": {"id": "working-Read"}});
        let mut request = call(&caller.token, "target");
        request.body = read.to_string().into_bytes();
        assert_eq!(gateway.call(&request).await.status, 200);
        until("what was seen of tasks is noted", async || {
            gateway.metric("a2a_gateway_queue_entries", &["queue=\"task_notes\""]).await == 0.0
        }).await;
        let body = json!({"scope": {"workspace": "target"}, "mode": "running", "reason": REASON, "cancel_tasks": true});
        let stop = made(&gateway, &body).await;
        assert_eq!(stop["cancel"]["state"], "wanted", "{stop}");
        until("each has an outcome", async || {
            listed(&gateway).await[0]["cancel"]["state"] == "done"
        }).await;
        let shown = listed(&gateway).await.remove(0);
        let expected = json!({"state": "done", "tasks": 5, "pending": 0, "canceled": 3, "over": 1, "failed": 1});
        assert_eq!(shown["cancel"], expected);
        let canceled = |agent: &Agent| {
            let calls = agent.requests().into_iter().filter_map(|request| {
                let call: Value = serde_json::from_str(request.text()).ok()?;
                (call["method"] == "tasks/cancel").then(|| call["params"]["id"].as_str().unwrap().to_owned())
            });
            let mut ids: Vec<String> = calls.collect();
            ids.sort();
            ids
        };
        assert_eq!(canceled(&target.agent), ["submitted-Two", "working-Broken", "working-One", "working-Over"]);
        assert_eq!(canceled(&other.agent), ["working-Below"]);
        until("it is recorded", async || {
            let path = "/audit?event_type=STOP_TASKS_CANCELED&limit=10";
            let records = gateway.admin_get(path).await.unwrap().json();
            let detail = &records["records"][0]["detail"];
            detail["canceled"] == 3 && detail["over"] == 1 && detail["failed"] == 1
        }).await;
        let released = release(&gateway, stop["id"].as_str().unwrap()).await;
        assert_eq!(released["cancel"], expected);
    }
}
