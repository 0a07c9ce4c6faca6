//! The limit that is learned from an agent that says 429.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::explain::{explain, step};
use crate::harness::{
    Agent, Builder, CALL, Connection, Gateway, Pair, Seat, Step, ok_json, until_holds,
};

const OK: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"message","messageId":"r","role":"agent","parts":[]}}"#;
const TOO_MANY: &str = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n";

/// The limit of `target` that the gateway has learned, as an explanation for `other` shows it.
async fn learned(gateway: &Gateway) -> Option<u64> {
    let explained = explain(gateway, "other", "target").await;
    step(&explained, "slots")["fact"]["learned_limit"].as_u64()
}

/// Numbers of calls that an agent holds, and that it has refused.
type Counts = Arc<Mutex<(usize, u32)>>;

/// An agent that takes `most` calls at once, each until there is a permit for it, and says 429 beyond.
async fn limited(most: usize, permits: &Arc<Semaphore>) -> (Agent, Counts) {
    let (counts, permits) = (Counts::default(), Arc::clone(permits));
    let counted = Arc::clone(&counts);
    let agent = Agent::scripted(move |_| {
        let mut counts = counted.lock().unwrap();
        if counts.0 >= most {
            counts.1 += 1;
            return vec![Step::write(TOO_MANY)];
        }
        counts.0 += 1;
        vec![Step::Held(Arc::clone(&permits)), Step::Write(ok_json(OK))]
    })
    .await;
    (agent, counts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_takes_eight_calls_is_seldom_asked_for_more_and_kept_busy() {
    /// Calls of one round, more than the agent takes.
    const OFFERED: usize = 12;
    const LOOK_EVERY: Duration = Duration::from_millis(5);
    let permits = Arc::new(Semaphore::new(0));
    let (agent, counts) = limited(8, &permits).await;
    let gateway = Builder::new(Pair::Embedded).start().await;
    let (caller, target) = gateway.pair(agent).await;
    let other = gateway.seat("other", "", Agent::json(OK).await).await;
    // To one caller alone it would tell that one's own limit.
    let calls = [caller, other].map(|seat| seat.calls(&target));
    // No call is answered before each is held or refused, so the machine's pace is not that of the agent.
    let round = async || {
        counts.lock().unwrap().0 = 0;
        let offered = (0..OFFERED).map(|n| gateway.call(&calls[n % 2]));
        let mut open: FuturesUnordered<_> = offered.collect();
        while open.len() > counts.lock().unwrap().0 {
            if let Ok(refused) = timeout(LOOK_EVERY, open.next()).await {
                assert_ne!(refused.unwrap().status, 200);
            }
        }
        permits.add_permits(open.len());
        while let Some(answer) = open.next().await {
            answer.has(200);
        }
        gateway.assert_idle().await;
    };
    let mut taken = 0;
    for _ in 0..50 {
        round().await;
    }
    let before = counts.lock().unwrap().1;
    for _ in 0..100 {
        round().await;
        taken += u32::try_from(counts.lock().unwrap().0).unwrap();
    }
    let refused = counts.lock().unwrap().1 - before;
    let share = f64::from(refused) / f64::from(taken + refused);
    assert!(share < 0.02, "it refused {share:.4}, and took {taken}");
    let learned = learned(&gateway).await;
    let is_right = learned.is_some_and(|limit| (5..=9).contains(&limit));
    assert!(is_right, "{learned:?}");
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
