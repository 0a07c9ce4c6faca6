//! Table tests of the references of a call: each dialect, each spelling, each duplicate.

use serde_json::json;

use super::{BARE, FULL, OFF, V1, run};
use crate::envelope::{Completion, FaultKind};
use crate::method::Method;
use crate::refs::Refs;

fn rpc(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"call","method":"{method}","params":{params}}}"#)
}

fn refs(body: &str, completion: &Completion<'_>) -> Refs {
    let completed = run(body, completion);
    completed
        .unwrap_or_else(|fault| panic!("{body}: {fault:?}"))
        .refs
}

fn tasks(body: &str) -> String {
    refs(body, &FULL).tasks.join(" ")
}

#[test]
fn every_method_and_spelling_names_its_task() {
    for method in [
        "tasks/get",
        "tasks/cancel",
        "tasks/resubscribe",
        "tasks/pushNotification/set",
        "tasks/pushNotificationConfig/get",
        "tasks/pushNotificationConfig/list",
        "tasks/pushNotificationConfig/delete",
        "GetTask",
        "CancelTask",
        "SubscribeToTask",
        "CreateTaskPushNotificationConfig",
        "GetTaskPushNotificationConfig",
        "ListTaskPushNotificationConfigs",
        "DeleteTaskPushNotificationConfig",
        // An unknown method, which an agent may support.
        "tasks/archive",
    ] {
        for (params, expected) in [
            (r#"{"id":"t"}"#, "t"),
            (r#"{"taskId":"t","id":"c"}"#, "t c"),
            (r#"{"task_id":"t"}"#, "t"),
            (r#"{"\u0069d":"\u0074"}"#, "t"),
            (r#"{"id":7}"#, "7"),
            (r#"{"id":70e-1}"#, "70e-1 7"),
            (r#"{"id":1e400}"#, "1e400"),
            (r#"{"id":["t",{"x":"u"}]}"#, "t u"),
            (r#"{"id":null}"#, ""),
            (r#"{"id":""}"#, ""),
            (r#"{"name":"tasks/t"}"#, "t"),
            (r#"{"name":"tasks/t/pushNotificationConfigs/c"}"#, "t"),
            (r#"{"parent":"tenants/x/tasks/t"}"#, "t"),
            (r#"{"name":"t"}"#, "t"),
            (r#"{"metadata":{"id":"t"}}"#, ""),
            (r"{}", ""),
        ] {
            assert_eq!(tasks(&rpc(method, params)), expected, "{method} {params}");
        }
    }
    assert_eq!(tasks(&rpc("tasks/get", r#"["t",["u"]]"#)), "t u");
    assert_eq!(tasks(&rpc("x", r#"["t"]"#)), "");
    // For an unknown method no member is ambiguous: each spelling and each duplicate counts.
    for (params, expected) in [
        (r#"{"ID":"t","Task_ID":"u"}"#, "t u"),
        ("{\"taſ\u{212a}Id\":\"t\"}", "t"),
        (r#"{"id":"a","id":"b","id":"a"}"#, "a b"),
    ] {
        assert_eq!(tasks(&rpc("tasks/archive", params)), expected, "{params}");
        let known = run(rpc("tasks/get", params), &FULL).unwrap_err();
        assert_eq!(known.kind, FaultKind::InvalidRequest, "{params}");
    }
    let other = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","Params":{"id":"t"}}"#;
    assert_eq!(
        run(other, &OFF).unwrap_err().kind,
        FaultKind::InvalidRequest
    );
    assert_eq!(
        tasks(r#"{"jsonrpc":"2.0","id":"t","method":"tasks/get"}"#),
        ""
    );
    assert_eq!(tasks(r#"{"method":"tasks/get","params":{"id":"t"}}"#), "t");
}

#[test]
fn a_message_names_the_task_that_it_goes_on_with() {
    let said = r#""messageId":"m","role":"user","parts":[{"kind":"text","text":"x"}]"#;
    for (params, expected) in [
        (format!(r#"{{"message":{{{said}}}}}"#), ""),
        (format!(r#"{{"message":{{{said},"taskId":"t"}}}}"#), "t"),
        (format!(r#"{{"request":{{{said},"taskId":"t"}}}}"#), "t"),
        (
            format!(r#"{{"message":{{{said},"referenceTaskIds":["t","u"]}}}}"#),
            "t u",
        ),
        (
            format!(r#"{{"message":{{{said},"reference_task_ids":["t"]}}}}"#),
            "t",
        ),
        // The client's own id, which the completion moves.
        (format!(r#"{{"message":{{{said},"task_id":"t"}}}}"#), ""),
        // Content.
        (
            format!(
                r#"{{"message":{{{said},"metadata":{{"taskId":"t"}},"extra":{{"taskId":"t"}}}}}}"#
            ),
            "",
        ),
        (
            r#"{"message":{"messageId":"m","parts":[{"kind":"data","data":{"taskId":"t","id":"t"}}]}}"#
                .to_owned(),
            "",
        ),
        (
            format!(
                r#"{{"message":{{{said}}},"configuration":{{"taskPushNotificationConfig":{{"taskId":"t"}}}}}}"#
            ),
            "t",
        ),
    ] {
        for method in ["message/send", "message/stream", "SendMessage"] {
            assert_eq!(tasks(&rpc(method, &params)), expected, "{method} {params}");
        }
    }
    let own = rpc("message/send", r#"{"message":{"task_id":"t"}}"#);
    for completion in [OFF, BARE] {
        assert_eq!(refs(&own, &completion).tasks, ["t"], "left where it is");
    }
    let of_0_1 = rpc("tasks/send", r#"{"id":"t","message":{"task_id":"u"}}"#);
    assert_eq!(tasks(&of_0_1), "t u");
    for bare in [
        r#"{"message":{"parts":[],"taskId":"t"}}"#,
        r#"{"params":{"message":{"parts":[],"taskId":"t"}}}"#,
        r#"{"parts":[],"taskId":"t"}"#,
    ] {
        assert_eq!(tasks(bare), "t", "{bare}");
        assert_eq!(refs(bare, &V1).tasks, ["t"], "{bare}");
    }
}

#[test]
fn urls_for_push_notifications_are_found_wherever_an_agent_reads_them() {
    for (method, params, urls, sets_push) in [
        (
            "message/send",
            r#"{"message":{},"configuration":{"pushNotificationConfig":{"url":"a","token":"b"}}}"#,
            "a",
            true,
        ),
        (
            "SendStreamingMessage",
            r#"{"message":{},"configuration":{"task_push_notification_config":{"URL":"a","url":"b"}}}"#,
            "a b",
            true,
        ),
        (
            "tasks/send",
            r#"{"id":"t","pushNotification":{"url":"a"}}"#,
            "a",
            true,
        ),
        (
            "message/send",
            r#"{"message":{},"configuration":{"pushNotificationConfig":null,"blocking":true}}"#,
            "",
            false,
        ),
        (
            "message/send",
            r#"{"message":{},"configuration":{"pushNotificationConfig":{"url":null}}}"#,
            "",
            true,
        ),
        (
            "message/send",
            r#"{"message":{"parts":[{"url":"a"}],"metadata":{"url":"a"}},"metadata":{"url":"a"}}"#,
            "",
            false,
        ),
        (
            "tasks/pushNotificationConfig/set",
            r#"{"taskId":"t","pushNotificationConfig":{"url":"\u0061"}}"#,
            "a",
            true,
        ),
        (
            "tasks/pushNotification/set",
            r#"{"id":"t","pushNotificationConfig":{"url":"a","url":"b"}}"#,
            "a b",
            true,
        ),
        (
            "CreateTaskPushNotificationConfig",
            r#"{"taskId":"t","id":"c","url":"a"}"#,
            "a",
            false,
        ),
        (
            "CreateTaskPushNotificationConfig",
            r#"{"parent":"tasks/t","config":{"pushNotificationConfig":{"url":"a"}}}"#,
            "a",
            true,
        ),
        (
            "tasks/somethingNew",
            r#"{"push_notification_config":{"x":[{"url":"a"}]},"url":"b"}"#,
            "a",
            true,
        ),
    ] {
        for completion in [FULL, OFF] {
            let found = refs(&rpc(method, params), &completion);
            assert_eq!(found.push_urls.join(" "), urls, "{method} {params}");
            assert_eq!(found.sets_push, sets_push, "{method} {params}");
        }
    }
}

#[test]
fn where_nobody_can_say_what_an_agent_would_call_the_call_is_refused() {
    for config in [
        r#""http://169.254.169.254/""#,
        r#"["http://169.254.169.254/"]"#,
        r#"[{"url":"a"}]"#,
        "5",
        "true",
        r#"{"url":7}"#,
        r#"{"url":["a"]}"#,
        r#"{"url":{"href":"a"}}"#,
        r#"{"x":{"URL":[]}}"#,
    ] {
        for (method, params) in [
            (
                "tasks/pushNotificationConfig/set",
                format!(r#"{{"taskId":"t","pushNotificationConfig":{config}}}"#),
            ),
            (
                "message/send",
                format!(
                    r#"{{"message":{{}},"configuration":{{"pushNotificationConfig":{config}}}}}"#
                ),
            ),
            (
                "SendMessage",
                format!(
                    r#"{{"message":{{}},"configuration":{{"task_push_notification_config":{config}}}}}"#
                ),
            ),
            (
                "tasks/somethingNew",
                format!(r#"{{"pushNotification":{config}}}"#),
            ),
        ] {
            for completion in [FULL, OFF] {
                let fault = run(rpc(method, &params), &completion).unwrap_err();
                assert_eq!(fault.kind, FaultKind::InvalidParams, "{method} {params}");
            }
            let fault = Refs::from_rest_body(params.as_bytes(), Method::parse(method)).unwrap_err();
            assert_eq!(fault.kind, FaultKind::InvalidParams, "{method} {params}");
        }
    }
    let create = Refs::from_rest_body(br#"{"url":["a"]}"#, Method::CreatePushConfig);
    assert_eq!(create.unwrap_err().kind, FaultKind::InvalidParams);
}

#[test]
fn what_is_too_much_to_check_is_refused() {
    let ids = |count: usize| json!((0..count).map(|i| i.to_string()).collect::<Vec<_>>());
    let send = |count| {
        rpc(
            "message/send",
            &json!({"message": {"referenceTaskIds": ids(count)}}).to_string(),
        )
    };
    assert_eq!(refs(&send(100), &FULL).tasks.len(), 100);
    let long = |method: &str, len: usize| rpc(method, &json!({"id": "x".repeat(len)}).to_string());
    assert_eq!(refs(&long("tasks/get", 256), &FULL).tasks.len(), 1);
    assert!(refs(&long("x", 257), &FULL).tasks.is_empty());
    let urls: String = (0..5).map(|i| format!(r#","url":"u{i}""#)).collect();
    let urls = format!(r#"{{"taskId":"t"{urls}}}"#);
    let members = r#""id":"t","#.repeat(65);
    let many = (0..65).map(|_| r#""Task_Id":"t","#).collect::<String>();
    for body in [
        send(101),
        long("tasks/get", 257),
        rpc("CreateTaskPushNotificationConfig", &urls),
        rpc("tasks/get", &format!("{{{members}\"x\":1}}")),
        rpc("tasks/archive", &format!("{{{many}\"x\":1}}")),
    ] {
        for completion in [FULL, OFF] {
            let fault = run(&body, &completion).unwrap_err();
            assert_eq!(fault.kind, FaultKind::InvalidRequest, "{body}");
            assert_eq!(fault.rpc_id.as_deref(), Some(r#""call""#), "{body}");
        }
    }
}

#[test]
fn a_rest_body_is_its_own_params() {
    let refs = |body: &str, method| Refs::from_rest_body(body.as_bytes(), method);
    let send = r#"{"message":{"taskId":"t","content":[]},"configuration":{"pushNotificationConfig":{"url":"a"}}}"#;
    let found = refs(send, Method::SendMessage).unwrap();
    assert_eq!(
        (found.tasks, found.push_urls),
        (vec!["t".into()], vec!["a".into()])
    );
    assert!(found.sets_push);
    let create = refs(r#"{"url":"a","id":"c"}"#, Method::CreatePushConfig).unwrap();
    assert_eq!(create.push_urls, ["a"]);
    for nothing in ["", " \n", "\u{feff}", "[]", "null", "{}"] {
        assert_eq!(refs(nothing, Method::CancelTask), Ok(Refs::default()));
    }
    for (broken, kind) in [
        ("{", FaultKind::ParseError),
        ("{} {}", FaultKind::ParseError),
        (r#"{"message":{},"message":{}}"#, FaultKind::InvalidRequest),
    ] {
        assert_eq!(refs(broken, Method::SendMessage).unwrap_err().kind, kind);
    }
    assert!(Refs::from_rest_body(b"{\"a\":\"\xff\"}", Method::GetTask).is_err());
}

#[test]
fn the_context_of_a_call_is_the_first_one_that_is_a_string() {
    let of = |body: &str, completion: &Completion<'_>| refs(body, completion).context;
    for message in [
        r#"{"contextId":"c","parts":[]}"#,
        r#"{"context_id":"c"}"#,
        r#"{"ContextId":"c"}"#,
        r#"{"contextId":7,"context_id":"c"}"#,
        r#"{"contextId":"","context_id":"c"}"#,
        r#"{"contextId":"c","context_id":"d"}"#,
        r#"{"contextId":"c"}"#,
    ] {
        for method in ["message/send", "message/stream", "SendMessage"] {
            let body = rpc(method, &format!(r#"{{"message":{message}}}"#));
            assert_eq!(of(&body, &OFF).as_deref(), Some("c"), "{body}");
        }
    }
    let list = rpc("ListTasks", r#"{"contextId":"c"}"#);
    assert_eq!(of(&list, &OFF).as_deref(), Some("c"));
    let longest = |len: usize| json!({"message": {"contextId": "x".repeat(len)}}).to_string();
    assert_eq!(
        of(&rpc("message/send", &longest(256)), &OFF).map(|context| context.len()),
        Some(256)
    );
    for none in [
        longest(257),
        r#"{"message":{"metadata":{"contextId":"c"},"parts":[{"contextId":"c"}]}}"#.to_owned(),
        r#"{"configuration":{"contextId":"c"}}"#.to_owned(),
    ] {
        assert_eq!(of(&rpc("message/send", &none), &OFF), None, "{none}");
    }
    let rest = Refs::from_rest_body(br#"{"message":{"contextId":"c"}}"#, Method::SendMessage);
    assert_eq!(rest.unwrap().context.as_deref(), Some("c"));
}
