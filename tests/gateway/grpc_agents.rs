//! Agents that are called by gRPC: calls of all forms, streams, statuses, connections that end, and what is refused.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use grpc::{
    FrameReader, MessageEncoding, Method, Status, decode_message, encode_frame, encode_message,
};
use h2::Reason;
use h2::server::{Builder as Server, SendResponse};
use http::{HeaderMap, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use crate::harness::authority::{Authority, door, server_config};
use crate::harness::tls::Http2;
use crate::harness::{Agent, Answer, Builder, Connection, Gateway, Pair, Request, Seat, card_1_0};

const PATIENCE: Duration = Duration::from_secs(60);

/// One call as the agent got it.
#[derive(Clone, Debug)]
struct Got {
    connection: usize,
    method: String,
    metadata: HeaderMap,
    message: Value,
}

impl Got {
    fn field(&self, name: &str) -> Option<&str> {
        self.metadata
            .get(name)
            .and_then(|value| value.to_str().ok())
    }
}

/// What the agent does with a call.
#[derive(Clone)]
enum Step {
    Message(Value),
    Raw(Vec<u8>),
    /// Code, message and reason.
    Status(u8, &'static str, &'static str),
    /// The same, without a head before it.
    OnlyStatus(u8, &'static str, &'static str),
    Http(u16),
    Reset(Reason),
    Held(Arc<Semaphore>),
    /// GOAWAY in order: what runs goes on.
    Leave,
}

type Script = Arc<dyn Fn(&Got) -> Vec<Step> + Send + Sync>;

/// An agent of gRPC.
#[derive(Clone)]
struct GrpcAgent {
    port: u16,
    calls: Arc<Mutex<Vec<Got>>>,
    connections: Arc<AtomicUsize>,
    /// Calls that were reset.
    resets: Arc<Semaphore>,
    gzip: Arc<Mutex<bool>>,
    /// Connections that it ends by a GOAWAY before the first stream.
    leaving: Arc<AtomicUsize>,
}

impl GrpcAgent {
    async fn start(
        streams: u32,
        script: impl Fn(&Got) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let agent = Self {
            port: listener.local_addr().expect("bound").port(),
            calls: Arc::default(),
            connections: Arc::default(),
            resets: Arc::new(Semaphore::new(0)),
            gzip: Arc::default(),
            leaving: Arc::default(),
        };
        let (serving, script): (_, Script) = (agent.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (agent, script) = (serving.clone(), Arc::clone(&script));
                tokio::spawn(async move { agent.serve(stream, streams, script).await });
            }
        });
        agent
    }

    async fn serve(self, stream: TcpStream, streams: u32, script: Script) {
        let number = self.connections.fetch_add(1, Ordering::SeqCst);
        let takes = |left: &AtomicUsize| {
            let less = |left: usize| left.checked_sub(1);
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_ok()
        };
        if takes(&self.leaving) {
            return leave_at_once(stream).await;
        }
        let mut server = Server::new();
        server.max_concurrent_streams(streams);
        let Ok(mut connection) = server.handshake::<_, Bytes>(stream).await else {
            return;
        };
        let leave = Arc::new(Notify::new());
        loop {
            tokio::select! {
                biased;
                () = leave.notified() => connection.graceful_shutdown(),
                accepted = connection.accept() => {
                    let Some(Ok((request, answer))) = accepted else { return };
                    let (agent, script) = (self.clone(), Arc::clone(&script));
                    let ends = Arc::clone(&leave);
                    tokio::spawn(async move { agent.answer(number, request, answer, script, ends).await });
                }
            }
        }
    }

    async fn answer(
        self,
        connection: usize,
        request: http::Request<h2::RecvStream>,
        mut answer: SendResponse<Bytes>,
        script: Script,
        leave: Arc<Notify>,
    ) {
        let (got, method) = read_call(connection, request).await;
        self.calls.lock().unwrap().push(got.clone());
        let mut stream = None;
        for step in script(&got) {
            let bytes = match step {
                Step::Message(message) => {
                    let message = message.to_string();
                    let message = encode_message(method.response(), message.as_bytes(), |_| {});
                    encode_frame(&message.expect("a message"))
                }
                Step::Raw(bytes) => bytes.into(),
                Step::Status(code, message, reason) => {
                    let stream = stream.get_or_insert_with(|| self.head(&mut answer));
                    let _ = stream.send_trailers(trailers(code, message, reason));
                    return;
                }
                Step::OnlyStatus(code, message, reason) => {
                    let mut head = Response::new(());
                    *head.headers_mut() = trailers(code, message, reason);
                    let grpc = "application/grpc".parse().unwrap();
                    head.headers_mut().insert("content-type", grpc);
                    let _ = answer.send_response(head, true);
                    return;
                }
                Step::Http(status) => {
                    let mut head = Response::new(());
                    *head.status_mut() = http::StatusCode::from_u16(status).unwrap();
                    let _ = answer.send_response(head, true);
                    return;
                }
                Step::Reset(reason) => {
                    answer.send_reset(reason);
                    return;
                }
                Step::Held(permit) => {
                    let sent = stream.get_or_insert_with(|| self.head(&mut answer));
                    tokio::select! {
                        _ = permit.acquire() => {}
                        _ = std::future::poll_fn(|cx| sent.poll_reset(cx)) => {
                            self.resets.add_permits(1);
                            return;
                        }
                    }
                    continue;
                }
                Step::Leave => {
                    leave.notify_one();
                    continue;
                }
            };
            let stream = stream.get_or_insert_with(|| self.head(&mut answer));
            let _ = stream.send_data(bytes, false);
        }
        let stream = stream.get_or_insert_with(|| self.head(&mut answer));
        let _ = stream.send_trailers(trailers(0, "", ""));
    }

    fn head(&self, answer: &mut SendResponse<Bytes>) -> h2::SendStream<Bytes> {
        let mut head = Response::builder()
            .header("content-type", "application/grpc+proto")
            .header("a2a-extensions", "urn:x");
        if *self.gzip.lock().unwrap() {
            head = head.header("grpc-encoding", "gzip");
        }
        answer
            .send_response(head.body(()).unwrap(), false)
            .expect("a stream")
    }

    fn calls(&self) -> Vec<Got> {
        self.calls.lock().unwrap().clone()
    }

    fn last(&self) -> Got {
        self.calls().pop().expect("a call")
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn interface(&self, version: &str) -> Value {
        json!({"url": format!("127.0.0.1:{}", self.port), "protocolBinding": "GRPC", "protocolVersion": version})
    }
}

