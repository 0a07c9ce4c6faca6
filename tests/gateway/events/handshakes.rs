//! The handshake of RFC 6455, what may come over a socket, and who may open one: nothing else in the
//! gateway changes its protocol.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::tungstenite::Message;

use crate::harness::watcher::{Feed, Socket, handshake};
use crate::harness::{ADMIN, CALL, Connection, Gateway, Pair, Request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_handshake_is_told_what_is_wrong_and_its_connection_closes() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let good = || handshake("/ws").bearer(ADMIN);
    let version = good().without("Sec-WebSocket-Version");
    let key = good().without("Sec-WebSocket-Key");
    let second_key = good().field("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    let cases = [
        (Request::get("/ws").bearer(ADMIN), 426),
        (good().without("Upgrade"), 426),
        (good().without("Connection"), 426),
        (good().without("Upgrade").field("Upgrade", "h2c"), 426),
        (version.clone(), 426),
        (version.field("Sec-WebSocket-Version", "8"), 426),
        (good().field("Sec-WebSocket-Version", "13"), 426),
        (key.clone(), 400),
        (key.field("Sec-WebSocket-Key", "short"), 400),
        (second_key, 400),
        (good().field("Content-Length", "5"), 400),
        (handshake("/ws"), 401),
        (good().field("X-Workspace-ID", "w"), 403),
        (good().field("Origin", "https://evil.example"), 403),
    ];
    for (mut request, status) in cases {
        let mut fields = request.fields.iter();
        if fields.any(|(name, _)| name == "Content-Length") {
            request.body = b"GET /".to_vec();
        }
        let answer = gateway.call(&request).await;
        assert_eq!(answer.status, status, "{request:?}: {}", answer.text());
        assert!(answer.json()["request_id"].is_string());
        if status == 426 {
            assert_eq!(answer.field("sec-websocket-version"), Some("13"));
            assert_eq!(answer.reason(), "upgrade_required");
        }
    }
    // What comes behind a refused handshake is no request.
    let mut connection = Connection::open(gateway.public).await;
    let host = gateway.public.to_string();
    let mut wire = handshake("/ws").wire(&host);
    wire.extend(Request::get("/workspaces/x").bearer(ADMIN).wire(&host));
    connection.send(&wire).await;
    assert_eq!(connection.answer().await.status, 401);
    assert!(connection.closed_within(Duration::from_secs(60)).await);
    // What comes behind a good one before its answer is read by the socket alone.
    let mut wire = good().wire(&host);
    wire.extend(Request::get("/workspaces/x").bearer(ADMIN).wire(&host));
    let mut connection = Connection::open(gateway.public).await;
    connection.send(&wire).await;
    assert_eq!(connection.read_head().await.unwrap().status, 101);
    assert!(connection.closed_within(Duration::from_secs(60)).await);
    assert!(!gateway.log().contains("/workspaces/x"));
    let method = Request::post("/ws", "").bearer(ADMIN);
    assert_eq!(gateway.call(&method).await.status, 405);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_other_route_becomes_a_socket() {
    let gateway = Gateway::start(Pair::Embedded).await;
    for path in "/workspaces/w /ws/ /ws/tickets /events/x /workspaces/w/a2a /".split(' ') {
        let answer = gateway.call(&handshake(path).bearer(ADMIN)).await;
        let status = answer.status;
        assert!((400..500).contains(&status), "{path}: {status}");
    }
    let mut post = handshake("/workspaces/w/a2a").bearer(ADMIN);
    post.method = "POST".into();
    post.body = CALL.into();
    assert_eq!(gateway.call(&post).await.status, 404);
    // An event stream stays one.
    drop(Feed::open(gateway.public, &handshake("/events").bearer(ADMIN)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_are_answered_texts_are_ignored_and_more_than_that_closes() {
    let gateway = Gateway::with("cors.origins=https://canvas.example").await;
    let page = |request: Request| request.field("Origin", "https://canvas.example");
    let open = || page(handshake("/ws").bearer(ADMIN));
    let mut socket = Socket::open(gateway.public, &open()).await;
    let stream = &mut socket.stream;
    stream.send(Message::text("hello")).await.unwrap();
    stream.send(Message::binary(vec![0_u8, 1])).await.unwrap();
    let ping = Message::Ping("are you there".into());
    stream.send(ping).await.unwrap();
    let answer = stream.next().await.unwrap().unwrap();
    assert_eq!(answer, Message::Pong("are you there".into()));
    stream.close(None).await.unwrap();
    while let Some(Ok(_)) = stream.next().await {}
    let mut large = Socket::open(gateway.public, &open()).await;
    let text = Message::text("x".repeat(5_000));
    large.stream.send(text).await.unwrap();
    assert_eq!(large.next().await.unwrap_err().0, 1009);
    let mut flood = Socket::open(gateway.public, &open()).await;
    for _ in 0..300 {
        if flood.stream.send(Message::text("x")).await.is_err() {
            break;
        }
    }
    assert_eq!(flood.next().await.unwrap_err().0, 1008);
    // Empty pieces of a message that never ends are no messages, and are bounded all the same.
    let mut endless = Socket::open(gateway.public, &open()).await;
    let raw = endless.stream.get_mut();
    raw.write_all(&[0x01, 0x80, 0, 0, 0, 0]).await.unwrap();
    let pieces = [0x00, 0x80, 0, 0, 0, 0].repeat(10_000);
    let endless = async { while raw.write_all(&pieces).await.is_ok() {} };
    let cut = tokio::time::timeout(Duration::from_secs(60), endless).await;
    cut.expect("it is cut");
    let cuts = "a2a_gateway_event_readers_cut_total";
    assert_eq!(gateway.metric(cuts, &["flood"]).await, 2.0);
    let feed = Feed::open(gateway.public, &page(Request::get("/events").bearer(ADMIN))).await;
    let allowed = feed.head.field("access-control-allow-origin");
    assert_eq!(allowed, Some("https://canvas.example"));
    drop(feed);
    gateway.assert_idle().await;
}
