//! A call that asks to be waited for is answered when the agent's turn is over, or as its task stands.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Case, hello, hello_1_0};
use crate::harness::{Builder, Connection, Pair, card, card_1_0};
use crate::on_both_pairs;

fn with(mut params: Value, configuration: Value) -> Value {
    params["configuration"] = configuration;
    params
}

impl Case {
    /// Replies to the first entry, once it is there.
    async fn reply_to_first(&self, reply: Value) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let activity = loop {
            if let Some(item) = self.inbox().await.pop() {
                break item["id"].as_str().unwrap().to_owned();
            }
            assert!(Instant::now() < deadline, "nothing is in the inbox");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let answer = self.replied(&activity, reply).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    async fn until_waiting(&self, count: f64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let name = "a2a_gateway_inbox_readers";
        while self.gateway.metric(name, &["kind=\"sender\""]).await != count {
            assert!(Instant::now() < deadline, "not {count} waiting");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

on_both_pairs! {
    async fn a_blocking_call_is_answered_with_the_reply(pair: Pair) {
        let done = json!({"result": {"kind": "message", "role": "agent", "messageId": "a",
            "parts": [{"kind": "text", "text": "done"}]}});
        for (method, params, card) in [
            ("message/send", with(hello(), json!({"blocking": true})), card("poller")),
            ("SendMessage", hello_1_0(), card_1_0("poller")),
            ("SendMessage", with(hello_1_0(), json!({"returnImmediately": false})), card_1_0("poller")),
        ] {
            let case = Case::with(Builder::new(pair), card).await;
            let (answer, ()) = tokio::join!(case.call(method, params), case.reply_to_first(done.clone()));
            assert_eq!(answer.status, 200, "{}", answer.text());
            let result = &answer.json()["result"];
            let message = if method == "SendMessage" { &result["message"] } else { result };
            assert_eq!(message["parts"][0]["text"], "done", "{method}: {}", answer.text());
            assert_eq!(answer.field("preference-applied"), None);
            case.until_waiting(0.0).await;
        }
    }
}

#[tokio::test]
async fn a_wait_ends_with_the_task_as_it_stands() {
    let builder = Builder::new(Pair::Embedded).set("timeouts.total", "1s");
    let case = Case::with(builder, card("poller")).await;
    let blocking = with(hello(), json!({"blocking": true}));
    let began = Instant::now();
    let queued = case.call("message/send", blocking.clone()).await;
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(queued.json()["status"], "queued", "{}", queued.text());
    assert_eq!(queued.json()["result"]["status"]["state"], "submitted");
    let id = queued.json()["activity_id"].as_str().unwrap().to_owned();
    let ack = crate::harness::Request::post(
        "/workspaces/poller/activity/ack",
        json!({"up_to": id}).to_string(),
    );
    case.gateway.call(&ack.bearer(&case.token)).await;
    let working = async {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let items = case.inbox().await;
            if items.len() == 2 {
                let activity = items[1]["id"].as_str().unwrap().to_owned();
                let reply = json!({"status": {"state": "working"}});
                assert_eq!(case.replied(&activity, reply).await.status, 200);
                break;
            }
            assert!(Instant::now() < deadline, "{items:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (answer, ()) = tokio::join!(case.call("message/send", blocking), working);
    assert_eq!(
        answer.json()["result"]["status"]["state"],
        "working",
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn what_does_not_ask_for_it_is_answered_at_once() {
    for (method, params, card) in [
        ("message/send", hello(), card("poller")),
        (
            "message/send",
            with(hello(), json!({"blocking": false})),
            card("poller"),
        ),
        (
            "SendMessage",
            with(hello_1_0(), json!({"returnImmediately": true})),
            card_1_0("poller"),
        ),
    ] {
        let case = Case::with(Builder::new(Pair::Embedded), card).await;
        let began = Instant::now();
        let queued = case.call(method, params).await;
        assert!(began.elapsed() < Duration::from_secs(30));
        assert_eq!(queued.json()["status"], "queued", "{}", queued.text());
    }
    // A caller that knows no method does not ask by the one that is chosen for it.
    let case = Case::with(Builder::new(Pair::Embedded), card_1_0("poller")).await;
    let began = Instant::now();
    let bare = case
        .gateway
        .call(&case.request(&json!({"text": "hello"})))
        .await;
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(bare.json()["method"], "SendMessage", "{}", bare.text());
}

#[tokio::test]
async fn those_who_wait_are_bounded_and_leave_with_their_callers() {
    let builder = Builder::new(Pair::Embedded).set("inbox.connections_per_caller", "2");
    let case = Case::with(builder, card("poller")).await;
    let params = with(hello(), json!({"blocking": true}));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params});
    let wire = case.request(&body).wire(&case.gateway.public.to_string());
    let mut waiting = Vec::new();
    for count in 1..=2 {
        let mut connection = Connection::open(case.gateway.public).await;
        connection.send(&wire).await;
        waiting.push(connection);
        case.until_waiting(f64::from(count)).await;
    }
    let beyond = case.gateway.call(&case.request(&body)).await;
    assert_eq!(beyond.json()["status"], "queued", "{}", beyond.text());
    assert_eq!(
        case.gateway
            .metric("a2a_gateway_inbox_waits_refused_total", &[])
            .await,
        1.0
    );
    drop(waiting);
    case.until_waiting(0.0).await;
    case.gateway.assert_idle().await;
}

#[tokio::test]
async fn a_drain_answers_those_who_wait() {
    let mut case = Case::new(Pair::Embedded).await;
    let params = with(hello(), json!({"blocking": true}));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params});
    let mut connection = Connection::open(case.gateway.public).await;
    let wire = case.request(&body).wire(&case.gateway.public.to_string());
    connection.send(&wire).await;
    case.until_waiting(1.0).await;
    case.gateway.terminate();
    let answer = connection.answer().await;
    assert_eq!(
        (answer.status, &answer.json()["status"]),
        (200, &json!("queued"))
    );
    assert!(case.gateway.wait(Duration::from_secs(20)).success());
}
