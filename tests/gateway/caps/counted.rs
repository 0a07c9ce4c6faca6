//! Which calls count, under which subject, and what a refusal says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::{assert_reached, cap as cap_of, capped, hello, in_run, per_run, rpc, send, task, used};
use crate::harness::{
    Agent, LAST_CHUNK, Pair, Request, Step, ok_json, sse, until_found, until_holds,
};
use crate::{on_both_pairs, on_embedded};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

on_both_pairs! {
    async fn a_window_ends_and_the_refusal_says_when(pair: Pair) {
        let caps = json!([{"name": "c", "per": "caller", "count": "messages", "limit": 2, "window": "2s"}]);
        let gateway = capped(pair, &caps).start().await;
        let (caller, target) = gateway.pair(Agent::scripted(hello).await).await;
        let request = send(&target, &caller, &in_run("r"));
        // Of three calls within a window.
        let refused = until_found("the limit", async || {
            let answer = gateway.call(&request).await;
            (answer.status != 200).then_some(answer)
        }).await;
        assert!(target.agent.count() >= 2);
        assert_reached(&refused, "c");
        let resets = humantime::parse_rfc3339(&refused.fact("resets_at").unwrap()).unwrap();
        let left = resets.duration_since(std::time::SystemTime::now()).unwrap_or_default();
        assert!(left <= Duration::from_secs(2), "{left:?}");
        let after: u64 = refused.field("retry-after").unwrap().parse().unwrap();
        assert!((1..=2).contains(&after), "{after}");
        assert!(refused.text().contains("do not send before"), "{}", refused.text());
        until_holds("the window ends", async || gateway.call(&request).await.status == 200).await;
        // Another caller has its own count.
        let other = gateway.seat("other", "", Agent::json("{}").await).await;
        for _ in 0..2 {
            assert_eq!(gateway.call(&send(&target, &other, &in_run("r"))).await.status, 200);
        }
    }

    async fn refused_calls_count_nothing(pair: Pair) {
        let caps = json!([{"name": "c", "per": "caller", "count": "messages", "limit": 2, "window": "1h"},
            {"name": "never", "per": "org", "count": "tasks", "limit": 1, "window": "1h", "scope": ["full"]}]);
        let gateway = capped(pair, &caps).set("upstream.hold", "0s").start().await;
        let (caller, target) = gateway.pair(Agent::scripted(hello).await).await;
        let gone = gateway.seat("gone", "", Agent::json("{}").await).await;
        gone.agent.stop();
        let full = gateway.seat("full", "", Agent::scripted(task).await).await;
        for _ in 0..4 {
            // Not connected; params that contradict each other; a body that is no call.
            let refused = gateway.call(&send(&gone, &caller, &in_run("r"))).await;
            assert_eq!(refused.reason(), "agent_unreachable");
            let mut unclear = in_run("r");
            unclear["message"]["message_id"] = "another".into();
            assert_eq!(gateway.call(&send(&target, &caller, &unclear)).await.reason(), "invalid_params");
            gateway.call(&caller.sends(&target, "{\"jsonrpc\"")).await.has(400);
        }
        assert_eq!(gateway.call(&send(&full, &caller, &in_run("r"))).await.status, 200);
        // The one cap refuses, so the other one counts nothing.
        for _ in 0..3 {
            assert_reached(&gateway.call(&send(&full, &caller, &in_run("r"))).await, "never");
        }
        assert_eq!(gateway.call(&send(&target, &caller, &in_run("r"))).await.status, 200);
        assert_reached(&gateway.call(&send(&target, &caller, &in_run("r"))).await, "c");
        assert_eq!(used(&gateway, "c").await, 2);
    }

    async fn streams_bytes_and_seconds_are_counted_as_they_pass(pair: Pair) {
        let cap = |count: &str, limit: u64, scope: &str| json!({"name": count, "per": "target", "count": count,
            "limit": limit, "window": "1h", "scope": [scope]});
        let caps = json!([cap("streams", 2, "streams"), cap("bytes", 5000, "bytes"), cap("seconds", 1, "seconds")]);
        let gateway = capped(pair, &caps).start().await;
        let (caller, _) = gateway.pair(Agent::json("{}").await).await;
        let event = format!("data: {}\n\n", rpc(&json!({"kind": "message", "role": "agent", "messageId": "a", "parts": []})));
        let streaming = move |_: &_| sse(&event, Step::write(LAST_CHUNK));
        let streams = gateway.seat("streams", "", Agent::scripted(streaming).await).await;
        let stream = json!({"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": in_run("r")});
        let stream = caller.sends(&streams, stream.to_string());
        for _ in 0..2 {
            assert_eq!(gateway.call(&stream).await.status, 200);
        }
        assert_reached(&gateway.call(&stream).await, "streams");
        let long = rpc(&json!({"kind": "message", "role": "agent", "messageId": "a", "parts": [{"kind": "text", "text": "x".repeat(3000)}]}));
        let bytes = gateway.seat("bytes", "", Agent::scripted(move |_| vec![Step::Write(ok_json(&long))]).await).await;
        for _ in 0..2 {
            assert_eq!(gateway.call(&send(&bytes, &caller, &in_run("r"))).await.status, 200);
        }
        assert_reached(&gateway.call(&send(&bytes, &caller, &in_run("r"))).await, "bytes");
        let slow = |request: &crate::harness::Recorded| {
            let mut steps = vec![Step::Wait(Duration::from_millis(600))];
            steps.extend(hello(request));
            steps
        };
        let seconds = gateway.seat("seconds", "", Agent::scripted(slow).await).await;
        // Two at once take more than a second together.
        let (one, two) = (send(&seconds, &caller, &in_run("r")), send(&seconds, &caller, &in_run("r")));
        let (one, two) = tokio::join!(gateway.call(&one), gateway.call(&two));
        assert_eq!((one.status, two.status), (200, 200));
        assert_reached(&gateway.call(&send(&seconds, &caller, &in_run("r"))).await, "seconds");
        until_holds("the use is reported", async || {
            let total = used(&gateway, "bytes").await;
            used(&gateway, "seconds").await >= 1 && (6000..9000).contains(&total)
        }).await;
    }
}

