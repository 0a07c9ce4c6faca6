//! Agents that delegate in a circle are stopped, and a delegated call keeps what was known of the one that made it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::{delegate_with, echo, until};
use crate::harness::{Agent, Builder, Pair, Request, Step};

/// The tokens of agents, and where they call.
#[derive(Clone, Default)]
struct Circle(Arc<Mutex<HashMap<&'static str, (String, std::net::SocketAddr)>>>);

/// An agent that delegates each message to another, and passes the hops on as they came.
async fn delegating(circle: &Circle, own: &'static str, next: &'static str) -> Agent {
    let circle = circle.clone();
    Agent::scripted(move |request| {
        let known = circle.0.lock().unwrap();
        let (token, gateway) = known.get(own).expect("it is registered");
        let body = json!({"target_id": next, "task": "round"}).to_string();
        let mut asked = Request::post(format!("/workspaces/{own}/delegate"), body)
            .bearer(token)
            .field("Connection", "close");
        if let Some(hops) = request.field("x-a2a-hops") {
            asked = asked.field("X-A2A-Hops", hops);
        }
        vec![
            Step::Ask(*gateway, asked.wire(&gateway.to_string())),
            Step::Close,
        ]
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_delegate_in_a_circle_are_stopped() {
    let gateway = Builder::new(Pair::Embedded)
        .set("forward.max_hops", "4")
        .start()
        .await;
    let circle = Circle::default();
    let one = gateway
        .seat("one", "", delegating(&circle, "one", "two").await)
        .await;
    let two = gateway
        .seat("two", "", delegating(&circle, "two", "one").await)
        .await;
    for seat in [("one", &one), ("two", &two)] {
        circle
            .0
            .lock()
            .unwrap()
            .insert(seat.0, (seat.1.token.clone(), gateway.public));
    }
    let began = delegate_with(
        &gateway,
        &one,
        &json!({"target_id": "two", "task": "round"}),
    )
    .await;
    assert_eq!(began.status, 202, "{}", began.text());
    let stopped = ["reason=\"loop_detected\""];
    until("the circle ends", async || {
        gateway.metric("a2a_gateway_refusals_total", &stopped).await > 0.0
    })
    .await;
    let hops = |agent: &Agent| {
        let requests = agent.requests();
        let hops = requests
            .iter()
            .map(|request| request.field("x-a2a-hops").unwrap().to_owned());
        hops.collect::<Vec<_>>()
    };
    assert_eq!(
        (hops(&two.agent), hops(&one.agent)),
        (
            vec!["1".to_owned(), "3".into()],
            vec!["2".to_owned(), "4".into()]
        )
    );
    let refused = Request::post(
        "/workspaces/one/delegate",
        json!({"target_id": "two", "task": "x"}).to_string(),
    )
    .bearer(&one.token)
    .field("X-A2A-Hops", "4");
    let refused = gateway.call(&refused).await;
    assert_eq!(
        (refused.status, refused.reason().as_str()),
        (508, "loop_detected")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegated_call_keeps_the_address_of_its_client() {
    let gateway = Builder::new(Pair::Embedded)
        .set("server.trusted_proxies", "127.0.0.0/8")
        .start()
        .await;
    let (caller, target) = gateway.pair(Agent::scripted(echo).await).await;
    let body = json!({"target_id": "target", "task": "x"}).to_string();
    let request = Request::post("/workspaces/caller/delegate", body)
        .bearer(&caller.token)
        .field("X-Forwarded-For", "203.0.113.9")
        .field("X-A2A-Hops", "2");
    assert_eq!(gateway.call(&request).await.status, 202);
    until("it is delivered", async || target.agent.count() == 1).await;
    let arrived = target.agent.take();
    assert_eq!(arrived.field("x-forwarded-for"), Some("203.0.113.9"));
    assert_eq!(arrived.field("x-a2a-hops"), Some("3"));
}
