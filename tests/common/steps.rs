//! Runs the commands of a document, as they stand but for the addresses.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::ports;

/// Programs beside the guide, which its pages have the reader copy into the folder.
const PROGRAMS: [&str; 5] = [
    "docs/guide/agent.py",
    "docs/guide/asking-agent.py",
    "docs/guide/hello-agent.py",
    "docs/guide/poll-agent.py",
    "examples/wake/waker.py",
];

/// Addresses in the documents. Each run has free ones instead.
const ADDRESSES: [&str; 6] = [
    "127.0.0.1:8080",
    "127.0.0.1:8001",
    "127.0.0.1:8081",
    "127.0.0.1:8082",
    "127.0.0.1:9090",
    "127.0.0.1:9091",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The blocks of a language, one after the other.
fn blocks(text: &str, language: &str) -> String {
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1);
    blocks.map(|b| b.split("```").next().unwrap()).collect()
}

fn free() -> String {
    ports::free_address("127.0.0.1").to_string()
}

/// Runs `steps` in `folder` on free ports, and returns their output. Fails when a command does.
fn run(name: &str, steps: &str, folder: &Path) -> String {
    let (public, admin) = (free(), free());
    let is_demo = steps.contains("a2a-gateway demo");
    let demo = format!("a2a-gateway demo --listen {public} --admin-listen {admin}");
    let steps = steps.replace("a2a-gateway demo", &demo);
    let mut steps = steps.replace(&format!("{demo} --stop"), "a2a-gateway demo --stop");
    for address in ADDRESSES {
        let own = match address {
            "127.0.0.1:8080" => public.clone(),
            "127.0.0.1:9090" => admin.clone(),
            _ => free(),
        };
        steps = steps.replace(address, &own);
    }
    let program = Path::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let programs = program.parent().unwrap().display();
    let stop = if steps.contains("--detach") {
        "a2a-gateway demo --stop > stopped.txt; "
    } else {
        ""
    };
    let end = format!("trap '{stop}kill $(jobs -p) 2>/dev/null || true; wait' EXIT");
    let script = format!("PATH='{programs}':$PATH\n{end}\n{steps}");
    let mut shell = Command::new("timeout");
    shell
        .args(["600", "bash", "-euo", "pipefail", "-c", &script])
        .current_dir(folder)
        .env("A2A_CONTEXTS", folder.join("contexts.toml"))
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
/// The commands begin behind `marker`; `replaced` are further texts in them and what stands for each.
pub(crate) fn assert_leads_to_what_it_shows(page: &Path, marker: &str, replaced: &[(&str, &str)]) {
    let name = page.file_name().unwrap().to_string_lossy();
    let text = fs::read_to_string(page).unwrap();
    let part = text.split(marker).nth(1).unwrap();
    // Of `TMPDIR` any path may be, which a unit for systemd cannot have.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for program in PROGRAMS.map(|path| root().join(path)) {
        let copy = folder.path().join(program.file_name().unwrap());
        fs::copy(&program, copy).unwrap();
    }
    let mut steps = blocks(part, "sh");
    for (text, own) in replaced {
        assert!(steps.contains(text), "{name}: no {text}");
        steps = steps.replace(text, own);
    }
    let out = run(&name, &steps, folder.path());
    let shown = blocks(part, "text");
    assert_in_order(&name, &out, shown.lines().flat_map(|line| line.split('…')));
}
