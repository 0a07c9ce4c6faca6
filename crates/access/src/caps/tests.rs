//! Replicas of one shared state: whatever happens, no more units are used than the limit has, and few are lost.

use std::sync::Arc;

use proptest::prelude::*;

use super::counter::share_max;
use super::facts::{Facts, Names};
use super::{Caps, Charge};
use a2a::method::Method;
use kernel::config::load::{Layers, load};
use kernel::config::{Config, Live};
use kernel::ids::{ReplicaId, WorkspaceId};
use kernel::metrics::Metrics;
use kernel::rejection::Reason;
use stores::shared::Shared;

/// Replicas at once.
const REPLICAS: usize = 3;

/// Event at a replica.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A call is sent.
    Send(usize),
    /// A call is counted and then refused by something else.
    Refuse(usize),
    /// Unused shares are given back.
    GiveBack(usize),
    /// The replica is killed, and another one takes its place.
    Kill(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let replica = 0..REPLICAS;
    let step = prop_oneof![
        40 => replica.clone().prop_map(Step::Send),
        10 => replica.clone().prop_map(Step::Refuse),
        3 => replica.clone().prop_map(Step::GiveBack),
        1 => replica.prop_map(Step::Kill),
    ];
    prop::collection::vec(step, 1..400)
}

fn live(limit: u64) -> Live {
    let cap = format!(r#"cap=[{{"name":"a","per":"run","count":"messages","limit":{limit}}}]"#);
    let layers = Layers {
        overrides: vec![cap],
        ..Layers::default()
    };
    Live::new(load(&layers).unwrap())
}

fn facts(run: &str) -> Facts {
    let id = |text| WorkspaceId::parse(text).unwrap();
    Facts::for_test(
        (id("caller"), ""),
        (id("target"), ""),
        Method::SendMessage,
        Names {
            run: Some(run.to_owned()),
            ..Names::default()
        },
    )
}

fn replica(live: &Live, shared: &Shared, metrics: &Arc<Metrics>) -> Arc<Caps> {
    Caps::new(live, shared, &ReplicaId::random(), metrics)
}

async fn send(caps: &Arc<Caps>, config: &Config) -> Option<Charge> {
    match caps.count_call(config, &facts("r")).await {
        Ok(charge) => Some(charge),
        Err(why) => {
            assert_eq!(why.reason, Reason::CapReached);
            None
        }
    }
}

async fn run(limit: u64, steps: Vec<Step>) -> (u64, u64) {
    let live = live(limit);
    let metrics = Arc::new(Metrics::new());
    let shared = Shared::open(&live.get().stores, Arc::clone(&metrics)).unwrap();
    let fresh = || replica(&live, &shared, &metrics);
    let mut replicas: Vec<_> = (0..REPLICAS).map(|_| fresh()).collect();
    let config = live.snapshot();
    let (mut sent, mut kills) = (0, 0);
    for step in steps {
        match step {
            Step::Send(at) => {
                if let Some(mut charge) = send(&replicas[at], &config).await {
                    charge.mark_sent();
                    sent += 1;
                }
            }
            Step::Refuse(at) => drop(send(&replicas[at], &config).await),
            Step::GiveBack(at) => replicas[at].close().await,
            Step::Kill(at) => {
                replicas[at] = fresh();
                kills += 1;
            }
        }
        assert!(sent <= limit, "{sent} of {limit}");
    }
    for replica in &replicas {
        replica.close().await;
    }
    // A look for units is made once a second.
    tokio::time::advance(super::counter::LOOK_AGAIN).await;
    while let Some(mut charge) = send(&replicas[0], &config).await {
        charge.mark_sent();
        sent += 1;
    }
    (sent, kills)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_more_is_used_than_there_is_and_a_kill_costs_a_share(
        limit in 1_u64..600,
        steps in steps(),
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true);
        let (sent, kills) = runtime.build().unwrap().block_on(run(limit, steps));
        prop_assert!(sent <= limit);
        prop_assert!(sent + kills * share_max(limit) >= limit, "{sent} of {limit} after {kills} kills");
    }
}

#[tokio::test(start_paused = true)]
async fn without_caps_and_without_a_run_nothing_is_counted() {
    let live = live(1);
    let metrics = Arc::new(Metrics::new());
    let shared = Shared::open(&live.get().stores, Arc::clone(&metrics)).unwrap();
    let caps = replica(&live, &shared, &metrics);
    let config = live.snapshot();
    let mut none = facts("r");
    none.names.run = None;
    assert!(caps.count_call(&config, &none).await.unwrap().is_empty());
    let mut no_caps = (*config).clone();
    no_caps.cap.clear();
    assert!(!Caps::are_configured(&no_caps));
    assert!(
        caps.count_call(&no_caps, &facts("r"))
            .await
            .unwrap()
            .is_empty()
    );
    let first = caps.count_call(&config, &facts("r")).await.unwrap();
    assert_eq!(
        caps.count_call(&config, &facts("r"))
            .await
            .err()
            .map(|why| why.reason),
        Some(Reason::CapReached)
    );
    // Dropped unsent, it gives its unit back, and also when it reached no agent after all.
    drop(first);
    let mut lost = caps.count_call(&config, &facts("r")).await.unwrap();
    lost.mark_sent();
    lost.not_sent();
    drop(lost);
    let mut again = caps.count_call(&config, &facts("r")).await.unwrap();
    again.mark_sent();
    drop(again);
    assert!(caps.count_call(&config, &facts("r")).await.is_err());
}
