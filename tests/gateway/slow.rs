//! Callers that drip, say nothing, or do not read: each is let go by its clock, and honest callers are
//! served beside them. The same with 2,000 of them for a minute: `scripts/bench slow`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::harness::tls::{Certificate, Secure};
use crate::harness::{
    Agent, Builder, CALL, Connection, Gateway, Pair, Request, Step, answering, chunk, ok_json,
    until_holds,
};

/// What lasts so long does not end.
const NEVER: Duration = Duration::from_secs(60);

/// Sends a byte of `bytes` now and then, over and over. Answers how long the gateway bore it.
async fn drip(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    bytes: &[u8],
    begun: Instant,
) -> Duration {
    let mut answer = [0; 1024];
    for byte in bytes.iter().cycle() {
        if stream.write_all(&[*byte]).await.is_err() || stream.flush().await.is_err() {
            break;
        }
        // A refusal is read, and after it the end.
        let read = timeout(Duration::from_millis(150), stream.read(&mut answer)).await;
        if matches!(read, Ok(Ok(0) | Err(_))) {
            break;
        }
    }
    begun.elapsed()
}

/// Sends nothing more, and waits for the end.
async fn silence(mut stream: impl AsyncRead + Unpin, begun: Instant) -> Duration {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    begun.elapsed()
}

/// A connection with a small window, so that what is not read fills it soon.
async fn narrow(to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(to).await.unwrap()
}

/// Reads nothing until the gateway has closed: seen by writes that fail.
async fn blind(mut stream: TcpStream, probe: &[u8]) {
    loop {
        sleep(Duration::from_millis(200)).await;
        let written = timeout(Duration::from_millis(50), stream.write_all(probe)).await;
        if matches!(written, Ok(Err(_))) {
            return;
        }
    }
}

