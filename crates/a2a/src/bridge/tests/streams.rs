//! Streams: how they begin, what is in between, how they end.

use super::*;
use crate::bridge::Kind;
use crate::event::Framing;
use crate::state::TaskState;

use Method::{SendStreamingMessage, SubscribeToTask};

fn up() -> Stream {
    exchange(&DOWN, SendStreamingMessage).start_stream()
}

fn down() -> Stream {
    exchange(&UP, SendStreamingMessage).start_stream()
}

fn event(result: &str) -> String {
    format!("data: {{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{result}}}\n\n")
}

#[test]
fn an_update_is_final_exactly_in_a_terminal_state() {
    for state in TaskState::ALL {
        let said = format!(
            r#"{{"statusUpdate":{{"taskId":"t","contextId":"c","status":{{"state":"{}"}}}}}}"#,
            state.as_v1_str()
        );
        let (written, told) = block(&mut down(), &event(&said)).unwrap();
        let expected = format!(
            r#"{{"kind":"status-update","taskId":"t","contextId":"c","status":{{"state":"{}"}},"final":{}}}"#,
            state.as_str(),
            state.is_terminal()
        );
        assert_eq!(written, event(&expected));
        assert_eq!(
            (told.kind, told.state),
            (Some(Kind::StatusUpdate), Some(state))
        );
        assert_eq!(told.ends, state.is_terminal());
    }
    let (written, told) = block(&mut down(), &event(r#"{"statusUpdate":{"taskId":"t"}}"#)).unwrap();
    let expected = r#"{"kind":"status-update","taskId":"t","contextId":"","status":{"state":"unknown"},"final":false}"#;
    assert_eq!(written, event(expected));
    assert!(!told.ends);
}

#[test]
fn a_stream_of_1_0_begins_with_a_task_or_a_message() {
    let update = r#"{"kind":"status-update","taskId":"t\u0031","contextId":"c","final":true,"status":{"state":"completed"}}"#;
    let translated = r#"{"statusUpdate":{"taskId":"t\u0031","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}"#;
    let lead =
        r#"{"task":{"id":"t\u0031","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}"#;
    let mut stream = up();
    let (written, told) = block(&mut stream, &format!("id: 3\n{}", event(update))).unwrap();
    assert_eq!(
        written,
        format!("{}id: 3\n{}", event(lead), event(translated))
    );
    assert!(told.is_led && told.ends);
    let (written, told) = block(&mut stream, &event(update)).unwrap();
    assert_eq!((written, told.is_led), (event(translated), false));
    let artifact = r#"{"taskId":"t","kind":"artifact-update","append":true,"lastChunk":null,"artifact":{"artifactId":"a","parts":[]}}"#;
    let (written, _) = block(&mut up(), &event(artifact)).unwrap();
    let expected = r#"{"artifactUpdate":{"taskId":"t","append":true,"artifact":{"artifactId":"a","parts":[]}}}"#;
    let lead = r#"{"task":{"id":"t","status":{"state":"TASK_STATE_WORKING"}}}"#;
    assert_eq!(written, event(lead) + &event(expected));
    for first in [
        r#"{"kind":"message","messageId":"m","role":"agent","parts":[]}"#,
        r#"{"kind":"task","id":"t","contextId":"c","status":{"state":"completed"}}"#,
    ] {
        let mut stream = up();
        let (_, told) = block(&mut stream, &event(first)).unwrap();
        assert!(!told.is_led && !told.ends);
        assert!(!block(&mut stream, &event(update)).unwrap().1.is_led);
    }
    // 0.3 has no such rule.
    let said = r#"{"statusUpdate":{"status":{"state":"TASK_STATE_WORKING"}}}"#;
    assert!(!block(&mut down(), &event(said)).unwrap().1.is_led);
}

#[test]
fn an_error_may_be_the_first_event() {
    let error = "event: error\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{\"code\":-32001,\"message\":\"no\",\"data\":\"x\"}}\n\n";
    let mut stream = up();
    let (written, told) = block(&mut stream, error).unwrap();
    let (head, data) = written.split_once("data: ").unwrap();
    assert_eq!(head, "event: error\n");
    assert_eq!(json(data)["error"]["data"][0]["reason"], "TASK_NOT_FOUND");
    assert!(told.is_error && !told.is_led);
    let (written, told) = block(&mut down(), error).unwrap();
    assert_eq!(written, error);
    assert!(told.is_error);
}

#[test]
fn the_lines_around_the_data_stay_where_they_are() {
    let result = r#"{"message":{"messageId":"m","parts":[{"data":[1,2]}]}}"#;
    let translated = r#"{"kind":"message","messageId":"m","parts":[{"kind":"data","data":{"value":[1, 2]},"metadata":{"data_part_compat":true}}],"role":"agent"}"#;
    let cases = [
        (
            ": ping\r\nid: 1\r\nevent: e\r\ndata:{\"result\":R}\r\nretry: 5\r\n\r\n".to_owned(),
            ": ping\r\nid: 1\r\nevent: e\r\ndata: {\"result\":T}\r\nretry: 5\r\n\r\n".to_owned(),
        ),
        (
            "data: {\"result\":\n: between\ndata: R\ndata: }\n\n".to_owned(),
            "data: {\"result\":T}\n: between\n\n".to_owned(),
        ),
        (": keepalive\n\n".to_owned(), ": keepalive\n\n".to_owned()),
        ("data\n\n".to_owned(), "data\n\n".to_owned()),
        (
            "data: {\"result\":R}\r\r".to_owned(),
            "data: {\"result\":T}\r\r".to_owned(),
        ),
    ];
    for (said, expected) in cases {
        let split = said.contains("data: R");
        let said = said.replace(
            'R',
            if split {
                "{\"message\":{\"messageId\":\"m\",\"parts\":[{\"data\":[1,\ndata: 2]}]}}"
            } else {
                result
            },
        );
        let translated = if split {
            translated.to_owned()
        } else {
            translated.replace("[1, 2]", "[1,2]")
        };
        let (written, _) = block(&mut down(), &said).unwrap();
        assert_eq!(written, expected.replace('T', &translated), "{said:?}");
    }
}

#[test]
fn an_event_of_a_later_version_is_skipped_and_the_stream_lives() {
    let mut stream = down();
    for unknown in [r#"{"messageUpdate":{"a":1}}"#, "{}", r#"{"task":null}"#] {
        let (written, told) = block(&mut stream, &event(unknown)).unwrap();
        assert_eq!(written, "");
        assert!(
            told.is_skipped
                && told
                    .left_out
                    .iter()
                    .any(|left| left == ("event", "other", 1))
        );
    }
    let (_, told) = block(
        &mut up(),
        &event(r#"{"kind":"message-update","taskId":"t"}"#),
    )
    .unwrap();
    assert!(told.is_skipped);
    // Unknown beside a known one.
    let said = r#"{"messageUpdate":{},"message":{"messageId":"m","parts":[]}}"#;
    let (written, told) = block(&mut stream, &event(said)).unwrap();
    assert!(written.contains(r#""kind":"message""#));
    assert!(!told.is_skipped && told.left_out.total() == 1);
}

#[test]
fn an_event_that_cannot_be_translated_is_not_passed_on() {
    for (mut stream, said) in [
        (down(), event("7")),
        (down(), event(r#"{"task":{"status":7}}"#)),
        (up(), event(r#"{"kind":"task","artifacts":{}}"#)),
        (up(), "data: {\"jsonrpc\":\"2.0\",\"id\":7}\n\n".to_owned()),
    ] {
        let mut out = b"before".to_vec();
        let failure = stream
            .translate_block(said.as_bytes(), &mut out)
            .unwrap_err();
        assert_eq!(
            (failure.code(), &out[..]),
            (-32_006, &b"before"[..]),
            "{said}"
        );
        let generation = Generation::V0;
        let error =
            super::super::error::new_error(failure.code(), &failure.to_string(), generation);
        let last = stream.error_event(&error, Framing::CrLf);
        let last = std::str::from_utf8(&last)
            .unwrap()
            .strip_prefix("data: ")
            .unwrap();
        let last = json(last.strip_suffix("\r\n\r\n").unwrap());
        assert_eq!(
            (&last["id"], &last["error"]["code"]),
            (&7.into(), &(-32_006).into())
        );
    }
}

#[test]
fn an_event_of_4_mib_passes() {
    let text = "y".repeat(4 << 20);
    let said = format!(
        r#"{{"kind":"artifact-update","taskId":"t","contextId":"c","artifact":{{"artifactId":"a","parts":[{{"kind":"text","text":"{text}"}}]}}}}"#
    );
    let mut stream = up();
    stream
        .translate_block(
            event(r#"{"kind":"task","id":"t"}"#).as_bytes(),
            &mut Vec::new(),
        )
        .unwrap();
    let (written, _) = block(&mut stream, &event(&said)).unwrap();
    let expected = format!(
        r#"{{"artifactUpdate":{{"taskId":"t","contextId":"c","artifact":{{"artifactId":"a","parts":[{{"text":"{text}"}}]}}}}}}"#
    );
    assert!(written == event(&expected));
}

#[test]
fn a_subscription_of_1_0_begins_with_the_task() {
    assert!(DOWN.needs_snapshot(SubscribeToTask));
    assert!(!UP.needs_snapshot(SubscribeToTask) && !DOWN.needs_snapshot(SendStreamingMessage));
    let body = call(&DOWN, SubscribeToTask, r#"{"id":"t"}"#);
    let (sent, exchange) = DOWN
        .translate_request(SubscribeToTask, Call::Rpc(body.as_bytes()))
        .unwrap();
    assert_eq!(sent.method, Some("tasks/resubscribe"));
    let get = DOWN.snapshot_request(Call::Rpc(body.as_bytes())).unwrap();
    let expected = r#"{"jsonrpc":"2.0","id":7,"method":"tasks/get","params":{"id":"t"}}"#;
    assert_eq!(String::from_utf8(get.body).unwrap(), expected);
    for kind in [r#""kind":"task","#, ""] {
        let answer = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":7,\n\"result\":{{{kind}\"id\":\"t\",\"status\":{{\"state\":\"working\"}},\"metadata\":{{\n}}}}}}"
        );
        let mut stream = exchange.start_stream();
        let (first, told) = stream.translate_snapshot(200, answer.as_bytes()).unwrap();
        let expected =
            r#"{"task":{"id":"t","status":{"state":"TASK_STATE_WORKING"},"metadata":{ }}}"#;
        assert_eq!(String::from_utf8(first).unwrap(), event(expected));
        assert_eq!(told.state, Some(TaskState::Working));
        let update = event(r#"{"kind":"status-update","taskId":"t","status":{"state":"working"}}"#);
        assert!(!block(&mut stream, &update).unwrap().1.is_led);
    }
    let none = br#"{"jsonrpc":"2.0","id":7,"error":{"code":-32001,"message":"no"}}"#;
    let (first, told) = exchange
        .start_stream()
        .translate_snapshot(200, none)
        .unwrap();
    let first = String::from_utf8(first).unwrap();
    assert!(told.is_error && first.contains("TASK_NOT_FOUND"), "{first}");
    let over = br#"{"id":7,"result":{"kind":"task","id":"t","status":{"state":"failed"}}}"#;
    let (first, told) = exchange
        .start_stream()
        .translate_snapshot(200, over)
        .unwrap();
    let first = String::from_utf8(first).unwrap();
    assert!(
        told.is_error && first.contains(r#""code":-32004"#),
        "{first}"
    );
    let message = br#"{"id":7,"result":{"kind":"message"}}"#;
    assert_eq!(
        exchange
            .start_stream()
            .translate_snapshot(200, message)
            .unwrap_err()
            .code(),
        -32_006
    );
}

#[test]
fn a_task_is_not_told_twice_where_the_agent_begins_with_it_too() {
    let task = |state: &str| {
        event(&format!(
            r#"{{"kind":"task","id":"t","status":{{"state":"{state}"}}}}"#
        ))
    };
    let answer = br#"{"jsonrpc":"2.0","id":7,"result":{"id":"t","status":{"state":"working"},"history":[],"kind":"task"}}"#;
    let rest = bridge(V1_REST, V0);
    let asked = Call::Rest {
        tail: "tasks/t:subscribe",
        query: None,
        body: b"",
    };
    for exchange in [
        exchange(&DOWN, SubscribeToTask),
        rest.translate_request(SubscribeToTask, asked).unwrap().1,
    ] {
        let began = || {
            let mut stream = exchange.start_stream();
            stream.translate_snapshot(200, answer).unwrap();
            stream
        };
        let mut stream = began();
        let (written, told) = block(&mut stream, &task("working")).unwrap();
        assert!(written.is_empty() && told.is_skipped, "{written}");
        // Only in the beginning, and only what the caller knows.
        for (mut stream, state) in [(stream, "working"), (began(), "completed")] {
            let (written, told) = block(&mut stream, &task(state)).unwrap();
            assert!(written.contains(r#"{"task":{"id":"t""#) && !told.is_skipped);
        }
    }
}

#[test]
fn a_resubscription_of_0_3_gets_events_even_of_an_answer() {
    let exchange = exchange(&UP, SubscribeToTask);
    let error =
        b"{\"jsonrpc\":\"2.0\",\"id\":7,\n\"error\":{\"code\":-32004,\"message\":\"over\"}}";
    let answer = exchange.as_event(exchange.translate_answer(200, error).unwrap());
    assert_eq!(answer.content_type, Some("text/event-stream"));
    let expected =
        "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{\"code\":-32004,\"message\":\"over\"}}\n\n";
    assert_eq!(String::from_utf8(answer.body).unwrap(), expected);
    // Clients of 1.0 read an error from the body, and an answer from an event.
    let down = self::exchange(&DOWN, SubscribeToTask);
    let answer = down.as_event(down.translate_answer(200, error).unwrap());
    assert_eq!(answer.content_type, Some("application/json"));
    let task = br#"{"jsonrpc":"2.0","id":7,"result":{"kind":"task","id":"t","contextId":"c","status":{"state":"working"}}}"#;
    let answer = down.as_event(down.translate_answer(200, task).unwrap());
    assert!(answer.body.starts_with(b"data: {") && answer.body.ends_with(b"\n\n"));
    // The task comes first in 1.0, which clients of 0.3 take.
    let task = event(r#"{"task":{"id":"t","contextId":"c","status":{"state":3}}}"#);
    let (written, _) = block(&mut exchange.start_stream(), &task).unwrap();
    assert!(written.contains(r#"{"kind":"task","id":"t""#));
}
