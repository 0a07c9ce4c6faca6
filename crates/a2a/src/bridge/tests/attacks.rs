//! What an attacker found: names and paths that the checks before the translation, or the agent behind it, read in
//! another way.

use super::*;
use Method::{CreatePushConfig, GetTask, ListTasks, SendMessage, SendStreamingMessage};

/// Spellings of a member that are neither its name nor that in snake case.
fn spellings(name: &str) -> [String; 6] {
    let long = "_".repeat(50);
    [
        format!("_{name}"),
        format!("{name}_"),
        format!("{name}{long}"),
        format!("{long}{name}"),
        format!("{}_{}", &name[..1], &name[1..]),
        format!("{name}__"),
    ]
}

#[test]
fn only_a_name_and_its_snake_case_name_a_member() {
    for name in spellings("id") {
        for bridge in [UP, DOWN] {
            let sent = params(&bridge, GetTask, &format!(r#"{{"{name}":"T-A"}}"#));
            assert_eq!(sent, "{}", "{name}");
            // Nor does another one stand twice because of it.
            let sent = params(&bridge, GetTask, &format!(r#"{{"id":"T","{name}":"x"}}"#));
            assert_eq!(sent, r#"{"id":"T"}"#, "{name}");
        }
    }
    for name in spellings("taskId").into_iter().chain(spellings("metadata")) {
        let message = format!(
            r#"{{"messageId":"m","role":"user","parts":[],"{name}":{{"source_workspace_id":"x"}}}}"#
        );
        let sent = params(&UP, SendMessage, &format!(r#"{{"message":{message}}}"#));
        assert!(!sent.contains("source_workspace_id"), "{sent}");
    }
    let sent = params(
        &UP,
        SendMessage,
        r#"{"message":{"message_id":"m","role":"user","parts":[],"task_id":"t","reference_task_ids":["r"]}}"#,
    );
    assert!(
        sent.contains(r#""taskId":"t""#) && sent.contains(r#""referenceTaskIds":["r"]"#),
        "{sent}"
    );
}

#[test]
fn private_members_of_an_agent_take_the_place_of_no_other() {
    let task = r#"{"kind":"task","id":"t1","_id":"66f0","contextId":"c","status":{"state":"working"},
        "history":[{"kind":"message","messageId":"m","_messageId":"z","role":"agent","parts":[{"kind":"text","text":"real","_text":"priv"}]}]}"#;
    let told = result(&DOWN, GetTask, task);
    assert!(
        told.contains(r#""id":"t1""#) && told.contains("real"),
        "{told}"
    );
    assert!(
        !told.contains("66f0") && !told.contains("priv") && !told.contains('z'),
        "{told}"
    );
}

#[test]
fn a_push_configuration_has_the_url_and_the_task_that_were_checked() {
    let within = bridge(V0, V0_REST);
    for name in spellings("url") {
        let config = format!(
            r#"{{"taskId":"t","pushNotificationConfig":{{"url":"http://a","{name}":"http://169.254.169.254/"}}}}"#
        );
        let (sent, _) = request(&within, CreatePushConfig, &config).unwrap();
        assert!(
            !String::from_utf8(sent.body).unwrap().contains("169.254"),
            "{name}"
        );
    }
    let encoded = r#"{"taskId":"mine","pushNotificationConfig":{"name":"tasks/T%2DA/pushNotificationConfigs/c","url":"http://a"}}"#;
    assert_eq!(
        request(&within, CreatePushConfig, encoded).unwrap_err(),
        Failure::Params("name")
    );
}

#[test]
fn a_tenant_is_no_step_in_a_path() {
    for tenant in [".", "..", "a/b", "tasks"] {
        let bridge = Bridge {
            tenant: Some(tenant),
            ..bridge(V0, V1_REST)
        };
        let sent = request(
            &bridge,
            SendMessage,
            r#"{"message":{"messageId":"m","role":"user","parts":[]}}"#,
        );
        assert_eq!(sent.unwrap_err().code(), -32_006, "{tenant}");
    }
    let acme = Bridge {
        tenant: Some("acme"),
        ..bridge(V1_REST, V1)
    };
    for (query, expected) in [
        (None, r#"{"tenant":"acme"}"#),
        (Some("pageSize=5"), r#"{"tenant":"acme","pageSize":5}"#),
    ] {
        let call = Call::Rest {
            tail: "tasks",
            query,
            body: b"",
        };
        let (sent, _) = acme.translate_request(ListTasks, call).unwrap();
        let body: Value = serde_json::from_slice(&sent.body).unwrap();
        assert_eq!(
            body["params"],
            serde_json::from_str::<Value>(expected).unwrap()
        );
    }
}

#[test]
fn an_error_status_lets_no_answer_of_the_other_generation_pass() {
    let good = r#"{"jsonrpc":"2.0","id":7,"result":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}"#;
    let bare = r#"{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}"#;
    for body in [
        format!("{good}x"),
        format!("\u{feff}{good}x"),
        format!("[{good}]"),
        good.replace(r#""id":7"#, r#""id":7,"id":7"#),
        bare.to_owned(),
    ] {
        let told = exchange(&UP, GetTask).translate_answer(400, body.as_bytes());
        let hidden = told.as_ref().map_or(true, |told| {
            !String::from_utf8_lossy(&told.body).contains("TASK_STATE")
        });
        assert!(hidden, "{body}: {told:?}");
    }
    // A result is no error.
    assert_eq!(
        exchange(&UP, GetTask)
            .translate_answer(500, good.as_bytes())
            .unwrap()
            .status,
        200
    );
    // What a proxy or a framework says passes.
    for body in ["<html>no</html>", r#"{"detail":"Not authenticated"}"#] {
        let told = exchange(&UP, GetTask)
            .translate_answer(401, body.as_bytes())
            .unwrap();
        assert_eq!((told.status, told.body), (401, body.as_bytes().to_vec()));
    }
}

#[test]
fn a_made_up_task_has_the_envelope_of_a_call_without_an_id() {
    let body = br#"{"jsonrpc":"2.0","id":null,"method":"SendStreamingMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[]}}}"#;
    let (_, exchange) = DOWN
        .translate_request(SendStreamingMessage, Call::Rpc(body))
        .unwrap();
    let update = r#"{"jsonrpc":"2.0","id":null,"result":{"kind":"status-update","taskId":"t","contextId":"c","status":{"state":"working"},"final":false}}"#;
    let (written, _) = block(&mut exchange.start_stream(), &format!("data: {update}\n\n")).unwrap();
    assert!(
        written.starts_with(r#"data: {"jsonrpc":"2.0","id":null,"result":{"task":"#),
        "{written}"
    );
}

#[test]
fn a_text_that_is_not_utf_8_is_no_answer() {
    let body = b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"id\":\"\xff\"}}";
    assert_eq!(
        exchange(&UP, GetTask)
            .translate_answer(200, body)
            .unwrap_err()
            .code(),
        -32_006
    );
    // The page of a proxy passes in any encoding.
    let page = b"<html>Zugriff verweigert f\xfcr Sie</html>";
    let told = exchange(&UP, GetTask).translate_answer(403, page).unwrap();
    assert_eq!((told.status, &*told.body), (403, &page[..]));
    let event = b"data: {\"result\":\"\xff\"}\n\n";
    let mut stream = exchange(&UP, SendStreamingMessage).start_stream();
    assert_eq!(
        stream
            .translate_block(event, &mut Vec::new())
            .unwrap_err()
            .code(),
        -32_006
    );
}
