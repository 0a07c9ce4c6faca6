//! HTTP/2 towards callers: bodies of every size and framing, streams, resets, refusals.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::harness::tls::{Begun, Http2, Secure, next};
use crate::harness::{
    Agent, Builder, CALL, LAST_CHUNK, Pair, Recorded, Request, SSE_HEAD, Seat, Step, answering,
    chunk, ok_json, unnumbered, until_holds,
};

const LIMIT: usize = 10 << 20;

/// A gateway with TLS, a caller and a target.
pub(crate) struct Case {
    pub(crate) secure: Secure,
    pub(crate) caller: Seat,
    pub(crate) target: Seat,
}

impl Case {
    async fn with(agent: Agent) -> Self {
        // One thread: on several, Pingora's pool makes another connection when its watcher lets go in the
        // instant of the next call.
        let builder = Builder::new(Pair::Embedded)
            .sets("upstream.idle=10m stream.linger=0s server.threads=1")
            // Agents that break off are left alone after a while.
            .sets("breaker.failures=0 breaker.ratio=0");
        let secure = Secure::start(builder).await;
        let (caller, target) = secure.gateway.pair(agent).await;
        Self {
            secure,
            caller,
            target,
        }
    }

    /// Waits until so many exchanges have ended in this way: one that is broken off is counted behind that.
    async fn assert_ended(&self, outcome: &str, count: f64) {
        let (gateway, name) = (&self.secure.gateway, "a2a_gateway_exchanges_total");
        let label = format!("outcome=\"{outcome}\"");
        gateway.until_counted(name, &[&label], count).await;
        assert_eq!(gateway.metric(name, &[&label]).await, count, "{outcome}");
    }

    pub(crate) async fn new() -> Self {
        Self::with(answering().await).await
    }

    async fn scripted(script: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::with(Agent::scripted(script).await).await
    }

    pub(crate) fn request(&self, body: impl AsRef<[u8]>) -> Request {
        Request::post(self.target.path(), body).bearer(&self.caller.token)
    }

    /// The honest exchange that must work after whatever a case did.
    pub(crate) async fn still_works(&self, http2: &Http2) {
        http2.call(&self.request(CALL)).await.has(200);
        assert_eq!(self.target.agent.take().text(), CALL);
    }

    /// A call whose body was sent, in one piece.
    async fn sent(&self, http2: &Http2, request: &Request, body: impl AsRef<[u8]>) -> Begun {
        let mut begun = http2.begin(request, false).await;
        begun.send(body.as_ref(), true).await;
        begun
    }
}

/// The steps that answer a plain call, which a case makes beside others.
fn plain(request: &Recorded) -> Option<Vec<Step>> {
    (request.text() == CALL).then(|| vec![Step::Write(ok_json("{}"))])
}

/// A call whose body has exactly `size` bytes.
fn sized(size: usize) -> String {
    let text = size - (CALL.len() - 2);
    CALL.replace("\"hi\"", &format!("\"{}\"", "x".repeat(text)))
}

#[tokio::test]
async fn bodies_of_every_size_and_framing_arrive_whole() {
    let case = Case::new().await;
    let http2 = case.secure.http2().await;
    for size in [65_535, 65_536, 65_537, 300_000, LIMIT] {
        let body = sized(size);
        for declared in [true, false] {
            for pieces in [1, 7] {
                let mut request = case.request("");
                if declared {
                    request = request.field("Content-Length", size.to_string());
                }
                let mut begun = http2.begin(&request, false).await;
                let step = size / pieces + 1;
                for (i, piece) in body.as_bytes().chunks(step).enumerate() {
                    begun.send(piece, (i + 1) * step >= size).await;
                }
                let answer = begun.answer().await.expect("a whole answer");
                let what = format!("{size}, declared {declared}, {pieces} pieces");
                assert_eq!(answer.status, 200, "{what}: {}", answer.text());
                let arrived = case.target.agent.take();
                assert!(arrived.body == body.as_bytes(), "{what}");
                let length = size.to_string();
                assert_eq!(arrived.field("content-length"), Some(&*length), "{what}");
            }
        }
    }
    case.secure.gateway.assert_idle().await;
}

