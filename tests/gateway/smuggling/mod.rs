//! Requests made to be read differently by two parsers, raw on HTTP/1.1 and HTTP/2: none reaches an
//! agent, none leaves anything behind on the pooled connection to it, where the next exchange goes.

mod frames;
mod http1;
mod http2;

use std::time::Duration;

use tokio::time::timeout;

use crate::harness::{Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, Seat};

/// What takes longer hangs.
const PROMPT: Duration = Duration::from_secs(60);

/// What a smuggled call would bring to the agent.
const SMUGGLED: &str = r#"{"jsonrpc":"2.0","id":"smuggled","method":"message/send","params":{"message":{"kind":"message","messageId":"s-1","role":"user","parts":[{"kind":"text","text":"smuggled"}]}}}"#;

/// An agent that answers everything, behind a connection that is kept.
async fn agent() -> Agent {
    Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await
}

/// No connection counts as idle while a case runs.
fn builder() -> Builder {
    Builder::new(Pair::Embedded)
        // Each thread keeps connections of its own.
        .set("server.threads", "1")
        .set("upstream.idle", "10m")
        .set("timeouts.request_head", "10s")
}

fn honest(caller: &Seat, target: &Seat) -> Request {
    Request::post(target.path(), CALL).bearer(&caller.token)
}

/// The next exchange works, and goes over the one connection that was there before `what`.
async fn next_exchange(gateway: &Gateway, caller: &Seat, target: &Seat, what: &str) {
    let answer = gateway.call(&honest(caller, target)).await;
    assert_eq!(answer.status, 200, "after {what}: {}", answer.text());
    arrived_alone(target, what);
}

/// Exactly the honest call reached the agent, on its one connection.
fn arrived_alone(target: &Seat, what: &str) {
    let arrived = target.agent.take();
    assert_eq!(arrived.text(), CALL, "after {what}");
    assert_eq!(arrived.connection, 0, "after {what}: another connection");
    assert!(
        arrived.head.starts_with("POST / HTTP/1.1\r\n"),
        "after {what}: {}",
        arrived.head
    );
    assert_eq!(target.agent.count(), 0, "{what} reached the agent");
}

/// Everything that the gateway answers until it closes.
async fn answers(connection: &mut Connection, what: &str) -> Vec<Answer> {
    let mut answers = Vec::new();
    loop {
        let next = timeout(PROMPT, connection.try_answer()).await;
        match next.unwrap_or_else(|_| panic!("a hang after {what}")) {
            Some(answer) => answers.push(answer),
            None => return answers,
        }
    }
}
