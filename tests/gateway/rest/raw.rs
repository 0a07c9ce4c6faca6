//! The HTTP+JSON binding of agents that have it: every byte as it came.

use serde_json::{Value, json};

use super::Case;
use crate::harness::{Agent, LAST_CHUNK, Request, SSE_HEAD, Step, card, chunk, ok_json};

/// A card with both bindings, in the words of 0.3 or of 1.0, whose URLs are good for nothing but their
/// paths.
pub(super) fn with_rest(v1: bool) -> Value {
    let mut card = card("target");
    if v1 {
        card["supportedInterfaces"] = json!([
            {"url": "http://elsewhere.test:1/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": "http://elsewhere.test:1/rest/", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
            {"url": "http://elsewhere.test:1/old", "protocolBinding": "HTTP+JSON", "protocolVersion": "0.3"},
        ]);
    } else {
        card["additionalInterfaces"] =
            json!([{"url": "http://elsewhere.test:1/old", "transport": "HTTP+JSON"}]);
    }
    card
}

#[tokio::test]
async fn paths_verbs_queries_and_bodies_pass_as_they_came() {
    let agent = Agent::scripted(|request| match request.head.contains("/.well-known/") {
        true => vec![Step::write("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")],
        false => vec![Step::Write(ok_json(r#"{"n": 1.0}"#))],
    })
    .await;
    let case = Case::new(with_rest(true), agent).await;
    let body = r#"{"message": {"role":"ROLE_USER", "n": 1.0e2}}"#;
    let rows = [
        ("POST", "message:send", body, "/rest/message:send"),
        ("POST", "message:send/", body, "/rest/message:send/"),
        ("POST", "v1/message:send", body, "/old/v1/message:send"),
        (
            "GET",
            "tasks?pageSize=2&pageToken=%2F",
            "",
            "/rest/tasks?pageSize=2&pageToken=%2F",
        ),
        (
            "GET",
            "tasks/t-1?historyLength=3",
            "",
            "/rest/tasks/t-1?historyLength=3",
        ),
        ("GET", "tasks/a:b", "", "/rest/tasks/a:b"),
        ("POST", "tasks/t-1:cancel", "", "/rest/tasks/t-1:cancel"),
        ("POST", "tasks/t-1:cancel", "{}", "/rest/tasks/t-1:cancel"),
        (
            "GET",
            "tasks/t-1:subscribe",
            "",
            "/rest/tasks/t-1:subscribe",
        ),
        (
            "DELETE",
            "tasks/t/pushNotificationConfigs/c",
            "",
            "/rest/tasks/t/pushNotificationConfigs/c",
        ),
    ];
    for (verb, tail, body, expected) in rows {
        let mut request = Request::new(verb, case.below(tail))
            .bearer(&case.caller.token)
            .field("A2A-Version", "1.0")
            .field("A2A-Extensions", "https://x.test/e")
            .field("Cookie", "c=1");
        if !body.is_empty() {
            request = request.field("Content-Type", "application/a2a+json");
            request.body = body.into();
        }
        let what = format!("{verb} {tail}");
        let answer = case.gateway.call(&request).await;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, r#"{"n": 1.0}"#),
            "{what}"
        );
        assert_eq!(answer.field("x-a2a-completed"), None, "{what}");
        let recorded = case.target.agent.take();
        let line = recorded.head.lines().next().unwrap();
        assert_eq!(line, format!("{verb} {expected} HTTP/1.1"));
        assert_eq!(recorded.text(), body, "{what}");
        assert_eq!(recorded.field("a2a-version"), Some("1.0"), "{what}");
        assert_eq!(recorded.field("a2a-extensions"), Some("https://x.test/e"));
        assert_eq!(recorded.field("x-workspace-id"), Some("caller"), "{what}");
        assert_eq!(recorded.field("cookie"), None, "{what}");
        let host = format!("127.0.0.1:{}", case.target.agent.port);
        assert_eq!(recorded.field("host"), Some(host.as_str()), "{what}");
        let told = (
            recorded.field("content-type"),
            recorded.field("content-length"),
        );
        let length = body.len().to_string();
        if !body.is_empty() {
            assert_eq!(
                told,
                (Some("application/a2a+json"), Some(length.as_str())),
                "{what}"
            );
        } else if verb == "POST" {
            assert_eq!(told, (None, Some("0")), "{what}");
        } else {
            assert_eq!(told, (None, None), "{what}");
        }
        assert!(
            recorded
                .field("authorization")
                .is_some_and(|token| token.starts_with("Bearer ey"))
        );
    }
}

#[tokio::test]
async fn a_0_3_card_names_its_own_path_and_a_stream_passes_untouched() {
    let events = "event: x\r\ndata: {\"task\":{\"id\":\"t\"}}\r\n\r\n: ping\r\n\r\n";
    let agent = Agent::scripted(
        move |request| match request.head.contains("/.well-known/") {
            true => vec![Step::write("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")],
            false => vec![
                Step::write(SSE_HEAD),
                Step::Write(chunk(events)),
                Step::write(LAST_CHUNK),
            ],
        },
    )
    .await;
    let case = Case::new(with_rest(false), agent).await;
    let answer = case.post("v1/message:stream", r#"{"message":{}}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // A comment between numbered events has no blank line of its own.
    let passed = events.strip_suffix("\r\n").unwrap();
    assert_eq!(answer.unnumbered().text(), passed);
    let head = Request::new("HEAD", case.below("v1/tasks/t")).bearer(&case.caller.token);
    let mut connection = crate::harness::Connection::open(case.gateway.public).await;
    connection.send(&head.wire("127.0.0.1")).await;
    assert_eq!(connection.read_head().await.unwrap().status, 200);
    let expected = [
        "POST /old/v1/message:stream HTTP/1.1",
        "HEAD /old/v1/tasks/t HTTP/1.1",
    ];
    assert_eq!(case.reached(), expected);
}

#[tokio::test]
async fn what_is_refused_reaches_no_agent() {
    let case = Case::new(with_rest(true), Agent::json("{}").await).await;
    let token = &case.caller.token;
    let post = |tail: &str, body: &str| Request::post(case.below(tail), body).bearer(token);
    let rows = [
        (post("else", "{}"), 404, "not_found"),
        (post("a/b/c", "{}"), 404, "not_found"),
        (post("tasks/a%2Fb:cancel", "{}"), 404, "not_found"),
        (post("tasks/a%20b:cancel", "{}"), 400, "invalid_params"),
        (post("tasks/t%3Fx:subscribe", ""), 400, "invalid_params"),
        (
            post("tasks/t/pushNotificationConfigs/a%23b", "{}"),
            400,
            "invalid_params",
        ),
        (
            Request::get("/tasks/a%20b").bearer(token),
            400,
            "invalid_params",
        ),
        (post("tasks/../x", "{}"), 404, "not_found"),
        (
            Request::post(case.below("message:send"), "{}"),
            401,
            "unauthenticated",
        ),
        (
            post("message:send", "{}").field("X-Workspace-ID", "other"),
            403,
            "caller_mismatch",
        ),
        (
            post("message:send", "{}")
                .without("content-type")
                .field("Content-Type", "text/plain"),
            415,
            "unsupported_media_type",
        ),
        (
            post("message:send", "{}").field("Content-Encoding", "gzip"),
            415,
            "unsupported_media_type",
        ),
        (
            Request::new("QUERY", case.below("tasks")).bearer(token),
            405,
            "method_not_allowed",
        ),
        (
            Request::get("/workspaces/nobody/a2a/tasks").bearer(token),
            403,
            "not_permitted",
        ),
        (
            Request::get("/workspaces/a:b/a2a/tasks").bearer(token),
            400,
            "invalid_workspace_id",
        ),
    ];
    for (request, status, reason) in rows {
        let answer = case.gateway.call(&request).await;
        let seen = (answer.status, answer.reason());
        assert_eq!(
            seen,
            (status, reason.to_owned()),
            "{} {}",
            request.method,
            request.path
        );
    }
    assert_eq!(case.reached(), Vec::<String>::new());
}