/// A connection after its handshake, and when that began. One that does not get through in time is cut, rightly.
async fn tls(
    certificate: &Certificate,
    to: SocketAddr,
) -> (impl AsyncRead + AsyncWrite + Unpin, Instant) {
    loop {
        let begun = Instant::now();
        if let Ok(stream) = certificate.connect(to, &["http/1.1"]).await {
            return (stream, begun);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_drip_are_let_go_while_others_are_served() {
    // Others send theirs in time, also while the machine stalls.
    const HEAD: Duration = Duration::from_secs(8);
    let clocks = "timeouts.request_head=8s timeouts.request_body=8s server.keepalive=10m";
    let secure = Secure::start(Builder::new(Pair::Embedded).sets(clocks)).await;
    let (caller, target) = secure.gateway.pair(answering().await).await;
    let call = caller.calls(&target);
    let begun = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Drip: ";
    let headed = call.clone().field("Content-Length", "100000");
    let headed = headed.without("content-type").wire("127.0.0.1");
    let mut slow = JoinSet::new();
    let to = secure.address;
    for n in 0..25 {
        let certificate = Arc::clone(&secure.certificate);
        let headed = headed.clone();
        slow.spawn(async move {
            if n % 5 < 2 {
                let begun = Instant::now();
                let stream = TcpStream::connect(to).await.unwrap();
                // A record of a hello that is long in coming, or nothing at all.
                return match n % 5 {
                    0 => drip(stream, &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], begun).await,
                    _ => silence(stream, begun).await,
                };
            }
            let (mut stream, since) = tls(&certificate, to).await;
            match n % 5 {
                2 => silence(stream, since).await,
                3 => {
                    let _ = stream.write_all(begun.as_bytes()).await;
                    drip(stream, b"x", since).await
                }
                // After the refusal the rest is still read for a while, so that it is seen.
                _ => {
                    let _ = stream.write_all(&headed).await;
                    drip(stream, b" ", since).await
                }
            }
        });
    }
    let mut served = 0;
    let ends = timeout(NEVER, slow.join_all());
    tokio::pin!(ends);
    let ends = loop {
        tokio::select! {
            ends = &mut ends => break ends.expect("all are let go"),
            answer = secure.gateway.call(&call) => {
                assert_eq!(answer.status, 200, "{}", answer.text());
                served += 1;
            }
        }
    };
    for (n, bore) in ends.into_iter().enumerate() {
        assert!(bore >= HEAD, "{n}: let go at once, after {bore:?}");
    }
    assert!(served > 3, "{served} honest calls");
    assert!(cut(&secure.gateway, r#"why="slow_head""#).await >= 5.0);
    assert!(cut(&secure.gateway, r#"why="handshake""#).await >= 10.0);
    secure.gateway.assert_idle().await;
}

/// Connections that were cut for one reason.
async fn cut(gateway: &Gateway, why: &str) -> f64 {
    let name = "a2a_gateway_connections_cut_total";
    gateway.metric(name, &[why]).await
}

/// An idle connection has longer than a head: the clock of the head begins with its first byte.
#[tokio::test]
async fn the_wait_between_requests_is_no_part_of_a_head() {
    const HEAD: Duration = Duration::from_millis(500);
    let gateway = Gateway::with("timeouts.request_head=500ms server.keepalive=10m").await;
    let ask = Request::get("/nowhere").wire("localhost");
    // The first head has its clock from the beginning on: one that is late is cut, rightly.
    let answered = async |more: &[u8]| loop {
        let mut connection = Connection::open(gateway.public).await;
        let _ = connection.try_send(&[&ask[..], more].concat()).await;
        if let Some(answer) = connection.try_answer().await {
            assert_eq!(answer.status, 404);
            return connection;
        }
    };
    let mut connection = answered(b"").await;
    let is_closed = connection.closed_within(HEAD * 2).await;
    assert!(!is_closed, "it was idle, not slow");
    connection.send(&ask).await;
    assert_eq!(connection.answer().await.status, 404);
    // Half of the next head, and no more of it.
    let begun = Instant::now();
    connection.send(b"GET /nowhere HTTP/1.1\r\n").await;
    assert!(connection.closed_within(NEVER).await);
    assert!(begun.elapsed() >= HEAD, "at once");
    // A pipelined half is as slow as any other.
    let mut connection = answered(b"GET /nowhere HT").await;
    assert!(connection.closed_within(NEVER).await);
}

/// Whoever does not read: a long answer, a stream, the control plane's answers, refusals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_do_not_read_are_let_go() {
    let clocks = "timeouts.total=1s timeouts.write=1s timeouts.stream=600s stream.linger=0s";
    let gateway = Gateway::with(clocks).await;
    let answer = ok_json(&format!(r#"{{"result":"{}"}}"#, "x".repeat(9 << 20)));
    let agent = Agent::scripted(move |request| {
        if !request.text().contains("stream") {
            return vec![Step::Write(answer.clone())];
        }
        let mut steps = vec![Step::write(crate::harness::SSE_HEAD)];
        let event = chunk(format!("data: {}\n\n", "x".repeat(60_000)));
        steps.extend((0..150).map(|_| Step::Write(event.clone())));
        steps.push(Step::Hang);
        steps
    })
    .await;
    let (caller, target) = gateway.pair(agent).await;
    let to = gateway.public;
    let host = to.to_string();
    let call = |body: &str| caller.sends(&target, body).wire(&host);
    let plane = Request::get("/workspaces/caller").bearer(&caller.token);
    let refused = Request::post(target.path(), CALL);
    let wires = [
        ("a long answer", call(CALL)),
        ("a stream", call(&CALL.replace("hi", "stream"))),
        ("the control plane", plane.wire(&host).repeat(6000)),
        ("refusals", refused.wire(&host).repeat(6000)),
    ];
    let mut blinds = JoinSet::new();
    for (name, wire) in wires {
        blinds.spawn(async move {
            let mut stream = narrow(to).await;
            let begun = Instant::now();
            let _ = timeout(Duration::from_secs(1), stream.write_all(&wire)).await;
            blind(stream, b"\r\n").await;
            (name, begun.elapsed())
        });
    }
    let ends = timeout(NEVER * 2, blinds.join_all()).await;
    for (name, bore) in ends.expect("let go") {
        let least = Duration::from_millis(900);
        assert!(bore > least, "{name}: let go at once, after {bore:?}");
    }
    assert_eq!(gateway.call(&plane).await.status, 200);
    gateway.assert_idle().await;
}

/// One address has its share of the connections, and another one is served beside it.
#[tokio::test]
async fn one_address_cannot_have_all_connections() {
    let builder =
        Builder::on_every_interface(Pair::Embedded).set("server.connections_per_address", "5");
    let gateway = builder.start().await;
    let ask = Request::get("/nowhere");
    let port = gateway.public.port();
    let from = |source: [u8; 4]| async move {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((source, 0))).unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        Connection::over(socket.connect(to).await.unwrap())
    };
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut connection = from([127, 0, 0, 2]).await;
        assert_eq!(connection.call(&ask).await.status, 404);
        held.push(connection);
    }
    let mut refused = from([127, 0, 0, 2]).await;
    let answer = refused.answer().await;
    answer.refuses(503, "overloaded");
    assert_eq!(answer.field("retry-after"), Some("1"));
    let id = answer.field("x-request-id").expect("an id").to_owned();
    assert_eq!(answer.json()["request_id"], id);
    answer.says("server.connections_per_address");
    assert_eq!(cut(&gateway, r#"why="address""#).await, 1.0);
    // Others are not kept out, and a place that is left is free again.
    assert_eq!(from([127, 0, 0, 3]).await.call(&ask).await.status, 404);
    assert_eq!(held[0].call(&ask).await.status, 404);
    drop(held.pop());
    let free = async || {
        let mut again = from([127, 0, 0, 2]).await;
        again.try_send(&ask.wire("127.0.0.1")).await.unwrap();
        again.answer().await.status == 404
    };
    until_holds("the place is free", free).await;
}
