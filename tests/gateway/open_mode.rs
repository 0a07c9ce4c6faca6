//! `auth.mode = "open"`: a request without a credential is the canvas, on loopback only.

use std::process::{Command, Stdio};

use serde_json::json;

use crate::harness::{Agent, Builder, CALL, Pair, Request, assert_refusal};

#[test]
fn open_mode_is_refused_on_every_listener_that_is_not_loopback() {
    for listen in [
        "0.0.0.0:0",
        "[::]:0",
        "192.168.1.1:0",
        "10.0.0.1:8080",
        "[fe80::1]:0",
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
        let dir = tempfile::tempdir().unwrap();
        let output = command
            .current_dir(dir.path())
            .args(["serve", "--set", "auth.mode=open", "--set"])
            .arg(format!("server.listen={listen}"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(64), "{listen}");
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(complaint.contains("auth.mode"), "{listen}: {complaint}");
        let left = dir.path().read_dir().unwrap().count();
        assert_eq!(left, 0, "{listen}: nothing is made before the check");
    }
}

#[tokio::test]
async fn without_a_credential_a_request_is_the_canvas_and_with_a_wrong_one_nobody() {
    let builder = Builder::new(Pair::Embedded).set("auth.mode", "open");
    let gateway = builder.start().await;
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
    let (caller, target) = gateway.pair(agent).await;

    let call = Request::post(target.path(), CALL).field("X-Request-Id", "seen");
    let answer = gateway.call(&call).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(target.agent.take().field("x-workspace-id"), None);
    let line = &gateway.access_lines("seen").await[0];
    assert_eq!(
        (&line["rule"], &line["credential.kind"]),
        (&json!("canvas"), &json!("open"))
    );
    let read = gateway.call(&Request::get("/workspaces/target")).await;
    assert_eq!((read.status, &read.json()["url"]), (200, &json!(null)));
    let found = gateway
        .call(&Request::get("/registry/discover/target"))
        .await;
    assert_eq!(found.status, 200, "{}", found.text());

    // Of every org, since nobody said which.
    let elsewhere = json!({"id": "elsewhere", "name": "e", "org": "acme",
        "url": target.agent.url(), "liveness": "assumed"});
    gateway.create(elsewhere).await;
    let answer = gateway
        .call(&Request::post("/workspaces/elsewhere/a2a", CALL))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    target.agent.take();

    // The canvas, and no more than the canvas.
    for request in [
        Request::post("/workspaces", r#"{"name":"x"}"#),
        Request::post("/registry/heartbeat", r#"{"workspace_id":"target"}"#),
        Request::post("/canvas/tokens", r#"{"user":"ada"}"#),
        Request::get("/workspaces/target/tokens"),
        Request::get("/orgs/acme/tokens"),
    ] {
        let request = request.field("X-Request-Id", "seen");
        let answer = gateway.call(&request).await;
        assert_refusal(
            &answer,
            &request.path,
            "seen",
            "not_permitted",
            &request.path,
        );
    }

    let unknown = "a2aw_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";
    for credential in [
        format!("Bearer {unknown}"),
        "Basic YTpi".into(),
        String::new(),
    ] {
        for request in [call.clone(), Request::get("/workspaces/target")] {
            let request = request
                .without("x-request-id")
                .field("X-Request-Id", "seen");
            let request = request.field("Authorization", &credential);
            let answer = gateway.call(&request).await;
            assert_refusal(
                &answer,
                &request.path,
                "seen",
                "unauthenticated",
                &credential,
            );
        }
    }
    let claim = call.clone().field("X-Workspace-ID", "target");
    let answer = gateway.call(&claim).await;
    assert_refusal(
        &answer,
        &claim.path,
        "seen",
        "caller_mismatch",
        "a claim without a proof",
    );
    assert_eq!(target.agent.calls(), 0);

    let answer = gateway.call(&call.bearer(&caller.token)).await;
    assert_eq!(answer.status, 200);
    let caller = target.agent.take();
    assert_eq!(
        caller.field("x-workspace-id"),
        Some("caller"),
        "a proof still counts"
    );
}
