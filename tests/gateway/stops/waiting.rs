//! Calls that wait while a stop is in force, and arrive after its release: deferred calls, messages in an inbox, parked
//! calls.

use std::time::Duration;

use serde_json::{Value, json};

use super::{assert_stopped, beat, call, release, stop, until};
use crate::harness::{Agent, Builder, CALL, Connection, Gateway, Pair, Request, card, holds_for};
use crate::polling::poller;
use crate::{on_both_pairs, on_embedded};

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"message","messageId":"a","role":"agent","parts":[]}}"#;

async fn set_status(gateway: &Gateway, id: &str, verb: &str) {
    let request = Request::new("POST", format!("/workspaces/{id}/{verb}"));
    assert_eq!(gateway.as_operator(request).await.status, 200);
}

on_both_pairs! {
    async fn messages_in_an_inbox_wait_and_none_is_missed(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let other = gateway.seat("other", "", Agent::json("{}").await).await;
        let token = poller(&gateway, "poller", card("poller")).await;
        let read = async |query: &str| -> Vec<Value> {
            let request = Request::get(format!("/activity{query}")).bearer(&token);
            let answer = gateway.call(&request).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.json().as_array().unwrap().clone()
        };
        let send = async |token: &str| {
            let answer = gateway.call(&call(token, "poller")).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.json()["activity_id"].as_str().unwrap().to_owned()
        };
        let first = send(&other.token).await;
        let stopped = send(&caller.token).await;
        let last = send(&other.token).await;
        let id = stop(&gateway, json!({"caller": "caller", "target": "poller"}), "new").await;
        let ids = |items: Vec<Value>| -> Vec<String> {
            items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(ids(read("").await), [first.as_str()], "none after the stopped one");
        let since = format!("?since_id={first}");
        assert_eq!(ids(read(&since).await), [] as [String; 0]);
        let request = Request::get(format!("/activity{since}&wait=20")).bearer(&token);
        let at = gateway.public;
        let waits = tokio::spawn(async move { Connection::open(at).await.call(&request).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        release(&gateway, &id).await;
        let answer = waits.await.unwrap();
        let found = ids(answer.json().as_array().unwrap().clone());
        assert_eq!(found, [stopped.as_str(), last.as_str()]);
        // A stop of the whole inbox, and what was acknowledged before it.
        let ack = json!({"up_to": first}).to_string();
        let ack = Request::post("/workspaces/poller/activity/ack", ack).bearer(&token);
        assert_eq!(gateway.call(&ack).await.status, 200);
        let id = stop(&gateway, json!({"workspace": "poller"}), "running").await;
        assert_eq!(ids(read("").await), [first.as_str()]);
        assert_stopped(&gateway.call(&call(&caller.token, "poller")).await, &id, "a new one");
        release(&gateway, &id).await;
        assert_eq!(ids(read("").await), [last.as_str(), stopped.as_str(), first.as_str()]);
    }
}

on_embedded! {
    async fn a_deferred_call_waits_and_others_to_its_target_do_not() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let (caller, target) = gateway.pair(Agent::json(ANSWER).await).await;
        let other = gateway.seat("other", "", Agent::json("{}").await).await;
        set_status(&gateway, "target", "pause").await;
        let defer = async |token: &str| {
            let request = call(token, "target").field("Prefer", "respond-async");
            let answer = gateway.call(&request).await;
            assert_eq!(answer.status, 202, "{}", answer.text());
        };
        defer(&caller.token).await;
        defer(&other.token).await;
        let id = stop(&gateway, json!({"caller": "caller", "target": "target"}), "new").await;
        set_status(&gateway, "target", "resume").await;
        until("the other's arrives", async || target.agent.count() == 1).await;
        let only_one = async || target.agent.count() == 1;
        holds_for(Duration::from_millis(500), "the stopped one waits", only_one).await;
        release(&gateway, &id).await;
        until("it arrives", async || target.agent.count() == 2).await;
        holds_for(Duration::from_millis(500), "once", async || target.agent.count() == 2).await;
    }

    async fn a_parked_call_waits_though_its_agent_is_awake() {
        let gateway = Builder::new(Pair::Embedded).start().await;
        let waker = Agent::json("{}").await;
        let (caller, target) = gateway.pair(Agent::json(ANSWER).await).await;
        let wake = json!({"wake": {"url": waker.url()}, "status": "hibernated"});
        assert_eq!(gateway.patch("target", wake).await.status, 200);
        let request = Request::post(target.path(), CALL).bearer(&caller.token);
        let at = gateway.public;
        let parked = tokio::spawn(async move { Connection::open(at).await.call(&request).await });
        until("it is parked", async || {
            gateway.metric("a2a_gateway_parked_calls", &[]).await == 1.0
        }).await;
        let id = stop(&gateway, json!({"workspace": "target"}), "running").await;
        assert_eq!(beat(&gateway, &target).await, 200);
        let waits = async || target.agent.count() == 0 && !parked.is_finished();
        holds_for(Duration::from_millis(500), "it waits", waits).await;
        release(&gateway, &id).await;
        let answer = parked.await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(target.agent.count(), 1);
    }
}
