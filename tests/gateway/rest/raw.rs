//! The HTTP+JSON binding of agents that have it: every byte as it came.

use serde_json::{Value, json};

use super::{Case, cardless};
use crate::harness::{Agent, LAST_CHUNK, Request, Step, card, ok_json, sse};

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
    let agent = cardless(|_| vec![Step::Write(ok_json(r#"{"n": 1.0}"#))]).await;
    let case = Case::new(with_rest(true), agent).await;
    let body = r#"{"message": {"role":"ROLE_USER", "n": 1.0e2}}"#;
    let rows = [
        ("POST", "message:send", body, "rest"),
        ("POST", "message:send/", body, "rest"),
        ("POST", "v1/message:send", body, "old"),
        ("GET", "tasks?pageSize=2&pageToken=%2F", "", "rest"),
        ("GET", "tasks/t-1?historyLength=3", "", "rest"),
        ("GET", "tasks/a:b", "", "rest"),
        ("POST", "tasks/t-1:cancel", "", "rest"),
        ("POST", "tasks/t-1:cancel", "{}", "rest"),
        ("GET", "tasks/t-1:subscribe", "", "rest"),
        ("DELETE", "tasks/t/pushNotificationConfigs/c", "", "rest"),
    ];
    for (verb, tail, body, base) in rows {
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
        assert_eq!(answer.status, 200, "{what}");
        assert_eq!(answer.text(), r#"{"n": 1.0}"#, "{what}");
        assert_eq!(answer.field("x-a2a-completed"), None, "{what}");
        let recorded = case.target.agent.take();
        let line = recorded.head.lines().next().unwrap();
        assert_eq!(line, format!("{verb} /{base}/{tail} HTTP/1.1"));
        assert_eq!(recorded.text(), body, "{what}");
        assert_eq!(recorded.field("a2a-version"), Some("1.0"), "{what}");
        assert_eq!(recorded.field("a2a-extensions"), Some("https://x.test/e"));
        assert_eq!(recorded.field("x-workspace-id"), Some("caller"), "{what}");
        assert_eq!(recorded.field("cookie"), None, "{what}");
        let host = format!("127.0.0.1:{}", case.target.agent.port);
        assert_eq!(recorded.field("host"), Some(host.as_str()), "{what}");
        let media = (!body.is_empty()).then_some("application/a2a+json");
        assert_eq!(recorded.field("content-type"), media, "{what}");
        let length = (verb == "POST").then(|| body.len().to_string());
        assert_eq!(
            recorded.field("content-length"),
            length.as_deref(),
            "{what}"
        );
        let token = recorded.field("authorization").unwrap();
        assert!(token.starts_with("Bearer ey"), "{what}");
    }
}

#[tokio::test]
async fn a_0_3_card_names_its_own_path_and_a_stream_passes_untouched() {
    let events = "event: x\r\ndata: {\"task\":{\"id\":\"t\"}}\r\n\r\n: ping\r\n\r\n";
    let agent = cardless(move |_| sse(events, Step::write(LAST_CHUNK))).await;
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
    let get = |path: &str| Request::get(path).bearer(token);
    let send = || post("message:send", "{}");
    let text = send()
        .without("content-type")
        .field("Content-Type", "text/plain");
    let anonymous = Request::post(case.below("message:send"), "{}");
    let query = Request::new("QUERY", case.below("tasks")).bearer(token);
    let (media, params) = ("unsupported_media_type", "invalid_params");
    let config = post("tasks/t/pushNotificationConfigs/a%23b", "{}");
    let other = send().field("X-Workspace-ID", "other");
    let rows = [
        (post("else", "{}"), 404, "not_found"),
        (post("a/b/c", "{}"), 404, "not_found"),
        (post("tasks/a%2Fb:cancel", "{}"), 404, "not_found"),
        (post("tasks/a%20b:cancel", "{}"), 400, params),
        (post("tasks/t%3Fx:subscribe", ""), 400, params),
        (config, 400, params),
        (get("/tasks/a%20b"), 400, params),
        (post("tasks/../x", "{}"), 404, "not_found"),
        (anonymous, 401, "unauthenticated"),
        (other, 403, "caller_mismatch"),
        (text, 415, media),
        (send().field("Content-Encoding", "gzip"), 415, media),
        (query, 405, "method_not_allowed"),
        (get("/workspaces/nobody/a2a/tasks"), 403, "not_permitted"),
        (
            get("/workspaces/a:b/a2a/tasks"),
            400,
            "invalid_workspace_id",
        ),
    ];
    for (request, status, reason) in rows {
        let answer = case.gateway.call(&request).await;
        answer.refuses_for(&request, status, reason);
    }
    case.reached_nobody();
}
