//! Who called whom, and who changed what: written down, read, exported, and proven.

mod alone;
mod anchored;
mod clients;
mod edges;
mod older;
mod outage;
mod records;
mod retention;
mod tampered;

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::until_found;
use crate::harness::{ADMIN, Gateway};

/// A number from the environment, for whoever wants to see more than CI has time for.
#[expect(
    clippy::disallowed_methods,
    reason = "a setting of the test, not of the gateway"
)]
fn asked(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// The records that fit a query, the newest first, once there are as many as `least`.
pub(crate) async fn recorded(gateway: &Gateway, query: &str, least: usize) -> Vec<Value> {
    until_found(query, async || {
        let answer = gateway.admin_get(&format!("/audit?{query}")).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let records = answer.json()["records"].as_array().unwrap().clone();
        (records.len() >= least).then_some(records)
    })
    .await
}

/// What `a2a-gateway audit` says about a gateway's database, and its exit status.
pub(crate) fn audit(gateway: &Gateway, arguments: &[&str]) -> (String, Option<i32>) {
    let keys = gateway.dir.join("keys");
    let output = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
        .arg("audit")
        .args(arguments)
        .args(["--set", &format!("stores.sql={}", gateway.sql_url())])
        .args(["--set", &format!("keys.dir={}", keys.display())])
        .current_dir(&gateway.dir)
        .env("A2A_GATEWAY_ADMIN_TOKEN", ADMIN)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    (said, output.status.code())
}

/// Ends it in order, so that everything is written and signed.
pub(crate) fn end(gateway: &mut Gateway) {
    gateway.terminate();
    assert!(gateway.wait(Duration::from_secs(60)).success());
}
