//! Answers that are JSON, and that not everybody can read: none of them ends anything but its own job, and what is
//! delegated comes back as it was answered.

use a2a_gateway::delivery::inbox::{NewActivity, Source};
use a2a_gateway::ids::WorkspaceId;
use serde_json::{Value, json};

use super::{Inboxes, delegate, delegation, delegation_in, echo, until};
use crate::harness::{Agent, Builder, Gateway, Pair, Request, Seat};
use crate::on_both_pairs;
use crate::operators::{paired, staged};

/// A message with one of these in it.
pub(super) fn odd_results() -> [String; 3] {
    let deep = "[".repeat(200) + &"]".repeat(200);
    [deep.as_str(), "1e999", r#""\ud800""#].map(|data| {
        format!(r#"{{"role":"agent","kind":"message","messageId":"x","parts":[{{"kind":"data","data":{{"n":{data}}}}}]}}"#)
    })
}

pub(super) fn rpc(result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"x","result":{result}}}"#)
}

async fn read(gateway: &Gateway, path: &str, seat: &Seat) -> String {
    let answer = gateway.call(&Request::get(path).bearer(&seat.token)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text()
}

on_both_pairs! {
    async fn what_is_delegated_comes_back_as_it_was_answered(pair: Pair) {
        let (gateway, caller, _target) = paired(pair, Agent::scripted(echo).await).await;
        let inboxes = Inboxes::of(&gateway).await;
        let digits = r#"{"z": 12345678901234567890.123, "a": 1.0}"#.to_owned();
        for (n, result) in odd_results().into_iter().chain([digits]).enumerate() {
            let id = format!("odd-{n}");
            let _seat = gateway.seat(&id, "", Agent::json(&rpc(&result)).await).await;
            let id = delegate(&gateway, &caller, &id, "x").await;
            let path = format!("/workspaces/caller/delegations/{id}");
            until("its end", async || read(&gateway, &path, &caller).await.contains(r#""status":"completed""#)).await;
            for path in [path.as_str(), "/workspaces/caller/delegations"] {
                let shown = read(&gateway, path, &caller).await;
                assert!(shown.contains(&format!(r#""result":{result}"#)), "{shown}");
            }
            let told = inboxes.hold("caller", n + 1).await.pop().unwrap();
            assert!(told.response_body.unwrap().get().contains(&result));
        }
        // And everything goes on.
        let id = delegate(&gateway, &caller, "target", "x").await;
        delegation_in(&gateway, &caller, &id, "completed").await;
        inboxes.hold("caller", 5).await;
    }

    async fn a_page_of_delegations_holds_so_many_octets(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let large = format!("\"{}\"", "x".repeat(3 << 20));
        let (caller, _target) = gateway.pair(Agent::json(&rpc(&large)).await).await;
        let mut ids = Vec::new();
        for _ in 0..3 {
            let id = delegate(&gateway, &caller, "target", "x").await;
            delegation_in(&gateway, &caller, &id, "completed").await;
            ids.insert(0, id);
        }
        let page = async |path: &str| {
            let answer = gateway.call(&Request::get(path).bearer(&caller.token)).await;
            let items = answer.json();
            let id = |one: &Value| one["delegation_id"].as_str().unwrap().to_owned();
            let listed: Vec<String> = items.as_array().unwrap().iter().map(id).collect();
            let next = answer.field("link").map(|link| link.split(['<', '>']).nth(1).unwrap().to_owned());
            (listed, next)
        };
        // The second begins within 4 MiB, and the third does not.
        let (listed, next) = page("/workspaces/caller/delegations?limit=100").await;
        assert_eq!(listed, ids[..2]);
        assert_eq!(page(&next.unwrap()).await, (ids[2..].to_vec(), None));
    }
}

/// What SQL refuses until [`allow`]: as if it went away between two statements.
async fn refuse(inboxes: &Inboxes, column: &str) {
    let trigger = format!(
        "CREATE TRIGGER refuses BEFORE UPDATE OF {column} ON mailbox_items BEGIN SELECT RAISE(ABORT, 'no'); END"
    );
    inboxes.sql(&trigger).await;
}

async fn allow(inboxes: &Inboxes) {
    inboxes.sql("DROP TRIGGER refuses").await;
}

#[tokio::test]
async fn what_is_in_an_inbox_is_sent_once_and_answered_and_fails_when_it_is_forgotten() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let caller = super::polled::poller(&gateway).await;
    let inboxes = Inboxes::of(&gateway).await;
    let sent = async |count: usize| {
        let items = inboxes.hold("poller", count).await;
        items.last().unwrap().id.clone()
    };
    // It is not said to have failed.
    refuse(&inboxes, "inbox_task").await;
    let id = delegate(&gateway, &caller, "poller", "x").await;
    let entry = sent(1).await;
    let shown = delegation(&gateway, &caller, &id).await;
    assert_eq!(shown["status"], "pending");
    reply(&gateway, &entry).await;
    allow(&inboxes).await;
    delegation_in(&gateway, &caller, &id, "completed").await;
    assert_eq!(inboxes.items("poller").await.len(), 1, "it is sent once");

    // A reply does not wait for its job to be written down.
    let id = delegate(&gateway, &caller, "poller", "x").await;
    let entry = sent(2).await;
    delegation_in(&gateway, &caller, &id, "dispatched").await;
    refuse(&inboxes, "answer").await;
    reply(&gateway, &entry).await;
    delegation_in(&gateway, &caller, &id, "dispatched").await;
    allow(&inboxes).await;
    delegation_in(&gateway, &caller, &id, "completed").await;

    // A message that is forgotten has failed and not expired.
    let id = delegate(&gateway, &caller, "poller", "x").await;
    sent(3).await;
    inboxes.sql("DELETE FROM activity_logs").await;
    let failed = delegation_in(&gateway, &caller, &id, "failed").await;
    assert_eq!(failed["error"]["reason"], "agent_protocol_error");
    assert_eq!(failed["error"]["delivered"], "true");
}

/// An operator may act for any workspace.
async fn reply(gateway: &Gateway, entry: &str) {
    let path = format!("/workspaces/poller/activity/{entry}/reply");
    let said = json!({"status": {"state": "completed"}}).to_string();
    let answer = gateway.as_operator(Request::post(path, said)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_inbox_keeps_nobody_elses_results_back() {
    let builder = Builder::new(Pair::Embedded).set("inbox.max_messages", "1");
    let (gateway, caller, _target) = staged(builder, Agent::scripted(echo).await).await;
    let other = gateway.seat("other", "", Agent::json("{}").await).await;
    let inboxes = Inboxes::of(&gateway).await;
    let inbox = std::sync::Arc::clone(&inboxes.0);
    let writing = tokio::spawn(async move { inbox.run().await });
    let mut last = None;
    for id in ["caller", "other"] {
        let to = WorkspaceId::parse(id).unwrap();
        let (of, method) = ("x".into(), "message/send");
        let message = NewActivity::message(&to, Source::Canvas, of, method, "{}".into());
        last = Some(inboxes.0.put(message).await.unwrap().id);
    }
    let mut ids = Vec::new();
    for _ in 0..70 {
        ids.push(delegate(&gateway, &caller, "target", "x").await);
    }
    for id in &ids {
        delegation_in(&gateway, &caller, id, "completed").await;
    }
    let id = delegate(&gateway, &other, "target", "x").await;
    delegation_in(&gateway, &other, &id, "completed").await;
    // A delegator is told behind the end, and what is told only when there is room is never put off.
    let put_off = "a2a_gateway_job_results_put_off_total";
    let put_off = async || gateway.metric(put_off, &[]).await;
    until("all are put off", async || put_off().await >= 71.0).await;
    assert_eq!(inboxes.items("other").await.len(), 1, "it is full");
    let to = WorkspaceId::parse("other").unwrap();
    inboxes.0.acknowledge(&to, &last.unwrap()).await.unwrap();
    inboxes.hold("other", 2).await;
    assert_eq!(inboxes.items("caller").await.len(), 1);
    assert!(put_off().await >= 71.0);
    writing.abort();
}
