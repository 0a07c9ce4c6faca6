//! What a sidecar takes from those who prove nothing, or prove it late.

use std::time::Duration;

use serde_json::json;

use crate::harness::sidecar::{GUARDED, Guarded, bound, call, claims};
use crate::harness::{CALL, Connection, Request, assert_refusal, holds_for};

const CARD: &str = "/.well-known/agent-card.json";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_ends_while_its_body_comes_counts_for_none() {
    let guarded = Guarded::start(&[]).await;
    let now = jsonwebtoken::get_current_timestamp();
    // Good for twelve seconds, five of them by the leeway: long enough for the heads to be read.
    let over_soon = json!({"iat": now, "nbf": now, "exp": now + 7});
    let late = guarded.sign(&bound(CALL, over_soon.clone()));
    let unbound = guarded.sign(&claims(over_soon));
    let mut waiting = Vec::new();
    for token in [&late, &late, &unbound] {
        let wire = call(token).field("X-Request-Id", "r-1").wire(GUARDED);
        let (last, most) = wire.split_last().unwrap();
        let mut connection = Connection::open(guarded.sidecar.address).await;
        connection.send(most).await;
        waiting.push((connection, *last));
    }
    // The clock of tokens has whole seconds: nothing but its passing ends one.
    let none_sent = async || guarded.agent.count() == 0;
    holds_for(Duration::from_secs(14), "none is sent", none_sent).await;
    for (mut connection, last) in waiting {
        connection.send(&[last]).await;
        let answer = connection.answer().await;
        assert_refusal(&answer, "/a2a", "r-1", "unauthenticated", "late");
        assert!(answer.text().contains("has expired"), "{}", answer.text());
    }
    assert_eq!(guarded.agent.count(), 0);
    let metrics = guarded.sidecar.admin_get("/metrics").await.text();
    let line = r#"a2a_gateway_token_uses_total{use="late"} 2"#;
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strangers_request_for_the_card_has_no_body_and_little_reaches_the_agent() {
    let guarded = Guarded::start(&[]).await;
    // Neither is waited for: that would be 408 after 30 s.
    for (name, value) in [("Content-Length", "1"), ("Transfer-Encoding", "chunked")] {
        let mut connection = Connection::open(guarded.sidecar.address).await;
        let request = Request::get(CARD).field(name, value).wire(GUARDED);
        connection.send(&request).await;
        let answer = connection.answer().await;
        assert_eq!(answer.reason(), "unauthenticated", "{name}");
    }
    let mut with_body = Request::get(CARD);
    with_body.body = b"{}".to_vec();
    assert_eq!(guarded.call(&with_body).await.status, 401);
    assert_eq!(guarded.agent.count(), 0);
    let empty = Request::get(CARD).field("Content-Length", "0");
    assert_eq!(guarded.call(&empty).await.status, 200);
    // Two on one connection: without a body the next head is where it should be.
    let mut connection = Connection::open(guarded.sidecar.address).await;
    for _ in 0..2 {
        assert_eq!(connection.call(&Request::get(CARD)).await.status, 200);
    }
    // Little of it reaches the agent.
    let request = Request::get(CARD)
        .bearer("the-agents-own")
        .field("X-A2A-Caller-Token", "nothing")
        .field("X-HTTP-Method-Override", "POST")
        .field("X-Original-URL", "/admin")
        .field("X-Rewrite-URL", "/admin")
        .field("Cookie", "a=b")
        .field("Accept", "application/json")
        .field("A2A-Version", "1.0")
        .field("If-None-Match", "\"1\"")
        .field("X-Forwarded-For", "192.0.2.7");
    assert_eq!(guarded.call(&request).await.status, 200);
    let seen = guarded.agent.take();
    for name in [
        "authorization",
        "x-a2a-caller-token",
        "x-http-method-override",
        "x-original-url",
        "x-rewrite-url",
        "cookie",
    ] {
        assert!(seen.field(name).is_none(), "{name}: {}", seen.head);
    }
    for (name, value) in [
        ("accept", "application/json"),
        ("a2a-version", "1.0"),
        ("if-none-match", "\"1\""),
        ("x-forwarded-for", "192.0.2.7"),
        ("via", "1.1 a2a-gateway-sidecar"),
    ] {
        assert_eq!(seen.field(name), Some(value), "{name}: {}", seen.head);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_traces_or_tunnels() {
    let guarded = Guarded::start(&[]).await;
    let token = guarded.sign(&claims(json!({})));
    for method in ["TRACE", "CONNECT"] {
        let request = Request::new(method, "/");
        for request in [request.clone(), request.bearer(&token)] {
            let answer = guarded.call(&request).await;
            // What reads heads refuses a tunnel before.
            let expected = if method == "TRACE" { 405 } else { 400 };
            let is_refused = [405, expected].contains(&answer.status);
            assert!(is_refused, "{method}: {}", answer.text());
            if answer.status == 405 {
                assert!(answer.field("allow").unwrap().contains("OPTIONS"));
            }
        }
    }
    assert_eq!(guarded.agent.count(), 0);
}
