//! Agents that misbehave: each exchange ends in time, with the contract's reason, the upstream
//! connection closed, no slot leaked, exactly one record, and exactly one request at the agent.

use std::time::{Duration, Instant};

use crate::harness::{
    Agent, Answer, Builder, CALL, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Seat,
    Step, calmly, chunk, ok_json,
};

mod connections;

/// Clocks short enough for a test, and far enough apart to tell them from each other.
fn quick() -> Builder {
    Builder::new(Pair::Embedded)
        .set("timeouts.head", "1s")
        .set("timeouts.idle", "1500ms")
        .set("timeouts.total", "4s")
        .set("timeouts.stream", "6s")
        .set("stream.keepalive", "400ms")
        .set("stream.final_grace", "500ms")
}

struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
}

impl Case {
    async fn new(behaviour: impl Fn() -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::on(quick().start().await, behaviour).await
    }

    async fn on(
        gateway: Gateway,
        behaviour: impl Fn() -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let (caller, target) = gateway
            .pair(Agent::scripted(move |_| behaviour()).await)
            .await;
        Self {
            gateway,
            caller,
            target,
        }
    }

    fn request(&self) -> Request {
        Request::post(self.target.path(), CALL).bearer(&self.caller.token)
    }

    /// Calls once; answers how it ended and how long it took.
    async fn call(&self) -> (Answer, Duration) {
        let started = Instant::now();
        let request = self.request().field("X-Request-Id", "the-one");
        let answer = self.gateway.call(&request).await;
        (answer, started.elapsed())
    }

    /// What holds after every fault.
    async fn settled(&self, outcome: &str) {
        self.gateway.assert_idle().await;
        assert_eq!(
            self.target.agent.count(),
            1,
            "the agent saw exactly one request"
        );
        let lines = self.gateway.access_lines("the-one").await;
        assert_eq!(lines.len(), 1, "exactly one record: {lines:?}");
        assert_eq!(lines[0]["outcome"], outcome, "{}", lines[0]);
        let label = format!("outcome=\"{outcome}\"");
        let exchanges = "a2a_gateway_exchanges_total";
        let counted = self.gateway.metric(exchanges, &[&label]).await;
        assert_eq!(counted, 1.0);
    }

