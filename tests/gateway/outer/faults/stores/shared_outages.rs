//! Shared state while Redis is down, silent, slow or unreachable.

use std::time::{Duration, Instant};

use a2a_gateway::shared::{Notice, Shared};

use super::{AMPLE, AT_ONCE, TIMEOUT, message, next, open_shared, open_shared_with};
use crate::harness::servers::Redis;
use crate::harness::until_holds;

/// A subscriber that has seen its link come up.
async fn listening(shared: &Shared) -> a2a_gateway::shared::Subscription {
    let mut news = shared.subscribe("case:news");
    assert_eq!(next(&mut news).await, Notice::Up);
    news
}

async fn recovers(shared: &Shared) {
    let is_back = async || shared.set("recovered", "1", None).await.is_ok();
    until_holds("it recovers", is_back).await;
}

#[tokio::test]
async fn a_killed_server_is_told_and_a_new_one_is_found() {
    let redis = Redis::start();
    let shared = open_shared(&redis.url());
    let mut news = listening(&shared).await;
    shared.ping().await.unwrap();
    redis.kill();
    assert_eq!(next(&mut news).await, Notice::Down);
    let started = Instant::now();
    let refused = shared.get("key").await.unwrap_err();
    assert_eq!((refused.store, refused.operation), ("shared", "get"));
    let took = started.elapsed();
    assert!(
        took < AMPLE / 2,
        "a refused connection is no wait: {took:?}"
    );
    redis.restart();
    assert_eq!(next(&mut news).await, Notice::Up);
    recovers(&shared).await;
    shared.publish("case:news", "back").await.unwrap();
    assert_eq!(next(&mut news).await, message("back"));
}

#[tokio::test]
async fn a_server_that_comes_late_is_found() {
    let redis = Redis::start();
    let url = redis.url();
    redis.kill();
    let shared = open_shared_with(&url, TIMEOUT);
    let mut news = shared.subscribe("case:news");
    let early = tokio::time::timeout(Duration::from_millis(300), news.next());
    assert!(early.await.is_err());
    assert!(shared.ping().await.is_err());
    redis.restart();
    assert_eq!(next(&mut news).await, Notice::Up);
    recovers(&shared).await;
}

#[tokio::test]
async fn a_silent_server_costs_each_caller_one_clock_and_is_used_again() {
    let redis = Redis::start();
    let shared = open_shared_with(&redis.url(), TIMEOUT);
    let mut news = listening(&shared).await;
    recovers(&shared).await;
    redis.pause();
    let started = Instant::now();
    let callers = (0..50).map(|_| {
        let shared = shared.clone();
        tokio::spawn(async move { shared.get("key").await })
    });
    let callers = callers.collect::<Vec<_>>();
    assert_eq!(next(&mut news).await, Notice::Down);
    for caller in callers {
        assert!(caller.await.unwrap().is_err());
    }
    assert!(started.elapsed() < TIMEOUT * AT_ONCE);
    redis.resume();
    assert_eq!(next(&mut news).await, Notice::Up);
    recovers(&shared).await;
}

#[tokio::test]
async fn a_dead_connection_is_left_behind_although_nobody_closes_it() {
    let redis = Redis::start();
    let (relay, url) = redis.relayed();
    let shared = open_shared_with(&url, TIMEOUT * 3);
    let mut news = listening(&shared).await;
    recovers(&shared).await;
    relay.strand();
    assert_eq!(next(&mut news).await, Notice::Down);
    assert_eq!(next(&mut news).await, Notice::Up);
    // One operation finds out; then there is a new connection, which a busy machine may be slow to make.
    assert!(shared.get("key").await.is_err());
    recovers(&shared).await;
}

#[tokio::test]
async fn idle_connections_that_the_server_drops_fail_nothing() {
    let redis = Redis::start();
    let shared = open_shared(&redis.url());
    for round in 0..2 {
        shared.set("key", "1", None).await.unwrap();
        redis.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        // Reads are asked again at once; a write needs the news that the connection is gone.
        assert!(shared.get("key").await.is_ok(), "read {round}");
        redis.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        tokio::time::sleep(Duration::from_millis(250)).await;
        let counted = shared.increment("count", Duration::from_secs(60)).await;
        counted.unwrap();
    }
}

#[tokio::test]
async fn a_slow_network_is_slow_but_works_within_the_clock() {
    let redis = Redis::start();
    let (relay, url) = redis.relayed();
    let shared = open_shared(&url);
    let mut news = listening(&shared).await;
    recovers(&shared).await;
    relay.delay(Duration::from_millis(50));
    for text in ["0", "1", "2", "3", "4"] {
        shared.publish("case:news", text).await.unwrap();
        assert_eq!(next(&mut news).await, message(text));
    }
    relay.resume();
    let hasty = open_shared_with(&url, TIMEOUT);
    recovers(&hasty).await;
    // An answer that is there at the end of its clock still counts.
    relay.delay(TIMEOUT * 12);
    assert!(hasty.get("key").await.is_err());
    relay.resume();
    recovers(&hasty).await;
}

#[tokio::test]
async fn a_flapping_link_tells_each_break_in_turn() {
    let redis = Redis::start();
    let (relay, url) = redis.relayed();
    let shared = open_shared_with(&url, TIMEOUT);
    let mut news = listening(&shared).await;
    for _ in 0..3 {
        relay.cut();
        assert_eq!(next(&mut news).await, Notice::Down);
        assert!(shared.ping().await.is_err());
        relay.resume();
        assert_eq!(next(&mut news).await, Notice::Up);
        recovers(&shared).await;
    }
    relay.black_hole();
    assert_eq!(next(&mut news).await, Notice::Down);
    relay.resume();
    assert_eq!(next(&mut news).await, Notice::Up);
    recovers(&shared).await;
}
