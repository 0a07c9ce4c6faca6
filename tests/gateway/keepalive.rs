//! One connection, many requests: pipelines in order, refusals that leave it usable, and callers that
//! never finish what they began.

use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::harness::{Builder, CALL, Connection, Gateway, Pair, Request, until_holds};
use crate::hygiene::{Case, PROMPT};

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let case = Case::new().await;
    let mut wire = Vec::new();
    let host = case.gateway.public.to_string();
    for i in 0..6 {
        let request = match i % 3 {
            0 => case.request(),
            1 => Request::post("/workspaces/nobody/a2a", CALL).bearer(&case.caller.token),
            _ => Request::get("/workspaces/caller").bearer(&case.caller.token),
        };
        let request = request.field("X-Request-Id", format!("pipe-{i}"));
        wire.extend_from_slice(&request.wire(&host));
    }
    for pieces in [1, 2, 50] {
        let mut connection = Connection::open(case.gateway.public).await;
        for piece in wire.chunks(wire.len() / pieces + 1) {
            connection.send(piece).await;
        }
        for i in 0..6 {
            let answer = connection.answer().await;
            let id = format!("pipe-{i}");
            assert_eq!(answer.field("x-request-id"), Some(&*id), "{pieces} pieces");
            assert_eq!(answer.status, [200, 403, 200][i % 3], "{}", answer.text());
        }
        for id in ["pipe-3", "pipe-0"] {
            let arrived = case.target.agent.take();
            assert_eq!(arrived.text(), CALL);
            assert_eq!(arrived.field("x-request-id"), Some(id));
        }
        assert_eq!(case.target.agent.count(), 0);
    }
    case.still_works().await;
}

#[tokio::test]
async fn a_connection_survives_refusals() {
    let case = Case::new().await;
    let path = case.target.path();
    let token = &*case.caller.token;
    let large = "x".repeat((10 << 20) + 1);
    let post = |path: &str, body: &str| Request::post(path, body).bearer(token);
    let elsewhere = case.request().without("host");
    let rows = [
        (Request::post(&path, CALL), 401),
        (post("/workspaces/nobody/a2a", CALL), 403),
        (case.request().field("Origin", "https://evil.example"), 403),
        (post("/nowhere", CALL), 404),
        (Request::new("PUT", &path).bearer(token), 405),
        (case.request().field("Content-Encoding", "gzip"), 415),
        (post(&path, "nonsense"), 400),
        (post(&path, &large), 413),
        (Request::post("/registry/register", CALL), 401),
        (Request::get("/workspaces/target"), 401),
        (elsewhere.field("Host", "evil.example"), 421),
        (case.request().field("X-Timeout", "0"), 400),
    ];
    let mut connection = Connection::open(case.gateway.public).await;
    let still_works = async |connection: &mut Connection, shown: &str| {
        let answer = connection.call(&case.request()).await;
        assert_eq!(answer.status, 200, "after {shown}: {}", answer.text());
        assert_eq!(case.target.agent.take().text(), CALL, "after {shown}");
    };
    for (request, status) in &rows {
        let shown = format!("{} {}, {status}", request.method, request.path);
        let answer = connection.call(request).await;
        assert_eq!(answer.status, *status, "{shown}: {}", answer.text());
        assert_eq!(answer.field("connection"), Some("keep-alive"), "{shown}");
        assert!(answer.whole, "{shown}");
        still_works(&mut connection, &shown).await;
    }
    // The same with the body still to come when the refusal is read.
    for (request, status) in &rows {
        let shown = format!("{} {}, {status}", request.method, request.path);
        if *status == 400 && request.body == b"nonsense" || request.path.ends_with("register") {
            continue;
        }
        let wire = request.wire(&case.gateway.public.to_string());
        let head = wire.len() - request.body.len();
        connection.send(&wire[..head]).await;
        if !request.body.is_empty() && request.path != "/nowhere" {
            let answer = timeout(PROMPT, connection.answer()).await;
            let status_now = answer.ok().map(|answer| answer.status);
            assert_eq!(status_now, Some(*status), "{shown}: beside the body");
            connection.send(&wire[head..]).await;
        } else {
            connection.send(&wire[head..]).await;
            assert_eq!(connection.answer().await.status, *status, "{shown}");
        }
        still_works(&mut connection, &shown).await;
    }
    case.still_works().await;
}

#[tokio::test]
async fn a_refused_caller_that_never_sends_its_body_is_let_go() {
    let case = Case::new().await;
    let mut connection = Connection::open(case.gateway.public).await;
    let request = Request::post(case.target.path(), "").field("Content-Length", "1000");
    connection.ask(&request).await;
    assert_eq!(connection.answer().await.status, 401);
    let closed = timeout(PROMPT, connection.try_answer()).await;
    assert!(closed.expect("closed in time").is_none());
    case.still_works().await;
}

#[tokio::test]
async fn half_a_head_is_waited_for_but_not_for_ever() {
    // Longer than a busy machine needs for an honest head.
    let clocks = "server.keepalive=15s timeouts.request_head=15s";
    let case = Case::on(Builder::new(Pair::Embedded).sets(clocks)).await;
    let begun = Instant::now();
    let open = || Connection::open(case.gateway.public);
    let (mut silent, mut idle, mut dripping) = (open().await, open().await, open().await);
    let line = case.line();
    let _ = silent.try_send(format!("{line}\r\n").as_bytes()).await;
    let begun_field = format!("{line}\r\nX-Drip: ");
    let _ = dripping.try_send(begun_field.as_bytes()).await;
    let drip = async {
        // A byte now and then does not stretch the clock.
        while dripping.try_send(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if matches!(dripping.stream.try_read(&mut [0]), Ok(0)) {
                return;
            }
        }
    };
    let (mut one, mut other) = ([0], [0]);
    let closed = async {
        let (a, b) = (silent.stream.read(&mut one), idle.stream.read(&mut other));
        let (a, b, ()) = tokio::join!(a, b, drip);
        let answers = a.unwrap_or(0) + b.unwrap_or(0);
        assert_eq!(answers, 0, "no answer to nothing");
    };
    timeout(PROMPT, closed).await.expect("let go");
    assert!(begun.elapsed() >= Duration::from_secs(15), "not at once");
    case.still_works().await;
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    let gateway = Gateway::with("server.max_connections=2").await;
    let ask = Request::get("/nowhere");
    // What the start itself had open may still be closing.
    let mut held = Vec::new();
    while held.len() < 2 {
        let mut connection = Connection::open(gateway.public).await;
        if connection.call(&ask).await.status == 404 {
            held.push(connection);
        }
    }
    let mut refused = Connection::open(gateway.public).await;
    let answer = timeout(PROMPT, refused.answer()).await.expect("no hang");
    answer.refuses(503, "overloaded");
    assert_eq!(answer.field("content-type"), Some("application/json"));
    assert_eq!(answer.field("retry-after"), Some("1"));
    let id = answer.field("x-request-id").expect("an id").to_owned();
    assert_eq!(answer.json()["request_id"], id);
    // The others go on, and a place that is left is free again.
    assert_eq!(held[0].call(&ask).await.status, 404);
    drop(held.pop());
    let free = async || gateway.call(&ask).await.status == 404;
    until_holds("the place is free", free).await;
}
