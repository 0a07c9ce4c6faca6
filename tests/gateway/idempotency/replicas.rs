//! Three gateways are one: equal calls at once reach the agent once.

use std::time::Duration;

use futures_util::future::join_all;

use super::{Case, REPLAY};
use crate::harness::servers::{self, Redis};
use crate::harness::{Builder, CALL, Pair, Step, ok_json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_equal_calls_on_three_replicas_are_one() {
    let redis = Redis::start();
    let sql = servers::postgres().database();
    let builder = || Builder::new(Pair::Embedded).stores(&sql, &redis.url());
    let case = Case::new(builder(), |_| {
        vec![
            Step::Wait(Duration::from_millis(1500)),
            Step::Write(ok_json("{\"result\":\"once\"}")),
        ]
    })
    .await;
    let others = [builder().start().await, builder().start().await];
    let request = case.keyed("all");
    let calls = (0..200).map(|n| match n % 3 {
        0 => case.gateway.call(&request),
        n => others[n - 1].call(&request),
    });
    let different = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let request = case.request(&CALL.replace("hi", "ho"));
        let request = request.field("Idempotency-Key", "all");
        others[0].call(&request).await
    };
    let (answers, different) = tokio::join!(join_all(calls), different);
    for answer in &answers {
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, "{\"result\":\"once\"}")
        );
    }
    let first = answers
        .iter()
        .filter(|answer| answer.field(REPLAY).is_none());
    assert_eq!((first.count(), case.target.agent.count()), (1, 1));
    assert_eq!(
        (different.status, different.reason().as_str()),
        (409, "idempotency_conflict")
    );
    for gateway in [&case.gateway, &others[0], &others[1]] {
        gateway.assert_idle().await;
        let answer = gateway.call(&request).await;
        assert_eq!(answer.field(REPLAY), Some("true"));
    }
}

/// Whoever waits elsewhere does not wait for a process that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_replica_that_died_is_unknown_when_its_lease_is_over() {
    let redis = Redis::start();
    let sql = servers::postgres().database();
    let builder = || Builder::new(Pair::Embedded).stores(&sql, &redis.url());
    let mut case = Case::new(builder(), |_| vec![Step::Hang]).await;
    let other = builder().start().await;
    let request = case.keyed("died");
    let mut connection = crate::harness::Connection::open(case.gateway.public).await;
    connection
        .send(&request.wire(&case.gateway.public.to_string()))
        .await;
    while case.target.agent.count() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let waiting = other.call(&request);
    let kill = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        case.gateway.kill();
    };
    let (answer, ()) = tokio::join!(waiting, kill);
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (502, "agent_protocol_error")
    );
    assert_eq!(answer.fact("delivered").as_deref(), Some("unknown"));
    assert_eq!(case.target.agent.count(), 1);
}
