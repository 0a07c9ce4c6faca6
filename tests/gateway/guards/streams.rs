//! Events of a stream wait for their verdicts, and readers that come back get what passed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::*;
use crate::harness::{Connection, until_holds};

fn events(stream: &str) -> Value {
    json!({"phases": ["event"], "stream": stream, "timeout": "60s"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_waits_for_its_verdict_while_comments_go_on() {
    let permits = Arc::new(Semaphore::new(1));
    let held = Arc::clone(&permits);
    let guard = Agent::scripted(move |_| {
        let pass = ok_json(r#"{"action":"pass"}"#);
        vec![Step::Held(Arc::clone(&held)), Step::Write(pass)]
    })
    .await;
    let guards = json!([table("g", &guard, "pass", events("each"))]);
    let builder = builder(Pair::Embedded, &guards).set("stream.keepalive", "100ms");
    let event = |state: &str, text: &str| {
        let said =
            json!({"messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": text}]});
        let result = json!({"kind": "status-update", "taskId": "t", "contextId": "c", "final": state == "completed",
            "status": {"state": state, "message": said}});
        let reply = json!({"jsonrpc": "2.0", "id": "c", "result": result});
        Step::Write(chunk(format!("data: {reply}\n\n")))
    };
    let pause = Step::Wait(Duration::from_millis(300));
    let said = leaky(vec![
        event("working", "one"),
        pause,
        event("working", "piece"),
        event("completed", "end"),
        Step::write(LAST_CHUNK),
    ]);
    let case = Case::on(builder, said.await).await;
    let mut connection = Connection::open(case.gateway.public).await;
    let request = case.request(Form::Rpc03, true, "hi");
    connection.send(&request.wire("127.0.0.1")).await;
    let head = connection.read_head().await.unwrap();
    assert_eq!(head.status, 200);
    let mut said = String::new();
    let mut comments = 0;
    while comments < 3 || !said.contains("working") {
        let piece = connection.next_chunk().await.expect("a piece");
        let piece = String::from_utf8(piece).unwrap();
        comments += usize::from(piece.starts_with(':'));
        said += &piece;
    }
    assert!(said.contains("working"), "{said}");
    assert!(!said.contains("piece"), "{said}");
    permits.add_permits(10);
    while let Some(piece) = connection.next_chunk().await {
        said += &String::from_utf8(piece).unwrap();
    }
    assert!(said.contains("piece"), "{said}");
    assert!(said.contains("completed"), "{said}");
    assert_eq!(guard.count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_may_be_asked_about_the_last_event_only_or_about_none() {
    let guard = guard().await;
    for (stream, asked) in [("final", 1), ("off", 0)] {
        let guards = json!([table("g", &guard, "reject", events(stream))]);
        let case = Case::guarded(&guards, SECRET).await;
        for form in Form::ALL {
            let before = guard.count();
            let answer = case.call(form, true, "hi").await;
            // It was seen before: the reference says so.
            answer.says(SECRET);
            assert!(answer.text().contains("ompleted") || answer.text().contains("COMPLETED"));
            assert_eq!(guard.count() - before, asked, "{stream} {form:?}");
        }
    }
    let last = Agent::scripted(|request| {
        let id = call_in(request)["id"].clone();
        let result = json!({"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": SECRET}]});
        stream(&[format!("data: {}\n\n", json!({"jsonrpc": "2.0", "id": id, "result": result}))])
    })
    .await;
    let guards = json!([table("g", &guard, "reject", events("final"))]);
    let case = Case::on(builder(Pair::Embedded, &guards), last).await;
    let answer = case.call(Form::Rpc03, true, "hi").await;
    assert!(!answer.text().contains(SECRET), "{}", answer.text());
    answer.says("GUARD_REJECTED");
}

/// A stream with the secret in its second event, in a comment and in what it leaves incomplete; then it stays open.
async fn leaky(steps: Vec<Step>) -> Agent {
    Agent::scripted(move |_| {
        let mut all = vec![Step::write(SSE_HEAD)];
        all.extend(steps.clone());
        all
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comments_and_rests_do_not_pass_by_and_the_agent_is_cut_off() {
    let guard = guard().await;
    let guards = json!([table("g", &guard, "reject", events("each"))]);
    let good = r#"data: {"jsonrpc":"2.0","id":"c","result":{"kind":"status-update","taskId":"t","contextId":"c","status":{"state":"working"}}}"#;
    let event = Step::Write(chunk(format!(": {SECRET}\n{good}\n\n: {SECRET}\n\n")));
    let bad = Step::Write(chunk(format!("data: {{\"result\":\"{SECRET}\"}}\n\n")));
    let rest = Step::Write(chunk(format!("data: {SECRET}")));
    for steps in [
        vec![event.clone(), bad, Step::Hang],
        vec![event, rest, Step::write(LAST_CHUNK)],
    ] {
        let hangs = matches!(steps.last(), Some(Step::Hang));
        let case = Case::on(builder(Pair::Embedded, &guards), leaky(steps).await).await;
        let answer = case.call(Form::Rpc03, true, "hi").await;
        assert!(!answer.text().contains(SECRET), "{}", answer.text());
        answer.says("working");
        answer.says("GUARD_REJECTED");
        if hangs {
            let is_cut = async || case.target.agent.open() == 0;
            until_holds("it is cut off", is_cut).await;
        }
        case.gateway.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_comes_back_gets_what_passed() {
    let guard = guard().await;
    let named = |behaviour: &str, target: &str| {
        let more = json!({"phases": ["event"], "targets": [target]});
        table(behaviour, &guard, behaviour, more)
    };
    let guards = json!([named("replace", "masked"), named("reject", "rejected")]);
    let gateway = builder(Pair::Embedded, &guards).start().await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    for (id, passed) in [("masked", true), ("rejected", false)] {
        let seat = gateway.seat(id, "", agent(SECRET).await).await;
        let key = format!("key-{id}");
        let request = Form::Rpc03.request(&seat, &caller, true, "hi");
        let request = request.field("Idempotency-Key", &key);
        let first = gateway.call(&request).await;
        let again = gateway.call(&request).await;
        again.has_field("idempotent-replay", "true");
        for answer in [&first, &again] {
            assert_eq!(answer.text().contains(MASK), passed, "{}", answer.text());
            assert!(!answer.text().contains(SECRET), "{}", answer.text());
            let is_rejected = answer.text().contains("GUARD_REJECTED");
            assert_eq!(is_rejected, !passed, "{}", answer.text());
        }
        assert_eq!(seat.agent.count(), 1);
        let stream = first.field("x-a2a-stream").unwrap().to_owned();
        let request = Request::get(format!("/workspaces/{id}/streams/{stream}"));
        let request = request.field("Last-Event-ID", format!("{stream}-1"));
        let request = request.bearer(&caller.token);
        let resumed = gateway.call(&request).await;
        assert_eq!(resumed.text().contains(MASK), passed, "{}", resumed.text());
        assert!(!resumed.text().contains(SECRET), "{}", resumed.text());
        assert_eq!(seat.agent.count(), 1, "it is resumed from the log");
    }
}
