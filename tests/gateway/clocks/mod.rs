//! Agents that misbehave: each exchange ends with the contract's reason, the upstream connection closed, no slot
//! leaked, exactly one record, and exactly one request at the agent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::harness::{
    Agent, Answer, CALL, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Seat, Step,
    chunk, ok_json, sse, until_holds,
};

mod connections;

const EVENT: &str = "data: {\"n\":1}\n\n";

/// A gateway, and an agent that plays one script after the other.
struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
    script: Arc<Mutex<Vec<Step>>>,
    /// The calls so far, by outcome.
    outcomes: Mutex<HashMap<String, f64>>,
}

impl Case {
    /// A gateway whose clocks do not end while a case runs, but for those that are given.
    async fn new(sets: &str) -> Self {
        let patient = "timeouts.head=10m timeouts.idle=10m timeouts.total=10m timeouts.stream=10m \
                       stream.final_grace=10m breaker.failures=0 breaker.ratio=0";
        let gateway = Gateway::with(&format!("{patient} {sets}")).await;
        let script = Arc::new(Mutex::new(Vec::new()));
        let played = Arc::clone(&script);
        let agent = Agent::scripted(move |_| played.lock().unwrap().clone());
        let (caller, target) = gateway.pair(agent.await).await;
        Self {
            gateway,
            caller,
            target,
            script,
            outcomes: Mutex::default(),
        }
    }

    fn calls(&self) -> usize {
        self.target.agent.count()
    }

    fn play(&self, script: Vec<Step>) {
        *self.script.lock().unwrap() = script;
    }

    fn request(&self) -> Request {
        let id = format!("call-{}-end", self.calls());
        let request = self.caller.calls(&self.target);
        request.field("X-Request-Id", id)
    }

    /// Calls once, and asserts what holds after every end.
    async fn call(&self, script: Vec<Step>, outcome: &str) -> Answer {
        self.play(script);
        let before = self.calls();
        let answer = self.gateway.call(&self.request()).await;
        self.settled(before, outcome).await;
        answer
    }

    /// The same, of an exchange that breaks: the upstream connection is closed.
    async fn broken(&self, script: Vec<Step>, outcome: &str) -> Answer {
        let answer = self.call(script, outcome).await;
        self.upstream_closed().await;
        answer
    }

    async fn settled(&self, before: usize, outcome: &str) {
        self.gateway.assert_idle().await;
        assert_eq!(self.calls(), before + 1, "the agent saw one request");
        let id = format!("call-{before}-end");
        let lines = self.gateway.access_lines(&id).await;
        assert_eq!(lines.len(), 1, "exactly one record: {lines:?}");
        assert_eq!(lines[0]["outcome"], outcome, "{}", lines[0]);
        let expected = self.counts(outcome);
        let label = format!("outcome=\"{outcome}\"");
        let exchanges = "a2a_gateway_exchanges_total";
        let counted = self.gateway.metric(exchanges, &[&label]).await;
        assert_eq!(counted, expected);
    }

    /// One more call with this outcome; the number of them.
    fn counts(&self, outcome: &str) -> f64 {
        let mut outcomes = self.outcomes.lock().unwrap();
        let count = outcomes.entry(outcome.to_owned()).or_default();
        *count += 1.0;
        *count
    }

    async fn upstream_closed(&self) {
        let closed = async || self.target.agent.open() == 0;
        until_holds("the upstream is closed", closed).await;
    }
}

fn assert_ends(answer: &Answer, status: u16, reason: &str, what: &str) {
    let ended = (answer.status, answer.reason());
    assert_eq!((ended.0, ended.1.as_str()), (status, reason), "{what}");
}

#[tokio::test]
async fn each_clock_ends_an_answer_with_its_reason() {
    let head = |more: &str| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        Step::write(format!("{head}Content-Length: 900\r\n\r\n{more}"))
    };
    let mut drip = vec![head("")];
    for _ in 0..100 {
        drip.extend([Step::write("x"), Step::Wait(Duration::from_millis(50))]);
    }
    drip.push(Step::Hang);
    // The last one runs from the beginning, and its call is to be at the agent before it ends.
    for (key, span, script, reason, clock) in [
        ("head", 500, vec![Step::Hang], "agent_timeout", Some("head")),
        (
            "idle",
            500,
            vec![head("x"), Step::Hang],
            "agent_silent",
            None,
        ),
        ("total", 5000, drip, "agent_timeout", Some("total")),
    ] {
        let case = Case::new(&format!("timeouts.{key}={span}ms")).await;
        let began = Instant::now();
        let answer = case.broken(script, reason).await;
        assert_ends(&answer, 504, reason, key);
        assert!(began.elapsed() >= Duration::from_millis(span), "{key}");
        if clock.is_some() {
            assert_eq!(answer.fact("clock").as_deref(), clock);
        }
        assert_eq!(answer.fact("delivered").as_deref(), Some("true"), "{key}");
        assert_eq!(answer.json()["id"], "c-1", "{key}");
    }
    // A caller makes it shorter for one request.
    let case = Case::new("").await;
    case.play(vec![Step::Hang]);
    let began = Instant::now();
    let request = case.request().field("X-Timeout", "5");
    let answer = case.gateway.call(&request).await;
    assert_ends(&answer, 504, "agent_timeout", "X-Timeout");
    assert!(began.elapsed() >= Duration::from_secs(5));
    case.settled(0, "agent_timeout").await;
}

