//! Programs that are tests.

use std::process::{Command, Stdio};

/// Runs a program to its end, and prints what it says. Fails when it does.
#[allow(clippy::print_stdout, reason = "what the program says is to be shown")]
pub(crate) fn assert_passes(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.expect("the program starts");
    let [said, complaint] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    println!("{said}");
    assert!(output.status.success(), "{command:?}: {said}\n{complaint}");
}

/// Runs a script of the tree with the folder of the built program.
#[allow(dead_code, reason = "not each test has a script")]
pub(crate) fn assert_script_passes(script: &str) {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    assert_passes(Command::new(script).env("BIN", program.parent().expect("a folder")));
}
