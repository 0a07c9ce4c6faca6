//! Steady state and its limits: no store is asked, many first requests ask once, and whoever asks for
//! more than there is hears when to come back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::Semaphore;

use crate::harness::{
    Agent, Answer, CALL, Connection, Gateway, Pair, Request, Seat, Step, answering, card, ok_json,
    until_found, until_holds,
};
use crate::on_both_pairs;

/// What goes on beside requests: looking for lapses and for what could not be published, writing down
/// heartbeats and uses of tokens, calls that are made later, and what `/readyz` asks.
const BACKGROUND: [&str; 25] = [
    "operation=\"coherence_look\"",
    "operation=\"workspace_overdue\"",
    "operation=\"workspace_set_last_seen\"",
    "operation=\"note_use\"",
    "operation=\"inbox_backlog\"",
    "operation=\"inbox_unread\"",
    "operation=\"workspace_probed\"",
    "operation=\"job_backlog\"",
    "operation=\"job_claim\"",
    "operation=\"kept_look\"",
    "operation=\"kept_merge\"",
    "operation=\"task_cut\"",
    "operation=\"task_write\"",
    "operation=\"open_tasks_",
    "operation=\"stops_",
    "operation=\"revocations_",
    "operation=\"job_end_leases\"",
    "operation=\"job_untold\"",
    "operation=\"job_waiting\"",
    // Written behind everybody's back, in batches.
    "operation=\"audit_",
    "operation=\"workspace_orgs\"",
    "operation=\"ping\"",
    // Rows that have expired, at intervals.
    "_expire\"",
    "_prune\"",
    "_purge\"",
];

/// A 200 with a result.
fn result() -> Step {
    Step::Write(ok_json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#))
}

/// How often each store was asked for each thing, background aside.
pub(crate) async fn asked(gateway: &Gateway) -> BTreeMap<String, u64> {
    let text = gateway.admin_get("/metrics").await.unwrap().text();
    text.lines()
        .filter_map(|line| line.strip_prefix("a2a_gateway_store_seconds_count"))
        .filter(|line| !BACKGROUND.iter().any(|label| line.contains(label)))
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(labels, count)| (labels.to_owned(), count.parse().unwrap()))
        .collect()
}

/// Makes calls, once all that they take is in memory, and asserts that no store was asked meanwhile.
pub(crate) async fn ask_nothing(gateway: &Gateway, mut one: impl AsyncFnMut(), count: usize) {
    gateway.until_warm(&mut one).await;
    let before = asked(gateway).await;
    for _ in 0..count {
        one().await;
    }
    assert_eq!(asked(gateway).await, before);
}

fn sum(asked: &BTreeMap<String, u64>) -> u64 {
    asked.values().sum()
}

on_both_pairs! {
    async fn five_hundred_requests_in_steady_state_ask_no_store(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let (caller, target) = gateway.pair(answering().await).await;
        let request = caller.calls(&target);
        let mut connection = Connection::open(gateway.public).await;
        let one = async || assert_eq!(connection.call(&request).await.status, 200);
        ask_nothing(&gateway, one, 500).await;
        assert!(target.agent.count() > 500);
        for cache in ["cache=\"credentials\"", "cache=\"lineages\"", "cache=\"directory\""] {
            let hits = ["result=\"hit\"", cache];
            let hits = gateway.metric("a2a_gateway_cache_lookups_total", &hits).await;
            assert!(hits >= 500.0, "{cache}: {hits}");
        }
    }

    async fn a_hundred_first_requests_at_once_ask_as_often_as_one(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let (caller, target) = gateway.pair(answering().await).await;
        let request = caller.calls(&target);
        let before = asked(&gateway).await;
        let mut crowd = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let (at, request) = (gateway.public, request.clone());
            crowd.spawn(async move { Connection::open(at).await.call(&request).await.status });
        }
        while let Some(status) = crowd.join_next().await {
            assert_eq!(status.unwrap(), 200);
        }
        let after = asked(&gateway).await;
        assert_eq!(target.agent.count(), 100);
        // The token, two lines, the row, the addresses, the lease; and once more what is read while news of a change
        // comes back.
        let often = sum(&after) - sum(&before);
        assert!((1..=24).contains(&often), "{often}: {before:?} {after:?}");
    }
}

/// An agent that holds every answer until the test adds a permit for it.
async fn held() -> (Agent, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let asked = permits.clone();
    let answer = move |_: &_| vec![Step::Held(asked.clone()), result()];
    (Agent::scripted(answer).await, permits)
}

/// A target that takes `max` calls at a time, and who calls it.
async fn bounded(gateway: &Gateway, max: u32, agent: Agent) -> (Seat, Seat) {
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    let workspace = json!({"id": "target", "name": "target", "max_concurrent": max});
    let target = gateway.settle(workspace, card("target"), agent).await;
    (caller, target)
}

/// A connection on which the call was sent and has reached the agent.
async fn in_progress(gateway: &Gateway, caller: &Seat, target: &Seat) -> Connection {
    let before = target.agent.count();
    let mut connection = Connection::open(gateway.public).await;
    connection.ask(&caller.calls(target)).await;
    target.agent.until_count(before + 1).await;
    connection
}

