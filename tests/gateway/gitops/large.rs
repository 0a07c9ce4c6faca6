//! Many workspaces at once, and a gateway that is killed while it applies a policy: `A2A_GATEWAY_POLICY=10000` and
//! `A2A_GATEWAY_POLICY_KILLS=20` with `--nocapture` show what CI has no time for.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "the count and the time are read from the environment and shown to a person"
)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{apply, export, post};
use crate::harness::{Builder, Connection, Pair, Request};
use crate::on_both_pairs;

fn asked(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// A tree of so many workspaces, ten below each.
fn tree(count: usize, role: &str) -> Value {
    let of = |n: usize| match n {
        0 => json!({"id": "w0", "org": "acme", "role": role}),
        n => json!({"id": format!("w{n}"), "parent_id": format!("w{}", n / 10), "role": role}),
    };
    json!({"version": 1, "workspaces": (0..count).map(of).collect::<Vec<_>>()})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_tree_is_applied() {
    let count = asked("A2A_GATEWAY_POLICY", 1000);
    let gateway = Builder::new(Pair::External).start().await;
    let timed = async |what: &str, policy: Value| {
        let began = Instant::now();
        let difference = apply(&gateway, "", &policy).await;
        let took = began.elapsed();
        let made = difference["changes"].as_array().unwrap().len();
        println!("{what}: {made} of {count} workspaces in {took:?}");
        made
    };
    assert_eq!(timed("created", tree(count, "one")).await, count);
    assert_eq!(timed("unchanged", tree(count, "one")).await, 0);
    assert_eq!(timed("changed", tree(count, "two")).await, count);
    let exported = export(&gateway).await;
    assert_eq!(exported["workspaces"].as_array().unwrap().len(), count);
    assert_eq!(timed("exported", exported).await, 0);
}

on_both_pairs! {
    async fn a_policy_is_never_half_applied_though_the_gateway_is_killed(pair: Pair) {
        let mut gateway = Builder::new(pair).start().await;
        let count = 60;
        apply(&gateway, "", &tree(count, "before")).await;
        let began = Instant::now();
        apply(&gateway, "", &tree(count, "0")).await;
        let whole = began.elapsed().max(Duration::from_millis(5));
        let (mut done, mut last) = (0, "0".to_owned());
        for kill in 1..=asked("A2A_GATEWAY_POLICY_KILLS", 3) {
            let role = kill.to_string();
            let mut connection = Connection::open(gateway.public).await;
            let request = Request::post("/policy", tree(count, &role).to_string());
            let wire = request.bearer(crate::harness::ADMIN).wire(&gateway.public.to_string());
            connection.send(&wire).await;
            let part: u32 = rand::random_range(0..=110);
            tokio::time::sleep(whole * part / 100).await;
            gateway.kill();
            gateway.restart().await;
            let exported = export(&gateway).await;
            let roles: std::collections::BTreeSet<_> = exported["workspaces"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["role"].as_str().unwrap().to_owned())
                .collect();
            assert_eq!(exported["workspaces"].as_array().unwrap().len(), count);
            let is_old = roles.contains(&last) && roles.len() == 1;
            let is_new = roles.contains(&role) && roles.len() == 1;
            assert!(is_old || is_new, "kill {kill}, at {part} %: {roles:?}");
            if is_new {
                (done, last) = (done + 1, role);
            }
        }
        println!("{done} policies were applied before the kill, the others not at all");
        let answer = post(&gateway, "?prune=true", &tree(count, "after")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}
