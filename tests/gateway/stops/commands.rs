//! `a2a-gateway stop`, `stops` and `release` at a running gateway.

use serde_json::{Value, json};
use tokio::process::Command;

use super::{assert_stopped, call};
use crate::harness::{ADMIN, Agent, Gateway, Pair, Request};

/// Runs a command to its end. Returns its status, output and complaint.
async fn run(gateway: &Gateway, token: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
        .args(arguments)
        .env("A2A_GATEWAY_URL", format!("http://{}", gateway.public))
        .env("A2A_GATEWAY_TOKEN", token)
        .output()
        .await
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test]
async fn a_stop_is_made_listed_and_released_on_the_command_line() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let ok = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
    let (caller, target) = gateway.pair(ok).await;
    let none = run(&gateway, ADMIN, &["stops"]).await;
    assert_eq!(
        none,
        (Some(0), "no stop is in force\n".into(), String::new())
    );
    let arguments = [
        "stop",
        "--pair",
        &caller.id,
        &target.id,
        "--reason",
        super::REASON,
        "--running",
        "--cancel-tasks",
        "--expires-in",
        "1h",
    ];
    let (code, out, err) = run(&gateway, ADMIN, &arguments).await;
    assert_eq!(code, Some(0), "{err}");
    let (_, id) = out
        .trim_end()
        .rsplit_once("End it with: a2a-gateway release ")
        .unwrap();
    let request = call(&caller.token, &target.id);
    assert_stopped(&gateway.call(&request).await, id, &out);

    let (_, listed, _) = run(&gateway, ADMIN, &["stops", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let scope = json!({"caller": caller.id, "target": target.id});
    assert_eq!(listed[0]["scope"], scope);
    assert_eq!(listed[0]["mode"], "running");
    assert!(listed[0]["expires_at"].is_string(), "{listed}");
    let (_, listed, _) = run(&gateway, ADMIN, &["stops"]).await;
    assert!(
        listed.starts_with("ID ") && listed.contains("MADE BY"),
        "{listed}"
    );
    let line = format!("\n{id}  {} to {}  running  ", caller.id, target.id);
    let ends = format!("  {}\n", super::REASON);
    assert!(
        listed.contains(&line) && listed.ends_with(&ends),
        "{listed}"
    );
    assert!(listed.contains("  operator:  "), "{listed}");

    let (code, out, err) = run(&gateway, ADMIN, &["release", id]).await;
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with(&format!("released: {id}")), "{out}");
    assert_eq!(gateway.call(&request).await.status, 200);
}

#[tokio::test]
async fn a_stop_names_its_operator_to_operators_only() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let workspace = json!({"id": "a1", "name": "a1", "org": "acme"});
    gateway.create(workspace).await;
    let make = |path: &str, body: Value| gateway.as_operator(Request::post(path, body.to_string()));
    let night = json!({"role": "operate", "label": "night"});
    let night = make("/operators/tokens", night).await.json();
    let org = make("/orgs/acme/tokens", json!({})).await.json();
    let token = |made: &Value| made["token"].as_str().unwrap().to_owned();
    let stop = ["stop", "--workspace", "a1", "--reason", "a drill", "--json"];
    let (code, out, err) = run(&gateway, &token(&night), &stop).await;
    assert_eq!(code, Some(0), "{err}");
    let made: Value = serde_json::from_str(&out).unwrap();
    let operator = json!({"role": "operate", "label": "night", "token_id": night["id"]});
    assert_eq!(
        (&made["created_by"], &made["operator"]),
        (&json!("operator:"), &operator)
    );
    let (_, listed, _) = run(&gateway, ADMIN, &["stops"]).await;
    assert!(listed.contains("  night (operate)  "), "{listed}");
    let (_, listed, _) = run(&gateway, &token(&org), &["stops", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        (&listed[0]["id"], listed[0].get("operator")),
        (&made["id"], None),
        "{listed}"
    );
    // A policy notes who applied it.
    let stop = json!({"scope": {"org": "acme"}, "mode": "new", "reason": "a drill"});
    let policy = json!({"version": 1, "stops": [stop]});
    assert_eq!(make("/policy", policy).await.status, 200);
    let stops = super::listed(&gateway).await;
    assert_eq!(stops[1]["operator"], json!({"role": "admin"}), "{stops:?}");
    let twice = r#"{"scope":{"workspace":"a1","workspace":"a2"},"mode":"new","reason":"x"}"#;
    let twice = gateway.as_operator(Request::post("/stops", twice)).await;
    assert_eq!((twice.status, &*twice.reason()), (400, "invalid_request"));
    assert!(
        twice.text().contains("`workspace` stands twice in `scope`"),
        "{}",
        twice.text()
    );
}

#[tokio::test]
async fn a_command_that_fails_says_why_and_stops_nothing() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let all = ["stop", "--all", "--reason", "incident 12"];
    for (token, arguments, code, part) in [
        (ADMIN, &["stop", "--all"][..], 64, "--reason"),
        (ADMIN, &["stop", "--reason", "loop"], 64, "--workspace"),
        (
            ADMIN,
            &["stop", "--all", "--reason", "x", "--cancel-tasks"],
            64,
            "--running",
        ),
        ("", &all, 64, "A2A_GATEWAY_ADMIN_TOKEN"),
        ("a2aa_wrong", &all, 1, "unauthenticated"),
        (
            ADMIN,
            &["stop", "--workspace", "nothing", "--reason", "x"],
            1,
            "workspace_not_found",
        ),
        (ADMIN, &["release", "stop-nothing"], 1, "not_found"),
    ] {
        let (status, out, err) = run(&gateway, token, arguments).await;
        assert_eq!(status, Some(code), "{arguments:?}: {out}{err}");
        assert!(err.contains(part), "{arguments:?}: {err}");
    }
    let drill = ["stop", "--org", "acmee", "--reason", "x", "--dry-run"];
    let (status, out, err) = run(&gateway, ADMIN, &drill).await;
    assert_eq!(status, Some(0), "{out}{err}");
    assert!(
        out.starts_with("would be stopped: org acmee")
            && err.contains("no workspace is in the org"),
        "{out}{err}"
    );
    let url = ["--url", "http://127.0.0.1:1"];
    let away = run(&gateway, ADMIN, &[&all[..], &url].concat()).await;
    assert_eq!(away.0, Some(1));
    assert!(away.2.contains("is the gateway running?"), "{}", away.2);
    let none = run(&gateway, ADMIN, &["stops"]).await;
    assert_eq!(none.1, "no stop is in force\n");
}
