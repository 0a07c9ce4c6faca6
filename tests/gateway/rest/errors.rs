//! The form of the gateway's own answers: a google.rpc.Status over HTTP+JSON, a JSON-RPC error at the base, and 200 for
//! the errors that A2A defines there.

use serde_json::{Value, json};

use super::raw::with_rest;
use super::{Case, asking, cardless, seat};
use crate::answers::words;
use crate::harness::{
    Agent, Connection, Gateway, LAST_CHUNK, Request, SSE_HEAD, Seat, Step, assert_refusal, card,
    chunk, ok_json, sse,
};
use crate::polling::poller;

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
    let (denied, invalid) = ("PERMISSION_DENIED", "INVALID_ARGUMENT");
    let other = own(&task).field("X-Workspace-ID", "other");
    let foreign = own(&task).field("Sec-Fetch-Site", "cross-site");
    let from_evil = own(&task).field("Origin", "https://evil.test");
    let send = case.below("message:send");
    let text = asking("POST", &send, &case.caller.token, "{}").without("content-type");
    let text = text.field("Content-Type", "text/plain");
    let rows = [
        (get(&task), "unauthenticated", "UNAUTHENTICATED"),
        (
            get(&task).bearer("wrong"),
            "unauthenticated",
            "UNAUTHENTICATED",
        ),
        (other, "caller_mismatch", denied),
        (
            own("/workspaces/nobody/a2a/tasks/t"),
            "not_permitted",
            denied,
        ),
        (
            own("/workspaces/a:b/a2a/tasks/t"),
            "invalid_workspace_id",
            invalid,
        ),
        (own(&case.below("else")), "not_found", "NOT_FOUND"),
        (own(&case.below("tasks?x=1")), "invalid_params", invalid),
        (own(&send), "method_not_allowed", "UNIMPLEMENTED"),
        (foreign, "origin_forbidden", denied),
        (from_evil, "origin_forbidden", denied),
        (
            own(&task).field("X-Timeout", "soon"),
            "invalid_request",
            invalid,
        ),
        (text, "unsupported_media_type", invalid),
    ];
    for (request, reason, status) in rows {
        let answer = case.gateway.call(&request).await;
        let what = format!("{} {} {reason}", request.method, request.path);
        assert_refusal(&answer, &request.path, "r-1", reason, &what);
        assert_eq!(word(&answer.json()), status, "{what}");
    }
    // What has no head that can be read, and no host of ours.
    for fields in ["Host: 127.0.0.1\r\nBad Name: x", "Host: elsewhere.test"] {
        let wire = format!("GET {task} HTTP/1.1\r\nX-Request-Id: r-1\r\n{fields}\r\n\r\n");
        let mut connection = Connection::open(case.gateway.public).await;
        connection.send(wire.as_bytes()).await;
        let answer = connection.answer().await;
        let reason = answer.reason();
        let expected = ["invalid_request", "misdirected"];
        assert!(expected.contains(&&*reason), "{reason}");
        assert_refusal(&answer, &task, "r-1", &reason, &wire);
    }
    let pause = "/workspaces/target/pause";
    case.gateway.post(pause, json!({})).await.has(200);
    let answer = case.gateway.call(&own(&task)).await;
    assert_refusal(&answer, &task, "r-1", "workspace_offline", "paused");
    let json = answer.json();
    assert_eq!((answer.status, word(&json)), (503, "UNAVAILABLE"));
    assert_eq!(json["code"], -32000);
    assert_eq!(json["retry_after"], 15);
    assert_eq!(json.get("jsonrpc"), None);
    case.reached_nobody();
}

