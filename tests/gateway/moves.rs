//! Moves and first registrations at the same moment, at one gateway and at two replicas.

use serde_json::json;

use crate::harness::servers::{self, Redis};
use crate::harness::{Answer, Builder, Gateway, Pair, Request, card};
use crate::on_both_pairs;

async fn register(gateway: &Gateway, id: &str, parent: &str) -> Answer {
    let body = json!({"id": id, "url": "http://127.0.0.1:9/", "agent_card": card(id), "parent_id": parent});
    gateway
        .as_operator(Request::post("/registry/register", body.to_string()))
        .await
}

/// Twenty pairs, each moved below one another at once: one at `one`, the other at `other`.
async fn no_cycle(one: &Gateway, other: &Gateway) {
    for round in 0..20 {
        let [a, b] = ["a", "b"].map(|side| format!("{side}-{round}"));
        for id in [&a, &b] {
            one.create(json!({"id": id, "name": id})).await;
        }
        let (up, down) = tokio::join!(register(one, &a, &b), register(other, &b, &a));
        let mut statuses = [up.status, down.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "{} {}", up.text(), down.text());
        let mut tied = 0;
        for id in [&a, &b] {
            let path = format!("/workspaces/{id}");
            let seen = one.as_operator(Request::get(path)).await.json();
            tied += usize::from(!seen["parent_id"].is_null());
        }
        assert_eq!(tied, 1, "round {round}");
    }
}

/// Two that register a new workspace at once, at two places, both do.
async fn no_loser(one: &Gateway, other: &Gateway) {
    one.create(json!({"id": "top", "name": "top"})).await;
    for round in 0..5 {
        let id = format!("new-{round}");
        let (at_one, at_other) = (|| register(one, &id, "top"), || register(other, &id, "top"));
        let all = tokio::join!(
            at_one(),
            at_other(),
            at_one(),
            at_other(),
            at_one(),
            at_other()
        );
        for answer in [all.0, all.1, all.2, all.3, all.4, all.5] {
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
}

on_both_pairs! {
    async fn of_two_opposite_moves_at_once_one_is_made(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        no_cycle(&gateway, &gateway).await;
        no_loser(&gateway, &gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_opposite_moves_at_two_replicas_one_is_made() {
    let redis = Redis::start();
    let (sql, shared) = (servers::postgres().database(), redis.url());
    let replica = || Builder::new(Pair::Embedded).stores(&sql, &shared).start();
    let (one, other) = (replica().await, replica().await);
    no_cycle(&one, &other).await;
    no_loser(&one, &other).await;
}
