//! Answers that are none: failures of the agent, in words that a client can read.

use super::*;
use crate::response::ExpectedAnswer;

/// An agent's answer.
fn answer(status: &str, content_type: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn an_answer_that_is_none_is_a_failure_of_the_agent() {
    let html = "<html>Bad Gateway</html>";
    let long = "x".repeat(40 << 10);
    for (status, content_type, body, delivered) in [
        ("200 OK", "application/json", "", "true"),
        ("204 No Content", "application/json", "", "true"),
        ("502 Bad Gateway", "text/html", html, "unknown"),
        (
            "500 Internal Server Error",
            "text/plain",
            "Internal Server Error",
            "true",
        ),
        ("200 OK", "text/plain", "ok", "true"),
        ("200 OK", "application/json", "\"ok\"", "true"),
        (
            "200 OK",
            "application/json",
            "{\"jsonrpc\":\"2.0\",\"res",
            "true",
        ),
        ("200 OK", "text/plain", &*long, "true"),
    ] {
        let what = format!("{status} {content_type} {}", body.len());
        let gateway = TestGateway::new(answer(status, content_type, body), |_| ()).await;
        for _ in 0..5 {
            let reply = gateway.call(&[], CALL).await;
            let refused = (reply.status, reply.refusal());
            assert_eq!(
                refused,
                (502, Some("agent_protocol_error")),
                "{what}: {}",
                reply.body
            );
            let error = reply.json()["error"].clone();
            let said = &error["data"][0]["metadata"];
            assert_eq!(reply.json()["id"], 1, "{what}");
            assert_eq!(said["agent_status"], status[..3], "{what}");
            assert_eq!(said["agent_content_type"], content_type, "{what}");
            assert_eq!(said["delivered"], delivered, "{what}");
            assert!(!reply.body.contains("html>"), "{what}: {}", reply.body);
        }
        assert_eq!(gateway.count_outcomes("agent_protocol_error"), 5, "{what}");
        let next = gateway.call(&[], CALL).await;
        assert_eq!(
            next.refusal(),
            Some("agent_busy"),
            "{what}: the breaker is open"
        );
    }
}

#[tokio::test]
async fn what_a_client_can_read_passes_as_it_is() {
    let object = "\u{feff} {\"detail\":\"no\"} ";
    let without_id = CALL.replace("\"id\":1,", "");
    for (call, status, content_type, body) in [
        (CALL, "401 Unauthorized", "text/plain", "who are you?"),
        (CALL, "404 Not Found", "text/html", "<html></html>"),
        (
            CALL,
            "500 Internal Server Error",
            "application/json",
            object,
        ),
        (
            CALL,
            "200 OK",
            "application/json\r\ncontent-encoding: gzip",
            "\u{1f}",
        ),
        (&*without_id, "202 Accepted", "application/json", ""),
    ] {
        let gateway = TestGateway::new(answer(status, content_type, body), |_| ()).await;
        let reply = gateway.call(&[], call).await;
        assert_eq!(
            (&reply.status.to_string(), reply.refusal()),
            (&status[..3].to_owned(), None)
        );
        assert_eq!(reply.body, body, "{status}");
    }
}

#[tokio::test]
async fn an_idempotent_call_has_the_same_failure() {
    let gateway = TestGateway::new(answer("200 OK", "text/html", "<html>"), |_| ()).await;
    let reply = gateway.call(&["idempotency-key: k-1"], CALL).await;
    assert_eq!(
        reply.refusal(),
        Some("agent_protocol_error"),
        "{}",
        reply.body
    );
}

#[test]
fn only_a_delete_over_http_json_may_be_answered_by_nothing() {
    let mut head = pingora::http::ResponseHeader::build(200, None).unwrap();
    for (expected, body, passes) in [
        (ExpectedAnswer::Message, "", false),
        (ExpectedAnswer::MessageOrNothing, "", true),
        (ExpectedAnswer::MessageOrNothing, "gone", false),
        (ExpectedAnswer::Any, "gone", true),
    ] {
        let judged = expected.refuse_unreadable(&head, (body.as_bytes(), true), None);
        assert_eq!(judged.is_ok(), passes, "{expected:?} {body}");
    }
    head.set_status(503).unwrap();
    let judged = ExpectedAnswer::Message.refuse_unreadable(&head, (&b"<"[..], false), None);
    assert!(judged.is_err());
}

#[tokio::test]
async fn a_byte_order_mark_does_not_stop_a_translation() {
    let message = r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"message","role":"agent","messageId":"m-2","parts":[]}}"#;
    let marked = format!("\u{feff}{message}");
    let gateway = TestGateway::new(unary_answer(&marked), |_| ()).await;
    let fields = [&*gateway.admin_field(), "a2a-version: 1.0"];
    let call = r#"{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;
    let line = "POST /workspaces/target/a2a/message:send";
    let reply = gateway.send(line, &fields, call).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(
        reply.json()["message"]["messageId"],
        "m-2",
        "{}",
        reply.body
    );
}
