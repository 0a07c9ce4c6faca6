//! The SDKs that A2A clients and agents are made with, both generations for Python and JavaScript, against the real
//! gateway. `tests/clients/run.py` does it and prints a table; with `--nocapture` it is seen also when all is well.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the tables are what is to be shown")]

#[path = "gateway/harness/packages.rs"]
mod packages;

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs one part.
fn run(part: &str) {
    let packages = packages::installed("scripts/clients");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let output = Command::new(packages.join("py13/python/bin/python"))
        .arg("-B")
        .arg(folder.join("run.py"))
        .arg(env!("CARGO_BIN_EXE_a2a-gateway"))
        .arg(&packages)
        .arg(part)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let [table, told] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    println!("{part}\n{table}");
    assert!(output.status.success(), "{part}: see above\n{told}");
}

#[test]
fn every_sdk_reaches_every_agent_through_the_gateway_as_it_does_direct() {
    run("matrix");
}

#[test]
fn a_pocketpaw_style_agent_serves_platform_clients_and_sdks() {
    run("pocketpaw");
}

#[test]
fn no_caller_touches_the_task_of_another() {
    run("owners");
}

#[test]
fn many_streams_long_ones_large_events_and_zombies_pass() {
    run("load");
}

#[test]
fn sdk_agents_accept_what_the_gateway_completes() {
    run("completion");
}

#[test]
fn the_documented_clients_work() {
    run("documents");
}

#[test]
fn agents_that_poll_serve_every_sdk() {
    run("polling");
}
