//! The load of `scripts/bench` that `wrk` and `h2load` cannot make: requests at a steady pace, and the delay of
//! events. Loopback only, bounded, one thread; prints one line of JSON.
//!
//! - `load beats ADDRESS WORKSPACES RATE SECONDS DISCOVER_RATE`: heartbeats, and discoveries beside them.
//! - `load requests ADDRESS FILE RATE SECONDS CONNECTIONS`: the requests of a file, which NULs separate, one after
//!   the other. `RATE` 0: each of them once, as fast as answers come.
//! - `load streams ADDRESS FILE COUNT`: the request of the file on `COUNT` connections; reads the streams to their
//!   ends.

#![expect(clippy::print_stdout, reason = "what it measured is its output")]

mod beats;
mod paced;
mod requests;
mod streams;

use std::net::SocketAddr;

const USAGE: &str = "usage: load beats ADDRESS WORKSPACES RATE SECONDS DISCOVER_RATE\n       \
                     load requests ADDRESS FILE RATE SECONDS CONNECTIONS\n       \
                     load streams ADDRESS FILE COUNT";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, address, rest @ ..] = arguments.as_slice() else {
        panic!("{USAGE}");
    };
    let address: SocketAddr = address.parse().expect(USAGE);
    assert!(address.ip().is_loopback(), "only for loopback");
    let number = |text: &String| text.parse::<u64>().expect(USAGE);
    let read = |file: &String| std::fs::read(file).expect("the file of requests");
    let local = tokio::task::LocalSet::new();
    let told = match (what.as_str(), rest) {
        ("beats", [workspaces, rate, seconds, discover_rate]) => {
            let numbers = [workspaces, rate, seconds, discover_rate].map(number);
            local.run_until(beats::run(address, numbers)).await
        }
        ("requests", [file, rate, seconds, connections]) => {
            let numbers = [rate, seconds, connections].map(number);
            let run = requests::run(address, read(file), numbers);
            local.run_until(run).await
        }
        ("streams", [file, count]) => {
            let run = streams::run(address, read(file), number(count));
            local.run_until(run).await
        }
        _ => panic!("{USAGE}"),
    };
    println!("{told}");
}
