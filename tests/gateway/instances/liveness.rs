//! The lease of each instance: it lapses alone, comes back, and outlives a restart of gateway and Redis.

use super::*;
use crate::harness::servers::{self, Redis};
use crate::harness::{calmly, holds_for};
use crate::on_both_pairs;

const TTL: Duration = Duration::from_secs(2);

/// Time within which a change counts everywhere.
const SOON: Duration = Duration::from_secs(6);

impl Set {
    /// Waits until the instances have these statuses; `meanwhile` keeps others alive.
    pub(super) async fn until_statuses(&self, expected: &[(&str, &str)], alive: &[&str]) {
        let deadline = Instant::now() + TTL + SOON;
        loop {
            for instance in alive {
                assert_eq!(self.beat(instance).await.status, 200);
            }
            let found = self.statuses().await;
            let found: Vec<_> = found.iter().map(|(a, b)| (&**a, &**b)).collect();
            if found == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{found:?}");
            tokio::time::sleep(TTL / 10).await;
        }
    }
}

on_both_pairs! {
    async fn an_instance_lapses_alone_and_comes_back_with_its_next_heartbeat(pair: Pair) {
        let set = Set::on(Builder::new(pair).set("registry.heartbeat_ttl", "2s")).await;
        let token = set.own_token().await;
        let (one, two) = (answering().await, answering().await);
        set.register(&token, "one", &one).await;
        set.register(&token, "two", &two).await;
        assert_eq!(set.beat("one").await.json()["expires_in"], 2);
        set.until_statuses(&[("one", "offline"), ("two", "online")], &["two"]).await;
        assert_eq!(set.view().await["status"], "online", "one of its instances lives");
        let before = one.count();
        for _ in 0..20 {
            set.beat("two").await;
            assert_eq!(set.call().await.status, 200);
        }
        assert_eq!(one.count(), before, "an instance that is offline is not called");
        assert_eq!(set.beat("one").await.status, 200);
        set.until_statuses(&[("one", "online"), ("two", "online")], &["one", "two"]).await;
        // The other one alone takes calls once this one is silent.
        set.until_statuses(&[("one", "online"), ("two", "offline")], &["one"]).await;
        set.assert_calls_reach(&one).await;
        // With the last one the workspace goes offline, and so the instance that comes back takes its calls.
        set.until_statuses(&[("one", "offline"), ("two", "offline")], &[]).await;
        let deadline = Instant::now() + TTL + SOON;
        while set.view().await["status"] != "offline" {
            assert!(Instant::now() < deadline, "it never lapses");
            tokio::time::sleep(TTL / 10).await;
        }
        assert_eq!(set.call().await.reason(), "workspace_offline");
        assert_eq!(set.beat("two").await.status, 200);
        set.assert_calls_reach(&two).await;
        assert_eq!(set.view().await["status"], "online");
    }

    async fn an_instance_is_there_after_a_restart_of_the_gateway(pair: Pair) {
        let mut set = Set::new(pair).await;
        let token = set.own_token().await;
        let (one, two) = (answering().await, answering().await);
        set.register(&token, "one", &one).await;
        set.register(&token, "two", &two).await;
        set.drain("two").await;
        set.gateway.restart().await;
        set.assert_statuses(&[("one", "online"), ("two", "draining")]).await;
        set.assert_calls_reach(&one).await;
        assert_eq!(set.beat("two").await.status, 200);
        set.assert_statuses(&[("one", "online"), ("two", "draining")]).await;
    }

    async fn a_workspace_is_degraded_only_if_all_of_its_instances_are(pair: Pair) {
        let set = Set::new(pair).await;
        let token = set.own_token().await;
        let (one, two) = (answering().await, answering().await);
        set.register(&token, "one", &one).await;
        set.register(&token, "two", &two).await;
        for (instance, rate, tasks, status, all) in [
            ("one", 0.0, 1, "online", 1),
            ("two", 0.9, 2, "online", 3),
            ("one", 0.8, 4, "degraded", 6),
            ("two", 0.0, 2, "online", 6),
        ] {
            let body = json!({"workspace_id": "target", "instance_id": instance, "error_rate": rate, "active_tasks": tasks});
            assert_eq!(set.post("/registry/heartbeat", body).await.status, 200);
            let view = set.view().await;
            assert_eq!((&view["status"], &view["active_tasks"]), (&json!(status), &json!(all)));
        }
    }
}

