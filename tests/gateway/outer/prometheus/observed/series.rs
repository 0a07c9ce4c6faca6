//! However many workspaces there are, and whatever ids strangers make up: the metrics stay as they are.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::load::Stage;
use super::{metrics, series, series_of};
use crate::harness::{Builder, CALL, Gateway, Pair, answering};

/// Ids that are made up.
const STRANGE: u32 = 10_000;

/// Of so many a caller that may ask asks for one: each of these takes a look into the stores.
const ASKED_EACH: u32 = 50;

/// Connections that ask at once.
const AT_ONCE: u32 = 4;

/// Requests that are on their way on one connection: fewer bytes than its buffers take.
const PIPELINED: u32 = 100;

/// Asks for workspaces `from..to`, of which there is none, many requests behind each other.
async fn ask(at: std::net::SocketAddr, token: String, from: u32, to: u32) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let mut first = from;
    let mut buffer = vec![0; 256 * 1024];
    while first < to {
        let last = (first + PIPELINED).min(to);
        let mut wire = String::new();
        for n in first..last {
            let credential = match n % ASKED_EACH {
                0 => format!("Authorization: Bearer {token}\r\n"),
                _ => String::new(),
            };
            let _ = write!(
                wire,
                "POST /workspaces/made-up-{n}/a2a HTTP/1.1\r\nHost: {at}\r\n{credential}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
            );
        }
        stream.write_all(wire.as_bytes()).await.unwrap();
        let (mut answers, mut held) = (0, Vec::new());
        while answers < last - first {
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0, "closed behind {answers} answers to {first}");
            held.extend_from_slice(&buffer[..read]);
            // Else one of these would be waited for in vain.
            let failed = memchr::memmem::find(&held, b"HTTP/1.1 50");
            assert_eq!(failed, None, "{}", String::from_utf8_lossy(&held));
            let all = memchr::memmem::find_iter(&held, b"HTTP/1.1 40");
            answers = u32::try_from(all.count()).unwrap();
        }
        first = last;
    }
}

/// The metrics when all scrapes of three seconds had the same series: what is done for the first time adds some, and in
/// the background that is a second later, or two on a busy machine.
pub(super) async fn settled(gateway: &Gateway) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut before, mut since) = (series(gateway).await, Instant::now());
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let text = metrics(gateway).await;
        let now = series_of(&text);
        if now != before {
            let other = now.symmetric_difference(&before);
            assert!(Instant::now() < deadline, "still other series: {other:?}");
            (before, since) = (now, Instant::now());
        } else if since.elapsed() > Duration::from_secs(3) {
            return text;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_workspaces_add_no_series() {
    // Nobody beats, and the first lapse would be a series. A look that runs out of time would be one, too: all these
    // calls are written down meanwhile.
    let settings = "telemetry.log=warn registry.heartbeat_ttl=10m stores.timeout=60s";
    let builder = Builder::new(Pair::Embedded).process().sets(settings);
    let stage = Stage::on(builder.start().await).await;
    let gateway = &stage.gateway;
    let token = &stage.caller.token;
    for round in 0..3 {
        for request in stage.requests(round) {
            gateway.call(&request).await;
        }
    }
    ask(gateway.public, token.clone(), STRANGE, STRANGE + 200).await;
    let before = settled(gateway).await;

    let mut asking = JoinSet::new();
    for worker in 0..AT_ONCE {
        let each = STRANGE / AT_ONCE;
        let (from, to) = (worker * each, (worker + 1) * each);
        asking.spawn(ask(gateway.public, token.clone(), from, to));
    }
    while let Some(asked) = asking.join_next().await {
        asked.unwrap();
    }
    // Some that there are, each with an answer of its agent.
    for n in 0..20 {
        let id = format!("real-{n}");
        let _seat = gateway.seat(&id, "", answering().await).await;
        gateway.call(&stage.ask(&id, CALL)).await.has(200);
    }

    let after = metrics(gateway).await;
    let counted = gateway.metric("a2a_gateway_exchanges_total", &[]).await;
    assert!(counted >= f64::from(STRANGE), "{counted}");
    let (old, new) = (series_of(&before), series_of(&after));
    let added: Vec<_> = new.difference(&old).collect();
    assert!(added.is_empty(), "{added:?}");
    // Names and labels are the same, so only digits of values can be more.
    let grown = after.len().saturating_sub(before.len());
    let (bytes, now) = (before.len(), after.len());
    assert!(grown < old.len() * 8, "{bytes} to {now} bytes");
    assert!(!after.contains("made-up") && !after.contains("real-"));
}
