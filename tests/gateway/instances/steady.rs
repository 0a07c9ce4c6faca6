//! Steady state: a call asks no store, and a heartbeat of an instance makes one trip to the shared state.

use super::*;
use crate::on_both_pairs;
use crate::steady::{ask_nothing, asked};

on_both_pairs! {
    async fn a_call_asks_no_store_and_a_heartbeat_of_an_instance_asks_one_once(pair: Pair) {
        let (set, _, [_one, _two]) = Set::of_two(pair).await;
        ask_nothing(&set.gateway, async || assert_eq!(set.call().await.status, 200), 50).await;
        let beat = async || {
            for instance in ["one", "two"] {
                assert_eq!(set.beat(instance).await.status, 200);
            }
        };
        // The first ones renew the URL keys, too.
        set.gateway.until_warm(beat).await;
        let before = asked(&set.gateway).await;
        for _ in 0..10 {
            beat().await;
        }
        let after = asked(&set.gateway).await;
        let sum = |counts: &std::collections::BTreeMap<String, u64>| counts.values().sum::<u64>();
        assert_eq!(sum(&after) - sum(&before), 20, "{before:?} {after:?}");
        // Beats and calls together still ask for nothing else.
        ask_nothing(&set.gateway, async || assert_eq!(set.call().await.status, 200), 20).await;
    }
}
