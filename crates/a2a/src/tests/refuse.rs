//! Tests of rejections and their messages.

use super::{BARE, FULL, OFF, run};
use crate::envelope::FaultKind::{self, InvalidParams, InvalidRequest, ParseError};

fn check(input: impl AsRef<[u8]>, kind: FaultKind, rpc_id: Option<&str>, message: &str) {
    let input = input.as_ref();
    let shown = String::from_utf8_lossy(&input[..input.len().min(120)]).into_owned();
    let fault = run(input, &FULL).expect_err(&shown);
    assert_eq!(
        (fault.kind, fault.rpc_id.as_deref(), &*fault.message),
        (kind, rpc_id, message),
        "{shown}"
    );
}

const NOT_JSON: &[&[u8]] = &[
    b"",
    b" \r\n",
    b"\xef\xbb\xbf",
    b"hello",
    b"{",
    b"{}}",
    b"{} {}",
    b"{\"jsonrpc\":\"2.0\"}x",
    b"{\"jsonrpc\":\"2.0\",}",
    b"{\"jsonrpc\" \"2.0\"}",
    b"{'jsonrpc':1}",
    b"{\"a\":NaN}",
    b"{\"a\":Infinity}",
    b"{\"a\":-Infinity}",
    b"{\"a\":01}",
    b"{\"a\":.5}",
    b"{\"a\":5.}",
    b"{\"a\":1e}",
    b"{\"a\":+1}",
    b"{\"a\":-}",
    b"{\"a\":0x10}",
    b"{\"a\":tru}",
    b"{\"a\":True}",
    b"{\"a\":\"\x01\"}",
    b"{\"a\":\"\n\"}",
    b"{\"a\":\"\\x\"}",
    b"{\"a\":\"\\u12g4\"}",
    b"{\"a\":\"\\u123\"}",
    b"{\"a\":\"open}",
    b"{\"a\":[1,]}",
    b"{\"a\":[1 2]}",
    b"{\"a\":[1}",
    b"{\"a\":{]}",
    b"{/**/\"a\":1}",
    b"[1,2",
    b"nul",
    b"{\"a\":\"\xff\"}",
    b"{\"a\":\"\xc3\"}",
    b"{\"a\":\"\xed\xa0\x80\"}",
    b"\xff\xfe{\x00}\x00",
    b"\xfe\xff\x00{\x00}",
    b"{\x00}\x00",
    b"\x00{\x00}",
    b"{\x00\x00\x00}\x00\x00\x00",
    b"{}\x00",
    b"\xef\xbb\xbf\xef\xbb\xbf{}",
];

#[test]
fn what_is_not_json_is_a_parse_error_in_every_mode() {
    for body in NOT_JSON {
        for completion in [FULL, BARE, OFF] {
            let fault = run(body, &completion).expect_err(&String::from_utf8_lossy(body));
            assert_eq!(fault.kind, ParseError, "{}", String::from_utf8_lossy(body));
            assert_eq!(fault.rpc_id, None);
        }
    }
    check(
        "",
        ParseError,
        None,
        "the body is empty; send a JSON-RPC request",
    );
    check(
        r#"{"id":1,"a":NaN}"#,
        ParseError,
        None,
        "the body is not JSON at byte 12",
    );
    check(
        b"{\"a\":\"\xff\"}",
        ParseError,
        None,
        "the body is not UTF-8 at byte 6; send JSON in UTF-8",
    );
}

#[test]
fn json_that_is_no_object_is_an_invalid_request() {
    for body in ["null", "1", "\"x\"", "true", " -0.5e1 "] {
        let message = "the body is not an object; send a JSON-RPC request";
        check(body, InvalidRequest, None, message);
        assert_eq!(run(body, &OFF).unwrap_err().kind, InvalidRequest);
    }
    for body in ["[]", "[1]", r#"[{"jsonrpc":"2.0","id":1,"method":"x"}]"#] {
        let message = "batches are not served; send one JSON-RPC request";
        check(body, InvalidRequest, None, message);
        assert_eq!(run(body, &BARE).unwrap_err().kind, InvalidRequest);
    }
}

