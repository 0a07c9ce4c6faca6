//! The lease of each instance: it lapses alone, comes back, and outlives a restart of gateway and Redis.

use std::cell::Cell;
use std::time::Instant;

use super::*;
use crate::harness::holds_for;
use crate::harness::servers::{self, Redis};
use crate::on_both_pairs;

/// The shortest: leases count in seconds.
const TTL: Duration = Duration::from_secs(1);

/// The life of a lease that is not to lapse between two heartbeats. What is seen later than half of it after one says
/// nothing.
const STEADY_TTL: Duration = Duration::from_secs(3);

impl Set {
    /// Waits until the instances have these statuses; `alive` ones beat meanwhile.
    async fn until_statuses(&self, expected: &[(&str, &str)], alive: &[&str]) {
        until_holds(&format!("{expected:?}"), async || {
            self.beat_all(alive).await;
            self.has_statuses(expected).await
        })
        .await;
    }

    /// The same while `by` lets `one` drain: a lease that lapses ends the drain.
    async fn until_drained(&self, by: &Self, expected: &[(&str, &str)], alive: &[&str]) {
        until_holds(&format!("{expected:?}"), async || {
            self.beat_all(alive).await;
            by.drain("one").await;
            self.has_statuses(expected).await
        })
        .await;
    }

    /// Waits until the workspace has this status; `alive` ones beat meanwhile.
    async fn until_status(&self, expected: &str, alive: &[&str]) {
        until_holds(expected, async || {
            self.beat_all(alive).await;
            self.view().await["status"] == expected
        })
        .await;
    }

    /// Waits until `agent` has got so many more calls. Its instance beats meanwhile.
    async fn until_reached(&self, instance: &str, agent: &Agent, more: usize) {
        let before = agent.count();
        until_holds("calls reach the instance", async || {
            self.beat_all(&[instance]).await;
            self.call().await;
            agent.count() >= before + more
        })
        .await;
    }

    async fn beat_all(&self, instances: &[&str]) {
        for instance in instances {
            assert_eq!(self.beat(instance).await.status, 200);
        }
    }
}

on_both_pairs! {
    async fn an_instance_lapses_alone_and_comes_back_with_its_next_heartbeat(pair: Pair) {
        let set = Set::on(Builder::new(pair).set("registry.heartbeat_ttl", "1s")).await;
        let token = set.own_token().await;
        let (one, two) = (answering().await, answering().await);
        set.register(&token, "one", &one).await;
        set.register(&token, "two", &two).await;
        assert_eq!(set.beat("one").await.json()["expires_in"], 1);
        set.drain("one").await;
        set.until_statuses(&[("one", "offline"), ("two", "online")], &["two"]).await;
        set.until_status("online", &["two"]).await;
        let before = one.count();
        set.until_reached("two", &two, 20).await;
        assert_eq!(one.count(), before, "an instance that is offline is not called");
        // The drain has ended with the lease.
        set.until_statuses(&[("one", "online"), ("two", "online")], &["one", "two"]).await;
        // The other one alone takes calls once this one is silent.
        set.until_statuses(&[("one", "online"), ("two", "offline")], &["one"]).await;
        set.until_reached("one", &one, 1).await;
        // With the last one the workspace goes offline, and so the instance that comes back takes its calls.
        set.until_statuses(&[("one", "offline"), ("two", "offline")], &[]).await;
        set.until_status("offline", &[]).await;
        assert_eq!(set.call().await.reason(), "workspace_offline");
        set.until_reached("two", &two, 1).await;
        set.until_status("online", &["two"]).await;
        // The last live one leaves. The silent one is expected back.
        set.until_statuses(&[("one", "offline"), ("two", "online")], &["two"]).await;
        set.deregister("two").await;
        let view = set.view().await;
        assert_eq!(view["status"], "offline", "{view}");
        assert_eq!(set.call().await.reason(), "workspace_offline");
        set.assert_statuses(&[("one", "offline")]).await;
        set.until_reached("one", &one, 1).await;
        set.until_status("online", &["one"]).await;
    }

    async fn an_instance_is_there_after_a_restart_of_the_gateway(pair: Pair) {
        let (mut set, _, [one, _two]) = Set::of_two(pair).await;
        set.drain("two").await;
        set.gateway.restart().await;
        set.assert_statuses(&[("one", "online"), ("two", "draining")]).await;
        set.assert_calls_reach(&one).await;
        assert_eq!(set.beat("two").await.status, 200);
        set.assert_statuses(&[("one", "online"), ("two", "draining")]).await;
    }
}

/// Two gateways on one Redis and one PostgreSQL, with the instances `one` and `two`.
async fn two_on(redis: &Redis) -> (Set, Set, [Agent; 2]) {
    let sql = servers::postgres().database();
    let builder = || {
        let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
        builder.set("registry.heartbeat_ttl", "3s")
    };
    let here = Set::on(builder()).await;
    let gateway = builder().start().await;
    here.gateway.until_coherent().await;
    gateway.until_coherent().await;
    let caller = Seat {
        id: "caller".to_owned(),
        token: here.caller.token.clone(),
        agent: Agent::json("{}").await,
    };
    let there = Set { gateway, caller };
    let token = here.own_token().await;
    let agents = [answering().await, answering().await];
    here.register(&token, "one", &agents[0]).await;
    there.register(&token, "two", &agents[1]).await;
    (here, there, agents)
}

