//! A call that asks to be waited for is answered when the agent's turn is over, or as its task stands.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Case, hello, hello_1_0};
use crate::harness::{Builder, Connection, Pair, card, card_1_0, card_of_both, until_holds};
use crate::on_both_pairs;

fn with(mut params: Value, configuration: Value) -> Value {
    params["configuration"] = configuration;
    params
}

on_both_pairs! {
    async fn a_blocking_call_is_answered_with_the_reply(pair: Pair) {
        let done = json!({"result": {"kind": "message", "role": "agent", "messageId": "a",
            "parts": [{"kind": "text", "text": "done"}]}});
        let case = Case::with(Builder::new(pair), card_of_both("poller")).await;
        for (sent, (method, params)) in [
            ("message/send", with(hello(), json!({"blocking": true}))),
            ("SendMessage", hello_1_0()),
            ("SendMessage", with(hello_1_0(), json!({"returnImmediately": false}))),
        ].into_iter().enumerate() {
            let reply = async {
                let activity = case.until_sent(sent + 1).await;
                case.replied(&activity, done.clone()).await.has(200);
            };
            let (answer, ()) = tokio::join!(case.call(method, params), reply);
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
    let sent = std::cell::Cell::new(1);
    let working = async || {
        sent.set(sent.get() + 1);
        let reply = async {
            let activity = case.until_sent(sent.get()).await;
            let reply = json!({"status": {"state": "working"}});
            assert_eq!(case.replied(&activity, reply).await.status, 200);
        };
        let (answer, ()) = tokio::join!(case.call("message/send", blocking.clone()), reply);
        answer.json()["result"]["status"]["state"] == "working"
    };
    until_holds("a wait sees the reply in its second", working).await;
}

#[tokio::test]
async fn what_does_not_ask_for_it_is_answered_at_once() {
    // A wait would end later than a caller of these cases waits.
    let builder = || Builder::new(Pair::Embedded).set("timeouts.total", "10m");
    let case = Case::with(builder(), card_of_both("poller")).await;
    let immediate = with(hello_1_0(), json!({"returnImmediately": true}));
    for (method, params) in [
        ("message/send", hello()),
        ("message/send", with(hello(), json!({"blocking": false}))),
        ("SendMessage", immediate),
    ] {
        let queued = case.call(method, params).await;
        assert_eq!(queued.json()["status"], "queued", "{}", queued.text());
    }
    // A caller that knows no method does not ask by the one that is chosen for it.
    let case = Case::with(builder(), card_1_0("poller")).await;
    let bare = case.request(&json!({"text": "hello"}));
    let bare = case.gateway.call(&bare).await;
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
    let refused = case.gateway.counts("inbox_waits_refused_total", "");
    assert_eq!(refused.await, 1.0);
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
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["status"], "queued");
    assert!(case.gateway.wait(Duration::from_secs(60)).success());
}
