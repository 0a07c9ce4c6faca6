//! Answers: results in each shape, states, times, the order of members.

use super::*;
use crate::state::TaskState;

use Method::*;

#[test]
fn a_result_is_wrapped_and_unwrapped() {
    let message_v0 = r#"{"kind":"message","messageId":"m","role":"agent","parts":[]}"#;
    let message_v1 = r#"{"messageId":"m","role":"ROLE_AGENT","parts":[]}"#;
    let task_v0 = r#"{"kind":"task","id":"t","contextId":"c","status":{"state":"completed"}}"#;
    let task_v1 = r#"{"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}"#;
    for (v0, v1, name) in [
        (message_v0, message_v1, "message"),
        (task_v0, task_v1, "task"),
    ] {
        let wrapped = format!(r#"{{"{name}":{v1}}}"#);
        assert_eq!(result(&DOWN, SendMessage, v0), wrapped);
        assert_eq!(result(&UP, SendMessage, &wrapped), v0);
    }
    for method in [GetTask, CancelTask] {
        assert_eq!(result(&DOWN, method, task_v0), task_v1);
        assert_eq!(result(&UP, method, task_v1), task_v0);
    }
    // Some servers of 1.0 do not wrap a task.
    assert_eq!(result(&UP, SendMessage, task_v1), task_v0);
}

#[test]
fn a_result_is_read_as_what_it_is_whatever_the_card_says() {
    let file_v0 = r#"[{"kind":"file","file":{"bytes":"aGk=","mimeType":"a/b"}}]"#;
    let file_v1 = r#"[{"raw":"aGk=","mediaType":"a/b"}]"#;
    let message_v0 =
        format!(r#"{{"kind":"message","messageId":"m","role":"agent","parts":{file_v0}}}"#);
    let message_v1 = format!(r#"{{"messageId":"m","role":"ROLE_AGENT","parts":{file_v1}}}"#);
    let task_v0 = format!(
        r#"{{"kind":"task","id":"t","contextId":"c","status":{{"state":"completed"}},"artifacts":[{{"artifactId":"a","parts":{file_v0}}}]}}"#
    );
    let task_v1 = format!(
        r#"{{"id":"t","contextId":"c","status":{{"state":"TASK_STATE_COMPLETED"}},"artifacts":[{{"artifactId":"a","parts":{file_v1}}}]}}"#
    );
    for (v0, v1, name) in [
        (&message_v0, &message_v1, "message"),
        (&task_v0, &task_v1, "task"),
    ] {
        let wrapped = format!(r#"{{"{name}":{v1}}}"#);
        // The agent's card says the other generation than its answer: the caller's own.
        assert_eq!(result(&UP, SendMessage, v0), *v0);
        assert_eq!(result(&DOWN, SendMessage, &wrapped), wrapped);
    }
    for method in [GetTask, CancelTask] {
        assert_eq!(result(&UP, method, &task_v0), task_v0);
        assert_eq!(result(&DOWN, method, &task_v1), task_v1);
    }
}

#[test]
fn a_result_has_status_200_whatever_the_agents_is() {
    let params = r#"{"taskId":"t","id":"c"}"#;
    let (_, exchange) = request(&bridge(V1, V1_REST), DeletePushConfig, params).unwrap();
    let answer = exchange.translate_answer(204, b"").unwrap();
    assert_eq!((answer.status, answer.is_error), (200, false));
    let expected = r#"{"jsonrpc":"2.0","id":7,"result":{}}"#;
    assert_eq!(String::from_utf8(answer.body).unwrap(), expected);
    let task = br#"{"task":{"id":"t","status":{"state":"TASK_STATE_WORKING"}}}"#;
    for caller in [V0, V1] {
        let exchange = super::exchange(&bridge(caller, V1_REST), SendMessage);
        assert_eq!(exchange.translate_answer(201, task).unwrap().status, 200);
    }
}

#[test]
fn the_kind_may_come_last_or_be_missing() {
    let megabytes = "x".repeat(5 << 20);
    let artifacts =
        format!(r#"[{{"artifactId":"a","parts":[{{"kind":"text","text":"{megabytes}"}}]}}]"#);
    let said = format!(
        r#"{{"artifacts":{artifacts},"contextId":"c","history":[],"id":"t","\u006bind":"task","status":{{"state":"working"}}}}"#
    );
    let expected = format!(
        r#"{{"task":{{"artifacts":[{{"artifactId":"a","parts":[{{"text":"{megabytes}"}}]}}],"contextId":"c","history":[],"id":"t","status":{{"state":"TASK_STATE_WORKING"}}}}}}"#
    );
    assert!(result(&DOWN, SendMessage, &said) == expected);
    for (said, kind) in [
        (r#"{"messageId":"m","id":"x","parts":[]}"#, "message"),
        (r#"{"role":"agent","parts":[]}"#, "message"),
        (r#"{"id":"t","status":{}}"#, "task"),
        (r#"{"taskId":"t","final":false,"id":"x"}"#, "statusUpdate"),
        (r#"{"taskId":"t","status":{}}"#, "statusUpdate"),
        (r#"{"taskId":"t","artifact":{}}"#, "artifactUpdate"),
    ] {
        let mut stream = exchange(&DOWN, SendStreamingMessage).start_stream();
        let event = format!("data: {{\"result\":{said}}}\n\n");
        let (written, told) = block(&mut stream, &event).unwrap();
        assert!(
            written.contains(&format!(r#"{{"result":{{"{kind}":"#)),
            "{written}"
        );
        assert!(told.kind.is_some());
    }
    // Members of another kind have no place in it.
    let (said, left) = answered(
        &DOWN,
        SendMessage,
        r#"{"role":"user","id":"t","status":{},"kind":"task"}"#,
    )
    .unwrap();
    assert_eq!(said, r#"{"task":{"id":"t","status":{}}}"#);
    assert_eq!(left.iter().collect::<Vec<_>>(), [("task", "other", 1)]);
}

#[test]
fn of_a_member_that_stands_twice_in_an_answer_the_last_counts() {
    for (said, expected) in [
        (
            r#"{"id":"a","status":{"state":"failed"},"id":"b","status":{"state":"working"},"kind":"task"}"#,
            r#"{"task":{"id":"b","status":{"state":"TASK_STATE_WORKING"}}}"#,
        ),
        (
            r#"{"id":"a","contextId":"c","id":null,"kind":"message","kind":"task"}"#,
            r#"{"task":{"contextId":"c"}}"#,
        ),
    ] {
        assert_eq!(result(&DOWN, SendMessage, said), expected);
    }
    let said = r#"{"task":{"id":"a"},"task":{"id":"b","id":"c"}}"#;
    let expected = r#"{"kind":"task","id":"c","contextId":"","status":{"state":"unknown"}}"#;
    assert_eq!(result(&UP, SendMessage, said), expected);
    let body = br#"{"id":7,"result":{"message":{}},"result":{"task":{"id":"t"}},"id":8}"#;
    let answer = exchange(&UP, SendMessage)
        .translate_answer(200, body)
        .unwrap();
    assert_eq!(json(answer.body)["result"]["id"], "t");
}

#[test]
fn each_state_has_its_word() {
    let words = TaskState::ALL.map(|state| (state.as_str(), state.as_v1_str()));
    for (v0, v1) in words
        .into_iter()
        .chain([("unknown", "TASK_STATE_UNSPECIFIED")])
    {
        let task_v0 =
            format!(r#"{{"kind":"task","id":"t","contextId":"c","status":{{"state":"{v0}"}}}}"#);
        let task_v1 = format!(r#"{{"id":"t","contextId":"c","status":{{"state":"{v1}"}}}}"#);
        assert_eq!(result(&DOWN, GetTask, &task_v0), task_v1);
        assert_eq!(result(&UP, GetTask, &task_v1), task_v0);
    }
    let state = |bridge, state: &str| {
        let said = result(
            bridge,
            GetTask,
            &format!(r#"{{"status":{{"state":{state}}}}}"#),
        );
        json(said)["status"]["state"].as_str().unwrap().to_owned()
    };
    for (said, expected) in [
        ("3", "completed"),
        ("8", "auth-required"),
        ("0", "unknown"),
        ("99", "unknown"),
        (r#""TASK_STATE_CANCELLED""#, "canceled"),
        (r#""TASK_STATE_PAUSED""#, "unknown"),
        ("null", "unknown"),
        ("{}", "unknown"),
    ] {
        assert_eq!(state(&UP, said), expected, "{said}");
    }
    assert_eq!(state(&DOWN, r#""paused""#), "TASK_STATE_UNSPECIFIED");
    assert_eq!(
        state(&DOWN, r#""input\u002drequired""#),
        "TASK_STATE_INPUT_REQUIRED"
    );
    assert_eq!(
        result(&UP, GetTask, r#"{"status":{}}"#),
        r#"{"kind":"task","status":{"state":"unknown"},"id":"","contextId":""}"#
    );
    // Spelled otherwise it is read, and counted as what is not read.
    for (said, expected, counted) in [
        ("working", "TASK_STATE_WORKING", 0),
        ("3", "TASK_STATE_COMPLETED", 0),
        ("input_required", "TASK_STATE_INPUT_REQUIRED", 1),
        ("COMPLETED", "TASK_STATE_COMPLETED", 1),
        ("paused", "TASK_STATE_UNSPECIFIED", 1),
    ] {
        let sent = format!(r#"{{"status":{{"state":"{said}"}}}}"#);
        let (told, left) = answered(&DOWN, GetTask, &sent).unwrap();
        assert_eq!(json(told)["status"]["state"], expected, "{said}");
        assert_eq!(left.total(), counted, "{said}");
    }
}

#[test]
fn a_time_is_normalised_up_and_kept_down() {
    let time = |bridge: &Bridge<'_>, time: &str| {
        let said = result(
            bridge,
            GetTask,
            &format!(r#"{{"status":{{"timestamp":{time}}}}}"#),
        );
        json(said)["status"].get("timestamp").cloned()
    };
    for (said, expected) in [
        (
            r#""2026-08-18T10:00:00.123456+00:00""#,
            Some("2026-08-18T10:00:00.123456Z"),
        ),
        (
            r#""2026-08-18T10:00:00+02:00""#,
            Some("2026-08-18T08:00:00Z"),
        ),
        (r#""2026-08-18T10:00:00""#, Some("2026-08-18T10:00:00Z")),
        (r#""noon""#, None),
        ("7", None),
    ] {
        assert_eq!(time(&DOWN, said), expected.map(Into::into), "{said}");
    }
    let odd = r#""2026-08-18T10:00:00+02:00""#;
    assert_eq!(time(&UP, odd), Some("2026-08-18T10:00:00+02:00".into()));
}

#[test]
fn an_answer_that_is_none_is_the_agents_fault() {
    for (bridge, method, body) in [
        (DOWN, SendMessage, r#"{"id":7,"result":{"kind":"answer"}}"#),
        (
            DOWN,
            SendMessage,
            r#"{"id":7,"result":{"kind":"status-update","taskId":"t"}}"#,
        ),
        (DOWN, SendMessage, r#"{"id":7,"result":"done"}"#),
        (DOWN, SendMessage, r#"{"id":7,"result":null}"#),
        (DOWN, SendMessage, r#"{"id":7}"#),
        (DOWN, SendMessage, "[]"),
        (DOWN, SendMessage, "<html>"),
        (DOWN, SendMessage, r#"{"result":{"kind":"task"}} x"#),
        (DOWN, GetTask, r#"{"result":[]}"#),
        (UP, SendMessage, r#"{"result":{"other":{}}}"#),
        (UP, SendMessage, r#"{"result":{"statusUpdate":{}}}"#),
        (UP, GetTask, r#"{"result":{"status":"done"}}"#),
    ] {
        let failure = exchange(&bridge, method)
            .translate_answer(200, body.as_bytes())
            .unwrap_err();
        assert_eq!(failure.code(), -32_006, "{body}");
        assert!(failure.is_of_agent());
        let refused = failure_answer(&exchange(&bridge, method), &failure);
        let refused = json(refused.body);
        assert_eq!(
            (&refused["id"], &refused["error"]["code"]),
            (&7.into(), &(-32_006).into())
        );
    }
    // What is of a proxy has no generation.
    let answer = exchange(&DOWN, SendMessage)
        .translate_answer(502, b"<html>")
        .unwrap();
    assert_eq!(
        (answer.status, answer.content_type, &*answer.body),
        (502, None, &b"<html>"[..])
    );
}

#[test]
fn a_result_does_not_outgrow_its_text() {
    let parts = vec![r#"{"data":1}"#; 200_000].join(",");
    let said = format!(r#"{{"task":{{"id":"t","artifacts":[{{"parts":[{parts}]}}]}}}}"#);
    let failure = answered(&UP, SendMessage, &said).unwrap_err();
    assert_eq!(
        failure,
        Failure::Answer("it is too long in the other generation")
    );
    let few = vec![r#"{"data":1}"#; 2_000].join(",");
    let said = format!(r#"{{"task":{{"id":"t","artifacts":[{{"parts":[{few}]}}]}}}}"#);
    assert_eq!(
        json(result(&UP, SendMessage, &said))["artifacts"][0]["parts"]
            .as_array()
            .unwrap()
            .len(),
        2_000
    );
}
