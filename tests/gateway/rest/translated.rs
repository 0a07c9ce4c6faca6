//! Routes for agents that have JSON-RPC alone: what they were sent, and what comes back of it.

use serde_json::{Value, json};

use super::Case;
use crate::harness::{Agent, LAST_CHUNK, Request, SSE_HEAD, Step, card, card_1_0, chunk};

/// What the agent got: the method and the params of the one call that reached it.
fn called(case: &Case) -> (String, Value) {
    let recorded = case.target.agent.take();
    let call: Value = serde_json::from_slice(&recorded.body).unwrap();
    assert_eq!(recorded.head.lines().next(), Some("POST / HTTP/1.1"));
    assert_eq!(recorded.field("content-type"), Some("application/json"));
    assert_eq!(call["jsonrpc"], "2.0");
    assert!(call["id"].is_string(), "{call}");
    let method = call["method"].as_str().unwrap().to_owned();
    (method, call["params"].clone())
}

async fn case(card: Value, result: &str) -> Case {
    let answer = format!(r#"{{"jsonrpc":"2.0","id":"x","result":{result}}}"#);
    Case::new(card, Agent::json(&answer).await).await
}

#[tokio::test]
async fn each_route_becomes_the_call_of_the_targets_generation() {
    let message = json!({"message": {"messageId": "m", "role": "user", "parts": []}});
    let get = ["tasks/get", "GetTask"];
    let cancel = ["tasks/cancel", "CancelTask"];
    let send = ["message/send", "SendMessage"];
    let of = |id: &str, length: i64| json!({"id": id, "historyLength": length});
    let rows = [
        ("GET", "tasks/t-1", get, json!({"id": "t-1"})),
        ("GET", "tasks/t-1/", get, json!({"id": "t-1"})),
        ("GET", "tasks/t%3A1?history_length=0", get, of("t:1", 0)),
        ("GET", "tasks/t-1?historyLength=7", get, of("t-1", 7)),
        ("POST", "tasks/t-1/cancel", cancel, json!({"id": "t-1"})),
        ("POST", "tasks/send", send, message.clone()),
    ];
    for (at, card) in [card("target"), card_1_0("target")].into_iter().enumerate() {
        let case = case(card, r#"{"id": "t-1",  "n": 1.0}"#).await;
        for (verb, tail, methods, params) in &rows {
            let mut request = Request::new(verb, case.below(tail)).bearer(&case.caller.token);
            if *tail == "tasks/send" {
                request = request.field("Content-Type", "application/json");
                request.body = message.to_string().into_bytes();
            }
            let answer = case.gateway.call(&request).await;
            let what = format!("{verb} {tail} {at}");
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            assert_eq!(answer.text(), r#"{"id": "t-1",  "n": 1.0}"#, "{what}");
            let completed = answer.field("x-a2a-completed").unwrap();
            assert!(completed.starts_with("envelope, method"), "{what}");
            let recorded = case.target.agent.requests().pop().unwrap();
            assert_eq!(recorded.field("a2a-version").is_some(), at == 1, "{what}");
            let (method, mut sent) = called(&case);
            assert_eq!(method, methods[at], "{what}");
            if let Some(role) = sent.pointer_mut("/message/role") {
                assert_eq!(*role, ["user", "ROLE_USER"][at], "{what}");
                *role = "user".into();
            }
            assert_eq!(sent, *params, "{what}");
        }
    }
}

#[tokio::test]
async fn a_message_is_completed_as_in_a_bare_call_also_where_nothing_else_is() {
    let case = case(card("target"), "{}").await;
    for turn in ["full", "off"] {
        for body in [
            r#"{"message":{"text":"hi"}}"#,
            r#"{"parts":[{"type":"text","text":"hi"}]}"#,
        ] {
            let answer = case.post("tasks/send", body).await;
            assert_eq!(answer.status, 200, "{turn} {body}: {}", answer.text());
            let (method, params) = called(&case);
            let message = &params["message"];
            assert_eq!(method, "message/send");
            assert_eq!(message["parts"], json!([{"kind": "text", "text": "hi"}]));
            assert!(message["messageId"].is_string() && message["role"] == "user");
        }
        let off = json!({"complete": "off"});
        case.gateway.patch("target", off).await.has(200);
    }
}

#[tokio::test]
async fn what_is_no_message_or_no_argument_is_refused_and_reaches_nobody() {
    let case = case(card("target"), "{}").await;
    let enveloped = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"id":"t"}}"#;
    let get = r#"{"method":"tasks/get","params":{"id":"t"}}"#;
    let stream = r#"{"method":"message/stream","params":{"message":{}}}"#;
    let posts = [
        ("tasks/send", enveloped, 400, "invalid_request"),
        ("tasks/send", get, 400, "invalid_request"),
        ("tasks/send", stream, 400, "invalid_request"),
        ("tasks/send", "{}", 400, "invalid_request"),
        ("tasks/send", "[]", 400, "invalid_request"),
        ("tasks/send", "{", 400, "parse_error"),
        ("tasks/send", "", 400, "parse_error"),
        ("tasks/t-1", "{}", 405, "method_not_allowed"),
    ];
    for (tail, body, status, reason) in posts {
        let answer = case.post(tail, body).await;
        answer.refuses_for(&format!("POST {tail} {body}"), status, reason);
        // It says what this path wants, or which one is meant.
        let wanted = match (status, tail) {
            (400, _) if body.starts_with("{}") => "\"message\" object",
            (400, _) if body == "{" => "not JSON",
            (400, _) => "{\"message\": {…}}",
            _ => "read with GET",
        };
        let json = answer.json();
        let said = json["error"]["message"].as_str().unwrap();
        assert!(said.contains(wanted), "POST {tail} {body}: {said}");
    }
    let twice = "tasks/t-1?history_length=1&historyLength=1";
    let gets = [
        ("tasks/t-1?history_length=-1", 400, "invalid_params"),
        ("tasks/t-1?history_length=", 400, "invalid_params"),
        ("tasks/t-1?history_length=1.5", 400, "invalid_params"),
        ("tasks/t-1?history_length=4294967296", 400, "invalid_params"),
        (twice, 400, "invalid_params"),
        ("tasks/send/stream", 405, "method_not_allowed"),
        ("tasks/t-1/cancel", 405, "method_not_allowed"),
        ("tasks/t-1?other=1", 400, "invalid_params"),
    ];
    for (tail, status, reason) in gets {
        let answer = case.get(tail).await;
        answer.refuses_for(&tail, status, reason);
        let says_post = answer.text().contains("with POST");
        assert_eq!(says_post, status == 405, "{}", answer.text());
    }
    let anonymous = Request::get(case.below("tasks/t-1"));
    for request in [anonymous.clone().bearer("wrong"), anonymous] {
        case.gateway.call(&request).await.has(401);
    }
    let text = Request::post(case.below("tasks/send"), r#"{"message":{"text":"x"}}"#)
        .without("content-type")
        .field("Content-Type", "text/plain")
        .bearer(&case.caller.token);
    let text = case.gateway.call(&text).await;
    text.gives("unsupported_media_type");
    case.reached_nobody();
}

#[tokio::test]
async fn an_agents_error_comes_back_with_a_status_and_its_own_words() {
    // Each case's agent answers with these bytes.
    let answered = async |head: &str, body: &str| {
        let wire = format!(
            "HTTP/1.1 {head}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let agent = Agent::scripted(move |_| vec![Step::write(&wire)]).await;
        let case = Case::new(card("target"), agent).await;
        case.get("tasks/t-1").await
    };
    let no_task = json!({"code": -32001, "message": "no task"});
    let rows = [
        (200, no_task.clone(), 404),
        (200, json!({"code": -32002, "message": "done"}), 400),
        (200, json!({"code": -32601, "message": "what"}), 501),
        (200, json!({"code": -32603, "message": "oh"}), 500),
        (200, json!("words"), 500),
        (418, no_task, 418),
    ];
    for (status, error, expected) in rows {
        let sent = json!({"id": 1, "error": error});
        let (body, fields) = (
            sent.to_string(),
            "Content-Type: application/json\r\nETag: \"e\"",
        );
        let answer = answered(&format!("{status} X\r\n{fields}\r\n"), &body).await;
        assert_eq!(answer.status, expected, "{body}");
        let words = sent["error"]["message"].as_str().unwrap_or("words");
        let json = answer.json();
        assert_eq!(json["error"]["message"], json!(words), "{body}");
        assert_eq!(json["message"], json!(words), "{body}");
        assert_eq!(json["error"]["code"], expected, "{body}");
        if words != "words" {
            assert_eq!(json["code"], sent["error"]["code"], "{body}");
        }
        let reason = &json["error"]["details"][0]["reason"];
        assert_eq!(*reason == "TASK_NOT_FOUND", words == "no task", "{body}");
        assert_eq!(answer.field("etag"), None);
    }
    for body in ["{}", "hello", ""] {
        let answer = answered("200 X\r\n", body).await;
        answer.refuses_for(&body, 502, "agent_protocol_error");
        answer.tells("delivered", "true");
    }
    let answer = answered("503 X\r\nContent-Type: text/plain\r\n", "later").await;
    answer.refuses(502, "agent_protocol_error");
    answer.tells("agent_status", "503");
    // An error of 4xx passes in any form.
    let answer = answered("404 X\r\nContent-Type: text/plain\r\n", "gone").await;
    assert_eq!((answer.status, answer.text().as_str()), (404, "gone"));
}

#[tokio::test]
async fn a_stream_loses_its_envelopes_and_nothing_else() {
    let events = [
        ": hello\r\n\r\n",
        "event: message\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\": 1.0}}\r\n\r\n",
        "data: {\"result\":{\"kind\":\"status-update\",\"final\":true}}\r\n\r\n",
    ];
    let agent = Agent::scripted(move |_| {
        let mut steps = vec![Step::write(SSE_HEAD)];
        // Cut in the middle of lines: only whole events are looked at.
        for piece in events.concat().as_bytes().chunks(7) {
            steps.push(Step::Write(chunk(piece)));
        }
        steps.push(Step::write(LAST_CHUNK));
        steps
    })
    .await;
    let case = Case::new(card("target"), agent).await;
    let hi = r#"{"message":{"text":"hi"}}"#;
    let answer = case.post("tasks/send/stream", hi).await.has(200);
    assert_eq!(answer.field("content-type"), Some("text/event-stream"));
    let expected = [
        ": hello\r\n\r\n",
        "event: message\r\ndata: {\"n\": 1.0}\r\n\r\n",
        "data: {\"kind\":\"status-update\",\"final\":true}\r\n\r\n",
    ];
    assert_eq!(answer.unnumbered().text(), expected.concat());
    assert_eq!(called(&case).0, "message/stream");
}

#[tokio::test]
async fn an_answer_that_is_changed_keeps_to_the_bounds() {
    let body = format!(r#"{{"result":"{}"}}"#, "x".repeat(300_000));
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let large = vec![
        Step::write(head),
        Step::Write(chunk(body)),
        Step::write(LAST_CHUNK),
    ];
    let agent = async || {
        let large = large.clone();
        Agent::scripted(move |_| large.clone()).await
    };
    let case = Case::new(card("target"), agent().await).await;
    let answer = case.get("tasks/t-1").await;
    assert_eq!((answer.status, answer.body.len()), (200, 300_002));
    case.gateway.assert_idle().await;
    for (bound, reason) in [
        ("limits.response_bytes=200KiB", "response_too_large"),
        ("limits.bodies_bytes=200KiB", "overloaded"),
    ] {
        let settings = format!("limits.request_bytes=100KiB {bound}");
        let case = Case::with(&settings, card("target"), agent().await).await;
        let answer = case.get("tasks/t-1").await;
        assert_eq!(answer.reason(), reason, "{bound}: {}", answer.text());
        assert_eq!(answer.fact("delivered").as_deref(), Some("true"));
    }
    let coded = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}";
    let agent = Agent::scripted(move |_| vec![Step::write(coded)]).await;
    let case = Case::new(card("target"), agent).await;
    assert_eq!(case.get("tasks/t-1").await.reason(), "agent_protocol_error");
}
