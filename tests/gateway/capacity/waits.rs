//! Calls that wait: for an agent that refuses connections, or for a place at it.

use super::*;

/// How many waits for agents ended so.
async fn ends(gateway: &Gateway, outcome: &str) -> f64 {
    let label = format!("outcome=\"{outcome}\"");
    gateway.metric("a2a_gateway_hold_total", &[&label]).await
}

fn assert_unreachable(answer: &Answer) {
    assert_eq!(answer.reason(), "agent_unreachable");
    assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
}

#[tokio::test]
async fn calls_that_wait_for_an_agent_are_bounded_in_number_bytes_and_time() {
    for (key, value) in [
        ("upstream.hold", "300ms"),
        ("upstream.hold_calls", "1"),
        ("upstream.hold_bytes", "300B"),
    ] {
        let builder = builder(Pair::Embedded).set("upstream.hold", "10m");
        let case = Case::start(builder.set(key, value)).await;
        case.target.agent.stop();
        if key == "upstream.hold" {
            assert_unreachable(&case.call().await);
            assert_eq!(ends(&case.gateway, "timed_out").await, 1.0);
            continue;
        }
        let held = case.sent().await;
        until_held(&case.gateway, 1.0).await;
        for answer in join_all((0..3).map(|_| case.call())).await {
            assert_unreachable(&answer);
        }
        assert_eq!(ends(&case.gateway, "full").await, 3.0, "{key}");
        drop(held);
        until_held(&case.gateway, 0.0).await;
        assert_eq!(ends(&case.gateway, "left").await, 1.0, "{key}");
    }
}

#[tokio::test]
async fn calls_wait_for_a_place_and_leave_with_their_callers() {
    let queue = "limits.target_concurrency=1 limits.target_queue=8";
    let builder = || builder(Pair::Embedded).sets(queue);
    let case = Case::start(builder().set("limits.target_queue_wait", "10m")).await;
    case.set(HELD);
    let queued = async |calls: f64| {
        let name = "a2a_gateway_target_queue_calls";
        let queued = async || case.gateway.metric(name, &[]).await == calls;
        until_holds("calls wait for a place", queued).await;
    };
    let free = async {
        queued(1.0).await;
        // A call has its place before its agent has it.
        case.target.agent.until_count(1).await;
        assert_eq!(case.target.agent.count(), 1);
        case.places.add_permits(2);
    };
    let (one, two, ()) = tokio::join!(case.call(), case.as_operator(), free);
    assert_eq!((one.status, two.status), (200, 200));
    let leaving = join_all((0..3).map(|_| case.sent())).await;
    queued(2.0).await;
    drop(leaving);
    case.gateway.assert_idle().await;
    queued(0.0).await;

    let case = Case::start(builder().set("limits.target_queue_wait", "200ms")).await;
    case.set(HELD);
    let late = async {
        case.target.agent.until_count(1).await;
        let late = case.as_operator().await;
        case.places.add_permits(1);
        late
    };
    let (one, late) = tokio::join!(case.call(), late);
    assert_eq!(one.status, 200);
    assert_busy(&late);
    late.says("limits.target_queue_wait");
}
