//! The README's steps, run as they stand but for the ports.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// What the steps are preceded by, in the README.
const MARKER: &str = "<!-- tests/readme.rs runs these blocks as they stand. -->";

fn document(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The shell blocks, as one script.
fn blocks(text: &str) -> String {
    let blocks = text.split("```sh\n").skip(1);
    blocks.map(|b| b.split("```").next().unwrap()).collect()
}

fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Runs `steps` in `folder` on free ports; what they print.
fn run(steps: &str, folder: &Path) -> String {
    let (public, admin, agent) = (free(), free(), free());
    let steps = steps
        .replace("127.0.0.1:8080", &public)
        .replace("127.0.0.1:8001", &agent);
    let program = Path::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let programs = program.parent().unwrap().display();
    let script = format!("PATH='{programs}':$PATH\ntrap 'kill $(jobs -p); wait' EXIT\n{steps}");
    let output = Command::new("timeout")
        .args(["180", "bash", "-euo", "pipefail", "-c", &script])
        .current_dir(folder)
        .env("A2A_GATEWAY__SERVER__LISTEN", &public)
        .env("A2A_GATEWAY__ADMIN__LISTEN", &admin)
        .env("A2A_GATEWAY_ADMIN_URL", format!("http://{admin}"))
        .env("A2A_GATEWAY_URL", format!("http://{public}"))
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}\n{complaint}");
    out
}

/// Each after the one before.
fn assert_in_order(out: &str, expected: &[&str]) {
    let mut rest = out;
    for said in expected {
        let at = rest.find(said);
        rest = &rest[at.unwrap_or_else(|| panic!("{said} in\n{out}"))..];
    }
}

#[test]
fn the_readmes_steps_lead_from_nothing_to_an_answer_and_a_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let readme = document("README.md");
    let part = readme.split(MARKER).nth(1).unwrap();
    let out = run(&blocks(part.split("\n## ").next().unwrap()), folder.path());
    assert_in_order(
        &out,
        &[
            "echo agent at",
            r#""expires_in":90"#,
            r#""enrolment_token""#,
            r#""text":"echo: hello""#,
            "echo: hello again",
            r#"{"status":"revoked"}"#,
            r#""reason":"UNAUTHENTICATED""#,
        ],
    );
}

#[test]
fn the_guide_of_polling_agents_leads_to_a_reply() {
    let folder = tempfile::tempdir().unwrap();
    let agent = document("docs/guide/poll-agent.py");
    fs::write(folder.path().join("poll-agent.py"), agent).unwrap();
    let guide = document("docs/guide/poll-for-messages.md");
    let part = guide.split(MARKER).nth(1).unwrap();
    let out = run(&blocks(part.split("\n## ").next().unwrap()), folder.path());
    let shown = part.split("```text\n").nth(1).unwrap();
    let shown = shown.split("\n```").next().unwrap().lines();
    // What differs from run to run is behind an ellipsis.
    let shown: Vec<&str> = shown.filter_map(|line| line.split('…').next()).collect();
    assert_in_order(&out, &shown);
}

#[test]
fn the_guide_of_agents_leads_to_one_that_answers_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("agent.py"),
        document("docs/guide/agent.py"),
    )
    .unwrap();
    let guide = document("docs/guide/write-an-agent.md");
    let steps = blocks(guide.split(MARKER).nth(1).unwrap());
    // Then it starts again without its enrolment token; and without any credential it says what to ask for.
    let again = r"
kill %2; unset ENROLMENT
until ! kill -0 %2 2>/dev/null; do sleep 0.1; done
python3 agent.py >again &
agent=$!
until grep -q registered again; do sleep 0.1; done
kill $agent
wait $agent || true
rm agent-token
python3 agent.py 2>&1 || true
";
    let out = run(&(steps + again), folder.path());
    assert_in_order(
        &out,
        &[
            "registered",
            "A message would be sent to the agent",
            r#""text": "You said: hello in 0.3""#,
            r#""text": "You said: hello in 1.0""#,
            "A message would be sent",
            "/workspaces/acme-pm/a2a",
            "/workspaces/acme-pm/a2a",
            "You said: are you there?",
            "POST /workspaces/acme-pm/enrolment",
        ],
    );
}
