//! Three gateways are one: equal calls at once reach the agent once.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::{Case, ONCE, REPLAY, assert_unknown};
use crate::harness::{CALL, Connection, Gateway, Step, Stores, sse};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_equal_calls_on_three_replicas_are_one() {
    let stores = Stores::start();
    let (case, gate) = Case::held(stores.builder()).await;
    let others: [Gateway; 2] = stores.replicas("").await;
    let request = case.keyed("all");
    let calls = (0..200).map(|n| match n % 3 {
        0 => case.gateway.call(&request),
        n => others[n - 1].call(&request),
    });
    let different = async {
        // While the agent works on the first.
        case.target.agent.until_count(1).await;
        let request = case.request(&CALL.replace("hi", "ho"));
        let request = request.field("Idempotency-Key", "all");
        let answer = others[0].call(&request).await;
        gate.add_permits(1);
        answer
    };
    let (answers, different) = tokio::join!(join_all(calls), different);
    for answer in &answers {
        assert_eq!((answer.status, answer.text().as_str()), (200, ONCE));
    }
    let mut first = answers;
    first.retain(|answer| answer.field(REPLAY).is_none());
    assert_eq!((first.len(), case.target.agent.count()), (1, 1));
    different.refuses(409, "idempotency_conflict");
    for gateway in [&case.gateway, &others[0], &others[1]] {
        gateway.assert_idle().await;
        let answer = gateway.call(&request).await;
        assert_eq!(answer.field(REPLAY), Some("true"));
    }
}

/// Whoever waits elsewhere does not wait for a process that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_replica_that_died_is_unknown_when_its_lease_is_over() {
    let stores = Stores::start();
    let mut case = Case::new(stores.builder(), |_| vec![Step::Hang]).await;
    let other = stores.builder().start().await;
    let request = case.keyed("died");
    let _sent = case.begin(&request).await;
    case.target.agent.until_count(1).await;
    let waiting = other.call(&request);
    let kill = async {
        let open = "a2a_gateway_open_exchanges";
        other.until_counted(open, &[], 1.0).await;
        case.gateway.kill();
    };
    let (answer, ()) = tokio::join!(waiting, kill);
    assert_unknown(&answer);
    assert_eq!(case.target.agent.count(), 1);
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Whoever follows elsewhere is not cut without a word by the end of the process that it asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_another_replica_ends_in_words_when_this_one_does() {
    let stores = Stores::start();
    let builder = || stores.builder().set("server.drain", "500ms");
    let case = Case::new(builder(), |_| sse("data: 1\n\n", Step::Hang)).await;
    let mut other = builder().start().await;
    let request = case.keyed("streams");
    let mut making = case.begin(&request).await;
    let head = timeout(PATIENCE, making.read_head()).await.unwrap();
    assert_eq!(head.expect("a head").status, 200);
    making.next_chunk().await.expect("an event");
    let mut following = Connection::open(other.public).await;
    following.ask(&request).await;
    let head = timeout(PATIENCE, following.read_head()).await.unwrap();
    let head = head.expect("a head");
    assert_eq!((head.status, head.field(REPLAY)), (200, Some("true")));
    let name = head.field("x-a2a-stream").expect("its name").to_owned();
    let first = following.next_chunk().await.expect("an event");
    assert!(first.starts_with(b"data: 1\nid: "));
    other.terminate();
    let rest = timeout(PATIENCE, following.read_body(head)).await.unwrap();
    assert!(rest.whole, "{}", rest.text());
    let text = rest.text();
    let last = text.lines().rfind(|line| line.starts_with("data: "));
    let last = &last.expect("a last event")[6..];
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert!(text.contains("SHUTTING_DOWN"), "{last}");
    assert!(text.contains(&name), "{last}");
    assert_eq!(other.wait(PATIENCE).code(), Some(0));
    // The call goes on where it is made.
    assert!(case.target.agent.closed_by_gateway().is_empty());
}
