//! Bodies that are on their way take bounded room, and nobody's place.

use tokio::task::JoinSet;

use crate::harness::{
    ADMIN, Agent, Answer, CALL, Connection, Gateway, Request, answering, until_holds,
};

fn assert_full(answer: &Answer) {
    answer.refuses(503, "overloaded");
    assert_eq!(answer.field("retry-after"), Some("1"));
}

/// Calls until the answer has this status.
async fn until(gateway: &Gateway, request: &Request, status: u16) {
    let answered = async || gateway.call(request).await.status == status;
    until_holds("the room is free", answered).await;
}

#[tokio::test]
async fn all_bodies_together_have_a_bound() {
    let gateway = Gateway::with("limits.request_bytes=1MiB limits.bodies_bytes=1MiB").await;
    let (caller, target) = gateway.pair(answering().await).await;
    let call = |body: &str| caller.sends(&target, body);
    let large = call(&CALL.replace("hi", &"x".repeat(600 << 10)));
    assert_eq!(gateway.call(&large).await.status, 200);
    // One that stops before its end. While its bytes are on their way it may be the one too many
    // itself, and the next large one passes: then another takes its place.
    let stall = async || {
        let mut stalled = Connection::open(gateway.public).await;
        let head = call("").field("Content-Length", (900 << 10).to_string());
        stalled.ask(&head).await;
        let _ = stalled.try_send(&vec![b' '; 800 << 10]).await;
        stalled
    };
    let mut stalled = stall().await;
    let mut in_a_row = 0;
    while in_a_row < 3 {
        let answer = gateway.call(&large).await;
        if answer.status == 200 {
            stalled = stall().await;
            in_a_row = 0;
        } else {
            assert_full(&answer);
            in_a_row += 1;
        }
    }
    let small = gateway.call(&call(CALL)).await;
    assert_eq!(small.status, 200, "a small one fits: {}", small.text());
    // The control plane has room of its own.
    let card = Request::post("/registry/register", " ".repeat(600 << 10));
    assert_eq!(gateway.as_operator(card).await.status, 400);
    let refused = gateway.metric("a2a_gateway_bodies_refused_total", &[]);
    assert!(refused.await >= 2.0);
    drop(stalled);
    until(&gateway, &large, 200).await;
    gateway.assert_idle().await;
}

#[tokio::test]
async fn one_caller_has_half_of_the_room_that_others_leave() {
    let gateway = Gateway::with("limits.request_bytes=1MiB limits.bodies_bytes=8MiB").await;
    let (caller, target) = gateway.pair(answering().await).await;
    let another = gateway.seat("another", "", Agent::json("{}").await).await;
    // Five that stop before their end would have 4.4 MiB of 4, whichever is the one too many.
    let mut stalled = JoinSet::new();
    for _ in 0..5 {
        let mut connection = Connection::open(gateway.public).await;
        let head = caller.sends(&target, "");
        let head = head.field("Content-Length", "1000000");
        stalled.spawn(async move {
            connection.ask(&head).await;
            let _ = connection.try_send(&vec![b' '; 900 << 10]).await;
            connection.answer().await
        });
    }
    let refused = stalled.join_next().await.unwrap().unwrap();
    assert_full(&refused);
    refused.says("half of what others leave");
    let small = gateway.call(&caller.calls(&target)).await;
    assert_eq!(small.status, 200, "a small one fits: {}", small.text());
    // Others have what is left, also where the first has none.
    let large = CALL.replace("hi", &"x".repeat(600 << 10));
    let other = another.sends(&target, &large);
    gateway.call(&other).await.has(200);
    let refused = gateway.metric("a2a_gateway_bodies_refused_total", &[]);
    assert!(refused.await >= 1.0);
    drop(stalled);
    until(&gateway, &caller.sends(&target, &large), 200).await;
    gateway.assert_idle().await;
}

#[tokio::test]
async fn bodies_that_never_end_keep_no_place_from_others() {
    let gateway = Gateway::with("server.max_exchanges=2").await;
    let (caller, target) = gateway.pair(answering().await).await;
    let stall = async |token: &str| {
        let stalled = Request::post("/registry/register", "")
            .bearer(token)
            .field("Content-Length", "1000")
            .field("Expect", "100-continue");
        let mut connection = Connection::open(gateway.public).await;
        connection.ask(&stalled).await;
        connection
    };
    let mut first = stall(&caller.token).await;
    assert_eq!(first.read_head().await.unwrap().status, 100);
    // Its caller has its half.
    assert_full(&stall(&caller.token).await.answer().await);
    // Another has the other one, and then all of these places are taken.
    let mut third = stall(&target.token).await;
    assert_eq!(third.read_head().await.unwrap().status, 100);
    assert_full(&stall(ADMIN).await.answer().await);
    // None of them is one of an exchange's.
    gateway.call(&caller.calls(&target)).await.has(200);
    let ask = Request::get("/workspaces/target").bearer(&caller.token);
    assert_eq!(gateway.call(&ask).await.status, 200);
    drop(first);
    let change = Request::post("/registry/register", "{}").bearer(&caller.token);
    until(&gateway, &change, 400).await;
    drop(third);
    gateway.assert_idle().await;
}
