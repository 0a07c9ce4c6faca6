//! Calls with a key to an agent that polls (contract §6.2): in its inbox once, whoever sends them again.

use serde_json::{Value, json};

use super::{Case, data, hello};
use crate::harness::{ADMIN, Answer, Pair, Request};
use crate::on_both_pairs;

const REPLAY: &str = "idempotent-replay";

fn call(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

fn saying(text: &str, task: &str) -> Value {
    let mut params = hello();
    params["message"]["parts"][0]["text"] = json!(text);
    params["message"]["task_id"] = json!(task);
    call("message/send", &params)
}

impl Case {
    fn keyed(&self, key: &str, body: &Value) -> Request {
        self.request(body).field("Idempotency-Key", key)
    }

    async fn again(&self, request: &Request) -> Answer {
        let answer = self.gateway.call(request).await;
        let told = (answer.status, answer.field(REPLAY));
        assert_eq!(told, (200, Some("true")), "{}", answer.text());
        answer
    }
}

on_both_pairs! {
    async fn a_message_that_is_sent_again_is_in_the_inbox_once(pair: Pair) {
        let mut case = Case::new(pair).await;
        let body = call("message/send", &hello());
        let request = case.keyed("k-1", &body);
        let all = futures_util::future::join_all((0..20).map(|_| case.gateway.call(&request))).await;
        let first = all[0].text();
        for answer in &all {
            assert_eq!((answer.status, answer.text()), (200, first.clone()));
        }
        let replays = all.iter().filter(|answer| answer.field(REPLAY) == Some("true")).count();
        assert_eq!((replays, case.inbox().await.len()), (19, 1));
        // The same key with something else; and other calls.
        let mut other = hello();
        other["message"]["parts"][0]["text"] = json!("other");
        let conflict = case.gateway.call(&case.keyed("k-1", &call("message/send", &other))).await;
        conflict.refuses(409, "idempotency_conflict");
        let theirs = case.keyed("k-1", &body).without("authorization").bearer(ADMIN);
        assert_eq!(case.gateway.call(&theirs).await.field(REPLAY), None);
        assert_eq!(case.inbox().await.len(), 2);
        // It outlives the process, and the task's end: the answer is the first one, and who waits gets the last.
        let task = all[0].json()["activity_id"].as_str().unwrap().to_owned();
        let waits = request.clone().field("Prefer", "wait=60");
        let reply = async {
            case.until_waiting(1.0).await;
            let done = json!({"jsonrpc": "2.0", "id": 1, "result": {"kind": "message", "role": "agent",
                "messageId": "a-1", "parts": [{"kind": "text", "text": "done"}]}});
            assert_eq!(case.replied(&task, done).await.status, 200);
        };
        let (waited, ()) = tokio::join!(case.again(&waits), reply);
        assert_eq!(waited.json()["result"]["parts"][0]["text"], "done", "{}", waited.text());
        case.gateway.restart().await;
        assert_eq!(case.again(&request).await.text(), first);
        let waited = case.again(&waits).await;
        assert_eq!(waited.json()["result"]["parts"][0]["text"], "done", "{}", waited.text());
        assert_eq!(case.inbox().await.len(), 2);
    }
}

#[tokio::test]
async fn a_stream_that_is_asked_for_again_begins_anew_and_sends_nothing_twice() {
    let case = Case::new(Pair::Embedded).await;
    let request = case.keyed("s-1", &call("message/stream", &hello()));
    let reply = async {
        let id = case.until_sent(1).await;
        for state in ["working", "completed"] {
            let said = json!({"status": {"state": state}});
            assert_eq!(case.replied(&id, said).await.status, 200);
        }
    };
    let (first, ()) = tokio::join!(case.gateway.call(&request), reply);
    assert_eq!(first.field(REPLAY), None);
    let again = case.again(&request).await;
    assert_eq!(again.field("content-type"), Some("text/event-stream"));
    let states = |answer: &Answer| -> Vec<Value> {
        let events = data(answer).into_iter();
        events
            .map(|event| event["result"]["status"]["state"].clone())
            .collect()
    };
    assert_eq!(states(&again), ["submitted", "working", "completed"]);
    assert_eq!(states(&first), states(&again));
    assert_eq!(case.inbox().await.len(), 1);
    // As a plain message it is another call.
    let other = case.keyed("s-1", &call("message/send", &hello()));
    assert_eq!(case.gateway.call(&other).await.status, 409);
}

#[tokio::test]
async fn the_clients_own_task_goes_on_when_the_agent_asks_back() {
    let case = Case::new(Pair::Embedded).await;
    let first = case.request(&saying("first", "own-1"));
    let answer = case.gateway.call(&first).await;
    assert_eq!((answer.status, answer.field(REPLAY)), (200, None));
    case.again(&first).await;
    let second = case.request(&saying("second", "own-1"));
    assert_eq!(case.gateway.call(&second).await.status, 409);
    let id = answer.json()["activity_id"].as_str().unwrap().to_owned();
    let asks = json!({"status": {"state": "input-required"}});
    assert_eq!(case.replied(&id, asks).await.status, 200);
    let answer = case.gateway.call(&second).await.has(200);
    assert_eq!(answer.field(REPLAY), None, "{}", answer.text());
    case.again(&second).await;
    assert_eq!(case.inbox().await.len(), 2);
}

#[tokio::test]
async fn a_plain_http_message_with_a_key_is_sent_once_too() {
    let case = Case::new(Pair::Embedded).await;
    let mut at_once = hello();
    at_once["configuration"] = json!({"returnImmediately": true});
    let request = Request::post("/workspaces/poller/a2a/message:send", at_once.to_string());
    let request = request
        .bearer(&case.caller.token)
        .field("Idempotency-Key", "k");
    let first = case.gateway.call(&request).await.has(200);
    assert_eq!(case.again(&request).await.text(), first.text());
    assert_eq!(case.inbox().await.len(), 1);
    // Where nothing was put into the inbox, the key stays free.
    let mut lost = hello();
    lost["message"]["taskId"] = json!("no-such-task");
    let wrong = case.keyed("w", &call("message/send", &lost));
    let wrong = case.gateway.call(&wrong).await;
    wrong.refuses(200, "task_not_found");
    let right = case.keyed("w", &call("message/send", &hello()));
    let right = case.gateway.call(&right).await;
    assert_eq!((right.status, right.field(REPLAY)), (200, None));
}
