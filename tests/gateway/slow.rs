//! Callers that drip, say nothing, or do not read: each is let go by its clock, and honest callers are
//! served beside them. The same with 2,000 of them for a minute: `scripts/bench slow`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::harness::tls::{Certificate, Secure};
use crate::harness::{
    Agent, Builder, CALL, Connection, Gateway, Pair, Request, Seat, Step, chunk, ok_json,
};

/// What a busy machine may take longer than a clock says.
const SLACK: Duration = Duration::from_secs(12);

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

/// Reads nothing until the gateway has closed: seen by writes that fail. Answers how long that took.
async fn blind(mut stream: TcpStream, probe: &[u8]) -> Duration {
    let begun = Instant::now();
    loop {
        sleep(Duration::from_millis(200)).await;
        let written = timeout(Duration::from_millis(50), stream.write_all(probe)).await;
        if matches!(written, Ok(Err(_))) {
            return begun.elapsed();
        }
    }
}

/// Handshakes at once: of all together, the last would not be done when the clock of its head is over.
static HANDSHAKES: Semaphore = Semaphore::const_new(20);

/// A connection after its handshake, and when that began.
async fn tls(
    certificate: &Certificate,
    to: SocketAddr,
) -> (impl AsyncRead + AsyncWrite + Unpin, Instant) {
    let _place = HANDSHAKES.acquire().await.expect("never closed");
    let begun = Instant::now();
    let stream = certificate.connect(to, &["http/1.1"]).await.expect("TLS");
    (stream, begun)
}

