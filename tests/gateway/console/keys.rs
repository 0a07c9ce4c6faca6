//! Trust keys from the console: rotated from what the operator saw, and told for what came of it.

use std::fs;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::ask;
use crate::audit::recorded;
use crate::harness::{ADMIN, Answer, Gateway, Pair, Request};

async fn keys(gateway: &Gateway) -> Vec<Value> {
    let answer = ask(gateway.admin, &Request::get("/console/keys").bearer(ADMIN)).await;
    answer.json()["keys"].as_array().unwrap().clone()
}

async fn rotate(gateway: &Gateway, id: &str, body: &str) -> Answer {
    let request = Request::post("/console/keys/rotate", body).bearer(ADMIN);
    ask(gateway.admin, &request.field("X-Request-Id", id)).await
}

fn body(active: &Value, force: bool) -> String {
    json!({"active": active, "force": force}).to_string()
}

#[tokio::test]
async fn keys_are_rotated_from_what_the_operator_saw() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let before = keys(&gateway).await;
    let [active, next] = [&before[0], &before[1]];
    assert_eq!(
        (&active["state"], &next["state"]),
        (&json!("active"), &json!("next"))
    );
    assert_eq!(active["since_by"], "file", "no rotation yet: {active}");
    for wrong in [
        "",
        "{}",
        "[]",
        r#"{"active":1}"#,
        r#"{"active":"k","forse":true}"#,
    ] {
        let refused = rotate(&gateway, "wrong", wrong).await;
        assert_eq!(
            (refused.status, refused.reason()),
            (400, "invalid_params".to_owned()),
            "{wrong}"
        );
    }
    let large = format!(r#"{{"active":"{}"}}"#, "k".repeat(5000));
    assert_eq!(rotate(&gateway, "large", &large).await.status, 413);
    // Somebody else was faster.
    let refused = rotate(&gateway, "other", &body(&next["kid"], true)).await;
    assert_eq!(
        (refused.status, refused.reason()),
        (409, "conflict".to_owned())
    );
    let text = refused.text();
    assert!(text.contains(active["kid"].as_str().unwrap()), "{text}");
    // Verifiers may not know the next one.
    let refused = rotate(&gateway, "young", &body(&active["kid"], false)).await;
    assert_eq!(
        (refused.status, refused.reason()),
        (409, "conflict".to_owned())
    );
    let wait: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=300).contains(&wait), "{wait}");
    assert!(refused.text().contains("force"), "{}", refused.text());
    assert_eq!(
        keys(&gateway).await[0]["kid"],
        active["kid"],
        "nothing was done"
    );

    let rotated = rotate(&gateway, "forced", &body(&active["kid"], true)).await;
    let expected =
        json!({"status": "rotated", "active": next["kid"], "in_force": true, "finished": true});
    assert_eq!((rotated.status, rotated.json()), (200, expected));
    let after = keys(&gateway).await;
    assert_eq!(after[0]["kid"], next["kid"]);
    assert_eq!(after[0]["since_by"], "rotation", "{}", after[0]);
    assert_eq!(
        after[2]["retired_at"], after[0]["since"],
        "one took over from the other"
    );
    // The same page again, as by a second click.
    let refused = rotate(&gateway, "again", &body(&active["kid"], true)).await;
    assert_eq!(refused.status, 409);
    // A next key that was published for long enough needs no force.
    let file = fs::File::options()
        .write(true)
        .open(gateway.dir.join("keys/next.pem"))
        .unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(600))
        .unwrap();
    let rotated = rotate(&gateway, "due", &json!({"active": next["kid"]}).to_string()).await;
    assert_eq!(rotated.status, 200, "{}", rotated.text());

    let outcome = async |id: &str| {
        let records = recorded(&gateway, &format!("request_id={id}"), 1).await;
        (
            records[0]["outcome"].clone(),
            records[0]["detail"]["rotated"].clone(),
        )
    };
    assert_eq!(outcome("young").await, (json!("conflict"), json!(false)));
    assert_eq!(outcome("forced").await, (json!("done"), json!(true)));
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
    assert_eq!(
        (&told["finished"], &told["in_force"]),
        (&json!(false), &json!(true))
    );
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("Do not rotate again"), "{message}");
    assert_eq!(keys(&gateway).await[0]["kid"], before[1]["kid"]);
    let records = recorded(&gateway, "request_id=half", 1).await;
    assert_eq!(records[0]["detail"]["finished"], false, "{records:?}");
    let log = gateway.log();
    assert!(log.contains("retired-1-0123456789abcdef.pem"), "{log}");
}
