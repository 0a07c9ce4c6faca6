//! Replicas count together: no more than the limit is used, nearly all of it is, and no message asks a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{assert_reached, hello, in_run, send, used};
use crate::harness::{Agent, Connection, Gateway, Request, Stores, until_holds};

/// Callers at once.
const CALLERS: usize = 200;

/// Gateways on one PostgreSQL and one Redis.
async fn replicas(caps: &Value, count: usize) -> (Vec<Gateway>, Stores) {
    let stores = Stores::start();
    let mut gateways = Vec::new();
    for _ in 0..count {
        let settings = "registry.heartbeat_ttl=1h limits.target_concurrency=1000";
        let builder = stores.builder().sets(settings);
        gateways.push(builder.set("cap", &caps.to_string()).start().await);
    }
    (gateways, stores)
}

/// Returns how often the gateways changed counters.
async fn trips(gateways: &[Gateway]) -> f64 {
    let mut sum = 0.0;
    for gateway in gateways {
        let (name, labels) = ("a2a_gateway_store_seconds_count", ["operation=\"count\""]);
        sum += gateway.metric(name, &labels).await;
    }
    sum
}

/// Sends until the cap is reached, at the first of `at` that answers. Returns the calls that were answered.
async fn send_until_reached(
    at: Vec<std::net::SocketAddr>,
    request: Request,
    sent: Arc<AtomicUsize>,
) {
    let mut at = at.into_iter();
    let mut here = at.next().unwrap();
    'connections: loop {
        let Ok(stream) = tokio::net::TcpStream::connect(here).await else {
            here = at.next().expect("a gateway that lives");
            continue;
        };
        let mut connection = Connection::over(stream);
        loop {
            let wire = request.wire(&here.to_string());
            if connection.try_send(&wire).await.is_err() {
                continue 'connections;
            }
            let Some(answer) = connection.try_answer().await.filter(|answer| answer.whole) else {
                continue 'connections;
            };
            match answer.status {
                200 => sent.fetch_add(1, Ordering::Relaxed),
                429 => return assert_reached(&answer, "org"),
                _ => panic!("{}", answer.text()),
            };
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_callers_on_three_replicas_one_of_them_killed() {
    const LIMIT: usize = 6000;
    let caps = of_org("org", "messages", LIMIT);
    let (mut gateways, _stores) = replicas(&caps, 3).await;
    let (caller, target) = gateways[0].pair(Agent::scripted(hello).await).await;
    let request = send(&target, &caller, &in_run("r"));
    let before = trips(&gateways).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.public).collect();
    let mut callers = JoinSet::new();
    for n in 0..CALLERS {
        let mut at = addresses.clone();
        at.rotate_left(n % 3);
        callers.spawn(send_until_reached(at, request.clone(), Arc::clone(&sent)));
    }
    target.agent.until_count(LIMIT / 2).await;
    let killed_after = target.agent.count();
    let of_killed = trips(&gateways[2..]).await;
    gateways[2].kill();
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
    let arrived = target.agent.count();
    let answered = sent.load(Ordering::Relaxed);
    let trips = trips(&gateways[..2]).await + of_killed - before;
    let told = format!(
        "limit {LIMIT}: {arrived} arrived, {answered} answered, one replica killed after {killed_after}; \
         {trips} changes of counters"
    );
    assert!(arrived <= LIMIT, "{told}");
    // Lost are the share of the one that was killed, and the calls that it had not sent yet.
    let lost_max = LIMIT / 100 + CALLERS.div_ceil(3);
    assert!(arrived + lost_max >= LIMIT, "{told}");
    assert!(trips * 10.0 <= arrived as f64, "{told}");
}

/// A cap for an org.
fn of_org(name: &str, count: &str, limit: usize) -> Value {
    json!([{"name": name, "per": "org", "count": count, "limit": limit, "window": "1h"}])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_limit_is_exact_wherever_its_calls_arrive() {
    let limits = [1_usize, 3, 10, 40, 300];
    let cap = |limit: usize| {
        let name = format!("up-to-{limit}");
        json!({"name": name, "per": "run", "count": "messages", "limit": limit, "scope": [name]})
    };
    let (gateways, _stores) = replicas(&limits.map(cap).into(), 3).await;
    let agent = Agent::json("{}").await;
    let caller = gateways[0].seat("caller", "", agent).await;
    for limit in limits {
        let name = format!("up-to-{limit}");
        let agent = Agent::scripted(hello).await;
        let target = gateways[0].seat(&name, "", agent).await;
        let request = send(&target, &caller, &in_run("r"));
        let mut turn = gateways.iter().cycle();
        for n in 0..limit {
            let answer = turn.next().unwrap().call(&request).await;
            assert_eq!(answer.status, 200, "{n} of {limit}: {}", answer.text());
        }
        for gateway in &gateways {
            assert_reached(&gateway.call(&request).await, &name);
        }
        assert_eq!(target.agent.count(), limit);
        assert_eq!(used(&gateways[1], &name).await, limit as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_replica_measures_the_others_know() {
    let (gateways, _stores) = replicas(&of_org("bytes", "bytes", 4000), 2).await;
    let (caller, target) = gateways[0].pair(Agent::scripted(hello).await).await;
    let request = send(&target, &caller, &in_run("r"));
    assert_eq!(gateways[1].call(&request).await.status, 200);
    while gateways[0].call(&request).await.status == 200 {
        assert!(target.agent.count() < 50);
    }
    let knows = async || gateways[1].call(&request).await.status == 429;
    until_holds("the other one knows", knows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_shared_state_a_share_is_used_up_and_then_calls_are_refused() {
    let (gateways, stores) = replicas(&of_org("org", "messages", 100_000), 1).await;
    let gateway = &gateways[0];
    let (caller, target) = gateway.pair(Agent::scripted(hello).await).await;
    let request = send(&target, &caller, &in_run("r"));
    for _ in 0..200 {
        assert_eq!(gateway.call(&request).await.status, 200);
    }
    stores.redis.kill();
    let mut connection = Connection::open(gateway.public).await;
    let mut passed = 0;
    let refused = loop {
        let answer = connection.call(&request).await;
        if answer.status != 200 {
            break answer;
        }
        passed += 1;
        assert!(passed <= 2000);
    };
    refused.refuses(503, "store_unavailable");
    assert!(refused.field("retry-after").is_some());
}
