//! The packages of `clients/`: `scripts/agents` builds and installs them, checks their types, and joins agents of real
//! frameworks to the built program with them.

use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn agents_of_each_framework_join_by_the_packages_and_survive_kills_and_restarts() {
    let program = Path::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/agents"))
        .env("BIN", program.parent().unwrap())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let [said, complaint] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    println!("{said}");
    assert!(output.status.success(), "{said}\n{complaint}");
}
