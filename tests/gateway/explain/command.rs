//! `a2a-gateway explain CALLER TARGET`.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{ADMIN, Agent, Builder, Gateway, Pair};
use crate::operators::paired;

/// Exit status, standard output, standard error.
type Ended = (Option<i32>, String, String);

pub(super) fn run(gateway: &Gateway, arguments: &[&str], token: Option<&str>) -> Ended {
    run_at(&format!("http://{}", gateway.admin), arguments, token)
}

fn run_at(admin: &str, arguments: &[&str], token: Option<&str>) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    command
        .arg("explain")
        .args(arguments)
        .args(["--admin", admin]);
    command.env_clear().stdin(Stdio::null());
    command.envs(token.map(|token| ("A2A_GATEWAY_ADMIN_TOKEN", token)));
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    (output.status.code(), out, err)
}

fn has_all(out: &str, parts: [&str; 4]) {
    for part in parts {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_prints_the_way_of_a_message_and_what_to_do() {
    let (gateway, _caller, target) = paired(Pair::Embedded, Agent::json("{}").await).await;
    let (code, out, err) = run(&gateway, &["caller", "target", "--verbose"], None);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let goes = "A message would be sent to the agent.";
    has_all(
        &out,
        ["caller to target\n", "ok  rule", "rule=root_sibling", goes],
    );
    gateway.patch("target", json!({"status": "failed"})).await;
    let (code, out, _) = run(&gateway, &["caller", "target", "-v"], Some(ADMIN));
    assert_eq!(code, Some(1), "{out}");
    let refused = "refused with 503 workspace_offline";
    has_all(
        &out,
        ["NO  state", "status=failed", refused, "What to do: "],
    );
    let (code, out, _) = run(&gateway, &["caller", "target", "--json"], None);
    assert_eq!(code, Some(1));
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["reason"], "workspace_offline");
    assert_eq!(target.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_says_what_is_wrong_with_the_question_and_who_may_ask() {
    let builder = Builder::new(Pair::Embedded).set("admin.auth", "token");
    let gateway = builder.start().await;
    let (code, out, err) = run(&gateway, &["a:b", "target"], Some(ADMIN));
    assert_eq!((code, out.as_str()), (Some(64), ""), "{err}");
    assert!(err.contains("`canvas:<user>`"), "{err}");
    assert_eq!(run(&gateway, &["caller"], Some(ADMIN)).0, Some(64));
    let (code, _, err) = run(&gateway, &["caller", "target"], None);
    assert_eq!(code, Some(1));
    let says = err.contains("unauthenticated") && err.contains("A2A_GATEWAY_ADMIN_TOKEN");
    assert!(says, "{err}");
    let wrong = "a2aa_9999999999abcdefghijklmnopqrstuvwxyzABCDEFG";
    let (code, _, err) = run(&gateway, &["caller", "target"], Some(wrong));
    assert_eq!(code, Some(1));
    assert!(!err.contains(wrong), "{err}");
    let public = format!("http://{}", gateway.public);
    for (admin, part) in [
        (public.as_str(), "--admin takes admin.listen"),
        ("http://127.0.0.1:9", "is the gateway running?"),
    ] {
        let (code, _, err) = run_at(admin, &["caller", "target"], Some(ADMIN));
        assert_eq!(code, Some(1));
        assert!(err.contains(part), "{err}");
    }
}
