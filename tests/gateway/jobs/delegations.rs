//! What a workspace may delegate, what the agent gets, and what comes back.

use serde_json::{Value, json};

use super::{Inboxes, accepted, delegate, delegate_with, delegation_in, echo, pause, texts, until};
use crate::harness::watcher::{Socket, handshake};
use crate::harness::{Agent, Builder, Gateway, Pair, Request, card_1_0};
use crate::on_both_pairs;
use crate::operators::{paired, staged};

on_both_pairs! {
    async fn a_delegation_is_answered_at_once_and_its_result_is_kept(pair: Pair) {
        let (gateway, caller, target) = paired(pair, Agent::scripted(echo).await).await;
        let id = delegate(&gateway, &caller, "target", "count to three").await;
        let done = delegation_in(&gateway, &caller, &id, "completed").await;
        assert_eq!(done["delegation_id"], id.as_str());
        assert_eq!(done["target_id"], "target");
        assert_eq!(done["task"], "count to three");
        assert_eq!(done["attempts"], 1);
        assert_eq!(done["result"]["parts"][0]["text"], "echo: count to three");
        assert!(done.get("error").is_none());
        for time in ["created_at", "updated_at", "deadline"] {
            assert!(done[time].as_str().unwrap().ends_with('Z'), "{done}");
        }

        let asked = target.agent.take();
        let call: Value = serde_json::from_str(asked.text()).unwrap();
        assert_eq!((&call["jsonrpc"], &call["method"]), (&json!("2.0"), &json!("message/send")));
        let message = &call["params"]["message"];
        assert_eq!(message["messageId"], id.as_str());
        assert_eq!((&message["kind"], &message["role"]), (&json!("message"), &json!("user")));
        assert_eq!(message["parts"], json!([{"kind": "text", "text": "count to three"}]));
        assert_eq!(message["metadata"]["delegation_id"], id.as_str());
        assert_eq!(call["params"]["metadata"]["delegation_id"], id.as_str());
        assert_eq!(asked.field("x-workspace-id"), Some("caller"));
        assert_eq!(asked.field("x-request-id"), Some(id.as_str()));
        assert!(asked.field("authorization").unwrap().starts_with("Bearer ey"));

        let inboxes = Inboxes::of(&gateway).await;
        let told = &inboxes.results("caller", 1).await[0];
        assert_eq!(told["delegation_id"], id.as_str());
        assert_eq!((&told["target_id"], &told["status"]), (&json!("target"), &json!("completed")));
        assert_eq!(told["result"]["parts"][0]["text"], "echo: count to three");
        gateway.assert_idle().await;
        let finished = gateway.metric("a2a_gateway_jobs_finished_total", &["kind=\"delegation\"", "state=\"completed\""]);
        assert_eq!(finished.await, 1.0);
    }

    async fn a_key_is_for_one_delegation(pair: Pair) {
        let (gateway, caller, target) = paired(pair, Agent::scripted(echo).await).await;
        let other = gateway.seat("other", "", Agent::scripted(echo).await).await;
        let body = json!({"target_id": "target", "task": "once", "idempotency_key": "k"});
        let first = delegate_with(&gateway, &caller, &body).await;
        let id = accepted(&first);
        delegation_in(&gateway, &caller, &id, "completed").await;
        let again = delegate_with(&gateway, &caller, &body).await;
        assert_eq!(again.status, 200);
        assert_eq!(again.json(), json!({"delegation_id": id, "status": "completed",
            "target_id": "target", "idempotent_hit": true}));
        for (member, value) in [("task", "twice"), ("target_id", "other")] {
            let mut body = body.clone();
            body[member] = value.into();
            let conflict = delegate_with(&gateway, &caller, &body).await;
            assert_eq!((conflict.status, conflict.reason().as_str()), (409, "idempotency_conflict"));
        }
        // Another caller's keys are its own.
        let theirs = delegate_with(&gateway, &other, &body).await;
        delegation_in(&gateway, &other, &accepted(&theirs), "completed").await;
        assert_eq!(texts(&target.agent), ["once", "once"]);

        // At the same moment.
        let body = json!({"target_id": "target", "task": "race", "idempotency_key": "r"});
        let racing = (0..8).map(|_| delegate_with(&gateway, &caller, &body));
        let answers = futures_util::future::join_all(racing).await;
        let new = answers.iter().filter(|answer| answer.status == 202);
        assert_eq!(new.count(), 1);
        assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 202)));

        // What failed is free again.
        let broken = gateway.seat("broken", "", Agent::json("no").await).await;
        let body = json!({"target_id": "broken", "task": "x", "idempotency_key": "f"});
        for count in 1..=2 {
            let answer = delegate_with(&gateway, &caller, &body).await;
            delegation_in(&gateway, &caller, &accepted(&answer), "failed").await;
            assert_eq!(broken.agent.count(), count);
        }
    }

    async fn delegations_are_listed_newest_first_to_their_workspace(pair: Pair) {
        let (gateway, caller, target) = paired(pair, Agent::scripted(echo).await).await;
        let mut ids = Vec::new();
        for n in 0..5 {
            ids.push(delegate(&gateway, &caller, "target", &n.to_string()).await);
        }
        ids.reverse();
        let list = async |path: &str| gateway.call(&Request::get(path).bearer(&caller.token)).await;
        let mut path = "/workspaces/caller/delegations?limit=2".to_owned();
        let mut listed = Vec::new();
        loop {
            let page = list(&path).await;
            assert_eq!(page.status, 200, "{}", page.text());
            let items = page.json();
            listed.extend(items.as_array().unwrap().iter().map(|one| one["delegation_id"].as_str().unwrap().to_owned()));
            let Some(link) = page.field("link") else { break };
            path = link.split(['<', '>']).nth(1).unwrap().to_owned();
        }
        assert_eq!(listed, ids);
        assert_eq!(list("/workspaces/caller/delegations?limit=0").await.status, 400);
        let theirs = format!("/workspaces/target/delegations/{}", ids[0]);
        let answer = gateway.call(&Request::get(theirs).bearer(&target.token)).await;
        assert_eq!((answer.status, answer.reason().as_str()), (404, "not_found"));
        let operators = format!("/workspaces/caller/delegations/{}", ids[0]);
        assert_eq!(gateway.as_operator(Request::get(operators)).await.status, 200);
    }

    async fn jobs_that_come_together_take_one_share(pair: Pair) {
        let (gateway, caller, _target) = staged(Builder::new(pair).set("delegation.max_pending", "8"), Agent::scripted(echo).await).await;
        pause(&gateway, "target", "pause").await;
        let body = json!({"target_id": "target", "task": "x"});
        let all = (0..24).map(|_| delegate_with(&gateway, &caller, &body));
        let answers = futures_util::future::join_all(all).await;
        let accepted = answers.iter().filter(|answer| answer.status == 202).count();
        // Statements of PostgreSQL that run at the same moment do not see each other's rows. The next one does.
        assert!(accepted == 4 || (pair == Pair::External && accepted > 4), "{accepted}");
        assert_eq!(delegate_with(&gateway, &caller, &body).await.status, 503);
    }

    async fn only_so_many_wait(pair: Pair) {
        let (gateway, caller, target) = staged(Builder::new(pair).set("delegation.max_pending", "4"), Agent::scripted(echo).await).await;
        pause(&gateway, "target", "pause").await;
        let other = gateway.seat("other", "", Agent::scripted(echo).await).await;
        let third = gateway.seat("third", "", Agent::scripted(echo).await).await;
        let body = json!({"target_id": "target", "task": "x"});
        let first = delegate(&gateway, &caller, "target", "x").await;
        delegate(&gateway, &caller, "target", "x").await;
        // Each caller has half of what the others leave, and the target has four.
        for (before, seat, share) in [(0, &caller, json!("caller")), (1, &other, json!("caller")), (1, &third, json!(null))] {
            for _ in 0..before {
                delegate(&gateway, seat, "target", "x").await;
            }
            let full = delegate_with(&gateway, seat, &body).await;
            assert_eq!((full.status, full.reason().as_str()), (503, "agent_busy"), "{}", seat.id);
            assert!(full.field("retry-after").is_some());
            assert_eq!((&full.json()["limit"], &full.json()["share"]), (&json!("4"), &share), "{}", seat.id);
        }
        assert_eq!(gateway.metric("a2a_gateway_jobs_refused_total", &[]).await, 3.0);
        pause(&gateway, "target", "resume").await;
        delegation_in(&gateway, &caller, &first, "completed").await;
        until("room", async || delegate_with(&gateway, &other, &body).await.status == 202).await;
        until("all", async || target.agent.count() == 5).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agents_error_is_the_delegations() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let error = json!({"code": -32004, "message": "not mine"});
    let answer = json!({"jsonrpc": "2.0", "id": "x", "error": error});
    let agent = Agent::json(&answer.to_string()).await;
    let (caller, target) = gateway.pair(agent).await;
    let id = delegate(&gateway, &caller, "target", "x").await;
    let failed = delegation_in(&gateway, &caller, &id, "failed").await;
    assert_eq!(failed["error"], error);
    assert!(failed.get("result").is_none());
    assert_eq!(target.agent.count(), 1, "it is not sent again");
    let told = Inboxes::of(&gateway).await.results("caller", 1).await;
    assert_eq!(told[0]["error"]["code"], -32004);

    // Nor is an answer that is none.
    let broken = gateway.seat("broken", "", Agent::json("hello").await).await;
    let id = delegate(&gateway, &caller, "broken", "x").await;
    let failed = delegation_in(&gateway, &caller, &id, "failed").await;
    assert_eq!(failed["error"]["reason"], "agent_protocol_error");
    assert_eq!(failed["error"]["delivered"], "true");
    assert_eq!(broken.agent.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_is_told_before_anything_is_accepted() {
    let (gateway, caller, target) = paired(Pair::Embedded, Agent::scripted(echo).await).await;
    let stranger = json!({"id": "stranger", "name": "s", "org": "elsewhere"});
    gateway.create(stranger).await;
    let to = |target: &str| json!({"target_id": target, "task": "x"});
    let task = |task: Value| json!({"target_id": "target", "task": task});
    let with = |name: &str, value: Value| {
        let mut body = to("target");
        body[name] = value;
        body
    };
    for (body, status, reason) in [
        (to("stranger"), 403, "not_permitted"),
        (to("nobody"), 403, "not_permitted"),
        (to("caller"), 400, "invalid_params"),
        (to("a:b"), 400, "invalid_workspace_id"),
        (json!({"target_id": "target"}), 400, "invalid_params"),
        (json!({"task": "x"}), 400, "invalid_params"),
        (task(json!(5)), 400, "invalid_params"),
        (task(json!(" ")), 400, "invalid_params"),
        (task(json!("a\0b")), 400, "invalid_params"),
        (
            task(json!("x".repeat(256 * 1024 + 1))),
            400,
            "invalid_params",
        ),
        (with("idempotency_key", json!("")), 400, "invalid_params"),
        (with("deadline_seconds", json!(0)), 400, "invalid_params"),
        (
            with("deadline_seconds", json!(86401)),
            400,
            "invalid_params",
        ),
        (with("deadline_seconds", json!("9")), 400, "invalid_params"),
    ] {
        let answer = delegate_with(&gateway, &caller, &body).await;
        let shown = body.to_string();
        let (shown, said) = (&shown[..shown.len().min(80)], answer.reason());
        assert_eq!((answer.status, &*said), (status, reason), "{shown}");
    }
    let path = "/workspaces/caller/delegate";
    let request = Request::post(path, to("target").to_string());
    assert_eq!(gateway.call(&request).await.status, 401);
    let operator = gateway.as_operator(request.clone()).await;
    assert_eq!(operator.reason(), "not_permitted");
    let theirs = gateway.call(&request.bearer(&target.token)).await;
    assert_eq!(theirs.reason(), "not_permitted");
    let list = Request::get("/workspaces/caller/delegations");
    assert_eq!(gateway.as_operator(list.clone()).await.json(), json!([]));
    let theirs = gateway.call(&list.bearer(&target.token)).await;
    assert_eq!(theirs.reason(), "not_permitted");
    assert_eq!(target.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_of_1_0_gets_it_in_its_words() {
    let (gateway, caller, _) = paired(Pair::Embedded, Agent::json("{}").await).await;
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"x","result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"ok"}]}}}"#).await;
    let modern = gateway.seat_of(card_1_0("modern"), "", agent).await;
    let id = delegate(&gateway, &caller, "modern", "hi").await;
    delegation_in(&gateway, &caller, &id, "completed").await;
    let asked = modern.agent.take();
    let call: Value = serde_json::from_str(asked.text()).unwrap();
    assert_eq!(call["method"], "SendMessage");
    assert_eq!(call["params"]["message"]["role"], "ROLE_USER");
    assert_eq!(call["params"]["message"]["parts"], json!([{"text": "hi"}]));
    assert!(call["params"]["message"].get("kind").is_none());
    assert_eq!(asked.field("a2a-version"), Some("1.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_watch_hear_of_it_without_its_content() {
    let (gateway, caller, _target) = paired(Pair::Embedded, Agent::scripted(echo).await).await;
    let broken = gateway.seat("broken", "", Agent::json("no").await).await;
    let request = handshake("/ws").bearer(&caller.token);
    let mut socket = Socket::open(gateway.public, &request).await;
    let mut heard = async |id: &str| {
        let mut heard = Vec::new();
        while heard.len() < 3 {
            let event = socket.next().await.unwrap();
            let kind = event["event"].as_str().unwrap().to_owned();
            if kind.starts_with("DELEGATION_") && event["payload"]["delegation_id"] == id {
                assert_eq!(event["workspace_id"], "caller");
                let text = event.to_string();
                assert!(!text.contains("very private"), "{text}");
                heard.push((kind, event["payload"].clone()));
            }
        }
        heard
    };
    // One that waits for its target is sent after its answer, so that its events come in order.
    pause(&gateway, "target", "pause").await;
    let id = delegate(&gateway, &caller, "target", "very private").await;
    pause(&gateway, "target", "resume").await;
    let events = heard(&id).await;
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.as_str()).collect();
    let expected = "DELEGATION_SENT DELEGATION_STATUS DELEGATION_COMPLETE";
    assert_eq!(kinds.join(" "), expected);
    assert_eq!(events[1].1["status"], "dispatched");
    assert_eq!(events[2].1["target_id"], "target");
    pause(&gateway, &broken.id, "pause").await;
    let id = delegate(&gateway, &caller, &broken.id, "very private").await;
    pause(&gateway, &broken.id, "resume").await;
    let events = heard(&id).await;
    assert_eq!(events[2].0, "DELEGATION_FAILED");
    assert_eq!(events[2].1["error"], "agent_protocol_error");
}
