//! Who falls silent is offline on all of three replicas, by Redis' notices and without, and each change is told once on
//! each, whoever noted it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::beats::Replicas;
use crate::events::until_heard;
use crate::harness::watcher::Feed;
use crate::harness::{ADMIN, Agent, Request, until_holds};

const TTL: Duration = Duration::from_secs(2);

/// The payloads of the events of the target up to the one that ends the case.
async fn told(feed: &mut Feed) -> Vec<(String, Value)> {
    let mut told = Vec::new();
    loop {
        let event = feed.event().await.data;
        if event["workspace_id"] == "last" {
            return told;
        }
        if event["workspace_id"] == "target" {
            let name = event["event"].as_str().unwrap().to_owned();
            told.push((name, event["payload"].clone()));
        }
    }
}

/// Answers by what lapses were noticed.
async fn falls_silent(notices: &str) -> BTreeSet<&'static str> {
    let replicas = Replicas::new(notices, "2s").await;
    for gateway in &replicas.all {
        until_heard(gateway, "AGENT_CARD_UPDATED", "target").await;
    }
    let began = Instant::now();
    replicas.beat(0, json!({})).await;
    let mut feeds = Vec::new();
    for gateway in &replicas.all {
        let events = Request::get("/events").bearer(ADMIN);
        feeds.push(Feed::open(gateway.public, &events).await);
    }
    let trouble = json!({"error_rate": 0.75, "sample_error": "no\u{7} model"});
    let before = replicas.lapses("").await;
    // Where the machine stalls it may lapse before all is counted.
    let mut is_calm = true;
    for round in 0..3 {
        // A heartbeat through another replica revives it on all.
        replicas.beat(round, json!({"active_tasks": round})).await;
        is_calm &= round > 0 || began.elapsed() < TTL;
        replicas.beat(round, trouble.clone()).await;
        replicas.beat(round, json!({"active_tasks": round})).await;
        // Nobody asks for it meanwhile.
        let least = before + f64::from(u32::try_from(round).unwrap());
        let noted = async || replicas.lapses("").await > least;
        until_holds("the lapse is noted", noted).await;
        replicas.all_say("offline").await;
        for gateway in &replicas.all {
            let answer = replicas.call(gateway).await;
            assert_eq!(answer.reason(), "workspace_offline", "{}", answer.text());
        }
    }
    replicas.beat(0, json!({})).await;
    let lapses = replicas.lapses("").await - before;
    let last = Agent::json("{}").await;
    replicas.all[0].seat("last", "", last).await;
    let offline = json!({"status": "offline"});
    let degraded = json!({"status": "degraded", "error_rate": 0.75, "sample_error": "no model"});
    for feed in &mut feeds {
        let told = told(feed).await;
        let of = |event: &str| -> Vec<&Value> {
            let named = told.iter().filter(|(name, _)| name == event);
            named.map(|(_, payload)| payload).collect()
        };
        assert_eq!(of("WORKSPACE_DEGRADED"), vec![&degraded; 3]);
        assert!(of("TASK_UPDATED").len() >= 3);
        // One replica notes each lapse. A machine that stalls between two beats adds some.
        let ends = of("WORKSPACE_OFFLINE");
        assert!(ends.iter().all(|payload| **payload == offline), "{ends:?}");
        let count = u32::try_from(ends.len()).map(f64::from);
        assert!(count == Ok(lapses) || !is_calm, "{told:?}");
        // A replica whose change was overtaken repeats the status in force, so that the last event has it.
        let mut changes: Vec<_> = told
            .iter()
            .filter_map(|(_, p)| p["status"].as_str())
            .collect();
        changes.dedup();
        if lapses == 3.0 && is_calm {
            let round = ["degraded", "online", "offline", "online"];
            assert_eq!(changes, round.repeat(3));
        }
    }
    let mut kinds = BTreeSet::new();
    for kind in ["expiry", "sweep", "request"] {
        if replicas.lapses(kind).await > 0.0 {
            kinds.insert(kind);
        }
    }
    kinds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_falls_silent_is_offline_on_all_replicas_by_redis_notice() {
    let kinds = falls_silent("Ex").await;
    assert!(kinds.contains("expiry"), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_falls_silent_is_offline_on_all_replicas_also_without_notices() {
    let kinds = falls_silent("").await;
    assert!(!kinds.contains("expiry"), "{kinds:?}");
}
