//! Heartbeats at a steady pace, for `scripts/bench beats`. Loopback only, bounded, one thread.
//!
//! `beats ADDRESS WORKSPACES RATE SECONDS DISCOVER_RATE` sends `RATE` heartbeats a second for `SECONDS`,
//! one workspace after the other, whether or not the last ones were answered (open loop: a slow
//! answer is not hidden by waiting for it), and beside them, over connections of their own,
//! `DISCOVER_RATE` discoveries a second between siblings, one half by a thousand workspaces that do it
//! again and again, the other by random ones, most of which do it for the first time. `RATE` 0: each
//! workspace once, as fast as answers come. Latencies count from the tick of the clock (1 ms) at which
//! a request was due, waiting for a connection included. Prints one line of JSON.
//!
//! Workspaces are `ws-0` and on, tokens `a2aw_` and the number in 43 digits, as the script seeds them.

#![expect(clippy::print_stdout, reason = "what it measured is its output")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Requests that wait for a connection at most; beyond it they are dropped, and counted.
const WAITING_MAX: usize = 200_000;
/// Connections for heartbeats, kept alive.
const BEAT_CONNECTIONS: usize = 32;
/// Connections for discoveries.
const DISCOVER_CONNECTIONS: usize = 8;
/// Workspaces that discover again and again.
const REGULARS: u64 = 1000;
/// Longest run.
const SECONDS_MAX: u64 = 600;
/// Workspaces that share a parent.
const TEAM: u64 = 10;
/// How long the last answers may take.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
enum What {
    Beat(u64),
    /// By a workspace that did it before, or by any.
    Discover(u64),
    DiscoverFirst(u64),
}

#[derive(Clone, Copy)]
struct Job {
    what: What,
    queued: Instant,
}

#[derive(Default)]
struct Tally {
    micros: Vec<u32>,
    refused: u64,
}

/// Requests of one kind on their way to its connections.
#[derive(Default)]
struct Lane {
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

#[derive(Default)]
struct Load {
    beat_lane: Rc<Lane>,
    discover_lane: Rc<Lane>,
    beats: RefCell<Tally>,
    discoveries: RefCell<Tally>,
    first_discoveries: RefCell<Tally>,
    dropped: RefCell<u64>,
    first_refusal: RefCell<String>,
}

impl Load {
    fn push(&self, what: What) {
        let lane = match what {
            What::Beat(_) => &self.beat_lane,
            What::Discover(_) | What::DiscoverFirst(_) => &self.discover_lane,
        };
        let mut waiting = lane.waiting.borrow_mut();
        if waiting.len() < WAITING_MAX {
            let queued = Instant::now();
            waiting.push_back(Job { what, queued });
            lane.ready.notify_one();
        } else {
            *self.dropped.borrow_mut() += 1;
        }
    }

