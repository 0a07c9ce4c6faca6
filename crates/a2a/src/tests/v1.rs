//! Tests of calls to an agent of 1.0.

use super::{STREAM, V1, check_with, run};
use crate::Generation;
use crate::envelope::Completion;

fn check(input: &str, expect: &str, done: &str) {
    check_with(&V1, input, expect, done);
}

#[test]
fn what_is_inserted_is_of_1_0() {
    check(
        r#"{"text":"hi"}"#,
        r#"{"jsonrpc":"2.0","id":"<new>","method":"SendMessage","params":{"message":{"parts":[{"text":"hi"}],"messageId":"<new>","role":"ROLE_USER"}}}"#,
        "envelope, method, message-id, parts, role",
    );
    check(
        r#"{"message":{"content":"hi","message_id":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":"<new>","method":"SendMessage","params":{"message":{"parts":[{"text":"hi"}],"messageId":"m","role":"ROLE_USER"}}}"#,
        "envelope, method, message-id, parts, role",
    );
    let stream = Completion {
        generation: Generation::V1,
        ..STREAM
    };
    check_with(
        &stream,
        r#"{"params":{"message":{"messageId":"m","role":"ROLE_USER"}}}"#,
        r#"{"jsonrpc":"2.0","id":"<new>","method":"SendStreamingMessage","params":{"message":{"messageId":"m","role":"ROLE_USER"}}}"#,
        "envelope, method",
    );
    assert!(run(r#"{"text":"hi"}"#, &V1).unwrap().wrapped);
}

#[test]
fn a_bare_call_is_spelled_as_1_0_has_it() {
    for (method, spelled, done) in [
        ("message/send", "SendMessage", "envelope, method, role"),
        (
            "message/stream",
            "SendStreamingMessage",
            "envelope, method, role",
        ),
        (
            "message/sendSubscribe",
            "SendStreamingMessage",
            "envelope, alias, role",
        ),
        ("SendMessage", "SendMessage", "envelope, role"),
    ] {
        for (role, v1_role) in [("user", "ROLE_USER"), ("agent", "ROLE_AGENT")] {
            check(
                &format!(
                    r#"{{"method":"{method}","params":{{"message":{{"messageId":"m","role":"{role}"}}}}}}"#
                ),
                &format!(
                    r#"{{"jsonrpc":"2.0","id":"<new>","method":"{spelled}","params":{{"message":{{"messageId":"m","role":"{v1_role}"}}}}}}"#
                ),
                done,
            );
        }
    }
    check(
        r#"{"method":"tasks/get","params":{"id":"t"}}"#,
        r#"{"jsonrpc":"2.0","id":"<new>","method":"tasks/get","params":{"id":"t"}}"#,
        "envelope",
    );
}

#[test]
fn an_envelope_is_not_translated() {
    let call = |method: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"message":{{"messageId":"m","role":"user","parts":[{{"kind":"text","text":"hi"}}]}}}}}}"#
        )
    };
    check(&call("message/send"), &call("message/send"), "");
    check(
        &call("message/sendSubscribe"),
        &call("message/stream"),
        "alias",
    );
}

#[test]
fn a_part_with_a_type_becomes_bare() {
    for (input, expect) in [
        (r#"{"type":"text","text":"hi"}"#, r#"{"text":"hi"}"#),
        (r#"{"text":"hi", "type":"text" }"#, r#"{"text":"hi" }"#),
        (r#"{"type":"data","data":1}"#, r#"{"data":1}"#),
        (
            r#"{"type":"file","name":"a","uri":"u"}"#,
            r#"{"filename":"a","url":"u"}"#,
        ),
        (
            r#"{"bytes_data":"QQ==","name":"a","type":"file","filename":"b"}"#,
            r#"{"raw":"QQ==","name":"a","filename":"b"}"#,
        ),
    ] {
        let call = |part: &str, role: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{{"message":{{"messageId":"m","parts":[{part}]{role}}}}}}}"#
            )
        };
        check(
            &call(input, ""),
            &call(expect, r#","role":"ROLE_USER""#),
            "parts, role",
        );
    }
    let same = r#"{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","parts":[{"type":"other"},{"type":"file","file":{}}]}}}"#;
    check(same, same, "");
}
