//! Every row of the body rules, through real HTTP, against an agent that records exact bytes.
//! `<new>` in an expectation stands for any UUID that the gateway made.

use serde_json::{Value, json};

use crate::answers::merged;
use crate::fields::Case;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Pair, Request, card, card_1_0, chunk, ok_json,
};

mod sizes;

async fn case() -> Case {
    Case::answering(ok_json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)).await
}

impl Case {
    /// A workspace of an agent with this card, for which `more` is set.
    async fn beside(&self, card: Value, more: Value) -> Agent {
        let (id, agent) = (
            card["name"].as_str().unwrap().to_owned(),
            Agent::json("{}").await,
        );
        let enrolment = self
            .gateway
            .create(merged(json!({"id": id, "name": id}), &more))
            .await;
        let url = agent.url();
        self.gateway.register(&id, &enrolment, &url, card).await;
        agent
    }

    /// The answer to a call of `id` with this body.
    async fn sent_to(&self, id: &str, body: &str) -> Answer {
        let request = Request::post(format!("/workspaces/{id}/a2a"), body);
        self.gateway.call(&request.bearer(&self.caller.token)).await
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
        let named = answer.field("x-a2a-completed").unwrap_or_default();
        assert_eq!(named, completed, "for {body}");
        let length = arrived.field("content-length").expect("an exact length");
        assert_eq!(length, arrived.body.len().to_string());
    }

    async fn passes(&self, body: &str) {
        self.becomes(body, body, "").await;
    }

    /// Sends `body`; it must be refused and never reach the agent.
    async fn unsent(&self, body: impl AsRef<[u8]>, status: u16, reason: &str) -> Answer {
        let body = body.as_ref();
        let answer = self.send(body).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        answer.refuses_for(&format!("for {shown}"), status, reason);
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
    let case = case().await;
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
    let case = case().await;
    let message = r#"{"messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}"#;
    for (body, method, own) in [
        (
            r#"{"method":"message/send","params":{"message":MESSAGE}}"#,
            "message/send",
            Value::Null,
        ),
        (
            r#"{"method":"message/send","id":7,"params":{"message":MESSAGE}}"#,
            "message/send",
            json!(7),
        ),
        (
            r#"{"method":"tasks/get","id":"q","params":{"id":"t"}}"#,
            "tasks/get",
            json!("q"),
        ),
        (
            r#"{"params":{"message":MESSAGE}}"#,
            "message/send",
            Value::Null,
        ),
        (
            r#"{"message":MESSAGE,"run_id":"r-1","metadata":{"k":1.10},"configuration":{"blocking":true}}"#,
            "message/send",
            Value::Null,
        ),
        ("MESSAGE", "message/send", Value::Null),
        (r#"{"text":"hi"}"#, "message/send", Value::Null),
    ] {
        let body = body.replace("MESSAGE", message);
        let answer = case.send(&body).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        let completed = answer.field("x-a2a-completed").unwrap_or_default();
        assert!(completed.contains("envelope"), "{body}");
        let arrived = case.target.agent.take();
        let call: Value = serde_json::from_slice(&arrived.body).expect("JSON");
        assert_eq!(call["jsonrpc"], "2.0", "{body}");
        assert_eq!(call["method"], method, "{body} became {call}");
        assert!(own.is_null() || call["id"] == own, "{body} became {call}");
        let id = &call["id"];
        assert!(id.is_number() || id.is_string(), "{body} became {call}");
        if call["method"] == "message/send" {
            let message = &call["params"]["message"];
            assert_eq!(message["role"], "user", "{body} became {call}");
            let part = json!({"kind": "text", "text": "hi"});
            assert_eq!(message["parts"][0], part, "{call}");
            assert!(message["messageId"].is_string(), "{body} became {call}");
        }
        if body.contains("run_id") {
            assert_eq!(call["params"]["metadata"]["run_id"], "r-1", "{call}");
            let configuration = json!({"blocking": true});
            assert_eq!(call["params"]["configuration"], configuration, "{call}");
            // Numbers keep their digits.
            assert!(arrived.text().contains("1.10"), "{call}");
        }
        let known = ["jsonrpc", "id", "method", "params"];
        let mut top = call.as_object().unwrap().keys();
        assert!(top.all(|name| known.contains(&&**name)), "{call}");
    }
}

#[tokio::test]
async fn accept_decides_which_method_is_inferred() {
    let case = case().await;
    let body = r#"{"message":{"messageId":"m","role":"user","parts":[]}}"#;
    let request = Request::post(case.target.path(), body).bearer(&case.caller.token);
    let request = request.field("Accept", "text/event-stream");
    case.gateway.call(&request).await.has(200);
    let arrived = case.target.agent.take();
    assert!(arrived.text().contains(r#""method":"message/stream""#));
}

#[tokio::test]
async fn messages_are_completed() {
    let case = case().await;
    let call = |message: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"message/send","params":{{"message":{message}}}}}"#
        )
    };
    let role = r#""role":"user","parts":[]"#;
    for (id, expected) in [
        (r#""messageId":null"#, "<new>"),
        (r#""messageId":"""#, "<new>"),
        (r#""message_id":"m""#, "m"),
    ] {
        let sent = call(&format!("{{{id},{role}}}"));
        let expected = call(&format!(r#"{{"messageId":"{expected}",{role}}}"#));
        case.becomes(&sent, &expected, "message-id").await;
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
        let arrived = case.target.agent.take();
        let mut arrived: Value = serde_json::from_slice(&arrived.body).expect("JSON");
        let arrived = &mut arrived["params"]["message"];
        let expected: Value = serde_json::from_str(expected).unwrap();
        if expected["messageId"] == "*" {
            assert!(uuid::Uuid::parse_str(arrived["messageId"].as_str().unwrap()).is_ok());
            arrived["messageId"] = json!("*");
        }
        assert_eq!(*arrived, expected, "for {message}");
    }
}

#[tokio::test]
async fn claims_about_caller_and_target_are_checked() {
    let case = case().await;
    let call = |params: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"message/send","params":{{{params}"message":{{"messageId":"m","role":"user","parts":[]}}}}}}"#
        )
    };
    case.becomes(&call(r#""target_agent_id":"target","#), &call(""), "target")
        .await;
    let other = call(r#""target_agent_id":"other","#);
    let answer = case.unsent(other, 400, "invalid_params").await;
    assert_eq!(answer.json()["error"]["code"], -32602);
    assert_eq!(answer.json()["id"], 1);
    let metadata = |id: &str| call(&format!(r#""metadata":{{"source_workspace_id":"{id}"}},"#));
    case.becomes(&metadata("someone"), &metadata("caller"), "source")
        .await;
    case.passes(&metadata("caller")).await;
    let both = r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"a","message_id":"b"}}}"#;
    case.unsent(both, 400, "invalid_params").await;
}

#[tokio::test]
async fn a_method_that_no_version_has_is_renamed() {
    let case = case().await;
    let call = |method: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"message":{{"messageId":"m","role":"user","parts":[]}}}}}}"#
        )
    };
    let (old, new) = (call("message/sendSubscribe"), call("message/stream"));
    case.becomes(&old, &new, "alias").await;
}

