//! Every row of the body rules, through real HTTP, against an agent that records exact bytes.
//! `<new>` in an expectation stands for any UUID that the gateway made.

use serde_json::json;

use crate::harness::{
    ADMIN, Agent, Answer, CALL, Connection, Gateway, Pair, Request, Seat, card, card_1_0,
};

mod sizes;

struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
}

impl Case {
    async fn new() -> Self {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
        let (caller, target) = gateway.pair(agent).await;
        Self {
            gateway,
            caller,
            target,
        }
    }

    async fn send(&self, body: impl AsRef<[u8]>) -> Answer {
        let request = Request::post(self.target.path(), body).bearer(&self.caller.token);
        self.gateway.call(&request).await
    }

    /// Sends `body`; the agent must see `expected`, and the answer must name what was done.
    async fn becomes(&self, body: &str, expected: &str, completed: &str) {
        let answer = self.send(body).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        let arrived = self.target.agent.take();
        assert_eq!(mask(arrived.text(), expected), expected, "for {body}");
        assert_eq!(
            answer.field("x-a2a-completed").unwrap_or_default(),
            completed,
            "for {body}"
        );
        let length = arrived.field("content-length").expect("an exact length");
        assert_eq!(length, arrived.body.len().to_string());
    }

    async fn passes(&self, body: &str) {
        self.becomes(body, body, "").await;
    }

    /// Sends `body`; it must be refused and never reach the agent.
    async fn refused(&self, body: impl AsRef<[u8]>, status: u16, reason: &str) -> Answer {
        let body = body.as_ref();
        let answer = self.send(body).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (status, reason),
            "for {shown}"
        );
        assert_eq!(self.target.agent.count(), 0, "{shown} reached the agent");
        answer
    }
}

/// Replaces UUIDs in `text` by `<new>` where `expected` has that.
fn mask(text: &str, expected: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    let mut pattern = expected;
    while let Some(at) = pattern.find("<new>") {
        let (before, after) = (at, at + "<new>".len());
        if rest.len() < before + 36 || uuid::Uuid::parse_str(&rest[before..before + 36]).is_err() {
            break;
        }
        out.push_str(&rest[..before]);
        out.push_str("<new>");
        rest = &rest[before + 36..];
        pattern = &pattern[after..];
    }
    out + rest
}

#[tokio::test]
async fn a_well_formed_call_arrives_byte_for_byte() {
    let case = Case::new().await;
    for body in [
        CALL,
        r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t"}}"#,
        "{ \"jsonrpc\" : \"2.0\",\n\t\"id\" : 1.0e2, \"method\":\"x/unknown\", \"params\": [1e400, -0, 1.10] }\n",
        r#"{"jsonrpc":"2.0","method":"message/send","params":{"message":{"messageId":"\ud800\u0000","role":"user","parts":[]}}}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"message/send"}"#,
        r#"{"jsonrpc":null,"id":true}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"message/send","params":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":5,"role":"user","parts":[]}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":"text"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"m","role":"user","parts":[],"metadata":{"a":1,"a":2}}}}"#,
    ] {
        case.passes(body).await;
    }
}

