//! Calls that wait: for an agent that refuses connections, or for a place at it.

use super::*;

#[tokio::test]
async fn calls_that_wait_for_an_agent_are_bounded_in_number_bytes_and_time() {
    for (key, value) in [
        ("upstream.hold_calls", "1"),
        ("upstream.hold_bytes", "300B"),
    ] {
        let builder = Builder::new(Pair::Embedded)
            .set("upstream.hold", "1s")
            .set(key, value);
        let gateway = builder.start().await;
        let (caller, target) = gateway.pair(Agent::json(OK).await).await;
        let id = target.id;
        drop(target.agent);
        let began = Instant::now();
        let call = request(&caller, &id);
        let timed = async || {
            let answer = gateway.call(&call).await;
            assert_eq!(answer.reason(), "agent_unreachable");
            assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
            began.elapsed()
        };
        let times = join_all((0..4).map(|_| timed())).await;
        let waited = times
            .iter()
            .filter(|time| **time > Duration::from_millis(800))
            .count();
        assert_eq!(waited, 1, "{key}: {times:?}");
        let full = gateway
            .metric("a2a_gateway_hold_total", &["outcome=\"full\""])
            .await;
        assert!((full - 3.0).abs() < f64::EPSILON, "{full}");
    }
}

#[tokio::test]
async fn calls_wait_for_a_place_and_leave_with_their_callers() {
    let builder = Builder::new(Pair::Embedded)
        .set("limits.target_concurrency", "1")
        .set("limits.target_queue", "8")
        .set("limits.target_queue_wait", "200ms");
    let case = Case::start(builder).await;
    case.set(SLOW);
    let operator = async || {
        let path = format!("/workspaces/{}/a2a", case.target.id);
        case.gateway.as_operator(Request::post(path, CALL)).await
    };
    let (one, two) = tokio::join!(case.call(), operator());
    assert_eq!((one.status, two.status), (200, 200));
    let began = Instant::now();
    let (one, two, three) = tokio::join!(case.call(), operator(), case.call());
    let mut refused: Vec<_> = [one, two, three]
        .into_iter()
        .filter(|a| a.status != 200)
        .collect();
    let late = refused.pop().expect("three take 450 ms");
    assert!(
        refused.is_empty() && late.text().contains("limits.target_queue_wait"),
        "{}",
        late.text()
    );
    assert!(began.elapsed() < Duration::from_secs(3));
    case.set(HANGS);
    let mut connections = Vec::new();
    for _ in 0..3 {
        let mut connection = crate::harness::Connection::open(case.gateway.public).await;
        let wire = request(&case.caller, &case.target.id).wire("localhost");
        connection.send(&wire).await;
        connections.push(connection);
    }
    drop(connections);
    case.gateway.assert_idle().await;
    assert_eq!(
        case.gateway
            .metric("a2a_gateway_target_queue_calls", &[])
            .await,
        0.0
    );
}
