//! How the process ends: what runs is finished, what is new is refused, what is left hears why, and
//! nothing that was promised is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::harness::tls::{Secure, next};
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD,
    Seat, Step, chunk, ok_json, unnumbered, until_holds,
};
use crate::on_both_pairs;

/// The time after which an end counts as never. The drain of these gateways is longer, where it is not what ends them.
const SOON: Duration = Duration::from_secs(60);

/// A streaming call.
const STREAM: &str = r#"{"jsonrpc":"2.0","id":"s-1","method":"message/stream","params":{"message":{"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text","text":"hi"}]}}}"#;

/// An agent that works on each call until it gets a permit.
async fn worker(permits: &Arc<Semaphore>) -> Agent {
    let permits = Arc::clone(permits);
    Agent::scripted(move |request| {
        let streams = request.text().contains("message/stream");
        let mut steps = Vec::new();
        if streams {
            steps.push(Step::write(SSE_HEAD));
            steps.push(Step::write(chunk("data: {\"n\":1}\n\n")));
        }
        steps.push(Step::Held(Arc::clone(&permits)));
        if streams {
            steps.push(Step::write(chunk("data: {\"n\":2}\n\n")));
            steps.push(Step::write(LAST_CHUNK));
        } else {
            let body = r#"{"jsonrpc":"2.0","id":"c-1","result":"done"}"#;
            steps.push(Step::Write(ok_json(body)));
        }
        steps
    })
    .await
}

/// A gateway with a unary call and a stream in progress.
struct Busy {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
    unary: Connection,
    stream: Connection,
    permits: Arc<Semaphore>,
}

impl Busy {
    async fn new(drain: &str) -> Self {
        let gateway = draining_for(drain).start().await;
        let permits = Arc::new(Semaphore::new(0));
        let (caller, target) = gateway.pair(worker(&permits).await).await;
        let begin = async |body: &str, name: &str| {
            let mut connection = Connection::open(gateway.public).await;
            let request = caller.sends(&target, body).field("X-Request-Id", name);
            connection.ask(&request).await;
            connection
        };
        let unary = begin(CALL, "the-unary").await;
        let stream = begin(STREAM, "the-stream").await;
        target.agent.until_count(2).await;
        let streams = "a2a_gateway_open_streams";
        gateway.until_counted(streams, &[], 1.0).await;
        Self {
            gateway,
            caller,
            target,
            unary,
            stream,
            permits,
        }
    }

    /// What everyone sees from the signal on.
    async fn refuses_what_is_new(&self) {
        until_draining(&self.gateway).await;
        let health = self.gateway.admin_get("/healthz").await.unwrap();
        assert_eq!(health.status, 200);
        let late = self.caller.calls(&self.target);
        let late = late.field("X-Request-Id", "the-late");
        let control = Request::get("/workspaces/target").bearer(&self.caller.token);
        for request in [late, control] {
            let answer = self.gateway.call(&request).await;
            answer.refuses(503, "shutting_down");
            assert_eq!(answer.field("connection"), Some("close"), "{answer:?}");
        }
        self.recorded("the-late", "shutting_down").await;
        assert_eq!(self.target.agent.count(), 2, "the late call reached nobody");
    }

    /// One access line, with this outcome.
    async fn recorded(&self, name: &str, outcome: &str) {
        let lines = self.gateway.access_lines(name).await;
        assert_eq!(lines.len(), 1, "{name}: {lines:?}\n{}", self.gateway.log());
        assert_eq!(lines[0]["outcome"], outcome, "{name}: {}", lines[0]);
    }

    /// Each exchange that is left when the gateway ends hears why.
    async fn cut_in_words(&mut self) {
        assert_cut_in_words(&self.stream.answer().await);
        // Whether the agent does the work is unknown to nobody but the caller: it is told.
        let answer = self.unary.answer().await;
        answer.refuses(503, "shutting_down");
        assert_eq!(answer.fact("delivered").as_deref(), Some("true"));
        assert_eq!(answer.json()["id"], "c-1");
        assert_eq!(self.gateway.wait(SOON).code(), Some(0));
        self.recorded("the-unary", "shutting_down").await;
        self.recorded("the-stream", "shutting_down").await;
    }
}

fn draining_for(span: &str) -> Builder {
    let builder = Builder::new(Pair::Embedded).process();
    builder.set("server.drain", span)
}

