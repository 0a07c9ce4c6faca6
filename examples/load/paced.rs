//! Requests that are sent when they are due, whether or not the last ones were answered (open loop: a slow answer is
//! not hidden by waiting for it). Latencies count from when a request was due, waiting for a connection included.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Longest run.
pub(crate) const SECONDS_MAX: u64 = 600;
/// Requests that wait for a connection at most; beyond it they are dropped, and counted.
const WAITING_MAX: usize = 200_000;
/// Of requests that are never due, so many wait for connections.
const READY: usize = 256;
/// How long the last answers may take.
const LAST_ANSWERS: Duration = Duration::from_secs(10);
/// Time between two looks for what is due. The runtime's own timers are a millisecond apart.
const TICK: Duration = Duration::from_micros(100);

/// A request that waits for a connection.
pub(crate) struct Job {
    /// The request, as it is sent.
    pub(crate) wire: Rc<[u8]>,
    /// Which tally counts it.
    pub(crate) kind: usize,
    /// When it was due. None: whenever a connection takes it.
    pub(crate) due: Option<Instant>,
}

#[derive(Default)]
struct Tally {
    micros: Vec<u32>,
    refused: u64,
}

/// Requests on their way to the connections that share them.
#[derive(Default)]
pub(crate) struct Lane {
    waiting: RefCell<VecDeque<Job>>,
    ready: Notify,
}

impl Lane {
    async fn next(&self) -> Job {
        loop {
            let ready = self.ready.notified();
            let job = self.waiting.borrow_mut().pop_front();
            if let Some(job) = job {
                return job;
            }
            ready.await;
        }
    }
}

/// What became of the requests, by kind.
pub(crate) struct Load {
    tallies: Vec<RefCell<Tally>>,
    asked: Cell<usize>,
    dropped: Cell<usize>,
    first_refusal: RefCell<String>,
}

impl Load {
    /// Counts that many kinds of requests.
    pub(crate) fn new(kinds: usize) -> Rc<Load> {
        Rc::new(Load {
            tallies: (0..kinds).map(|_| RefCell::default()).collect(),
            asked: Cell::new(0),
            dropped: Cell::new(0),
            first_refusal: RefCell::default(),
        })
    }

    /// A lane with so many kept-alive connections.
    pub(crate) fn lane(self: &Rc<Load>, address: SocketAddr, connections: usize) -> Rc<Lane> {
        let lane = Rc::<Lane>::default();
        for _ in 0..connections {
            let work = connection(address, Rc::clone(self), Rc::clone(&lane));
            tokio::task::spawn_local(work);
        }
        lane
    }

    /// Puts a request into a lane.
    pub(crate) fn push(&self, lane: &Lane, job: Job) {
        let mut waiting = lane.waiting.borrow_mut();
        if waiting.len() < WAITING_MAX {
            waiting.push_back(job);
            lane.ready.notify_one();
            self.asked.set(self.asked.get() + 1);
        } else {
            self.dropped.set(self.dropped.get() + 1);
        }
    }

    /// Puts `jobs` into a lane, as fast as answers come.
    pub(crate) async fn push_all(&self, lane: &Lane, jobs: impl Iterator<Item = Job>) {
        for job in jobs {
            while lane.waiting.borrow().len() >= READY {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.push(lane, job);
        }
    }

    fn done(&self, kind: usize, due: Instant, answer: &[u8]) {
        let mut tally = self.tallies[kind].borrow_mut();
        if answer.starts_with(b"HTTP/1.1 2") {
            let micros = u32::try_from(due.elapsed().as_micros());
            tally.micros.push(micros.unwrap_or(u32::MAX));
        } else {
            tally.refused += 1;
            let mut first = self.first_refusal.borrow_mut();
            if first.is_empty() {
                *first = String::from_utf8_lossy(answer).into_owned();
            }
        }
    }

    fn answered(&self) -> usize {
        let count = |tally: &RefCell<Tally>| {
            let tally = tally.borrow();
            tally.micros.len() + usize::try_from(tally.refused).unwrap_or(usize::MAX)
        };
        self.tallies.iter().map(count).sum()
    }

    /// Waits for the last answers, and tells all as JSON; `names` are those of the kinds.
    pub(crate) async fn told(&self, started: Instant, names: &[&str]) -> String {
        let sent_for = started.elapsed();
        let deadline = Instant::now() + LAST_ANSWERS;
        while self.answered() < self.asked.get() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let first = self.first_refusal.borrow();
        if !first.is_empty() {
            eprintln!("the first refusal: {first}");
        }
        let kinds = names.iter().zip(&self.tallies);
        let kinds: Vec<String> = kinds
            .map(|(name, tally)| format!(r#""{name}":{}"#, told(&mut tally.borrow_mut())))
            .collect();
        format!(
            r#"{{"seconds":{:.3},"answered_in":{:.3},{},"unanswered":{},"dropped":{}}}"#,
            sent_for.as_secs_f64(),
            started.elapsed().as_secs_f64(),
            kinds.join(","),
            self.asked.get().saturating_sub(self.answered()),
            self.dropped.get(),
        )
    }
}

/// Rings every `TICK` while somebody listens.
pub(crate) fn ticks() -> Arc<Notify> {
    let ticks = Arc::new(Notify::new());
    let listened = Arc::downgrade(&ticks);
    std::thread::spawn(move || {
        while let Some(ticks) = listened.upgrade() {
            ticks.notify_one();
            drop(ticks);
            std::thread::sleep(TICK);
        }
    });
    ticks
}

/// When request `n` of that many a second is due.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts far below 2^52 are exact in f64"
)]
pub(crate) fn due(started: Instant, n: u64, rate: u64) -> Instant {
    started + Duration::from_secs_f64(n as f64 / rate as f64)
}

async fn connection(address: SocketAddr, load: Rc<Load>, lane: Rc<Lane>) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket takes an option");
    let mut held = Vec::with_capacity(8192);
    loop {
        let job = lane.next().await;
        let due = job.due.unwrap_or_else(Instant::now);
        stream.write_all(&job.wire).await.expect("it is up");
        held.clear();
        while !is_whole(&held) {
            let read = stream.read_buf(&mut held).await.expect("it is up");
            assert!(read > 0, "the other side closed a connection");
        }
        load.done(job.kind, due, &held);
    }
}

/// Whether an answer is there to its end.
fn is_whole(held: &[u8]) -> bool {
    let Some(end) = held.windows(4).position(|w| w == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&held[..end]).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    match length.and_then(|value| value.trim().parse::<usize>().ok()) {
        Some(length) => held.len() >= end + 4 + length,
        None => held.ends_with(b"0\r\n\r\n"),
    }
}

/// Count and percentiles, as JSON.
fn told(tally: &mut Tally) -> String {
    tally.micros.sort_unstable();
    let at = |share| f64::from(at(&tally.micros, share)) / 1000.0;
    format!(
        r#"{{"ok":{},"refused":{},"p50_ms":{},"p99_ms":{},"p999_ms":{},"max_ms":{}}}"#,
        tally.micros.len(),
        tally.refused,
        at(500),
        at(990),
        at(999),
        at(1000),
    )
}

/// The value below which so many thousandths of them lie.
pub(crate) fn at(sorted: &[u32], thousandths: usize) -> u32 {
    let count = sorted.len();
    let index = (count * thousandths / 1000).min(count.saturating_sub(1));
    sorted.get(index).copied().unwrap_or(0)
}
