//! Answers that are kept, calls that are made later, and agents that poll.

use super::*;
use crate::harness::{until_found, until_holds};
use crate::on_both_pairs;
use crate::polling::poller;

/// A gateway with one guard for all, which behaves by the target's name in one phase.
struct Stage {
    gateway: Gateway,
    caller: Seat,
    _guard: Agent,
}

impl Stage {
    async fn new(pair: Pair, phase: &str) -> Self {
        let guard = guard().await;
        let named = |name, behaviour, target| {
            let more = json!({"phases": [phase], "targets": [target]});
            table(name, &guard, behaviour, more)
        };
        let answers = json!({"phases": ["response", "event"], "targets": ["answers"]});
        let guards = json!([
            named("masks", "replace", "masked"),
            named("rejects", "reject", "rejected"),
            named("fails", "garbage", "failed"),
            table("answers", &guard, "reject", answers),
        ]);
        let gateway = builder(pair, &guards).start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        Self {
            gateway,
            caller,
            _guard: guard,
        }
    }

    async fn seat(&self, id: &str, said: &'static str) -> Seat {
        self.gateway.seat(id, "", agent(said).await).await
    }

    /// A workspace of an agent that polls.
    async fn poller(&self, id: &str) -> Seat {
        let token = poller(&self.gateway, id, card(id)).await;
        let (id, agent) = (id.into(), Agent::json("{}").await);
        Seat { id, token, agent }
    }

    fn request(&self, to: &Seat, text: &str) -> Request {
        Form::Rpc03.request(to, &self.caller, false, text)
    }

    async fn keyed(&self, to: &Seat, text: &str) -> Answer {
        let request = self.request(to, text);
        let request = request.field("Idempotency-Key", to.id.as_str());
        self.gateway.call(&request).await
    }

    async fn post(&self, by: &Seat, path: String, body: &Value) -> Answer {
        let request = Request::post(path, body.to_string()).bearer(&by.token);
        self.gateway.call(&request).await
    }

    async fn get(&self, by: &Seat, path: &str) -> Value {
        let request = Request::get(path).bearer(&by.token);
        self.gateway.call(&request).await.json()
    }

    async fn asked(&self, of: &Seat, method: &str, id: &str) -> Answer {
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"id": id}});
        self.post(&self.caller, of.path(), &call).await
    }

    async fn pause(&self, id: &str, verb: &str) {
        let request = Request::new("POST", format!("/workspaces/{id}/{verb}"));
        self.gateway.as_operator(request).await.has(200);
    }

    /// The task of a call that is made later, once it is over.
    async fn deferred(&self, to: &Seat, text: &str) -> Value {
        self.pause(&to.id, "pause").await;
        let request = self.request(to, text).field("Prefer", "respond-async");
        let kept = self.gateway.call(&request).await.has(202);
        self.pause(&to.id, "resume").await;
        let id = kept.json()["activity_id"].as_str().unwrap().to_owned();
        let task = async || self.asked(to, "tasks/get", &id).await.json();
        until_found("it is over", async || {
            let task = task().await;
            let state = task["result"]["status"]["state"].as_str();
            matches!(state, Some("completed" | "failed")).then_some(task)
        })
        .await
    }

    /// An agent that polls replies with the secret.
    async fn replies(&self, by: &Seat, activity: &str) {
        let message = json!({"kind": "message", "role": "agent", "messageId": "a-1",
            "parts": [{"kind": "text", "text": SECRET}]});
        let reply = json!({"jsonrpc": "2.0", "id": 1, "result": message});
        let path = format!("/workspaces/{}/activity/{activity}/reply", by.id);
        self.post(by, path, &reply).await.has(200);
    }
}

