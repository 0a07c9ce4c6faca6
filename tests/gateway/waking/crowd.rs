//! Many callers on two replicas wake an agent once, and each is sent once.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Asleep, PATIENT, parked, patient, until};
use crate::harness::{Agent, CALL, Connection, Gateway, Pair, Step, Stores, holds_for, ok_json};

/// Callers of each replica.
const CALLERS: usize = 250;

/// Calls whose order is looked at.
const NUMBERED: usize = 20;

fn numbered(replica: usize, number: usize) -> String {
    let mut call: Value = serde_json::from_str(CALL).unwrap();
    call["id"] = json!(format!("{replica}-{number}"));
    call.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_callers_on_two_replicas_wake_an_agent_once() {
    let stores = Stores::start();
    let keys = tempfile::tempdir().unwrap();
    let keys = keys.path().display().to_string();
    let builder = || stores.builder().sets(PATIENT).set("keys.dir", &keys);
    let agent = Agent::scripted(|request| {
        let call: Value = serde_json::from_str(request.text()).unwrap();
        let answer = json!({"jsonrpc": "2.0", "id": call["id"], "result": call["id"]});
        vec![Step::Write(ok_json(&answer.to_string()))]
    });
    let asleep = Asleep::with(builder(), agent.await, Agent::json("{}").await).await;
    let second = builder().start().await;
    let gateways: [&Gateway; 2] = [&asleep.gateway, &second];
    for gateway in gateways {
        gateway.until_coherent().await;
    }
    let mut calls = Vec::new();
    for number in 0..CALLERS {
        for (replica, gateway) in gateways.into_iter().enumerate() {
            let body = numbered(replica, number);
            let mut connection = Connection::open(gateway.public).await;
            let request = asleep.caller.sends(&asleep.target, body);
            connection.ask(&request).await;
            calls.push((format!("{replica}-{number}"), connection));
        }
    }
    for gateway in gateways {
        until(async || parked(gateway).await as usize == CALLERS).await;
    }
    asleep.until_woken(1).await;
    let calm = async || asleep.waker.count() == 1 && asleep.target.agent.count() == 0;
    holds_for(Duration::from_millis(300), "one request to the waker", calm).await;
    asleep.heartbeat().await;
    let mut answered = BTreeSet::new();
    for (id, mut connection) in calls {
        let answer = connection.answer().await.has(200);
        assert_eq!(answer.json()["result"], id.as_str());
        assert!(answered.insert(id));
    }
    assert_eq!(answered.len(), 2 * CALLERS);
    let arrived = asleep.target.agent.requests();
    let once: BTreeSet<_> = arrived.iter().map(|request| request.text()).collect();
    assert_eq!((once.len(), arrived.len()), (2 * CALLERS, 2 * CALLERS));
    assert_eq!(asleep.waker.count(), 1);
    // Counted once its answer is there.
    until(async || {
        let mut wakes = 0.0;
        for gateway in gateways {
            wakes += gateway.metric("a2a_gateway_wakes_total", &[]).await;
        }
        wakes == 1.0
    })
    .await;
    for gateway in gateways {
        assert_eq!(parked(gateway).await, 0);
        gateway.assert_idle().await;
    }
}

/// Where the agent takes one call at a time, and each is parked before the next one is sent, the order is exact.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_calls_arrive_in_the_order_in_which_they_came() {
    // A call that is being sent keeps the next one back for 1 s: no other thread sends that meanwhile.
    let builder = patient(Pair::Embedded).set("server.threads", "1");
    let asleep = Asleep::on(builder).await;
    let one = asleep.gateway.patch("target", json!({"max_concurrent": 1}));
    assert_eq!(one.await.status, 200);
    let mut calls = Vec::new();
    for number in 0..NUMBERED {
        let body = numbered(0, number);
        let request = asleep.caller.sends(&asleep.target, body);
        calls.push(asleep.parked(request).await);
    }
    asleep.heartbeat().await;
    for call in calls {
        assert_eq!(call.await.unwrap().status, 200);
    }
    let arrived = asleep.target.agent.requests();
    let arrived = arrived.iter().map(|request| request.text().to_owned());
    let expected = (0..NUMBERED).map(|number| numbered(0, number));
    assert_eq!(arrived.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}
