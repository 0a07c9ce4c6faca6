//! gRPC in front: every method's way, the statuses of refusals, streams, deadlines, health and reflection.

use std::time::{Duration, Instant};

use grpc::{
    FrameReader, MessageEncoding, Method, Status, decode_message, encode_frame, encode_message,
};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::harness::tls::Http2;
use crate::harness::{
    Agent, Answer, Builder, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Seat, Step,
    card, chunk, ok_json,
};

/// The end of a call: its messages in JSON, and its status.
struct CallEnd {
    answer: Answer,
    messages: Vec<Value>,
    status: Status,
}

impl CallEnd {
    fn new(method: &str, answer: Answer) -> Self {
        let field = |name: &str| answer.field(name);
        let status = Status::from_fields(
            field("grpc-status").expect("a status"),
            field("grpc-message"),
            field("grpc-status-details-bin"),
        );
        let mut reader = FrameReader::new(MessageEncoding::Identity, u64::MAX);
        reader.push(&answer.body);
        let mut messages = Vec::new();
        while let Some(message) = reader.next_message().expect("whole messages") {
            let method = Method::find(method).expect("a method");
            let json = decode_message(method.response(), &message, |_| {}).expect("a message");
            messages.push(serde_json::from_slice(&json).expect("JSON"));
        }
        assert_eq!(reader.held(), 0);
        assert_eq!(answer.status, 200);
        assert_eq!(field("content-type"), Some("application/grpc"));
        Self {
            answer,
            messages,
            status,
        }
    }

    /// Asserts the code, and the reason of the details.
    fn assert_refused(&self, code: u8, reason: &str) {
        let status = &self.status;
        assert_eq!(
            (status.code as u8, status.reason.as_str()),
            (code, reason),
            "{status:?}"
        );
        assert!(!status.message.is_empty() && self.messages.is_empty());
    }
}

/// A gateway that is called in the clear.
struct Case {
    gateway: Gateway,
    http2: Http2,
    caller: Seat,
    target: Seat,
}

impl Case {
    async fn new(builder: Builder, agent: Agent) -> Self {
        let gateway = builder.start().await;
        let (caller, target) = gateway.pair(agent).await;
        let http2 = Http2::in_the_clear(gateway.public).await;
        Self {
            gateway,
            http2,
            caller,
            target,
        }
    }

    async fn scripted(steps: impl Fn(&str) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let agent = Agent::scripted(move |request| steps(request.text()));
        Self::new(Builder::new(Pair::Embedded), agent.await).await
    }

    fn request(&self, method: &str, message: &Value) -> Request {
        let found = Method::find(method).expect("a method");
        let message = message.to_string();
        let message = encode_message(found.request(), message.as_bytes(), |_| {});
        self.raw(&found.path(), &encode_frame(&message.expect("a message")))
    }

    fn raw(&self, path: &str, body: &[u8]) -> Request {
        let mut request = Request::new("POST", path)
            .field("Content-Type", "application/grpc")
            .field("TE", "trailers")
            .bearer(&self.caller.token);
        request.body = body.to_vec();
        request
    }

    async fn end(&self, method: &str, request: Request) -> CallEnd {
        let mut begun = self.http2.begin(&request, false).await;
        begun.send(&request.body, true).await;
        CallEnd::new(method, begun.answer().await.expect("a whole answer"))
    }

    /// The last call that the agent got.
    fn sent(&self) -> Value {
        serde_json::from_str(self.target.agent.take().text()).expect("JSON")
    }

    async fn call(&self, method: &str, message: Value) -> CallEnd {
        self.end(method, self.request(method, &message)).await
    }
}

