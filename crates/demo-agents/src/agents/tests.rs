//! Tests of the example agents over real HTTP.

use std::time::Instant;

use gateway_client::{Request, RequestProgress, Response};
use http::Method;

use super::*;

async fn start(kind: Kind) -> Url {
    let agent = Agent::bind(kind, SocketAddr::from(([127, 0, 0, 1], 0)), None)
        .await
        .unwrap();
    let url = agent.url.clone();
    tokio::spawn(agent.serve());
    url
}

async fn open(url: &Url, body: &Value) -> Response {
    let request = Request {
        method: Method::POST,
        body: body.to_string().into_bytes(),
        ..Request::get(url.clone(), Duration::from_secs(20))
    };
    request.send().await.unwrap()
}

async fn call(url: &Url, method: &str, params: Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let answer = open(url, &body).await.read_body().await.unwrap();
    serde_json::from_slice(&answer).unwrap()
}

fn message(text: &str) -> Value {
    json!({"message": {"messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": text}]}})
}

/// Returns the events of a stream, each with its time of arrival.
async fn stream(url: &Url, method: &str, params: Value) -> Vec<(Instant, Value)> {
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let mut answer = open(url, &body).await;
    assert!(answer.is_stream());
    let mut events = Vec::new();
    while let Some(piece) = answer.next_chunk().await.unwrap() {
        let text = std::str::from_utf8(&piece).unwrap();
        for data in text.split_terminator("\n\n") {
            let event = data.strip_prefix("data: ").unwrap();
            let mut event: Value = serde_json::from_str(event).unwrap();
            assert_eq!(event["id"], 7);
            events.push((Instant::now(), event["result"].take()));
        }
    }
    events
}

