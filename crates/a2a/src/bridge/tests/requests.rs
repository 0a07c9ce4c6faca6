//! Requests: parameters, methods, header fields, refusals.

use super::*;
use crate::bridge::{
    RequestedVersion, extensions_field, has_v1_message, is_translated_version, parse_version,
};

use Method::*;

#[test]
fn a_call_has_the_other_method_and_keeps_its_id() {
    for method in Method::ALL {
        let (Some(v0), Some(v1)) = (
            method.name_in(Generation::V0),
            method.name_in(Generation::V1),
        ) else {
            continue;
        };
        if method.is_of_push() || method.sends() {
            continue;
        }
        for (bridge, from, to) in [(UP, v0, v1), (DOWN, v1, v0)] {
            let body =
                format!(r#" {{"method":"{from}" , "id": "a\u0062" ,"jsonrpc":"2.0","x":1}}"#);
            let (sent, _) = bridge
                .translate_request(method, Call::Rpc(body.as_bytes()))
                .unwrap();
            let expected =
                format!(r#"{{"method":"{to}","id":"a\u0062","jsonrpc":"2.0","params":{{}}}}"#);
            assert_eq!(String::from_utf8(sent.body).unwrap(), expected);
            assert_eq!(sent.method, Some(to));
            assert_eq!(
                sent.left_out.iter().collect::<Vec<_>>(),
                [("call", "other", 1)]
            );
        }
    }
}

#[test]
fn what_a_strict_server_would_refuse_is_left_out_and_counted() {
    let sent = r#"{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"file","file":{"uri":"u","mimeType":"a/b","name":"n","size":7}}],"x":1,"taskId":"","metadata":{"n":1.10}},"configuration":{"blocking":true,"acceptedOutputModes":["a/b"],"y":[]},"metadata":{"k":9007199254740993},"z":{}}"#;
    let expected = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"url":"u","mediaType":"a/b","filename":"n"}],"metadata":{"n":1.10}},"configuration":{"acceptedOutputModes":["a/b"]},"metadata":{"k":9007199254740993}}"#;
    assert_eq!(params(&UP, SendMessage, sent), expected);
    let (sent, _) = request(&UP, SendMessage, sent).unwrap();
    let left: Vec<_> = sent.left_out.iter().collect();
    let other = |node| (node, "other", 1);
    assert_eq!(
        left,
        [
            other("part"),
            other("message"),
            other("configuration"),
            other("send")
        ]
    );
    assert_eq!(sent.left_out.total(), 4);
    for (method, sent, expected) in [
        (GetTask, r#"{"id":"t","metadata":{"a":1}}"#, r#"{"id":"t"}"#),
        (
            SubscribeToTask,
            r#"{"id":"t","metadata":{}}"#,
            r#"{"id":"t"}"#,
        ),
        (
            CancelTask,
            r#"{"metadata":{"a": 1},"id":"t"}"#,
            r#"{"metadata":{"a": 1},"id":"t"}"#,
        ),
        (GetExtendedCard, r#"{"x":1}"#, "{}"),
        (GetExtendedCard, "null", "{}"),
    ] {
        assert_eq!(params(&UP, method, sent), expected);
    }
    let (sent, _) = request(&UP, GetTask, r#"{"id":"t","metadata":{}}"#).unwrap();
    assert_eq!(
        sent.left_out.iter().collect::<Vec<_>>(),
        [("get", "metadata", 1)]
    );
}

#[test]
fn a_call_waits_unless_it_says_otherwise() {
    let of = |bridge: &Bridge<'_>, configuration: &str| {
        let sent = format!(r#"{{"message":{{}},"configuration":{configuration}}}"#);
        let said = params(bridge, SendMessage, &sent);
        let said = said.strip_prefix(r#"{"message":{},"configuration":"#);
        said.unwrap().to_owned()
    };
    for (configuration, expected) in [
        (
            r#"{"acceptedOutputModes":["a/b"]}"#,
            r#"{"acceptedOutputModes":["a/b"]}}"#,
        ),
        (r#"{"blocking":false}"#, r#"{"returnImmediately":true}}"#),
        (r#"{"blocking":true}"#, "{}}"),
        (r#"{"blocking":null}"#, "{}}"),
    ] {
        assert_eq!(of(&UP, configuration), expected);
    }
    let message = r#","message":{"kind":"message","messageId":"","role":"agent","parts":[]}}"#;
    for (configuration, expected) in [
        ("{}", "{}"),
        (r#"{"returnImmediately":true}"#, r#"{"blocking":false}"#),
        (r#"{"return_immediately":true}"#, r#"{"blocking":false}"#),
        (r#"{"returnImmediately":false}"#, "{}"),
    ] {
        let sent = format!(r#"{{"configuration":{configuration},"message":{{}}}}"#);
        let said = params(&DOWN, SendMessage, &sent);
        assert_eq!(said, format!(r#"{{"configuration":{expected}{message}"#));
    }
}

#[test]
fn a_history_of_length_0_is_all_in_0_3_and_none_in_1_0() {
    let up = |length: &str| {
        params(
            &UP,
            GetTask,
            &format!(r#"{{"id":"t","historyLength":{length}}}"#),
        )
    };
    assert_eq!(up("0"), r#"{"id":"t"}"#);
    assert_eq!(up("3"), r#"{"id":"t","historyLength":3}"#);
    assert_eq!(up("\"3\""), r#"{"id":"t","historyLength":3}"#);
    for wrong in ["-1", "1.5", "[]", "99999999999999999999"] {
        let sent = format!(r#"{{"id":"t","historyLength":{wrong}}}"#);
        let failure = request(&UP, GetTask, &sent).unwrap_err();
        assert_eq!(
            (failure, failure.code()),
            (Failure::Params("historyLength"), -32_602)
        );
    }
    // An agent of 0.3 cannot be told "none", so its history is left out of the answer.
    let task = r#"{"kind":"task","id":"t","contextId":"c","status":{"state":"working"},"history":[{"kind":"message","messageId":"m","role":"user","parts":[]}]}"#;
    for (method, zero, one) in [
        (
            GetTask,
            r#"{"id":"t","historyLength":0}"#,
            r#"{"id":"t","historyLength":1}"#,
        ),
        (
            SendMessage,
            r#"{"message":{},"configuration":{"historyLength":0}}"#,
            r#"{"message":{},"configuration":{"historyLength":1}}"#,
        ),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{task}}}"#);
        let (sent, exchange) = request(&DOWN, method, zero).unwrap();
        assert!(
            !String::from_utf8(sent.body)
                .unwrap()
                .contains("historyLength")
        );
        let answer = exchange.translate_answer(200, body.as_bytes()).unwrap();
        assert!(!String::from_utf8(answer.body).unwrap().contains("history"));
        let (sent, exchange) = request(&DOWN, method, one).unwrap();
        assert!(
            String::from_utf8(sent.body)
                .unwrap()
                .contains(r#""historyLength":1"#)
        );
        let answer = exchange.translate_answer(200, body.as_bytes()).unwrap();
        assert!(
            String::from_utf8(answer.body)
                .unwrap()
                .contains("\"history\"")
        );
    }
}

#[test]
fn required_members_are_filled_in_towards_0_3() {
    let sent = r#"{"tenant":"acme","message":{"role":"ROLE_USER","contextId":"","extensions":[],"referenceTaskIds":[ ],"parts":[{"text":""}]}}"#;
    let expected = r#"{"message":{"kind":"message","role":"user","parts":[{"kind":"text","text":""}],"messageId":""}}"#;
    assert_eq!(params(&DOWN, SendMessage, sent), expected);
    let (sent, _) = request(&DOWN, SendMessage, sent).unwrap();
    assert_eq!(
        sent.left_out.iter().collect::<Vec<_>>(),
        [("send", "tenant", 1)]
    );
}

#[test]
fn the_tenant_of_the_interface_is_named_to_an_agent_of_1_0() {
    let bridge = Bridge {
        tenant: Some("a\"b"),
        ..UP
    };
    assert_eq!(
        params(&bridge, GetTask, r#"{"id":"t"}"#),
        r#"{"id":"t","tenant":"a\"b"}"#
    );
    let said = params(&bridge, SendMessage, r#"{"message":{}}"#);
    assert_eq!(said, r#"{"message":{},"tenant":"a\"b"}"#);
}

#[test]
fn another_version_of_json_rpc_is_refused() {
    for (version, code) in [("2.0", None), ("1.0", Some(-32_600)), ("", Some(-32_600))] {
        let body = call(&UP, GetTask, r#"{"id":"t"}"#);
        let body = body.replacen("2.0", version, 1);
        let sent = UP.translate_request(GetTask, Call::Rpc(body.as_bytes()));
        assert_eq!(sent.err().map(|failure| failure.code()), code, "{version}");
    }
}

#[test]
fn calls_of_0_3_and_1_0_are_translated() {
    for version in ["", " ", "0.3", "0.3.7", "1", "1.0", "1.0.0", " 1.0 "] {
        assert!(is_translated_version(version), "{version}");
    }
    for version in [
        "99.0", "0", "0.2", "1.1", "2", "1.0.0.0", "v1", "1.", "1..0", "-1",
    ] {
        assert!(!is_translated_version(version), "{version}");
    }
}

#[test]
fn a_member_that_stands_twice_is_refused_in_a_request() {
    for (sent, name) in [
        (r#"{"message":{},"message":{}}"#, "message"),
        (r#"{"message":{"role":"user","\u0072ole":"agent"}}"#, "role"),
        (r#"{"message":{"taskId":"a","task_id":"b"}}"#, "taskId"),
        (r#"{"message":{"parts":[{"text":"a","text":"b"}]}}"#, "text"),
        (
            r#"{"message":{"parts":[{"file":{"uri":"a","uri":"b"}}]}}"#,
            "uri",
        ),
        (
            r#"{"configuration":{"blocking":true,"blocking":false}}"#,
            "returnImmediately",
        ),
    ] {
        let failure = request(&UP, SendMessage, sent).unwrap_err();
        assert_eq!(
            (failure, failure.code()),
            (Failure::Twice(name), -32_600),
            "{sent}"
        );
    }
    // What is free-form is not read.
    let sent = r#"{"message":{},"metadata":{"a":1,"a":2}}"#;
    assert_eq!(params(&UP, SendMessage, sent), sent);
}

#[test]
fn what_has_no_form_is_refused_with_its_code() {
    let refused =
        |bridge: &Bridge<'_>, method, params: &str| request(bridge, method, params).unwrap_err();
    for (bridge, agent) in [(UP, Generation::V1), (DOWN, Generation::V0)] {
        for method in [
            CreatePushConfig,
            GetPushConfig,
            ListPushConfigs,
            DeletePushConfig,
        ] {
            let failure = refused(&bridge, method, r#"{"id":"t"}"#);
            assert_eq!(
                (failure, failure.code()),
                (Failure::Push { agent }, -32_003)
            );
        }
    }
    let up = r#"{"message":{},"configuration":{"pushNotificationConfig":{"url":"http://a"}}}"#;
    let down =
        r#"{"message":{},"configuration":{"taskPushNotificationConfig":{"url":"http://a"}}}"#;
    for failure in [
        refused(&UP, SendMessage, up),
        refused(&DOWN, SendStreamingMessage, down),
    ] {
        assert_eq!(failure.code(), -32_003);
        assert!(
            failure.to_string().contains("across generations"),
            "{failure}"
        );
    }
    let nothing = r#"{"message":{},"configuration":{"pushNotificationConfig":null}}"#;
    let expected = r#"{"message":{},"configuration":{}}"#;
    assert_eq!(params(&UP, SendMessage, nothing), expected);
    let list = refused(&DOWN, ListTasks, "{}");
    assert_eq!((list, list.code()), (Failure::List, -32_004));
    let body = br#"{"jsonrpc":"2.0","id":1,"method":"tasks/list"}"#;
    let none = UP
        .translate_request(ListTasks, Call::Rpc(body))
        .unwrap_err();
    assert_eq!(none.code(), -32_601);
    for method in [Other, Unread, AgentCard] {
        let none = UP
            .translate_request(method, Call::Rpc(br#"{"method":"x/y"}"#))
            .unwrap_err();
        assert_eq!(
            none,
            Failure::Method {
                agent: Generation::V1
            }
        );
    }
    for (body, code) in [
        ("{", -32_700),
        (r#"{"params":{"message":{}}} x"#, -32_700),
        ("{}", -32_602),
        (r#"{"params":{}}"#, -32_602),
        (r#"{"params":{"message":null}}"#, -32_602),
        ("[]", -32_602),
        (r#"{"params":[]}"#, -32_602),
        (r#"{"params":{"message":"hi"}}"#, -32_602),
        (r#"{"params":{"message":{"parts":{}}}}"#, -32_602),
        (r#"{"params":{"message":{}},"params":{}}"#, -32_600),
    ] {
        let failure = UP
            .translate_request(SendMessage, Call::Rpc(body.as_bytes()))
            .unwrap_err();
        assert_eq!(failure.code(), code, "{body}");
        assert!(!failure.is_of_agent());
    }
    let deep = format!(
        r#"{{"params":{{"metadata":{}{}}}}}"#,
        "[".repeat(600),
        "]".repeat(600)
    );
    let failure = UP
        .translate_request(SendMessage, Call::Rpc(deep.as_bytes()))
        .unwrap_err();
    assert_eq!(failure, Failure::TooDeep);
}

#[test]
fn a_message_of_1_0_says_no_kind() {
    for (message, is_of_v1) in [
        (
            r#"{"role":"user","parts":[{"text":"hi"},{"data":1}]}"#,
            true,
        ),
        (r#"{"parts":[{"raw":"AA==","mediaType":"a/b"}]}"#, true),
        (r#"{"parts":[{"kind":"text","text":"hi"}]}"#, false),
        (r#"{"parts":[{"text":"hi"},{"type":"text"}]}"#, false),
        (r#"{"parts":[{"file":{"uri":"u"}}]}"#, false),
        (r#"{"kind":"message","parts":[{"text":"hi"}]}"#, false),
        (r#"{"parts":[]}"#, false),
        ("7", false),
    ] {
        let body = call(&UP, SendMessage, &format!(r#"{{"message":{message}}}"#));
        assert_eq!(has_v1_message(body.as_bytes()), is_of_v1, "{message}");
    }
}

#[test]
fn the_header_fields_are_those_of_the_agents_generation() {
    let (up, _) = request(&UP, GetTask, r#"{"id":"t"}"#).unwrap();
    assert_eq!((up.version, up.extensions), ("1.0", "A2A-Extensions"));
    let (down, _) = request(&DOWN, GetTask, r#"{"id":"t"}"#).unwrap();
    assert_eq!((down.version, down.extensions), ("0.3", "X-A2A-Extensions"));
    assert_eq!((UP.label(), DOWN.label()), ("0.3>1.0", "1.0>0.3"));
    assert_eq!(extensions_field(Generation::V1), "A2A-Extensions");
    assert!(!bridge(V0, V0).is_needed() && UP.is_needed() && bridge(V1, V1_REST).is_needed());
}

#[test]
fn a_version_is_read_without_its_patch_number() {
    for (asked, expected) in [
        (None, RequestedVersion::Nothing),
        (Some(""), RequestedVersion::Nothing),
        (Some(" "), RequestedVersion::Nothing),
        (Some("1.0"), RequestedVersion::Generation(Generation::V1)),
        (
            Some(" 1.0.3 "),
            RequestedVersion::Generation(Generation::V1),
        ),
        (Some("1"), RequestedVersion::Generation(Generation::V1)),
        (Some("1.7"), RequestedVersion::Generation(Generation::V1)),
        (Some("0.3"), RequestedVersion::Generation(Generation::V0)),
        (Some("0.3.26"), RequestedVersion::Generation(Generation::V0)),
        (Some("0.2.5"), RequestedVersion::Generation(Generation::V0)),
        (Some("0.1"), RequestedVersion::Unknown),
        (Some("0"), RequestedVersion::Unknown),
        (Some("2.0"), RequestedVersion::Unknown),
        (Some("1.0.0.0"), RequestedVersion::Unknown),
        (Some("1.x"), RequestedVersion::Unknown),
        (Some("+1.0"), RequestedVersion::Unknown),
        (Some("garbage"), RequestedVersion::Unknown),
        (Some("1.0, 0.3"), RequestedVersion::Unknown),
    ] {
        assert_eq!(parse_version(asked), expected, "{asked:?}");
    }
}

#[test]
fn a_call_goes_to_the_side_that_changes_it_least() {
    for (caller, offers, expected) in [
        (V0, &[V1, V0_REST, V0][..], Some(V0)),
        (V0, &[V1_REST, V1, V0_REST], Some(V0_REST)),
        (V0, &[V1_REST, V1], Some(V1)),
        (V1_REST, &[V0_REST, V0], Some(V0)),
        (V1_REST, &[V0_REST, V0, V1], Some(V1)),
        (V1, &[V0_REST], Some(V0_REST)),
        (V1, &[], None),
    ] {
        assert_eq!(
            caller.find_nearest(offers.iter().copied()),
            expected,
            "{caller:?} {offers:?}"
        );
    }
}

#[test]
fn the_query_of_an_interface_stays_on_its_routes() {
    for (interface, route, expected) in [
        ("/a/", "tasks", "/a/tasks"),
        ("/a/", "tasks?", "/a/tasks"),
        ("/", "tasks?x=1", "/tasks?x=1"),
        ("/a?code=KEY", "tasks", "/a/tasks?code=KEY"),
        ("/a/?code=KEY", "tasks?x=1", "/a/tasks?code=KEY&x=1"),
        ("/", "tasks?history_length=2", "/tasks?historyLength=2"),
    ] {
        assert_eq!(crate::bridge::path_below(interface, route), expected);
    }
}