#[tokio::test]
async fn bare_bodies_become_calls() {
    let case = Case::new().await;
    let message = r#"{"messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}"#;
    let rows = [
        (
            format!(r#"{{"method":"message/send","params":{{"message":{message}}}}}"#),
            vec![("method", json!("message/send")), ("jsonrpc", json!("2.0"))],
        ),
        (
            format!(r#"{{"method":"message/send","id":7,"params":{{"message":{message}}}}}"#),
            vec![("id", json!(7))],
        ),
        (
            r#"{"method":"tasks/get","id":"q","params":{"id":"t"}}"#.to_owned(),
            vec![("id", json!("q")), ("method", json!("tasks/get"))],
        ),
        (
            format!(r#"{{"params":{{"message":{message}}}}}"#),
            vec![("method", json!("message/send"))],
        ),
        (
            format!(
                r#"{{"message":{message},"run_id":"r-1","metadata":{{"k":1.10}},"configuration":{{"blocking":true}}}}"#
            ),
            vec![("method", json!("message/send"))],
        ),
        (message.to_owned(), vec![("method", json!("message/send"))]),
        (
            r#"{"text":"hi"}"#.to_owned(),
            vec![("method", json!("message/send"))],
        ),
    ];
    for (body, expected) in rows {
        let answer = case.send(&body).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        assert!(
            answer
                .field("x-a2a-completed")
                .unwrap_or_default()
                .contains("envelope"),
            "{body}"
        );
        let arrived = case.target.agent.take();
        let call: serde_json::Value = serde_json::from_slice(&arrived.body).expect("JSON");
        assert_eq!(call["jsonrpc"], "2.0", "{body}");
        for (member, value) in expected {
            assert_eq!(call[member], value, "{body} became {call}");
        }
        let id = &call["id"];
        assert!(id.is_number() || id.is_string(), "{body} became {call}");
        if call["method"] == "message/send" {
            let message = &call["params"]["message"];
            assert_eq!(message["role"], "user", "{body} became {call}");
            assert_eq!(
                message["parts"][0],
                json!({"kind": "text", "text": "hi"}),
                "{call}"
            );
            assert!(message["messageId"].is_string(), "{body} became {call}");
        }
        if body.contains("run_id") {
            assert_eq!(call["params"]["metadata"]["run_id"], "r-1", "{call}");
            assert_eq!(
                call["params"]["configuration"],
                json!({"blocking": true}),
                "{call}"
            );
            assert!(
                arrived.text().contains("1.10"),
                "numbers keep their digits: {call}"
            );
        }
        let top: Vec<_> = call.as_object().unwrap().keys().cloned().collect();
        assert!(
            top.iter()
                .all(|k| ["jsonrpc", "id", "method", "params"].contains(&k.as_str())),
            "{call}"
        );
    }
}

#[tokio::test]
async fn accept_decides_which_method_is_inferred() {
    let case = Case::new().await;
    let body = r#"{"message":{"messageId":"m","role":"user","parts":[]}}"#;
    let request = Request::post(case.target.path(), body)
        .bearer(&case.caller.token)
        .field("Accept", "text/event-stream");
    assert_eq!(case.gateway.call(&request).await.status, 200);
    assert!(
        case.target
            .agent
            .take()
            .text()
            .contains(r#""method":"message/stream""#)
    );
}

#[tokio::test]
async fn messages_are_completed() {
    let case = Case::new().await;
    let call = |message: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"message/send","params":{{"message":{message}}}}}"#
        )
    };
    let role = r#""role":"user","parts":[]"#;
    let rows = [
        (
            format!(r#"{{"messageId":null,{role}}}"#),
            format!(r#"{{"messageId":"<new>",{role}}}"#),
        ),
        (
            format!(r#"{{"messageId":"",{role}}}"#),
            format!(r#"{{"messageId":"<new>",{role}}}"#),
        ),
        (
            format!(r#"{{"message_id":"m",{role}}}"#),
            format!(r#"{{"messageId":"m",{role}}}"#),
        ),
    ];
    for (message, expected) in rows {
        case.becomes(&call(&message), &call(&expected), "message-id")
            .await;
    }
    // The same facts, compared as JSON, where the place of an insertion is the gateway's choice.
    let rows = [
        (
            r#"{"role":"user","parts":[]}"#,
            r#"{"messageId":"*","role":"user","parts":[]}"#,
        ),
        (
            r#"{"messageId":"m","message_id":"m","role":"user","parts":[]}"#,
            r#"{"messageId":"m","role":"user","parts":[]}"#,
        ),
        (
            r#"{"messageId":"m","task_id":"t","role":"user","parts":[]}"#,
            r#"{"messageId":"m","role":"user","parts":[],"metadata":{"task_id":"t"}}"#,
        ),
        (
            r#"{"messageId":"m","role":"user","content":"hi"}"#,
            r#"{"messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}"#,
        ),
        (
            r#"{"messageId":"m","role":"user","content":{"kind":"text","text":"hi"}}"#,
            r#"{"messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}"#,
        ),
        (
            r#"{"messageId":"m","role":"user","content":[{"kind":"text","text":"hi"}]}"#,
            r#"{"messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}"#,
        ),
        (
            r#"{"messageId":"m","text":"hi"}"#,
            r#"{"messageId":"m","parts":[{"kind":"text","text":"hi"}],"role":"user"}"#,
        ),
        (
            r#"{"messageId":"m","role":"agent","parts":[{"type":"text","text":"hi"}]}"#,
            r#"{"messageId":"m","role":"agent","parts":[{"kind":"text","text":"hi"}]}"#,
        ),
        (
            r#"{"messageId":"m","role":"user","parts":[{"type":"file","name":"n","uri":"u"}]}"#,
            r#"{"messageId":"m","role":"user","parts":[{"kind":"file","file":{"name":"n","uri":"u"}}]}"#,
        ),
        (
            r#"{"messageId":"m","role":"user","parts":[{"type":"file","name":"n","bytes_data":"AA=="}]}"#,
            r#"{"messageId":"m","role":"user","parts":[{"kind":"file","file":{"name":"n","bytes":"AA=="}}]}"#,
        ),
    ];
    for (message, expected) in rows {
        let answer = case.send(call(message)).await;
        assert_eq!(answer.status, 200, "{message}: {}", answer.text());
        let mut arrived: serde_json::Value =
            serde_json::from_slice(&case.target.agent.take().body).expect("JSON");
        let arrived = &mut arrived["params"]["message"];
        let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
        if expected["messageId"] == "*" {
            assert!(uuid::Uuid::parse_str(arrived["messageId"].as_str().unwrap()).is_ok());
            arrived["messageId"] = json!("*");
        }
        assert_eq!(*arrived, expected, "for {message}");
    }
}

#[tokio::test]
async fn claims_about_caller_and_target_are_checked() {
    let case = Case::new().await;
    let call = |params: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"message/send","params":{{{params}"message":{{"messageId":"m","role":"user","parts":[]}}}}}}"#
        )
    };
    case.becomes(&call(r#""target_agent_id":"target","#), &call(""), "target")
        .await;
    let answer = case
        .refused(call(r#""target_agent_id":"other","#), 400, "invalid_params")
        .await;
    assert_eq!(answer.json()["error"]["code"], -32602);
    assert_eq!(answer.json()["id"], 1);
    let metadata = |id: &str| call(&format!(r#""metadata":{{"source_workspace_id":"{id}"}},"#));
    case.becomes(&metadata("someone"), &metadata("caller"), "source")
        .await;
    case.passes(&metadata("caller")).await;
    let both = r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"a","message_id":"b"}}}"#;
    case.refused(both, 400, "invalid_params").await;
}

#[tokio::test]
async fn a_method_that_no_version_has_is_renamed() {
    let case = Case::new().await;
    let call = |method: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"message":{{"messageId":"m","role":"user","parts":[]}}}}}}"#
        )
    };
    case.becomes(
        &call("message/sendSubscribe"),
        &call("message/stream"),
        "alias",
    )
    .await;
}

