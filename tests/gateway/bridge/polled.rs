//! Agents that poll: entries in the agent's generation, replies in either, answers in the caller's.

use serde_json::{Value, json};

use super::agents::message_0_3;
use super::{Answer, Pair, Request, card, card_1_0, words_0_3, words_1_0};
use crate::harness::Builder;
use crate::polling::Case;

struct Polled(Case);

impl Polled {
    async fn new(card: Value) -> Self {
        Self(Case::with(Builder::new(Pair::Embedded), card).await)
    }

    async fn call(&self, method: &str, params: Value) -> Answer {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let request = Request::post("/workspaces/poller/a2a", body.to_string());
        let request = request.bearer(&self.0.caller.token);
        self.0.gateway.call(&request).await
    }

    /// The newest entry.
    async fn entry(&self) -> Value {
        let request = Request::get("/activity?limit=1").bearer(&self.0.token);
        self.0.gateway.call(&request).await.json()[0].clone()
    }

    async fn reply(&self, entry: &Value, body: Value) {
        let id = entry["id"].as_str().unwrap();
        let path = format!("/workspaces/poller/activity/{id}/reply");
        let request = Request::post(path, body.to_string()).bearer(&self.0.token);
        self.0.gateway.call(&request).await.has(200);
    }
}

fn reply_0_3() -> Value {
    json!({"result": {"kind": "message", "role": "agent", "messageId": "a-1",
        "parts": [{"kind": "text", "text": "made"}]}})
}

fn reply_1_0() -> Value {
    json!({"result": {"message": {"role": "ROLE_AGENT", "messageId": "a-1", "parts": [{"text": "made"}]}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_is_in_the_agents_generation_and_the_answer_in_the_callers() {
    for (card, caller, agent, label) in [
        (card_1_0("poller"), words_0_3(), words_1_0(), "0.3>1.0"),
        (card("poller"), words_1_0(), words_0_3(), "1.0>0.3"),
    ] {
        let case = Polled::new(card).await;
        for reply in [reply_0_3(), reply_1_0()] {
            let sent = case.call(caller.send, caller.message.clone()).await;
            sent.has_field("x-a2a-bridged", label);
            assert_eq!(sent.json()["method"], caller.send, "the caller's own name");
            assert_eq!(sent.status, 200, "{}", sent.text());
            let entry = case.entry().await;
            let body = &entry["request_body"];
            assert_eq!(entry["method"], agent.send);
            assert_eq!(body["method"], agent.send);
            let (is, wanted) = (&body["params"]["message"], &agent.message["message"]);
            assert_eq!(is["parts"], wanted["parts"], "{entry}");
            assert_eq!(is["role"], wanted["role"]);
            case.reply(&entry, reply).await;
            let id = entry["task_id"].clone();
            for words in [&caller, &agent] {
                let task = case.call(words.get, json!({"id": id})).await.json()["result"].clone();
                assert_eq!(task["status"]["state"], words.done, "{task}");
                let parts = &task["status"]["message"]["parts"];
                let expected = match words.get {
                    "GetTask" => json!([{"text": "made"}]),
                    _ => json!([{"kind": "text", "text": "made"}]),
                };
                assert_eq!(parts, &expected, "{task}");
            }
        }
        case.call(caller.send, caller.message).await;
        let id = case.entry().await["task_id"].clone();
        case.call(caller.cancel, json!({"id": id})).await;
        let entry = case.entry().await;
        assert_eq!(entry["method"], json!(agent.cancel));
        assert_eq!(entry["request_body"]["method"], json!(agent.cancel));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_is_as_it_came_where_its_agent_speaks_it_or_nothing_is_translated() {
    let mut both = card_1_0("poller");
    both["url"] = json!("http://127.0.0.1/");
    both["protocolVersion"] = json!("0.3.0");
    for (card, mode) in [
        (both, "auto"),
        (card_1_0("poller"), "off"),
        (card("poller"), "off"),
    ] {
        let case = Polled::new(card).await;
        let mode = json!({"bridge": mode});
        case.0.gateway.patch("poller", mode).await.has(200);
        for words in [words_0_3(), words_1_0()] {
            let (method, params) = (words.send, words.message);
            let sent = case.call(method, params.clone()).await.has(200);
            assert_eq!(sent.field("x-a2a-bridged"), None, "{}", sent.text());
            let entry = case.entry().await;
            let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
            assert_eq!(entry["request_body"], body);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_a_translation_is_not_put_into_an_inbox() {
    let case = Polled::new(card_1_0("poller")).await;
    let mut params = message_0_3();
    params["message"]["parts"] = json!([{"kind": "hologram"}]);
    let refused = case.call("message/send", params).await;
    assert_eq!(refused.reason(), "invalid_params", "{}", refused.text());
    assert_eq!(case.entry().await, Value::Null);
}
