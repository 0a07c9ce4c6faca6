//! Connections that are not made, die, or are left.

use super::*;
use crate::harness::calmly;

#[tokio::test]
async fn an_agent_that_is_not_there_is_unreachable() {
    calmly(async || {
        let gateway = quick().start().await;
        let agent = Agent::json("{}").await;
        let (caller, target) = gateway.pair(agent).await;
        let Seat { agent, .. } = target;
        drop(agent);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let request = Request::post("/workspaces/target/a2a", CALL).bearer(&caller.token);
        let answer = gateway.call(&request).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (502, "agent_unreachable")
        );
        assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
        gateway.assert_idle().await;
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_pings_behind_a_terminal_state_keeps_no_stream() {
    calmly(async || {
    let ended = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"status-update","taskId":"t","contextId":"c","status":{"state":"canceled"},"final":true}}"#;
    let case = Case::new(move || {
        let first = format!("data: {ended}\n\nevent: ping\ndata: {{}}\n\n");
        let mut steps = vec![Step::write(SSE_HEAD), Step::write(chunk(first))];
        for _ in 0..60 {
            steps.push(Step::Wait(Duration::from_millis(100)));
            steps.push(Step::write(chunk("event: ping\ndata: {}\n\n: ping\n\n")));
        }
        steps
    })
    .await;
    let (answer, took) = case.call().await;
    assert!(answer.whole && answer.text().contains("event: ping"), "{answer:?}");
    assert!(!answer.text().contains("\"error\""), "{}", answer.text());
    assert_between(took, 450, 2500);
    case.upstream_closed().await;
    case.settled("answered").await;
    })
    .await;
}

#[tokio::test]
async fn a_caller_that_leaves_cancels_the_call() {
    calmly(async || {
        for script in [vec![Step::Hang], vec![Step::write(SSE_HEAD), Step::Hang]] {
            let case = Case::on(Gateway::start(Pair::Embedded).await, move || script.clone()).await;
            let mut connection = Connection::open(case.gateway.public).await;
            let request = case.request().field("X-Request-Id", "the-one");
            connection.send(&request.wire("127.0.0.1")).await;
            case.target.agent.until_count(1).await;
            let left = Instant::now();
            drop(connection);
            case.upstream_closed().await;
            assert!(left.elapsed() < Duration::from_secs(1));
            case.settled("caller_left").await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_pooled_connection_that_died_costs_no_call() {
    calmly(async || {
        let gateway = Gateway::start(Pair::Embedded).await;
        // Answers once per connection, then closes it without a word, as uvicorn does when idle.
        let agent = Agent::scripted(|_| {
            vec![
                Step::Write(ok_json("{}")),
                Step::Wait(Duration::from_millis(20)),
                Step::Close,
            ]
        })
        .await;
        let (caller, target) = gateway.pair(agent).await;
        let request = Request::post(target.path(), CALL).bearer(&caller.token);
        for n in 1..=20 {
            let answer = gateway.call(&request).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(target.agent.count(), n);
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        assert_eq!(target.agent.connections(), 20);
    })
    .await;
}

#[tokio::test]
async fn a_pooled_connection_that_cannot_be_taken_is_no_error() {
    let gateway = Gateway::start(Pair::Embedded).await;
    // Keeps its connection, but for every third answer, behind which it closes without a word.
    let answers = std::sync::atomic::AtomicUsize::new(0);
    let agent = Agent::scripted(move |_| {
        let mut steps = vec![Step::Write(ok_json("{}"))];
        let answered = answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if answered.is_multiple_of(3) {
            steps.push(Step::Close);
        }
        steps
    })
    .await;
    let (caller, target) = gateway.pair(agent).await;
    let request = Request::post(target.path(), CALL).bearer(&caller.token);
    let mut connection = Connection::open(gateway.public).await;
    let mut answered = 0;
    for _ in 0..600 {
        // One that the agent closes in the moment in which the call is written is its own story.
        answered += u32::from(connection.call(&request).await.status == 200);
    }
    assert!(answered > 500, "{answered} answered");
    let errors = gateway.log();
    let errors: Vec<_> = errors
        .lines()
        .filter(|line| line.contains("\"ERROR\""))
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[tokio::test]
async fn an_early_answer_of_an_agent_counts() {
    calmly(async || {
        // An agent that says 413 after the head and closes without reading the body.
        let gateway = Gateway::start(Pair::Embedded).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 1024];
                let _ = stream.read(&mut head).await;
                let answer = "HTTP/1.1 413 Payload Too Large\r\nContent-Length: 5\r\n\r\nlarge";
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let enrolment = gateway
            .create(serde_json::json!({"id": "small", "name": "small"}))
            .await;
        gateway
            .register("small", &enrolment, &url, crate::harness::card("small"))
            .await;
        let body = CALL.replace("hi", &"x".repeat(9 << 20));
        let answer = gateway
            .call(&Request::post("/workspaces/small/a2a", body).bearer(&caller.token))
            .await;
        assert_eq!((answer.status, answer.text().as_str()), (413, "large"));
        serving.abort();
    })
    .await;
}
