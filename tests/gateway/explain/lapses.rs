//! A heartbeat that does not come. On a busy machine it lapses between any two questions, and its lapse is noted
//! by whoever comes first, which changes the words: so what a message meets lies between what the explanation
//! before it says and what the one behind it does.

use super::{Met, call, explain};
use crate::harness::{ADMIN, Agent, Builder, until_holds};
use crate::on_both_pairs;

on_both_pairs! {
    async fn an_explanation_and_a_message_agree_while_a_lease_lapses(pair: Pair) {
        let builder = Builder::new(pair).set("registry.heartbeat_ttl", "2s");
        let gateway = builder.start().await;
        let _lapsing = gateway.seat("lapsing", "", Agent::json("{}").await).await;
        let stage = |met: &Met| {
            let stages = [
                ("sent", ""),
                ("workspace_offline", "the workspace has sent no heartbeat for 2 s"),
                ("workspace_offline", "the workspace is offline: it sends no heartbeat"),
            ];
            let said = (met.reason.as_str(), met.message.as_str());
            let found = stages.iter().position(|stage| *stage == said);
            found.unwrap_or_else(|| panic!("{met:?}"))
        };
        until_holds("it lapses", async || {
            let before = Met::of_explanation(&explain(&gateway, "operator", "lapsing").await);
            let met = Met::of_message(&gateway.call(&call("lapsing", ADMIN)).await);
            let after = Met::of_explanation(&explain(&gateway, "operator", "lapsing").await);
            let stages = [&before, &met, &after].map(stage);
            assert!(stages.is_sorted(), "{before:?}, {met:?}, {after:?}");
            let is_over = stages[0] == 2;
            assert!(!is_over || [&before, &after] == [&met; 2], "{before:?}, {met:?}, {after:?}");
            is_over
        }).await;
    }
}
