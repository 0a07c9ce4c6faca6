//! Tests of bodies without `jsonrpc`.

use super::{BARE, Completion, FULL, OFF, STREAM, check, check_with, masked, run};
use crate::method::Method;

#[test]
fn a_method_gets_its_envelope() {
    for (input, expect) in [
        (
            r#"{"method":"tasks/get","params":{"id":"t"}}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"tasks/get","params":{"id":"t"}}"#,
        ),
        (
            r#"{"method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"x"}"#,
        ),
        (
            r#"{"method":""}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":""}"#,
        ),
        (
            r#"{"method":"x","params":[1.10],"extra":true}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"x","params":[1.10],"extra":true}"#,
        ),
        // A usable id keeps its position and spelling.
        (
            r#"{"method":"x","id":1.0}"#,
            r#"{"jsonrpc":"2.0","method":"x","id":1.0}"#,
        ),
        (
            r#" { "id" : "" , "method" : "x" } "#,
            r#" {"jsonrpc":"2.0", "id" : "" , "method" : "x" } "#,
        ),
        (
            r#"{"method":"x","id": null }"#,
            r#"{"jsonrpc":"2.0","method":"x","id": "<new>" }"#,
        ),
        (
            r#"{"id":{"a":1},"method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"x"}"#,
        ),
        (
            r#"{"id":true,"method":"message/send","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{}}"#,
        ),
        (
            r#"{"method":"x","result":1}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"x","result":1}"#,
        ),
    ] {
        check(input, expect, "envelope");
        check_with(&BARE, input, expect, "envelope");
    }
}

#[test]
fn the_message_rules_hold_for_bare_bodies_in_full_and_bare() {
    for completion in [FULL, BARE] {
        check_with(
            &completion,
            r#"{"method":"message/send","params":{"message":{}}}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{"message":{"messageId":"<new>","role":"user"}}}"#,
            "envelope, message-id, role",
        );
        check_with(
            &completion,
            r#"{"method":"message/sendSubscribe","params":{"message":{"messageId":"m","role":"user"}}}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"message/stream","params":{"message":{"messageId":"m","role":"user"}}}"#,
            "envelope, alias",
        );
    }
}

#[test]
fn the_method_is_inferred() {
    let input = r#"{"params":{"message":{"role":"user","messageId":"m"}}}"#;
    check(
        input,
        r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{"message":{"role":"user","messageId":"m"}}}"#,
        "envelope, method",
    );
    check_with(
        &STREAM,
        input,
        r#"{"jsonrpc":"2.0","id":"<new>","method":"message/stream","params":{"message":{"role":"user","messageId":"m"}}}"#,
        "envelope, method",
    );
    assert_eq!(run(input, &FULL).unwrap().method, Method::SendMessage);
    assert_eq!(
        run(input, &STREAM).unwrap().method,
        Method::SendStreamingMessage
    );
    assert_eq!(run(input, &OFF).unwrap().method, Method::Unread);
    assert!(run(input, &FULL).unwrap().wrapped);
}

#[test]
fn scattered_members_go_to_their_place() {
    for (input, expect) in [
        (
            r#"{"message":{"role":"user","messageId":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{"message":{"role":"user","messageId":"m"}}}"#,
        ),
        (
            r#"{"id":7,"run_id":"r","message":{"role":"user","messageId":"m"},"configuration":{"blocking":true},"x":[1.0]}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"message/send","params":{"message":{"role":"user","messageId":"m"},"configuration":{"blocking":true},"metadata":{"run_id":"r","x":[1.0]}}}"#,
        ),
        (
            r#"{"metadata":{"a": 1},"run_id":"r","params":{"k":1,"k":2,"message":{"role":"user","messageId":"m"}}}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{"k":1,"k":2,"message":{"role":"user","messageId":"m"},"metadata":{"a": 1,"run_id":"r"}}}"#,
        ),
        (
            r#"{"run_id":"r","params":{"metadata":{"run_id":"r"},"message":{"role":"user","messageId":"m"}}}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{"metadata":{"run_id":"r"},"message":{"role":"user","messageId":"m"}}}"#,
        ),
        (
            r#"{"run_id":"r","metadata":null,"params":null,"message":{"role":"user","messageId":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{"metadata":{"run_id":"r"},"message":{"role":"user","messageId":"m"}}}"#,
        ),
    ] {
        check(input, expect, "envelope, method");
    }
    check(
        r#"{"message":{"role":"user","messageId":"m"},"source_workspace_id":"other"}"#,
        r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{"message":{"role":"user","messageId":"m"},"metadata":{"source_workspace_id":"pm"}}}"#,
        "envelope, method, source",
    );
    check(
        r#"{"message":{"role":"user","messageId":"m"},"target_agent_id":"dev"}"#,
        r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{"message":{"role":"user","messageId":"m"}}}"#,
        "envelope, method, target",
    );
    // The method may be given, with the message beside it.
    check(
        r#"{"method":"message\/stream","message":{"role":"user","messageId":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":"<new>","method":"message\/stream","params":{"message":{"role":"user","messageId":"m"}}}"#,
        "envelope",
    );
}

