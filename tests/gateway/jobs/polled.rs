//! Delegations to a workspace that polls: into its inbox, and over when its task is.

use std::time::Duration;

use a2a_gateway::a2a::agent_reply::Update;
use a2a_gateway::a2a::state::TaskState;
use a2a_gateway::delivery::inbox::Item;
use a2a_gateway::ids::WorkspaceId;
use serde_json::{Value, json};

use super::{Inboxes, delegate, delegation_in};
use crate::harness::{Agent, Gateway, Pair, Request, Seat, card};
use crate::on_both_pairs;

/// The delegation that a message is of.
fn delegated(item: &Item) -> String {
    let call = item.request_body.as_ref().unwrap().get();
    let call: Value = serde_json::from_str(call).unwrap();
    let id = &call["params"]["message"]["metadata"]["delegation_id"];
    id.as_str().unwrap().to_owned()
}

pub(super) async fn poller(gateway: &Gateway) -> Seat {
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    let poller = json!({"id": "poller", "name": "poller", "delivery_mode": "poll"});
    let enrolment = gateway.create(poller).await;
    let body = json!({"id": "poller", "delivery_mode": "poll", "agent_card": card("poller")});
    let request = Request::post("/registry/register", body.to_string()).bearer(&enrolment);
    let registered = gateway.call(&request).await;
    assert_eq!(registered.status, 200, "{}", registered.text());
    caller
}

on_both_pairs! {
    async fn the_agents_reply_is_the_result(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let caller = poller(&gateway).await;
        let inboxes = Inboxes::of(&gateway).await;
        for (update, status) in [
            (Update::Message(json!({"parts": [{"kind": "text", "text": "done"}]})), "completed"),
            (Update::Error(json!({"code": -32000, "message": "no"})), "failed"),
        ] {
            let before = inboxes.items("poller").await.len();
            let id = delegate(&gateway, &caller, "poller", "work").await;
            let item = inboxes.hold("poller", before + 1).await.pop().unwrap();
            assert_eq!((item.activity_type.as_str(), item.source_id.as_deref()), ("a2a_receive", Some("caller")));
            assert_eq!(delegated(&item), id);
            // Noted once it is there.
            delegation_in(&gateway, &caller, &id, "dispatched").await;
            let poller = WorkspaceId::parse("poller").unwrap();
            let task = inboxes.0.record_reply(&poller, &item.id, update, "{}").await.unwrap();
            assert!(matches!(task.state, TaskState::Completed | TaskState::Failed));
            let over = delegation_in(&gateway, &caller, &id, status).await;
            let member = if status == "completed" { &over["result"] } else { &over["error"]["data"] };
            assert_eq!(member["status"]["state"], status, "{over}");
        }
        let told = inboxes.results("caller", 2).await;
        assert_eq!(told[0]["result"]["status"]["message"]["parts"][0]["text"], "done");
    }

    async fn a_deadline_passes_while_nobody_replies(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let caller = poller(&gateway).await;
        let id = delegate(&gateway, &caller, "poller", "x").await;
        delegation_in(&gateway, &caller, &id, "dispatched").await;
        let inboxes = Inboxes::of(&gateway).await;
        inboxes.sql("UPDATE mailbox_items SET expires_at = created_at").await;
        let late = delegation_in(&gateway, &caller, &id, "expired").await;
        assert_eq!(late["error"]["delivered"], "true");
        inboxes.results("caller", 1).await;
    }
}

/// Whether it was put there and not noted, or not put there: both are found out at the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_moment_leaves_it_in_the_inbox_once() {
    let mut gateway = Gateway::start(Pair::Embedded).await;
    let caller = poller(&gateway).await;
    let mut ids = Vec::new();
    for round in 0..6 {
        ids.push(delegate(&gateway, &caller, "poller", "work").await);
        tokio::time::sleep(Duration::from_millis(2 * round)).await;
        gateway.kill();
        gateway.restart().await;
    }
    for id in &ids {
        delegation_in(&gateway, &caller, id, "dispatched").await;
    }
    let items = Inboxes::of(&gateway).await.items("poller").await;
    let mut there: Vec<String> = items.iter().map(delegated).collect();
    there.sort();
    ids.sort();
    assert_eq!(there, ids);
}
