//! Streams with a key: sent again from their first event, and followed.

use std::time::Duration;

use super::{Case, REPLAY};
use crate::harness::{Builder, LAST_CHUNK, Pair, SSE_HEAD, Step, chunk, unnumbered, until_holds};

fn steps() -> Vec<Step> {
    let event = |n: usize| Step::Write(chunk(format!("data: {n}\n\n")));
    let mut steps = vec![Step::write(SSE_HEAD), event(1), event(2)];
    steps.push(Step::Wait(Duration::from_millis(300)));
    steps.extend([event(3), event(4), Step::write(LAST_CHUNK)]);
    steps
}

const ALL: &str = "data: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\n";

#[tokio::test]
async fn a_stream_is_replayed_from_its_first_event_and_followed() {
    for logs in ["1000", "0"] {
        let builder = Builder::new(Pair::Embedded).set("stream.log_events", logs);
        let case = Case::new(builder, |_| steps()).await;
        let request = case.keyed("s");
        // The first caller leaves in the middle; the call goes on.
        let mut connection = case.begin(&request).await;
        let head = connection.read_head().await.expect("a head");
        assert_eq!((head.status, head.field(REPLAY)), (200, None));
        assert_eq!(head.field("x-accel-buffering"), Some("no"));
        let first = connection.next_chunk().await.expect("an event");
        assert!(first.starts_with(b"data: 1\nid: "));
        drop(connection);
        // Whoever comes while it runs, and afterwards.
        for _ in 0..2 {
            let answer = case.call(&request).await;
            assert_eq!((answer.status, answer.field(REPLAY)), (200, Some("true")));
            assert_eq!(answer.field("content-type"), Some("text/event-stream"));
            assert!(answer.whole);
            assert_eq!(unnumbered(&answer.text()).0, ALL);
        }
        assert_eq!(case.target.agent.count(), 1);
        assert!(case.target.agent.closed_by_gateway().is_empty());
        case.gateway.assert_idle().await;
    }
}

#[tokio::test]
async fn a_stream_that_is_not_kept_any_more_was_delivered() {
    let builder = Builder::new(Pair::Embedded).set("stream.log_ttl", "1s");
    let case = Case::new(builder, |_| steps()).await;
    let request = case.keyed("s");
    assert_eq!(unnumbered(&case.call(&request).await.text()).0, ALL);
    let is_gone = async || case.call(&request).await.status != 200;
    until_holds("the log is forgotten", is_gone).await;
    let answer = case.call(&request).await;
    answer.refuses(502, "agent_protocol_error");
    assert_eq!(answer.fact("delivered").as_deref(), Some("true"));
    assert_eq!(case.target.agent.count(), 1);
}

#[tokio::test]
async fn whoever_makes_the_call_misses_nothing_of_a_stream_that_is_longer_than_its_log() {
    let event = |n: usize| format!("data: {n} {}\n\n", "x".repeat(1200));
    let mut events: Vec<String> = (0..3000).map(event).collect();
    events.push(format!("data: {}\n\n", "y".repeat(1_500_000)));
    let sent = events.concat();
    let case = Case::new(Builder::new(Pair::Embedded), move |_| {
        let mut steps = vec![Step::write(SSE_HEAD)];
        steps.extend(events.iter().map(|event| Step::Write(chunk(event))));
        steps.push(Step::write(LAST_CHUNK));
        steps
    })
    .await;
    let answer = case.call(&case.keyed("long")).await;
    assert!(answer.whole);
    assert!(unnumbered(&answer.text()).0 == sent, "something is missing");
    // Whoever comes later is told what is missing.
    let again = case.call(&case.keyed("long")).await.text();
    let gap = "event: gap\ndata: {\"missed\":3001}";
    assert!(again.starts_with(gap), "{again:.200}");
    case.gateway.assert_idle().await;
}
