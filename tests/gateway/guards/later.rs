//! Answers that are kept, calls that are made later, and agents that poll.

use super::*;
use crate::harness::until_holds;
use crate::on_both_pairs;

/// One guard for all, which behaves by the target's name in one phase.
fn guards(guard: &Agent, phase: &str) -> Value {
    json!([
        table(
            "masks",
            guard,
            "replace",
            json!({"phases": [phase], "targets": ["masked"]})
        ),
        table(
            "rejects",
            guard,
            "reject",
            json!({"phases": [phase], "targets": ["rejected"]})
        ),
        table(
            "fails",
            guard,
            "garbage",
            json!({"phases": [phase], "targets": ["failed"]})
        ),
    ])
}

async fn deferred(gateway: &Gateway, caller: &Seat, to: &Seat, text: &str) -> String {
    pause(gateway, &to.id, "pause").await;
    let request = Form::Rpc03
        .request(to, caller, false, text)
        .field("Prefer", "respond-async");
    let kept = gateway.call(&request).await;
    assert_eq!(kept.status, 202, "{}", kept.text());
    pause(gateway, &to.id, "resume").await;
    kept.json()["activity_id"].as_str().unwrap().to_owned()
}

async fn pause(gateway: &Gateway, id: &str, verb: &str) {
    let request = Request::new("POST", format!("/workspaces/{id}/{verb}"));
    let answer = gateway.as_operator(request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn task(gateway: &Gateway, caller: &Seat, path: String, id: &str) -> Value {
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tasks/get", "params": {"id": id}});
    let answer = gateway
        .call(&Request::post(path, call.to_string()).bearer(&caller.token))
        .await;
    answer.json()
}

/// The task once it is over.
async fn over(gateway: &Gateway, caller: &Seat, at: &Seat, id: &str) -> Value {
    let ended = async || {
        let state = task(gateway, caller, at.path(), id).await["result"]["status"]["state"].clone();
        ["completed", "failed"].iter().any(|word| state == *word)
    };
    until_holds("what is told in the end", ended).await;
    task(gateway, caller, at.path(), id).await
}

on_both_pairs! {
    async fn a_call_that_is_made_later_is_judged_when_it_is_sent(pair: Pair) {
        let guard = guard().await;
        let gateway = builder(pair, &guards(&guard, "request")).start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let masked = gateway.seat("masked", "", agent("hello").await).await;
        let id = deferred(&gateway, &caller, &masked, SECRET).await;
        let ended = over(&gateway, &caller, &masked, &id).await;
        assert_eq!(ended["result"]["status"]["state"], "completed", "{ended}");
        let sent = wire(&masked.agent);
        assert!(sent.contains(MASK) && !sent.contains(SECRET), "{sent}");
        let rejected = gateway.seat("rejected", "", agent("hello").await).await;
        let id = deferred(&gateway, &caller, &rejected, SECRET).await;
        let ended = over(&gateway, &caller, &rejected, &id).await;
        let error = &ended["result"]["metadata"]["error"];
        assert_eq!((&error["reason"], &error["delivered"]), (&json!("guard_rejected"), &json!("false")), "{ended}");
        assert_eq!(rejected.agent.count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_for_a_key_is_what_passed() {
    let guard = guard().await;
    let gateway = builder(Pair::Embedded, &guards(&guard, "response"))
        .start()
        .await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    for (id, status) in [("masked", 200), ("rejected", 403), ("failed", 503)] {
        let seat = gateway.seat(id, "", agent(SECRET).await).await;
        let request = Form::Rpc03
            .request(&seat, &caller, false, "hi")
            .field("Idempotency-Key", id);
        let first = gateway.call(&request).await;
        assert_eq!(first.status, status, "{}", first.text());
        let again = gateway.call(&request).await;
        for answer in [&first, &again] {
            assert!(!answer.text().contains(SECRET), "{}", answer.text());
        }
        assert_eq!(seat.agent.count(), 1, "it is not sent again");
        if id == "masked" {
            assert!(
                again.text().contains(MASK) && again.field("idempotent-replay") == Some("true")
            );
        } else if id == "rejected" {
            again.refuses(403, "guard_rejected");
            assert_eq!(again.text(), first.text());
            assert_eq!(again.field("idempotent-replay"), Some("true"));
        } else {
            assert!(again.status >= 400, "{}", again.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_rejected_holds_no_key() {
    let guard = guard().await;
    let gateway = builder(Pair::Embedded, &guards(&guard, "request"))
        .start()
        .await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    let seat = gateway.seat("rejected", "", agent("hello").await).await;
    let request = |text| {
        Form::Rpc03
            .request(&seat, &caller, false, text)
            .field("Idempotency-Key", "k")
    };
    for _ in 0..2 {
        let answer = gateway.call(&request(SECRET)).await;
        answer.refuses(403, "guard_rejected");
    }
    assert_eq!(gateway.call(&request("hi")).await.status, 200);
    assert_eq!(seat.agent.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_a_call_that_was_made_later_is_judged() {
    let guard = guard().await;
    let gateway = builder(Pair::Embedded, &guards(&guard, "response"))
        .start()
        .await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    for (id, state) in [
        ("masked", "completed"),
        ("rejected", "failed"),
        ("failed", "failed"),
    ] {
        let seat = gateway.seat(id, "", agent(SECRET).await).await;
        let job = deferred(&gateway, &caller, &seat, "hi").await;
        let ended = over(&gateway, &caller, &seat, &job).await;
        assert_eq!(ended["result"]["status"]["state"], state, "{ended}");
        assert!(!ended.to_string().contains(SECRET), "{ended}");
        assert_eq!(ended.to_string().contains(MASK), id == "masked", "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_into_an_inbox_and_what_comes_out_is_judged() {
    let guard = guard().await;
    let mut tables = guards(&guard, "request");
    let both = json!({"phases": ["response", "event"], "targets": ["answers"]});
    tables
        .as_array_mut()
        .unwrap()
        .push(table("answers", &guard, "reject", both));
    let gateway = builder(Pair::Embedded, &tables).start().await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    for (id, status, masked) in [
        ("masked", 200, true),
        ("rejected", 403, false),
        ("failed", 503, false),
    ] {
        let token = crate::polling::poller(&gateway, id, card(id)).await;
        let to = Seat {
            id: id.into(),
            token: token.clone(),
            agent: Agent::json("{}").await,
        };
        let answer = gateway
            .call(&Form::Rpc03.request(&to, &caller, false, SECRET))
            .await;
        assert_eq!(answer.status, status, "{}", answer.text());
        let inbox = gateway
            .call(&Request::get("/activity").bearer(&token))
            .await
            .text();
        assert!(!inbox.contains(SECRET), "{inbox}");
        assert_eq!(inbox.contains(MASK), masked, "{inbox}");
    }
    let token = crate::polling::poller(&gateway, "answers", card("answers")).await;
    let to = Seat {
        id: "answers".into(),
        token: token.clone(),
        agent: Agent::json("{}").await,
    };
    let sent = gateway
        .call(&Form::Rpc03.request(&to, &caller, false, "hi"))
        .await
        .json();
    let activity = sent["activity_id"].as_str().unwrap();
    let reply = json!({"jsonrpc": "2.0", "id": 1, "result": {"kind": "message", "role": "agent", "messageId": "a-1", "parts": [{"kind": "text", "text": SECRET}]}});
    let path = format!("/workspaces/answers/activity/{activity}/reply");
    let replied = gateway
        .call(&Request::post(path, reply.to_string()).bearer(&token))
        .await;
    assert_eq!(replied.status, 200, "{}", replied.text());
    let read = task(&gateway, &caller, to.path(), activity).await;
    assert_eq!(
        read["error"]["data"][0]["reason"], "GUARD_REJECTED",
        "{read}"
    );
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tasks/resubscribe", "params": {"id": activity}});
    let followed = gateway
        .call(&Request::post(to.path(), call.to_string()).bearer(&caller.token))
        .await
        .text();
    assert!(
        !followed.contains(SECRET) && followed.contains("GUARD_REJECTED"),
        "{followed}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegation_to_an_agent_that_polls_ends_with_what_passes() {
    let guard = guard().await;
    let gateway = builder(Pair::Embedded, &guards(&guard, "response"))
        .start()
        .await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    for (id, status) in [("masked", "completed"), ("rejected", "failed")] {
        let token = crate::polling::poller(&gateway, id, card(id)).await;
        let body = json!({"target_id": id, "task": "work"});
        let path = format!("/workspaces/{}/delegate", caller.id);
        let made = gateway
            .call(&Request::post(path, body.to_string()).bearer(&caller.token))
            .await;
        let delegation = made.json()["delegation_id"].as_str().unwrap().to_owned();
        let inbox = async || {
            let listed = gateway
                .call(&Request::get("/activity").bearer(&token))
                .await
                .json();
            listed[0]["id"].as_str().map(str::to_owned)
        };
        until_holds("what is told in the end", async || inbox().await.is_some()).await;
        let path = format!("/workspaces/{id}/activity/{}/reply", inbox().await.unwrap());
        let reply = json!({"jsonrpc": "2.0", "id": 1, "result": {"kind": "message", "role": "agent", "messageId": "a-1", "parts": [{"kind": "text", "text": SECRET}]}});
        gateway
            .call(&Request::post(path, reply.to_string()).bearer(&token))
            .await;
        let path = format!("/workspaces/{}/delegations/{delegation}", caller.id);
        let read = async || {
            gateway
                .call(&Request::get(&path).bearer(&caller.token))
                .await
                .json()
        };
        until_holds("what is told in the end", async || {
            read().await["status"] == status
        })
        .await;
        let result = read().await.to_string();
        assert!(!result.contains(SECRET), "{result}");
        assert_eq!(result.contains(MASK), id == "masked", "{result}");
        let own = gateway
            .call(&Request::get("/activity").bearer(&caller.token))
            .await
            .text();
        assert!(!own.contains(SECRET), "{own}");
    }
}
