//! Redis slow, flapping, and restarted empty.

use std::time::{Duration, Instant};

use super::{Site, Who, all_is_well, beat};
use crate::harness::until_holds;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_slow_by_200_ms_slows_down_only_what_is_not_in_memory() {
    let site = Site::new().await;
    // Each way.
    site.redis_link.delay(Duration::from_millis(100));
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        let started = Instant::now();
        site.question(Who::Warm).expect(all_is_well).await;
        quickest = quickest.min(started.elapsed());
    }
    // One that asks Redis takes as long.
    assert!(quickest < Duration::from_millis(200), "{quickest:?}");
    site.look(Duration::from_millis(1_500), all_is_well).await;
    let ready = site.gateway.admin_get("/readyz").await.unwrap();
    assert_eq!(ready.status, 200, "slow is not away: {}", ready.text());
    site.redis_link.resume();
    site.recovers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_flapping_is_not_seen_by_callers() {
    let site = Site::new().await;
    for round in 0..4 {
        if round % 2 == 0 {
            site.redis_link.cut();
        } else {
            site.redis_link.black_hole();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        site.look(Duration::from_millis(200), all_is_well).await;
        site.redis_link.resume();
        site.look(Duration::from_millis(200), all_is_well).await;
    }
    site.recovers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_restarted_empty_has_everything_again_after_the_next_heartbeat() {
    // `far`, which never beats, is asked before it lapses.
    let site = Site::with(|builder| builder.set("registry.heartbeat_ttl", "30s")).await;
    beat(&site.gateway, &site.target).await.has(200);
    site.redis.kill();
    site.look(Duration::from_millis(300), all_is_well).await;
    site.redis.restart();
    site.gateway.await_ready().await;
    assert_eq!(site.redis.command(&["DBSIZE"]), "0");
    // Leases that were lost prove no lapse …
    assert_eq!(site.ask(Who::Warm).await.status, 200);
    // … and heartbeats that stay away do, by SQL.
    until_holds("it lapses", async || {
        let answer = site.ask(Who::Warm).await;
        answer.status != 200 && answer.reason() == "workspace_offline"
    })
    .await;
    beat(&site.gateway, &site.target).await.has(200);
    site.question(Who::Warm).expect(all_is_well).await;
    for key in ["workspace:target:heartbeat", "ws:target:url"] {
        assert_eq!(site.redis.command(&["EXISTS", key]), "1", "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_stay_online_when_the_gateway_starts_again_beside_an_empty_redis() {
    let mut site = Site::new().await;
    assert_eq!(beat(&site.gateway, &site.target).await.status, 200);
    site.gateway.kill();
    site.redis.kill();
    site.redis.restart();
    site.gateway.restart().await;
    site.question(Who::Warm).expect(all_is_well).await;
    let lease = ["EXISTS", "workspace:target:heartbeat"];
    assert_eq!(site.redis.command(&lease), "0");
    let coherent = site.gateway.metric("a2a_gateway_coherent", &[]).await;
    assert_eq!(coherent, 0.0, "leases are missing");
    let (cold, far) = (&site.cold_caller, &site.cold_target);
    for seat in [&site.caller, &site.target, &site.stranger, cold, far] {
        beat(&site.gateway, seat).await.has(200);
    }
    site.gateway.until_coherent().await;
}