#[test]
fn a_message_becomes_a_call() {
    for (input, expect, done) in [
        (
            r#"{"text":"hi"}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{"message":{"parts":[{"kind":"text","text":"hi"}],"messageId":"<new>","role":"user"}}}"#,
            "envelope, method, message-id, parts, role",
        ),
        (
            r#"{"role":"user","parts":[{"kind":"text","text":"hi"}],"messageId":"m","metadata":{"a":1},"x":1}"#,
            r#"{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{"metadata":{"a":1},"message":{"role":"user","parts":[{"kind":"text","text":"hi"}],"messageId":"m","x":1}}}"#,
            "envelope, method",
        ),
        (
            r#"{"id":"q","content":"hi","message_id":"m","run_id":"r","configuration":{}}"#,
            r#"{"jsonrpc":"2.0","id":"q","method":"message/send","params":{"configuration":{},"message":{"parts":[{"kind":"text","text":"hi"}],"messageId":"m","role":"user"},"metadata":{"run_id":"r"}}}"#,
            "envelope, method, message-id, parts, role",
        ),
    ] {
        check(input, expect, done);
        check_with(&BARE, input, expect, done);
    }
}

#[test]
fn a_message_at_top_level_can_not_forge_its_source() {
    let call = |params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":"<new>","method":"message/send","params":{params}}}"#)
    };
    let done = "envelope, method, message-id, role, source";
    for (input, params) in [
        (
            r#"{"parts":[],"metadata":{"source_workspace_id":"evil"}}"#,
            r#"{"metadata":{"source_workspace_id":"pm"},"message":{"parts":[],"messageId":"<new>","role":"user"}}"#,
        ),
        (
            r#"{"parts":[],"meta\u0064ata":{"source_w\u006frkspace_id":"evil"}}"#,
            r#"{"meta\u0064ata":{"source_w\u006frkspace_id":"pm"},"message":{"parts":[],"messageId":"<new>","role":"user"}}"#,
        ),
        (
            r#"{"run_id":"r","metadata":{"source_workspace_id":"evil","a":1.0},"parts":[]}"#,
            r#"{"metadata":{"source_workspace_id":"pm","a":1.0,"run_id":"r"},"message":{"parts":[],"messageId":"<new>","role":"user"}}"#,
        ),
        (
            r#"{"metadata":{"source_workspace_id":"evil"},"parts":[],"source_workspace_id":"worse"}"#,
            r#"{"metadata":{"source_workspace_id":"pm"},"message":{"parts":[],"messageId":"<new>","role":"user"}}"#,
        ),
        (
            r#"{"params":{"metadata":{"source_workspace_id":"evil"}},"parts":[]}"#,
            r#"{"metadata":{"source_workspace_id":"pm"},"message":{"parts":[],"messageId":"<new>","role":"user"}}"#,
        ),
    ] {
        check(input, &call(params), done);
        check_with(&BARE, input, &call(params), done);
    }
    let nobody = Completion {
        caller: None,
        ..FULL
    };
    check_with(
        &nobody,
        r#"{"parts":[],"metadata":{"source_workspace_id":"evil"}}"#,
        &call(r#"{"metadata":{},"message":{"parts":[],"messageId":"<new>","role":"user"}}"#),
        done,
    );
}

#[test]
fn every_id_that_is_made_is_another() {
    let completed = run(r#"{"text":"hi"}"#, &FULL).unwrap();
    let call: serde_json::Value = serde_json::from_slice(&completed.body).unwrap();
    assert_ne!(call["id"], call["params"]["message"]["messageId"]);
    assert_eq!(completed.rpc_id, None, "the caller gave none");
    assert_ne!(completed.body, run(r#"{"text":"hi"}"#, &FULL).unwrap().body);
    assert!(masked(&completed.body).contains("<new>"));
}
