//! Tests of the message rules, in envelopes to an agent of 0.x.

use super::{FULL, check_with, run};
use crate::envelope::Completion;

/// Compares `params` before and after completion.
fn check_params_with(completion: &Completion<'_>, input: &str, expect: &str, done: &str) {
    for method in ["message/send", "message/stream", "SendMessage"] {
        let call =
            |params| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        check_with(completion, &call(input), &call(expect), done);
    }
}

fn check_params(input: &str, expect: &str, done: &str) {
    check_params_with(&FULL, input, expect, done);
}

/// Compares `params.message` before and after completion; it has an id.
fn check_message(input: &str, expect: &str, done: &str) {
    let params = |rest: &str| {
        let comma = if rest.is_empty() { "" } else { "," };
        format!(r#"{{"message":{{"messageId":"m"{comma}{rest}}}}}"#)
    };
    check_params(&params(input), &params(expect), done);
}

#[test]
fn a_message_has_an_id() {
    for (input, expect) in [
        (r#"{"message":{}}"#, r#"{"message":{"messageId":"<new>"}}"#),
        (
            r#"{"message": { "parts" : [] } ,"x":1}"#,
            r#"{"message": { "parts" : [],"messageId":"<new>" } ,"x":1}"#,
        ),
        (
            r#"{"message":{"messageId": null ,"a":1}}"#,
            r#"{"message":{"messageId": "<new>" ,"a":1}}"#,
        ),
        (
            r#"{"message":{"messageId":""}}"#,
            r#"{"message":{"messageId":"<new>"}}"#,
        ),
        (
            r#"{"message":{"message_id" : "m\u0041"}}"#,
            r#"{"message":{"messageId" : "m\u0041"}}"#,
        ),
        (
            r#"{"message":{"message_id":""}}"#,
            r#"{"message":{"messageId":"<new>"}}"#,
        ),
        (
            r#"{"message":{"message_id":null}}"#,
            r#"{"message":{"messageId":"<new>"}}"#,
        ),
        (
            r#"{"message":{"messageId":"m","message_id":"\u006d","a":1}}"#,
            r#"{"message":{"messageId":"m","a":1}}"#,
        ),
        (
            r#"{"message":{"message_id":5, "messageId":5 }}"#,
            r#"{"message":{"messageId":5 }}"#,
        ),
        (
            r#"{"message":{"a":1,"messageId":"m", "message_id":"m" }}"#,
            r#"{"message":{"a":1,"messageId":"m" }}"#,
        ),
        (
            r#"{"message":{"messageId":"m","message_id":null}}"#,
            r#"{"message":{"messageId":"m"}}"#,
        ),
        (
            r#"{"message":{"messageId":null,"a":1,"message_id":"m"}}"#,
            r#"{"message":{"a":1,"messageId":"m"}}"#,
        ),
        (
            r#"{"message":{"message_id":"","messageId":""}}"#,
            r#"{"message":{"messageId":"<new>"}}"#,
        ),
    ] {
        check_params(input, expect, "message-id");
    }
}

#[test]
fn the_clients_own_task_id_moves_to_metadata() {
    for (input, expect) in [
        (r#""task_id":"t""#, r#""metadata":{"task_id":"t"}"#),
        (
            r#""task_id": "t" , "a":1"#,
            r#""a":1,"metadata":{"task_id":"t"}"#,
        ),
        (
            r#""a":1, "task_id":1.0"#,
            r#""a":1,"metadata":{"task_id":1.0}"#,
        ),
        (
            r#""task_id":"t","metadata":{}"#,
            r#""metadata":{"task_id":"t"}"#,
        ),
        (
            r#""metadata":{"a":1 },"task_id":"t""#,
            r#""metadata":{"a":1,"task_id":"t" }"#,
        ),
        (
            r#""metadata":null,"task_id":"t""#,
            r#""metadata":{"task_id":"t"}"#,
        ),
        (
            r#""metadata":{"task_id":"t"},"task_id":"t""#,
            r#""metadata":{"task_id":"t"}"#,
        ),
        (
            r#""task_id":"","taskId":"x""#,
            r#""taskId":"x","metadata":{"task_id":""}"#,
        ),
    ] {
        check_message(input, expect, "task-id");
    }
    // It cannot be moved into such metadata.
    check_message(
        r#""metadata":7,"task_id":"t""#,
        r#""metadata":7,"task_id":"t""#,
        "",
    );
}

#[test]
fn the_clients_own_task_id_is_the_idempotency_key() {
    for (task_id, key) in [
        (r#""t""#, Some("t")),
        (r#""\u0074""#, Some("t")),
        ("1.0", Some("1.0")),
        (r#""""#, None),
        ("null", None),
        ("{}", None),
    ] {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"message/send","params":{{"message":{{"task_id":{task_id}}}}}}}"#
        );
        let completed = run(&text, &FULL).unwrap();
        assert_eq!(completed.idempotency_key.as_deref(), key, "{task_id}");
        let text = text.replace("message/send", "tasks/get");
        assert_eq!(run(&text, &FULL).unwrap().idempotency_key, None);
    }
    let key = run(r#"{"text":"x","task_id":"t"}"#, &FULL)
        .unwrap()
        .idempotency_key;
    assert_eq!(key.as_deref(), Some("t"));
}

#[test]
fn content_and_text_become_parts() {
    for (input, expect) in [
        (
            r#""content":[{"kind":"text","text":"hi"}]"#,
            r#""parts":[{"kind":"text","text":"hi"}],"role":"user""#,
        ),
        (
            r#""content": {"kind":"text","text":"hi"} ,"a":1"#,
            r#""parts": [{"kind":"text","text":"hi"}] ,"a":1,"role":"user""#,
        ),
        (
            r#""a":1,"content" : "h\u0069""#,
            r#""a":1,"parts" : [{"kind":"text","text":"h\u0069"}],"role":"user""#,
        ),
        (
            r#""content":{"type":"text","text":"hi"}"#,
            r#""parts":[{"kind":"text","text":"hi"}],"role":"user""#,
        ),
        (r#""content":{}"#, r#""parts":[{}],"role":"user""#),
        (r#""content":[]"#, r#""parts":[],"role":"user""#),
        (
            r#""text":"hi","task_id":"t""#,
            r#""parts":[{"kind":"text","text":"hi"}],"metadata":{"task_id":"t"},"role":"user""#,
        ),
    ] {
        let done = if input.contains("task_id") {
            "task-id, parts, role"
        } else {
            "parts, role"
        };
        check_message(input, expect, done);
    }
    check_message(
        r#""text":"hi","role":"agent""#,
        r#""parts":[{"kind":"text","text":"hi"}],"role":"agent""#,
        "parts",
    );
    // The existing value is used, and the other one is kept beside it.
    check_message(
        r#""content":"a","text":"b""#,
        r#""parts":[{"kind":"text","text":"a"}],"text":"b","role":"user""#,
        "parts, role",
    );
    check_message(
        r#""parts":[],"content":"a""#,
        r#""parts":[],"content":"a""#,
        "",
    );
    check_message("", "", "");
}

#[test]
fn a_part_has_its_kind() {
    for (input, expect) in [
        (
            r#"{"type":"text","text":"hi"}"#,
            r#"{"kind":"text","text":"hi"}"#,
        ),
        (
            r#"{"text":"hi", "type" : "te\u0078t"}"#,
            r#"{"text":"hi", "kind" : "te\u0078t"}"#,
        ),
        (
            r#"{"type":"data","data":{"type":"x"}}"#,
            r#"{"kind":"data","data":{"type":"x"}}"#,
        ),
        (
            r#"{"type":"other","uri":"u"}"#,
            r#"{"kind":"other","uri":"u"}"#,
        ),
        (
            r#"{"type":"file","name":"a","uri":"u"}"#,
            r#"{"kind":"file","file":{"name":"a","uri":"u"}}"#,
        ),
        (
            r#"{"bytes_data":"QQ==","x":1, "name" : "a" ,"type":"file"}"#,
            r#"{"file":{"bytes":"QQ==","name":"a"},"x":1, "kind":"file"}"#,
        ),
        (
            r#"{"type":"file", "x":1, "uri":"u", "name":"a" }"#,
            r#"{"kind":"file", "x":1, "file":{"uri":"u","name":"a"} }"#,
        ),
        (
            r#"{"type":"file","file":{"uri":"u"},"name":"a"}"#,
            r#"{"kind":"file","file":{"uri":"u","name":"a"}}"#,
        ),
        (
            r#"{"name":"n", "uri":"u" ,"type":"file","file":{ },"x":1,"bytes_data":"z"}"#,
            r#"{"kind":"file","file":{"name":"n","uri":"u","bytes":"z" },"x":1}"#,
        ),
        (
            r#"{"type":"file","file":{"x":1.0,"n\u0061me":"\u006e"},"name":"n","uri":"u","bytes_data":"z"}"#,
            r#"{"kind":"file","file":{"x":1.0,"n\u0061me":"\u006e","uri":"u","bytes":"z"}}"#,
        ),
        // `null` and `""` count as missing, in both positions.
        (
            r#"{"type":"file","file":{"name":null,"uri":"u","bytes":""},"name":"n","uri":null,"bytes_data":"z"}"#,
            r#"{"kind":"file","file":{"name":"n","uri":"u","bytes":"z"}}"#,
        ),
        // The agent decides on a `file` of another type.
        (
            r#"{"type":"file","file":"f","name":"n","bytes_data":"z"}"#,
            r#"{"kind":"file","file":"f","name":"n","bytes_data":"z"}"#,
        ),
        (
            r#"{"type":"file","file":null,"uri":"u"}"#,
            r#"{"kind":"file","file":null,"uri":"u"}"#,
        ),
        (r#"{"type":"file"}"#, r#"{"kind":"file"}"#),
    ] {
        check_message(
            &format!(r#""parts":[{input},{{"kind":"text"}}, {input} ]"#),
            &format!(r#""parts":[{expect},{{"kind":"text"}}, {expect} ],"role":"user""#),
            "parts, role",
        );
    }
    let wrong = r#""parts":[{"type":7},{"type":"text","kind":null}]"#;
    check_message(wrong, wrong, "");
}

#[test]
fn the_target_in_the_body_goes() {
    for (input, expect) in [
        (
            r#"{"target_agent_id":"dev","message":{"messageId":"m"}}"#,
            r#"{"message":{"messageId":"m"}}"#,
        ),
        (
            r#"{"message":{"messageId":"m"} , "target_agent_id" : "d\u0065v" }"#,
            r#"{"message":{"messageId":"m"} }"#,
        ),
        (
            r#"{"a":1, "target_agent_id":null, "message":{"messageId":"m"}}"#,
            r#"{"a":1, "message":{"messageId":"m"}}"#,
        ),
    ] {
        check_params(input, expect, "target");
    }
}

#[test]
fn the_source_is_the_proven_caller() {
    let params = |metadata: &str| {
        format!(r#"{{"message":{{"messageId":"m"}},"metadata":{metadata},"a":1}}"#)
    };
    let canvas = Completion {
        caller: None,
        ..FULL
    };
    for (completion, input, expect) in [
        (
            FULL,
            r#"{"source_workspace_id":"other"}"#,
            r#"{"source_workspace_id":"pm"}"#,
        ),
        (
            FULL,
            r#"{"b":1,"source_workspace_id" : null }"#,
            r#"{"b":1,"source_workspace_id" : "pm" }"#,
        ),
        (
            FULL,
            r#"{"source_workspace_id":["pm"]}"#,
            r#"{"source_workspace_id":"pm"}"#,
        ),
        (canvas, r#"{"source_workspace_id":"pm"}"#, "{}"),
        (
            canvas,
            r#"{"b":1, "source_workspace_id":"pm" }"#,
            r#"{"b":1 }"#,
        ),
        (
            canvas,
            r#"{ "source_workspace_id":"pm", "b":1}"#,
            r#"{ "b":1}"#,
        ),
    ] {
        check_params_with(&completion, &params(input), &params(expect), "source");
    }
    for (completion, same) in [
        (FULL, r#"{"source_workspace_id":"\u0070m"}"#),
        (FULL, "{}"),
        (FULL, r#"["source_workspace_id"]"#),
        (canvas, r#"{"source_workspace_id":null}"#),
    ] {
        check_params_with(&completion, &params(same), &params(same), "");
    }
}

#[test]
fn everything_at_once() {
    // All rules at once: a client's ids, one content object, a target and a source.
    check_params(
        r#"{"target_agent_id":"dev","message":{"role":"user","message_id":"m","task_id":"t","content":{"kind":"text","text":"hi"}},"metadata":{"run_id":"r","source_workspace_id":"x"}}"#,
        r#"{"message":{"role":"user","messageId":"m","parts":[{"kind":"text","text":"hi"}],"metadata":{"task_id":"t"}},"metadata":{"run_id":"r","source_workspace_id":"pm"}}"#,
        "message-id, task-id, parts, target, source",
    );
    check_params(
        r#"{"message":{"task_id":"t","content":{"type":"file","uri":"u","name":"n"}},"target_agent_id":"dev"}"#,
        r#"{"message":{"parts":[{"kind":"file","file":{"uri":"u","name":"n"}}],"messageId":"<new>","metadata":{"task_id":"t"},"role":"user"}}"#,
        "message-id, task-id, parts, role, target",
    );
}

#[test]
fn the_alias_is_renamed_in_an_envelope_too() {
    check_with(
        &FULL,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/sendSubscribe","params":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{}}"#,
        "alias",
    );
    check_with(
        &FULL,
        r#"{"jsonrpc":"2.0","id":1,"method":"message\/sendSubscribe","params":{"message":{"messageId":"m"}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{"message":{"messageId":"m"}}}"#,
        "alias",
    );
}