#[tokio::test]
async fn one_byte_too_many_is_refused_and_the_connection_stays() {
    let case = Case::new().await;
    let http2 = case.secure.http2().await;
    let body = sized(LIMIT + 1);
    for declared in [true, false] {
        let mut request = case.request("");
        if declared {
            request = request.field("Content-Length", body.len().to_string());
        }
        let begun = case.sent(&http2, &request, &body).await;
        let answer = begun.answer().await.expect("a whole answer");
        answer.refuses(413, "body_too_large");
        let limit = answer.fact("limit");
        assert_eq!(limit.as_deref(), Some("10485760"), "declared {declared}");
    }
    assert_eq!(case.target.agent.count(), 0);
    case.still_works(&http2).await;
    case.secure.gateway.assert_idle().await;
}

#[tokio::test]
async fn an_empty_last_frame_does_not_poison_the_pooled_connection() {
    let case = Case::new().await;
    let http2 = case.secure.http2().await;
    for _ in 0..5 {
        let mut begun = http2.begin(&case.request(""), false).await;
        begun.send(CALL.as_bytes(), false).await;
        begun.send(b"", true).await;
        assert_eq!(begun.answer().await.expect("an answer").status, 200);
        assert_eq!(case.target.agent.take().text(), CALL);
        // Behind a stray terminator the agent would read no request any more.
        case.still_works(&http2).await;
    }
    assert_eq!(case.target.agent.connections(), 1, "one pooled connection");
}

#[tokio::test]
async fn a_call_without_a_body_is_refused() {
    let case = Case::new().await;
    let http2 = case.secure.http2().await;
    let begun = http2.begin(&case.request(""), true).await;
    let answer = begun.answer().await.expect("an answer");
    answer.refuses(400, "parse_error");
    // Less than was declared: HTTP/2 itself calls that malformed.
    let request = case.request("").field("Content-Length", "500");
    let begun = case.sent(&http2, &request, CALL).await;
    if let Ok(answer) = begun.answer().await {
        assert!((400..500).contains(&answer.status), "{}", answer.text());
    }
    assert_eq!(case.target.agent.count(), 0);
    case.still_works(&http2).await;
}

#[tokio::test]
async fn events_pass_one_by_one_with_the_last_one() {
    let read = Arc::new(Semaphore::new(0));
    let awaited = read.clone();
    let case = Case::scripted(move |_| {
        let mut steps = vec![Step::write(SSE_HEAD)];
        for i in 0..5 {
            steps.push(Step::Write(chunk(format!("data: {{\"n\":{i}}}\n\n"))));
            // The next comes when this one was read: if it is held back for that, neither comes.
            steps.push(Step::Held(awaited.clone()));
        }
        steps.push(Step::write(LAST_CHUNK));
        steps
    })
    .await;
    let http2 = case.secure.http2().await;
    let mut begun = case.sent(&http2, &case.request(""), CALL).await;
    let (head, mut body) = begun.head().await.expect("a head");
    assert_eq!(head.status, 200);
    assert_eq!(head.field("content-type"), Some("text/event-stream"));
    assert_eq!(head.field("x-accel-buffering"), Some("no"));
    assert_eq!(head.field("transfer-encoding"), None);
    assert_eq!(head.field("connection"), None);
    let (mut seen, mut expected) = (String::new(), String::new());
    for i in 0..5 {
        let event = next(&mut body).await.expect("an event").expect("an event");
        seen.push_str(std::str::from_utf8(&event).unwrap());
        expected.push_str(&format!("data: {{\"n\":{i}}}\n\n"));
        assert_eq!(unnumbered(&seen).0, expected);
        read.add_permits(1);
    }
    assert!(next(&mut body).await.is_none(), "END_STREAM, and no event");
    case.secure.gateway.assert_idle().await;
}

#[tokio::test]
async fn a_stream_that_breaks_ends_in_words_and_in_order() {
    let case = Case::scripted(|_| {
        vec![
            Step::write(SSE_HEAD),
            Step::Write(chunk("data: {\"n\":0}\n\ndata: {\"half\":")),
            Step::Close,
        ]
    })
    .await;
    let http2 = case.secure.http2().await;
    let answer = http2.call(&case.request(CALL)).await.has(200);
    let events = answer.unnumbered().events();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0], "data: {\"n\":0}\n\n");
    let last = events[1].strip_prefix("data: ").expect("data");
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["id"], "c-1");
    let reason = &last["error"]["data"][0]["reason"];
    assert_eq!(reason, "AGENT_PROTOCOL_ERROR", "{last}");
    assert!(http2.stands());
    case.secure.gateway.assert_idle().await;
}

