//! The pages in a real browser, against the real gateway: `a2a-gateway demo` with its agents, Debian's chromium driven
//! by `tests/pages/*.mjs`, which say what they did (seen with `--nocapture`). They leave screenshots of every view in
//! `target/pages-seen`, and with `A2A_PAGES_IMAGES=1` put those that the README shows into `docs/images`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "what was done is to be shown")]

#[path = "gateway/harness/packages.rs"]
mod packages;

#[path = "common/ports.rs"]
mod ports;
#[path = "provider/mod.rs"]
mod provider;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// How long the demo may take until it prints its page.
const PAGE_MAX: Duration = Duration::from_secs(120);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A running demo. Dropping it ends it.
struct Demo {
    child: Child,
    page: String,
    _temporary: tempfile::TempDir,
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Demo {
    /// Starts it on free ports, and waits for what it prints.
    fn start() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
            .args(["demo", "--listen", "127.0.0.1:0"])
            .args(["--admin-listen", "127.0.0.1:0"])
            // A disk that is busy with a build beside is slow, not away.
            .args(["--set", "stores.timeout=60s"])
            .env_remove("A2A_GATEWAY_ADMIN_TOKEN")
            .env("TMPDIR", temporary.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut page = String::new();
            for line in stdout.lines().map_while(Result::ok) {
                let last = line.starts_with("Ctrl-C");
                page = page + &line + "\n";
                if last {
                    let _ = send.send(std::mem::take(&mut page));
                }
            }
        });
        let page = receive.recv_timeout(PAGE_MAX).unwrap();
        Self {
            child,
            page,
            _temporary: temporary,
        }
    }

    /// Runs one script of tests/pages against it. The error is the output.
    fn drive(&self, script: &str) -> Result<(), String> {
        drive(script, &self.page, &[])
    }
}

/// Runs one script of tests/pages against what printed `page`. The error is the output.
fn drive(script: &str, page: &str, more: &[(&str, String)]) -> Result<(), String> {
    let packages = packages::installed("scripts/pages");
    let output = Command::new("node")
        .arg(root().join("tests/pages").join(script))
        .env("PAGES_PACKAGES", packages)
        .env("PAGES_DEMO", page)
        .env("PAGES_SEEN", seen())
        .envs(more.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let [told, complaint] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    println!("{script}\n{told}");
    let failed = || format!("{script}:\n{told}\n{complaint}");
    output.status.success().then_some(()).ok_or_else(failed)
}

/// Drives one script against a demo of its own.
fn show(script: &str) {
    alone(|| Demo::start().drive(script));
}

/// Drives one browser at a time: two cores are not enough for two to be quick.
fn alone(drive: impl Fn() -> Result<(), String>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = drive() {
        panic!("{error}");
    }
}

/// Where the screenshots go.
fn seen() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    target
        .map_or_else(|| root().join("target"), PathBuf::from)
        .join("pages-seen")
}

#[test]
fn each_vendored_module_is_the_one_that_its_manifest_names() {
    let vendor = root().join("pages/vendor");
    let manifest = std::fs::read(vendor.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let mut named = BTreeSet::from(["manifest.json".to_owned()]);
    for module in manifest["modules"].as_array().unwrap() {
        let file = module["file"].as_str().unwrap();
        named.insert(file.to_owned());
        let digest = Sha256::digest(std::fs::read(vendor.join(file)).unwrap());
        assert_eq!(module["sha256"], format!("{digest:x}"), "{file}");
        for package in module["packages"].as_array().unwrap() {
            for member in ["name", "version", "license", "source", "integrity"] {
                assert!(package[member].is_string(), "{file}: {package}");
            }
        }
    }
    let entries = std::fs::read_dir(&vendor).unwrap();
    let found = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(found.collect::<BTreeSet<_>>(), named);
}

#[test]
fn the_vendored_modules_can_be_made_again() {
    let made = tempfile::tempdir().unwrap();
    let output = Command::new(root().join("scripts/vendor-pages"))
        .arg(made.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    for entry in std::fs::read_dir(root().join("pages/vendor")).unwrap() {
        let name = entry.unwrap().file_name();
        let [ours, again] = [root().join("pages/vendor").as_path(), made.path()]
            .map(|folder| std::fs::read(folder.join(&name)).unwrap());
        assert!(
            ours == again,
            "{} is another when made again",
            name.display()
        );
    }
}

#[test]
fn what_the_pages_decide_holds_without_a_browser() {
    let output = Command::new("node")
        .arg(root().join("tests/pages/pure.mjs"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}");
}

#[test]
fn an_operator_sees_and_changes_what_the_gateway_does_in_the_console() {
    show("console.mjs");
}

#[test]
fn people_sign_in_at_the_console_with_a_provider() {
    alone(provider::drive);
}

#[test]
fn an_operator_sees_what_is_wrong_first() {
    show("trouble.mjs");
}

#[test]
fn an_operator_makes_moves_and_counts_in_the_console() {
    show("tasks.mjs");
}

#[test]
fn what_is_said_in_the_canvas_is_shown_and_survives_a_reload() {
    show("said.mjs");
}

#[test]
fn agents_of_real_sdks_are_talked_with_in_the_canvas() {
    let clients = packages::installed("scripts/clients").display().to_string();
    alone(|| {
        let demo = Demo::start();
        drive(
            "real.mjs",
            &demo.page,
            &[("PAGES_CLIENTS", clients.clone())],
        )
    });
}

#[test]
fn a_user_talks_with_agents_in_the_canvas() {
    show("canvas.mjs");
}