#[tokio::test]
async fn a_1_0_target_gets_its_own_dialect() {
    let case = Case::new().await;
    let agent = Agent::json("{}").await;
    let enrolment = case
        .gateway
        .create(json!({"id": "modern", "name": "modern"}))
        .await;
    case.gateway
        .register("modern", &enrolment, &agent.url(), card_1_0("modern"))
        .await;
    let path = "/workspaces/modern/a2a";
    let bare = Request::post(path, r#"{"text":"hi"}"#).bearer(&case.caller.token);
    assert_eq!(case.gateway.call(&bare).await.status, 200);
    let arrived = agent.take();
    let call: serde_json::Value = serde_json::from_slice(&arrived.body).unwrap();
    assert_eq!(call["method"], "SendMessage");
    assert_eq!(call["params"]["message"]["role"], "ROLE_USER");
    assert_eq!(call["params"]["message"]["parts"], json!([{"text": "hi"}]));
    assert_eq!(
        arrived.field("a2a-version"),
        Some("1.0"),
        "the gateway wrapped the call"
    );
    // The version of an envelope that the agent speaks is the caller's to say, and its bytes stay.
    let body = r#"{"jsonrpc":"2.0","id":"1","method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]}}}"#;
    let enveloped = Request::post(path, body).bearer(&case.caller.token);
    assert_eq!(case.gateway.call(&enveloped).await.status, 200);
    let arrived = agent.take();
    assert_eq!(arrived.field("a2a-version"), None);
    assert_eq!(String::from_utf8_lossy(&arrived.body), body);
}

#[tokio::test]
async fn completion_can_be_lowered_for_a_workspace() {
    let case = Case::new().await;
    let incomplete =
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"text":"hi"}}}"#;
    let bare = r#"{"text":"hi"}"#;
    for (mode, touches_bare) in [("bare", true), ("off", false)] {
        let agent = Agent::json("{}").await;
        let enrolment = case
            .gateway
            .create(json!({"id": mode, "name": mode, "complete": mode}))
            .await;
        case.gateway
            .register(mode, &enrolment, &agent.url(), card(mode))
            .await;
        let path = format!("/workspaces/{mode}/a2a");
        let send = |body: &str| {
            let request = Request::post(path.clone(), body).bearer(&case.caller.token);
            let gateway = &case.gateway;
            async move { gateway.call(&request).await }
        };
        assert_eq!(send(incomplete).await.status, 200);
        assert_eq!(agent.take().text(), incomplete, "{mode}");
        assert_eq!(send(bare).await.status, 200);
        assert_eq!(agent.take().text() != bare, touches_bare, "{mode}");
        assert_eq!(send("nonsense").await.reason(), "parse_error");
    }
}

