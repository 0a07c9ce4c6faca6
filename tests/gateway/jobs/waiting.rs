//! Targets that are away, or take no more: nothing is lost, nothing is sent twice, and nobody waits for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use super::{
    Inboxes, accepted, answer, delegate, delegate_with, delegation, delegation_in, echo, pause,
    texts, until,
};
use crate::harness::{Agent, Gateway, Pair, Request, Step, ok_json};
use crate::on_both_pairs;
use crate::operators::paired;
use crate::stores::open_db;

on_both_pairs! {
    async fn an_agent_that_is_down_gets_it_when_it_is_up(pair: Pair) {
        let (gateway, caller, target) = paired(pair, Agent::scripted(echo).await).await;
        let port = target.agent.port;
        drop(target.agent);
        let id = delegate(&gateway, &caller, "target", "hello").await;
        until("an attempt", async || gateway.metric("a2a_gateway_job_retries_total", &[]).await >= 1.0).await;
        assert_eq!(delegation(&gateway, &caller, &id).await["status"], "pending");
        let agent = Agent::scripted_at(&format!("127.0.0.1:{port}"), echo).await;
        let done = delegation_in(&gateway, &caller, &id, "completed").await;
        assert!(done["attempts"].as_i64().unwrap() >= 2, "{done}");
        assert_eq!(texts(&agent), ["hello"]);
    }

    async fn a_target_that_is_away_gets_it_at_once_when_it_is_back(pair: Pair) {
        let (gateway, caller, target) = paired(pair, Agent::scripted(echo).await).await;
        pause(&gateway, "target", "pause").await;
        let id = delegate(&gateway, &caller, "target", "hello").await;
        // Without the word that it is back, the next try is minutes away.
        let db = open_db(&gateway.sql_url());
        let later = "UPDATE mailbox_items SET due_at = due_at + 240000 WHERE leased_until = 0 AND due_at > created_at";
        until("it is put off", async || sqlx::query(later).execute(db.pool()).await.unwrap().rows_affected() == 1).await;
        assert_eq!(target.agent.count(), 0);
        pause(&gateway, "target", "resume").await;
        delegation_in(&gateway, &caller, &id, "completed").await;
        assert_eq!(target.agent.count(), 1);
    }

    async fn a_deadline_passes(pair: Pair) {
        let (gateway, caller, target) = paired(pair, Agent::scripted(echo).await).await;
        pause(&gateway, "target", "pause").await;
        let slow = gateway.seat("slow", "", Agent::scripted(|_| vec![Step::Hang]).await).await;
        let mut ids = Vec::new();
        // That of the call which is sent passes after it is sent, also on a machine that stalls.
        for (to, seconds) in [("target", 5), ("slow", 20)] {
            let body = json!({"target_id": to, "task": "x", "deadline_seconds": seconds, "idempotency_key": to});
            ids.push(accepted(&delegate_with(&gateway, &caller, &body).await));
        }
        let away = delegation_in(&gateway, &caller, &ids[0], "expired").await;
        assert_eq!(away["error"]["delivered"], "false");
        assert_eq!(away["error"]["clock"], "deadline");
        let late = delegation_in(&gateway, &caller, &ids[1], "expired").await;
        assert_eq!(late["error"]["delivered"], "true");
        let told = Inboxes::of(&gateway).await.results("caller", 2).await;
        assert!(told.iter().all(|one| one["status"] == "expired"));
        pause(&gateway, "target", "resume").await;
        // The key is free, and neither is sent again.
        let body = json!({"target_id": "target", "task": "again", "idempotency_key": "target"});
        assert_eq!(delegate_with(&gateway, &caller, &body).await.status, 202);
        until("the next one", async || target.agent.count() > 0).await;
        assert_eq!((texts(&target.agent), slow.agent.count()), (vec!["again".to_owned()], 1));
    }

    async fn a_target_gets_no_more_at_once_than_it_takes(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (running, peak) = (Arc::clone(&now), Arc::clone(&most));
        let agent = Agent::scripted(move |request| {
            let at_once = running.fetch_add(1, Ordering::SeqCst) + 1;
            peak.fetch_max(at_once, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            running.fetch_sub(1, Ordering::SeqCst);
            vec![Step::Write(ok_json(&answer(request).to_string()))]
        }).await;
        let (caller, target) = gateway.pair(agent).await;
        gateway.patch("target", json!({"max_concurrent": 1})).await;
        for n in 0..20 {
            delegate(&gateway, &caller, "target", &n.to_string()).await;
        }
        until("all", async || target.agent.count() == 20).await;
        let mut sent: Vec<u32> = texts(&target.agent).iter().map(|text| text.parse().unwrap()).collect();
        sent.sort_unstable();
        assert_eq!(sent, (0..20).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::SeqCst), 1);
        Inboxes::of(&gateway).await.results("caller", 20).await;
        gateway.assert_idle().await;
    }

    async fn a_target_that_is_away_holds_up_no_other(pair: Pair) {
        let (gateway, caller, target) = paired(pair, Agent::scripted(echo).await).await;
        let other = gateway.seat("other", "", Agent::scripted(echo).await).await;
        pause(&gateway, "target", "pause").await;
        for n in 0..40 {
            delegate(&gateway, &caller, "target", &n.to_string()).await;
        }
        let id = delegate(&gateway, &caller, "other", "me too").await;
        delegation_in(&gateway, &caller, &id, "completed").await;
        assert_eq!((target.agent.count(), other.agent.count()), (0, 1));
        let removed = gateway.as_operator(Request::new("DELETE", "/workspaces/target")).await;
        assert_eq!(removed.status, 200);
        until("all refused", async || {
            gateway.metric("a2a_gateway_jobs_finished_total", &["state=\"failed\""]).await == 40.0
        }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_no_more_when_it_is_sent_is_refused_then() {
    let (gateway, caller, target) = paired(Pair::Embedded, Agent::scripted(echo).await).await;
    pause(&gateway, "target", "pause").await;
    let id = delegate(&gateway, &caller, "target", "x").await;
    let moved = gateway.patch("caller", json!({"org": "elsewhere"})).await;
    assert_eq!(moved.status, 200, "{}", moved.text());
    pause(&gateway, "target", "resume").await;
    let failed = delegation_in(&gateway, &caller, &id, "failed").await;
    assert_eq!(failed["error"]["reason"], "not_permitted");
    assert_eq!(failed["error"]["delivered"], "false");
    assert_eq!(target.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_has_its_share_of_a_target_holds_no_other_up() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let agent = Agent::scripted(|request| match request.text().contains("hold") {
        true => vec![Step::Hang],
        false => echo(request),
    });
    let (caller, target) = gateway.pair(agent.await).await;
    let other = gateway.seat("other", "", Agent::scripted(echo).await).await;
    gateway.patch("target", json!({"max_concurrent": 2})).await;
    delegate(&gateway, &caller, "target", "hold").await;
    target.agent.until_count(1).await;
    // Both are due in one round when the target resumes.
    pause(&gateway, "target", "pause").await;
    let own = delegate(&gateway, &caller, "target", "own").await;
    let others = delegate(&gateway, &other, "target", "others").await;
    pause(&gateway, "target", "resume").await;
    delegation_in(&gateway, &other, &others, "completed").await;
    let shown = delegation(&gateway, &caller, &own).await;
    assert_eq!(shown["status"], "pending");
    assert_eq!(texts(&target.agent), ["hold", "others"]);
}