#[tokio::test]
async fn an_answer_that_is_cut_is_reset_and_never_ended() {
    let case = Case::scripted(|request| {
        plain(request).unwrap_or_else(|| {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
            let mut steps = vec![Step::write(head)];
            let megabyte = chunk(vec![b' '; 1 << 20]);
            steps.extend((0..11).map(|_| Step::Write(megabyte.clone())));
            steps.push(Step::write(LAST_CHUNK));
            steps
        })
    })
    .await;
    let http2 = case.secure.http2().await;
    let large = CALL.replace("hi", "large");
    let begun = case.sent(&http2, &case.request(""), large).await;
    let error = begun.answer().await.expect_err("no END_STREAM");
    assert!(error.is_reset() && error.is_remote(), "{error}");
    assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
    case.assert_ended("response_too_large", 1.0).await;
    // Only this stream is lost, not the connection.
    let _ = case.target.agent.take();
    case.still_works(&http2).await;
    case.secure.gateway.assert_idle().await;
}

/// However many answers an agent breaks off: the connection of whoever asked it is not to blame.
#[tokio::test]
async fn an_agent_that_breaks_off_does_not_cost_its_caller_the_connection() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90000\r\n\r\n";
    let half = Step::Write(vec![b' '; 60_000]);
    let broken = vec![Step::write(head), half, Step::Close];
    let script = move |request: &_| plain(request).unwrap_or_else(|| broken.clone());
    let case = Case::scripted(script).await;
    let http2 = case.secure.http2().await;
    let breaks = CALL.replace("hi", "break");
    for round in 0..6 {
        let mut begun = Vec::new();
        for _ in 0..25 {
            begun.push(case.sent(&http2, &case.request(""), &breaks).await);
        }
        for one in begun {
            let error = one.answer().await.expect_err("broken off");
            assert!(error.is_reset() && error.is_remote(), "{round}: {error}");
        }
    }
    assert!(http2.stands());
    let _ = case.target.agent.take();
    http2.call(&case.request(CALL)).await.has(200);
    case.secure.gateway.assert_idle().await;
}

#[tokio::test]
async fn a_caller_that_resets_cancels_the_call() {
    let case = Case::scripted(|request| {
        let begins = request.text().contains("stream");
        let begin = [Step::write(SSE_HEAD), Step::Write(chunk("data: {}\n\n"))];
        let begin = begin.into_iter().filter(|_| begins);
        plain(request).unwrap_or_else(|| begin.chain([Step::Hang]).collect())
    })
    .await;
    let http2 = case.secure.http2().await;
    for (i, word) in ["unary", "stream"].into_iter().enumerate() {
        let call = CALL.replace("hi", word);
        let mut begun = case.sent(&http2, &case.request(""), call).await;
        case.target.agent.until_count(1).await;
        if word == "stream" {
            let (_, mut body) = begun.head().await.expect("a head");
            assert!(next(&mut body).await.expect("an event").is_ok());
        }
        begun.body.send_reset(h2::Reason::CANCEL);
        let closed = async || case.target.agent.closed_by_gateway().len() > i;
        until_holds(word, closed).await;
        assert_eq!(case.target.agent.count(), 1, "{word}: sent once");
        let _ = case.target.agent.take();
        case.secure.gateway.assert_idle().await;
    }
    case.assert_ended("caller_left", 2.0).await;
    case.still_works(&http2).await;
}

