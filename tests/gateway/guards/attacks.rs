//! Ways around guards: what a sender chooses beside the text of a message, an answer or an event.

use super::*;

/// An answer that this text says.
fn agent_says(text: &str) -> Value {
    json!({"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": text}]})
}

/// A built-in guard that rejects the secret.
fn own(more: Value) -> Value {
    let table = json!({"name": "own", "builtin": "patterns",
        "patterns": [{"name": "secret", "regex": "planted-for-the-guard[s]"}]});
    merged(table, &more)
}

/// An agent that answers all calls with these bytes.
async fn answering(steps: Vec<Step>) -> Agent {
    Agent::scripted(move |_| steps.clone()).await
}

/// An event of the call `c`.
fn event(result: &Value) -> String {
    let reply = json!({"jsonrpc": "2.0", "id": "c", "result": result});
    format!("data: {reply}\n\n")
}

fn status(state: &str) -> Value {
    json!({"kind": "status-update", "taskId": "t", "contextId": "c", "final": state == "completed",
        "status": {"state": state}})
}

fn artifact(text: &str) -> Value {
    json!({"kind": "artifact-update", "taskId": "t", "contextId": "c",
        "artifact": {"artifactId": "a", "parts": [{"kind": "text", "text": text}]}})
}

/// Calls an agent of these steps behind the guards.
async fn called(guards: &Value, streams: bool, steps: Vec<Step>) -> Answer {
    let agent = answering(steps).await;
    let case = Case::on(builder(Pair::Embedded, guards), agent).await;
    case.call(Form::Rpc03, streams, "hi").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_data_and_known_names_of_events_pass() {
    planted::plant(SECRET);
    let guards = json!([own(json!({"phases": ["event"]}))]);
    let working = event(&status("working"));
    let block = format!(
        "event: {SECRET}\nid: {SECRET}\nretry: {SECRET}\n{SECRET}: x\n{SECRET}\n: {SECRET}\n{working}"
    );
    let marks = format!("\u{feff}\u{feff}{}", event(&artifact(SECRET)));
    let steps = stream(&[
        marks,
        block,
        format!("event: {SECRET}\n\n"),
        format!("\u{feff}: {SECRET}\n\n"),
        format!("event: message\n{}", event(&status("completed"))),
    ]);
    let answer = called(&guards, true, steps).await;
    let text = answer.text();
    assert!(!text.contains(SECRET), "{text}");
    assert!(text.contains("working"), "{text}");
    assert!(text.contains("completed"), "{text}");
    assert!(text.contains("event: message\ndata: "), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_makes_a_guard_fail_does_not_stop_the_others() {
    let guard = Agent::scripted(|request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        if body.contains(SECRET) {
            return vec![Step::write("HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n")];
        }
        verdict(&json!({"action": "pass"}))
    })
    .await;
    let guards = json!([table("g", &guard, "", json!({"phases": ["request"]}))]);
    let case = Case::guarded(&guards, "hello").await;
    let call = async |text: &str| case.call(Form::Rpc03, false, text).await;
    for _ in 0..8 {
        call(SECRET).await.has(503).tells("failure", "invalid");
    }
    assert_eq!(call("hi").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejection_without_a_reason_says_so() {
    let guard = Agent::scripted(|_| verdict(&json!({"action": "reject"}))).await;
    let guards = json!([table("g", &guard, "", json!({"phases": ["request"]}))]);
    let case = Case::guarded(&guards, "hello").await;
    let answer = case.call(Form::Rpc03, false, "hi").await;
    answer.tells("why", "no reason given");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_beside_a_message_is_judged() {
    let guard = guard().await;
    for table in [
        own(json!({})),
        table("g", &guard, "reject", json!({"phases": ["request"]})),
    ] {
        let case = Case::guarded(&json!([table]), "hello").await;
        let message = json!({"kind": "message", "messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": "hi"}]});
        let call = json!({"jsonrpc": "2.0", "id": "c", "method": "message/send", "params": {"message": message}});
        let send = async |call: &Value| {
            let request = Request::post(case.target.path(), call.to_string());
            case.gateway.call(&request.bearer(&case.caller.token)).await
        };
        for (member, said) in [
            ("note", json!(SECRET)),
            ("request", json!({"a": [SECRET]})),
            ("configuration", json!({"acceptedOutputModes": [SECRET]})),
            ("tenant", json!(SECRET)),
        ] {
            let mut call = call.clone();
            call["params"][member] = said;
            let answer = send(&call).await;
            answer.refuses_for(&member, 403, "guard_rejected");
        }
        assert_eq!(wire(&case.target.agent).matches("POST ").count(), 0);
        let mut call = call.clone();
        call["note"] = json!(SECRET);
        let answer = send(&call).await;
        assert!(matches!(answer.status, 200 | 403), "{}", answer.text());
        assert!(!wire(&case.target.agent).contains(SECRET));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_a_reader_may_read_otherwise_are_refused() {
    let guards = json!([own(json!({}))]);
    let reply = |id: &str, text: &str| {
        json!({"jsonrpc": "2.0", "id": id, "result": agent_says(text)}).to_string()
    };
    let secret = reply("c", SECRET);
    let utf16: Vec<u8> = secret.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let utf32 = secret.chars().flat_map(|c| (c as u32).to_le_bytes());
    let other_version = reply("c", "x").replace("\"2.0\"", &format!("\"{SECRET}\""));
    let (utf7, utf7_stream) = (
        "application/json; charset=utf-7",
        "text/event-stream; charset=utf-7",
    );
    let escaped = secret.replace("planted", "\\u0070lanted");
    let lax = escaped.replace("\"jsonrpc\"", "\"x\":NaN,\"jsonrpc\"");
    let json = "application/json";
    for (content_type, body, is_stream) in [
        (json, utf16, false),
        (json, utf32.collect(), false),
        (utf7, reply("c", "x").into(), false),
        (json, lax.into_bytes(), false),
        (json, reply(SECRET, "x").into_bytes(), false),
        (json, other_version.into(), false),
        (utf7_stream, event(&status("completed")).into(), true),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length");
        let head = format!("{head}: {}\r\n\r\n", body.len()).into_bytes();
        let steps = vec![Step::Write(head), Step::Write(body.clone())];
        let answer = called(&guards, is_stream, steps).await;
        let place = format!("{content_type} {}", String::from_utf8_lossy(&body));
        answer.refuses_for(&place, 502, "agent_protocol_error");
        assert!(!answer.text().contains(SECRET), "{place}");
    }
    let other = event(&status("working")).replace("\"c\"", &format!("\"{SECRET}\""));
    let answer = called(&guards, true, stream(&[other])).await;
    answer.says("AGENT_PROTOCOL_ERROR");
    assert!(!answer.text().contains(SECRET), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_no_answer_where_only_answers_are_judged() {
    let phases = json!({"phases": ["request", "response"]});
    for more in [phases, json!({"stream": "off"})] {
        let steps = stream(&[event(&agent_says(SECRET))]);
        let answer = called(&json!([own(more)]), false, steps).await;
        answer.refuses(502, "agent_protocol_error");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_event_is_judged_whatever_it_says() {
    let guards = json!([own(json!({"phases": ["event"], "stream": "final"}))]);
    let (one, secret, over) = (artifact("one"), artifact(SECRET), status("completed"));
    for events in [
        // The stream ends without a word that the task is over.
        vec![status("working"), one.clone(), secret.clone()],
        // The agent goes on after it.
        vec![one, over.clone(), secret, over],
    ] {
        let events: Vec<_> = events.iter().map(event).collect();
        let answer = called(&guards, true, stream(&events)).await;
        let text = answer.text();
        assert!(text.contains("one") && !text.contains(SECRET), "{text}");
        assert!(text.contains("GUARD_REJECTED"), "{text}");
    }
    let events = [artifact("one"), artifact("two")].map(|one| event(&one));
    let mut steps = stream(&events);
    // What it leaves incomplete does not make the one before another than the last.
    steps.insert(3, Step::Write(chunk("data: {\"id\":\"c\"}")));
    let text = called(&guards, true, steps).await.text();
    let (one, two) = (text.find("one"), text.find("two"));
    assert!(one.is_some() && one < two, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_cannot_choose_that_a_guard_fails() {
    let guard = guard().await;
    let allow = |behaviour: &str| {
        let more = json!({"phases": ["request"], "on_failure": "allow", "max_bytes": "2KiB"});
        json!([table("g", &guard, behaviour, more)])
    };
    let case = Case::guarded(&allow("pass"), "hello").await;
    let call = async |text: &str| case.call(Form::Rpc03, false, text).await;
    let long = format!("{SECRET}{}", "x".repeat(3000));
    call(&long).await.has(503).tells("failure", "too_large");
    let deep = format!("{}1{}", "[".repeat(110), "]".repeat(110));
    let message = r#"{"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text","text":"@"},{"kind":"data","data":{"a":DEEP}}]}"#;
    let send = async |case: &Case, message: String| {
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":"c","method":"message/send","params":{{"message":{message}}}}}"#
        );
        let request = Request::post(case.target.path(), call).bearer(&case.caller.token);
        case.gateway.call(&request).await
    };
    let asked = guard.count();
    let answer = send(&case, message.replace("DEEP", &deep)).await;
    answer.tells("failure", "invalid");
    assert_eq!(guard.count(), asked);
    assert_eq!(case.target.agent.count(), 0);
    // Half a surrogate pair is a text as any other.
    let masks = Agent::scripted(|request| {
        let question = String::from_utf8_lossy(&request.body).into_owned();
        let payload = question.rsplit_once("\"payload\":").unwrap().1;
        let payload = payload.strip_suffix('}').unwrap().replace(SECRET, MASK);
        let answer = format!(r#"{{"action":"replace","payload":{payload}}}"#);
        vec![Step::Write(ok_json(&answer))]
    })
    .await;
    let more = json!({"phases": ["request"], "on_failure": "allow"});
    let guards = json!([table("g", &masks, "", more)]);
    let case = Case::guarded(&guards, "hello").await;
    let text = format!("{SECRET} \\ud800");
    let message = message.replace("DEEP", "1").replace('@', &text);
    send(&case, message).await.has(200);
    let sent = wire(&case.target.agent);
    assert!(sent.contains(MASK) && !sent.contains(SECRET), "{sent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_of_a_call_and_stops_end_the_wait_for_guards() {
    let guard = guard().await;
    let more = json!({"timeout": "60s", "phases": ["request"]});
    let guards = json!([table("g", &guard, "hang", more)]);
    let case = Case::guarded(&guards, "hello").await;
    let request = case
        .request(Form::Rpc03, false, SECRET)
        .field("X-Timeout", "1");
    let answer = case.gateway.call(&request).await;
    answer.refuses(504, "agent_timeout");
    answer.tells("clock", "total");
    answer.tells("delivered", "false");
    assert_eq!(case.target.agent.count(), 0);
    let rows = [("request", None), ("response", None)];
    for (phase, key) in rows.into_iter().chain([("response", Some("key"))]) {
        let more = json!({"timeout": "60s", "phases": [phase]});
        let guards = json!([table("g", &guard, "hang", more)]);
        let case = Case::guarded(&guards, SECRET).await;
        let mut request = case.request(Form::Rpc03, false, SECRET);
        if let Some(key) = key {
            request = request.field("Idempotency-Key", key);
        }
        let asked = guard.count();
        let (answer, ()) = tokio::join!(case.gateway.call(&request), async {
            crate::harness::until_holds("it waits", async || guard.count() > asked).await;
            let scope = json!({"workspace": case.target.id});
            let stop = json!({"scope": scope, "mode": "running", "reason": "now"});
            case.gateway.post("/stops", stop).await.has(201);
        });
        assert_eq!(answer.reason(), "stopped", "{phase}: {}", answer.text());
        let sent = if phase == "request" { "false" } else { "true" };
        answer.tells("delivered", sent);
    }
}