#[tokio::test]
async fn echo_says_back_what_it_is_told() {
    let url = start(Kind::Echo).await;
    let answer = call(&url, "message/send", message("hello")).await;
    assert_eq!(answer["id"], 7);
    assert_eq!(answer["result"]["kind"], "message");
    assert_eq!(answer["result"]["parts"][0]["text"], "echo: hello");
    let events = stream(&url, "message/stream", message("hello")).await;
    let kinds: Vec<_> = events
        .iter()
        .map(|(_, e)| e["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["task", "artifact-update", "status-update"]);
}

#[tokio::test]
async fn each_agent_has_a_card_of_its_own_address() {
    let url = start(Kind::Slow).await;
    let at = url.join(".well-known/agent-card.json").unwrap();
    let answer = Request::get(at, Duration::from_secs(5))
        .send()
        .await
        .unwrap();
    let (_, card) = answer.read_json().await.unwrap();
    assert_eq!(card["url"], url.as_str());
    assert_eq!(card["protocolVersion"], "0.3.0");
}

#[tokio::test]
async fn what_is_not_a2a_0_3_is_a_fault() {
    let url = start(Kind::Echo).await;
    let without = |member: &str| {
        let mut params = message("hi");
        params["message"].as_object_mut().unwrap().remove(member);
        params
    };
    let with = |member: &str, value: Value| {
        let mut params = message("hi");
        params["message"][member] = value;
        params
    };
    for (method, params, code) in [
        ("message/send", without("messageId"), -32_602),
        ("message/send", without("role"), -32_602),
        ("message/send", without("parts"), -32_602),
        ("message/send", with("parts", json!([])), -32_602),
        (
            "message/send",
            with("parts", json!([{"type": "text", "text": "hi"}])),
            -32_602,
        ),
        ("message/send", with("messageId", json!("")), -32_602),
        ("message/send", with("taskId", json!("nobody")), -32_001),
        ("message/stream", json!({}), -32_602),
        ("tasks/get", json!({"id": "nobody"}), -32_001),
        ("tasks/get", json!({}), -32_602),
        ("tasks/cancel", json!({"id": "nobody"}), -32_001),
        ("tasks/pushNotificationConfig/set", json!({}), -32_003),
        ("agent/getAuthenticatedExtendedCard", json!({}), -32_007),
        ("message/sendSubscribe", message("hi"), -32_601),
    ] {
        let answer = call(&url, method, params.clone()).await;
        assert_eq!(answer["error"]["code"], code, "{method} {params}: {answer}");
        assert_eq!(answer["id"], 7);
    }
    let bare = open(&url, &json!({"method": "message/send", "id": "x"})).await;
    assert_eq!(bare.status(), StatusCode::OK);
    let answer: Value = serde_json::from_slice(&bare.read_body().await.unwrap()).unwrap();
    assert_eq!(
        (&answer["error"]["code"], &answer["id"]),
        (&json!(-32_600), &json!("x"))
    );
}

#[tokio::test]
async fn slow_streams_its_progress_as_it_happens() {
    let url = start(Kind::Slow).await;
    let mut rounds = Vec::new();
    // A busy machine can delay one round; a buffering server would be late in every one.
    for _ in 0..5 {
        let began = Instant::now();
        let events = stream(&url, "message/stream", message("plan")).await;
        let states: Vec<&str> = events
            .iter()
            .map(|(_, e)| e["status"]["state"].as_str().unwrap_or("artifact"))
            .collect();
        assert_eq!(states[0], "submitted");
        assert_eq!(states[1..11], ["working"; 10]);
        assert_eq!(states[11..], ["artifact", "completed"]);
        assert_eq!(events[12].1["final"], true);
        let first = events[0].0 - began;
        let gaps = events[..11].windows(2).map(|pair| pair[1].0 - pair[0].0);
        let least = gaps.min().unwrap();
        if first < Duration::from_millis(250) && least > Duration::from_millis(200) {
            return;
        }
        rounds.push((first, least));
    }
    panic!("the first was late, or two came together, in every round: {rounds:?}");
}

#[tokio::test]
async fn a_slow_task_can_be_asked_for_canceled_and_followed_again() {
    let url = start(Kind::Slow).await;
    let mut params = message("plan");
    params["configuration"] = json!({"blocking": false});
    let task = call(&url, "message/send", params).await;
    assert_eq!(task["result"]["status"]["state"], "submitted");
    let id = json!({"id": task["result"]["id"]});
    let follower = tokio::spawn({
        let (url, id) = (url.clone(), id.clone());
        async move { stream(&url, "tasks/resubscribe", id).await }
    });
    tokio::time::sleep(Duration::from_millis(400)).await;
    let seen = call(&url, "tasks/get", id.clone()).await;
    assert_eq!(seen["result"]["status"]["state"], "working");
    let canceled = call(&url, "tasks/cancel", id.clone()).await;
    assert_eq!(canceled["result"]["status"]["state"], "canceled");
    let again = call(&url, "tasks/cancel", id).await;
    assert_eq!(again["error"]["code"], -32_002);
    let events = follower.await.unwrap();
    let last = &events.last().unwrap().1;
    assert_eq!(
        (&last["status"]["state"], &last["final"]),
        (&json!("canceled"), &json!(true))
    );
}

#[tokio::test]
async fn slow_answers_a_unary_call_with_the_finished_task() {
    let url = start(Kind::Slow).await;
    let answer = call(&url, "message/send", message("plan")).await;
    let task = &answer["result"];
    assert_eq!(task["status"]["state"], "completed");
    assert_eq!(
        task["artifacts"][0]["parts"][0]["text"],
        "done in 10 steps: plan"
    );
}

#[tokio::test]
async fn flaky_fails_in_turn_and_then_works() {
    let url = start(Kind::Flaky).await;
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "message/send", "params": message("?")});
    assert_eq!(
        open(&url, &body).await.status(),
        StatusCode::INTERNAL_SERVER_ERROR
    );
    let cut = open(&url, &body).await;
    assert_eq!(cut.status(), StatusCode::OK);
    let error = cut.read_body().await.unwrap_err();
    assert_eq!(error.reached, RequestProgress::Connection);
    let began = Instant::now();
    open(&url, &body).await.read_body().await.unwrap();
    assert!(began.elapsed() >= HANG);
    let answer = open(&url, &body).await.read_body().await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(
        answer["result"]["parts"][0]["text"],
        "this time it worked: ?"
    );
}