async fn read_call(
    connection: usize,
    request: http::Request<h2::RecvStream>,
) -> (Got, &'static Method) {
    let (head, mut body) = request.into_parts();
    let mut reader = FrameReader::new(MessageEncoding::Identity, u64::MAX);
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        reader.push(&data);
    }
    let name = head.uri.path().strip_prefix("/lf.a2a.v1.A2AService/");
    let name = name.expect("the service").to_owned();
    let method = Method::find(&name).expect("a method");
    let message = reader.single_message().expect("one message");
    let message = decode_message(method.request(), &message, |_| {}).expect("a message");
    let got = Got {
        connection,
        method: name,
        metadata: head.headers,
        message: serde_json::from_slice(&message).expect("JSON"),
    };
    (got, method)
}

fn trailers(code: u8, message: &str, reason: &str) -> HeaderMap {
    let mut status = Status::new(grpc::Code::from_number(&code.to_string()), message);
    (status.reason, status.domain) = (reason.into(), "a2a-protocol.org".into());
    let mut fields = HeaderMap::new();
    fields.insert("grpc-status", code.to_string().parse().unwrap());
    fields.insert("grpc-message", status.message_field().parse().unwrap());
    if let Some(details) = status.details_field().filter(|_| !reason.is_empty()) {
        fields.insert("grpc-status-details-bin", details.parse().unwrap());
    }
    fields
}

