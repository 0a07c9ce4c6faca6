//! Gateways that end in the middle, and several that work on the same.

use std::collections::BTreeSet;
use std::time::Duration;

use a2a_gateway::workspace::Timestamp;

use super::{Inboxes, delegate, delegation, delegation_in, echo, pause, texts, until};
use crate::events::Replicas;
use crate::harness::{Agent, Gateway, Pair, Step};
use crate::on_both_pairs;
use crate::operators::paired;
use crate::stores::open_db;

on_both_pairs! {
    async fn what_was_accepted_outlives_a_kill_and_what_was_sent_is_not_sent_again(pair: Pair) {
        let (mut gateway, caller, target) = paired(pair, Agent::scripted(echo).await).await;
        let hangs = gateway.seat("hangs", "", Agent::scripted(|_| vec![Step::Hang]).await).await;
        pause(&gateway, "target", "pause").await;
        let accepted = delegate(&gateway, &caller, "target", "hello").await;
        let sent = delegate(&gateway, &caller, "hangs", "once").await;
        until("it is sent", async || hangs.agent.count() == 1).await;
        delegation_in(&gateway, &caller, &sent, "dispatched").await;
        gateway.kill();
        // Its leases are over. Its clock was ahead and is put right: that delays nothing.
        let db = open_db(&gateway.sql_url());
        let later = sqlx::query("UPDATE mailbox_items SET due_at = due_at + 3600000, leased_until = 0");
        later.execute(db.pool()).await.unwrap();
        gateway.restart().await;
        assert_eq!(delegation(&gateway, &caller, &accepted).await["status"], "pending");
        until("it is due", async || {
            let due = sqlx::query_scalar::<_, i64>("SELECT due_at FROM mailbox_items WHERE target_id = 'target'");
            due.fetch_one(db.pool()).await.unwrap() - Timestamp::now().0 < 60_000
        }).await;
        pause(&gateway, "target", "resume").await;
        delegation_in(&gateway, &caller, &accepted, "completed").await;
        let lost = delegation_in(&gateway, &caller, &sent, "failed").await;
        assert_eq!(lost["error"]["reason"], "agent_protocol_error");
        assert_eq!(lost["error"]["delivered"], "unknown");
        let told = Inboxes::of(&gateway).await.results("caller", 2).await;
        let mut told: Vec<_> = told.iter().map(|one| one["status"].as_str().unwrap()).collect();
        told.sort_unstable();
        assert_eq!(told, ["completed", "failed"]);
        assert_eq!((texts(&target.agent), texts(&hangs.agent)), (vec!["hello".to_owned()], vec!["once".to_owned()]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_send_each_once() {
    const COUNT: usize = 100;
    let replicas = Replicas::start(2, &[]).await;
    let (one, other) = (&replicas.all[0], &replicas.all[1]);
    let (caller, target) = one.pair(Agent::scripted(echo).await).await;
    // All at once, for both.
    pause(one, "target", "pause").await;
    for n in 0..COUNT {
        let gateway = if n % 2 == 0 { one } else { other };
        delegate(gateway, &caller, "target", &n.to_string()).await;
    }
    pause(one, "target", "resume").await;
    let told = Inboxes::of(one).await.results("caller", COUNT).await;
    assert!(told.iter().all(|one| one["status"] == "completed"));
    let sent = texts(&target.agent);
    assert_eq!(sent.len(), COUNT, "each once");
    let different: BTreeSet<&String> = sent.iter().collect();
    assert_eq!(different.len(), COUNT);
    // One replica may tell a result before the one that ended the job counts it.
    until("each is counted once", async || {
        let (name, done) = ("a2a_gateway_jobs_finished_total", ["state=\"completed\""]);
        one.metric(name, &done).await + other.metric(name, &done).await == 100.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_the_answer() {
    let mut gateway = Gateway::start(Pair::Embedded).await;
    let slow = Agent::scripted(|request| {
        let wait = Step::Wait(Duration::from_millis(300));
        [vec![wait], echo(request)].concat()
    });
    let (caller, target) = gateway.pair(slow.await).await;
    let id = delegate(&gateway, &caller, "target", "x").await;
    until("it is sent", async || target.agent.count() == 1).await;
    gateway.terminate();
    assert!(gateway.wait(super::NEVER).success());
    gateway.restart().await;
    let done = delegation(&gateway, &caller, &id).await;
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(target.agent.count(), 1);
}
