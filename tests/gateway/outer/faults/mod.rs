//! Outages, failovers, kills and floods, with stores, poolers and clocks of their own; and every command of the
//! program.

mod commands;
mod failover;
mod floods;
mod kills;
mod learned_limit;
mod outages;
mod poolers;
mod replicas;
mod store_faults;
mod stores;

use std::collections::HashMap;

use serde_json::Value;

use crate::harness::{Agent, Answer, Request};

/// How often the instances of an agent were sent each call together, by its text.
fn runs(instances: &[Agent]) -> HashMap<String, usize> {
    let mut runs = HashMap::new();
    for text in instances.iter().flat_map(crate::jobs::texts) {
        *runs.entry(text).or_default() += 1;
    }
    runs
}

/// All of an inbox, oldest first, asked for page by page. Fails if the numbers have gaps.
async fn inbox(ask: impl AsyncFn(Request) -> Answer) -> Vec<Value> {
    let (mut found, mut path) = (Vec::new(), "/activity?limit=500".to_owned());
    loop {
        let answer = ask(Request::get(&*path)).await.has(200);
        let items: Vec<Value> = serde_json::from_slice(&answer.body).unwrap();
        found.extend(items);
        let Some(link) = answer.field("link") else {
            break;
        };
        path = link[1..link.find('>').unwrap()].to_owned();
    }
    found.reverse();
    for (at, item) in found.iter().enumerate() {
        assert_eq!(item["seq"], at + 1, "the numbers have no gaps");
    }
    found
}