fn hello(tenant: &str) -> Value {
    json!({"tenant": tenant, "message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}})
}

fn result(result: Value) -> Vec<Step> {
    reply(&json!({"jsonrpc": "2.0", "id": 1, "result": result}))
}

fn reply(answer: &Value) -> Vec<Step> {
    vec![Step::Write(ok_json(&answer.to_string()))]
}

#[tokio::test]
async fn a_call_is_made_in_json_rpc_and_answered_in_grpc() {
    let message =
        json!({"messageId": "a-1", "role": "ROLE_AGENT", "parts": [{"data": {"n": [1, 2.5]}}]});
    let answer = json!({"message": message});
    let (whole, told) = (answer.clone(), answer.clone());
    let case = Case::scripted(move |_| result(whole.clone())).await;
    let ended = case.call("SendMessage", hello("target/eu")).await;
    assert_eq!(ended.status.code as u8, 0, "{:?}", ended.status);
    assert_eq!(ended.messages, [told]);
    assert!(ended.answer.field("x-request-id").is_some());
    let sent = case.sent();
    assert_eq!(sent["method"], "SendMessage");
    assert_eq!(sent["params"]["tenant"], "eu");
    assert_eq!(sent["params"]["message"]["parts"][0]["text"], "hello");
    // A field names the target before the tenant does, which is the agent's then.
    let named = case
        .request("SendMessage", &hello("eu/1"))
        .field("x-a2a-workspace", "target");
    assert_eq!(case.end("SendMessage", named).await.messages, [answer]);
    let sent = case.sent();
    assert_eq!(sent["params"]["tenant"], "eu/1");
    let plain = case.call("SendMessage", hello("target")).await;
    assert_eq!(plain.status.code as u8, 0);
    let sent = case.sent();
    assert!(sent["params"].get("tenant").is_none(), "{sent}");
}

#[tokio::test]
async fn refusals_have_the_status_of_the_contract() {
    let case = Case::scripted(|_| {
        let error = json!({"code": -32001, "message": "no such task"});
        reply(&json!({"jsonrpc": "2.0", "id": 1, "error": error}))
    })
    .await;
    let stranger = json!({"id": "stranger", "name": "stranger", "org": "rival"});
    case.gateway.create(stranger).await;
    let request = |message: &Value| case.request("SendMessage", message);
    let refused = async |request: Request, code: u8, reason: &str| {
        case.end("SendMessage", request)
            .await
            .assert_refused(code, reason);
    };
    refused(
        request(&hello("target")).without("authorization"),
        16,
        "UNAUTHENTICATED",
    )
    .await;
    refused(request(&hello("stranger")), 7, "NOT_PERMITTED").await;
    refused(request(&hello("")), 3, "INVALID_WORKSPACE_ID").await;
    refused(
        request(&hello("not a workspace")),
        3,
        "INVALID_WORKSPACE_ID",
    )
    .await;
    refused(
        case.raw("/lf.a2a.v1.A2AService/Nothing", &[]),
        12,
        "METHOD_NOT_ALLOWED",
    )
    .await;
    refused(
        case.raw("/a2a.v1.A2AService/SendMessage", &[]),
        12,
        "METHOD_NOT_ALLOWED",
    )
    .await;
    let path = Method::find("SendMessage").unwrap().path();
    refused(case.raw(&path, &[0, 0, 0, 0, 9, 1]), 3, "INVALID_REQUEST").await;
    refused(
        case.raw(&path, &encode_frame(&[0xff])),
        3,
        "INVALID_REQUEST",
    )
    .await;
    refused(case.raw(&path, &[0, 0xff, 0, 0, 0]), 8, "BODY_TOO_LARGE").await;
    refused(
        case.raw(&path, &[1, 0, 0, 0, 0]),
        3,
        "CONTENT_TYPE_NOT_SUPPORTED",
    )
    .await;
    refused(
        request(&hello("target")).field("grpc-encoding", "snappy"),
        3,
        "CONTENT_TYPE_NOT_SUPPORTED",
    )
    .await;
    refused(
        request(&hello("target")).field("x-timeout", "soon"),
        3,
        "INVALID_REQUEST",
    )
    .await;
    // A2A's own errors, by agents and by the gateway.
    let ended = case
        .call("GetTask", json!({"tenant": "target", "id": "t-1"}))
        .await;
    ended.assert_refused(5, "TASK_NOT_FOUND");
    assert_eq!(ended.status.domain, "a2a-protocol.org");
    assert!(
        case.call("SendMessage", hello("target"))
            .await
            .status
            .reason
            == "TASK_NOT_FOUND"
    );
}

#[tokio::test]
async fn an_agent_that_may_have_got_a_call_is_not_called_again() {
    let case = Case::scripted(|_| vec![Step::Reset]).await;
    let ended = case.call("SendMessage", hello("target")).await;
    ended.assert_refused(13, "AGENT_PROTOCOL_ERROR");
    // Nothing listens: nothing was delivered.
    let gone = json!({"id": "gone", "name": "gone"});
    let enrolment = case.gateway.create(gone).await;
    let url = "http://127.0.0.1:9/";
    case.gateway
        .register("gone", &enrolment, url, card("gone"))
        .await;
    let ended = case.call("SendMessage", hello("gone")).await;
    ended.assert_refused(14, "AGENT_UNREACHABLE");
    let wrong = Case::scripted(|_| result(json!({"task": 1}))).await;
    wrong
        .call("SendMessage", hello("target"))
        .await
        .assert_refused(13, "INVALID_AGENT_RESPONSE");
    let long = json!({"message": {"messageId": "a", "metadata": {"n": 9_007_199_254_740_993_i64}}});
    let long = Case::scripted(move |_| result(long.clone())).await;
    let ended = long.call("SendMessage", hello("target")).await;
    ended.assert_refused(13, "INVALID_AGENT_RESPONSE");
    assert!(
        ended.status.message.contains("9007199254740993"),
        "{:?}",
        ended.status
    );
}

#[tokio::test]
async fn an_answer_is_bounded_in_memory() {
    let text = "x".repeat(900_000);
    let part = json!({"messageId": "a", "role": "ROLE_AGENT", "parts": [{"text": text}]});
    let agent = Agent::scripted(move |_| result(json!({"message": part})));
    let builder =
        Builder::new(Pair::Embedded).sets("limits.bodies_bytes=1MiB limits.request_bytes=512KiB");
    let case = Case::new(builder, agent.await).await;
    // Its own maximum is that of a request, with half of what others leave free.
    let ended = case.call("SendMessage", hello("target")).await;
    ended.assert_refused(13, "OVERLOADED");
    let roomy = Case::new(Builder::new(Pair::Embedded), Agent::json("{}").await).await;
    let long = json!({"tenant": "target", "message": {"messageId": "m", "parts": [{"text": "x".repeat(11 << 20)}]}});
    roomy
        .call("SendMessage", long)
        .await
        .assert_refused(8, "BODY_TOO_LARGE");
}

fn event(result: &Value) -> Vec<u8> {
    let data = json!({"jsonrpc": "2.0", "id": 1, "result": result});
    chunk(format!("data: {data}\n\n"))
}

fn working(number: usize) -> Value {
    json!({"statusUpdate": {"taskId": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"},
        "metadata": {"n": number}}})
}

#[tokio::test]
async fn a_stream_is_one_of_messages_and_says_how_it_ended() {
    let task = json!({"task": {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_SUBMITTED"}}});
    let done = json!({"statusUpdate": {"taskId": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}}});
    let events = [task, working(1), done];
    let expected = events.clone();
    let case = Case::scripted(move |text| {
        let mut steps = vec![Step::write(SSE_HEAD), Step::write(chunk(": ping\n\n"))];
        let sent = if text.contains("break") { 2 } else { 3 };
        steps.extend(events.iter().take(sent).map(|one| Step::write(event(one))));
        steps.push(if sent == 2 {
            Step::Reset
        } else {
            Step::write(LAST_CHUNK)
        });
        steps
    })
    .await;
    let ended = case.call("SendStreamingMessage", hello("target")).await;
    assert_eq!(ended.messages, expected);
    assert_eq!(ended.status.code as u8, 0);
    assert!(
        ended.answer.field("x-a2a-stream").is_some(),
        "{:?}",
        ended.answer.fields
    );
    let mut broken = hello("target");
    broken["message"]["parts"][0]["text"] = "break".into();
    let ended = case.call("SendStreamingMessage", broken).await;
    assert_eq!(ended.messages, expected[..2]);
    assert_eq!(
        (ended.status.code as u8, ended.status.reason.as_str()),
        (13, "AGENT_PROTOCOL_ERROR")
    );
    assert_eq!(ended.status.metadata["delivered"], "true");
}

#[tokio::test]
async fn a_deadline_ends_calls_and_streams() {
    let case = Case::scripted(|text| match text.contains("SendStreamingMessage") {
        true => vec![
            Step::write(SSE_HEAD),
            Step::write(event(&working(1))),
            Step::Hang,
        ],
        false => vec![Step::Hang],
    })
    .await;
    for method in ["SendMessage", "SendStreamingMessage"] {
        let began = Instant::now();
        let request = case
            .request(method, &hello("target"))
            .field("grpc-timeout", "700m");
        let ended = case.end(method, request).await;
        assert_eq!(
            (ended.status.code as u8, ended.status.reason.as_str()),
            (4, "AGENT_TIMEOUT"),
            "{method}"
        );
        assert!(began.elapsed() >= Duration::from_millis(700));
    }
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused_and_others_go_on() {
    let agent = Agent::scripted(|_| vec![Step::Hang]);
    let builder = Builder::new(Pair::Embedded).set("server.http2_streams", "2");
    let case = Case::new(builder, agent.await).await;
    let request = case.request("SendMessage", &hello("target"));
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut begun = case.http2.begin(&request, false).await;
        begun.send(&request.body, true).await;
        open.push(begun);
    }
    case.target.agent.until_count(2).await;
    let ended = case.end("SendMessage", request).await;
    ended.assert_refused(14, "OVERLOADED");
    assert!(case.http2.stands());
}

#[tokio::test]
async fn health_and_reflection_need_no_credential() {
    let case = Case::scripted(|_| vec![Step::Hang]).await;
    let ask = async |path: &str, message: &[u8]| {
        let request = case
            .raw(path, &encode_frame(message))
            .without("authorization");
        let mut begun = case.http2.begin(&request, false).await;
        begun.send(&request.body, true).await;
        begun.answer().await.expect("a whole answer")
    };
    let health = ask("/grpc.health.v1.Health/Check", &[]).await;
    assert_eq!(health.field("grpc-status"), Some("0"));
    assert_eq!(health.body, [0, 0, 0, 0, 2, 8, 1]);
    for service in grpc::REFLECTION {
        // list_services
        let listed = ask(&format!("/{service}/ServerReflectionInfo"), &[0x3a, 0]).await;
        assert_eq!(listed.field("grpc-status"), Some("0"));
        assert!(listed.text().contains(grpc::SERVICE), "{listed:?}");
    }
    let broken = ask("/grpc.health.v1.Health/Check", &[0; 5000]).await;
    assert_eq!(broken.field("grpc-status"), Some("3"));
}

#[tokio::test]
async fn a_request_behind_the_preface_reaches_no_agent() {
    let case = Case::scripted(|_| vec![Step::Hang]).await;
    let mut connection = Connection::open(case.gateway.public).await;
    let request = case.caller.calls(&case.target).wire("localhost");
    let bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &request[..]].concat();
    connection.send(&bytes).await;
    let mut answer = Vec::new();
    let _ = connection.stream.read_to_end(&mut answer).await;
    assert!(!answer.windows(5).any(|part| part == b"HTTP/"));
    assert_eq!(case.target.agent.calls(), 0);
    assert_eq!(
        case.call("GetTask", json!({"tenant": "nobody"}))
            .await
            .status
            .code as u8,
        7
    );
}

#[tokio::test]
async fn without_grpc_the_clear_port_speaks_http_1() {
    let agent = crate::harness::answering().await;
    let gateway = Builder::new(Pair::Embedded)
        .set("server.grpc", "false")
        .start()
        .await;
    let (caller, target) = gateway.pair(agent).await;
    gateway.call(&caller.calls(&target)).await.has(200);
    assert!(Http2::try_in_the_clear(gateway.public).await.is_none());
    let mut connection = Connection::open(gateway.public).await;
    connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let answer = connection.answer().await.has(400);
    assert_eq!(answer.reason(), "invalid_request");
}
