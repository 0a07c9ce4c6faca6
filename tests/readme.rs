//! The README's steps, run as they stand but for the ports.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// What the steps are preceded by, in the README.
const MARKER: &str = "<!-- tests/readme.rs runs these blocks as they stand. -->";

/// The shell blocks between the marker and the next heading, as one script.
fn steps() -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let part = readme.split(MARKER).nth(1).unwrap();
    let part = part.split("\n## ").next().unwrap();
    let blocks = part.split("```sh\n").skip(1);
    blocks.map(|b| b.split("```").next().unwrap()).collect()
}

fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn the_readmes_steps_lead_from_nothing_to_an_answer_and_a_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let (public, admin, agent) = (free(), free(), free());
    let steps = steps()
        .replace("127.0.0.1:8080", &public)
        .replace("127.0.0.1:8001", &agent)
        .replace(
            "a2a-gateway health",
            &format!("a2a-gateway health --url http://{admin}"),
        );
    let program = Path::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let programs = program.parent().unwrap().display();
    let script = format!("PATH='{programs}':$PATH\ntrap 'kill $(jobs -p); wait' EXIT\n{steps}");
    let output = Command::new("timeout")
        .args(["120", "bash", "-euo", "pipefail", "-c", &script])
        .current_dir(&folder)
        .env("A2A_GATEWAY__SERVER__LISTEN", &public)
        .env("A2A_GATEWAY__ADMIN__LISTEN", &admin)
        .env("A2A_GATEWAY_URL", format!("http://{public}"))
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}\n{complaint}");
    // Each after the one before.
    let mut rest = out.as_str();
    for said in [
        "echo agent at",
        r#""expires_in":90"#,
        r#""enrolment_token""#,
        r#""text":"echo: hello""#,
        "echo: hello again",
        r#"{"status":"revoked"}"#,
        r#""reason":"UNAUTHENTICATED""#,
    ] {
        let at = rest.find(said);
        rest = &rest[at.unwrap_or_else(|| panic!("{said} in\n{out}\n{complaint}"))..];
    }
}
