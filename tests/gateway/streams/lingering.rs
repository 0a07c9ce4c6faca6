//! What becomes of the call when its caller leaves: it goes on for a while.

use std::time::{Duration, Instant};

use super::{Case, ended, ends, plain, streaming};
use crate::harness::{Builder, Connection, Pair, Step, calmly, holds_for, unnumbered};

const LINGERING: &str = "a2a_gateway_lingering_streams";
const LINGERED: &str = "a2a_gateway_lingered_streams_total";

/// Waits until a gauge says so: what is counted beside it may come a moment earlier.
async fn becomes(case: &Case, gauge: &str, value: f64) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let is = case.gateway.metric(gauge, &[]).await;
        if is == value {
            return;
        }
        assert!(Instant::now() < deadline, "{gauge}: {is}, not {value}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Ends a case: the call is over at its agent, and nothing is held for it.
async fn freed(case: &Case, outcome: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let label = format!("outcome=\"{outcome}\"");
    while case.gateway.metric(LINGERED, &[&label]).await < 1.0 {
        assert!(Instant::now() < deadline, "not {outcome}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    case.gateway.assert_idle().await;
    becomes(case, LINGERING, 0.0).await;
}

#[tokio::test]
async fn a_stream_goes_on_without_its_caller_and_is_there_when_it_comes_back() {
    calmly(async || {
        let mut events = plain(1..=2);
        events.push(String::new());
        events.extend(plain(3..=4));
        let agent = streaming(events, Duration::from_secs(3), ended()).await;
        let case = Case::new(Builder::new(Pair::Embedded), agent).await;
        let (seen, stream) = case.left_behind("data: 2\n").await;
        becomes(&case, LINGERING, 1.0).await;
        // Its record is closed, and its place at the target is not free.
        becomes(&case, "a2a_gateway_open_exchanges", 0.0).await;
        assert_eq!(
            case.gateway.metric("a2a_gateway_target_permits", &[]).await,
            1.0
        );
        freed(&case, "ended").await;
        assert!(case.target.agent.closed_by_gateway().is_empty());
        let rest = case.resumed(&stream, ends(&seen, &stream).len()).await;
        assert_eq!(unnumbered(&(seen + &rest.text())).0, plain(1..=4).concat());
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_nobody_reads_is_cancelled_after_its_time_and_says_so() {
    calmly(async || {
        let agent = streaming(plain(1..=2), Duration::ZERO, Step::Hang).await;
        let builder = Builder::new(Pair::Embedded).set("stream.linger", "2s");
        let case = Case::new(builder, agent).await;
        let left = Instant::now();
        let (_, stream) = case.left_behind("data: 2\n").await;
        let goes_on = async || case.target.agent.closed_by_gateway().is_empty();
        holds_for(Duration::from_secs(1), "it goes on", goes_on).await;
        freed(&case, "unread").await;
        assert_eq!(case.target.agent.closed_by_gateway().len(), 1);
        assert!(left.elapsed() > Duration::from_secs(2));
        let rest = case.resumed(&stream, 1).await.text();
        assert!(rest.starts_with("data: 2\n"), "{rest}");
        let last = rest.rsplit_once("data: ").unwrap().1;
        let last: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!(last["id"], "c-1");
        assert_eq!(last["error"]["data"][0]["reason"], "AGENT_PROTOCOL_ERROR");
        assert_eq!(last["error"]["data"][0]["metadata"]["delivered"], "unknown");
    })
    .await;
}

#[tokio::test]
async fn a_reader_keeps_it_going() {
    calmly(async || {
        let agent = streaming(plain(1..=2), Duration::ZERO, Step::Hang).await;
        let builder = Builder::new(Pair::Embedded).set("stream.linger", "1s");
        let case = Case::new(builder, agent).await;
        let (_, stream) = case.left_behind("data: 2\n").await;
        let mut reader = Connection::open(case.gateway.public).await;
        let wire = case.resume(&stream);
        reader
            .send(&wire.wire(&case.gateway.public.to_string()))
            .await;
        assert_eq!(reader.read_head().await.expect("a head").status, 200);
        let goes_on = async || case.target.agent.closed_by_gateway().is_empty();
        holds_for(Duration::from_millis(2500), "it goes on", goes_on).await;
        drop(reader);
        freed(&case, "unread").await;
        assert_eq!(case.target.agent.closed_by_gateway().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn as_many_go_on_as_may_and_a_drain_ends_them_in_words() {
    calmly(async || {
        let agent = streaming(plain(1..=2), Duration::ZERO, Step::Hang).await;
        let builder = Builder::new(Pair::Embedded).set("stream.lingering", "1");
        let mut case = Case::new(builder, agent).await;
        case.left_behind("data: 2\n").await;
        becomes(&case, LINGERING, 1.0).await;
        case.left_behind("data: 2\n").await;
        let deadline = Instant::now() + Duration::from_secs(5);
        let full = ["outcome=\"full\""];
        while case.gateway.metric(LINGERED, &full).await < 1.0 {
            assert!(Instant::now() < deadline, "one too many");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        becomes(&case, "a2a_gateway_target_permits", 1.0).await;
        case.gateway.terminate();
        let begun = Instant::now();
        assert!(case.gateway.wait(Duration::from_secs(10)).success());
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "it waits for nobody"
        );
    })
    .await;
}

#[tokio::test]
async fn who_saw_no_event_cannot_come_back_and_nothing_goes_on() {
    calmly(async || {
        let agent = streaming(vec![": hello\n\n".into()], Duration::ZERO, Step::Hang).await;
        let case = Case::new(Builder::new(Pair::Embedded), agent).await;
        case.left_behind(": hello\n\n").await;
        let deadline = Instant::now() + Duration::from_secs(5);
        while case.target.agent.closed_by_gateway().is_empty() {
            assert!(Instant::now() < deadline, "the call goes on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        case.gateway.assert_idle().await;
    })
    .await;
}
