//! The manifests for Kubernetes: `scripts/manifests` renders and validates them, and runs their containers as processes
//! of the built program.

use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_manifests_are_valid_and_the_program_runs_as_they_say() {
    let program = Path::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/manifests"))
        .env("BIN", program.parent().unwrap())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let [said, complaint] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    println!("{said}");
    assert!(output.status.success(), "{said}\n{complaint}");
}
