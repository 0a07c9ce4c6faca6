//! The requests of a file, which NULs separate: at a steady pace, again and again; or each once.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::time::Instant;

use crate::paced::{Job, Load, SECONDS_MAX, due, ticks};

/// Connections at most.
const CONNECTIONS_MAX: u64 = 4096;

/// Does it, and tells it as JSON.
pub(crate) async fn run(
    address: SocketAddr,
    file: Vec<u8>,
    [rate, seconds, connections]: [u64; 3],
) -> String {
    let wires: Vec<Rc<[u8]>> = file.split(|byte| *byte == 0).map(Rc::from).collect();
    let connections = usize::try_from(connections.clamp(1, CONNECTIONS_MAX)).unwrap_or(1);
    let load = Load::new(1);
    let lane = load.lane(address, connections);
    let started = Instant::now();
    if rate == 0 {
        let jobs = wires.into_iter().map(|wire| Job {
            wire,
            kind: 0,
            due: None,
        });
        load.push_all(&lane, jobs).await;
    } else {
        let ticks = ticks();
        let mut wires = wires.iter().cycle();
        for n in 0..rate * seconds.min(SECONDS_MAX) {
            let at = due(started, n, rate);
            while Instant::now() < at {
                ticks.notified().await;
            }
            let wire = wires.next().map(Rc::clone).unwrap_or_default();
            let due = Some(at);
            load.push(&lane, Job { wire, kind: 0, due });
        }
    }
    load.told(started, &["requests"]).await
}