/// Speaks HTTP/2 until a call comes, and says that it took none.
async fn leave_at_once(mut stream: TcpStream) {
    const FRAME: usize = 9;
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.expect("a preface");
    stream
        .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
        .await
        .expect("settings");
    loop {
        let mut head = [0; FRAME];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.expect("a frame");
        let answer = match (head[3], head[4]) {
            (4, 0) => vec![0, 0, 0, 4, 1, 0, 0, 0, 0],
            (6, 0) => [&[0, 0, 8, 6, 1, 0, 0, 0, 0][..], &payload].concat(),
            // GOAWAY: the last stream is 0.
            (1, _) => [[0, 0, 8, 7, 0, 0, 0, 0, 0].as_slice(), &[0; 8]].concat(),
            _ => continue,
        };
        let _ = stream.write_all(&answer).await;
    }
}

/// A gateway with an agent of gRPC.
struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
    agent: GrpcAgent,
}

impl Case {
    async fn new(script: impl Fn(&Got) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::with(Builder::new(Pair::Embedded), 100, |_| {}, script).await
    }

    async fn with(
        builder: Builder,
        streams: u32,
        change: impl FnOnce(&mut Value),
        script: impl Fn(&Got) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let agent = GrpcAgent::start(streams, script).await;
        let gateway = builder.start().await;
        let idle = Agent::json("{}").await;
        let caller = gateway.seat("caller", "", idle).await;
        let mut card = card_1_0("target");
        card["supportedInterfaces"] = json!([agent.interface("1.0")]);
        card["capabilities"] = json!({"streaming": true});
        change(&mut card);
        let http = Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"over-http","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}}"#).await;
        let target = gateway.seat_of(card, "", http).await;
        Self {
            gateway,
            caller,
            target,
            agent,
        }
    }

    fn rpc(&self, method: &str, params: &Value) -> Request {
        let call = json!({"jsonrpc": "2.0", "id": "c-1", "method": method, "params": params});
        self.request("", &call)
    }

    fn request(&self, tail: &str, body: &Value) -> Request {
        let path = format!("/workspaces/target/a2a{tail}");
        Request::post(path, body.to_string()).bearer(&self.caller.token)
    }

    async fn call(&self, method: &str, params: Value) -> Answer {
        self.gateway.call(&self.rpc(method, &params)).await
    }

    async fn until_calls(&self, count: usize) {
        let all = async {
            while self.agent.calls().len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, all).await.expect("the calls in time");
    }

    async fn send(&self) -> Answer {
        self.call("SendMessage", hello()).await
    }
}

