//! Bodies of every size, in one and in many pieces, late, and waited for.

use std::time::{Duration, Instant};

use super::*;

/// A call whose body has exactly `size` bytes.
fn sized(size: usize) -> String {
    let text = size - (CALL.len() - 2);
    CALL.replace("\"hi\"", &format!("\"{}\"", "x".repeat(text)))
}

#[tokio::test]
async fn bodies_of_every_size_arrive_whole() {
    let case = case().await;
    let limit = 10 << 20;
    for size in [65_535, 65_536, 65_537, 300_000, limit] {
        let body = sized(size);
        assert_eq!(body.len(), size);
        let declared = Request::post(case.target.path(), &body).bearer(&case.caller.token);
        let mut chunked = declared.clone().field("Transfer-Encoding", "chunked");
        chunked.body = Vec::new();
        for pieces in [1, 7] {
            let mut connection = Connection::open(case.gateway.public).await;
            let wire = declared.wire("127.0.0.1");
            for piece in wire.chunks(wire.len() / pieces + 1) {
                connection.send(piece).await;
            }
            assert_eq!(connection.answer().await.status, 200, "{size} declared");
            let arrived = case.target.agent.take();
            assert!(arrived.body == body.as_bytes(), "{size} declared");

            let mut connection = Connection::open(case.gateway.public).await;
            connection.send(&chunked.wire("127.0.0.1")).await;
            for piece in body.as_bytes().chunks(size / pieces + 1) {
                connection.send(&chunk(piece)).await;
            }
            connection.send(b"0\r\n\r\n").await;
            assert_eq!(connection.answer().await.status, 200, "{size} chunked");
            let arrived = case.target.agent.take();
            assert!(arrived.body == body.as_bytes(), "{size} chunked");
        }
    }
    case.gateway.assert_idle().await;
}

#[tokio::test]
async fn one_byte_too_many_is_refused() {
    let case = case().await;
    let body = sized((10 << 20) + 1);
    let request = Request::post(case.target.path(), &body).bearer(&case.caller.token);
    let mut connection = Connection::open(case.gateway.public).await;
    let answer = connection.call(&request).await;
    answer.refuses(413, "body_too_large");
    answer.tells("limit", "10485760");

    let mut chunked = request.clone().field("Transfer-Encoding", "chunked");
    chunked.body = chunk(&body);
    chunked.body.extend_from_slice(b"0\r\n\r\n");
    let answer = case.gateway.call(&chunked).await;
    answer.refuses(413, "body_too_large");

    // A declared size is refused before the credential is looked at, and before a byte is sent.
    let mut huge = Request::post(case.target.path(), "").field("Content-Length", "99999999999");
    huge.body.clear();
    let mut connection = Connection::open(case.gateway.public).await;
    connection.send(&huge.wire("127.0.0.1")).await;
    assert_eq!(connection.answer().await.reason(), "body_too_large");
    assert_eq!(case.target.agent.count(), 0);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_timed_out() {
    let builder = Builder::new(Pair::Embedded).set("timeouts.request_body", "1s");
    let case = Case::with(builder, Agent::json("{}").await).await;
    let Case {
        gateway,
        caller,
        target,
    } = &case;
    let request = Request::post(target.path(), "").bearer(&caller.token);
    let request = request.field("Content-Length", "100000");
    let began = Instant::now();
    let mut connection = Connection::open(gateway.public).await;
    connection.send(&request.wire("127.0.0.1")).await;
    // A drip does not stretch the clock.
    let end = began + Duration::from_secs(60);
    while connection.stream.try_read(&mut []).is_err() {
        assert!(Instant::now() < end, "no answer while the body drips");
        // The gateway may have closed by now.
        let _ = connection.try_send(b" ").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(began.elapsed() >= Duration::from_millis(950), "too early");
    let answer = connection.answer().await;
    answer.refuses(408, "request_timeout");
    assert_eq!(target.agent.count(), 0);
    gateway.assert_idle().await;
}

#[tokio::test]
async fn a_caller_that_waits_for_100_continue_gets_it() {
    let case = case().await;
    let request = case.request().field("Expect", "100-continue");
    let mut connection = Connection::open(case.gateway.public).await;
    let wire = request.wire("127.0.0.1");
    let head = wire.len() - CALL.len();
    connection.send(&wire[..head]).await;
    assert_eq!(connection.read_head().await.expect("a head").status, 100);
    connection.send(&wire[head..]).await;
    assert_eq!(connection.answer().await.status, 200);
    assert_eq!(case.target.agent.take().field("expect"), None);

    // A refusal comes at once, instead of an invitation to send.
    let mut refused = request;
    refused.path = "/workspaces/nobody/a2a".into();
    let wire = refused.wire("127.0.0.1");
    let mut connection = Connection::open(case.gateway.public).await;
    connection.send(&wire[..wire.len() - CALL.len()]).await;
    assert_eq!(connection.answer().await.status, 403);
}

#[tokio::test]
async fn operators_and_the_canvas_are_no_workspace() {
    let case = case().await;
    let request = Request::post(case.target.path(), CALL).bearer(ADMIN);
    assert_eq!(case.gateway.call(&request).await.status, 200);
    assert_eq!(case.target.agent.take().field("x-workspace-id"), None);
}
