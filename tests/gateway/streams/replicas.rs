//! Two gateways on one Redis: a stream that broke off at one is taken up at the other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::{Case, ended, ends, pausing, plain, rest, streaming};
use crate::harness::{Agent, Gateway, Step, Stores, holds_for, unnumbered, until_holds};

struct Replicas {
    case: Case,
    other: Gateway,
    stores: Stores,
}

impl Replicas {
    async fn new(agent: Agent, settings: &str) -> Self {
        let stores = Stores::start();
        let case = Case::new(stores.builder().sets(settings), agent).await;
        let other = stores.builder().sets(settings).start().await;
        Self {
            case,
            other,
            stores,
        }
    }

    /// An event that was never sent is none there either.
    async fn assert_unsent(&self, stream: &str, event: usize) {
        let answer = self.other.call(&self.case.behind(stream, event)).await;
        assert_eq!(answer.reason(), "invalid_params", "{}", answer.text());
    }

    async fn resumed(&self, stream: &str, after: usize) -> String {
        let answer = self.other.call(&self.case.behind(stream, after)).await;
        answer.has(200).text()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_taken_up_at_another_replica_while_it_runs_and_afterwards() {
    let mut events = vec![": hello\n\n".to_owned()];
    for n in 1..=6 {
        events.push(format!("id: own\r\ndata: {n} ü\r\n\r\n"));
        events.push(String::new());
    }
    let sent = events.concat();
    let pause = Step::Wait(Duration::from_millis(100));
    let agent = pausing(events, pause, ended()).await;
    let replicas = Replicas::new(agent, "").await;
    let (seen, stream) = replicas.case.left_behind("data: 2 ").await;
    let had = ends(&seen, &stream).len();
    // Straight away: the other one may not have heard of it yet.
    let rest = replicas.resumed(&stream, had).await;
    let whole = seen + &rest;
    assert_eq!(unnumbered(&whole), (sent, stream.clone()));
    let ends = ends(&whole, &stream);
    for after in 1..=6 {
        let rest = replicas.resumed(&stream, after).await;
        assert_eq!(rest, whole[ends[after - 1]..], "after {after}");
    }
    let first = replicas.other.call(&replicas.case.resume(&stream)).await;
    assert_eq!(first.text(), whole);
    // Another caller learns nothing there either.
    let agent = Agent::json("{}").await;
    let stranger = replicas.case.gateway.seat("other", "", agent).await;
    let request = super::resume(&stream).bearer(&stranger.token);
    assert_eq!(replicas.other.call(&request).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bounds_and_their_gaps_hold_there_too() {
    let agent = streaming(plain(1..=30), ended()).await;
    let replicas = Replicas::new(agent, "stream.log_events=10").await;
    let (whole, stream) = replicas.case.whole().await;
    let ends = ends(&whole, &stream);
    let gap = "event: gap\ndata: {\"missed\":15}\n\n".to_owned();
    // Behind the newest event that is copied one waits, so that after this the end is: then what is kept is known.
    assert_eq!(replicas.resumed(&stream, 25).await, whole[ends[24]..]);
    assert_eq!(replicas.resumed(&stream, 5).await, gap + &whole[ends[19]..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_elsewhere_keeps_it_going_and_hears_of_the_death_of_its_gateway() {
    let agent = streaming(plain(1..=2), Step::Hang).await;
    // Far longer than the two seconds between two looks for readers elsewhere.
    let mut replicas = Replicas::new(agent, "stream.linger=12s").await;
    let (leaves, _, stream) = replicas.case.reading("data: 2\n").await;
    let mut reader = replicas.case.follow(&replicas.other, &stream).await;
    let mut seen = String::new();
    while !seen.contains("data: 2\n") {
        let chunk = reader.next_chunk().await.expect("an event");
        seen.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    drop(leaves);
    replicas.assert_unsent(&stream, 40).await;
    let goes_on = async || replicas.case.target.agent.closed_by_gateway().is_empty();
    holds_for(
        Duration::from_secs(14),
        "it is read, so it goes on",
        goes_on,
    )
    .await;
    replicas.case.gateway.kill();
    seen.push_str(&rest(&mut reader).await);
    // Who saw more than the dead one copied hears that it is lost.
    for text in [seen, replicas.resumed(&stream, 40).await] {
        assert!(text.contains("\"AGENT_PROTOCOL_ERROR\""), "{text}");
        assert!(text.contains("\"delivered\":\"unknown\""), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_does_not_wait_for_a_store_that_is_away() {
    let mut events = plain(1..=1);
    events.push(String::new());
    events.extend(plain(2..=500));
    let gate = Arc::new(Semaphore::new(0));
    let agent = pausing(events, Step::Held(Arc::clone(&gate)), ended()).await;
    let replicas = Replicas::new(agent, "").await;
    let Replicas { case, stores, .. } = replicas;
    let cut = async {
        case.target.agent.until_count(1).await;
        drop(stores);
        gate.add_permits(1);
    };
    let ((whole, stream), ()) = tokio::join!(case.whole(), cut);
    assert_eq!(unnumbered(&whole).0, plain(1..=500).concat());
    // Here it can be taken up all the same.
    let answer = case.resumed(&stream, 499).await;
    assert_eq!(answer.text(), whole[ends(&whole, &stream)[498]..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_store_lost_is_copied_to_it_again() {
    let agent = streaming(plain(1..=30), ended()).await;
    let replicas = Replicas::new(agent, "").await;
    let (whole, stream) = replicas.case.whole().await;
    let rest = &whole[ends(&whole, &stream)[4]..];
    assert_eq!(replicas.resumed(&stream, 5).await, rest);
    replicas.assert_unsent(&stream, 40).await;
    replicas.stores.redis.kill();
    // It comes back empty.
    replicas.stores.redis.restart();
    let request = replicas.case.behind(&stream, 5);
    let is_back = async || {
        let answer = replicas.other.call(&request).await;
        if answer.status == 200 {
            assert_eq!(answer.text(), rest);
            return true;
        }
        let reason = answer.reason();
        assert!(["not_found", "store_unavailable"].contains(&&*reason));
        false
    };
    until_holds("it is copied again", is_back).await;
}
