//! The form of the gateway's own answers: a google.rpc.Status over HTTP+JSON, a JSON-RPC error at the base, and 200 for
//! the errors that A2A defines there.

use serde_json::{Value, json};

use super::raw::with_rest;
use super::{Case, seat};
use crate::harness::{
    Agent, Builder, Connection, Pair, Recorded, Request, SSE_HEAD, Seat, Step, assert_refusal,
    card, chunk, ok_json,
};

/// The status word of an error over HTTP+JSON.
fn word(json: &Value) -> &str {
    json["error"]["status"].as_str().unwrap()
}

#[tokio::test]
async fn every_refusal_below_the_base_is_a_status() {
    let case = Case::new(with_rest(true), Agent::json("{}").await).await;
    let task = case.below("tasks/t-1");
    let get = |path: &str| Request::get(path).field("X-Request-Id", "r-1");
    let own = |path: &str| get(path).bearer(&case.caller.token);
    let rows = [
        (get(&task), "unauthenticated", "UNAUTHENTICATED"),
        (
            get(&task).bearer("wrong"),
            "unauthenticated",
            "UNAUTHENTICATED",
        ),
        (
            own(&task).field("X-Workspace-ID", "other"),
            "caller_mismatch",
            "PERMISSION_DENIED",
        ),
        (
            own("/workspaces/nobody/a2a/tasks/t"),
            "not_permitted",
            "PERMISSION_DENIED",
        ),
        (
            own("/workspaces/a:b/a2a/tasks/t"),
            "invalid_workspace_id",
            "INVALID_ARGUMENT",
        ),
        (own(&case.below("else")), "not_found", "NOT_FOUND"),
        (
            own(&case.below("tasks?x=1")),
            "invalid_params",
            "INVALID_ARGUMENT",
        ),
        (
            own(&case.below("message:send")),
            "method_not_allowed",
            "UNIMPLEMENTED",
        ),
        (
            own(&task).field("Sec-Fetch-Site", "cross-site"),
            "origin_forbidden",
            "PERMISSION_DENIED",
        ),
        (
            own(&task).field("Origin", "https://evil.test"),
            "origin_forbidden",
            "PERMISSION_DENIED",
        ),
        (
            own(&task).field("X-Timeout", "soon"),
            "invalid_request",
            "INVALID_ARGUMENT",
        ),
        (
            Request {
                method: "POST".into(),
                ..own(&case.below("message:send"))
            }
            .field("Content-Type", "text/plain"),
            "unsupported_media_type",
            "INVALID_ARGUMENT",
        ),
    ];
    for (mut request, reason, status) in rows {
        if request.method == "POST" {
            request.body = b"{}".to_vec();
        }
        let answer = case.gateway.call(&request).await;
        let what = format!("{} {} {reason}", request.method, request.path);
        assert_refusal(&answer, &request.path, "r-1", reason, &what);
        assert_eq!(word(&answer.json()), status, "{what}");
    }
    // What has no head that can be read, and no host of ours.
    for wire in [
        format!(
            "GET {task} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: r-1\r\nBad Name: x\r\n\r\n"
        ),
        format!("GET {task} HTTP/1.1\r\nHost: elsewhere.test\r\nX-Request-Id: r-1\r\n\r\n"),
    ] {
        let mut connection = Connection::open(case.gateway.public).await;
        connection.send(wire.as_bytes()).await;
        let answer = connection.answer().await;
        let reason = answer.reason();
        assert!(
            ["invalid_request", "misdirected"].contains(&&*reason),
            "{reason}"
        );
        assert_refusal(&answer, &task, "r-1", &reason, &wire);
    }
    let paused = Request::post("/workspaces/target/pause", "{}");
    assert_eq!(case.gateway.as_operator(paused).await.status, 200);
    let answer = case.gateway.call(&own(&task)).await;
    assert_refusal(&answer, &task, "r-1", "workspace_offline", "paused");
    let json = answer.json();
    assert_eq!((answer.status, word(&json)), (503, "UNAVAILABLE"));
    assert_eq!(
        (&json["code"], &json["retry_after"]),
        (&json!(-32000), &json!(15))
    );
    assert_eq!(json.get("jsonrpc"), None);
    assert_eq!(case.reached(), Vec::<String>::new());
}

