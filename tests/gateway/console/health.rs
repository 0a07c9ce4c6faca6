//! How workspaces are, and sums of calls by time: decided by what calls came to, the same on every replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};

use super::ask;
use crate::harness::{ADMIN, Agent, CALL, Gateway, Request, Step, ok_json, until_holds};
use crate::hierarchy::seat_in;
use crate::on_both_pairs;

async fn read(gateway: &Gateway, path: &str) -> Value {
    let answer = ask(gateway.admin, &Request::get(path).bearer(ADMIN)).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

async fn send(gateway: &Gateway, count: usize) {
    for _ in 0..count {
        let call = Request::post("/workspaces/flaky/a2a", CALL).bearer(ADMIN);
        gateway.call(&call).await;
    }
}

/// Waits until the workspace is in a state, and returns what is said of it.
async fn until_state(gateway: &Gateway, state: &str) -> Value {
    let request = Request::get("/workspaces/flaky").bearer(ADMIN);
    let read = async || gateway.call(&request).await.json()["health"].clone();
    until_holds(state, async || read().await["state"] == state).await;
    read().await
}

/// The calls of all cells, by result.
fn counted(traffic: &Value, member: &str) -> [i64; 6] {
    let mut sums = [0; 6];
    for cell in traffic[member].as_array().unwrap() {
        for (sum, count) in sums.iter_mut().zip(cell[1].as_array().unwrap()) {
            *sum += count.as_i64().unwrap();
        }
    }
    sums
}

on_both_pairs! {
    async fn what_calls_came_to_decides_how_a_workspace_is(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let status = Arc::new(AtomicU16::new(500));
        let answers = Arc::clone(&status);
        let agent = Agent::scripted(move |_| {
            let body = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;
            let ok = String::from_utf8(ok_json(body)).unwrap();
            let said = ok.replace("200 OK", &format!("{} Said", answers.load(Ordering::Relaxed)));
            vec![Step::Write(said.into_bytes())]
        });
        let _seat = seat_in(&gateway, "flaky", "acme", agent.await).await;
        until_state(&gateway, "healthy").await;
        send(&gateway, 3).await;
        let health = until_state(&gateway, "failing").await;
        assert_eq!(health["why"], "3 of 3 calls failed, the last one with 500");
        let overview = read(&gateway, "/console/overview").await;
        let [unwell, since] = [&overview["unwell"][0], &health["since"]];
        assert_eq!([&unwell["id"], &unwell["state"], &unwell["since"]], [&json!("flaky"), &json!("failing"), since]);
        // The words of records stay; what a call came to is added.
        let audit = read(&gateway, "/audit?target=flaky&event_type=A2A_CALL").await;
        assert_eq!([&audit["records"][0]["outcome"], &audit["records"][0]["result"]], ["answered", "agent_failed"]);
        status.store(200, Ordering::Relaxed);
        send(&gateway, 3).await;
        until_state(&gateway, "healthy").await;
        until_holds("it is told as solved", async || {
            read(&gateway, "/console/overview").await["solved"][0]["id"] == "flaky"
        }).await;
        status.store(429, Ordering::Relaxed);
        send(&gateway, 1).await;
        until_state(&gateway, "busy").await;
        for (query, expected) in [("", [4, 3, 0, 0, 0, 0]), ("?over=7d&workspace=flaky", [4, 3, 0, 0, 0, 0]), ("?org=acme", [4, 3, 0, 0, 0, 0]), ("?org=other", [0; 6])] {
            let traffic = read(&gateway, &format!("/console/traffic{query}")).await;
            assert_eq!(counted(&traffic, "cells"), expected, "{query}: {traffic}");
        }
        let traffic = read(&gateway, "/console/traffic?over=24h").await;
        assert_eq!((counted(&traffic, "workspaces"), &traffic["workspaces"][0][0]), ([4, 3, 0, 0, 0, 0], &json!("flaky")));
        let stop = json!({"scope": {"workspace": "flaky"}, "mode": "running", "reason": "drill"}).to_string();
        let made = gateway.call(&Request::post("/stops", stop).bearer(ADMIN)).await;
        assert_eq!(made.status, 201, "{}", made.text());
        let health = until_state(&gateway, "stopped").await;
        assert!(health["why"].as_str().unwrap().ends_with(": drill"), "{health}");
        let refused = ask(gateway.admin, &Request::get("/console/traffic?over=2h").bearer(ADMIN)).await;
        assert_eq!((refused.status, refused.reason().as_str()), (400, "invalid_params"));
    }
}
