//! Errors in each generation and binding.

use serde_json::json as made;

use super::*;

/// Returns the error of an answer as the caller gets it.
fn error(bridge: &Bridge<'_>, error: &str) -> Value {
    let body = format!(r#"{{"jsonrpc":"2.0","id":7,"result":null,"error":{error},"x":1}}"#);
    let answer = exchange(bridge, Method::SendMessage)
        .translate_answer(200, body.as_bytes())
        .unwrap();
    assert!(answer.is_error);
    json(answer.body)["error"].clone()
}

const REASONS: [&str; 9] = [
    "TASK_NOT_FOUND",
    "TASK_NOT_CANCELABLE",
    "PUSH_NOTIFICATION_NOT_SUPPORTED",
    "UNSUPPORTED_OPERATION",
    "CONTENT_TYPE_NOT_SUPPORTED",
    "INVALID_AGENT_RESPONSE",
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
    "EXTENSION_SUPPORT_REQUIRED",
    "VERSION_NOT_SUPPORTED",
];

#[test]
fn the_data_of_an_error_is_a_list_in_1_0() {
    let value =
        |data: Value| made!({"@type": "type.googleapis.com/google.protobuf.Value", "value": data});
    for (code, reason) in (-32_009..=-32_001).rev().zip(REASONS) {
        let info = made!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason,
            "domain": "a2a-protocol.org", "metadata": {}});
        for (data, expected) in [
            (String::new(), made!([info])),
            (r#","data":null"#.to_owned(), made!([info])),
            (
                r#","data":"why""#.to_owned(),
                made!([info, value("why".into())]),
            ),
            (
                r#","data":{"a":1}"#.to_owned(),
                made!([info, value(made!({"a": 1}))]),
            ),
            (
                r#","data":[{"@type":"t"}]"#.to_owned(),
                made!([{"@type": "t"}]),
            ),
        ] {
            let said = format!(r#"{{"code":{code},"message":"no"{data}}}"#);
            let expected = made!({"code": code, "message": "no", "data": expected});
            assert_eq!(error(&DOWN, &said), expected, "{said}");
            // 0.3 takes anything.
            let kept = json(said.replace(r#","data":null"#, ""));
            assert_eq!(error(&UP, &said), kept);
        }
    }
    let said = r#"{"code":-32603,"message":"no"}"#;
    assert_eq!(error(&DOWN, said), json(said));
    let said = r#"{"code":-32602,"message":"\u00e4","data":9007199254740993}"#;
    let body = format!(r#"{{"id":7,"error":{said}}}"#);
    let answer = exchange(&DOWN, Method::GetTask)
        .translate_answer(200, body.as_bytes())
        .unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    assert!(
        text.contains(r#""message":"\u00e4","data":[{"@type""#)
            && text.contains("9007199254740993"),
        "{text}"
    );
    assert_eq!(
        error(&DOWN, r#""broken""#),
        made!({"code": -32603, "message": "broken"})
    );
    assert_eq!(
        error(&DOWN, "[1]"),
        made!({"code": -32603, "message": "the agent failed"})
    );
}

#[test]
fn an_error_of_json_rpc_is_one_of_http() {
    for (code, reason) in (-32_009..=-32_001).rev().zip(REASONS) {
        for (caller, agent) in [(V1_REST, V0), (V1_REST, V1), (V0_REST, V1)] {
            let exchange = Exchange {
                caller,
                agent,
                method: Method::GetTask,
                id: Some("1".into()),
                without_history: false,
                files: FileBytes::Once,
                error_alone: false,
            };
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"no"}}}}"#);
            let answer = exchange.translate_answer(200, body.as_bytes()).unwrap();
            let said = json(&answer.body);
            assert_eq!(said["error"]["details"][0]["reason"], reason, "{said}");
            assert_eq!(said["error"]["code"], answer.status);
            assert_eq!(said["code"], code, "for clients of 0.3");
            // And back.
            let back = Exchange {
                caller: V1,
                agent: V1_REST,
                ..exchange
            };
            let back = back.translate_answer(answer.status, &answer.body).unwrap();
            let said = json(back.body);
            assert_eq!((back.status, &said["error"]["code"]), (200, &code.into()));
            assert_eq!(said["error"]["data"][0]["reason"], reason);
        }
    }
}

#[test]
fn an_error_of_http_is_read_in_each_form() {
    let of = |agent, method, status, body: &str| {
        let exchange = Exchange {
            caller: V1,
            agent,
            method,
            id: Some("\"a\"".into()),
            without_history: false,
            files: FileBytes::Once,
            error_alone: false,
        };
        let answer = exchange.translate_answer(status, body.as_bytes()).unwrap();
        let said = json(answer.body);
        assert_eq!(said["id"], "a");
        (
            answer.status,
            said["error"]["code"].as_i64().unwrap(),
            said["error"]["message"].as_str().unwrap().to_owned(),
        )
    };
    use Method::{CancelTask, GetTask, ListTasks};
    for (agent, method, status, body, expected) in [
        (
            V0_REST,
            GetTask,
            404,
            r#"{"message":"gone"}"#,
            (200, -32_001, "gone"),
        ),
        (
            V0_REST,
            GetTask,
            500,
            r#"{"code":-32004,"message":"m","data":"d"}"#,
            (200, -32_004, "m"),
        ),
        (
            V1_REST,
            GetTask,
            400,
            r#"{"title":"Bad","detail":"d","status":400}"#,
            (200, -32_602, "d"),
        ),
        (
            V1_REST,
            ListTasks,
            404,
            "",
            (200, -32_601, "the agent answered with HTTP status 404"),
        ),
        (
            V1_REST,
            CancelTask,
            409,
            "{}",
            (200, -32_002, "the agent answered with HTTP status 409"),
        ),
        (
            V1_REST,
            GetTask,
            401,
            r#"{"error":"who?"}"#,
            (401, -32_603, "the agent answered with HTTP status 401"),
        ),
        (
            V1_REST,
            GetTask,
            503,
            "<html>",
            (503, -32_603, "the agent answered with HTTP status 503"),
        ),
        (
            V1_REST,
            GetTask,
            503,
            r#"{"error":{"code":503,"status":"UNAVAILABLE","message":"later","details":[]}}"#,
            (503, -32_603, "later"),
        ),
    ] {
        let (status, code, message) = of(agent, method, status, body);
        assert_eq!((status, code, message.as_str()), expected, "{body}");
    }
}

#[test]
fn a_refusal_has_the_form_of_its_caller() {
    let failure = Failure::Push {
        agent: Generation::V0,
    };
    let exchange = |caller| Exchange {
        caller,
        agent: V0,
        method: Method::SendMessage,
        id: Some("7".into()),
        without_history: false,
        files: FileBytes::Once,
        error_alone: false,
    };
    let rpc = failure_answer(&exchange(V1), &failure);
    let said = json(rpc.body);
    assert_eq!(
        (rpc.status, &said["error"]["code"]),
        (200, &(-32_003).into())
    );
    assert_eq!(
        said["error"]["data"][0]["reason"],
        "PUSH_NOTIFICATION_NOT_SUPPORTED"
    );
    let rest = failure_answer(&exchange(V1_REST), &failure);
    assert_eq!(
        (rest.status, rest.content_type),
        (400, Some("application/json"))
    );
    let said = json(rest.body);
    assert_eq!(said["error"]["status"], "FAILED_PRECONDITION");
    assert_eq!(said["code"], -32_003);
    let alone = exchange(V1_REST).with_error_alone(true);
    let alone = json(failure_answer(&alone, &failure).body);
    assert_eq!(alone, serde_json::json!({"error": said["error"]}));
    for (caller, code) in [(Generation::V1, -32_009), (Generation::V0, -32_601)] {
        let agent = Generation::V0;
        let failure = Failure::Off { caller, agent };
        assert_eq!(failure.code(), code);
        assert!(failure.to_string().contains("A2A 0.3 only"), "{failure}");
    }
    for failure in [
        Failure::List,
        Failure::NotJson(3),
        Failure::TooDeep,
        Failure::Twice("x"),
    ] {
        assert!(!failure.label().is_empty() && !failure.to_string().is_empty());
    }
}