#[tokio::test]
async fn a_stream_that_goes_silent_ends_with_a_last_event() {
    let case = Case::new("timeouts.idle=6s stream.keepalive=100ms").await;
    let script = sse(format!("{EVENT}data: {{\"ha"), Step::Hang);
    let answer = case.broken(script, "agent_silent").await.has(200);
    assert!(answer.whole, "the stream is closed cleanly");
    let answer = answer.unnumbered();
    let events = answer.events();
    assert_eq!(events.first().map(String::as_str), Some(EVENT));
    let text = answer.text();
    assert!(!text.contains("{\"ha"), "a half-received event is dropped");
    let keepalives = text.lines().filter(|line| *line == ": keepalive").count();
    assert!((1..=60).contains(&keepalives), "{events:?}");
    // Comments may stand before it.
    let mut lines = events.last().unwrap().lines();
    let last = lines.find_map(|line| line.strip_prefix("data: ")).unwrap();
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["id"], "c-1");
    assert_eq!(last["error"]["code"], -32000);
    let info = &last["error"]["data"][0];
    assert_eq!(info["reason"], "AGENT_SILENT");
    assert_eq!(info["metadata"]["requestId"], "call-0-end");
}

#[tokio::test]
async fn a_comment_of_the_agent_is_sound_and_the_stream_clock_ends_it() {
    let case = Case::new("timeouts.idle=600ms timeouts.stream=1200ms").await;
    let mut script = vec![Step::write(SSE_HEAD)];
    for _ in 0..40 {
        script.push(Step::write(chunk(": ping\r\n\r\n")));
        script.push(Step::Wait(Duration::from_millis(50)));
    }
    // Where the machine holds up the comments, the idle clock ends it, rightly.
    let by_the_stream_clock = async || {
        case.play(script.clone());
        let text = case.gateway.call(&case.request()).await.text();
        let clock = text.contains("\"AGENT_TIMEOUT\"") && text.contains("\"clock\":\"stream\"");
        assert!(clock || text.contains("\"AGENT_SILENT\""), "{text}");
        let is_kept = text.ends_with("\r\n\r\n");
        assert!(is_kept, "our last event keeps the agent's line ends");
        case.upstream_closed().await;
        clock
    };
    until_holds("comments keep a stream", by_the_stream_clock).await;
    case.gateway.assert_idle().await;
}

#[tokio::test]
async fn a_stream_that_breaks_off_mid_event_says_so() {
    let case = Case::new("").await;
    for last in [Step::Close, Step::Reset] {
        let places = Arc::new(Semaphore::new(0));
        let held = Step::Held(Arc::clone(&places));
        let mut script = sse(format!("{EVENT}data: {{\"ha"), held);
        script.push(last.clone());
        case.play(script);
        let before = case.calls();
        let mut connection = Connection::open(case.gateway.public).await;
        connection.ask(&case.request()).await;
        let head = connection.read_head().await.unwrap();
        let mut text = connection.next_chunk().await.unwrap();
        places.add_permits(1);
        let mut answer = connection.read_body(head).await;
        text.append(&mut answer.body);
        answer.body = text;
        assert!(answer.whole, "{last:?}");
        let text = answer.unnumbered().text();
        assert!(text.starts_with(EVENT), "{last:?} {text}");
        assert!(text.contains("\"AGENT_PROTOCOL_ERROR\""), "{last:?} {text}");
        assert!(!text.contains("{\"ha"));
        case.settled(before, "agent_protocol_error").await;
    }
}

#[tokio::test]
async fn a_stream_that_the_agent_ends_gets_no_last_event() {
    // Each thread keeps connections of its own.
    let case = Case::new("server.threads=1").await;
    let script = sse("data: 1\n\ndata: 2\n\n", Step::write(LAST_CHUNK));
    // The connection is kept, for the next call.
    for _ in 0..2 {
        let answer = case.call(script.clone(), "answered").await.unnumbered();
        assert_eq!(answer.text(), "data: 1\n\ndata: 2\n\n");
        assert_eq!(answer.field("cache-control"), Some("no-cache"));
        assert_eq!(answer.field("x-accel-buffering"), Some("no"));
    }
    assert_eq!(case.target.agent.connections(), 1);
}