on_embedded! {
    async fn a_run_is_named_by_its_id_its_trace_or_its_context() {
        let gateway = capped(Pair::Embedded, &per_run(3)).start().await;
        let (caller, target) = gateway.pair(Agent::scripted(hello).await).await;
        let of_message = |run: &str| {
            let mut params = in_run(run);
            params["message"]["metadata"] = params["metadata"].take();
            params
        };
        let plain = json!({"message": {"role": "user", "messageId": "m", "parts": []}});
        let in_context = |context: &str| {
            let mut params = plain.clone();
            params["message"]["contextId"] = context.into();
            params
        };
        let traced = |request: Request| request.field("traceparent", TRACE);
        let to = |params: &Value| send(&target, &caller, params);
        // Each three names the same run.
        for requests in [
            [to(&in_run("one")), to(&of_message("one")), traced(to(&in_run("one")))],
            [traced(to(&plain)), traced(to(&in_context("c-9"))), to(&in_run("0af7651916cd43dd8448eb211c80319c"))],
            [to(&in_context("c-1")), to(&in_context("c-1")), to(&in_run("c-1"))],
        ] {
            let before = target.agent.count();
            for request in &requests {
                gateway.call(request).await.has(200);
            }
            for request in &requests {
                let refused = gateway.call(request).await;
                assert_reached(&refused, "run");
                assert_eq!(refused.fact("limit").as_deref(), Some("3"));
                // It never begins again.
                assert_eq!((refused.fact("resets_at"), refused.field("retry-after")), (None, None));
            }
            assert_eq!(target.agent.count(), before + 3);
        }
        // What names no run is not counted, and what sends no message is never refused.
        for _ in 0..5 {
            assert_eq!(gateway.call(&to(&plain)).await.status, 200);
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {"metadata": {"run_id": "one"}}});
        gateway.call(&caller.sends(&target, body.to_string())).await.has(200);
    }

    async fn the_bindings_count_together() {
        let gateway = capped(Pair::Embedded, &per_run(1)).start().await;
        let (caller, target) = gateway.pair(Agent::scripted(hello).await).await;
        assert_eq!(gateway.call(&send(&target, &caller, &in_run("r"))).await.status, 200);
        let body = json!({"metadata": {"run_id": "r"}, "message": {"role": "ROLE_USER", "messageId": "m", "parts": [{"text": "hi"}]}});
        let rest = Request::post("/workspaces/target/a2a/message:send", body.to_string()).bearer(&caller.token);
        let refused = gateway.call(&rest.field("A2A-Version", "1.0")).await;
        assert_reached(&refused, "run");
        let bare = caller.sends(&target, r#"{"message":{"text":"hi"},"run_id":"r"}"#);
        assert_reached(&gateway.call(&bare).await, "run");
        assert_eq!(target.agent.calls(), 1);
    }

    async fn tasks_are_those_that_calls_begin() {
        let caps = json!([{"name": "t", "per": "pair", "count": "tasks", "limit": 1, "window": "1h"}]);
        let gateway = capped(Pair::Embedded, &caps).start().await;
        let (caller, target) = gateway.pair(Agent::scripted(hello).await).await;
        let tasks = gateway.seat("tasks", "", Agent::scripted(task).await).await;
        for _ in 0..3 {
            // Answered with a message: no task began.
            assert_eq!(gateway.call(&send(&target, &caller, &in_run("r"))).await.status, 200);
        }
        assert_eq!(gateway.call(&send(&tasks, &caller, &in_run("r"))).await.status, 200);
        assert_reached(&gateway.call(&send(&tasks, &caller, &in_run("r"))).await, "t");
        let mut next = in_run("r");
        next["message"]["taskId"] = "t-1".into();
        for _ in 0..3 {
            assert_eq!(gateway.call(&send(&tasks, &caller, &next)).await.status, 200);
        }
    }

    async fn a_tree_of_delegation_is_one_run() {
        let gateway = capped(Pair::Embedded, &per_run(8)).start().await;
        let known: Known = Arc::default();
        let mut seats = vec![gateway.seat("root", "", Agent::json("{}").await).await];
        for depth in 1..=5 {
            let agent = forwarding(&known, depth).await;
            seats.push(gateway.seat(&format!("depth-{depth}"), "", agent).await);
        }
        for (depth, seat) in seats.iter().enumerate() {
            known.lock().unwrap().insert(depth, (seat.token.clone(), gateway.public));
        }
        // Each agent calls the next one, in the run that it was called in, and the last answers.
        let call = send(&seats[1], &seats[0], &in_run("tree"));
        gateway.call(&call).await.has(200);
        let called: Vec<usize> = seats[1..].iter().map(|seat| seat.agent.count()).collect();
        assert_eq!((called, used(&gateway, "run").await), (vec![1; 5], 5));
        // Three are left: the fourth agent is refused.
        gateway.call(&call).await.says("CAP_REACHED");
        let called: Vec<usize> = seats[1..].iter().map(|seat| seat.agent.count()).collect();
        assert_eq!((called, used(&gateway, "run").await), (vec![2, 2, 2, 1, 1], 8));
    }

    async fn a_run_or_context_that_another_org_named_uses_up_nothing() {
        let cap = |per: &str| json!({"name": per, "per": per, "count": "messages", "limit": 3});
        let gateway = capped(Pair::Embedded, &json!([cap("run"), cap("context")])).start().await;
        for (id, org) in [("here", "a"), ("there", "b")] {
            gateway.create(json!({"id": id, "name": id, "org": org})).await;
        }
        let caller = gateway.seat("caller", "here", Agent::json("{}").await).await;
        let served = gateway.seat("served", "there", Agent::scripted(hello).await).await;
        let peer = gateway.seat("peer", "there", Agent::scripted(hello).await).await;
        let grant = json!({"caller_id": "caller", "target_id": "served"});
        gateway.as_operator(Request::post("/grants", grant.to_string())).await.has(201);
        let mut in_context = in_run("r");
        in_context["metadata"].take();
        in_context["message"]["contextId"] = "c".into();
        for (name, params) in [("run", in_run("r")), ("context", in_context)] {
            // The caller names the run that its target is going to name, and uses it up; then the target does its own
            // work.
            for (to, by) in [(&served, &caller), (&peer, &served)] {
                for _ in 0..3 {
                    let answer = gateway.call(&send(to, by, &params)).await;
                    assert_eq!(answer.status, 200, "{name}: {}", answer.text());
                }
                let refused = gateway.call(&send(to, by, &params)).await;
                assert_eq!(refused.reason(), "cap_reached", "{name}");
            }
            let shown = cap_of(&gateway, name).await;
            let mut orgs: Vec<_> = shown["subjects"].as_array().unwrap().iter()
                .filter(|one| one["used"] == 3).map(|one| one["org"].as_str()).collect();
            orgs.sort_unstable();
            assert_eq!(orgs, [Some("a"), Some("b")], "{shown}");
        }
    }
}

