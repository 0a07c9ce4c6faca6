//! Bindings: answers and events between HTTP+JSON and JSON-RPC, and push configurations in each form.

use super::*;

use Method::*;

#[test]
fn answers_get_and_lose_their_envelope() {
    let task_v1 = r#"{"id":"t","contextId":"c","status":{"state":"TASK_STATE_CANCELED"}}"#;
    let task_v0 = r#"{"kind":"task","id":"t","contextId":"c","status":{"state":"canceled"}}"#;
    let task_rest = r#"{"id":"t","contextId":"c","status":{"state":"TASK_STATE_CANCELLED"}}"#;
    let sides = [
        (V0, task_v0),
        (V1, task_v1),
        (V0_REST, task_rest),
        (V1_REST, task_v1),
    ];
    for (caller, expected) in sides {
        for (agent, said) in sides {
            if caller == agent {
                continue;
            }
            let exchange = Exchange {
                caller,
                agent,
                method: CancelTask,
                id: Some("7".into()),
                without_history: false,
                files: FileBytes::Once,
                error_alone: false,
            };
            let enveloped =
                |result: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#);
            let on = |side: Side, result: &str| match side.is_rpc() {
                true => enveloped(result),
                false => result.to_owned(),
            };
            let answer = exchange
                .translate_answer(200, on(agent, said).as_bytes())
                .unwrap();
            let written = String::from_utf8(answer.body).unwrap();
            assert_eq!(written, on(caller, expected), "{caller:?} {agent:?}");
            assert_eq!(answer.status, 200);
            // As the result of a send, and as an event.
            let wrap = |side, task: &str| match side {
                V0 => task.to_owned(),
                _ => format!(r#"{{"task":{task}}}"#),
            };
            let stream = Exchange {
                method: SendStreamingMessage,
                ..exchange
            };
            let event = |side, task| format!("data: {}\n\n", on(side, &wrap(side, task)));
            let (written, _) = block(&mut stream.start_stream(), &event(agent, said)).unwrap();
            assert_eq!(written, event(caller, expected), "{caller:?} {agent:?}");
        }
    }
}

#[test]
fn an_error_in_a_stream_has_the_form_of_its_binding() {
    let exchange = |caller, agent| Exchange {
        caller,
        agent,
        method: SendStreamingMessage,
        id: Some("7".into()),
        without_history: false,
        files: FileBytes::Once,
        error_alone: false,
    };
    let rpc =
        "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{\"code\":-32001,\"message\":\"no\"}}\n\n";
    let (written, told) = block(&mut exchange(V1_REST, V0).start_stream(), rpc).unwrap();
    assert!(told.is_error);
    let data = written.strip_prefix("event: error\ndata: ").unwrap();
    assert_eq!(json(data)["error"]["status"], "NOT_FOUND");
    let (back, told) = block(&mut exchange(V0, V1_REST).start_stream(), &written).unwrap();
    assert!(told.is_error);
    let data = json(back.strip_prefix("event: error\ndata: ").unwrap());
    assert_eq!(
        (&data["id"], &data["error"]["code"]),
        (&7.into(), &(-32_001).into())
    );
    let old = "event: error\ndata: {\"code\":-32004,\"message\":\"no\"}\n\n";
    for caller in [V0, V1, V1_REST] {
        let (written, told) = block(&mut exchange(caller, V0_REST).start_stream(), old).unwrap();
        assert!(told.is_error && written.starts_with("event: error\ndata: {"));
        let said = json(written.strip_prefix("event: error\ndata: ").unwrap());
        let code = if caller.is_rpc() {
            &said["error"]["code"]
        } else {
            &said["code"]
        };
        assert_eq!(*code, -32_004, "{said}");
    }
    let lead = r#"{"kind":"status-update","taskId":"t","status":{"state":"working"}}"#;
    let lead = format!("data: {{\"id\":7,\"result\":{lead}}}\n\n");
    let (written, _) = block(&mut exchange(V1_REST, V0).start_stream(), &lead).unwrap();
    assert!(written.starts_with("data: {\"task\":{\"id\":\"t\",\"status\":{\"state\":\"TASK_STATE_WORKING\"}}}\n\ndata: {\"statusUpdate\":"));
    let failure = Failure::Answer("x");
    let exchange = exchange(V1_REST, V0);
    let error = failure_text(&exchange, &failure);
    let last = exchange
        .start_stream()
        .error_event(&error, crate::event::Framing::Lf);
    assert!(last.starts_with(b"event: error\ndata: {\"error\":{"));
}

#[test]
fn push_configurations_are_translated_within_0_3_and_have_all_their_forms() {
    let exchange = |caller, agent, method| Exchange {
        caller,
        agent,
        method,
        id: Some("7".into()),
        without_history: false,
        files: FileBytes::Once,
        error_alone: false,
    };
    let body = |exchange: Exchange, body: &str| {
        let answer = exchange.translate_answer(200, body.as_bytes()).unwrap();
        (
            String::from_utf8(answer.body).unwrap(),
            answer.left_out.total(),
        )
    };
    let v0 = r#"{"taskId":"t","pushNotificationConfig":{"id":"c","url":"u","token":"k","authentication":{"schemes":["Bearer"],"credentials":"x"}}}"#;
    let v1 = r#"{"taskId":"t","id":"c","url":"u","token":"k","authentication":{"scheme":"Bearer","credentials":"x"}}"#;
    let rest = r#"{"name":"tasks/t/pushNotificationConfigs/c","pushNotificationConfig":{"id":"c","url":"u","token":"k","authentication":{"schemes":["Bearer"],"credentials":"x"}}}"#;
    let enveloped = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#);
    let sides = [(V0, v0), (V1, v1), (V0_REST, rest), (V1_REST, v1)];
    for (caller, expected) in sides {
        for (agent, said) in sides {
            let on = |side: Side, text: &str| {
                if side.is_rpc() {
                    enveloped(text)
                } else {
                    text.to_owned()
                }
            };
            let list = |side: Side, text: &str| match side {
                V0 => on(side, &format!("[{text},{text}]")),
                _ => on(side, &format!(r#"{{"configs":[{text},{text}]}}"#)),
            };
            if caller == agent {
                continue;
            }
            let got = body(exchange(caller, agent, GetPushConfig), &on(agent, said));
            assert_eq!(got, (on(caller, expected), 0));
            let got = body(exchange(caller, agent, ListPushConfigs), &list(agent, said));
            assert_eq!(got, (list(caller, expected), 0));
        }
    }
    let list = format!(
        r#"{{"nextPageToken":"","configs":[{}]}}"#,
        vec![v1; 120].join(",")
    );
    let got = body(exchange(V0, V1, ListPushConfigs), &enveloped(&list)).0;
    assert_eq!(json(got)["result"].as_array().unwrap().len(), 120);
    assert_eq!(
        body(exchange(V0, V1, ListPushConfigs), &enveloped("{}")).0,
        enveloped("[]")
    );
    let two = v0.replace(r#"["Bearer"]"#, r#"["Bearer","Basic"]"#);
    assert_eq!(
        body(exchange(V1, V0, GetPushConfig), &enveloped(&two)),
        (enveloped(v1), 1)
    );
    let bare = r#"{"taskId":"t","pushNotificationConfig":{"authentication":{}}}"#;
    let got = body(exchange(V1, V0, GetPushConfig), &enveloped(bare)).0;
    assert_eq!(got, enveloped(r#"{"taskId":"t","authentication":{}}"#));
    let got = body(
        exchange(V0, V1, GetPushConfig),
        &enveloped(r#"{"taskId":"t","tenant":"a","authentication":{}}"#),
    );
    let expected =
        r#"{"taskId":"t","pushNotificationConfig":{"url":"","authentication":{"schemes":[]}}}"#;
    assert_eq!(got, (enveloped(expected), 1));
}

#[test]
fn a_deletion_is_answered_without_a_result_or_with_any() {
    let exchange = |caller, agent| Exchange {
        caller,
        agent,
        method: DeletePushConfig,
        id: Some("7".into()),
        without_history: false,
        files: FileBytes::Once,
        error_alone: false,
    };
    let of = |exchange: Exchange, body: &str| {
        String::from_utf8(
            exchange
                .translate_answer(200, body.as_bytes())
                .unwrap()
                .body,
        )
        .unwrap()
    };
    for result in ["", r#","result":null"#, r#","result":{}"#] {
        let said = format!(r#"{{"jsonrpc":"2.0","id":7{result}}}"#);
        assert_eq!(
            of(exchange(V0, V1), &said),
            r#"{"jsonrpc":"2.0","id":7,"result":null}"#
        );
        assert_eq!(
            of(exchange(V1, V0), &said),
            r#"{"jsonrpc":"2.0","id":7,"result":{}}"#
        );
        assert_eq!(of(exchange(V1_REST, V1), &said), "{}");
    }
    assert_eq!(
        of(exchange(V0, V0_REST), ""),
        r#"{"jsonrpc":"2.0","id":7,"result":null}"#
    );
    assert_eq!(
        of(exchange(V1, V1_REST), " {}"),
        r#"{"jsonrpc":"2.0","id":7,"result":{}}"#
    );
}