#[tokio::test]
async fn a_1_0_target_gets_its_own_dialect() {
    let case = case().await;
    let agent = case.beside(card_1_0("modern"), json!({})).await;
    case.sent_to("modern", r#"{"text":"hi"}"#).await.has(200);
    let arrived = agent.take();
    let call: Value = serde_json::from_slice(&arrived.body).unwrap();
    assert_eq!(call["method"], "SendMessage");
    assert_eq!(call["params"]["message"]["role"], "ROLE_USER");
    assert_eq!(call["params"]["message"]["parts"], json!([{"text": "hi"}]));
    // The gateway wrapped the call.
    assert_eq!(arrived.field("a2a-version"), Some("1.0"));
    // The version of an envelope that the agent speaks is the caller's to say, and its bytes stay.
    let body = r#"{"jsonrpc":"2.0","id":"1","method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]}}}"#;
    case.sent_to("modern", body).await.has(200);
    let arrived = agent.take();
    assert_eq!(arrived.field("a2a-version"), None);
    assert_eq!(String::from_utf8_lossy(&arrived.body), body);
}

#[tokio::test]
async fn completion_can_be_lowered_for_a_workspace() {
    let case = case().await;
    let incomplete =
        r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"text":"hi"}}}"#;
    let bare = r#"{"text":"hi"}"#;
    for (mode, touches_bare) in [("bare", true), ("off", false)] {
        let agent = case.beside(card(mode), json!({"complete": mode})).await;
        case.sent_to(mode, incomplete).await.has(200);
        assert_eq!(agent.take().text(), incomplete, "{mode}");
        case.sent_to(mode, bare).await.has(200);
        assert_eq!(agent.take().text() != bare, touches_bare, "{mode}");
        case.sent_to(mode, "nonsense").await.gives("parse_error");
    }
}

#[tokio::test]
async fn unreadable_bodies_are_refused() {
    let case = case().await;
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
        let answer = case.unsent(body, 400, "parse_error").await;
        assert_eq!(answer.json()["error"]["code"], -32700);
        assert_eq!(answer.json()["id"], json!(null));
    }
    let deep = "[".repeat(600) + &"]".repeat(600);
    let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"params":{deep}}}"#);
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
        let answer = case.unsent(body, 400, "invalid_request").await;
        assert_eq!(answer.json()["error"]["code"], -32600);
    }
}

#[tokio::test]
async fn a_byte_order_mark_is_dropped() {
    let case = case().await;
    case.becomes(&format!("\u{feff}{CALL}"), CALL, "").await;
}

#[tokio::test]
async fn only_json_is_taken() {
    let case = case().await;
    let send = async |request: Request| case.gateway.call(&request).await;
    let plain = || case.request().without("content-type");
    let (form, utf16) = (
        "application/x-www-form-urlencoded",
        "application/json; charset=utf-16",
    );
    for media in ["text/plain", form, utf16] {
        let answer = send(plain().field("Content-Type", media)).await;
        answer.refuses_for(&media, 415, "unsupported_media_type");
        answer.errs(415, -32005);
    }
    let packed = case.request().field("Content-Encoding", "gzip");
    for request in [packed, plain().field("Sec-Fetch-Site", "same-origin")] {
        send(request).await.gives("unsupported_media_type");
    }
    assert_eq!(case.target.agent.count(), 0);
    let arrives_as = || {
        case.target
            .agent
            .take()
            .field("content-type")
            .map(str::to_owned)
    };
    for media in [
        "application/a2a+json",
        "application/vnd.x+json; charset=UTF-8",
    ] {
        send(plain().field("Content-Type", media)).await.has(200);
        assert_eq!(arrives_as().as_deref(), Some(media));
    }
    send(plain()).await.has(200);
    assert_eq!(arrives_as().as_deref(), Some("application/json"));
}