fn hello() -> Value {
    json!({"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}})
}

fn task(state: &str) -> Value {
    json!({"id": "t-1", "contextId": "c-1", "status": {"state": state}})
}

fn done() -> Vec<Step> {
    vec![Step::Message(json!({"task": task("TASK_STATE_COMPLETED")}))]
}

fn update(state: &str) -> Step {
    Step::Message(
        json!({"statusUpdate": {"taskId": "t-1", "contextId": "c-1", "status": {"state": state}}}),
    )
}

#[tokio::test]
async fn a_call_of_json_rpc_is_made_by_grpc() {
    let case = Case::with(
        Builder::new(Pair::Embedded),
        100,
        |card| card["supportedInterfaces"][0]["tenant"] = "eu".into(),
        |_| done(),
    );
    let case = case.await;
    let answer = case.send().await.has(200);
    assert_eq!(
        answer.json(),
        json!({"jsonrpc": "2.0", "id": "c-1", "result": {"task": task("TASK_STATE_COMPLETED")}})
    );
    assert_eq!(answer.field("x-a2a-bridged"), Some("jsonrpc>grpc"));
    assert_eq!(answer.field("a2a-extensions"), Some("urn:x"));
    let got = case.agent.last();
    assert_eq!(got.method, "SendMessage");
    assert_eq!(got.message["message"], hello()["message"]);
    assert_eq!(got.message["tenant"], "eu");
    assert_eq!(got.field("a2a-version"), Some("1.0"));
    assert_eq!(got.field("x-workspace-id"), Some("caller"));
    assert_eq!(got.field("x-a2a-hops"), Some("1"));
    assert!(
        got.field("authorization")
            .is_some_and(|token| token.starts_with("Bearer "))
    );
    assert!(got.field("x-request-id").is_some() && got.field("host").is_none());
    assert!(got.field("content-length").is_none());
    assert_eq!(got.field("te"), Some("trailers"));
    // One connection for calls that follow each other.
    let first = case.agent.connections();
    case.send().await.has(200);
    assert!(case.agent.connections() <= first + 1);
}

#[tokio::test]
async fn callers_of_all_forms_reach_an_agent_of_grpc() {
    let case = Case::new(|got| match got.method.as_str() {
        "SendStreamingMessage" => vec![
            Step::Message(json!({"task": task("TASK_STATE_WORKING")})),
            update("TASK_STATE_COMPLETED"),
        ],
        "GetTask" => vec![Step::Message(task("TASK_STATE_WORKING"))],
        "CancelTask" => vec![Step::OnlyStatus(9, "it has ended", "TASK_NOT_CANCELABLE")],
        _ => done(),
    })
    .await;
    let old = json!({"message": {"kind": "message", "messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": "hello"}]}});
    let proto = json!({"message": {"messageId": "m-1", "role": "ROLE_USER", "content": [{"text": "hello"}]}});
    let forms = [
        (
            case.rpc("message/send", &old),
            "0.3>1.0,jsonrpc>grpc",
            "/result/status/state",
            "completed",
        ),
        (
            case.rpc("SendMessage", &hello()),
            "jsonrpc>grpc",
            "/result/task/status/state",
            "TASK_STATE_COMPLETED",
        ),
        (
            case.request("/message:send", &hello()),
            "http+json>grpc",
            "/task/status/state",
            "TASK_STATE_COMPLETED",
        ),
        (
            case.request("/v1/message:send", &proto),
            "0.3>1.0,http+json>grpc",
            "/task/status/state",
            "TASK_STATE_COMPLETED",
        ),
    ];
    for (request, label, at, state) in forms {
        let answer = case.gateway.call(&request).await.has(200);
        assert_eq!(answer.json().pointer(at), Some(&json!(state)), "{label}");
        assert_eq!(answer.field("x-a2a-bridged"), Some(label));
        assert_eq!(
            case.agent.last().message["message"]["parts"][0]["text"],
            "hello"
        );
    }
    let streams = [
        (case.rpc("message/stream", &old), "completed"),
        (
            case.rpc("SendStreamingMessage", &hello()),
            "TASK_STATE_COMPLETED",
        ),
        (
            case.request("/message:stream", &hello()),
            "TASK_STATE_COMPLETED",
        ),
        (
            case.request("/v1/message:stream", &proto),
            "TASK_STATE_COMPLETED",
        ),
    ];
    for (request, state) in streams {
        let events = case.gateway.call(&request).await.has(200).events();
        assert_eq!(events.len(), 2, "{events:?}");
        assert!(events[1].contains(&format!("\"{state}\"")), "{events:?}");
    }
    let answer = case.call("CancelTask", json!({"id": "t-1"})).await;
    let error = &answer.json()["error"];
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!(-32002), &json!("it has ended"))
    );
    assert_eq!(error["data"][0]["reason"], "TASK_NOT_CANCELABLE");
    let answer = case.call("tasks/cancel", json!({"id": "t-1"})).await;
    assert_eq!(answer.json()["error"]["code"], -32002);
    let got = case
        .gateway
        .call(&Request::get("/workspaces/target/a2a/v1/tasks/t-1").bearer(&case.caller.token))
        .await;
    assert_eq!(got.has(200).json()["status"]["state"], "TASK_STATE_WORKING");
    by_grpc(&case).await;
}