    async fn upstream_closed(&self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while self.target.agent.open() > 0 {
            assert!(Instant::now() < deadline, "the upstream stays open");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn assert_between(took: Duration, least_ms: u64, most_ms: u64) {
    let range = Duration::from_millis(least_ms)..Duration::from_millis(most_ms);
    assert!(range.contains(&took), "took {took:?}");
}

#[tokio::test]
async fn an_agent_that_never_answers_is_cut_by_the_head_clock() {
    calmly(async || {
        let case = Case::new(|| vec![Step::Hang]).await;
        let (answer, took) = case.call().await;
        assert_eq!(answer.status, 504);
        assert_eq!(answer.reason(), "agent_timeout");
        assert_eq!(answer.fact("clock").as_deref(), Some("head"));
        assert_eq!(answer.fact("delivered").as_deref(), Some("true"));
        assert_eq!(answer.json()["id"], "c-1");
        assert_between(took, 950, 2500);
        case.upstream_closed().await;
        case.settled("agent_timeout").await;
    })
    .await;
}

#[tokio::test]
async fn x_timeout_lowers_the_clock_of_one_request() {
    calmly(async || {
        let gateway = Gateway::start(Pair::Embedded).await;
        let case = Case::on(gateway, || vec![Step::Hang]).await;
        let started = Instant::now();
        let request = case
            .request()
            .field("X-Timeout", "1")
            .field("X-Request-Id", "the-one");
        let answer = case.gateway.call(&request).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (504, "agent_timeout")
        );
        assert_between(started.elapsed(), 950, 2500);
        case.settled("agent_timeout").await;
    })
    .await;
}

#[tokio::test]
async fn a_head_without_a_body_is_cut_by_the_idle_clock_and_still_told() {
    calmly(async || {
        let case = Case::new(|| {
            vec![
                Step::write(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n",
                ),
                Step::Hang,
            ]
        })
        .await;
        let (answer, took) = case.call().await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (504, "agent_silent")
        );
        assert_between(took, 1450, 3000);
        case.upstream_closed().await;
        case.settled("agent_silent").await;
    })
    .await;
}

#[tokio::test]
async fn a_drip_is_cut_by_the_total_clock() {
    calmly(async || {
        let case = Case::new(|| {
            let mut steps = vec![Step::write(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n",
            )];
            for _ in 0..100 {
                steps.push(Step::write("x"));
                steps.push(Step::Wait(Duration::from_millis(300)));
            }
            steps
        })
        .await;
        let (answer, took) = case.call().await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (504, "agent_timeout")
        );
        assert_eq!(answer.fact("clock").as_deref(), Some("total"));
        assert_between(took, 3900, 5500);
        case.upstream_closed().await;
        case.settled("agent_timeout").await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_goes_silent_ends_with_a_last_event() {
    calmly(async || {
        let case = Case::new(|| {
            vec![
                Step::write(SSE_HEAD),
                Step::write(chunk("data: {\"n\":1}\n\ndata: {\"ha")),
                Step::Hang,
            ]
        })
        .await;
        let (answer, took) = case.call().await;
        assert_eq!(answer.status, 200);
        assert!(answer.whole, "the stream is closed cleanly");
        let answer = answer.unnumbered();
        let events = answer.events();
        assert_eq!(
            events.first().map(String::as_str),
            Some("data: {\"n\":1}\n\n")
        );
        assert!(
            !answer.text().contains("{\"ha"),
            "a half-received event is dropped"
        );
        let keepalives = events
            .iter()
            .flat_map(|event| event.lines())
            .filter(|line| *line == ": keepalive")
            .count();
        assert!((2..=4).contains(&keepalives), "{events:?}");
        // Comments may stand before it.
        let mut lines = events.last().unwrap().lines();
        let last = lines.find_map(|line| line.strip_prefix("data: ")).unwrap();
        let last: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!(last["id"], "c-1");
        assert_eq!(last["error"]["code"], -32000);
        assert_eq!(last["error"]["data"][0]["reason"], "AGENT_SILENT");
        assert_eq!(last["error"]["data"][0]["metadata"]["requestId"], "the-one");
        assert_between(took, 1450, 3000);
        case.upstream_closed().await;
        case.settled("agent_silent").await;
    })
    .await;
}

#[tokio::test]
async fn a_comment_of_the_agent_is_sound_and_the_stream_clock_ends_it() {
    calmly(async || {
        let case = Case::new(|| {
            let mut steps = vec![Step::write(SSE_HEAD)];
            for _ in 0..40 {
                steps.push(Step::write(chunk(": ping\r\n\r\n")));
                steps.push(Step::Wait(Duration::from_millis(300)));
            }
            steps
        })
        .await;
        let (answer, took) = case.call().await;
        assert!(
            answer.text().contains("\"AGENT_TIMEOUT\""),
            "{}",
            answer.text()
        );
        assert!(answer.text().contains("\"clock\":\"stream\""));
        assert!(
            answer.text().ends_with("\r\n\r\n"),
            "our last event keeps the agent's line ends"
        );
        assert_between(took, 5900, 7500);
        case.upstream_closed().await;
        case.settled("agent_timeout").await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_breaks_off_mid_event_says_so() {
    for last in [Step::Close, Step::Reset] {
        let end = last.clone();
        let case = Case::new(move || {
            vec![
                Step::write(SSE_HEAD),
                Step::write(chunk("data: {\"n\":1}\n\ndata: {\"ha")),
                Step::Wait(Duration::from_millis(50)),
                end.clone(),
            ]
        })
        .await;
        let (answer, _) = case.call().await;
        assert!(answer.whole);
        let answer = answer.unnumbered();
        assert!(
            answer.text().starts_with("data: {\"n\":1}\n\n"),
            "{last:?} {}",
            answer.text()
        );
        assert!(
            answer.text().contains("\"AGENT_PROTOCOL_ERROR\""),
            "{last:?} {}",
            answer.text()
        );
        assert!(!answer.text().contains("{\"ha"));
        case.settled("agent_protocol_error").await;
    }
}

#[tokio::test]
async fn a_stream_that_the_agent_ends_gets_no_last_event() {
    // Each thread keeps connections of its own.
    let gateway = quick().set("server.threads", "1").start().await;
    let case = Case::on(gateway, || {
        vec![
            Step::write(SSE_HEAD),
            Step::write(chunk("data: 1\n\ndata: 2\n\n")),
            Step::write(LAST_CHUNK),
        ]
    })
    .await;
    let (answer, _) = case.call().await;
    let answer = answer.unnumbered();
    assert_eq!(answer.text(), "data: 1\n\ndata: 2\n\n");
    assert_eq!(answer.field("cache-control"), Some("no-cache"));
    assert_eq!(answer.field("x-accel-buffering"), Some("no"));
    case.settled("answered").await;
    // The connection is kept, for the next call.
    case.call().await;
    assert_eq!(case.target.agent.connections(), 1);
}

#[tokio::test]
async fn a_final_event_closes_a_stream_that_the_agent_leaves_open() {
    calmly(async || {
    let event = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"status-update","taskId":"t","contextId":"c","status":{"state":"completed"},"final":true}}"#;
    let case = Case::new(move || {
        vec![
            Step::write(SSE_HEAD),
            Step::write(chunk(format!("data: {event}\n\n"))),
            Step::Hang,
        ]
    })
    .await;
    let (answer, took) = case.call().await;
    assert!(answer.whole);
    assert!(!answer.text().contains("AGENT_SILENT"));
    assert_between(took, 450, 1400);
    case.upstream_closed().await;
    case.settled("answered").await;
    })
    .await;
}

#[tokio::test]
async fn an_oversized_answer_is_refused_by_its_length_and_broken_off_without() {
    const SIZE: usize = 11 * 1024 * 1024;
    let case = Case::new(|| vec![Step::Write(ok_json(&"x".repeat(SIZE)))]).await;
    let (answer, _) = case.call().await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (502, "response_too_large")
    );
    case.upstream_closed().await;
    case.settled("response_too_large").await;

    let case = Case::new(|| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        vec![Step::write(head), Step::Write(chunk(vec![b'x'; SIZE])), Step::write(LAST_CHUNK)]
    })
    .await;
    let (answer, _) = case.call().await;
    assert_eq!(answer.status, 200);
    assert!(!answer.whole, "a cut is never taken for the whole");
    assert!(answer.body.len() <= 10 * 1024 * 1024);
    case.upstream_closed().await;
    case.settled("response_too_large").await;
}

#[tokio::test]
async fn an_oversized_stream_ends_with_a_last_event() {
    let case = Case::new(|| {
        let mut steps = vec![Step::write(SSE_HEAD)];
        let event = format!("data: {}\n\n", "x".repeat(1 << 20));
        steps.extend((0..11).map(|_| Step::Write(chunk(&event))));
        steps.push(Step::Hang);
        steps
    })
    .await;
    let (answer, _) = case.call().await;
    assert!(answer.whole);
    assert!(answer.text().contains("\"RESPONSE_TOO_LARGE\""));
    assert!(answer.body.len() < 10 * 1024 * 1024 + 4096);
    case.upstream_closed().await;
    case.settled("response_too_large").await;
}

#[tokio::test]
async fn broken_http_is_a_protocol_error_and_never_sent_again() {
    let scripts: Vec<(&str, Vec<Step>)> = vec![
        ("closed before the head", vec![Step::Close]),
        ("reset before the head", vec![Step::Reset]),
        (
            "no HTTP",
            vec![Step::write("SSH-2.0-OpenSSH_9.2\r\n\r\n"), Step::Close],
        ),
        (
            "half a head",
            vec![Step::write("HTTP/1.1 200 OK\r\nContent-"), Step::Close],
        ),
        (
            "half a body",
            vec![
                Step::write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
                Step::Close,
            ],
        ),
        (
            "a reset in the body",
            vec![
                Step::write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
                Step::Wait(Duration::from_millis(50)),
                Step::Reset,
            ],
        ),
        (
            "a bad chunk",
            vec![
                Step::write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhalf"),
                Step::Close,
            ],
        ),
        (
            "a switch of protocols",
            vec![
                Step::write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
                Step::Hang,
            ],
        ),
    ];
    for (name, script) in scripts {
        let case = Case::new(move || script.clone()).await;
        let (answer, _) = case.call().await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (502, "agent_protocol_error"),
            "{name}"
        );
        assert_eq!(answer.fact("delivered").as_deref(), Some("true"), "{name}");
        case.upstream_closed().await;
        case.settled("agent_protocol_error").await;
    }
}

#[tokio::test]
async fn half_an_event_tells_a_broken_stream_from_an_ended_one_where_no_framing_does() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    let case = Case::new(|| {
        vec![
            Step::write(HEAD),
            Step::write("data: a\n\ndata: ha"),
            Step::Close,
        ]
    })
    .await;
    let (answer, _) = case.call().await;
    let answer = answer.unnumbered();
    assert!(
        answer.text().starts_with("data: a\n\ndata: {"),
        "{}",
        answer.text()
    );
    assert!(answer.text().contains("\"AGENT_PROTOCOL_ERROR\""));
    case.settled("agent_protocol_error").await;

    let case = Case::new(|| vec![Step::write(HEAD), Step::write("data: a\n\n"), Step::Close]).await;
    let (answer, _) = case.call().await;
    assert_eq!(answer.unnumbered().text(), "data: a\n\n");
    case.settled("answered").await;
}

#[tokio::test]
async fn answers_whose_framing_or_coding_would_be_lost_are_refused() {
    for head in [
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Content-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\n2\r\n{{}}\r\n0\r\n\r\n");
        let case = Case::new(move || vec![Step::write(&answer)]).await;
        let (answer, _) = case.call().await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (502, "agent_protocol_error"),
            "{head}"
        );
        case.upstream_closed().await;
        case.settled("agent_protocol_error").await;
    }
}

#[tokio::test]
async fn a_redirect_is_never_followed() {
    let case = Case::new(|| {
        vec![Step::write(
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        )]
    })
    .await;
    let (answer, _) = case.call().await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (502, "agent_redirected")
    );
    assert_eq!(answer.field("location"), None);
    case.settled("agent_redirected").await;
}
