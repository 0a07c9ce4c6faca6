//! How much an agent takes: breaker, learned limit, queue, and calls that wait for an agent that is started again.

mod waits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::explain::{explain, step};
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, Seat, Step, Stores,
    card, ok_json, sse, until_holds,
};

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
/// It answers when the case lets it.
const HELD: u8 = 8;

/// The text of calls that the agent answers, however it misbehaves.
const FINE: &str = "a-short-question";

fn status(line: &str) -> Vec<Step> {
    let answer = format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n");
    vec![Step::write(answer)]
}

fn behave(how: u8, places: &Arc<Semaphore>) -> Vec<Step> {
    match how {
        HANGS => vec![Step::Hang],
        UNAVAILABLE => status("503 Down"),
        NOT_FOUND => status("404 Not Found"),
        BREAKS_HTTP => vec![Step::write("hello\r\n\r\n"), Step::Close],
        RESETS => vec![Step::Reset],
        CUTS_STREAMS => sse("data: {}\n\n", Step::Close),
        A2A_ERROR => vec![Step::Write(ok_json(ERROR))],
        HELD => vec![Step::Held(Arc::clone(places)), Step::Write(ok_json(OK))],
        _ => vec![Step::Write(ok_json(OK))],
    }
}

/// An agent with a switch, and its gateway.
struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
    how: Arc<AtomicU8>,
    places: Arc<Semaphore>,
}

/// No clock ends while a case runs, unless it sets one.
fn builder(pair: Pair) -> Builder {
    patient(Builder::new(pair))
}

fn patient(builder: Builder) -> Builder {
    let builder = builder.sets("breaker.open=10m breaker.open_max=10m upstream.hold=0s");
    builder.sets("timeouts.head=10m timeouts.total=10m")
}

impl Case {
    async fn start(builder: Builder) -> Self {
        let how = Arc::new(AtomicU8::new(GOOD));
        let places = Arc::new(Semaphore::new(0));
        let (switch, held) = (Arc::clone(&how), Arc::clone(&places));
        let agent = Agent::scripted(move |request| {
            let is_good = String::from_utf8_lossy(&request.body).contains(FINE);
            let how = switch.load(Ordering::SeqCst);
            behave(if is_good { GOOD } else { how }, &held)
        });
        let (agent, gateway) = (agent.await, builder.start().await);
        let (caller, target) = gateway.pair(agent).await;
        Self {
            gateway,
            caller,
            target,
            how,
            places,
        }
    }

    fn set(&self, how: u8) {
        self.how.store(how, Ordering::SeqCst);
    }

    async fn call(&self) -> Answer {
        let request = self.caller.calls(&self.target);
        self.gateway.call(&request).await
    }

    async fn as_operator(&self) -> Answer {
        let call = Request::post(self.target.path(), CALL);
        self.gateway.as_operator(call).await
    }

    /// A call on its way, on a connection of its own.
    async fn sent(&self) -> Connection {
        let mut connection = Connection::open(self.gateway.public).await;
        connection.ask(&self.caller.calls(&self.target)).await;
        connection
    }

    async fn until_answered(&self) {
        let is_answered = async || self.call().await.status == 200;
        until_holds("a call passes", is_answered).await;
    }

    async fn beat(&self, at: &Gateway) {
        let beat = json!({"workspace_id": self.target.id}).to_string();
        let beat = Request::post("/registry/heartbeat", beat).bearer(&self.target.token);
        assert_eq!(at.call(&beat).await.status, 200);
    }

    async fn breaker(&self) -> String {
        let explained = explain(&self.gateway, &self.caller.id, &self.target.id).await;
        let fact = &step(&explained, "slots")["fact"];
        let Some(breaker) = fact["breaker"].as_str() else {
            panic!("none in {fact:#}");
        };
        breaker.to_owned()
    }
}

fn assert_busy(answer: &Answer) {
    answer.refuses(503, "agent_busy");
}