#[tokio::test]
async fn unreadable_bodies_are_refused() {
    let case = Case::new().await;
    for body in [
        &b""[..],
        b"  ",
        b"nonsense",
        b"{",
        br#"{"jsonrpc":"2.0"} x"#,
        br#"{"a":1}{"b":2}"#,
        br#"{"a":NaN}"#,
        br#"{"a":Infinity}"#,
        br#"{"a":01}"#,
        br#"{"a":1,}"#,
        b"{\"a\":\"\xff\"}",
        b"{\"a\":\"\n\"}",
        b"\xff\xfe{\x00}\x00",
        "\u{feff}\u{feff}{}".as_bytes(),
    ] {
        let answer = case.refused(body, 400, "parse_error").await;
        assert_eq!(answer.json()["error"]["code"], -32700);
        assert_eq!(answer.json()["id"], json!(null));
    }
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"params":{}{}}}"#,
        "[".repeat(600),
        "]".repeat(600)
    );
    for body in [
        "null",
        "1",
        r#""text""#,
        "[]",
        &format!("[{CALL}]"),
        "{}",
        r#"{"method":5}"#,
        r#"{"result":{}}"#,
        r#"{"error":{}}"#,
        r#"{"hello":"world"}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"message/send"}"#,
        r#"{"jsonrpc":"2.0","id":1,"\u0069d":2,"method":"message/send"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{},"message":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"a","messageId":"b"}}}"#,
        &deep,
    ] {
        let answer = case.refused(body, 400, "invalid_request").await;
        assert_eq!(answer.json()["error"]["code"], -32600);
    }
}

#[tokio::test]
async fn a_byte_order_mark_is_dropped() {
    let case = Case::new().await;
    case.becomes(&format!("\u{feff}{CALL}"), CALL, "").await;
}

#[tokio::test]
async fn only_json_is_taken() {
    let case = Case::new().await;
    let send = |request: Request| {
        let request = request.bearer(&case.caller.token);
        let gateway = &case.gateway;
        async move { gateway.call(&request).await }
    };
    let plain = || Request::post(case.target.path(), CALL).without("content-type");
    for media in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=utf-16",
    ] {
        let answer = send(plain().field("Content-Type", media)).await;
        answer.refuses(415, "unsupported_media_type");
        assert_eq!(answer.json()["error"]["code"], -32005);
    }
    let answer =
        send(Request::post(case.target.path(), CALL).field("Content-Encoding", "gzip")).await;
    assert_eq!(answer.reason(), "unsupported_media_type");
    let answer = send(plain().field("Sec-Fetch-Site", "same-origin")).await;
    assert_eq!(answer.reason(), "unsupported_media_type");
    assert_eq!(case.target.agent.count(), 0);
    for media in [
        "application/a2a+json",
        "application/vnd.x+json; charset=UTF-8",
    ] {
        assert_eq!(send(plain().field("Content-Type", media)).await.status, 200);
        assert_eq!(case.target.agent.take().field("content-type"), Some(media));
    }
    assert_eq!(send(plain()).await.status, 200);
    assert_eq!(
        case.target.agent.take().field("content-type"),
        Some("application/json")
    );
}
