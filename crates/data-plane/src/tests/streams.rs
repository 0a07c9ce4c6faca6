//! The ends of streams: whole behind a final event, a failure of the agent without one.

use super::calls::STREAMED;
use super::*;

const WORKING: &str = STREAMED[0];
const COMPLETED: &str = STREAMED[1];
const INPUT_REQUIRED: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"status-update","taskId":"t-1","contextId":"c-1","status":{"state":"input-required"},"final":false}}"#;
const MESSAGE: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"message","role":"agent","messageId":"m-2","parts":[]}}"#;
const COMPLETED_1_0: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"statusUpdate":{"taskId":"t-1","contextId":"c-1","status":{"state":"TASK_STATE_COMPLETED"}}}}"#;
const ERROR: &str = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}"#;

/// A call over HTTP+JSON of 1.0.
const REST_CALL: &str =
    r#"{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;

/// As many calls as open the breaker, and one.
const CALLS: usize = 6;

/// A stream of these events, with a `Content-Length` of its body and `missing` bytes.
fn stream_of_length(events: &[&str], missing: usize) -> String {
    let body: String = events
        .iter()
        .map(|event| format!("data: {event}\n\n"))
        .collect();
    let length = body.len() + missing;
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// A stream of these events that ends with the connection.
fn stream_until_close(events: &[&str]) -> String {
    let with_length = stream_of_length(events, 0);
    let (head, body) = with_length.split_once("content-length").unwrap();
    let (_, body) = body.split_once("\r\n\r\n").unwrap();
    format!("{head}\r\n{body}")
}

async fn call_stream(gateway: &TestGateway) -> Reply {
    let call = CALL.replace("message/send", "message/stream");
    gateway.call(&[], &call).await
}

async fn call_rest(gateway: &TestGateway) -> Reply {
    let fields = [&*gateway.admin_field(), "a2a-version: 1.0"];
    let line = "POST /workspaces/target/a2a/message:stream";
    gateway.send(line, &fields, REST_CALL).await
}

#[tokio::test]
async fn behind_a_final_event_every_end_is_the_end() {
    for (what, answer) in [
        ("a cut", stream_answer(&STREAMED, false).into()),
        (
            "a reset",
            AgentAnswer::reset(stream_answer(&STREAMED, false)),
        ),
        ("a length too long", stream_of_length(&STREAMED, 9).into()),
        (
            "half an event",
            (stream_answer(&STREAMED, false) + "9\r\ndata: hal").into(),
        ),
        ("a message", stream_answer(&[MESSAGE], false).into()),
        ("1.0", stream_answer(&[COMPLETED_1_0], false).into()),
        ("an error", stream_answer(&[WORKING, ERROR], false).into()),
    ] {
        let gateway = TestGateway::new(answer, |_| ()).await;
        for _ in 0..CALLS {
            let reply = call_stream(&gateway).await;
            assert_eq!(reply.status, 200, "{what}: {}", reply.body);
            assert!(!reply.body.contains("AGENT_"), "{what}: {}", reply.body);
            assert!(reply.body.ends_with("0\r\n\r\n"), "{what}: {}", reply.body);
        }
        assert_eq!(gateway.agent.requests().len(), CALLS, "{what}");
        assert_eq!(gateway.count_outcomes("answered"), CALLS, "{what}");
    }
}

#[tokio::test]
async fn comments_behind_a_final_event_do_not_pass() {
    let comment = ": ping\n\n";
    let stream = stream_until_close(&STREAMED[..1]) + comment;
    let stream = stream + &format!("data: {COMPLETED}\n\n{comment}");
    let gateway = TestGateway::new(stream, |_| ()).await;
    let reply = call_stream(&gateway).await;
    let (before, behind) = reply.body.split_once(COMPLETED).unwrap();
    assert!(before.contains(": ping\n"), "{before}");
    assert!(!behind.contains("ping"), "{behind}");
}

#[tokio::test]
async fn a_translated_stream_is_whole_behind_its_final_event() {
    let gateway = TestGateway::new(stream_answer(&STREAMED, false), |_| ()).await;
    let reply = call_rest(&gateway).await;
    assert!(
        reply.body.contains("TASK_STATE_COMPLETED"),
        "{}",
        reply.body
    );
    assert!(!reply.body.contains("AGENT_"), "{}", reply.body);
    assert_eq!(gateway.count_outcomes("answered"), 1);
}

#[tokio::test]
async fn a_task_that_waits_for_a_person_fails_by_no_end() {
    let events = [WORKING, INPUT_REQUIRED];
    for (what, answer) in [
        ("a cut", stream_answer(&events, false)),
        ("no length", stream_until_close(&events)),
    ] {
        let gateway = TestGateway::new(answer, |_| ()).await;
        for _ in 0..CALLS {
            let reply = call_stream(&gateway).await;
            assert!(
                reply.body.contains("input-required"),
                "{what}: {}",
                reply.body
            );
            assert!(!reply.body.contains("AGENT_"), "{what}: {}", reply.body);
        }
        assert_eq!(gateway.count_outcomes("answered"), CALLS, "{what}");
    }
}

#[tokio::test]
async fn a_stream_that_ends_before_its_final_event_says_so() {
    for (what, answer) in [
        ("no length", stream_until_close(&[WORKING])),
        ("no event", stream_answer(&[], true)),
        ("a cut", stream_answer(&[WORKING], false)),
        (
            "a cut behind a message and a task",
            stream_answer(&[MESSAGE, WORKING], false),
        ),
    ] {
        let gateway = TestGateway::new(answer, |_| ()).await;
        let reply = call_stream(&gateway).await;
        assert!(
            reply.body.contains("AGENT_PROTOCOL_ERROR"),
            "{what}: {}",
            reply.body
        );
        assert_eq!(gateway.count_outcomes("agent_protocol_error"), 1, "{what}");
    }
    let whole = TestGateway::new(stream_until_close(&[WORKING, COMPLETED]), |_| ()).await;
    let reply = call_stream(&whole).await;
    assert!(!reply.body.contains("AGENT_"), "{}", reply.body);
}

#[tokio::test]
async fn an_agent_resumes_by_its_own_event_id() {
    let own = [
        format!("{WORKING}\nid: own-1"),
        format!("{COMPLETED}\nid: own-2"),
    ];
    let events: Vec<&str> = own.iter().map(String::as_str).collect();
    let gateway = TestGateway::new(stream_answer(&events, true), |_| ()).await;
    let reply = call_stream(&gateway).await;
    let name = reply.field(kernel::rejection::STREAM).unwrap().to_owned();
    let again = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/resubscribe","params":{"id":"t-1"}}"#;
    for (number, id) in [(1, Some("own-1")), (2, Some("own-2")), (3, None)] {
        let last = format!("last-event-id: {name}-{number}");
        let reply = gateway.call(&[&*last], again).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        let requests = gateway.agent.requests();
        let request = requests.last().unwrap();
        assert_eq!(field(request, "last-event-id"), id, "{request}");
    }
}

#[tokio::test]
async fn what_is_no_message_is_passed_over_in_a_translated_stream() {
    let events = [
        WORKING,
        "{}",
        "null",
        r#"{"type":"ping"}"#,
        COMPLETED,
        "[DONE]",
    ];
    let gateway = TestGateway::new(stream_answer(&events, true), |_| ()).await;
    let reply = call_rest(&gateway).await;
    assert!(
        reply.body.contains("TASK_STATE_COMPLETED"),
        "{}",
        reply.body
    );
    assert_eq!(reply.body.matches("data: ").count(), 2, "{}", reply.body);
    assert_eq!(gateway.count_outcomes("answered"), 1, "{}", reply.body);
}
