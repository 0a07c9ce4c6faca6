//! The delay of events, from the agent's write (`examples/upstream.rs` writes its clock into each) to the read here.
//! Both read the clock of the machine.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::paced::{SECONDS_MAX, at};

/// Streams at most.
const STREAMS_MAX: u64 = 20_000;
/// What the agent writes before its clock.
const MARK: &[u8] = br#""at":""#;

#[derive(Default)]
struct Seen {
    /// Streams that had their first event.
    begun: usize,
    ended: usize,
    events: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    /// Of events that came when all streams had begun, microseconds.
    delays: Vec<u32>,
}

/// Does it, and tells it as JSON.
pub(crate) async fn run(address: SocketAddr, request: Vec<u8>, count: u64) -> String {
    let count = usize::try_from(count.clamp(1, STREAMS_MAX)).unwrap_or(1);
    let seen = Rc::new(RefCell::new(Seen::default()));
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket takes an option");
        stream.write_all(&request).await.expect("it is up");
        readers.spawn_local(read(stream, count, Rc::clone(&seen)));
    }
    let all = async { while readers.join_next().await.is_some() {} };
    let _ = timeout(Duration::from_secs(SECONDS_MAX), all).await;
    let mut seen = seen.borrow_mut();
    seen.delays.sort_unstable();
    let seconds = match (seen.first, seen.last) {
        (Some(first), Some(last)) => (last - first).as_secs_f64(),
        _ => 0.0,
    };
    let [p50, p90, p99, p999, max] =
        [500, 900, 990, 999, 1000].map(|share| at(&seen.delays, share));
    format!(
        r#"{{"streams":{count},"begun":{},"ended":{},"events":{},"seconds":{seconds:.3},"delays":{},"p50_us":{p50},"p90_us":{p90},"p99_us":{p99},"p999_us":{p999},"max_us":{max}}}"#,
        seen.begun,
        seen.ended,
        seen.events,
        seen.delays.len(),
    )
}

/// Reads one stream to its end.
async fn read(mut stream: TcpStream, count: usize, seen: Rc<RefCell<Seen>>) {
    let mut body = Body::default();
    let mut mine = 0_u64;
    loop {
        match stream.read_buf(&mut body.raw).await {
            Ok(read) if read > 0 => {}
            _ => return,
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let ended = body.take();
        let mut seen = seen.borrow_mut();
        for at in body.clocks() {
            if mine == 0 {
                seen.begun += 1;
            }
            mine += 1;
            seen.events += 1;
            seen.first.get_or_insert_with(Instant::now);
            if seen.begun == count {
                let delay = now.saturating_sub(Duration::from_nanos(at));
                let micros = u32::try_from(delay.as_micros());
                seen.delays.push(micros.unwrap_or(u32::MAX));
            }
        }
        if mine > 0 {
            seen.last = Some(Instant::now());
        }
        if ended {
            seen.ended += 1;
            return;
        }
    }
}

/// A chunked body, as it comes.
#[derive(Default)]
struct Body {
    raw: Vec<u8>,
    head_read: bool,
    text: Vec<u8>,
}

impl Body {
    /// Moves whole chunks from `raw` to `text`. Whether the last one came.
    fn take(&mut self) -> bool {
        let line = |raw: &[u8]| raw.windows(2).position(|w| w == b"\r\n");
        let mut used = 0;
        if !self.head_read {
            let Some(end) = self.raw.windows(4).position(|w| w == b"\r\n\r\n") else {
                return false;
            };
            let head = String::from_utf8_lossy(&self.raw[..end]).to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 200"), "refused: {head}");
            assert!(head.contains("transfer-encoding: chunked"), "{head}");
            (self.head_read, used) = (true, end + 4);
        }
        let mut ended = false;
        while let Some(end) = line(&self.raw[used..]) {
            let size = String::from_utf8_lossy(&self.raw[used..used + end]).into_owned();
            let size = usize::from_str_radix(size.trim(), 16).expect("the size of a chunk");
            let begin = used + end + 2;
            if self.raw.len() < begin + size + 2 {
                break;
            }
            self.text.extend(&self.raw[begin..begin + size]);
            used = begin + size + 2;
            ended = size == 0;
        }
        self.raw.drain(..used);
        ended
    }

    /// The agent's clock in each whole event, nanoseconds since 1970, and forgets them.
    fn clocks(&mut self) -> Vec<u64> {
        let mut found = Vec::new();
        let mut used = 0;
        while let Some(end) = self.text[used..].windows(2).position(|w| w == b"\n\n") {
            let event = &self.text[used..used + end];
            if let Some(mark) = event.windows(MARK.len()).position(|w| w == MARK) {
                let digits = event[mark + MARK.len()..].iter();
                let digits = digits.take_while(|byte| byte.is_ascii_digit());
                found.push(digits.fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0')));
            }
            used += end + 2;
        }
        self.text.drain(..used);
        found
    }
}
