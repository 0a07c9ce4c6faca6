//! Who falls silent is offline on all of three replicas, by Redis' notices and without, and each change is told once on
//! each, whoever noted it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::beats::Replicas;
use crate::events::until_heard;
use crate::harness::watcher::Feed;
use crate::harness::{ADMIN, Agent, Request, until_holds};

const TTL: Duration = Duration::from_secs(2);

/// The event stream of a replica, with the payloads of the target's events so far.
struct EventLog {
    feed: Feed,
    events: Vec<(String, Value)>,
}

impl EventLog {
    /// Reads up to the event that is the last.
    async fn read_until(&mut self, is_last: impl Fn(&Value) -> bool) {
        loop {
            let event = self.feed.event().await.data;
            if event["workspace_id"] == "target" {
                let name = event["event"].as_str().unwrap().to_owned();
                self.events.push((name, event["payload"].clone()));
            }
            if is_last(&event) {
                return;
            }
        }
    }

    fn of(&self, event: &str) -> Vec<&Value> {
        let named = self.events.iter().filter(|(name, _)| name == event);
        named.map(|(_, payload)| payload).collect()
    }

    /// The number of events of lapses. A machine that stalls between two beats adds some, which may come late.
    fn ends(&self) -> f64 {
        let count = self.of("WORKSPACE_OFFLINE").len();
        f64::from(u32::try_from(count).unwrap())
    }

    /// `is_exact`: there was one lapse in each round.
    fn assert_in_order(&self, is_exact: bool) {
        let offline = json!({"status": "offline"});
        let trouble = json!({"status": "degraded", "error_rate": 0.75, "sample_error": "no model"});
        let ends = self.of("WORKSPACE_OFFLINE");
        assert!(ends.iter().all(|payload| **payload == offline), "{ends:?}");
        assert!(self.of("TASK_UPDATED").len() >= 3);
        let degraded = self.of("WORKSPACE_DEGRADED");
        assert!(degraded.contains(&&trouble), "{degraded:?}");
        // A replica whose change was overtaken repeats the status in force, so that the last event has it.
        let payloads = self.events.iter().map(|(_, payload)| payload);
        let mut changes: Vec<_> = payloads.filter_map(|p| p["status"].as_str()).collect();
        changes.dedup();
        if is_exact {
            let round = ["degraded", "online", "offline", "online"];
            assert_eq!(changes, round.repeat(3));
            assert_eq!(degraded, vec![&trouble; 3]);
        }
    }
}

fn is_end(event: &Value) -> bool {
    event["event"] == "WORKSPACE_OFFLINE"
}

/// Answers by what lapses were noticed.
async fn falls_silent(notices: &str) -> BTreeSet<&'static str> {
    let replicas = Replicas::new(notices, "2s").await;
    for gateway in &replicas.all {
        until_heard(gateway, "AGENT_CARD_UPDATED", "target").await;
    }
    replicas.beat(0, json!({})).await;
    let mut all = Vec::new();
    for gateway in &replicas.all {
        let events = Request::get("/events").bearer(ADMIN);
        all.push(EventLog {
            feed: Feed::open(gateway.public, &events).await,
            events: Vec::new(),
        });
    }
    let trouble = json!({"error_rate": 0.75, "sample_error": "no\u{7} model"});
    let before = replicas.lapses("").await;
    // Where the machine stalls it may lapse before all is counted.
    let mut is_calm = true;
    for round in 0..3 {
        // A heartbeat through another replica revives it on all.
        replicas.beat(round, json!({"active_tasks": round})).await;
        is_calm &= round > 0 || replicas.since.elapsed() < TTL;
        replicas.beat(round, trouble.clone()).await;
        replicas.beat(round, json!({"active_tasks": round})).await;
        let least = before + f64::from(u32::try_from(round).unwrap());
        let noted = async || replicas.lapses("").await > least;
        until_holds("the lapse is noted, and nobody asks for it", noted).await;
        replicas.all_say("offline").await;
        for gateway in &replicas.all {
            let said = async || replicas.call(gateway).await.text();
            let refused = async || said().await.contains("WORKSPACE_OFFLINE");
            until_holds("its calls are refused", refused).await;
        }
        // A replica tells what it notes a moment later: the next change is another replica's.
        for log in &mut all {
            log.read_until(is_end).await;
        }
    }
    replicas.beat(0, json!({})).await;
    let lapses = replicas.lapses("").await - before;
    let last = Agent::json("{}").await;
    replicas.all[0].seat("last", "", last).await;
    for log in &mut all {
        log.read_until(|event| event["workspace_id"] == "last")
            .await;
        while is_calm && log.ends() < lapses {
            log.read_until(is_end).await;
        }
        // Silent since then, it may have lapsed again.
        let expected = lapses..=replicas.lapses("").await - before;
        let (ends, events) = (log.ends(), &log.events);
        assert!(expected.contains(&ends) || !is_calm, "{events:?}");
        log.assert_in_order(ends == 3.0 && lapses == 3.0 && is_calm);
    }
    // Which of the two finds a lapse is chance: it falls silent until a notice was first.
    if !notices.is_empty() {
        until_holds("a notice finds a lapse", async || {
            replicas.beat(0, json!({})).await;
            replicas.all_say("offline").await;
            replicas.lapses("expiry").await > 0.0
        })
        .await;
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
