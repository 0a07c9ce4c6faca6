//! `Prefer: respond-async`: a call to a target that is away is kept, can be asked for as a task, and is made once
//! the target is back.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::odd::{odd_results, rpc};
use super::{answer, echo, pause, texts, until};
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, Seat, Step, ok_json, until_found,
};
use crate::on_both_pairs;
use crate::operators::{paired, staged};
use crate::stores::open_db;

fn prefer(request: Request) -> Request {
    request.field("Prefer", "respond-async")
}

fn say(text: &str, priority: Option<u32>) -> String {
    let mut call: Value = serde_json::from_str(CALL).unwrap();
    call["params"]["message"]["parts"][0]["text"] = text.into();
    if let Some(priority) = priority {
        call["params"]["metadata"] = json!({"priority": priority});
    }
    call.to_string()
}

/// Has a call kept, which must work; answers its task's id.
async fn keep(gateway: &Gateway, from: &Seat, to: &Seat, body: &str) -> String {
    let request = prefer(Request::post(to.path(), body).bearer(&from.token));
    let kept = gateway.call(&request).await;
    assert_eq!(kept.status, 202, "{}", kept.text());
    kept.json()["activity_id"].as_str().unwrap().to_owned()
}

async fn about(gateway: &Gateway, token: &str, at: &Seat, method: &str, id: &str) -> Answer {
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"id": id}});
    let request = Request::post(at.path(), call.to_string()).bearer(token);
    gateway.call(&request).await
}

