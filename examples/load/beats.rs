//! Heartbeats, for `scripts/bench beats`: `RATE` a second for `SECONDS`, one workspace after the other, and beside
//! them, over connections of their own, `DISCOVER_RATE` discoveries a second between siblings, one half by a thousand
//! workspaces that do it again and again, the other by random ones, most of which do it for the first time. `RATE` 0:
//! each workspace once, as fast as answers come.
//!
//! Workspaces are `ws-0` and on, tokens `a2aw_` and the number in 43 digits, as the script seeds them.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::paced::{Job, Lane, Load, SECONDS_MAX, due, ticks};

/// Connections for heartbeats, kept alive.
const BEAT_CONNECTIONS: usize = 32;
/// Connections for discoveries.
const DISCOVER_CONNECTIONS: usize = 8;
/// Workspaces that discover again and again.
const REGULARS: u64 = 1000;
/// Workspaces that share a parent.
const TEAM: u64 = 10;

/// Kinds: heartbeats; discoveries by a workspace that did it before; by any.
const KINDS: [&str; 3] = ["beats", "discoveries", "first_discoveries"];

struct Beats {
    address: SocketAddr,
    load: Rc<Load>,
    beats: Rc<Lane>,
    discoveries: Rc<Lane>,
}

/// Does it, and tells it as JSON.
pub(crate) async fn run(
    address: SocketAddr,
    [workspaces, rate, seconds, discover_rate]: [u64; 4],
) -> String {
    let workspaces = workspaces.max(2);
    let load = Load::new(KINDS.len());
    let all = Beats {
        address,
        beats: load.lane(address, BEAT_CONNECTIONS),
        discoveries: load.lane(address, DISCOVER_CONNECTIONS),
        load,
    };
    let started = Instant::now();
    if rate == 0 {
        let jobs = (0..workspaces).map(|n| beat(address, n, None));
        all.load.push_all(&all.beats, jobs).await;
    } else {
        let count = rate * seconds.min(SECONDS_MAX);
        all.pace(started, workspaces, rate, count, discover_rate)
            .await;
    }
    all.load.told(started, &KINDS).await
}

impl Beats {
    /// Puts requests into the queues when they are due.
    async fn pace(
        &self,
        started: Instant,
        workspaces: u64,
        rate: u64,
        count: u64,
        discover_rate: u64,
    ) {
        let ticks = ticks();
        let (mut beats, mut discoveries) = (0, 0);
        // Another one each time, so that who is asked for the first time is not always the same.
        let nanoseconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |d| d.subsec_nanos());
        let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ u64::from(nanoseconds);
        while beats < count {
            ticks.notified().await;
            let now = Instant::now();
            while beats < count && due(started, beats, rate) <= now {
                let at = due(started, beats, rate);
                let job = beat(self.address, beats % workspaces, Some(at));
                self.load.push(&self.beats, job);
                beats += 1;
            }
            while discover_rate > 0 && due(started, discoveries, discover_rate) <= now {
                // xorshift: any spread will do.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let (kind, n) = if discoveries % 2 == 0 {
                    (1, discoveries / 2 % REGULARS.min(workspaces))
                } else {
                    (2, random % workspaces)
                };
                let at = due(started, discoveries, discover_rate);
                let job = discovery(self.address, n, kind, at);
                self.load.push(&self.discoveries, job);
                discoveries += 1;
            }
        }
    }
}

fn beat(address: SocketAddr, n: u64, due: Option<Instant>) -> Job {
    let body = format!(
        r#"{{"workspace_id":"ws-{n}","error_rate":0.0,"active_tasks":1,"uptime_seconds":3600,"current_task":"bench"}}"#
    );
    let wire = format!(
        "POST /registry/heartbeat HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer a2aw_{n:043}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    Job {
        wire: wire.into_bytes().into(),
        kind: 0,
        due,
    }
}

/// By the next of the same parent.
fn discovery(address: SocketAddr, n: u64, kind: usize, due: Instant) -> Job {
    let target = n / TEAM * TEAM + (n + 1) % TEAM;
    let wire = format!(
        "GET /registry/discover/ws-{target} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer a2aw_{n:043}\r\n\r\n"
    );
    Job {
        wire: wire.into_bytes().into(),
        kind,
        due: Some(due),
    }
}