/// An agent that makes the task `t-ann` by either binding.
async fn maker() -> Agent {
    Agent::scripted(|request: &Recorded| {
        let task = r#"{"id":"t-ann","contextId":"c","status":{"state":"working"}}"#;
        let body = if request.head.starts_with("POST /rest") {
            format!(r#"{{"task":{task}}}"#)
        } else if request.head.contains("/.well-known/") {
            return vec![Step::write("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")];
        } else {
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":{task}}}"#)
        };
        vec![Step::Write(ok_json(&body))]
    })
    .await
}

#[tokio::test]
async fn an_error_that_a2a_defines_is_200_in_answer_to_json_rpc_and_typed_over_http_json() {
    let case = Case::new(with_rest(true), maker().await).await;
    let message = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[]}}"#;
    assert_eq!(case.post("message:send", message).await.status, 200);
    let bob: Seat = case.gateway.seat("bob", "", Agent::json("{}").await).await;
    let base = case.target.path();
    let call = |method: &str, params: Value| {
        let call = json!({"jsonrpc": "2.0", "id": "c-1", "method": method, "params": params});
        Request::post(&base, call.to_string())
            .bearer(&bob.token)
            .field("X-Request-Id", "r-1")
    };
    for method in ["tasks/get", "GetTask", "tasks/cancel", "SubscribeToTask"] {
        let answer = case
            .gateway
            .call(&call(method, json!({"id": "t-ann"})))
            .await;
        assert_refusal(&answer, &base, "r-1", "task_not_found", method);
        assert_eq!(answer.status, 200, "{method}");
        assert_eq!(answer.field("x-a2a-refused"), Some("task_not_found"));
        assert_eq!(answer.json()["id"], "c-1");
    }
    let path = format!("{base}/tasks/t-ann");
    let get = Request::get(&path)
        .bearer(&bob.token)
        .field("X-Request-Id", "r-1");
    let answer = case.gateway.call(&get).await;
    assert_refusal(&answer, &path, "r-1", "task_not_found", "HTTP+JSON");
    let json = answer.json();
    let info = &json["error"]["details"][0];
    assert_eq!((answer.status, word(&json)), (404, "NOT_FOUND"));
    assert_eq!(
        (&info["reason"], &info["domain"]),
        (&json!("TASK_NOT_FOUND"), &json!("a2a-protocol.org"))
    );
    let off = json!({"push_notifications": false});
    assert_eq!(case.gateway.patch("target", off).await.status, 200);
    let params = json!({"taskId": "t", "url": "https://example.com/"});
    let answer = case
        .gateway
        .call(&call("CreateTaskPushNotificationConfig", params))
        .await;
    assert_refusal(&answer, &base, "r-1", "push_not_supported", "push");
    assert_eq!(answer.status, 200);
    // What is no call yet keeps its status.
    let text = Request::post(&base, "{}").without("content-type");
    let text = text.field("Content-Type", "text/plain").bearer(&bob.token);
    assert_eq!(case.gateway.call(&text).await.status, 415);
    let own = case
        .gateway
        .call(&Request::post(&base, "{}").bearer("wrong"))
        .await;
    assert_eq!(
        (own.status, own.json()["error"]["code"].clone()),
        (401, json!(-32000))
    );
}