#[tokio::test]
async fn fifty_streams_share_one_connection() {
    let last_events = Arc::new(Semaphore::new(0));
    let asked = last_events.clone();
    let case = Case::scripted(move |request| {
        let id: Value = serde_json::from_slice(&request.body).expect("JSON");
        let mut steps = vec![Step::write(SSE_HEAD)];
        for n in 0..3 {
            let event = json!({"id": id["id"], "n": n});
            steps.push(Step::Write(chunk(format!("data: {event}\n\n"))));
        }
        // Before the last event: all are open by then.
        steps.insert(3, Step::Held(asked.clone()));
        steps.push(Step::write(LAST_CHUNK));
        steps
    })
    .await;
    let http2 = case.secure.http2().await;
    let mut begun = Vec::new();
    for i in 0..50 {
        let call = CALL.replace("c-1", &format!("c-{i}"));
        begun.push(case.sent(&http2, &case.request(""), call).await);
    }
    let streams = "a2a_gateway_open_streams";
    case.secure.gateway.until_counted(streams, &[], 50.0).await;
    last_events.add_permits(50);
    for (i, one) in begun.into_iter().enumerate() {
        let answer = one.answer().await.expect("a whole stream");
        let expected: Vec<String> = (0..3)
            .map(|n| format!("data: {}\n\n", json!({"id": format!("c-{i}"), "n": n})))
            .collect();
        assert_eq!(answer.unnumbered().events(), expected);
    }
    assert_eq!(case.target.agent.count(), 50);
    case.secure.gateway.assert_idle().await;
}

#[tokio::test]
async fn refusals_are_json_with_the_request_id() {
    let case = Case::new().await;
    let http2 = case.secure.http2().await;
    let a2a = case.target.path();
    let bearer = |request: Request| request.bearer(&case.caller.token);
    let post = |path: &str, body: &str| bearer(Request::post(path, body));
    let evil = post(&a2a, CALL).field("Origin", "https://evil.example");
    let text = post(&a2a, CALL).without("content-type");
    let text = text.field("Content-Type", "text/plain");
    let rows = [
        (Request::post(&a2a, CALL), 401, "unauthenticated"),
        (bearer(Request::new("PUT", &a2a)), 405, "method_not_allowed"),
        (post("/workspaces/nobody/a2a", CALL), 403, "not_permitted"),
        (
            post("/workspaces/a:b/a2a", CALL),
            400,
            "invalid_workspace_id",
        ),
        (evil, 403, "origin_forbidden"),
        (text, 415, "unsupported_media_type"),
        (bearer(Request::get("/nowhere")), 404, "not_found"),
        (Request::get("/workspaces/target"), 401, "unauthenticated"),
        (post("/workspaces", "nonsense"), 400, "parse_error"),
    ];
    for (i, (request, status, reason)) in rows.into_iter().enumerate() {
        let id = format!("refused-{i}");
        let shown = format!("{} {}", request.method, request.path);
        let answer = http2.call(&request.field("X-Request-Id", &*id)).await;
        let told = (answer.status, answer.reason());
        assert_eq!(told, (status, reason.to_owned()), "{shown}");
        assert_eq!(answer.field("content-type"), Some("application/json"));
        assert_eq!(answer.field("x-request-id"), Some(&*id), "{shown}");
        answer.says(&id);
        assert!(answer.field("connection").is_none(), "{shown}");
        let length = answer.body.len().to_string();
        assert_eq!(answer.field("content-length"), Some(&*length), "{shown}");
    }
    // What a HEAD asks for has no body, and ends.
    let answer = http2.call(&Request::new("HEAD", "/nowhere")).await;
    assert_eq!((answer.status, answer.body.len()), (404, 0));
    assert_eq!(case.target.agent.count(), 0);
    case.still_works(&http2).await;
    case.secure.gateway.assert_idle().await;
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let case = Case::new().await;
    let http2 = case.secure.http2().await;
    let mut many = case.request(CALL);
    for i in 0..110 {
        many = many.field(&format!("x-extra-{i}"), "1");
    }
    let answer = http2.call(&many).await;
    assert_eq!(answer.reason(), "invalid_request");
    // Over the limit that was announced, HTTP/2 itself answers.
    let long = case.request(CALL).field("x-long", "x".repeat(40 << 10));
    let begun = case.sent(&http2, &long, CALL).await;
    if let Ok(answer) = begun.answer().await {
        assert!((400..500).contains(&answer.status));
    }
    assert_eq!(case.target.agent.count(), 0);
    let http2 = case.secure.http2().await;
    case.still_works(&http2).await;
}
