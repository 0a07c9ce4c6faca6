//! Calls that are answered, kept or made later by the gateway count once: replays, deferred calls, entries of inboxes,
//! streams that are resumed, delegations.

use serde_json::json;

use super::{assert_reached, capped, in_run, per_run, send, used};
use crate::harness::{Agent, LAST_CHUNK, Pair, Request, Step, card, sse, until_holds};
use crate::jobs::echo;
use crate::on_embedded;
use crate::polling::poller;

on_embedded! {
    async fn a_replay_counts_once_and_is_never_refused() {
        let gateway = capped(Pair::Embedded, &per_run(2)).start().await;
        let (caller, target) = gateway.pair(Agent::scripted(echo).await).await;
        let keyed = |key: &str| send(&target, &caller, &in_run("r")).field("Idempotency-Key", key);
        for _ in 0..3 {
            for key in ["one", "two"] {
                assert_eq!(gateway.call(&keyed(key)).await.status, 200);
            }
        }
        assert_eq!((target.agent.count(), used(&gateway, "run").await), (2, 2));
        // A refused call frees its key, and what was answered is replayed although the cap is reached.
        assert_reached(&gateway.call(&keyed("three")).await, "run");
        assert_eq!(gateway.call(&keyed("one")).await.status, 200);
        assert_eq!(target.agent.count(), 2);
    }

    async fn a_deferred_call_counts_when_it_is_accepted() {
        let gateway = capped(Pair::Embedded, &per_run(1)).set("upstream.hold", "0s").start().await;
        let (caller, target) = gateway.pair(Agent::scripted(echo).await).await;
        let away = Request::post("/registry/deregister", json!({"workspace_id": "target"}).to_string()).bearer(&target.token);
        gateway.call(&away).await.has(200);
        let request = send(&target, &caller, &in_run("r")).field("Prefer", "respond-async");
        gateway.call(&request).await.has(202);
        assert_reached(&gateway.call(&request).await, "run");
        let back = json!({"id": "target", "url": target.agent.url(), "agent_card": card("target")});
        let back = Request::post("/registry/register", back.to_string()).bearer(&target.token);
        assert_eq!(gateway.call(&back).await.status, 200);
        until_holds("the call is made", async || target.agent.count() == 1).await;
        gateway.assert_idle().await;
        assert_eq!(used(&gateway, "run").await, 1);
    }

    async fn an_entry_of_an_inbox_counts_once() {
        let gateway = capped(Pair::Embedded, &per_run(2)).start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let token = poller(&gateway, "poller", card("poller")).await;
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": in_run("r")});
        let request = Request::post("/workspaces/poller/a2a", call.to_string()).bearer(&caller.token);
        let keyed = request.clone().field("Idempotency-Key", "k");
        for request in [&request, &keyed, &keyed] {
            gateway.call(request).await.has(200);
        }
        assert_reached(&gateway.call(&request).await, "run");
        assert_eq!(gateway.call(&keyed).await.status, 200);
        // To read them counts nothing.
        let feed = Request::get("/workspaces/poller/activity").bearer(&token);
        gateway.call(&feed).await.has(200);
        assert_eq!(used(&gateway, "run").await, 2);
    }

    async fn a_stream_that_is_resumed_counts_once() {
        let caps = json!([{"name": "s", "per": "run", "count": "streams", "limit": 1},
            {"name": "run", "per": "run", "count": "messages", "limit": 1}]);
        let gateway = capped(Pair::Embedded, &caps).start().await;
        let event = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"kind\":\"message\",\"role\":\"agent\",\"messageId\":\"a\",\"parts\":[]}}\n\n";
        let streaming = move |_: &_| sse(event, Step::write(LAST_CHUNK));
        let (caller, target) = gateway.pair(Agent::scripted(streaming).await).await;
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": in_run("r")});
        let answer = gateway.call(&caller.sends(&target, call.to_string())).await.has(200);
        let stream = answer.field("x-a2a-stream").unwrap().to_owned();
        let resume = Request::get(format!("/workspaces/target/streams/{stream}")).bearer(&caller.token);
        for _ in 0..2 {
            assert_eq!(gateway.call(&resume).await.status, 200);
        }
        assert_eq!((used(&gateway, "s").await, used(&gateway, "run").await), (1, 1));
    }

    async fn a_delegation_counts_once_in_the_run_that_it_serves() {
        let gateway = capped(Pair::Embedded, &per_run(3)).start().await;
        let (caller, target) = gateway.pair(Agent::scripted(echo).await).await;
        let delegate = |key: &str| {
            let body = json!({"target_id": "target", "task": "work", "idempotency_key": key,
                "metadata": {"run_id": "r"}});
            Request::post("/workspaces/caller/delegate", body.to_string()).bearer(&caller.token)
        };
        assert_eq!(gateway.call(&send(&target, &caller, &in_run("r"))).await.status, 200);
        assert_eq!(gateway.call(&delegate("one")).await.status, 202);
        assert_eq!(gateway.call(&delegate("one")).await.status, 200);
        assert_eq!(gateway.call(&delegate("two")).await.status, 202);
        until_holds("both are made", async || target.agent.count() == 3).await;
        gateway.assert_idle().await;
        // The agent learns the run, so that its own calls can name it.
        let call: serde_json::Value = serde_json::from_slice(&target.agent.requests()[2].body).unwrap();
        assert_eq!(call["params"]["metadata"]["run_id"], "r", "{call}");
        let refused = gateway.call(&delegate("three")).await;
        refused.refuses(429, "cap_reached");
        assert_eq!(refused.json()["cap"], "run");
        assert_eq!(used(&gateway, "run").await, 3);
        let traced = json!({"target_id": "target", "task": "traced"}).to_string();
        let traced = Request::post("/workspaces/caller/delegate", traced).bearer(&caller.token)
            .field("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        assert_eq!(gateway.call(&traced).await.status, 202);
        until_holds("it is made", async || target.agent.count() == 4).await;
        let last = &target.agent.requests()[3];
        let parent = last.field("traceparent").unwrap_or_default();
        assert!(parent.contains("0af7651916cd43dd8448eb211c80319c"), "{parent}");
    }
}