    fn done(&self, job: Job, answer: &[u8]) {
        let tally = match job.what {
            What::Beat(_) => &self.beats,
            What::Discover(_) => &self.discoveries,
            What::DiscoverFirst(_) => &self.first_discoveries,
        };
        let mut tally = tally.borrow_mut();
        if answer.starts_with(b"HTTP/1.1 200") {
            let micros = u32::try_from(job.queued.elapsed().as_micros());
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
        let tallies = [&self.beats, &self.discoveries, &self.first_discoveries];
        let count = |tally: &RefCell<Tally>| {
            let tally = tally.borrow();
            tally.micros.len() + usize::try_from(tally.refused).unwrap_or(usize::MAX)
        };
        tallies.into_iter().map(count).sum()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let usage = "usage: beats ADDRESS WORKSPACES RATE SECONDS DISCOVER_RATE";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address: SocketAddr = arguments[0].parse().expect(usage);
    assert!(address.ip().is_loopback(), "only for loopback");
    let number = |index: usize| arguments.get(index).and_then(|n| n.parse::<u64>().ok());
    let workspaces = number(1).expect(usage).max(2);
    let (rate, seconds) = (number(2).expect(usage), number(3).expect(usage));
    let seconds = seconds.min(SECONDS_MAX);
    let discover_rate = number(4).expect(usage);
    let load = Rc::new(Load::default());
    let local = tokio::task::LocalSet::new();
    for (lane, connections) in [
        (&load.beat_lane, BEAT_CONNECTIONS),
        (&load.discover_lane, DISCOVER_CONNECTIONS),
    ] {
        for _ in 0..connections {
            local.spawn_local(connection(address, Rc::clone(&load), Rc::clone(lane)));
        }
    }
    let started = Instant::now();
    let asked = local
        .run_until(pace(&load, workspaces, rate, seconds, discover_rate))
        .await;
    let sent_for = started.elapsed();
    local
        .run_until(async {
            let deadline = Instant::now() + LAST_ANSWERS;
            while load.answered() < asked && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    let unanswered = asked.saturating_sub(load.answered());
    println!(
        r#"{{"seconds":{:.3},"beats":{},"discoveries":{},"first_discoveries":{},"unanswered":{unanswered},"dropped":{}}}"#,
        sent_for.as_secs_f64(),
        told(&mut load.beats.borrow_mut()),
        told(&mut load.discoveries.borrow_mut()),
        told(&mut load.first_discoveries.borrow_mut()),
        load.dropped.borrow(),
    );
    let first = load.first_refusal.borrow();
    if !first.is_empty() {
        eprintln!("the first refusal: {first}");
    }
}

/// Puts requests into the queue when they are due. Answers how many.
async fn pace(load: &Load, workspaces: u64, rate: u64, seconds: u64, discover_rate: u64) -> usize {
    if rate == 0 {
        return each_once(load, workspaces).await;
    }
    let started = Instant::now();
    let mut tick = interval(Duration::from_millis(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut beats, mut discoveries, mut asked) = (0, 0, 0);
    // Another one each time, so that who is asked for the first time is not always the same.
    let nanoseconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |d| d.subsec_nanos());
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ u64::from(nanoseconds);
    while beats < rate * seconds {
        tick.tick().await;
        let elapsed = started.elapsed().as_secs_f64();
        while beats < rate * seconds && due(beats, rate) <= elapsed {
            load.push(What::Beat(beats % workspaces));
            beats += 1;
            asked += 1;
        }
        while discover_rate > 0 && due(discoveries, discover_rate) <= elapsed {
            // xorshift: any spread will do.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let what = if discoveries % 2 == 0 {
                What::Discover(discoveries / 2 % REGULARS.min(workspaces))
            } else {
                What::DiscoverFirst(random % workspaces)
            };
            load.push(what);
            discoveries += 1;
            asked += 1;
        }
    }
    asked
}

/// Each workspace once, as fast as answers come.
async fn each_once(load: &Load, workspaces: u64) -> usize {
    for n in 0..workspaces {
        while load.beat_lane.waiting.borrow().len() > BEAT_CONNECTIONS {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        load.push(What::Beat(n));
    }
    usize::try_from(workspaces).unwrap_or(usize::MAX)
}

/// When request `n` is due, in seconds after the start.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts far below 2^52 are exact in f64"
)]
fn due(n: u64, rate: u64) -> f64 {
    n as f64 / rate as f64
}

async fn connection(address: SocketAddr, load: Rc<Load>, lane: Rc<Lane>) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket takes an option");
    let mut held = Vec::with_capacity(8192);
    loop {
        let job = lane.next().await;
        let request = request(address, job.what);
        stream
            .write_all(request.as_bytes())
            .await
            .expect("it is up");
        held.clear();
        while !is_whole(&held) {
            let read = stream.read_buf(&mut held).await.expect("it is up");
            assert!(read > 0, "the gateway closed a connection");
        }
        load.done(job, &held);
    }
}

fn request(address: SocketAddr, what: What) -> String {
    match what {
        What::Beat(n) => {
            let body = format!(
                r#"{{"workspace_id":"ws-{n}","error_rate":0.0,"active_tasks":1,"uptime_seconds":3600,"current_task":"bench"}}"#
            );
            format!(
                "POST /registry/heartbeat HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer a2aw_{n:043}\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        }
        What::Discover(n) | What::DiscoverFirst(n) => {
            // The next of the same parent.
            let target = n / TEAM * TEAM + (n + 1) % TEAM;
            format!(
                "GET /registry/discover/ws-{target} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer a2aw_{n:043}\r\n\r\n"
            )
        }
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
    let count = tally.micros.len();
    let at = |thousandths: usize| {
        let index = (count * thousandths / 1000).min(count.saturating_sub(1));
        f64::from(tally.micros.get(index).copied().unwrap_or(0)) / 1000.0
    };
    format!(
        r#"{{"ok":{count},"refused":{},"p50_ms":{},"p99_ms":{},"max_ms":{}}}"#,
        tally.refused,
        at(500),
        at(990),
        at(1000),
    )
}
