//! The verifiers of `docs/design/security.md`, in Python and JavaScript, on what a real gateway signs.

mod cards;
mod sidecar;

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cards::{add, card_of, generations, patch, serving};
use crate::sidecar::{flaws, gateway};

/// Runs a verifier on what is asked, and returns what it answers.
fn answers(verifier: &mut Command, asked: &Value) -> Vec<Value> {
    let piped = verifier.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(asked.to_string().as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}
