//! `a2a-gateway export` and `apply` against a real gateway: what they print, and their exit status.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::export;
use crate::harness::{ADMIN, Gateway, Pair};

/// Runs a command of the gateway's program; returns its exit status and what it printed.
pub(super) fn run(
    gateway: &Gateway,
    arguments: &[&str],
    input: &str,
) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    command
        .args(arguments)
        .env("A2A_GATEWAY_URL", format!("http://{}", gateway.public))
        .env("A2A_GATEWAY_ADMIN_TOKEN", ADMIN)
        .env_remove("A2A_GATEWAY_TOKEN")
        .current_dir(&gateway.dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    (output.status.code(), out, err)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_reviewed_and_applied_from_the_command_line() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let file = gateway.dir.join("policy.yaml");
    let policy = "version: 1\nworkspaces:\n- id: pm\n  org: acme\n- id: dev\n  parent_id: pm\n";
    std::fs::write(&file, policy).unwrap();
    let dry = ["apply", "policy.yaml", "--dry-run", "--exit-code"];
    let (code, out, err) = run(&gateway, &dry, "");
    assert_eq!(code, Some(2), "{err}");
    assert!(out.contains("+ workspace pm\n    org: \"acme\"\n"), "{out}");
    let sum = "2 to create, 0 to change, 0 to remove; 0 as the policy says.\n";
    assert!(out.ends_with(sum), "{out}");
    let (code, _, err) = run(&gateway, &["apply", "policy.yaml"], "");
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("--yes"), "{err}");
    assert_eq!(export(&gateway).await["workspaces"], json!([]));
    let (code, out, err) = run(&gateway, &["apply", "policy.yaml", "--yes"], "");
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.ends_with("Applied 2 changes.\n"), "{out}{err}");
    let (code, out, _) = run(&gateway, &dry, "");
    assert_eq!(code, Some(0));
    assert_eq!(out, "No changes; 2 as the policy says.\n");

    let (code, yaml, err) = run(&gateway, &["export"], "");
    assert_eq!(code, Some(0), "{err}");
    assert!(yaml.contains("id: dev"), "{yaml}");
    assert!(!yaml.contains("\nrevision"), "{yaml}");
    let pruned = ["apply", "-", "--yes", "--prune", "--json"];
    let (code, out, err) = run(&gateway, &pruned, &yaml);
    assert_eq!(code, Some(0), "{err}");
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(out["changes"], json!([]));

    // A file with a revision is refused once the gateway was changed.
    let (_, pinned, _) = run(&gateway, &["export", "--with-revision"], "");
    gateway.patch("pm", json!({"role": "plans"})).await.has(200);
    let (code, _, err) = run(&gateway, &["apply", "-", "--yes"], &pinned);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("409 conflict"), "{err}");
    assert!(err.contains("changed: workspace pm"), "{err}");

    let orphan = "version: 1\nworkspaces:\n- id: x\n  parent_id: y\n";
    let why = "workspaces[0] (x): the parent `y` does not exist";
    for (input, status, says) in [
        ("workspaces: [", 64, "no YAML"),
        ("- 1", 64, "version: 1"),
        (orphan, 1, why),
    ] {
        let (code, _, err) = run(&gateway, &["apply", "-", "--yes"], input);
        assert_eq!(code, Some(status), "{err}");
        assert!(err.contains(says), "{err}");
    }
    // The examples of the help are commands that can be parsed.
    let (code, help, _) = run(&gateway, &["apply", "--help"], "");
    assert_eq!(code, Some(0));
    let example = "a2a-gateway apply policy.yaml --dry-run";
    assert!(help.contains(example), "{help}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_has_no_secret() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let secret = json!({"id": "dev", "name": "dev", "liveness": "assumed", "url": "http://127.0.0.1:9/",
        "upstream_auth": {"type": "bearer", "token": "planted-upstream-secret"},
        "wake": {"url": "http://127.0.0.1:9/wake", "headers": {"X-Key": "planted-wake-secret"}}});
    gateway.post("/workspaces", secret).await.has(201);
    let (_, yaml, _) = run(&gateway, &["export"], "");
    assert!(yaml.contains("id: dev"), "{yaml}");
    for secret in ["planted", "upstream_auth", "wake", "a2ae_"] {
        assert!(!yaml.contains(secret), "{yaml}");
    }
    // A member that is not in the policy stays.
    let mut lines = yaml.lines();
    let line = lines.find(|line| line.trim_start().starts_with("liveness:"));
    let line = line.unwrap();
    let indent = &line[..line.len() - line.trim_start().len()];
    let changed = yaml.replacen(line, &format!("{line}\n{indent}role: writes"), 1);
    let (code, _, err) = run(&gateway, &["apply", "-", "--yes"], &changed);
    assert_eq!(code, Some(0), "{err}");
    let seen = gateway.read("/workspaces/dev").await;
    assert_eq!(seen["role"], "writes");
    assert_eq!(seen["wake"]["url"], "http://127.0.0.1:9/wake");
}
