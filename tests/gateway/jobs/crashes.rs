//! Gateways that end in the middle, and several that work on the same.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use a2a_gateway::workspace::Timestamp;

use super::{Inboxes, SOON, delegate, delegation, delegation_in, echo, pause, texts, until};
use crate::harness::servers::{self, Redis};
use crate::harness::{Agent, Builder, Gateway, Pair, Step};
use crate::on_both_pairs;
use crate::stores::open_db;

/// Waits as [`until`] does, and where others might have it for the lease of one that was killed, which may have to end first.
pub(super) async fn until_past_a_lease(pair: Pair, what: &str, holds: impl AsyncFn() -> bool) {
    let lease = if pair == Pair::External {
        SOON
    } else {
        Duration::ZERO
    };
    let deadline = Instant::now() + SOON + lease;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

on_both_pairs! {
    async fn what_was_accepted_outlives_a_kill(pair: Pair) {
        let mut gateway = Gateway::start(pair).await;
        let (caller, target) = gateway.pair(Agent::scripted(echo).await).await;
        pause(&gateway, "target", "pause").await;
        let id = delegate(&gateway, &caller, "target", "hello").await;
        gateway.kill();
        gateway.restart().await;
        assert_eq!(delegation(&gateway, &caller, &id).await["status"], "pending");
        pause(&gateway, "target", "resume").await;
        // The lease of the one that was killed may have to end first.
        delegation_in(&gateway, &caller, &id, "completed").await;
        assert_eq!(texts(&target.agent), ["hello"]);
        Inboxes::of(&gateway).await.results("caller", 1).await;
    }

    async fn a_clock_that_was_ahead_and_is_put_right_delays_nothing(pair: Pair) {
        let mut gateway = Gateway::start(pair).await;
        let (caller, _target) = gateway.pair(Agent::scripted(echo).await).await;
        pause(&gateway, "target", "pause").await;
        delegate(&gateway, &caller, "target", "hello").await;
        gateway.kill();
        let db = open_db(&gateway.sql_url());
        let due_in = async || {
            let due = sqlx::query_scalar::<_, i64>("SELECT due_at FROM delegations");
            due.fetch_one(db.pool()).await.unwrap() - Timestamp::now().0
        };
        let ahead = sqlx::query("UPDATE delegations SET due_at = due_at + 3600000");
        ahead.execute(db.pool()).await.unwrap();
        assert!(due_in().await > 3_000_000);
        gateway.restart().await;
        // It was looked at, and is to be tried again soon.
        until_past_a_lease(pair, "it is due", async || due_in().await < 60_000).await;
    }

    async fn what_was_sent_by_one_that_was_killed_is_not_sent_again(pair: Pair) {
        let mut gateway = Gateway::start(pair).await;
        let (caller, target) = gateway.pair(Agent::scripted(|_| vec![Step::Hang]).await).await;
        let id = delegate(&gateway, &caller, "target", "once").await;
        until("it is sent", async || target.agent.count() == 1).await;
        assert_eq!(delegation(&gateway, &caller, &id).await["status"], "dispatched");
        gateway.kill();
        gateway.restart().await;
        // With stores that others may share, the lease must end first.
        let lost = delegation_in(&gateway, &caller, &id, "failed").await;
        assert_eq!(lost["error"]["reason"], "agent_protocol_error");
        assert_eq!(lost["error"]["delivered"], "unknown");
        let told = Inboxes::of(&gateway).await.results("caller", 1).await;
        assert_eq!(told[0]["status"], "failed");
        assert_eq!(target.agent.count(), 1);
    }

    async fn a_drain_waits_for_the_answer(pair: Pair) {
        let mut gateway = Gateway::start(pair).await;
        let slow = Agent::scripted(|request| {
            let mut steps = vec![Step::Wait(Duration::from_millis(800))];
            steps.extend(echo(request));
            steps
        }).await;
        let (caller, target) = gateway.pair(slow).await;
        let id = delegate(&gateway, &caller, "target", "x").await;
        until("it is sent", async || target.agent.count() == 1).await;
        gateway.terminate();
        assert!(gateway.wait(Duration::from_secs(10)).success());
        gateway.restart().await;
        let done = delegation(&gateway, &caller, &id).await;
        assert_eq!(done["status"], "completed", "{done}");
        assert_eq!(target.agent.count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_send_each_once() {
    const COUNT: usize = 100;
    let redis = Redis::start();
    let sql = servers::postgres().database();
    let start = async || {
        Builder::new(Pair::Embedded)
            .stores(&sql, &redis.url())
            .start()
            .await
    };
    let (one, other) = (start().await, start().await);
    let (caller, target) = one.pair(Agent::scripted(echo).await).await;
    // All at once, for both.
    pause(&one, "target", "pause").await;
    for n in 0..COUNT {
        let gateway = if n % 2 == 0 { &one } else { &other };
        delegate(gateway, &caller, "target", &n.to_string()).await;
    }
    pause(&one, "target", "resume").await;
    let told = Inboxes::of(&one).await.results("caller", COUNT).await;
    assert!(told.iter().all(|one| one["status"] == "completed"));
    let sent = texts(&target.agent);
    assert_eq!(sent.len(), COUNT, "each once");
    let different: BTreeSet<&String> = sent.iter().collect();
    assert_eq!(different.len(), COUNT);
    let mut shares = Vec::new();
    for gateway in [&one, &other] {
        let name = "a2a_gateway_jobs_finished_total";
        shares.push(gateway.metric(name, &["state=\"completed\""]).await);
    }
    assert_eq!(shares.iter().sum::<f64>(), 100.0, "{shares:?}");
}