async fn until_draining(gateway: &Gateway) {
    let draining = async || {
        let ready = gateway.admin_get("/readyz").await.unwrap();
        ready.status == 503 && ready.json()["draining"] == true
    };
    until_holds("the drain begins", draining).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_finishes_what_runs_refuses_what_is_new_and_ends_with_the_last() {
    for signal in ["TERM", "INT"] {
        let mut busy = Busy::new("10m").await;
        busy.gateway.signal(signal);
        busy.refuses_what_is_new().await;
        busy.permits.add_permits(2);
        let answer = busy.unary.answer().await.has(200);
        assert_eq!(answer.json()["result"], "done");
        let streamed = busy.stream.answer().await.unnumbered();
        assert!(streamed.whole);
        let events = ["data: {\"n\":1}\n\n", "data: {\"n\":2}\n\n"];
        assert_eq!(streamed.events(), events);
        assert_eq!(busy.gateway.wait(SOON).code(), Some(0), "nothing was left");
        busy.recorded("the-unary", "answered").await;
        busy.recorded("the-stream", "answered").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_gateway_ends_though_callers_keep_connections_and_finishes_a_change() {
    let mut gateway = draining_for("10m").start().await;
    let mut idle = Connection::open(gateway.public).await;
    let ask = Request::get("/workspaces").bearer(ADMIN);
    assert_eq!(idle.call(&ask).await.status, 200);
    let mut changing = Connection::open(gateway.public).await;
    let body = r#"{"id":"late","name":"late"}"#;
    let head = Request::post("/workspaces", "")
        .bearer(ADMIN)
        .field("Expect", "100-continue")
        .field("Content-Length", body.len().to_string());
    changing.ask(&head).await;
    assert_eq!(changing.read_head().await.unwrap().status, 100);
    gateway.terminate();
    until_draining(&gateway).await;
    changing.send(body.as_bytes()).await;
    changing.answer().await.has(201);
    assert_eq!(gateway.wait(SOON).code(), Some(0));
    assert!(idle.closed_within(SOON).await);
}

fn reason_of(event: &str) -> String {
    let json = event.strip_prefix("data: ").unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(json["id"], "s-1");
    let reason = json["error"]["data"][0]["reason"].as_str();
    reason.unwrap().to_owned()
}

fn assert_cut_in_words(streamed: &Answer) {
    assert!(streamed.whole, "closed cleanly");
    let events = streamed.clone().unnumbered().events();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0], "data: {\"n\":1}\n\n");
    assert_eq!(reason_of(&events[1]), "SHUTTING_DOWN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlasts_the_drain_hears_that_the_gateway_shuts_down() {
    let mut busy = Busy::new("2s").await;
    let began = Instant::now();
    busy.gateway.terminate();
    busy.cut_in_words().await;
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2), "the drain is used");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_sigterm_ends_at_once() {
    let mut busy = Busy::new("10m").await;
    busy.gateway.terminate();
    busy.refuses_what_is_new().await;
    busy.gateway.terminate();
    busy.cut_in_words().await;
}

/// Whoever keeps a connection hears at once that it should go elsewhere, and loses nothing that runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_hear_of_the_drain_when_it_begins() {
    let mut secure = Secure::start(draining_for("10m")).await;
    let agent = worker(&Arc::new(Semaphore::new(0))).await;
    let (caller, target) = secure.gateway.pair(agent).await;
    let mut idle = Connection::open(secure.gateway.public).await;
    let ask = Request::get("/workspaces/target").bearer(&caller.token);
    assert_eq!(idle.call(&ask).await.status, 200);
    let http2 = secure.http2().await;
    let call = caller.sends(&target, "");
    let mut begun = http2.begin(&call, false).await;
    begun.send(STREAM.as_bytes(), true).await;
    let (head, mut body) = begun.head().await.expect("a head");
    assert_eq!(head.status, 200);
    let first = next_text(&mut body).await;
    assert_eq!(unnumbered(&first).0, "data: {\"n\":1}\n\n");
    secure.gateway.terminate();
    let told = http2.told_to_leave().await;
    assert!(told.is_go_away() && told.is_remote(), "{told}");
    assert_eq!(told.reason(), Some(h2::Reason::NO_ERROR));
    assert!(idle.closed_within(SOON).await, "nothing runs on it");
    // The stream goes on until the drain is over, here by a second signal.
    secure.gateway.terminate();
    let all = unnumbered(&(first + &next_text(&mut body).await)).0;
    let last = all.split("\n\n").nth(1).expect("two events");
    assert_eq!(reason_of(last), "SHUTTING_DOWN");
    assert!(next(&mut body).await.is_none(), "ended in order");
    assert_eq!(secure.gateway.wait(SOON).code(), Some(0));
}

async fn next_text(body: &mut h2::RecvStream) -> String {
    let piece = next(body).await.expect("an event").expect("whole");
    String::from_utf8(piece.to_vec()).expect("text")
}

on_both_pairs! {
    async fn sigkill_loses_no_token_no_revocation_and_no_registration(pair: Pair) {
        let mut gateway = Gateway::process(pair).await;
        let (caller, target) = gateway.pair(Agent::json("{}").await).await;
        let tokens = format!("/workspaces/{}/tokens", caller.id);
        let mut made = Vec::new();
        for _ in 0..2 {
            let request = Request::post(tokens.as_str(), "").bearer(&caller.token);
            made.push(gateway.call(&request).await.has(201).json());
        }
        let gone = format!("{tokens}/{}", made[1]["id"].as_str().unwrap());
        let gone = Request::new("DELETE", gone).bearer(&caller.token);
        assert_eq!(gateway.call(&gone).await.status, 200);
        let enrolment = gateway.create(serde_json::json!({"id": "late", "name": "late"})).await;
        // The last thing it says is on disk.
        gateway.restart().await;
        for (token, status) in [
            (caller.token.as_str(), 200),
            (made[0]["token"].as_str().unwrap(), 200),
            (made[1]["token"].as_str().unwrap(), 401),
        ] {
            let call = Request::post(target.path(), CALL).bearer(token);
            gateway.call(&call).await.has(status);
        }
        let agent = Agent::json("{}").await;
        let late = crate::harness::card("late");
        let token = gateway.register("late", &enrolment, &agent.url(), late).await;
        let to_itself = Request::post("/workspaces/late/a2a", CALL).bearer(&token);
        assert_eq!(gateway.call(&to_itself).await.status, 200);
    }
}