#[test]
fn nesting_beyond_512_is_an_invalid_request_wherever_it_is() {
    let deep = format!("{}{}", "[".repeat(600), "]".repeat(600));
    for body in [
        deep.clone(),
        "[".repeat(100_000),
        r#"{"a":"#.repeat(100_000),
        format!(r#"{{"method":"message/send","params":{{"message":{{"parts":{deep}}}}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","params":{{"message":{{"metadata":{deep}}}}}}}"#),
    ] {
        check(body, InvalidRequest, None, "nested deeper than 512");
    }
    // A message of the permitted depth may be too deep inside its call.
    let levels = 511;
    let body = format!(
        r#"{{"parts":{}{}}}"#,
        "[".repeat(levels),
        "]".repeat(levels)
    );
    check(
        body,
        InvalidRequest,
        None,
        "nested deeper than 512 as a call",
    );
}

/// Duplicate members at the top level of an envelope.
const TWICE_AT_TOP: &[(&str, &str)] = &[
    (r#""method":"x","jsonrpc":"2.0""#, "jsonrpc"),
    (r#""method":"x","method":"x""#, "method"),
    (r#""method":"x","m\u0065thod":"y""#, "method"),
    (r#""method":"x","params":{},"params":[]"#, "params"),
];

/// Duplicate members of `params`.
const TWICE_IN_PARAMS: &[(&str, &str)] = &[
    (r#""message":{},"message":{}"#, "message"),
    (r#""message":{},"mess\u0061ge":1"#, "message"),
    (r#""metadata":{},"message":{},"metadata":{}"#, "metadata"),
    (
        r#""target_agent_id":"dev","target_agent_id":"dev""#,
        "target_agent_id",
    ),
    (
        r#""metadata":{"source_workspace_id":1,"source_workspace_id":2}"#,
        "source_workspace_id",
    ),
];

/// Duplicate members of `params.message`.
const TWICE_IN_MESSAGE: &[(&str, &str)] = &[
    (r#""messageId":"a","messageId":"a""#, "messageId"),
    (r#""message_id":"a","message_\u0069d":"a""#, "message_id"),
    (r#""role":"user","role":"agent""#, "role"),
    (r#""parts":[],"parts":[]"#, "parts"),
    (r#""content":[],"content":{}"#, "content"),
    (r#""text":"a","text":"b""#, "text"),
    (r#""task_id":"a","task_id":"b""#, "task_id"),
    (r#""metadata":{},"metadata":{}"#, "metadata"),
    (
        r#""task_id":"a","metadata":{"task_id":"a","task_id":"a"}"#,
        "task_id",
    ),
    (r#""parts":[{"kind":"text","kind":"file"}]"#, "kind"),
    (r#""parts":[{"type":"text","type":"file"}]"#, "type"),
    (r#""content":{"type":"text","type":"file"}"#, "type"),
    (r#""parts":[{"type":"file","uri":"a","uri":"b"}]"#, "uri"),
    (
        r#""parts":[{"type":"file","uri":"a","file":{},"file":{}}]"#,
        "file",
    ),
    (
        r#""parts":[{"type":"file","bytes_data":"a","file":{"bytes":"a","bytes":"b"}}]"#,
        "bytes",
    ),
];

#[test]
fn a_member_that_is_read_stands_once() {
    let check = |body: &str, rpc_id: Option<&str>, word: &str| {
        let message = format!("\"{word}\" stands twice; send it once");
        check(body, InvalidRequest, rpc_id, &message);
    };
    let call = |rest: &str| format!(r#"{{"jsonrpc":"2.0","id":7,{rest}}}"#);
    let send = |params: &str| call(&format!(r#""method":"message/send","params":{{{params}}}"#));
    for (members, word) in TWICE_AT_TOP {
        check(&call(members), Some("7"), word);
        assert_eq!(run(call(members), &OFF).unwrap_err().kind, InvalidRequest);
    }
    for (members, word) in TWICE_IN_PARAMS {
        check(&send(members), Some("7"), word);
    }
    for (members, word) in TWICE_IN_MESSAGE {
        check(
            &send(&format!(r#""message":{{{members}}}"#)),
            Some("7"),
            word,
        );
        check(
            &format!(r#"{{"params":{{"message":{{{members}}}}}}}"#),
            None,
            word,
        );
        check(&format!(r#"{{"message":{{{members}}}}}"#), None, word);
    }
    // A duplicate id counts as none.
    check(&call(r#""method":"x","\u0069d":8"#), None, "id");
    // In a bare body that is rebuilt, all members are checked.
    check(r#"{"message":{},"run_id":1,"run_id":1}"#, None, "run_id");
}

#[test]
fn a_member_that_is_not_read_may_stand_twice() {
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"method":"x","x":1,"x":2}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"x":{},"x":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"x":1,"x":2,"message":{"messageId":"m","x":1,"x":2,"metadata":{"task_id":1,"task_id":2},"parts":[{"kind":"data","data":{"kind":1,"kind":2},"text":1,"text":2}]}}}"#,
    ] {
        super::check(body, body, "");
    }
}

#[test]
fn no_call_is_made_of_what_is_none() {
    let none =
        "no call can be made of this; send \"method\" and \"params\", or a \"message\" object";
    for body in [
        "{}",
        r#"{"prompt":"hi"}"#,
        r#"{"params":{}}"#,
        r#"{"params":{"message":"hi"}}"#,
        r#"{"params":{"message":null}}"#,
        r#"{"message":"hi"}"#,
        r#"{"role":"user"}"#,
    ] {
        check(body, InvalidRequest, None, none);
    }
    check(r#"{"id":"a","x":1}"#, InvalidRequest, Some("\"a\""), none);
    for method in ["null", "7", "{}", "true"] {
        let body = format!(r#"{{"id":1,"method":{method},"params":{{"message":{{}}}}}}"#);
        check(
            body,
            InvalidRequest,
            Some("1"),
            "\"method\" is not a string",
        );
    }
    let answer = "a body with \"result\" or \"error\" is an answer; send a request";
    check(r#"{"id":1,"result":{}}"#, InvalidRequest, Some("1"), answer);
    check(
        r#"{"error":{"code":1},"message":{}}"#,
        InvalidRequest,
        None,
        answer,
    );
}

#[test]
fn a_bare_body_must_not_contradict_itself() {
    let twice = |word: &str| format!("\"{word}\" stands twice; send it once");
    for (body, word) in [
        (r#"{"message":{},"params":{"message":{}}}"#, None),
        (
            r#"{"message":{"a":1},"params":{"message":{}}}"#,
            Some("message"),
        ),
        (
            r#"{"params":{"message":{},"metadata":{"a":1}},"metadata":{"a":2}}"#,
            Some("metadata"),
        ),
        (
            r#"{"params":{"message":{},"metadata":{"run_id":1}},"run_id":2}"#,
            Some("run_id"),
        ),
        (r#"{"params":{"message":5},"text":"x"}"#, Some("message")),
        (r#"{"params":{"message":5},"message":{}}"#, Some("message")),
    ] {
        match word {
            Some(word) => check(body, InvalidRequest, None, &twice(word)),
            None => assert!(run(body, &FULL).is_ok(), "{body}"),
        }
    }
    check(
        r#"{"message":{},"prompt":1,"prompt":2}"#,
        InvalidRequest,
        None,
        "a member stands twice; send it once",
    );
    check(
        r#"{"params":[],"message":{}}"#,
        InvalidRequest,
        None,
        "\"params\" is not an object",
    );
    check(
        r#"{"metadata":"x","message":{},"run_id":1}"#,
        InvalidRequest,
        None,
        "\"metadata\" is not an object",
    );
}

#[test]
fn arguments_that_contradict_are_invalid_params() {
    let send = |inner: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":7,"method":"message/send","params":{{{inner}}}}}"#)
    };
    let ids = "\"messageId\" and \"message_id\" differ; send one of them";
    for message in [
        r#"{"messageId":"a","message_id":"b"}"#,
        r#"{"message_id":5,"messageId":"5"}"#,
        r#"{"message_id":5,"messageId":6}"#,
    ] {
        check(
            send(&format!(r#""message":{message}"#)),
            InvalidParams,
            Some("7"),
            ids,
        );
    }
    let target = "\"target_agent_id\" is not the workspace in the path; the path decides";
    for other in [r#""other""#, "7", "{}", r#""""#] {
        let body = send(&format!(r#""message":{{}},"target_agent_id":{other}"#));
        check(body, InvalidParams, Some("7"), target);
    }
    check(
        r#"{"text":"x","target_agent_id":"other"}"#,
        InvalidParams,
        None,
        target,
    );
    check(
        send(r#""message":{"task_id":"a","metadata":{"task_id":"b"}}"#),
        InvalidParams,
        Some("7"),
        "\"task_id\" and \"metadata.task_id\" differ; send one of them",
    );
    for (part, name) in [
        (
            r#"{"type":"file","file":{"name":"q"},"name":"n","uri":"u","bytes_data":"z"}"#,
            "name",
        ),
        (r#"{"uri":"u","file":{"uri":7},"type":"file"}"#, "uri"),
        (
            r#"{"type":"file","file":{"bytes":"QQ=="},"bytes_data":"QQ"}"#,
            "bytes",
        ),
    ] {
        check(
            send(&format!(r#""message":{{"parts":[{part}]}}"#)),
            InvalidParams,
            Some("7"),
            &format!(
                "\"{name}\" of a \"file\" differs in the part and in its \"file\"; send one of them"
            ),
        );
    }
}
