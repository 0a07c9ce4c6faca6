//! Tests of bodies that pass byte for byte.

use bytes::Bytes;

use super::{BARE, FULL, OFF, V1, check, run};
use crate::envelope::complete;
use crate::method::Method;

#[test]
fn a_well_formed_call_leaves_as_the_same_bytes() {
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"role":"user","messageId":"m","parts":[{"kind":"text","text":"hi"}]}}}"#,
        r#" { "jsonrpc" : "2.0" , "id" : "a" , "method" : "SendMessage" , "params" : { "message" : { "role" : "ROLE_USER", "messageId" : "m", "parts" : [ { "text" : "hi" } ] } } } "#,
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"message/stream\",\"params\":{\"message\":{\"messageId\":\"m\",\"parts\":[]}}}\n",
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"m","taskId":"t","contextId":"c","parts":[{"kind":"file","file":{"name":"a","uri":"u","size":3}},{"kind":"data","data":{"type":"x"}}]},"metadata":{"run_id":"r","source_workspace_id":"pm"},"configuration":{"blocking":true}}}"#,
    ] {
        for completion in [FULL, BARE, OFF, V1] {
            let body = Bytes::copy_from_slice(text.as_bytes());
            let completed = complete(&body, &completion).unwrap();
            assert_eq!(completed.body.as_ptr(), body.as_ptr(), "{text}");
            assert_eq!(completed.body.len(), body.len(), "{text}");
            assert!(completed.done.is_empty() && !completed.wrapped, "{text}");
        }
    }
}

#[test]
fn an_envelope_is_judged_by_the_agent() {
    for text in [
        // Any value of `jsonrpc` makes an envelope.
        r#"{"jsonrpc":null,"method":"message/send","params":{}}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#,
        r#"{"jsonrpc":"aaa","id":1,"method":"x"}"#,
        r#"{"jsonrpc":2.0,"id":1,"method":"x"}"#,
        r#"{"jsonrpc":"","id":1,"method":"x"}"#,
        r#"{"json\u0072pc":"2.0","id":1,"method":"x"}"#,
        // Any method, or none.
        r#"{"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":""}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"no/such","params":{"message":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t","message":{"text":"x"}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"text":"x"}}"#,
        // 0.1 has another shape.
        r#"{"jsonrpc":"2.0","id":1,"method":"tasks/send","params":{"id":"t","message":{"role":"user","parts":[{"type":"text","text":"x"}]}}}"#,
        // Any id, or none.
        r#"{"jsonrpc":"2.0","method":"message/send"}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"message/send"}"#,
        r#"{"jsonrpc":"2.0","id":{"a":[]},"method":"message/send"}"#,
        r#"{"jsonrpc":"2.0","id":1e400,"method":"message/send"}"#,
        // Any params.
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":[]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":"x"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":[{}]}}"#,
        // Members unknown to the gateway.
        r#"{"jsonrpc":"2.0","id":1,"method":"x","extra":1,"text":"y","message":{}}"#,
        // A wrong message id does not count as missing, nor do wrong parts.
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":5}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"message_id":5}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"m","parts":null,"text":"x","content":"y"}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"m","content":7}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"m","text":7}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"m","task_id":null}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"m","parts":[{"type":"text","kind":"text","text":"x"},7,[],"x"]}}}"#,
    ] {
        check(text, text, "");
    }
}

#[test]
fn what_the_grammar_allows_passes_untouched() {
    for value in [
        r#""\ud800""#,
        r#""\u0000""#,
        r#""\u00e4 ä \ud83d\ude00 \/""#,
        "1e400",
        "123456789012345678901234567890",
        "-0",
        "1.10",
        r#"{"a":1,"a":2}"#,
        "[[],{},[{}]]",
        " \t\r\n true ",
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"v":{value}}}}}"#);
        let completed = run(&text, &FULL).unwrap();
        assert_eq!(completed.body, text, "{value}");
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"message/send","params":{{"message":{{"messageId":"m","parts":[],"metadata":{{"v":{value}}}}}}}}}"#
        );
        assert_eq!(run(&text, &FULL).unwrap().body, text, "{value}");
    }
}

#[test]
fn nesting_is_read_down_to_512() {
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
        format!(r#"{{"jsonrpc":"2.0","id":"d","method":"x","params":{open}{close}}}"#)
    };
    assert_eq!(run(nested(512), &FULL).unwrap().body, nested(512));
    let fault = run(nested(513), &FULL).unwrap_err();
    assert_eq!(fault.message, "nested deeper than 512");
    assert_eq!(fault.rpc_id.as_deref(), Some("\"d\""));
}

#[test]
fn a_byte_order_mark_is_dropped() {
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#;
    let marked = format!("\u{feff}{text}");
    for completion in [FULL, BARE] {
        let completed = run(&marked, &completion).unwrap();
        assert_eq!(completed.body, text);
        assert!(completed.done.is_empty());
    }
    assert_eq!(run(&marked, &OFF).unwrap().body, marked);
    let wrapped = run("\u{feff}{\"method\":\"x\",\"id\":1}", &FULL).unwrap();
    assert_eq!(wrapped.body, r#"{"jsonrpc":"2.0","method":"x","id":1}"#);
}

#[test]
fn off_passes_whatever_can_be_read() {
    for text in [
        r#"{"method":"message/send","params":{"message":{"text":"x"}}}"#,
        r#"{"text":"x"}"#,
        "{}",
        r#"{"jsonrpc":"2.0","method":"message/sendSubscribe","params":{"message":{"task_id":"t"},"target_agent_id":"other"}}"#,
    ] {
        let completed = run(text, &OFF).unwrap();
        assert_eq!(completed.body, text);
        assert!(completed.done.is_empty() && !completed.wrapped);
    }
}

#[test]
fn bare_leaves_every_envelope_alone() {
    let text = r#"{"jsonrpc":"2.0","method":"message/sendSubscribe","params":{"message":{"content":"x","task_id":"t"},"target_agent_id":"other","metadata":{"source_workspace_id":"x"}}}"#;
    let completed = run(text, &BARE).unwrap();
    assert_eq!(completed.body, text);
    assert_eq!(completed.method, Method::SendStreamingMessage);
    assert_eq!(completed.idempotency_key.as_deref(), Some("t"));
}

#[test]
fn the_id_is_told_as_it_was_spelled() {
    for (id, told) in [
        ("1", Some("1")),
        ("1.0", Some("1.0")),
        ("-0", Some("-0")),
        ("1e400", Some("1e400")),
        (r#""a\u0062""#, Some(r#""a\u0062""#)),
        (r#""""#, Some(r#""""#)),
        ("null", None),
        ("true", None),
        ("{}", None),
        ("[1]", None),
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#);
        assert_eq!(run(text, &FULL).unwrap().rpc_id.as_deref(), told, "{id}");
    }
    assert_eq!(run(r#"{"method":"x"}"#, &FULL).unwrap().rpc_id, None);
}

#[test]
fn the_method_is_read_unescaped() {
    for (name, method) in [
        (r#""message\/send""#, Method::SendMessage),
        (r#""Send\u004dessage""#, Method::SendMessage),
        (r#""tasks/get""#, Method::GetTask),
        (r#""no/such""#, Method::Other),
        (r#""\ud800""#, Method::Other),
        ("null", Method::Unread),
        ("7", Method::Unread),
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","method":{name}}}"#);
        assert_eq!(run(text, &FULL).unwrap().method, method, "{name}");
    }
}
