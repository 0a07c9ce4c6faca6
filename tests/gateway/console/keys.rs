//! Trust keys from the console: rotated from what the operator saw, and told for what came of it.

use std::fs;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{ask, refused};
use crate::audit::recorded;
use crate::harness::{ADMIN, Answer, Gateway, Pair, Request};

const KEYS: &str = "/console/keys";

async fn keys(gateway: &Gateway) -> Vec<Value> {
    let answer = ask(gateway.admin, &Request::get(KEYS).bearer(ADMIN)).await;
    answer.json()["keys"].as_array().unwrap().clone()
}

fn rotation(id: &str, body: &str) -> Request {
    let request = Request::post("/console/keys/rotate", body).bearer(ADMIN);
    request.field("X-Request-Id", id)
}

async fn rotate(gateway: &Gateway, id: &str, body: &str) -> Answer {
    ask(gateway.admin, &rotation(id, body)).await
}

fn body(active: &Value, force: bool) -> String {
    json!({"active": active, "force": force}).to_string()
}

#[tokio::test]
async fn keys_are_rotated_from_what_the_operator_saw() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let before = keys(&gateway).await;
    let [active, next] = [&before[0], &before[1]];
    assert_eq!([&active["state"], &next["state"]], ["active", "next"]);
    assert_eq!(active["since_by"], "file", "no rotation yet: {active}");
    let misspelt = r#"{"active":"k","forse":true}"#;
    for wrong in ["", "{}", "[]", r#"{"active":1}"#, misspelt] {
        refused(&gateway, &rotation("wrong", wrong), 400, "invalid_params").await;
    }
    let large = format!(r#"{{"active":"{}"}}"#, "k".repeat(5000));
    assert_eq!(rotate(&gateway, "large", &large).await.status, 413);
    // Somebody else was faster.
    let other = rotation("other", &body(&next["kid"], true));
    let text = refused(&gateway, &other, 409, "conflict").await.text();
    assert!(text.contains(active["kid"].as_str().unwrap()), "{text}");
    // Verifiers may not know the next one.
    let young = rotation("young", &body(&active["kid"], false));
    let early = refused(&gateway, &young, 409, "conflict").await;
    let wait: u64 = early.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=300).contains(&wait), "{wait}");
    assert!(early.text().contains("force"), "{}", early.text());
    let first = keys(&gateway).await[0]["kid"].clone();
    assert_eq!(first, active["kid"], "nothing was done");

    let rotated = rotate(&gateway, "forced", &body(&active["kid"], true)).await;
    let expected =
        json!({"status": "rotated", "active": next["kid"], "in_force": true, "finished": true});
    assert_eq!((rotated.status, rotated.json()), (200, expected));
    let after = keys(&gateway).await;
    assert_eq!(after[0]["kid"], next["kid"]);
    assert_eq!(after[0]["since_by"], "rotation", "{}", after[0]);
    let since = &after[0]["since"];
    assert_eq!(
        after[2]["retired_at"], *since,
        "one took over from the other"
    );
    // The same page again, as by a second click.
    let again = rotate(&gateway, "again", &body(&active["kid"], true)).await;
    assert_eq!(again.status, 409);
    // A next key that was published for long enough needs no force.
    let next_file = gateway.dir.join("keys/next.pem");
    let file = fs::File::options().write(true).open(next_file).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(600);
    file.set_modified(long_ago).unwrap();
    let rotated = rotate(&gateway, "due", &json!({"active": next["kid"]}).to_string()).await;
    assert_eq!(rotated.status, 200, "{}", rotated.text());

    for (id, outcome, rotated) in [("young", "conflict", false), ("forced", "done", true)] {
        let record = &recorded(&gateway, &format!("request_id={id}"), 1).await[0];
        assert_eq!(record["outcome"], outcome, "{record}");
        assert_eq!(record["detail"]["rotated"], rotated, "{record}");
    }
}

#[tokio::test]
async fn a_rotation_that_did_not_come_to_its_end_is_told_as_a_rotation() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let before = keys(&gateway).await;
    // What should be deleted as an old key cannot be.
    let stuck = gateway.dir.join("keys/retired-1-0123456789abcdef.pem");
    fs::create_dir(stuck).unwrap();
    let rotated = rotate(&gateway, "half", &body(&before[0]["kid"], true)).await;
    let told = rotated.json();
    assert_eq!(rotated.status, 200, "{told}");
    assert_eq!(told["active"], before[1]["kid"], "{told}");
    assert_eq!([&told["finished"], &told["in_force"]], [false, true]);
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("Do not rotate again"), "{message}");
    assert_eq!(keys(&gateway).await[0]["kid"], before[1]["kid"]);
    let records = recorded(&gateway, "request_id=half", 1).await;
    assert_eq!(records[0]["detail"]["finished"], false, "{records:?}");
    gateway
        .until_told("retired-1-0123456789abcdef.pem", 1)
        .await;
}