/// The tokens of agents by depth, and where they call.
type Known = Arc<Mutex<HashMap<usize, (String, std::net::SocketAddr)>>>;

/// An agent that passes a message on to the agent below it, with the metadata that it got.
async fn forwarding(known: &Known, depth: usize) -> Agent {
    let known = Arc::clone(known);
    Agent::scripted(move |request| {
        if depth == 5 {
            return hello(request);
        }
        let (token, gateway) = known.lock().unwrap().get(&depth).cloned().unwrap();
        let path = format!("/workspaces/depth-{}/a2a", depth + 1);
        let asked = Request::post(path, &request.body).bearer(&token);
        let asked = asked.field("Connection", "close");
        let asked = asked.wire(&gateway.to_string());
        vec![Step::Ask(gateway, asked), Step::Close]
    })
    .await
}

/// A gateway whose caps make no sense does not start, and says what to write instead.
#[test]
fn a_cap_that_makes_no_sense_ends_the_start() {
    let caps = json!([{"name": "c", "per": "caller", "count": "messages", "limit": 1}]);
    let mut check = std::process::Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    check.args(["check-config", "--set", &format!("cap={caps}")]);
    let shown = check.output().unwrap();
    let text = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert_eq!(shown.status.code(), Some(64), "{text}");
    assert!(text.contains("`c` counts by caller"), "{text}");
    assert!(text.contains("`window`"), "{text}");
}
