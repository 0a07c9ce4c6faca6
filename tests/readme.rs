//! The README's steps and the commands of the guide, run as they stand but for the ports.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Marks the place from which on the `sh` blocks of a document are run.
const MARKER: &str = "<!-- tests/readme.rs runs these blocks as they stand. -->";

/// Pages of the guide whose commands are run at the same time.
const AT_ONCE: usize = 2;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn document(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The blocks of a language, one after the other.
fn blocks(text: &str, language: &str) -> String {
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1);
    blocks.map(|b| b.split("```").next().unwrap()).collect()
}

fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Runs `steps` in `folder` on free ports, and returns their output. Fails when a command does.
fn run(name: &str, steps: &str, folder: &Path) -> String {
    let (public, admin) = (free(), free());
    let is_demo = steps.contains("a2a-gateway demo");
    let demo = format!("a2a-gateway demo --listen {public} --admin-listen {admin}");
    let steps = steps
        .replace("127.0.0.1:8080", &public)
        .replace("127.0.0.1:9090", &admin)
        .replace("127.0.0.1:8001", &free())
        .replace("127.0.0.1:8081", &free())
        .replace("127.0.0.1:8082", &free())
        .replace("a2a-gateway demo", &demo);
    let program = Path::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let programs = program.parent().unwrap().display();
    let end = "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT";
    let script = format!("PATH='{programs}':$PATH\n{end}\n{steps}");
    let mut shell = Command::new("timeout");
    shell
        .args(["180", "bash", "-euo", "pipefail", "-c", &script])
        .current_dir(folder)
        .env("A2A_GATEWAY_ADMIN_URL", format!("http://{admin}"))
        .env("A2A_GATEWAY_URL", format!("http://{public}"));
    // The demo takes its addresses as arguments. In the environment they would count for a sidecar beside it, too.
    if !is_demo {
        shell
            .env("A2A_GATEWAY__SERVER__LISTEN", &public)
            .env("A2A_GATEWAY__ADMIN__LISTEN", &admin);
    }
    let output = shell.output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {out}\n{complaint}");
    out
}

/// Fails unless each text follows the one before.
fn assert_in_order<'a>(name: &str, out: &str, expected: impl IntoIterator<Item = &'a str>) {
    let mut rest = out;
    for shown in expected {
        let at = rest.find(shown);
        let at = at.unwrap_or_else(|| panic!("{name}: no {shown} in\n{out}"));
        rest = &rest[at + shown.len()..];
    }
}

/// Runs the commands of a page. Its output has what the page shows, in that order; an ellipsis stands for any text.
fn assert_leads_to_what_it_shows(page: &Path) {
    let name = page.file_name().unwrap().to_string_lossy();
    let text = fs::read_to_string(page).unwrap();
    let part = text.split(MARKER).nth(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for agent in ["agent.py", "poll-agent.py"] {
        let program = document(&format!("docs/guide/{agent}"));
        fs::write(folder.path().join(agent), program).unwrap();
    }
    let waker = document("examples/wake/waker.py");
    fs::write(folder.path().join("waker.py"), waker).unwrap();
    let out = run(&name, &blocks(part, "sh"), folder.path());
    let shown = blocks(part, "text");
    assert_in_order(&name, &out, shown.lines().flat_map(|line| line.split('…')));
}

/// The pages of the guide with commands to run.
fn pages() -> Vec<PathBuf> {
    let folder = fs::read_dir(root().join("docs/guide")).unwrap();
    let pages = folder.map(|entry| entry.unwrap().path());
    let is_run = |page: &PathBuf| {
        page.extension().is_some_and(|e| e == "md")
            && fs::read_to_string(page).unwrap().contains(MARKER)
    };
    pages.filter(is_run).collect()
}

#[test]
fn the_readmes_steps_lead_from_nothing_to_an_answer_and_a_refusal() {
    assert_leads_to_what_it_shows(&root().join("README.md"));
}

#[test]
fn the_commands_of_each_page_of_the_guide_lead_to_what_it_shows() {
    let pages = pages();
    assert!(pages.len() > 9, "{pages:?}");
    for some in pages.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            for page in some {
                scope.spawn(|| assert_leads_to_what_it_shows(page));
            }
        });
    }
}