/// An agent that sends two events and breaks off in the third.
async fn breaking(end: &'static str) -> Agent {
    Agent::scripted(move |request: &Recorded| {
        if request.head.contains("/.well-known/") {
            return vec![Step::write("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")];
        }
        let event = |text: &str| chunk(format!("data: {text}{end}{end}"));
        vec![
            Step::write(SSE_HEAD),
            Step::Write(event(r#"{"result":{"task":{"id":"t"}}}"#)),
            Step::Write(event(r#"{"result":{"statusUpdate":{"taskId":"t"}}}"#)),
            Step::Write(chunk("data: {\"res")),
            Step::Close,
        ]
    })
    .await
}

#[tokio::test]
async fn a_cut_stream_ends_with_an_error_by_its_binding_in_the_agents_line_ends() {
    let message = r#"{"message":{"messageId":"m","role":"user","parts":[]}}"#;
    let call =
        format!(r#"{{"jsonrpc":"2.0","id":"c-1","method":"message/stream","params":{message}}}"#);
    let gateway = async |kept| {
        let settings = [("stream.log_events", kept)];
        Case::with(&settings, card("target"), breaking("\n").await).await
    };
    let mut cases = [("1000", gateway("1000").await), ("0", gateway("0").await)];
    for (number, (end, at)) in [("\n", 0), ("\r\n", 0), ("\n", 1), ("\r\n", 1)]
        .into_iter()
        .enumerate()
    {
        let (kept, case) = &mut cases[at];
        let rows = [
            ("message:stream", message, true),
            ("v1/message:stream", message, true),
            ("tasks/send/stream", message, false),
            ("tasks/send/stream", &*call, false),
            ("", &*call, true),
        ];
        for (row, (tail, body, with_interface)) in rows.into_iter().enumerate() {
            let card = if with_interface {
                with_rest(true)
            } else {
                card("target")
            };
            let id = format!("target-{number}-{row}");
            let made = json!({"id": id, "name": id});
            case.target = seat(&case.gateway, made, card, breaking(end).await).await;
            let answer = case.post(tail, body).await;
            let what = format!("{tail} {end:?} {kept}");
            // Events of a stream that is not kept have no number.
            let text = match *kept {
                "0" => answer.text(),
                _ => answer.clone().unnumbered().text(),
            };
            assert!(answer.status == 200 && answer.whole, "{what}: {text}");
            let separator = format!("{end}{end}");
            let events: Vec<&str> = text.split_terminator(&*separator).collect();
            assert_eq!(events.len(), 3, "{what}: {text:?}");
            let last: Vec<&str> = events[2].split(end).collect();
            let name = answer.field("x-a2a-stream").unwrap();
            let info = if body == message {
                assert_eq!(last[0], "event: error", "{what}: {text:?}");
                let said: Value =
                    serde_json::from_str(last[1].strip_prefix("data: ").unwrap()).unwrap();
                let error = &said["error"];
                assert_eq!(
                    (&error["code"], word(&said)),
                    (&json!(502), "UNAVAILABLE"),
                    "{what}"
                );
                assert!(error["message"].is_string(), "{what}");
                // For clients of 0.3.
                assert_eq!(
                    (&said["code"], &said["message"]),
                    (&json!(-32000), &error["message"])
                );
                error["details"][0].clone()
            } else {
                let said: Value =
                    serde_json::from_str(last[0].strip_prefix("data: ").unwrap()).unwrap();
                assert_eq!(
                    (&said["id"], &said["error"]["code"]),
                    (&json!("c-1"), &json!(-32000)),
                    "{what}"
                );
                said["error"]["data"][0].clone()
            };
            assert_eq!(info["reason"], "AGENT_PROTOCOL_ERROR", "{what}");
            assert_eq!(info["domain"], "a2a-gateway", "{what}");
            assert_eq!(info["metadata"]["stream"], *name, "{what}");
            if *kept != "0" {
                let path = format!("/workspaces/{}/streams/{name}", case.target.id);
                let again = Request::get(path)
                    .bearer(&case.caller.token)
                    .field("Last-Event-ID", format!("{name}-2"));
                let again = case.gateway.call(&again).await.text();
                assert_eq!(
                    again.starts_with("event: error"),
                    body == message,
                    "{what}: {again:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_its_agent_ends_itself_gets_no_such_event() {
    let agent = Agent::scripted(|request: &Recorded| {
        if request.head.contains("/.well-known/") {
            return vec![Step::write("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")];
        }
        vec![
            Step::write(SSE_HEAD),
            Step::Write(chunk("data: {\"task\":{\"id\":\"t\"}}\n\n")),
            Step::write(crate::harness::LAST_CHUNK),
        ]
    })
    .await;
    let case = Case::new(with_rest(true), agent).await;
    let answer = case.post("message:stream", r#"{"message":{}}"#).await;
    assert_eq!(
        answer.unnumbered().text(),
        "data: {\"task\":{\"id\":\"t\"}}\n\n"
    );
}

#[tokio::test]
async fn a_stream_of_a_polling_agent_is_cut_by_the_same_form() {
    let settings = [("timeouts.stream", "1s")];
    let mut builder = Builder::new(Pair::Embedded);
    for (key, value) in settings {
        builder = builder.set(key, value);
    }
    let gateway = builder.start().await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    let poller = json!({"id": "poller", "name": "poller", "delivery_mode": "poll"});
    let enrolment = gateway.create(poller).await;
    let registered = json!({"id": "poller", "delivery_mode": "poll", "agent_card": card("poller")});
    let registered = Request::post("/registry/register", registered.to_string()).bearer(&enrolment);
    assert_eq!(gateway.call(&registered).await.status, 200);
    let body = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;
    let stream = Request::post("/workspaces/poller/a2a/message:stream", body).bearer(&caller.token);
    let answer = gateway.call(&stream).await;
    let text = answer.text();
    let (_, last) = text
        .rsplit_once("event: error\ndata: ")
        .unwrap_or_else(|| panic!("{text}"));
    let said: Value = serde_json::from_str(last.trim()).unwrap();
    assert_eq!(
        (&said["error"]["code"], word(&said)),
        (&json!(504), "DEADLINE_EXCEEDED")
    );
    // What a polling agent does not have is an error of A2A's.
    for (path, code, reason) in [
        (
            "tasks/t/pushNotificationConfigs",
            -32003,
            "PUSH_NOTIFICATION_NOT_SUPPORTED",
        ),
        (
            "extendedAgentCard",
            -32007,
            "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
        ),
        ("tasks/unknown", -32001, "TASK_NOT_FOUND"),
    ] {
        let get = Request::get(format!("/workspaces/poller/a2a/{path}")).bearer(&caller.token);
        let json = gateway.call(&get).await.json();
        let info = &json["error"]["details"][0];
        assert_eq!(
            (&json["code"], &info["reason"]),
            (&json!(code), &json!(reason)),
            "{path}: {json}"
        );
        assert_eq!(info["domain"], "a2a-protocol.org", "{path}");
    }
}
