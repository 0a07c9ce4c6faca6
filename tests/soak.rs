//! Faults under load, a round of about one and a half minutes: nothing acknowledged is lost, and nothing stays behind.

mod common;

use std::path::Path;
use std::process::Command;

#[test]
fn nothing_is_lost_in_a_round_of_faults_under_load() {
    let program = Path::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/soak");
    common::assert_passes(
        Command::new(script)
            .env("SHORT", "1")
            .env("BIN", program.parent().expect("a folder")),
    );
}
