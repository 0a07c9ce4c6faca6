//! `--dry-run` of the commands that change something.

use serde_json::{Value, json};

use super::{done, ended, family, json_of, operating, refused};
use crate::harness::{Agent, Gateway, Pair, Request};

/// Returns the state that a change would alter: the policy, and tokens.
async fn all(gateway: &Gateway) -> Value {
    let mut all = Vec::new();
    for path in [
        "/policy",
        "/workspaces/acme-dev/tokens",
        "/orgs/acme/tokens",
    ] {
        all.push(gateway.as_operator(Request::get(path)).await.json());
    }
    all.into()
}

async fn made(gateway: &Gateway, path: &str, body: Value) -> String {
    let request = Request::post(path, body.to_string());
    let answer = gateway.as_operator(request).await.has(201);
    answer.json()["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_dry_run_says_what_it_would_do_and_changes_nothing() {
    let gateway = Gateway::start(Pair::Embedded).await;
    family(&gateway).await;
    let pair = json!({"caller_id": "rival-spy", "target_id": "acme-qa"});
    let grant = made(&gateway, "/grants", pair).await;
    let stop = json!({"scope": {"workspace": "acme-qa"}, "mode": "new", "reason": "loop"});
    let stop = made(&gateway, "/stops", stop).await;
    let token = made(&gateway, "/workspaces/acme-dev/tokens", json!({})).await;
    let file = gateway.dir.join("token");
    let before = all(&gateway).await;
    let create = format!(
        "workspace create acme-ops --parent acme-pm --token-file {}",
        file.display()
    );
    for row in [
        &*format!(
            "{create} -> acme-ops would be created: provisioning, below acme-pm, in the org acme"
        ),
        "workspace set acme-dev role=tests -> acme-dev would be changed, role: tests",
        "workspace move acme-dev --parent acme-qa -> acme-dev would be below acme-qa, in the org acme",
        "workspace pause acme-dev -> acme-dev would be paused",
        "workspace resume acme-dev -> acme-dev would be provisioning",
        "workspace remove acme-dev -> acme-dev would be removed",
        "grant create rival-spy acme-dev -> rival-spy would get leave to message acme-dev",
        &format!("grant remove {grant} -> {grant} would be removed"),
        "stop --workspace acme-dev --reason drill -> would be stopped: workspace acme-dev  new  drill",
        "stop --workspace acme-dev --reason drill --running --cancel-tasks -> would be stopped: workspace acme-dev  \
         running  drill  tasks: would be canceled",
        &format!("release {stop} -> would be released: {stop}  workspace acme-qa  new  loop"),
        "token create acme-dev --label laptop -> a token of acme-dev would be made",
        "token create --org acme -> a token of the org acme would be made",
        "token create --org acme --subtree acme-pm -> a token of the subtree of acme-pm in the org acme would be made",
    ] {
        let (line, told) = row.split_once(" -> ").unwrap();
        let out = done(&gateway, &format!("{line} --dry-run")).await;
        assert_eq!(out, format!("{told}\n"), "{line}");
    }
    let line = format!("token revoke acme-dev {token} --dry-run");
    let revoked = done(&gateway, &line).await;
    let begin = format!("{token} would be revoked\n");
    let end = " would be revoked with it: enrolment tokens end with the last token\n";
    assert!(revoked.starts_with(&begin), "{revoked}");
    assert!(revoked.ends_with(end), "{revoked}");
    let enrolment = done(&gateway, "token create acme-dev --enrolment --dry-run").await;
    let said = "an enrolment token of acme-dev would be made until 20";
    assert!(enrolment.starts_with(said), "{enrolment}");
    let removal = done(&gateway, "workspace remove acme-pm --dry-run").await;
    assert!(
        removal.contains("2 workspaces below it (acme-dev, acme-qa)"),
        "{removal}"
    );
    let paused = json_of(&gateway, "workspace pause acme-dev --dry-run --json").await;
    assert_eq!(paused["dry_run"], true);
    assert_eq!(paused["status"], "paused");
    let circle = "workspace move acme-pm --parent acme-dev --dry-run";
    refused(&gateway, circle, 1, "conflict").await;
    assert_eq!(all(&gateway).await, before);
    assert!(!file.exists());
}

#[tokio::test]
async fn a_gateway_without_dry_runs_is_asked_for_none() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let older = Agent::json(r#"{"issuer":"http://gateway.test","status":"paused"}"#).await;
    let mut pause = operating(&gateway);
    pause
        .env("A2A_GATEWAY_URL", older.url())
        .args(["workspace", "pause", "acme-dev", "--dry-run"]);
    ended(&mut pause).await.refused(1, "nothing was sent");
    let asked = older.requests();
    assert_eq!(asked.len(), 1);
    assert!(
        asked[0].head.starts_with("GET /.well-known/a2a-gateway "),
        "{}",
        asked[0].head
    );
}
