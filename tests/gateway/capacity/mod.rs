//! How much an agent takes: breaker, learned limit, queue, and calls that wait for an agent that is started again.

mod waits;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::sleep;

use crate::explain::{explain, step};
use crate::harness::servers::{self, Redis};
use crate::harness::{
    Agent, Answer, Builder, CALL, Gateway, Pair, Request, SSE_HEAD, Seat, Step, card, chunk,
    ok_json, until_holds,
};
use crate::on_both_pairs;

const OK: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"message","messageId":"r","role":"agent","parts":[]}}"#;
const ERROR: &str = r#"{"jsonrpc":"2.0","id":"c-1","error":{"code":-32603,"message":"no"}}"#;

/// The ways in which an agent misbehaves, and those that are none.
const GOOD: u8 = 0;
const HANGS: u8 = 1;
const UNAVAILABLE: u8 = 2;
const BREAKS_HTTP: u8 = 3;
const RESETS: u8 = 4;
const CUTS_STREAMS: u8 = 5;
const A2A_ERROR: u8 = 6;
const NOT_FOUND: u8 = 7;
const SLOW: u8 = 8;

/// The text of calls that the agent answers, however it misbehaves.
const FINE: &str = "a-short-question";

fn status(line: &str) -> Vec<Step> {
    vec![Step::write(format!(
        "HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n"
    ))]
}

fn behave(how: u8) -> Vec<Step> {
    match how {
        HANGS => vec![Step::Hang],
        UNAVAILABLE => status("503 Down"),
        NOT_FOUND => status("404 Not Found"),
        BREAKS_HTTP => vec![Step::write("hello\r\n\r\n"), Step::Close],
        RESETS => vec![Step::Reset],
        CUTS_STREAMS => vec![
            Step::write(SSE_HEAD),
            Step::Write(chunk("data: {}\n\n")),
            Step::Close,
        ],
        A2A_ERROR => vec![Step::Write(ok_json(ERROR))],
        SLOW => vec![
            Step::Wait(Duration::from_millis(150)),
            Step::Write(ok_json(OK)),
        ],
        _ => vec![Step::Write(ok_json(OK))],
    }
}

/// An agent with a switch, and its gateway.
struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
    how: Arc<AtomicU8>,
    /// When the agent got each call.
    times: Arc<Mutex<Vec<Instant>>>,
}

fn builder(pair: Pair) -> Builder {
    Builder::new(pair)
        .set("breaker.open", "2s")
        .set("breaker.open_max", "2s")
        .set("timeouts.head", "300ms")
        .set("upstream.hold", "0s")
        .set("rate.caller_per_second", "0")
}

impl Case {
    async fn start(builder: Builder) -> Self {
        let how = Arc::new(AtomicU8::new(GOOD));
        let switch = Arc::clone(&how);
        let times = Arc::new(Mutex::new(Vec::new()));
        let arrived = Arc::clone(&times);
        let agent = Agent::scripted(move |request| {
            arrived.lock().unwrap().push(Instant::now());
            let is_good = String::from_utf8_lossy(&request.body).contains(FINE);
            behave(if is_good {
                GOOD
            } else {
                switch.load(Ordering::SeqCst)
            })
        });
        let (agent, gateway) = (agent.await, builder.start().await);
        let (caller, target) = gateway.pair(agent).await;
        Self {
            times,
            gateway,
            caller,
            target,
            how,
        }
    }

    fn set(&self, how: u8) {
        self.how.store(how, Ordering::SeqCst);
    }

    async fn call(&self) -> Answer {
        self.gateway
            .call(&request(&self.caller, &self.target.id))
            .await
    }

    /// Calls until the agent answers.
    async fn until_answered(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.call().await.status != 200 {
            assert!(Instant::now() < until, "the breaker stays open");
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn breaker(&self) -> String {
        let explained = explain(&self.gateway, &self.caller.id, &self.target.id).await;
        let fact = &step(&explained, "slots")["fact"];
        let breaker = fact["breaker"].as_str();
        breaker
            .unwrap_or_else(|| panic!("none in {fact:#}"))
            .to_owned()
    }
}

fn request(caller: &Seat, target: &str) -> Request {
    Request::post(format!("/workspaces/{target}/a2a"), CALL).bearer(&caller.token)
}

fn assert_open(answer: &Answer) {
    assert_open_for(answer, 2);
}

fn assert_open_for(answer: &Answer, seconds: u64) {
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (503, "agent_busy")
    );
    assert_eq!(answer.fact("breaker").as_deref(), Some("open"));
    let after: u64 = answer.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=seconds + 1).contains(&after), "{after}");
}

