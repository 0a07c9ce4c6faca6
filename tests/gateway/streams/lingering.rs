//! What becomes of the call when its caller leaves: it goes on for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::{Case, ended, ends, pausing, plain, streaming};
use crate::harness::{Step, holds_for, unnumbered, until_holds};

const LINGERING: &str = "a2a_gateway_lingering_streams";
const LINGERED: &str = "a2a_gateway_lingered_streams_total";

/// Waits until a gauge says so: what is counted beside it may come a moment earlier.
async fn becomes(case: &Case, gauge: &str, value: f64) {
    let is = async || case.gateway.metric(gauge, &[]).await == value;
    until_holds(&format!("{gauge} is {value}"), is).await;
}

/// Waits until the agent hears of the end, which may be a moment after it is counted.
async fn cancelled(case: &Case) {
    let is_over = async || case.target.agent.closed_by_gateway().len() == 1;
    until_holds("the call is cancelled at its agent", is_over).await;
}

/// Ends a case: the call is over at its agent, and nothing is held for it.
async fn freed(case: &Case, outcome: &str) {
    let label = format!("outcome=\"{outcome}\"");
    case.gateway.until_counted(LINGERED, &[&label], 1.0).await;
    case.gateway.assert_idle().await;
    becomes(case, LINGERING, 0.0).await;
}

#[tokio::test]
async fn a_stream_goes_on_without_its_caller_and_is_there_when_it_comes_back() {
    let mut events = plain(1..=2);
    events.push(String::new());
    events.extend(plain(3..=4));
    let gate = Arc::new(Semaphore::new(0));
    let agent = pausing(events, Step::Held(Arc::clone(&gate)), ended()).await;
    let case = Case::with("", agent).await;
    let (seen, stream) = case.left_behind("data: 2\n").await;
    becomes(&case, LINGERING, 1.0).await;
    // Its record is closed, and its place at the target is not free.
    becomes(&case, "a2a_gateway_open_exchanges", 0.0).await;
    becomes(&case, "a2a_gateway_target_permits", 1.0).await;
    gate.add_permits(1);
    freed(&case, "ended").await;
    assert!(case.target.agent.closed_by_gateway().is_empty());
    let rest = case.resumed(&stream, ends(&seen, &stream).len()).await;
    assert_eq!(unnumbered(&(seen + &rest.text())).0, plain(1..=4).concat());
}

#[tokio::test]
async fn a_stream_that_nobody_reads_is_cancelled_after_its_time_and_says_so() {
    let agent = streaming(plain(1..=2), Step::Hang).await;
    let case = Case::with("stream.linger=1s", agent).await;
    let left = Instant::now();
    let (_, stream) = case.left_behind("data: 2\n").await;
    freed(&case, "unread").await;
    cancelled(&case).await;
    assert!(left.elapsed() > Duration::from_secs(1));
    let rest = case.resumed(&stream, 1).await.text();
    assert!(rest.starts_with("data: 2\n"), "{rest}");
    let last = rest.rsplit_once("data: ").unwrap().1;
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["id"], "c-1");
    let info = &last["error"]["data"][0];
    assert_eq!(info["reason"], "AGENT_PROTOCOL_ERROR");
    assert_eq!(info["metadata"]["delivered"], "unknown");
}

#[tokio::test]
async fn a_reader_keeps_it_going() {
    let agent = streaming(plain(1..=2), Step::Hang).await;
    let case = Case::with("stream.linger=1s", agent).await;
    let (leaves, _, stream) = case.reading("data: 2\n").await;
    let reader = case.follow(&case.gateway, &stream).await;
    drop(leaves);
    let goes_on = async || case.target.agent.closed_by_gateway().is_empty();
    holds_for(Duration::from_millis(1500), "it goes on", goes_on).await;
    drop(reader);
    freed(&case, "unread").await;
    cancelled(&case).await;
}

#[tokio::test]
async fn as_many_go_on_as_may_and_a_drain_ends_them_in_words() {
    let agent = streaming(plain(1..=2), Step::Hang).await;
    let mut case = Case::with("stream.lingering=1", agent).await;
    case.left_behind("data: 2\n").await;
    becomes(&case, LINGERING, 1.0).await;
    case.left_behind("data: 2\n").await;
    let full = ["outcome=\"full\""];
    case.gateway.until_counted(LINGERED, &full, 1.0).await;
    becomes(&case, "a2a_gateway_target_permits", 1.0).await;
    case.gateway.terminate();
    // It waits for nobody: that would be two minutes.
    assert!(case.gateway.wait(Duration::from_secs(60)).success());
}

#[tokio::test]
async fn who_saw_no_event_cannot_come_back_and_nothing_goes_on() {
    let agent = streaming(vec![": hello\n\n".into()], Step::Hang).await;
    let case = Case::with("", agent).await;
    case.left_behind(": hello\n\n").await;
    let is_over = async || !case.target.agent.closed_by_gateway().is_empty();
    until_holds("the call ends", is_over).await;
    case.gateway.assert_idle().await;
}