/// A caller of gRPC is not translated.
async fn by_grpc(case: &Case) {
    let http2 = Http2::in_the_clear(case.gateway.public).await;
    let method = Method::find("SendMessage").unwrap();
    let mut message = hello();
    message["tenant"] = "target".into();
    let message = encode_message(method.request(), message.to_string().as_bytes(), |_| {});
    let mut request = Request::new("POST", method.path())
        .field("Content-Type", "application/grpc")
        .field("TE", "trailers")
        .field("grpc-timeout", "50S")
        .bearer(&case.caller.token);
    request.body = encode_frame(&message.unwrap()).to_vec();
    let mut begun = http2.begin(&request, false).await;
    begun.send(&request.body, true).await;
    let answer = begun.answer().await.expect("a whole answer");
    assert_eq!(answer.field("grpc-status"), Some("0"));
    assert_eq!(answer.field("x-a2a-bridged"), None);
    let got = case.agent.last();
    let left = got
        .field("grpc-timeout")
        .and_then(|left| left.strip_suffix('m'));
    let left: u64 = left.expect("milliseconds").parse().unwrap();
    assert!((1..=50_000).contains(&left), "{left}");
}

#[tokio::test]
async fn events_come_one_by_one_and_a_call_whose_caller_leaves_is_reset() {
    let more = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&more);
    let case = Case::new(move |_| {
        let first = Step::Message(json!({"task": task("TASK_STATE_WORKING")}));
        vec![
            first,
            Step::Held(Arc::clone(&held)),
            update("TASK_STATE_WORKING"),
            Step::Held(Arc::clone(&held)),
        ]
    })
    .await;
    let mut connection = Connection::open(case.gateway.public).await;
    connection
        .ask(&case.rpc("GetTask", &json!({"id": "none"})))
        .await;
    case.until_calls(1).await;
    drop(connection);
    let _ = timeout(PATIENCE, case.agent.resets.acquire())
        .await
        .expect("a reset")
        .unwrap();
    let mut connection = Connection::open(case.gateway.public).await;
    let request = case.rpc("SendStreamingMessage", &hello());
    connection
        .ask(&request.field("X-A2A-Cancel", "leave"))
        .await;
    connection.read_head().await.expect("a head").has(200);
    let first = connection.next_chunk().await.expect("an event");
    assert!(String::from_utf8_lossy(&first).contains("TASK_STATE_WORKING"));
    more.add_permits(1);
    let second = connection.next_chunk().await.expect("an event");
    assert!(String::from_utf8_lossy(&second).contains("statusUpdate"));
}

#[tokio::test]
async fn statuses_become_errors() {
    let case = Case::new(|got| {
        let text = got.message["message"]["parts"][0]["text"]
            .as_str()
            .unwrap_or_default();
        match text {
            "unavailable" => vec![Step::OnlyStatus(14, "later", "")],
            "trailing" => vec![Step::Status(5, "no task", "TASK_NOT_FOUND")],
            "none" => vec![],
            "two" => [done(), done()].concat(),
            "http" => vec![Step::Http(404)],
            "reset" => vec![Step::Reset(Reason::INTERNAL_ERROR)],
            _ => vec![Step::OnlyStatus(13, "broken", "")],
        }
    })
    .await;
    let say = |text: &str| {
        let mut params = hello();
        params["message"]["parts"][0]["text"] = text.into();
        params
    };
    for (text, http, code) in [
        ("unavailable", 503, -32603),
        ("trailing", 200, -32001),
        ("none", 200, -32006),
        ("two", 200, -32006),
        ("other", 200, -32603),
    ] {
        let answer = case.call("SendMessage", say(text)).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (http, &json!(code)),
            "{text}"
        );
    }
    let answer = case.call("SendMessage", say("http")).await;
    assert_eq!(answer.status, 404);
    let answer = case.call("SendMessage", say("reset")).await;
    assert_eq!(answer.reason(), "agent_protocol_error");
    let events = case
        .call("SendStreamingMessage", say("trailing"))
        .await
        .events();
    assert!(events[0].contains("-32001"), "{events:?}");
}

#[tokio::test]
async fn a_call_that_was_not_taken_is_sent_again_and_no_other() {
    let count = AtomicUsize::new(0);
    let case = Case::new(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => vec![Step::Reset(Reason::REFUSED_STREAM)],
        2 => vec![Step::Reset(Reason::CANCEL)],
        _ => done(),
    })
    .await;
    case.send().await.has(200);
    assert_eq!(case.agent.calls().len(), 2);
    assert_eq!(case.send().await.reason(), "agent_protocol_error");
    assert_eq!(case.agent.calls().len(), 3);
    case.send().await.has(200);
}