on_both_pairs! {
    async fn a_call_that_is_made_later_is_judged_when_it_is_sent(pair: Pair) {
        let stage = Stage::new(pair, "request").await;
        let masked = stage.seat("masked", "hello").await;
        let ended = stage.deferred(&masked, SECRET).await;
        assert_eq!(ended["result"]["status"]["state"], "completed", "{ended}");
        let sent = wire(&masked.agent);
        assert!(sent.contains(MASK) && !sent.contains(SECRET), "{sent}");
        let rejected = stage.seat("rejected", "hello").await;
        let ended = stage.deferred(&rejected, SECRET).await;
        let error = &ended["result"]["metadata"]["error"];
        assert_eq!((&error["reason"], &error["delivered"]), (&json!("guard_rejected"), &json!("false")), "{ended}");
        assert_eq!(rejected.agent.count(), 0);
        // A call that is rejected holds no key.
        for _ in 0..2 {
            stage.keyed(&rejected, SECRET).await.refuses(403, "guard_rejected");
        }
        assert_eq!(stage.keyed(&rejected, "hi").await.status, 200);
        assert_eq!(rejected.agent.count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_of_an_answer_is_what_passed() {
    let stage = Stage::new(Pair::Embedded, "response").await;
    for (id, status, state) in [
        ("masked", 200, "completed"),
        ("rejected", 403, "failed"),
        ("failed", 503, "failed"),
    ] {
        let seat = stage.seat(id, SECRET).await;
        let first = stage.keyed(&seat, "hi").await.has(status);
        let again = stage.keyed(&seat, "hi").await;
        for answer in [&first, &again] {
            assert!(!answer.text().contains(SECRET), "{}", answer.text());
        }
        assert_eq!(seat.agent.count(), 1, "it is not sent again");
        match id {
            "masked" => again.says(MASK),
            "rejected" => again.refuses(403, "guard_rejected"),
            _ => assert!(again.status >= 400, "{}", again.text()),
        }
        if id != "failed" {
            assert_eq!(again.text(), first.text());
            assert_eq!(again.field("idempotent-replay"), Some("true"));
        }
        // The same of a call that is made later.
        let ended = stage.deferred(&seat, "hi").await;
        assert_eq!(ended["result"]["status"]["state"], state, "{ended}");
        assert!(!ended.to_string().contains(SECRET), "{ended}");
        assert_eq!(ended.to_string().contains(MASK), id == "masked", "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_into_an_inbox_and_what_comes_out_is_judged() {
    let stage = Stage::new(Pair::Embedded, "request").await;
    for (id, status) in [("masked", 200), ("rejected", 403), ("failed", 503)] {
        let to = stage.poller(id).await;
        let answer = stage.gateway.call(&stage.request(&to, SECRET)).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        let inbox = stage.get(&to, "/activity").await.to_string();
        assert!(!inbox.contains(SECRET), "{inbox}");
        assert_eq!(inbox.contains(MASK), id == "masked", "{inbox}");
    }
    let to = stage.poller("answers").await;
    let sent = stage.gateway.call(&stage.request(&to, "hi")).await.json();
    let activity = sent["activity_id"].as_str().unwrap();
    stage.replies(&to, activity).await;
    let read = stage.asked(&to, "tasks/get", activity).await.json();
    let reason = &read["error"]["data"][0]["reason"];
    assert_eq!(reason, "GUARD_REJECTED", "{read}");
    let followed = stage.asked(&to, "tasks/resubscribe", activity).await;
    followed.says("GUARD_REJECTED");
    assert!(!followed.text().contains(SECRET), "{}", followed.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegation_to_an_agent_that_polls_ends_with_what_passes() {
    let stage = Stage::new(Pair::Embedded, "response").await;
    for (id, status) in [("masked", "completed"), ("rejected", "failed")] {
        let to = stage.poller(id).await;
        let task = json!({"target_id": id, "task": "work"});
        let path = "/workspaces/caller/delegate".to_owned();
        let made = stage.post(&stage.caller, path, &task).await.json();
        let delegation = made["delegation_id"].as_str().unwrap();
        let first = async || stage.get(&to, "/activity").await[0]["id"].clone();
        until_holds("it is in the inbox", async || first().await.is_string()).await;
        let activity = first().await;
        stage.replies(&to, activity.as_str().unwrap()).await;
        let path = format!("/workspaces/caller/delegations/{delegation}");
        let ended = async || stage.get(&stage.caller, &path).await["status"] == status;
        until_holds("the delegation is over", ended).await;
        let result = stage.get(&stage.caller, &path).await.to_string();
        assert!(!result.contains(SECRET), "{result}");
        assert_eq!(result.contains(MASK), id == "masked", "{result}");
        let own = stage.get(&stage.caller, "/activity").await.to_string();
        assert!(!own.contains(SECRET), "{own}");
    }
}