/// The task as its owner reads it.
async fn task(gateway: &Gateway, of: &Seat, at: &Seat, id: &str) -> Value {
    let answer = about(gateway, &of.token, at, "tasks/get", id).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Waits until it is in this state.
async fn state(gateway: &Gateway, of: &Seat, at: &Seat, id: &str, wished: &str) {
    let is_so = async || task(gateway, of, at, id).await["result"]["status"]["state"] == wished;
    until(wished, is_so).await;
}

/// A gateway with a caller and a target that echoes its messages; the target is paused.
async fn paused(builder: Builder) -> (Gateway, Seat, Seat) {
    let (gateway, caller, target) = staged(builder, Agent::scripted(echo).await).await;
    pause(&gateway, "target", "pause").await;
    (gateway, caller, target)
}

on_both_pairs! {
    async fn a_call_to_a_target_that_is_away_is_kept_and_made(pair: Pair) {
        let (gateway, caller, target) = paused(Builder::new(pair)).await;
        let request = Request::post(target.path(), CALL).bearer(&caller.token);
        let refused = gateway.call(&request).await;
        assert_eq!((refused.status, refused.reason().as_str()), (503, "workspace_offline"));

        let kept = prefer(request).field("X-A2A-Extensions", "e-1").field("traceparent", "t-1");
        let kept = gateway.call(&kept).await;
        assert_eq!(kept.status, 202, "{}", kept.text());
        assert_eq!(kept.field("preference-applied"), Some("respond-async"));
        let json = kept.json();
        let id = json["activity_id"].as_str().unwrap().to_owned();
        assert!(id.starts_with("job-"));
        assert_eq!((&json["jsonrpc"], &json["id"]), (&json!("2.0"), &json!("c-1")));
        assert_eq!((&json["status"], &json["delivery_mode"]), (&json!("queued"), &json!("push")));
        assert_eq!(json["method"], "message/send");
        assert_eq!((&json["result"]["kind"], &json["result"]["id"]), (&json!("task"), &json!(id)));
        assert_eq!(json["result"]["status"]["state"], "submitted");

        let kept = task(&gateway, &caller, &target, &id).await;
        assert_eq!(kept["result"]["status"]["state"], "submitted");
        let modern = about(&gateway, &caller.token, &target, "GetTask", &id).await.json();
        assert_eq!(modern["result"]["status"]["state"], "TASK_STATE_SUBMITTED");
        assert_eq!(target.agent.count(), 0);

        pause(&gateway, "target", "resume").await;
        state(&gateway, &caller, &target, &id, "completed").await;
        assert_eq!(target.agent.count(), 1, "tasks/get is the gateway's to answer");
        let asked = target.agent.take();
        assert_eq!(asked.text(), CALL, "as it came");
        assert_eq!(asked.field("x-workspace-id"), Some("caller"));
        assert_eq!(asked.field("x-a2a-extensions"), Some("e-1"));
        assert_eq!(asked.field("traceparent"), Some("t-1"));
        assert!(asked.field("prefer").is_none());
        let done = task(&gateway, &caller, &target, &id).await;
        assert_eq!(done["id"], 7);
        assert_eq!(done["result"]["id"], id.as_str());
        assert_eq!(done["result"]["status"]["message"]["parts"][0]["text"], "echo: hi");
        let late = about(&gateway, &caller.token, &target, "tasks/cancel", &id).await;
        assert_eq!((late.status, &late.json()["error"]["code"]), (200, &json!(-32002)));
        gateway.assert_idle().await;
    }

    async fn it_can_be_canceled_until_it_is_sent(pair: Pair) {
        let (gateway, caller, target) = paused(Builder::new(pair)).await;
        let id = keep(&gateway, &caller, &target, CALL).await;
        let canceled = about(&gateway, &caller.token, &target, "tasks/cancel", &id).await.json();
        assert_eq!(canceled["result"]["status"]["state"], "canceled");
        pause(&gateway, "target", "resume").await;
        // One that is kept after it is sent.
        pause(&gateway, "target", "pause").await;
        let later = keep(&gateway, &caller, &target, &say("later", None)).await;
        pause(&gateway, "target", "resume").await;
        state(&gateway, &caller, &target, &later, "completed").await;
        assert_eq!(texts(&target.agent), ["later"]);
        let kept = task(&gateway, &caller, &target, &id).await;
        assert_eq!(kept["result"]["status"]["state"], "canceled");
    }

    async fn a_busy_target_gets_them_by_priority_then_by_age(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let first_ends = Arc::new(Semaphore::new(0));
        let held = first_ends.clone();
        let agent = Agent::scripted(move |request| {
            let says = Step::Write(ok_json(&answer(request).to_string()));
            let first = request.text().contains("first");
            first.then(|| Step::Held(held.clone())).into_iter().chain([says]).collect()
        }).await;
        let (caller, target) = gateway.pair(agent).await;
        gateway.patch("target", json!({"max_concurrent": 1})).await;
        let first = Request::post(target.path(), say("first", None)).bearer(&caller.token);
        let running = gateway.call(&first);
        let rest = async {
            until("the first is there", async || target.agent.count() == 1).await;
            let busy = Request::post(target.path(), say("no", None)).bearer(&caller.token);
            assert_eq!(gateway.call(&busy).await.reason(), "agent_busy");
            for (text, priority) in [("low", Some(1)), ("one", None), ("two", None), ("high", Some(99))] {
                keep(&gateway, &caller, &target, &say(text, priority)).await;
            }
            // All were tried, so that none is just being tried alone when the target takes one again.
            let db = open_db(&gateway.sql_url());
            let put_off = "SELECT COUNT(*) FROM mailbox_items WHERE leased_until = 0 AND due_at > created_at";
            until("all are put off", async || {
                sqlx::query_scalar::<_, i64>(put_off).fetch_one(db.pool()).await.unwrap() == 4
            }).await;
            first_ends.add_permits(1);
        };
        let (answered, ()) = tokio::join!(running, rest);
        assert_eq!(answered.status, 200);
        until("all", async || target.agent.count() == 5).await;
        assert_eq!(texts(&target.agent), ["first", "high", "one", "two", "low"]);
    }

    async fn a_kept_call_outlives_a_kill_and_expires(pair: Pair) {
        let builder = Builder::new(pair).set("delegation.deferred_ttl", "1s");
        let (mut gateway, caller, target) = paused(builder).await;
        let id = keep(&gateway, &caller, &target, CALL).await;
        gateway.kill();
        gateway.restart().await;
        state(&gateway, &caller, &target, &id, "failed").await;
        let task = task(&gateway, &caller, &target, &id).await;
        assert_eq!(task["result"]["metadata"]["error"]["clock"], "deadline");
        assert_eq!(target.agent.count(), 0);
    }

    async fn a_call_with_a_key_is_kept_once_and_made_once(pair: Pair) {
        let (gateway, caller, target) = paired(pair, Agent::scripted(echo).await).await;
        let keyed = |text: &str| {
            let request = Request::post(target.path(), say(text, None)).bearer(&caller.token);
            request.field("Idempotency-Key", text.split(' ').next().unwrap())
        };
        // What was answered before is answered so again, whether its target is there or not.
        let before = gateway.call(&keyed("before")).await;
        assert_eq!(before.status, 200);
        pause(&gateway, "target", "pause").await;
        let again = gateway.call(&keyed("before")).await;
        assert_eq!((again.status, again.field("idempotent-replay")), (200, Some("true")));
        assert_eq!(again.text(), before.text());
        assert_eq!(gateway.call(&keyed("new")).await.reason(), "workspace_offline");

        let kept = gateway.call(&prefer(keyed("new"))).await;
        assert_eq!((kept.status, kept.field("idempotent-replay")), (202, None), "{}", kept.text());
        for request in [prefer(keyed("new")), keyed("new")] {
            let again = gateway.call(&request).await;
            assert_eq!((again.status, again.field("idempotent-replay")), (202, Some("true")));
            assert_eq!(again.field("preference-applied"), Some("respond-async"));
            assert_eq!(again.text(), kept.text());
        }
        let other = gateway.call(&prefer(keyed("new other"))).await;
        assert_eq!((other.status, &*other.reason()), (409, "idempotency_conflict"));
        pause(&gateway, "target", "resume").await;
        until("it is made", async || target.agent.count() == 2).await;
        let again = gateway.call(&keyed("new")).await;
        assert_eq!((again.status, again.text()), (202, kept.text()));
        assert_eq!(texts(&target.agent), ["before", "new"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_cannot_be_read_is_a_failure() {
    let (gateway, caller, _) = paired(Pair::Embedded, Agent::scripted(echo).await).await;
    for (n, result) in odd_results().into_iter().enumerate() {
        let agent = Agent::json(&rpc(&result)).await;
        let odd = gateway.seat(&format!("odd-{n}"), "", agent).await;
        pause(&gateway, &odd.id, "pause").await;
        let id = keep(&gateway, &caller, &odd, CALL).await;
        pause(&gateway, &odd.id, "resume").await;
        state(&gateway, &caller, &odd, &id, "failed").await;
        let task = task(&gateway, &caller, &odd, &id).await;
        let error = &task["result"]["metadata"]["error"];
        assert_eq!(error["reason"], "agent_protocol_error");
        assert_eq!(error["delivered"], "true");
        assert_eq!(odd.agent.count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agents_task_is_shown_under_our_id() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"task","id":"theirs","contextId":"c","status":{"state":"working"},"artifacts":[{"artifactId":"a","parts":[{"kind":"text","text":"half"}]}]}}"#).await;
    let (caller, target) = gateway.pair(agent).await;
    pause(&gateway, "target", "pause").await;
    let id = keep(&gateway, &caller, &target, CALL).await;
    pause(&gateway, "target", "resume").await;
    let task = until_found("the result", async || {
        let task = task(&gateway, &caller, &target, &id).await;
        let theirs = task["result"]["metadata"]["agent_task_id"] == "theirs";
        theirs.then_some(task)
    })
    .await;
    assert_eq!(task["result"]["id"], id.as_str());
    assert_eq!(task["result"]["contextId"], "c");
    assert_eq!(task["result"]["artifacts"][0]["parts"][0]["text"], "half");
    // The agent's own task belongs to the caller, as if it had been started by a message.
    let other = gateway.seat("other", "", Agent::json("{}").await).await;
    let theirs = about(&gateway, &other.token, &target, "tasks/get", "theirs").await;
    assert_eq!(theirs.reason(), "task_not_found");
    let own = about(&gateway, &caller.token, &target, "tasks/get", "theirs").await;
    assert_eq!(own.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_belongs_to_its_caller() {
    let (gateway, caller, target) = paused(Builder::new(Pair::Embedded)).await;
    let other = gateway.seat("other", "", Agent::json("{}").await).await;
    let id = keep(&gateway, &caller, &target, CALL).await;
    for method in ["tasks/get", "tasks/cancel", "GetTask"] {
        let theirs = about(&gateway, &other.token, &target, method, &id).await;
        assert_eq!(theirs.status, 200);
        assert_eq!(theirs.reason(), "task_not_found");
        assert_eq!(theirs.json()["id"], 7);
        assert_eq!(theirs.json()["error"]["code"], -32001);
    }
    let own = async |method: &str, at: &Seat, id: &str| {
        about(&gateway, &caller.token, at, method, id).await
    };
    let operator = about(&gateway, ADMIN, &target, "tasks/get", &id).await;
    assert_eq!(operator.status, 200);
    // At another target there is no such task; that one is the agent's to say.
    assert_eq!(own("tasks/get", &other, &id).await.json(), json!({}));
    let watched = own("tasks/resubscribe", &target, &id).await;
    assert_eq!(watched.json()["error"]["code"], -32004);
    // An id of this form that nobody knows: the target is away, and that is all there is to say.
    let unknown = format!("job-{}", uuid::Uuid::now_v7());
    let unknown = own("tasks/get", &target, &unknown).await;
    assert_eq!(unknown.reason(), "workspace_offline");
    // Plain HTTP routes know it, too.
    let (theirs, path) = (
        format!("{}/tasks/{id}", target.path()),
        format!("/tasks/{id}"),
    );
    let cancel = Request::post(format!("{theirs}/cancel"), "{}");
    for (request, state) in [
        (Request::get(&theirs), "submitted"),
        (Request::get(path), "submitted"),
        (cancel, "canceled"),
    ] {
        let answer = gateway.call(&request.bearer(&caller.token)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["status"]["state"], state, "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_kept_is_refused_as_ever() {
    let builder = Builder::new(Pair::Embedded).set("delegation.max_pending", "1");
    let (gateway, caller, target) = paused(builder).await;
    let far = json!({"id": "far", "name": "far", "org": "elsewhere"});
    gateway.create(far).await;
    let ask = async |path: String, body: String| {
        let request = prefer(Request::post(path, body).bearer(&caller.token));
        gateway.call(&request).await
    };
    let large = say(&"x".repeat(1 << 20), None);
    let stream = CALL.replace("message/send", "message/stream");
    let unknown = r#"{"jsonrpc":"2.0","id":1,"method":"other"}"#.to_owned();
    let far = "/workspaces/far/a2a".to_owned();
    for (path, body, reason) in [
        (target.path(), large, "workspace_offline"),
        (target.path(), stream, "workspace_offline"),
        (target.path(), unknown, "workspace_offline"),
        (target.path(), "{".into(), "parse_error"),
        (far, CALL.into(), "not_permitted"),
    ] {
        let shown = format!("{path} {body:.60}");
        assert_eq!(ask(path, body).await.reason(), reason, "{shown}");
    }
    keep(&gateway, &caller, &target, CALL).await;
    let full = ask(target.path(), CALL.into()).await;
    assert_eq!((full.status, full.reason().as_str()), (503, "agent_busy"));
    // Without the preference nothing changes: not even for a body that is no JSON.
    let broken = Request::post(target.path(), "{").bearer(&caller.token);
    assert_eq!(gateway.call(&broken).await.reason(), "workspace_offline");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_at_the_same_server_is_followed() {
    let agent = Agent::scripted(|request| match request.head.starts_with("POST /moved/ ") {
        true => echo(request),
        false => vec![Step::write(
            "HTTP/1.1 307 Moved\r\nLocation: /moved/\r\nContent-Length: 0\r\n\r\n",
        )],
    });
    let (gateway, caller, target) = staged(Builder::new(Pair::Embedded), agent.await).await;
    pause(&gateway, "target", "pause").await;
    let id = keep(&gateway, &caller, &target, CALL).await;
    pause(&gateway, "target", "resume").await;
    state(&gateway, &caller, &target, &id, "completed").await;
    assert_eq!(target.agent.count(), 2, "once here, once there");
}