#[tokio::test]
async fn goaway_ends_a_connection_without_a_lost_call() {
    let count = AtomicUsize::new(0);
    let builder = Builder::new(Pair::Embedded).set("server.threads", "1");
    let script = move |_: &Got| match count.fetch_add(1, Ordering::SeqCst) {
        0 => [vec![Step::Leave], done()].concat(),
        _ => done(),
    };
    let case = Case::with(builder, 100, |_| {}, script).await;
    let moved = async {
        while case.agent.connections() < 2 {
            case.send().await.has(200);
        }
    };
    timeout(PATIENCE, moved).await.expect("another connection");
    assert_eq!(case.agent.last().connection, 1);
}

#[tokio::test]
async fn calls_beyond_the_last_stream_of_a_goaway_are_sent_again_but_not_for_ever() {
    let case = Case::new(|_| done()).await;
    case.agent.leaving.store(2, Ordering::SeqCst);
    case.send().await.has(200);
    assert_eq!((case.agent.calls().len(), case.agent.connections()), (1, 3));
    let builder = Builder::new(Pair::Embedded).set("server.threads", "1");
    let case = Case::with(builder, 100, |_| {}, |_| done()).await;
    case.agent.leaving.store(100, Ordering::SeqCst);
    case.send().await.has(503);
    assert_eq!((case.agent.calls().len(), case.agent.connections()), (0, 3));
}

#[tokio::test]
async fn no_connection_has_more_streams_than_its_agent_takes() {
    let go = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&go);
    let builder = Builder::new(Pair::Embedded).set("server.threads", "1");
    let case = Case::with(
        builder,
        2,
        |_| {},
        move |_| [vec![Step::Held(Arc::clone(&held))], done()].concat(),
    )
    .await;
    let calls = (0..5).map(|_| case.send());
    let calls = futures_util::future::join_all(calls);
    let release = async {
        case.until_calls(5).await;
        go.add_permits(5);
    };
    let (answers, ()) = tokio::join!(calls, release);
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!(case.agent.connections(), 3);
    for connection in 0..3 {
        let calls = case.agent.calls();
        assert!(
            calls
                .iter()
                .filter(|got| got.connection == connection)
                .count()
                <= 2
        );
    }
}

fn gzipped(message: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(message).unwrap();
    let mut frame = encode_frame(&encoder.finish().unwrap()).to_vec();
    frame[0] = 1;
    frame
}

#[tokio::test]
async fn answers_are_bounded_compressed_or_not() {
    let builder = Builder::new(Pair::Embedded).set("limits.response_bytes", "20KiB");
    let case = Case::with(
        builder,
        100,
        |_| {},
        |got| {
            let text = got.message["message"]["parts"][0]["text"]
                .as_str()
                .unwrap_or_default();
            let length = text.parse().unwrap_or(0);
            let part = json!({"text": "a".repeat(length)});
            let message =
                json!({"message": {"messageId": "a", "role": "ROLE_AGENT", "parts": [part]}});
            let method = Method::find("SendMessage").unwrap();
            let message = encode_message(method.response(), message.to_string().as_bytes(), |_| {});
            vec![Step::Raw(gzipped(&message.unwrap()))]
        },
    )
    .await;
    *case.agent.gzip.lock().unwrap() = true;
    let say = |text: &str| {
        let mut params = hello();
        params["message"]["parts"][0]["text"] = text.into();
        case.call("SendMessage", params)
    };
    assert_eq!(
        say("10000").await.has(200).json()["result"]["message"]["parts"][0]["text"]
            .as_str()
            .unwrap()
            .len(),
        10_000
    );
    let bomb = say("1000000").await;
    assert_eq!(bomb.reason(), "response_too_large");
    *case.agent.gzip.lock().unwrap() = false;
    assert_eq!(say("10000").await.json()["error"]["code"], -32006);
}