/// Refused for a moment, since all places are taken.
fn assert_refused(answer: &Answer, reason: &str) {
    answer.refuses(503, reason);
    assert_eq!(answer.field("retry-after"), Some("1"));
    assert!(answer.field("x-request-id").is_some(), "{answer:?}");
    assert_eq!(answer.field("content-type"), Some("application/json"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_takes_as_many_calls_as_it_said_and_each_that_ends_makes_room() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let (agent, answers) = held().await;
    let (caller, target) = bounded(&gateway, 2, agent).await;
    let mut first = in_progress(&gateway, &caller, &target).await;
    // Half of the places are the first caller's.
    let request = caller.calls(&target);
    assert_refused(&gateway.call(&request).await, "agent_busy");
    let second = in_progress(&gateway, &target, &target).await;
    let refused = gateway.call(&request).await;
    assert_refused(&refused, "agent_busy");
    assert_eq!(refused.json()["retry_after"], 1);
    assert_eq!(refused.json()["id"], "c-1");
    assert_eq!(refused.fact("limit").as_deref(), Some("2"));
    assert_eq!(target.agent.count(), 2, "a refused call reached the agent");
    assert_eq!(gateway.metric("a2a_gateway_target_permits", &[]).await, 2.0);
    // One is answered, the other left by its caller: both places are free.
    answers.add_permits(1);
    assert_eq!(first.answer().await.status, 200);
    drop(second);
    gateway.assert_idle().await;
    let again = [
        in_progress(&gateway, &caller, &target).await,
        in_progress(&gateway, &target, &target).await,
    ];
    answers.add_permits(2);
    for mut connection in again {
        assert_eq!(connection.answer().await.status, 200);
    }
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_makes_room_at_once() {
    let gateway = Gateway::start(Pair::Embedded).await;
    // Hangs at first, then answers.
    let calls = AtomicUsize::new(0);
    let agent = Agent::scripted(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => vec![Step::Hang],
        _ => vec![result()],
    });
    let (caller, target) = bounded(&gateway, 1, agent.await).await;
    let connection = in_progress(&gateway, &caller, &target).await;
    let request = caller.calls(&target);
    assert_refused(&gateway.call(&request).await, "agent_busy");
    drop(connection);
    gateway.assert_idle().await;
    assert_eq!(gateway.call(&request).await.status, 200);
    let cancelled = async || !target.agent.closed_by_gateway().is_empty();
    until_holds("the call is cancelled at the agent", cancelled).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_exchanges_than_the_gateway_takes_are_refused_on_every_route() {
    let gateway = Gateway::with("server.max_exchanges=2").await;
    let (agent, answers) = held().await;
    let (caller, target) = gateway.pair(agent).await;
    let running = [
        in_progress(&gateway, &caller, &target).await,
        in_progress(&gateway, &caller, &target).await,
    ];
    let request = caller.calls(&target);
    assert_refused(&gateway.call(&request).await, "overloaded");
    let control = Request::get("/workspaces/target");
    let refused = gateway.as_operator(control.clone()).await;
    assert_refused(&refused, "overloaded");
    answers.add_permits(3);
    for mut connection in running {
        assert_eq!(connection.answer().await.status, 200);
    }
    gateway.assert_idle().await;
    assert_eq!(gateway.call(&request).await.status, 200);
    assert_eq!(gateway.as_operator(control).await.status, 200);
    assert_eq!(target.agent.count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_connections_than_the_gateway_takes_are_refused_in_words() {
    // More than the set-up makes, one after the other: a connection counts until its end is seen.
    let max: usize = 6;
    let gateway = Gateway::with(&format!("server.max_connections={max}")).await;
    let (caller, target) = gateway.pair(answering().await).await;
    let request = caller.calls(&target);
    let open = RefCell::new(Vec::new());
    until_holds("all places are taken", async || {
        let mut connection = Connection::open(gateway.public).await;
        let is_open = connection.call(&request).await.status == 200;
        let mut open = open.borrow_mut();
        open.extend(is_open.then_some(connection));
        open.len() == max
    })
    .await;
    let mut open = open.into_inner();
    for _ in 0..20 {
        let mut refused = Connection::open(gateway.public).await;
        assert_refused(&refused.call(&request).await, "overloaded");
        assert!(refused.closed_within(Duration::from_secs(60)).await);
    }
    for connection in &mut open {
        let status = connection.call(&request).await.status;
        assert_eq!(status, 200, "who was there stays");
    }
    drop(open.pop());
    let is_free = async || gateway.call(&request).await.status == 200;
    until_holds("the place is free again", is_free).await;
}

fn assert_limited(answer: &Answer, limit: &str) {
    answer.refuses(429, "rate_limited");
    let wait: u64 = answer.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(answer.field("ratelimit-limit"), Some(limit), "{answer:?}");
    assert_eq!(answer.field("ratelimit-remaining"), Some("0"));
    assert_eq!(answer.field("ratelimit-reset"), answer.field("retry-after"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_that_asks_too_often_hears_when_to_come_back() {
    let gateway = Gateway::with("rate.caller_per_second=1 rate.caller_burst=3").await;
    // The operator has the same allowance, and uses it up here: what the harness does at once.
    let caller = paced_seat(&gateway, "caller").await;
    let target = paced_seat(&gateway, "target").await;
    let request = caller.calls(&target);
    let (answered, limited) = until_not(&gateway, &request, 200).await;
    // The registration was one of the three: it is of the same principal.
    assert!(answered >= 2, "the burst is 3, not {answered}");
    assert_limited(&limited, "3");
    let wait = limited.field("retry-after").unwrap();
    assert_eq!(limited.json()["retry_after"].to_string(), wait);
    let arrived = target.agent.count();
    assert_eq!(arrived, answered, "a refused call reached the agent");
    let wait = wait.parse().unwrap();
    let told = Instant::now() + Duration::from_secs(wait);
    loop {
        let asked = Instant::now();
        if gateway.call(&request).await.status == 200 {
            break;
        }
        assert!(asked < told, "as it was told");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The same allowance on the control plane, and another one for others.
    let own = Request::get("/workspaces/caller").bearer(&caller.token);
    let limited = until_found("it is used up", async || {
        let answer = gateway.call(&own).await;
        (answer.status != 200).then_some(answer)
    });
    assert_limited(&limited.await, "3");
    let other = Request::post(caller.path(), CALL).bearer(&target.token);
    assert_eq!(gateway.call(&other).await.status, 200);
}

/// How often the answer had this status, and the first answer that has not.
async fn until_not(gateway: &Gateway, request: &Request, status: u16) -> (usize, Answer) {
    for count in 0..50 {
        let answer = gateway.call(request).await;
        if answer.status != status {
            return (count, answer);
        }
    }
    panic!("no limit");
}

/// A seat made by an operator who waits when told to.
async fn paced_seat(gateway: &Gateway, id: &str) -> Seat {
    let agent = answering().await;
    let body = json!({"id": id, "name": id}).to_string();
    let create = Request::post("/workspaces", body);
    let created = until_found("a workspace", async || {
        let answer = gateway.as_operator(create.clone()).await;
        (answer.status == 201).then(|| answer.json())
    })
    .await;
    let (enrolment, url) = (created["enrolment_token"].as_str().unwrap(), agent.url());
    let token = gateway.register(id, enrolment, &url, card(id)).await;
    let id = id.to_owned();
    Seat { id, token, agent }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_refused_too_often_is_not_heard_for_a_moment() {
    let gateway = Gateway::with("rate.failures_per_second=2").await;
    let (caller, target) = gateway.pair(answering().await).await;
    let guess = Request::post(target.path(), CALL).bearer("a2aw_wrong");
    let (refused, limited) = until_not(&gateway, &guess, 401).await;
    assert!(refused >= 2, "two a second are allowed");
    assert_limited(&limited, "2");
    // Whoever proves who they are does not wait for those who cannot, on the same address.
    gateway.call(&caller.calls(&target)).await.has(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x_timeout_raises_the_clocks_of_one_request_up_to_the_most_there_is() {
    let clocks = "timeouts.total=700ms timeouts.head=600ms timeouts.max=15s";
    let gateway = Gateway::with(clocks).await;
    let (agent, answers) = held().await;
    let (caller, target) = gateway.pair(agent).await;
    let plain = caller.calls(&target);
    let ask = async |timeout: &str| {
        let request = plain.clone().field("X-Timeout", timeout);
        gateway.call(&request).await
    };
    let too_late = gateway.call(&plain).await;
    too_late.refuses(504, "agent_timeout");
    let late = async {
        target.agent.until_count(2).await;
        tokio::time::sleep(Duration::from_millis(900)).await;
        answers.add_permits(1);
    };
    tokio::join!(ask("15"), late).0.has(200);
    // A day is more than there is.
    let started = Instant::now();
    ask("86400").await.refuses(504, "agent_timeout");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(14_900), "{took:?}");
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_no_longer_for_its_connection_than_for_its_answer() {
    let gateway = Gateway::with("timeouts.connect=60s").await;
    let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
    // Takes the connection, and says nothing to the TLS that it is greeted with.
    let mute = Agent::scripted(|_| vec![Step::Hang]).await;
    let enrolment = gateway.create(json!({"id": "mute", "name": "mute"})).await;
    let url = format!("https://127.0.0.1:{}/", mute.port);
    let registered = gateway.register("mute", &enrolment, &url, card("mute"));
    registered.await;
    let request = Request::post("/workspaces/mute/a2a", CALL).bearer(&caller.token);
    for request in [request.clone(), request.field("Idempotency-Key", "once")] {
        let answer = gateway.call(&request.field("X-Timeout", "1")).await;
        let told = (answer.fact("clock"), answer.fact("delivered"));
        assert_eq!(answer.reason(), "agent_timeout", "{}", answer.text());
        assert_eq!(told, (Some("total".into()), Some("false".into())));
    }
    gateway.assert_idle().await;
}