fn assert_open(answer: &Answer) {
    assert_busy(answer);
    assert_eq!(answer.fact("breaker").as_deref(), Some("open"));
    let after: u64 = answer.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=601).contains(&after), "{after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_agent_is_left_alone_and_tried_by_one_call_at_a_time() {
    for how in [HANGS, UNAVAILABLE, BREAKS_HTTP, RESETS, CUTS_STREAMS] {
        let head = if how == HANGS { "300ms" } else { "10m" };
        let case = Case::start(builder(Pair::Embedded).set("timeouts.head", head)).await;
        case.set(how);
        for _ in 0..5 {
            let answer = case.call().await;
            let is_busy = answer.text().contains("agent_busy");
            assert!(!is_busy, "{how}: {}", answer.text());
        }
        let opened = async || {
            let name = "a2a_gateway_breaker_opened_total";
            case.gateway.metric(name, &[]).await
        };
        // A call counts after its answer.
        until_holds("it is open", async || opened().await == 1.0).await;
        let before = case.target.agent.count();
        for answer in join_all((0..20).map(|_| case.call())).await {
            assert_open(&answer);
        }
        assert_eq!(case.target.agent.count(), before, "{how}: nothing is sent");
        if how == HANGS {
            // The clock of its head would end the call that tries, too.
            continue;
        }
        case.set(HELD);
        case.beat(&case.gateway).await;
        let others = async {
            case.target.agent.until_count(before + 1).await;
            for answer in join_all((0..20).map(|_| case.call())).await {
                assert_busy(&answer);
            }
            assert_eq!(case.target.agent.count(), before + 1, "{how}: one tries");
            case.places.add_permits(2);
        };
        tokio::join!(case.until_answered(), others);
        assert_eq!(case.call().await.status, 200, "{how}: closed");
        let open = case.gateway.metric("a2a_gateway_breakers_open", &[]).await;
        assert_eq!((open, opened().await), (0.0, 1.0), "{how}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_caller_closes_the_way_for_itself_and_two_for_all() {
    for how in [UNAVAILABLE, CUTS_STREAMS] {
        let case = Case::start(builder(Pair::Embedded)).await;
        let other = case.gateway.seat("other", "", Agent::json(OK).await).await;
        let fine = CALL.replace("\"hi\"", &format!("\"{FINE}\""));
        let asks = async |caller: &Seat, text: &str| {
            let call = caller.sends(&case.target, text);
            case.gateway.call(&call).await
        };
        assert_eq!(asks(&other, &fine).await.status, 200);
        case.set(how);
        // They end together, after as many as are in progress.
        join_all((0..8).map(|_| asks(&case.caller, CALL))).await;
        // Fewer are sent if the agent's limit is learned meanwhile.
        let opens = async || {
            asks(&case.caller, CALL).await;
            case.breaker().await == "open"
        };
        until_holds("open to the one", opens).await;
        let before = case.target.agent.count();
        assert_open(&asks(&case.caller, &fine).await);
        assert_eq!(case.target.agent.count(), before, "{how}: nothing is sent");
        for _ in 0..3 {
            let answer = asks(&other, &fine).await;
            assert_eq!(answer.status, 200, "{how}: {}", answer.text());
        }
        let explained = explain(&case.gateway, "other", &case.target.id).await;
        let fact = &step(&explained, "slots")["fact"];
        assert_eq!(fact["breaker"], "closed", "{how}");
        let open = async || case.gateway.metric("a2a_gateway_breakers_open", &[]).await;
        assert_eq!(open().await, 0.0, "{how}: the agent is well");
        let third = case.gateway.seat("third", "", Agent::json(OK).await).await;
        for caller in [&other, &third, &other, &third, &other] {
            asks(caller, CALL).await;
        }
        until_holds("the agent is known to fail", async || open().await > 0.0).await;
        let before = case.target.agent.count();
        let fourth = Request::post(case.target.path(), fine);
        assert_open(&case.gateway.as_operator(fourth).await);
        assert_eq!(case.target.agent.count(), before, "{how}: nothing is sent");
    }
}

#[tokio::test]
async fn what_is_no_failure_of_the_agent_opens_nothing() {
    let case = Case::start(builder(Pair::Embedded)).await;
    for how in [A2A_ERROR, NOT_FOUND] {
        case.set(how);
        for _ in 0..30 {
            case.call().await;
        }
        assert_eq!(case.breaker().await, "closed", "{how}");
    }
    case.set(HANGS);
    let leaving = join_all((0..30).map(|_| case.sent())).await;
    case.target.agent.until_count(90).await;
    drop(leaving);
    case.gateway.assert_idle().await;
    let hasty = case.caller.calls(&case.target).field("X-Timeout", "1");
    for answer in join_all((0..10).map(|_| case.gateway.call(&hasty))).await {
        assert_eq!(answer.reason(), "agent_timeout");
    }
    let breaker = case.breaker().await;
    assert_eq!(breaker, "closed", "callers that leave or hurry");
}

#[tokio::test]
async fn a_workspace_of_assumed_liveness_is_degraded_while_its_breaker_is_open() {
    let brief = "breaker.open=1s breaker.open_max=1s";
    let case = Case::start(builder(Pair::Embedded).sets(brief)).await;
    let agent = Agent::json(OK).await;
    let gateway = &case.gateway;
    let outsider = json!({"id": "out", "name": "out", "liveness": "assumed", "url": agent.url()});
    gateway.create(outsider).await;
    let status = async || gateway.view("out").await["status"].clone();
    let port = agent.port;
    drop(agent);
    let call = Request::post("/workspaces/out/a2a", CALL);
    for _ in 0..5 {
        let refused = gateway.as_operator(call.clone()).await;
        assert_eq!(refused.reason(), "agent_unreachable");
        assert_eq!(refused.fact("delivered").as_deref(), Some("false"));
    }
    assert_eq!(status().await, "degraded");
    let explained = explain(gateway, "operator", "out").await;
    let fact = &step(&explained, "slots")["fact"];
    assert_ne!(fact["breaker"], "closed");
    assert_eq!(fact["breaker_cause"], "connect");
    assert_eq!(fact["last_failure"]["cause"], "connect");
    assert!(fact["last_failure"]["failures_in_a_row"].as_u64() > Some(1));
    let ok = |_: &_| vec![Step::Write(ok_json(OK))];
    let _agent = Agent::scripted_at(&format!("127.0.0.1:{port}"), ok).await;
    let passes = async || gateway.as_operator(call.clone()).await.status == 200;
    until_holds("the breaker lets a call try", passes).await;
    assert_eq!(status().await, "online");
    let explained = explain(gateway, "operator", "out").await;
    let fact = &step(&explained, "slots")["fact"];
    assert_eq!(fact["last_failure"], json!(null));
}

#[tokio::test]
async fn a_heartbeat_at_another_replica_lets_one_call_try() {
    let stores = Stores::start();
    let builder = || patient(stores.builder());
    let (case, other) = tokio::join!(Case::start(builder()), builder().start());
    case.set(UNAVAILABLE);
    for _ in 0..5 {
        case.call().await;
    }
    assert_eq!(case.breaker().await, "open");
    case.set(GOOD);
    case.beat(&other).await;
    case.until_answered().await;
    assert_eq!(case.breaker().await, "closed");
}

/// An agent that closes each connection behind its answer, and is gone when it is dropped.
async fn brief(address: &str) -> Agent {
    let once = |_: &_| vec![Step::Write(ok_json(OK)), Step::Close];
    Agent::scripted_at(address, once).await
}

/// Waits until so many calls wait for their agents.
async fn until_held(gateway: &Gateway, calls: f64) {
    let held = async || gateway.metric("a2a_gateway_held_calls", &[]).await == calls;
    until_holds("calls wait for their agent", held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_an_agent_is_not_seen_by_its_callers() {
    let builder = builder(Pair::Embedded).set("upstream.hold", "10m");
    let gateway = builder.start().await;
    let (caller, target) = gateway.pair(brief("127.0.0.1:0").await).await;
    let call = caller.calls(&target);
    assert_eq!(gateway.call(&call).await.status, 200);
    let (id, token, port) = (target.id, target.token, target.agent.port);
    drop(target.agent);
    let calls = join_all((0..20).map(|_| gateway.call(&call)));
    let back = async {
        until_held(&gateway, 20.0).await;
        brief(&format!("127.0.0.1:{port}")).await
    };
    let (answers, agent) = tokio::join!(calls, back);
    for answer in answers {
        answer.has(200);
    }
    assert_eq!(agent.count(), 20, "each call once");
    assert!(agent.connections() <= 20 + 3, "{}", agent.connections());
    // Its next life is elsewhere.
    drop(agent);
    let moved = async {
        until_held(&gateway, 1.0).await;
        let agent = brief("127.0.0.1:0").await;
        let body = json!({"id": id, "url": agent.url(), "agent_card": card(&id)});
        let body = Request::post("/registry/register", body.to_string()).bearer(&token);
        assert_eq!(gateway.call(&body).await.status, 200);
        agent
    };
    let (answer, agent) = tokio::join!(gateway.call(&call), moved);
    answer.has(200);
    assert_eq!(agent.count(), 1);
    let connected = ["outcome=\"connected\""];
    let held = gateway.metric("a2a_gateway_hold_total", &connected).await;
    assert_eq!(held, 21.0);
    until_held(&gateway, 0.0).await;
}

#[tokio::test]
async fn a_call_that_waits_does_not_reach_what_is_at_the_address_by_then() {
    let builder = builder(Pair::Embedded).set("upstream.hold", "10m");
    let gateway = builder.start().await;
    let (caller, target) = gateway.pair(brief("127.0.0.1:0").await).await;
    let call = caller.calls(&target);
    let (id, port) = (target.id, target.agent.port);
    drop(target.agent);
    let heir = async {
        until_held(&gateway, 1.0).await;
        let removed = Request::new("DELETE", format!("/workspaces/{id}"));
        let removed = gateway.as_operator(removed).await;
        assert!(removed.status < 300, "{}", removed.text());
        brief(&format!("127.0.0.1:{port}")).await
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
    let head = Request::new("HEAD", tasks).bearer(ADMIN);
    for _ in 0..3 {
        case.call().await;
        let mut connection = Connection::open(case.gateway.public).await;
        connection.ask(&head).await;
        assert_eq!(connection.read_head().await.unwrap().status, 503);
    }
    assert_eq!(case.breaker().await, "open", "HEAD is no success");
    let case = Case::start(builder(Pair::Embedded).set("timeouts.total", "1s")).await;
    case.set(HANGS);
    let call = case.caller.calls(&case.target);
    let wire = call.field("Expect", "100-continue").wire("localhost");
    let (start, body) = wire.split_at(wire.len() - CALL.len());
    // The caller takes more than a tenth of the time to send the body. It runs once the gateway asks for it.
    let dawdle = async || {
        let mut connection = Connection::open(case.gateway.public).await;
        connection.send(start).await;
        if connection.read_head().await.unwrap().status != 100 {
            // The time was over before.
            return;
        }
        sleep(Duration::from_millis(200)).await;
        connection.send(body).await;
        assert_ne!(connection.answer().await.status, 200);
    };
    let eight_arrived = async || {
        join_all((0..8).map(|_| dawdle())).await;
        case.target.agent.count() >= 8
    };
    until_holds("the calls reach the agent", eight_arrived).await;
    let breaker = case.breaker().await;
    assert_eq!(breaker, "closed", "a slow caller opens nothing");
}
