//! The limit that is learned from an agent that says 429.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::sleep;

use crate::explain::{explain, step};
use crate::harness::{
    Agent, Builder, CALL, Connection, Gateway, Pair, Request, Seat, Step, ok_json, until_holds,
};

const OK: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"message","messageId":"r","role":"agent","parts":[]}}"#;
const TOO_MANY: &str = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n";

/// The limit of `target` that the gateway has learned, as an explanation for `other` shows it.
async fn learned(gateway: &Gateway) -> Option<u64> {
    let explained = explain(gateway, "other", "target").await;
    step(&explained, "slots")["fact"]["learned_limit"].as_u64()
}

/// An agent that takes `most` calls at once, each for `each`, and says 429 beyond.
async fn limited(most: usize, each: Duration) -> (Agent, Arc<Mutex<(u32, u32)>>) {
    let counts = Arc::new(Mutex::new((0, 0)));
    let (counted, busy) = (Arc::clone(&counts), Mutex::new(VecDeque::new()));
    let agent = Agent::scripted(move |_| {
        let (now, mut busy) = (Instant::now(), busy.lock().unwrap());
        while busy.front().is_some_and(|end| *end <= now) {
            busy.pop_front();
        }
        let mut counts = counted.lock().unwrap();
        if busy.len() >= most {
            counts.1 += 1;
            return vec![Step::write(TOO_MANY)];
        }
        counts.0 += 1;
        busy.push_back(now + each);
        vec![Step::Wait(each), Step::Write(ok_json(OK))]
    })
    .await;
    (agent, counts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_takes_eight_calls_is_seldom_asked_for_more_and_kept_busy() {
    const EACH: Duration = Duration::from_millis(50);
    /// A caller that is refused waits for this long, so that the calls of all leave time for gateway and agent.
    const PAUSE: Duration = Duration::from_millis(200);
    let (agent, counts) = limited(8, EACH).await;
    let gateway = Builder::new(Pair::Embedded).start().await;
    let (caller, target) = gateway.pair(agent).await;
    let other = gateway.seat("other", "", Agent::json(OK).await).await;
    // To one caller alone it would tell that one's own limit.
    let calls = [caller, other].map(|seat| seat.calls(&target));
    let offer = async |call: &Request| {
        let mut connection = Connection::open(gateway.public).await;
        loop {
            if connection.call(call).await.status != 200 {
                sleep(PAUSE).await;
            }
        }
    };
    let took = async |calls: u32| {
        let before = *counts.lock().unwrap();
        let done = async || counts.lock().unwrap().0 >= before.0 + calls;
        until_holds("the agent takes calls", done).await;
        let after = *counts.lock().unwrap();
        (after.0 - before.0, after.1 - before.1)
    };
    let story = async {
        took(400).await;
        let (taken, refused) = took(800).await;
        let share = f64::from(refused) / f64::from(taken + refused);
        assert!(share < 0.02, "it refused {share:.4}, and took {taken}");
        let learned = learned(&gateway).await;
        let is_right = learned.is_some_and(|limit| (5..=9).contains(&limit));
        assert!(is_right, "{learned:?}");
    };
    tokio::select! {
        _ = join_all((0..64).map(|n| offer(&calls[n % 2]))) => {}
        () = story => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_429_to_one_caller_is_that_one_s_own_limit() {
    const HANG: &str = "a-long-question";
    let agent = Agent::scripted(|request| {
        let is_long = String::from_utf8_lossy(&request.body).contains(HANG);
        let refused = Step::write(TOO_MANY);
        vec![if is_long { Step::Hang } else { refused }]
    });
    let gateway = Builder::new(Pair::Embedded).start().await;
    let (caller, target) = gateway.pair(agent.await).await;
    let other = gateway.seat("other", "", Agent::json(OK).await).await;
    let long = CALL.replace("\"hi\"", &format!("\"{HANG}\""));
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut connection = Connection::open(gateway.public).await;
        connection.ask(&other.sends(&target, &long)).await;
        held.push(connection);
    }
    until_holds("they are in progress", async || target.agent.count() == 4).await;
    let status = async |by: &Seat| gateway.call(&by.calls(&target)).await.status;
    for _ in 0..5 {
        assert_eq!(status(&caller).await, 429);
    }
    assert_eq!(learned(&gateway).await, None);
    // Once it is learned the gateway itself refuses the next one.
    let of_both = async || {
        status(&caller).await;
        status(&other).await;
        learned(&gateway).await.is_some()
    };
    until_holds("the agent is full for both", of_both).await;
}
