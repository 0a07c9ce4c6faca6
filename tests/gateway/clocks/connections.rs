//! Connections that die, or are left.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::harness::card;

#[tokio::test]
async fn a_caller_that_leaves_cancels_the_call() {
    let case = Case::new("").await;
    for script in [vec![Step::Hang], vec![Step::write(SSE_HEAD), Step::Hang]] {
        case.play(script);
        let before = case.calls();
        let mut connection = Connection::open(case.gateway.public).await;
        connection.ask(&case.request()).await;
        case.target.agent.until_count(before + 1).await;
        drop(connection);
        case.upstream_closed().await;
        case.settled(before, "caller_left").await;
    }
}

#[tokio::test]
async fn a_pooled_connection_that_died_costs_no_call() {
    let case = Case::new("").await;
    // Answers once per connection, then closes it without a word, as uvicorn does when idle.
    case.play(vec![Step::Write(ok_json("{}")), Step::Close]);
    for n in 1..=20 {
        case.gateway.call(&case.request()).await.has(200);
        assert_eq!(case.calls(), n);
        case.upstream_closed().await;
    }
    assert_eq!(case.target.agent.connections(), 20);
}

#[tokio::test]
async fn a_pooled_connection_that_cannot_be_taken_is_no_error() {
    let gateway = Gateway::start(Pair::Embedded).await;
    // Keeps its connection, but for every third answer, behind which it closes without a word.
    let answers = AtomicUsize::new(0);
    let agent = Agent::scripted(move |_| {
        let mut steps = vec![Step::Write(ok_json("{}"))];
        let answered = answers.fetch_add(1, Ordering::Relaxed);
        if answered.is_multiple_of(3) {
            steps.push(Step::Close);
        }
        steps
    })
    .await;
    let (caller, target) = gateway.pair(agent).await;
    let request = caller.calls(&target);
    let mut connection = Connection::open(gateway.public).await;
    let mut answered = 0;
    for _ in 0..300 {
        // One that the agent closes in the moment in which the call is written is its own story.
        answered += u32::from(connection.call(&request).await.status == 200);
    }
    assert!(answered >= 225, "{answered} answered");
    let log = gateway.log();
    let error = log.lines().find(|line| line.contains("\"ERROR\""));
    assert_eq!(error, None);
}

#[tokio::test]
async fn an_early_answer_of_an_agent_counts() {
    // An agent that says 413 after the head and closes without reading the body.
    let gateway = Gateway::start(Pair::Embedded).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await;
            let answer = "HTTP/1.1 413 Payload Too Large\r\nContent-Length: 5\r\n\r\nlarge";
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
            // What had arrived before the reset is read behind it, too.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    let small = serde_json::json!({"id": "small", "name": "small"});
    let enrolment = gateway.create(small).await;
    let card = card("small");
    gateway.register("small", &enrolment, &url, card).await;
    let body = CALL.replace("hi", &"x".repeat(9 << 20));
    let call = Request::post("/workspaces/small/a2a", body).bearer(&caller.token);
    let answer = gateway.call(&call).await;
    assert_eq!((answer.status, answer.text().as_str()), (413, "large"));
    serving.abort();
}
