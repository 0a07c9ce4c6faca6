//! Agents that delegate in a circle are stopped, and a delegated call keeps what was known of the one that made it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::{accepted, echo, until};
use crate::harness::{Agent, Builder, Pair, Request, Step};
use crate::operators::staged;

/// The tokens of agents, and where they call.
#[derive(Clone, Default)]
struct Circle(Arc<Mutex<HashMap<&'static str, (String, std::net::SocketAddr)>>>);

/// An agent that delegates each message to another, and passes the hops on as they came.
async fn delegating(circle: &Circle, own: &'static str, next: &'static str) -> Agent {
    let circle = circle.clone();
    Agent::scripted(move |request| {
        let known = circle.0.lock().unwrap();
        let (token, gateway) = known.get(own).expect("it is registered");
        let asked = asks(own, next, token).field("Connection", "close");
        let asked = match request.field("x-a2a-hops") {
            Some(hops) => asked.field("X-A2A-Hops", hops),
            None => asked,
        };
        let asked = asked.wire(&gateway.to_string());
        vec![Step::Ask(*gateway, asked), Step::Close]
    })
    .await
}

fn asks(from: &str, to: &str, token: &str) -> Request {
    let body = json!({"target_id": to, "task": "round"}).to_string();
    Request::post(format!("/workspaces/{from}/delegate"), body).bearer(token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_delegate_in_a_circle_are_stopped() {
    let builder = Builder::new(Pair::Embedded).set("forward.max_hops", "4");
    let gateway = builder.start().await;
    let circle = Circle::default();
    let seated = async |own: &'static str, next: &'static str| {
        let agent = delegating(&circle, own, next).await;
        let seat = gateway.seat(own, "", agent).await;
        let known = (seat.token.clone(), gateway.public);
        circle.0.lock().unwrap().insert(own, known);
        seat
    };
    let (one, two) = (seated("one", "two").await, seated("two", "one").await);
    let began = gateway.call(&asks("one", "two", &one.token)).await;
    accepted(&began);
    let stopped = ["reason=\"loop_detected\""];
    until("the circle ends", async || {
        gateway.metric("a2a_gateway_refusals_total", &stopped).await > 0.0
    })
    .await;
    let hops = |agent: &Agent| {
        let requests = agent.requests();
        let hops = requests.iter().map(|one| one.field("x-a2a-hops").unwrap());
        hops.collect::<Vec<_>>().join(" ")
    };
    assert_eq!((&*hops(&two.agent), &*hops(&one.agent)), ("1 3", "2 4"));
    let refused = asks("one", "two", &one.token).field("X-A2A-Hops", "4");
    let refused = gateway.call(&refused).await;
    let reason = refused.reason();
    assert_eq!((refused.status, &*reason), (508, "loop_detected"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegated_call_keeps_the_address_of_its_client() {
    let builder = Builder::new(Pair::Embedded).set("server.trusted_proxies", "127.0.0.0/8");
    let (gateway, caller, target) = staged(builder, Agent::scripted(echo).await).await;
    let request = asks("caller", "target", &caller.token)
        .field("X-Forwarded-For", "203.0.113.9")
        .field("X-A2A-Hops", "2");
    accepted(&gateway.call(&request).await);
    until("it is delivered", async || target.agent.count() == 1).await;
    let arrived = target.agent.take();
    assert_eq!(arrived.field("x-forwarded-for"), Some("203.0.113.9"));
    assert_eq!(arrived.field("x-a2a-hops"), Some("3"));
}