/// Once a round says so, each does, unless so much time has passed since the one before began that a lease may
/// have lapsed. Returns after `count` of them, and `span`.
async fn counts(count: usize, span: Duration, round: impl AsyncFn() -> bool) {
    let began = Instant::now();
    let (counted, last, was_so) = (Cell::new(0), Cell::new(began), Cell::new(false));
    until_holds("rounds are short enough", async || {
        let before = last.replace(Instant::now());
        let is_so = round().await;
        if was_so.get() && before.elapsed() < STEADY_TTL / 2 {
            assert!(is_so);
            counted.set(counted.get() + 1);
        }
        was_so.set(is_so);
        counted.get() >= count && began.elapsed() >= span
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_knows_the_instances_and_which_of_them_live() {
    let redis = Redis::start();
    let (here, there, [one, two]) = two_on(&redis).await;
    there.until_reached("one", &one, 1).await;
    let both = [("one", "draining"), ("two", "online")];
    for set in [&here, &there] {
        set.until_drained(&here, &both, &["one", "two"]).await;
        set.until_reached("two", &two, 1).await;
    }
    // Heartbeats arrive at the other replica only.
    let they_live = async || {
        here.beat_all(&["one", "two"]).await;
        here.drain("one").await;
        here.beat_all(&["one", "two"]).await;
        there.has_statuses(&both).await && there.call().await.status == 200
    };
    counts(5, STEADY_TTL + TTL, they_live).await;
    // It lapses, and comes back by a heartbeat at one of them.
    let silent = [("one", "draining"), ("two", "offline")];
    there.until_drained(&here, &silent, &["one"]).await;
    let before = two.count();
    until_holds("only the one that drains is left", async || {
        here.beat_all(&["one"]).await;
        here.drain("one").await;
        let answer = there.call().await;
        answer.status == 503 && answer.reason() == "workspace_restarting"
    })
    .await;
    assert_eq!(two.count(), before);
    until_holds("calls reach it", async || {
        here.beat_all(&["two"]).await;
        there.call().await.status == 200 && two.count() > before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_is_steady_while_replicas_hear_from_different_instances() {
    let redis = Redis::start();
    let (here, there, _agents) = two_on(&redis).await;
    let wedged = async || {
        let body =
            json!({"workspace_id": "target", "instance_id": "two", "runtime_state": "wedged"});
        there.post("/registry/heartbeat", body).await.has(200);
    };
    let is_online = async || there.view().await["status"] == "online";
    let one_is_well = async || {
        here.beat_all(&["one"]).await;
        let was_online = is_online().await;
        wedged().await;
        was_online && is_online().await
    };
    counts(5, TTL, one_is_well).await;
    // It is degraded once only the wedged one is left.
    until_holds("it is degraded", async || {
        wedged().await;
        there.view().await["status"] == "degraded"
    })
    .await;
    counts(1, TTL, one_is_well).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_comes_back_empty_costs_no_instance_that_beats() {
    let redis = Redis::start();
    let (here, there, [one, _two]) = two_on(&redis).await;
    let last = Cell::new(Instant::now());
    let beats = async {
        for round in 0.. {
            let (begins, through) = (Instant::now(), [&here, &there][round % 2]);
            let mut all = true;
            for instance in ["one", "two"] {
                all &= through.beat(instance).await.status == 200;
            }
            if all {
                last.set(begins);
            }
            tokio::time::sleep(STEADY_TTL / 10).await;
        }
    };
    // What is seen long after the last heartbeats says nothing.
    let both_live = async || {
        let beaten = last.get();
        let all = [("one", "online"), ("two", "online")];
        for set in [&here, &there] {
            let both = set.has_statuses(&all).await;
            assert!(both || beaten.elapsed() > STEADY_TTL / 2, "one lapsed");
        }
        true
    };
    let story = async {
        holds_for(Duration::from_millis(500), "both live", both_live).await;
        redis.kill();
        tokio::time::sleep(Duration::from_millis(200)).await;
        redis.restart();
        holds_for(STEADY_TTL + TTL, "both live", both_live).await;
    };
    tokio::select! {
        () = beats => {}
        () = story => {}
    }
    here.until_reached("one", &one, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_is_degraded_only_if_all_of_its_instances_are() {
    let (set, _, [_one, _two]) = Set::of_two(Pair::Embedded).await;
    for (instance, rate, tasks, status, all) in [
        ("one", 0.0, 1, "online", 1),
        ("two", 0.9, 2, "online", 3),
        ("one", 0.8, 4, "degraded", 6),
        ("two", 0.0, 2, "online", 6),
    ] {
        let body = json!({"workspace_id": "target", "instance_id": instance, "error_rate": rate, "active_tasks": tasks});
        assert_eq!(set.post("/registry/heartbeat", body).await.status, 200);
        let view = set.view().await;
        assert_eq!(view["status"], json!(status));
        assert_eq!(view["active_tasks"], json!(all));
    }
}
