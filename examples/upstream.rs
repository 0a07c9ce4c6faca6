//! An agent that costs as little as possible, for `scripts/bench`: reads a request by its
//! `Content-Length` and answers with one prepared body. `upstream LISTEN BODY_BYTES`.
//!
//! With `Accept: text/event-stream` it opens a stream, sends one event and then stays silent, for
//! the measurement of memory per open stream; `EVENTS INTERVAL_MS` as further arguments make it
//! send that many events at that pace (0: without a pause), each with its clock, and end the stream.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Clone, Copy)]
struct Pace {
    /// None: one, then silence.
    events: Option<u64>,
    interval: Duration,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments
        .next()
        .expect("usage: upstream LISTEN BODY_BYTES [EVENTS INTERVAL_MS]");
    let mut number = || arguments.next().and_then(|n| n.parse::<u64>().ok());
    let bytes = number().unwrap_or(512);
    let pace = Pace {
        events: number(),
        interval: Duration::from_millis(number().unwrap_or(0)),
    };
    let text = "x".repeat(usize::try_from(bytes).expect("a body that fits in memory"));
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"kind":"message","messageId":"m","role":"agent","parts":[{{"kind":"text","text":"{text}"}}]}}}}"#
    );
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer: &'static [u8] = answer.into_bytes().leak();
    let listener = TcpListener::bind(&listen).await.expect("a free address");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let _ = serve(stream, answer, pace).await;
        });
    }
}

async fn serve(mut stream: TcpStream, answer: &[u8], pace: Pace) -> std::io::Result<()> {
    let mut held = Vec::with_capacity(4096);
    loop {
        let (head_len, body_len, streams) = loop {
            if let Some(found) = head(&held) {
                break found;
            }
            if stream.read_buf(&mut held).await? == 0 {
                return Ok(());
            }
        };
        while held.len() < head_len + body_len {
            if stream.read_buf(&mut held).await? == 0 {
                return Ok(());
            }
        }
        held.drain(..head_len + body_len);
        if streams {
            return events(stream, pace).await;
        }
        stream.write_all(answer).await?;
    }
}

/// Length of the head, length of the body, and whether a stream is asked for.
fn head(held: &[u8]) -> Option<(usize, usize, bool)> {
    let end = held.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&held[..end]).to_ascii_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0);
    Some((end, length, text.contains("accept: text/event-stream")))
}

async fn events(mut stream: TcpStream, pace: Pace) -> std::io::Result<()> {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    for n in 0..pace.events.unwrap_or(1) {
        let clock = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let event = format!(
            r#"data: {{"jsonrpc":"2.0","id":1,"result":{{"kind":"status-update","taskId":"t","contextId":"c","status":{{"state":"working"}},"final":false,"metadata":{{"n":{n},"at":"{}"}}}}}}"#,
            clock.as_nanos()
        );
        let chunk = format!("{:x}\r\n{event}\n\n\r\n", event.len() + 2);
        stream.write_all(chunk.as_bytes()).await?;
        if !pace.interval.is_zero() {
            tokio::time::sleep(pace.interval).await;
        }
    }
    if pace.events.is_none() {
        // An open stream that costs only memory.
        let mut rest = [0; 64];
        while stream.read(&mut rest).await? > 0 {}
        return Ok(());
    }
    stream.write_all(b"0\r\n\r\n").await
}
