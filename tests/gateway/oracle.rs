//! Ids cannot be probed: to whoever may not know, an unknown id and one elsewhere are the same answer on every route,
//! whatever else is wrong with the request, and the stores are asked for the same.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::{ADMIN, Agent, Answer, Builder, CALL, Gateway, Request, card};
use crate::on_both_pairs;
use crate::steady::asked;

async fn made(gateway: &Gateway, path: &str, body: Value) -> String {
    let answer = gateway
        .as_operator(Request::post(path, body.to_string()))
        .await;
    assert!(answer.status < 300, "{}", answer.text());
    answer.json()["token"].as_str().unwrap().to_owned()
}

/// What may be compared of an answer: nothing in it tells ids apart.
fn shown(answer: &Answer, id: &str) -> (u16, String) {
    (
        answer.status,
        answer
            .text()
            .replace(id, "ID")
            .replace(answer.field("x-request-id").unwrap(), "REQUEST"),
    )
}

/// Requests about the workspace `id`, with more or less else wrong.
fn about(id: &str) -> Vec<(&'static str, String, Value)> {
    let base = format!("/workspaces/{id}");
    let call: Value = serde_json::from_str(CALL).unwrap();
    let bad_url = json!({"id": id, "url": "http://169.254.169.254/", "agent_card": card(id)});
    let no_url = json!({"id": id, "agent_card": card(id)});
    vec![
        ("POST", format!("{base}/a2a"), call.clone()),
        ("POST", format!("{base}/a2a"), json!([])),
        ("POST", format!("{base}/a2a/v1/message:send"), call),
        ("GET", format!("{base}/a2a/tasks/t-1"), Value::Null),
        (
            "GET",
            format!("{base}/a2a/.well-known/agent-card.json"),
            Value::Null,
        ),
        (
            "GET",
            format!("{base}/.well-known/agent-card.json"),
            Value::Null,
        ),
        ("GET", format!("/registry/discover/{id}"), Value::Null),
        ("GET", base.clone(), Value::Null),
        ("PATCH", base.clone(), json!({"url": "ftp://x"})),
        ("DELETE", base.clone(), Value::Null),
        ("POST", format!("{base}/pause"), json!({})),
        ("POST", format!("{base}/resume"), json!({})),
        ("POST", format!("{base}/enrolment"), json!({})),
        ("GET", format!("{base}/tokens"), Value::Null),
        ("POST", format!("{base}/tokens"), json!({})),
        ("GET", format!("{base}/activity"), Value::Null),
        ("GET", format!("{base}/streams/0"), Value::Null),
        ("GET", format!("/registry/{id}/peers"), Value::Null),
        (
            "POST",
            "/canvas/tokens".into(),
            json!({"user": "ada", "workspaces": [id]}),
        ),
        (
            "POST",
            "/canvas/tokens".into(),
            json!({"user": "", "workspaces": [id], "ttl_seconds": 0}),
        ),
        (
            "POST",
            "/workspaces".into(),
            json!({"name": "x", "parent_id": id}),
        ),
        ("POST", "/registry/register".into(), bad_url),
        ("POST", "/registry/register".into(), no_url),
        (
            "POST",
            "/registry/heartbeat".into(),
            json!({"workspace_id": id}),
        ),
        (
            "POST",
            "/registry/check-access".into(),
            json!({"caller_id": "mine", "target_id": id}),
        ),
        (
            "POST",
            "/workspaces/mine/delegate".into(),
            json!({"target_id": id, "task": "x"}),
        ),
    ]
}

on_both_pairs! {
    async fn an_unknown_id_and_one_elsewhere_are_one_answer_for_one_look(pair: Pair) {
        // A lapse would be looked for.
        let gateway = Builder::new(pair).set("registry.heartbeat_ttl", "1h").start().await;
        let url = Agent::json("{}").await.url();
        let enrolment = gateway.create(json!({"id": "mine", "name": "mine", "org": "acme"})).await;
        let own = gateway.register("mine", &enrolment, &url, card("mine")).await;
        let org = made(&gateway, "/orgs/acme/tokens", json!({})).await;
        let canvas = made(&gateway, "/canvas/tokens", json!({"user": "ada", "org": "acme"})).await;
        let routes = about("x").len();
        for n in 0..3 * routes {
            let far = json!({"id": format!("far-{n}"), "name": "far", "org": "globex"});
            gateway.create(far).await;
        }
        // Each request is about a workspace that nothing asked for before.
        for (nth, (name, token)) in [("org", &org), ("canvas", &canvas), ("workspace", &own)].into_iter().enumerate() {
            let warm = Request::get("/workspaces/mine").bearer(token);
            let call = Request::post("/workspaces/mine/a2a", CALL).bearer(token);
            gateway.until_warm(async || {
                assert_eq!(gateway.call(&warm).await.status, 200);
                // Refused, as its agent is gone: what decides the status of refusals is read.
                assert!(gateway.call(&call).await.status >= 500);
            }).await;
            for at in 0..routes {
                let n = nth * routes + at;
                let (there, nowhere) = (format!("far-{n}"), format!("nil-{n}"));
                let mut seen = Vec::new();
                for id in [&there, &nowhere] {
                    let (method, path, body) = about(id).swap_remove(at);
                    let body = if body.is_null() { String::new() } else { body.to_string() };
                    let mut request = Request::post(&path, body).bearer(token);
                    request.method = method.into();
                    let before = asked(&gateway).await;
                    let answer = gateway.call(&request).await;
                    let after = asked(&gateway).await;
                    let looks: BTreeMap<_, _> = after
                        .iter()
                        .map(|(what, count)| (what.clone(), count - before.get(what).unwrap_or(&0)))
                        .filter(|(_, count)| *count > 0)
                        .collect();
                    let what = format!("{name}: {method} {path}");
                    assert!(answer.status >= 400 || path == "/registry/check-access", "{what}: {}", answer.text());
                    assert_ne!(answer.status, 404, "{what}");
                    seen.push((shown(&answer, id), looks, what));
                }
                assert_eq!(seen[0].0, seen[1].0, "{}", seen[0].2);
                assert_eq!(seen[0].1, seen[1].1, "store looks for {}", seen[0].2);
            }
        }
        let operator = gateway.call(&Request::get("/workspaces/nil-1").bearer(ADMIN)).await;
        assert_eq!(operator.status, 404, "an operator may know");
    }
}
