//! Who called whom, and who changed what: written down, read, exported, and proven.

mod alone;
mod anchored;
mod clients;
mod edges;
mod outage;
mod records;
mod retention;
mod tampered;

use std::process::{Command, Stdio};
use std::time::Duration;

use a2a_gateway::db::Db;
use serde_json::Value;

use crate::harness::{ADMIN, CALL, Gateway, Pair, Request, until_found, until_holds};

pub(crate) use self::records::of_request;

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

/// The same, which must end with this status.
pub(crate) fn says(gateway: &Gateway, arguments: &[&str], status: i32) -> String {
    let (said, ended) = audit(gateway, arguments);
    assert_eq!(ended, Some(status), "{arguments:?}: {said}");
    said
}

/// The lines of an export with these filters.
pub(crate) fn exported(gateway: &Gateway, filters: &[&str]) -> Vec<Value> {
    let lines = says(gateway, &[&["export"], filters].concat(), 0);
    let read = lines.lines().map(serde_json::from_str);
    read.map(Result::unwrap).collect()
}

/// Waits until what was recorded is written.
pub(crate) async fn all_written(gateway: &Gateway) {
    let waiting = "a2a_gateway_audit_waiting_records";
    let none_wait = async || gateway.metric(waiting, &[]).await == 0.0;
    until_holds("all is written", none_wait).await;
}

/// A call of the target, under this id.
pub(crate) fn message(token: &str, request_id: &str) -> Request {
    let request = Request::post("/workspaces/target/a2a", CALL).bearer(token);
    request.field("X-Request-Id", request_id)
}

/// Four of them that are written down. Returns their chain.
async fn calls(gateway: &Gateway, token: &str, name: &str) -> String {
    for n in 0..4 {
        let call = message(token, &format!("{name}-{n}"));
        assert_eq!(gateway.call(&call).await.status, 200);
    }
    let last = recorded(gateway, &format!("request_id={name}-3"), 1).await;
    last[0]["replica"].as_str().unwrap().to_owned()
}

/// The condition for the rows of a chain, which SQLite has by number.
fn of_chain(pair: Pair, replica: &str) -> String {
    match pair {
        Pair::Embedded => {
            format!("chain = (SELECT chain FROM audit_replicas WHERE replica = '{replica}')")
        }
        Pair::External => format!("replica = '{replica}'"),
    }
}

/// Runs a statement, and returns the number of its rows.
pub(crate) async fn execute(db: &Db, text: &str) -> u64 {
    let query = sqlx::query(sqlx::AssertSqlSafe(text.to_owned()));
    let done = query.execute(db.pool()).await;
    let done = done.unwrap_or_else(|error| panic!("{text}: {error}"));
    done.rows_affected()
}

/// Ends it in order, so that everything is written and signed.
pub(crate) fn end(gateway: &mut Gateway) {
    gateway.terminate();
    assert!(gateway.wait(Duration::from_secs(60)).success());
}