#[tokio::test]
async fn numbers_that_would_be_rounded_are_refused_in_both_directions() {
    let case = Case::new(|_| {
        let mut frame = Vec::new();
        let method = Method::find("SendMessage").unwrap();
        let message =
            json!({"message": {"messageId": "a", "role": "ROLE_AGENT", "parts": [{"data": 1}]}});
        let message =
            encode_message(method.response(), message.to_string().as_bytes(), |_| {}).unwrap();
        let one = 1.0_f64.to_le_bytes();
        let at = message.windows(8).position(|part| part == one).unwrap();
        frame.extend_from_slice(&message);
        frame[at..at + 8].copy_from_slice(&f64::INFINITY.to_le_bytes());
        vec![Step::Raw(encode_frame(&frame).to_vec())]
    })
    .await;
    let mut params = hello();
    params["metadata"] = json!({"n": 9_007_199_254_740_993_i64});
    let refused = case.call("SendMessage", params).await;
    assert_eq!(refused.json()["error"]["code"], -32005);
    assert!(refused.text().contains("without rounding"));
    assert!(case.agent.calls().is_empty());
    let answer = case.send().await;
    assert_eq!(answer.json()["error"]["code"], -32006);
    assert!(answer.text().contains("without rounding"));
}

#[tokio::test]
async fn grpc_of_0_3_is_refused_in_words_and_the_setting_chooses_among_interfaces() {
    let only_old =
        |card: &mut Value| card["supportedInterfaces"][0]["protocolVersion"] = "0.3".into();
    let old = Case::with(Builder::new(Pair::Embedded), 100, only_old, |_| done()).await;
    let refused = old.send().await;
    let error = &refused.json()["error"];
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!(-32004), &json!("agent speaks gRPC of A2A 0.3 only"))
    );
    let both = |card: &mut Value| {
        let rpc = card_1_0("target")["supportedInterfaces"][0].clone();
        card["supportedInterfaces"]
            .as_array_mut()
            .unwrap()
            .push(rpc);
    };
    let case = Case::with(Builder::new(Pair::Embedded), 100, both, |_| done()).await;
    let answered_by = async || {
        let answer = case.send().await.has(200);
        answer.json()["result"]["task"]["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(answered_by().await, "over-http");
    case.gateway
        .patch("target", json!({"transport": "grpc"}))
        .await
        .has(200);
    assert_eq!(answered_by().await, "t-1");
    assert_eq!(case.gateway.view("target").await["transport"], "grpc");
    case.gateway
        .patch("target", json!({"transport": "jsonrpc"}))
        .await
        .has(200);
    assert_eq!(answered_by().await, "over-http");
    by_grpc_over_http(&case).await;
    case.gateway
        .patch("target", json!({"transport": "udp"}))
        .await
        .has(400);
    assert!(case.target.agent.take().text().contains("SendMessage"));
}

/// The setting counts for callers of gRPC, too.
async fn by_grpc_over_http(case: &Case) {
    let before = case.agent.calls().len();
    let http2 = Http2::in_the_clear(case.gateway.public).await;
    let method = Method::find("SendMessage").unwrap();
    let message = encode_message(method.request(), hello().to_string().as_bytes(), |_| {});
    let mut request = Request::new("POST", method.path())
        .field("Content-Type", "application/grpc")
        .field("x-a2a-workspace", "target")
        .bearer(&case.caller.token);
    request.body = encode_frame(&message.unwrap()).to_vec();
    let mut begun = http2.begin(&request, false).await;
    begun.send(&request.body, true).await;
    let answer = begun.answer().await.expect("a whole answer");
    assert_eq!(answer.field("x-a2a-bridged"), Some("grpc>jsonrpc"));
    assert_eq!(case.agent.calls().len(), before);
}

#[tokio::test]
async fn an_agent_that_is_away_or_speaks_no_http2_was_not_called() {
    let away = |card: &mut Value| card["supportedInterfaces"][0]["url"] = "127.0.0.1:9".into();
    let builder = Builder::new(Pair::Embedded).set("upstream.hold", "0s");
    let case = Case::with(builder, 100, away, |_| done()).await;
    let refused = case.send().await;
    assert_eq!(refused.reason(), "agent_unreachable");
    assert_eq!(refused.fact("delivered").as_deref(), Some("false"));
    let elsewhere =
        |card: &mut Value| card["supportedInterfaces"][0]["url"] = "8.8.8.8:50051".into();
    let case = Case::with(Builder::new(Pair::Embedded), 100, elsewhere, |_| done()).await;
    let refused = case.send().await;
    assert_eq!(refused.reason(), "address_forbidden");
    assert!(refused.text().contains("without TLS at a public address"));
}

/// A workspace with the agent at `url`, whose card names the gRPC interface at `place`.
async fn settle(gateway: &Gateway, id: &str, (url, place): (&str, &str), tls: Value) {
    let mut new = json!({"id": id, "name": id, "url": url, "liveness": "assumed"});
    if !tls.is_null() {
        new["upstream_tls"] = tls;
    }
    let enrolment = gateway.create(new).await;
    let mut card = card_1_0(id);
    card["supportedInterfaces"] =
        json!([{"url": place, "protocolBinding": "GRPC", "protocolVersion": "1.0"}]);
    gateway.register(id, &enrolment, url, card).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_an_agent_is_who_its_certificate_says_and_speaks_http2() {
    let authority = Authority::new("ours");
    let agent = GrpcAgent::start(100, |_| done()).await;
    let gateway = Gateway::start(Pair::Embedded).await;
    for (id, protocol, host, prefix, good) in [
        ("bare", "h2", "localhost", "", true),
        ("https", "h2", "localhost", "https://", true),
        ("http1", "http/1.1", "localhost", "", false),
        ("other", "h2", "127.0.0.1", "", false),
    ] {
        let mut config = server_config(&authority.issue(&["localhost"]), None);
        config.alpn_protocols = vec![protocol.into()];
        let (port, door) = door("127.0.0.1", agent.port, config, Arc::default()).await;
        let (url, place) = (
            format!("https://{host}:{port}/"),
            format!("{prefix}{host}:{port}"),
        );
        let tls = json!({"ca": authority.pem()});
        settle(&gateway, id, (&url, &place), tls).await;
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": hello()});
        let request = Request::post(format!("/workspaces/{id}/a2a"), call.to_string());
        let before = agent.calls().len();
        let answer = gateway.as_operator(request).await;
        if good {
            assert_eq!(answer.status, 200, "{id}: {}", answer.text());
            assert_eq!(agent.calls().len(), before + 1);
        } else {
            assert_eq!(answer.reason(), "agent_unreachable", "{id}");
            assert_eq!(answer.fact("delivered").as_deref(), Some("false"), "{id}");
            assert_eq!(agent.calls().len(), before);
        }
        door.abort();
    }
}

#[tokio::test]
async fn an_agent_with_nothing_but_a_port_of_grpc_is_called_in_all_forms() {
    let agent = GrpcAgent::start(100, |_| done()).await;
    let gateway = Gateway::start(Pair::Embedded).await;
    let place = format!("127.0.0.1:{}", agent.port);
    let url = format!("http://{place}/");
    settle(&gateway, "only", (&url, &place), Value::Null).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": hello()});
    for (tail, body) in [("", &call), ("/message:send", &hello())] {
        let path = format!("/workspaces/only/a2a{tail}");
        let request = Request::post(path, body.to_string()).field("A2A-Version", "1.0");
        gateway.as_operator(request).await.has(200);
    }
    assert_eq!(agent.calls().len(), 2);
    // What no translation knows is not sent to a port of gRPC.
    let unknown = json!({"jsonrpc": "2.0", "id": 1, "method": "x/y", "params": {}});
    let request = Request::post("/workspaces/only/a2a", unknown.to_string());
    assert_eq!(
        gateway.as_operator(request).await.json()["error"]["code"],
        -32601
    );
    assert_eq!(agent.calls().len(), 2);
}