/// Honest calls until `until`, and the longest that one took.
async fn honest(gateway: &Gateway, request: &Request, until: Instant) -> (usize, Duration) {
    let mut longest = Duration::ZERO;
    let mut served = 0;
    while Instant::now() < until {
        let begun = Instant::now();
        let answer = gateway.call(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        longest = longest.max(begun.elapsed());
        served += 1;
        sleep(Duration::from_millis(10)).await;
    }
    (served, longest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_that_drip_are_let_go_while_others_are_served() {
    let head = Duration::from_secs(2);
    let body = Duration::from_secs(3);
    let builder = Builder::new(Pair::Embedded)
        .set("timeouts.request_head", "2s")
        .set("timeouts.request_body", "3s")
        .set("server.keepalive", "4s");
    let secure = Secure::start(builder).await;
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    let (caller, target) = secure.gateway.pair(agent).await;
    let call = Request::post(target.path(), CALL).bearer(&caller.token);
    let wires = [
        format!(
            "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Drip: ",
            target.path()
        ),
        String::from_utf8(
            call.clone()
                .field("Content-Length", "100000")
                .without("content-type")
                .wire("127.0.0.1"),
        )
        .unwrap(),
    ];
    let mut slow = JoinSet::new();
    let to = secure.address;
    for n in 0..200 {
        let certificate = Arc::clone(&secure.certificate);
        let wires = wires.clone();
        slow.spawn(async move {
            let begun = Instant::now();
            let (name, bore, clock) = match n % 5 {
                0 => {
                    let stream = TcpStream::connect(to).await.unwrap();
                    // A record of a hello that is long in coming.
                    (
                        "handshake",
                        drip(stream, &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], begun).await,
                        head,
                    )
                }
                1 => {
                    let stream = TcpStream::connect(to).await.unwrap();
                    ("nothing at all", silence(stream, begun).await, head)
                }
                2 => {
                    let (stream, begun) = tls(&certificate, to).await;
                    ("nothing after TLS", silence(stream, begun).await, head)
                }
                3 => {
                    let (mut stream, begun) = tls(&certificate, to).await;
                    stream.write_all(wires[0].as_bytes()).await.unwrap();
                    ("head", drip(stream, b"x", begun).await, head)
                }
                _ => {
                    let (mut stream, begun) = tls(&certificate, to).await;
                    stream.write_all(wires[1].as_bytes()).await.unwrap();
                    // After the refusal the rest is still read for a while, so that it is seen.
                    let drained = body + Duration::from_secs(5);
                    ("body", drip(stream, b" ", begun).await, drained)
                }
            };
            (name, bore, clock)
        });
    }
    let ends = async {
        let mut ended = Vec::new();
        while let Some(end) = slow.join_next().await {
            ended.push(end.unwrap());
        }
        ended
    };
    let until = Instant::now() + body;
    let ends = timeout(Duration::from_secs(60), ends);
    let (ends, (served, longest)) = tokio::join!(ends, honest(&secure.gateway, &call, until));
    for (name, bore, clock) in ends.expect("all are let go") {
        assert!(bore < clock + SLACK, "{name}: {bore:?}");
        assert!(bore > head / 2, "{name}: let go at once, after {bore:?}");
    }
    assert!(served > 3, "{served} honest calls");
    assert!(longest < SLACK, "an honest call took {longest:?}");
    assert!(cut(&secure.gateway, r#"why="slow_head""#).await >= 80.0);
    assert!(cut(&secure.gateway, r#"why="handshake""#).await >= 40.0);
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
    let gateway = Builder::new(Pair::Embedded)
        .set("timeouts.request_head", "1s")
        .set("server.keepalive", "30s")
        .start()
        .await;
    let mut connection = Connection::open(gateway.public).await;
    let ask = Request::get("/nowhere");
    assert_eq!(connection.call(&ask).await.status, 404);
    let is_closed = connection.closed_within(Duration::from_millis(2500)).await;
    assert!(!is_closed, "it was idle, not slow");
    assert_eq!(connection.call(&ask).await.status, 404);
    // Half of the next head, and no more of it.
    connection.send(b"GET /nowhere HTTP/1.1\r\n").await;
    let begun = Instant::now();
    assert!(connection.closed_within(SLACK).await);
    assert!(begun.elapsed() >= Duration::from_millis(900), "at once");
    // A pipelined half is as slow as any other.
    let mut connection = Connection::open(gateway.public).await;
    let mut wire = ask.wire(&gateway.public.to_string());
    wire.extend_from_slice(b"GET /nowhere HT");
    connection.send(&wire).await;
    assert_eq!(connection.answer().await.status, 404);
    assert!(connection.closed_within(SLACK).await);
}

/// Whoever does not read: a long answer, a stream, the control plane's answers, refusals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_do_not_read_are_let_go() {
    let gateway = Builder::new(Pair::Embedded)
        .set("timeouts.total", "4s")
        .set("timeouts.write", "3s")
        .set("timeouts.stream", "600s")
        .set("stream.linger", "0s")
        .start()
        .await;
    let large = format!(r#"{{"result":"{}"}}"#, "x".repeat(9 << 20));
    let answer = ok_json(&large);
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
    let call = |body: &str| {
        let request = Request::post(target.path(), body).bearer(&caller.token);
        request.wire(&host)
    };
    let write = Duration::from_secs(3);
    // Kernels take some bytes now and then although nobody reads: each lets one more answer out. And
    // the end is tried in order, for 5 s.
    let pipelined = 3 * write + Duration::from_secs(5);
    let wires = [
        ("a long answer", call(CALL), Duration::from_secs(4)),
        ("a stream", call(&CALL.replace("hi", "stream")), write),
        (
            "answers of the control plane",
            Request::get("/workspaces/caller")
                .bearer(&caller.token)
                .wire(&host)
                .repeat(6000),
            pipelined,
        ),
        (
            "refusals",
            Request::post(target.path(), CALL).wire(&host).repeat(6000),
            pipelined,
        ),
    ];
    let mut blinds = JoinSet::new();
    for (name, wire, clock) in wires {
        blinds.spawn(async move {
            let mut stream = narrow(to).await;
            let begun = Instant::now();
            let _ = timeout(Duration::from_secs(3), stream.write_all(&wire)).await;
            let bore = blind(stream, b"\r\n").await;
            (name, bore, begun.elapsed(), clock)
        });
    }
    let all = async {
        let mut ended = Vec::new();
        while let Some(end) = blinds.join_next().await {
            ended.push(end.unwrap());
        }
        ended
    };
    for (name, bore, whole, clock) in timeout(Duration::from_secs(120), all)
        .await
        .expect("let go")
    {
        assert!(bore < clock + SLACK, "{name}: {bore:?}");
        assert!(whole > write / 2, "{name}: let go at once, after {whole:?}");
    }
    let honest: Seat = caller;
    let ask = Request::get("/workspaces/caller").bearer(&honest.token);
    assert_eq!(gateway.call(&ask).await.status, 200);
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
    assert_eq!((answer.status, &*answer.reason()), (503, "overloaded"));
    assert_eq!(answer.field("retry-after"), Some("1"));
    let id = answer.field("x-request-id").expect("an id").to_owned();
    assert_eq!(answer.json()["request_id"], id);
    assert!(answer.text().contains("server.connections_per_address"));
    assert_eq!(cut(&gateway, r#"why="address""#).await, 1.0);
    // Others are not kept out, and a place that is left is free again.
    assert_eq!(from([127, 0, 0, 3]).await.call(&ask).await.status, 404);
    assert_eq!(held[0].call(&ask).await.status, 404);
    drop(held.pop());
    let deadline = Instant::now() + SLACK;
    loop {
        let mut again = from([127, 0, 0, 2]).await;
        again.try_send(&ask.wire("127.0.0.1")).await.unwrap();
        if again.answer().await.status == 404 {
            break;
        }
        assert!(Instant::now() < deadline, "the place stays taken");
    }
}