#[tokio::test]
async fn a_final_event_closes_a_stream_that_the_agent_leaves_open() {
    const GRACE: Duration = Duration::from_millis(300);
    let case = Case::new("stream.final_grace=300ms").await;
    let event = |state: &str| {
        let status = format!(r#""status":{{"state":"{state}"}},"final":true"#);
        let update = format!(r#""kind":"status-update","taskId":"t","contextId":"c",{status}"#);
        format!("data: {{\"jsonrpc\":\"2.0\",\"id\":\"c-1\",\"result\":{{{update}}}}}\n\n")
    };
    let ping = "event: ping\ndata: {}\n\n: ping\n\n";
    let pause = || Step::Wait(Duration::from_millis(50));
    let mut pings = sse(event("canceled") + ping, pause());
    for _ in 0..1200 {
        pings.extend([Step::write(chunk(ping)), pause()]);
    }
    let open = sse(event("completed"), Step::Hang);
    for (script, pings) in [(open, false), (pings, true)] {
        let began = Instant::now();
        let answer = case.broken(script, "answered").await;
        assert!(answer.whole && began.elapsed() >= GRACE, "{answer:?}");
        assert_eq!(answer.text().contains("event: ping"), pings);
        assert!(!answer.text().contains("\"error\""), "{}", answer.text());
    }
}

#[tokio::test]
async fn an_oversized_answer_is_refused_by_its_length_and_broken_off_without() {
    const SIZE: usize = 11 * 1024 * 1024;
    let case = Case::new("").await;
    let script = vec![Step::Write(ok_json(&"x".repeat(SIZE)))];
    let answer = case.broken(script, "response_too_large").await;
    assert_ends(&answer, 502, "response_too_large", "with a length");

    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let all = Step::Write(chunk(format!("{{{}", "x".repeat(SIZE))));
    let script = vec![Step::write(head), all, Step::write(LAST_CHUNK)];
    let answer = case.broken(script, "response_too_large").await.has(200);
    assert!(!answer.whole, "a cut is never taken for the whole");
    assert!(answer.body.len() <= 10 * 1024 * 1024);

    // A stream ends with a last event.
    let event = format!("data: {}\n\n", "x".repeat(1 << 20));
    let mut script = vec![Step::write(SSE_HEAD)];
    script.extend((0..11).map(|_| Step::Write(chunk(&event))));
    script.push(Step::Hang);
    let answer = case.broken(script, "response_too_large").await;
    assert!(answer.whole);
    answer.says("\"RESPONSE_TOO_LARGE\"");
    assert!(answer.body.len() < 10 * 1024 * 1024 + 4096);
}

#[tokio::test]
async fn what_is_no_answer_is_refused_and_never_sent_again() {
    let case = Case::new("").await;
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf";
    let gzip = "Content-Type: text/event-stream\r\nContent-Encoding: gzip\r\n";
    let framed = |head: &str| {
        let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\n2\r\n{{}}\r\n0\r\n\r\n");
        vec![Step::write(answer)]
    };
    let says = |text: &str, then: Step| vec![Step::write(text), then];
    let mut reset = says(half, Step::Wait(Duration::from_millis(50)));
    reset.push(Step::Reset);
    let chunked = "Transfer-Encoding: chunked\r\n";
    let bad = format!("HTTP/1.1 200 OK\r\n{chunked}\r\nzz\r\nhalf");
    let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n";
    let two_framings = format!("Content-Length: 2\r\n{chunked}");
    for (name, script) in [
        ("closed before the head", vec![Step::Close]),
        ("reset before the head", vec![Step::Reset]),
        ("no HTTP", says("SSH-2.0-OpenSSH_9.2\r\n\r\n", Step::Close)),
        (
            "half a head",
            says("HTTP/1.1 200 OK\r\nContent-", Step::Close),
        ),
        ("half a body", says(half, Step::Close)),
        ("a reset in the body", reset),
        ("a bad chunk", says(&bad, Step::Close)),
        ("a switch of protocols", says(switch, Step::Hang)),
        ("two framings", framed(&two_framings)),
        (
            "another framing",
            framed("Transfer-Encoding: gzip, chunked\r\n"),
        ),
        ("a coded stream", framed(&format!("{gzip}{chunked}"))),
    ] {
        let answer = case.broken(script, "agent_protocol_error").await;
        assert_ends(&answer, 502, "agent_protocol_error", name);
        assert_eq!(answer.fact("delivered").as_deref(), Some("true"), "{name}");
    }
}

#[tokio::test]
async fn a_final_event_tells_an_ended_stream_from_a_broken_one_where_no_framing_does() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    let case = Case::new("").await;
    let script = |body: &str| vec![Step::write(HEAD), Step::write(body), Step::Close];
    let half = script("data: a\n\ndata: ha");
    let answer = case.call(half, "agent_protocol_error").await.unnumbered();
    let text = answer.text();
    assert!(text.starts_with("data: a\n\ndata: {"), "{text}");
    assert!(text.contains("\"AGENT_PROTOCOL_ERROR\""));
    let open = case.call(script("data: a\n\n"), "agent_protocol_error");
    open.await.says("\"AGENT_PROTOCOL_ERROR\"");
    let last = "data: {\"result\":{\"final\":true}}\n\n";
    let answer = case.call(script(last), "answered").await;
    assert_eq!(answer.unnumbered().text(), last);
}