on_both_pairs! {
    async fn a_failing_agent_is_left_alone_and_tried_by_one_call_at_a_time(pair: Pair) {
        for how in [HANGS, UNAVAILABLE, BREAKS_HTTP, RESETS, CUTS_STREAMS] {
            let case = Case::start(builder(pair)).await;
            case.set(how);
            for _ in 0..5 {
                let answer = case.call().await;
                let is_busy = answer.text().contains("agent_busy");
                assert!(!is_busy, "{how}: {}", answer.text());
            }
            let before = case.target.agent.count();
            for answer in join_all((0..20).map(|_| case.call())).await {
                assert_open(&answer);
            }
            assert_eq!(case.target.agent.count(), before, "{how}: nothing is sent");
            case.set(SLOW);
            join_all((0..20).map(|_| case.until_answered())).await;
            let times = case.times.lock().unwrap().clone();
            let alone = times[before + 1] - times[before];
            assert!(alone > Duration::from_millis(140), "{how}: one call tries: {alone:?}");
            assert_eq!(case.call().await.status, 200, "{how}: closed");
            assert_eq!(case.gateway.metric("a2a_gateway_breakers_open", &[]).await, 0.0);
            let opened = case.gateway.metric("a2a_gateway_breaker_opened_total", &[]).await;
            assert!((opened - 1.0).abs() < f64::EPSILON, "{how}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_caller_closes_the_way_for_itself_and_two_for_all() {
    for how in [HANGS, UNAVAILABLE, CUTS_STREAMS] {
        let builder = builder(Pair::Embedded);
        let builder = builder
            .set("breaker.open", "50s")
            .set("breaker.open_max", "50s");
        let case = Case::start(builder).await;
        let other = case.gateway.seat("other", "", Agent::json(OK).await).await;
        let fine = CALL.replace("\"hi\"", &format!("\"{FINE}\""));
        let asks = async |caller: &Seat, text: &str| {
            let call = Request::post(case.target.path(), text);
            case.gateway.call(&call.bearer(&caller.token)).await
        };
        assert_eq!(asks(&other, &fine).await.status, 200);
        case.set(how);
        // They end together, after as many as are in progress.
        join_all((0..8).map(|_| asks(&case.caller, CALL))).await;
        let before = case.target.agent.count();
        assert_open_for(&asks(&case.caller, &fine).await, 50);
        assert_eq!(case.target.agent.count(), before, "{how}: nothing is sent");
        assert_eq!(case.breaker().await, "open", "{how}: to the one");
        for _ in 0..3 {
            let answer = asks(&other, &fine).await;
            assert_eq!(answer.status, 200, "{how}: {}", answer.text());
        }
        let explained = explain(&case.gateway, "other", &case.target.id).await;
        assert_eq!(
            step(&explained, "slots")["fact"]["breaker"],
            "closed",
            "{how}"
        );
        let open = async || case.gateway.metric("a2a_gateway_breakers_open", &[]).await;
        assert_eq!(open().await, 0.0, "{how}: the agent is well");
        let third = case.gateway.seat("third", "", Agent::json(OK).await).await;
        for caller in [&other, &third, &other, &third, &other] {
            asks(caller, CALL).await;
        }
        let before = case.target.agent.count();
        let fourth = case
            .gateway
            .as_operator(Request::post(case.target.path(), fine));
        assert_open_for(&fourth.await, 50);
        assert_eq!(case.target.agent.count(), before, "{how}: nothing is sent");
        until_holds("the agent is known to fail", async || open().await > 0.0).await;
    }
}

#[tokio::test]
async fn what_is_no_failure_of_the_agent_opens_nothing() {
    let case = Case::start(builder(Pair::Embedded).set("timeouts.head", "5s")).await;
    for how in [A2A_ERROR, NOT_FOUND] {
        case.set(how);
        for _ in 0..30 {
            case.call().await;
        }
        assert_eq!(case.breaker().await, "closed", "{how}");
    }
    case.set(HANGS);
    let mut leaving = Vec::new();
    for _ in 0..30 {
        let mut connection = crate::harness::Connection::open(case.gateway.public).await;
        let call = request(&case.caller, &case.target.id).wire("localhost");
        connection.send(&call).await;
        leaving.push(connection);
    }
    while case.target.agent.count() < 90 {
        sleep(Duration::from_millis(10)).await;
    }
    drop(leaving);
    case.gateway.assert_idle().await;
    for _ in 0..10 {
        let hasty = request(&case.caller, &case.target.id).field("X-Timeout", "1");
        assert_eq!(case.gateway.call(&hasty).await.reason(), "agent_timeout");
    }
    assert_eq!(
        case.breaker().await,
        "closed",
        "callers that leave or hurry"
    );
}

#[tokio::test]
async fn a_workspace_of_assumed_liveness_is_degraded_while_its_breaker_is_open() {
    let case = Case::start(builder(Pair::Embedded)).await;
    let agent = Agent::json(OK).await;
    let gateway = &case.gateway;
    let outsider = json!({"id": "out", "name": "out", "liveness": "assumed", "url": agent.url()});
    gateway.create(outsider).await;
    let status = async || {
        let view = gateway.as_operator(Request::get("/workspaces/out")).await;
        view.json()["status"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let port = agent.port;
    drop(agent);
    for _ in 0..5 {
        let refused = gateway
            .as_operator(Request::post("/workspaces/out/a2a", CALL))
            .await;
        assert_eq!(refused.reason(), "agent_unreachable");
        assert_eq!(refused.fact("delivered").as_deref(), Some("false"));
    }
    assert_eq!(status().await, "degraded");
    let explained = explain(gateway, "operator", "out").await;
    let fact = &step(&explained, "slots")["fact"];
    assert_eq!(
        (&fact["breaker"], &fact["breaker_cause"]),
        (&json!("open"), &json!("connect"))
    );
    assert_eq!(fact["last_failure"]["cause"], "connect");
    assert!(fact["last_failure"]["failures_in_a_row"].as_u64() > Some(1));
    let ok = |_: &_| vec![Step::Write(ok_json(OK))];
    let _agent = Agent::scripted_at(&format!("127.0.0.1:{port}"), ok).await;
    let call = Request::post("/workspaces/out/a2a", CALL);
    until_holds("the breaker lets a call try", async || {
        gateway.as_operator(call.clone()).await.status == 200
    })
    .await;
    let answer = gateway
        .as_operator(Request::post("/workspaces/out/a2a", CALL))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(status().await, "online");
    let explained = explain(gateway, "operator", "out").await;
    let fact = &step(&explained, "slots")["fact"];
    assert_eq!(fact["last_failure"], json!(null));
}

#[tokio::test]
async fn a_heartbeat_at_another_replica_lets_one_call_try() {
    let (redis, sql) = (Redis::start(), servers::postgres().database());
    let builder = || {
        builder(Pair::Embedded)
            .stores(&sql, &redis.url())
            .set("breaker.open", "50s")
            // A slow machine must not fail the one call that tries.
            .set("timeouts.head", "10s")
    };
    let case = Case::start(builder().set("breaker.open_max", "60s")).await;
    let other = builder().set("breaker.open_max", "60s").start().await;
    case.set(UNAVAILABLE);
    for _ in 0..5 {
        case.call().await;
    }
    assert_eq!(case.breaker().await, "open");
    case.set(GOOD);
    let beat = json!({"workspace_id": case.target.id}).to_string();
    let beat = Request::post("/registry/heartbeat", beat).bearer(&case.target.token);
    assert_eq!(other.call(&beat).await.status, 200);
    let until = Instant::now() + Duration::from_secs(10);
    while case.call().await.status != 200 {
        assert!(Instant::now() < until, "it is tried within some seconds");
        sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(case.breaker().await, "closed");
}

/// An agent at its port, back after a while.
async fn back_at(port: u16, after: Duration) -> Agent {
    sleep(after).await;
    let ok = |_: &_| vec![Step::Write(ok_json(OK))];
    Agent::scripted_at(&format!("127.0.0.1:{port}"), ok).await
}

on_both_pairs! {
    async fn a_restart_of_an_agent_is_not_seen_by_its_callers(pair: Pair) {
        let builder = Builder::new(pair).set("rate.caller_per_second", "0");
        let gateway = builder.start().await;
        let (caller, target) = gateway.pair(Agent::json(OK).await).await;
        let call = request(&caller, &target.id);
        assert_eq!(gateway.call(&call).await.status, 200);
        let (id, token, port) = (target.id, target.token, target.agent.port);
        drop(target.agent);
        // Its connections close a moment later.
        sleep(Duration::from_millis(200)).await;
        let calls = join_all((0..20).map(|_| gateway.call(&call)));
        let (answers, agent) = tokio::join!(calls, back_at(port, Duration::from_millis(900)));
        for answer in answers {
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        assert_eq!(agent.count(), 20, "each call once");
        assert!(agent.connections() <= 20 + 3, "{}", agent.connections());
        // Its next life is elsewhere.
        drop(agent);
        sleep(Duration::from_millis(200)).await;
        let moved = async {
            sleep(Duration::from_millis(500)).await;
            let agent = Agent::json(OK).await;
            let body = json!({"id": id, "url": agent.url(), "agent_card": card(&id)});
            let body = Request::post("/registry/register", body.to_string()).bearer(&token);
            assert_eq!(gateway.call(&body).await.status, 200);
            agent
        };
        let (answer, agent) = tokio::join!(gateway.call(&call), moved);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(agent.count(), 1);
        let held = gateway.metric("a2a_gateway_hold_total", &["outcome=\"connected\""]).await;
        assert!(held >= 21.0, "{held}");
        assert_eq!(gateway.metric("a2a_gateway_held_calls", &[]).await, 0.0);
    }
}

#[tokio::test]
async fn a_call_that_waits_does_not_reach_what_is_at_the_address_by_then() {
    let builder = Builder::new(Pair::Embedded).set("upstream.hold", "5s");
    let gateway = builder.start().await;
    let (caller, target) = gateway.pair(Agent::json(OK).await).await;
    let (id, port) = (target.id, target.agent.port);
    drop(target.agent);
    sleep(Duration::from_millis(200)).await;
    let call = request(&caller, &id);
    let heir = async {
        sleep(Duration::from_millis(300)).await;
        let removed = Request::new("DELETE", format!("/workspaces/{id}"));
        let removed = gateway.as_operator(removed).await;
        assert!(removed.status < 300, "{}", removed.text());
        back_at(port, Duration::ZERO).await
    };
    let (answer, heir) = tokio::join!(gateway.call(&call), heir);
    assert!([403, 410].contains(&answer.status), "{}", answer.text());
    assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
    assert_eq!(heir.count(), 0);
}

#[tokio::test]
async fn statuses_count_whatever_the_method_and_whoever_waits() {
    let case = Case::start(builder(Pair::Embedded)).await;
    case.set(UNAVAILABLE);
    let tasks = format!("/workspaces/{}/a2a/tasks/none", case.target.id);
    for _ in 0..3 {
        case.call().await;
        let head = Request::new("HEAD", tasks.clone()).bearer(crate::harness::ADMIN);
        let mut connection = crate::harness::Connection::open(case.gateway.public).await;
        connection.send(&head.wire("localhost")).await;
        assert_eq!(connection.read_head().await.unwrap().status, 503);
    }
    assert_eq!(case.breaker().await, "open", "HEAD is no success");
    let case = Case::start(builder(Pair::Embedded).set("timeouts.total", "2s")).await;
    case.set(SLOW);
    for _ in 0..8 {
        // The caller takes most of its own time to send the body.
        let call = request(&case.caller, &case.target.id).field("X-Timeout", "1");
        let wire = call.wire("localhost");
        let (start, rest) = wire.split_at(wire.len() - 1);
        let mut connection = crate::harness::Connection::open(case.gateway.public).await;
        connection.send(start).await;
        sleep(Duration::from_millis(950)).await;
        connection.send(rest).await;
        assert_ne!(connection.answer().await.status, 200);
    }
    assert_eq!(
        case.breaker().await,
        "closed",
        "a slow caller opens nothing"
    );
}