/// Two gateways on one Redis and one PostgreSQL.
async fn two_on(redis: &Redis) -> (Set, Set) {
    let sql = servers::postgres().database();
    let builder = || {
        let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
        builder.set("registry.heartbeat_ttl", "2s")
    };
    let one = Set::on(builder().set("stores.timeout", "1s")).await;
    let other = builder().set("stores.timeout", "1s").start().await;
    one.gateway.until_coherent().await;
    other.until_coherent().await;
    let caller = Seat {
        id: "caller".to_owned(),
        token: one.caller.token.clone(),
        agent: Agent::json("{}").await,
    };
    let gateway = other;
    (one, Set { gateway, caller })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_knows_the_instances_and_which_of_them_live() {
    calmly(async || {
        let redis = Redis::start();
        let (here, there) = two_on(&redis).await;
        let token = here.own_token().await;
        let (one, two) = (answering().await, answering().await);
        here.register(&token, "one", &one).await;
        there.assert_calls_reach(&one).await;
        there.register(&token, "two", &two).await;
        here.drain("one").await;
        for set in [&here, &there] {
            set.assert_calls_reach(&two).await;
            set.assert_statuses(&[("one", "draining"), ("two", "online")])
                .await;
        }
        // Heartbeats arrive at the other replica only.
        let until = Instant::now() + TTL * 2;
        while Instant::now() < until {
            for instance in ["one", "two"] {
                assert_eq!(here.beat(instance).await.status, 200);
            }
            assert_eq!(there.call().await.status, 200);
            there
                .assert_statuses(&[("one", "draining"), ("two", "online")])
                .await;
            tokio::time::sleep(TTL / 10).await;
        }
        // It lapses, and comes back by a heartbeat at one of them.
        let silent = [("one", "draining"), ("two", "offline")];
        there.until_statuses(&silent, &["one"]).await;
        let before = two.count();
        let answer = there.call().await;
        assert_eq!(
            (answer.status, two.count()),
            (503, before),
            "{}",
            answer.text()
        );
        assert_eq!(
            answer.reason(),
            "workspace_restarting",
            "only the one that drains is left"
        );
        assert_eq!(here.beat("two").await.status, 200);
        there.assert_calls_reach(&two).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_is_steady_while_replicas_hear_from_different_instances() {
    calmly(async || {
        let redis = Redis::start();
        let (here, there) = two_on(&redis).await;
        let token = here.own_token().await;
        let (one, two) = (answering().await, answering().await);
        here.register(&token, "one", &one).await;
        here.register(&token, "two", &two).await;
        let well = async || assert_eq!(here.beat("one").await.status, 200);
        let wedged = async || {
            let body =
                json!({"workspace_id": "target", "instance_id": "two", "runtime_state": "wedged"});
            let answer = there.post("/registry/heartbeat", body).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        };
        let status = async || there.view().await["status"].as_str().unwrap().to_owned();
        for _ in 0..5 {
            well().await;
            assert_eq!(status().await, "online");
            wedged().await;
            assert_eq!(status().await, "online", "one of them is well");
        }
        // It is degraded once only the wedged one is left.
        let deadline = Instant::now() + TTL + SOON;
        while status().await != "degraded" {
            wedged().await;
            assert!(Instant::now() < deadline, "it is never degraded");
            tokio::time::sleep(TTL / 10).await;
        }
        well().await;
        assert_eq!(status().await, "online");
        wedged().await;
        assert_eq!(status().await, "online");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_comes_back_empty_costs_no_instance_that_beats() {
    calmly(async || {
        let redis = Redis::start();
        let (here, there) = two_on(&redis).await;
        let token = here.own_token().await;
        let (one, two) = (answering().await, answering().await);
        here.register(&token, "one", &one).await;
        here.register(&token, "two", &two).await;
        let beats = async {
            for round in 0.. {
                let through = [&here, &there][round % 2];
                for instance in ["one", "two"] {
                    through.beat(instance).await;
                }
                tokio::time::sleep(TTL / 5).await;
            }
        };
        let story = async {
            let all = [("one", "online"), ("two", "online")];
            let are_there = async || {
                here.assert_statuses(&all).await;
                there.assert_statuses(&all).await;
                true
            };
            holds_for(TTL, "both live", are_there).await;
            redis.kill();
            tokio::time::sleep(Duration::from_millis(200)).await;
            redis.restart();
            holds_for(TTL * 2, "both live", are_there).await;
        };
        tokio::select! {
            () = beats => {}
            () = story => {}
        }
        here.assert_calls_reach(&one).await;
    })
    .await;
}
