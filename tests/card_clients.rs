//! Clients that read an agent's card before they send a credential: with a public card they reach the agent.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
#[path = "gateway/harness/packages.rs"]
mod packages;

use std::path::Path;
use std::process::Command;

#[test]
fn clients_that_read_the_card_without_a_credential_reach_an_agent_with_a_public_one() {
    let packages = packages::installed("scripts/card-clients");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/card_clients");
    common::assert_passes(
        Command::new(packages.join("python/bin/python"))
            .arg("-B")
            .arg(folder.join("run.py"))
            .arg(env!("CARGO_BIN_EXE_a2a-gateway"))
            .arg(&packages),
    );
}