/// An agent that makes the task `t-ann` by either binding.
async fn maker() -> Agent {
    cardless(|request| {
        let task = r#"{"id":"t-ann","contextId":"c","status":{"state":"working"}}"#;
        let body = match request.head.starts_with("POST /rest") {
            true => format!(r#"{{"task":{task}}}"#),
            false => format!(r#"{{"jsonrpc":"2.0","id":1,"result":{task}}}"#),
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
        asking("POST", &base, &bob.token, &call.to_string())
    };
    for method in ["tasks/get", "GetTask", "tasks/cancel", "SubscribeToTask"] {
        let request = call(method, json!({"id": "t-ann"}));
        let answer = case.gateway.call(&request).await;
        assert_refusal(&answer, &base, "r-1", "task_not_found", method);
        assert_eq!(answer.status, 200, "{method}");
        assert_eq!(answer.field("x-a2a-refused"), Some("task_not_found"));
        assert_eq!(answer.json()["id"], "c-1");
    }
    let path = format!("{base}/tasks/t-ann");
    let get = asking("GET", &path, &bob.token, "");
    let answer = case.gateway.call(&get).await;
    assert_refusal(&answer, &path, "r-1", "task_not_found", "HTTP+JSON");
    let json = answer.json();
    let info = &json["error"]["details"][0];
    assert_eq!((answer.status, word(&json)), (404, "NOT_FOUND"));
    assert_eq!(info["reason"], "TASK_NOT_FOUND");
    assert_eq!(info["domain"], "a2a-protocol.org");
    let off = json!({"push_notifications": false});
    case.gateway.patch("target", off).await.has(200);
    let params = json!({"taskId": "t", "url": "https://example.com/"});
    let create = call("CreateTaskPushNotificationConfig", params);
    let answer = case.gateway.call(&create).await;
    assert_refusal(&answer, &base, "r-1", "push_not_supported", "push");
    assert_eq!(answer.status, 200);
    // What is no call yet keeps its status.
    let text = Request::post(&base, "{}").without("content-type");
    let text = text.field("Content-Type", "text/plain").bearer(&bob.token);
    assert_eq!(case.gateway.call(&text).await.status, 415);
    let own = Request::post(&base, "{}").bearer("wrong");
    let own = case.gateway.call(&own).await;
    assert_eq!(own.status, 401);
    assert_eq!(own.json()["error"]["code"], -32000);
}

/// An agent that sends two events and breaks off in the third.
async fn breaking(end: &'static str) -> Agent {
    cardless(move |_| {
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
        let settings = format!("stream.log_events={kept}");
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
            let card = match with_interface {
                true => with_rest(true),
                false => card("target"),
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
            let data = last[usize::from(body == message)].strip_prefix("data: ");
            let said: Value = serde_json::from_str(data.unwrap()).unwrap();
            let info = if body == message {
                assert_eq!(last[0], "event: error", "{what}: {text:?}");
                let error = &said["error"];
                assert_eq!(error["code"], 502, "{what}");
                assert_eq!(word(&said), "UNAVAILABLE", "{what}");
                assert!(error["message"].is_string(), "{what}");
                // For clients of 0.3.
                assert_eq!(said["code"], -32000);
                assert_eq!(said["message"], error["message"]);
                error["details"][0].clone()
            } else {
                assert_eq!(said["id"], "c-1", "{what}");
                assert_eq!(said["error"]["code"], -32000, "{what}");
                said["error"]["data"][0].clone()
            };
            assert_eq!(info["reason"], "AGENT_PROTOCOL_ERROR", "{what}");
            assert_eq!(info["domain"], "a2a-gateway", "{what}");
            assert_eq!(info["metadata"]["stream"], *name, "{what}");
            if *kept != "0" {
                let path = format!("/workspaces/{}/streams/{name}", case.target.id);
                let again = Request::get(path).bearer(&case.caller.token);
                let again = again.field("Last-Event-ID", format!("{name}-2"));
                let again = case.gateway.call(&again).await.text();
                let is_error = again.starts_with("event: error");
                assert_eq!(is_error, body == message, "{what}: {again:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_its_agent_ends_itself_gets_no_such_event() {
    let event = "data: {\"task\":{\"id\":\"t\"}}\n\n";
    let agent = cardless(move |_| sse(event, Step::write(LAST_CHUNK))).await;
    let case = Case::new(with_rest(true), agent).await;
    let answer = case.post("message:stream", r#"{"message":{}}"#).await;
    assert_eq!(answer.unnumbered().text(), event);
}

#[tokio::test]
async fn a_stream_of_a_polling_agent_is_cut_by_the_same_form() {
    let gateway = Gateway::with("timeouts.stream=1s").await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    poller(&gateway, "poller", card("poller")).await;
    let body = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;
    let stream = Request::post("/workspaces/poller/a2a/message:stream", body).bearer(&caller.token);
    let answer = gateway.call(&stream).await;
    let text = answer.text();
    let last = text.rsplit_once("event: error\ndata: ");
    let (_, last) = last.unwrap_or_else(|| panic!("{text}"));
    let said: Value = serde_json::from_str(last.trim()).unwrap();
    assert_eq!(said["error"]["code"], 504);
    assert_eq!(word(&said), "DEADLINE_EXCEEDED");
    // What a polling agent does not have is an error of A2A's.
    for row in [
        "tasks/t/pushNotificationConfigs -32003 PUSH_NOTIFICATION_NOT_SUPPORTED",
        "extendedAgentCard -32007 EXTENDED_AGENT_CARD_NOT_CONFIGURED",
        "tasks/unknown -32001 TASK_NOT_FOUND",
    ] {
        let [path, code, reason] = words(row);
        let get = Request::get(format!("/workspaces/poller/a2a/{path}")).bearer(&caller.token);
        let json = gateway.call(&get).await.json();
        let info = &json["error"]["details"][0];
        assert_eq!(json["code"].to_string(), code, "{path}: {json}");
        assert_eq!(info["reason"], reason, "{path}: {json}");
        assert_eq!(info["domain"], "a2a-protocol.org", "{path}");
    }
}
