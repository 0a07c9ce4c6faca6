//! Tests of the stages of a message, without a process: a listener over an in-memory connection, on the embedded
//! stores, with an agent on a loopback socket.

mod answers;
mod browsers;
mod calls;
mod clocks;
mod dialling;
mod generations;
mod order;
mod redirects;
mod size;
mod streams;
mod versions;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::listener::{Connections, serve_http1};
use super::*;
use access::explain::ExplainQuery;
use assembly::gateway::Gateway;
use kernel::config::Config;
use kernel::config::load::DEFAULT;
use kernel::metrics::Metrics;
use kernel::telemetry::traces::Traces;

/// A call without `messageId`, which the gateway completes.
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","role":"user","parts":[{"kind":"text","text":"hi"}]}}}"#;

/// A card that says what its agent speaks.
const CARD: &str = r#"{"name":"n","protocolVersion":"0.3.0"}"#;

/// A gateway behind a listener, and the agent of its workspace `target`.
struct TestGateway {
    listener: Arc<Connections<Router>>,
    admin: SecretString,
    agent: Agent,
    /// A port at which no agent listens, for the next workspace.
    closed_port: AtomicU16,
    _dir: tempfile::TempDir,
}

/// The answer of an agent to each request.
struct AgentAnswer {
    text: String,
    /// True if the connection is closed behind the answer.
    closes: bool,
    /// True if it is closed by a reset.
    resets: bool,
}

impl From<String> for AgentAnswer {
    fn from(text: String) -> Self {
        Self {
            text,
            closes: true,
            resets: false,
        }
    }
}

impl AgentAnswer {
    /// An answer behind which the connection stays open.
    fn open(text: String) -> Self {
        Self {
            text,
            closes: false,
            resets: false,
        }
    }

    /// An answer behind which the connection is reset.
    fn reset(text: String) -> Self {
        Self {
            text,
            closes: true,
            resets: true,
        }
    }
}

/// An agent that gives one answer to each request.
struct Agent {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

/// An answer to a caller.
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Agent {
    async fn start(answer: AgentAnswer) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&requests);
        let serving = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = socket.accept().await {
                let request = read_request(&mut stream).await;
                recorded.lock().push(request);
                let _ = stream.write_all(answer.text.as_bytes()).await;
                if answer.resets {
                    stream.set_zero_linger().unwrap();
                }
                if !answer.closes {
                    open.push(stream);
                }
            }
        });
        Self {
            port,
            requests,
            serving,
        }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = field(head, "content-length").map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return text;
            }
        }
        if stream.read_buf(&mut bytes).await.unwrap() == 0 {
            return text;
        }
    }
}

/// Returns a field of a head.
fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    fields
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

/// An agent's answer with one JSON body.
fn unary_answer(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// An agent's chunked stream of events, which is cut unless it is `whole`.
fn stream_answer(events: &[&str], whole: bool) -> String {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut answer = head.to_owned();
    for event in events {
        let event = format!("data: {event}\n\n");
        answer.push_str(&format!("{:x}\r\n{event}\r\n", event.len()));
    }
    if whole {
        answer.push_str("0\r\n\r\n");
    }
    answer
}

impl Reply {
    fn parse(answer: &str) -> Self {
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        Self {
            status: head[9..12].parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    fn refusal(&self) -> Option<&str> {
        self.field(kernel::rejection::REFUSED)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }
}

/// Reads to the end of an answer, or of the connection.
async fn read_answer(caller: &mut DuplexStream) -> String {
    let mut answer = Vec::new();
    while !is_whole(&answer) && caller.read_buf(&mut answer).await.unwrap() > 0 {}
    String::from_utf8(answer).unwrap()
}

/// True if an answer is complete, by its `Content-Length`.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
        let length = field(head, "content-length").and_then(|length| length.parse().ok());
        length.is_some_and(|length: usize| body.len() >= length)
    })
}

impl TestGateway {
    /// Starts a gateway whose workspace `target` is an agent with this answer.
    async fn new(answer: impl Into<AgentAnswer>, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config: Config = toml::from_str(DEFAULT).unwrap();
        config.stores.sql = format!("sqlite:{}", dir.path().join("gw.db").display()).into();
        config.stores.timeout = Duration::from_secs(60);
        config.keys.dir = dir.path().join("keys");
        change(&mut config);
        let gateway = Gateway::open(config.into(), Arc::new(Metrics::new())).unwrap();
        let admin = gateway.prepare().await.unwrap();
        let router = ::control_plane::router(Arc::clone(&gateway));
        let plane = DataPlane::new(gateway, router, Traces::default());
        let listener = listen(&plane.0.relay, Router::new(Arc::clone(&plane.0)));
        let gateway = Self {
            listener: Arc::new(listener),
            admin,
            agent: Agent::start(answer.into()).await,
            closed_port: AtomicU16::new(1),
            _dir: dir,
        };
        gateway
            .create_workspace(json!({"id": "target", "name": "target"}))
            .await;
        gateway
    }

    /// Creates a workspace, and registers `target` at the agent. Returns the token of `target`, and the enrolment
    /// token of any other.
    async fn create_workspace(&self, new: Value) -> String {
        let admin = self.admin_field();
        let created = self
            .send("POST /workspaces", &[&admin], &new.to_string())
            .await;
        assert_eq!(created.status, 201, "{}", created.body);
        let created = created.json();
        let id = created["id"].as_str().unwrap();
        // Only one workspace may register at an origin.
        let port = match id {
            "target" => self.agent.port,
            _ => self.closed_port.fetch_add(1, Ordering::Relaxed),
        };
        let url = format!("http://127.0.0.1:{port}/a2a");
        let body = json!({"id": id, "url": url, "agent_card": CARD.parse::<Value>().unwrap()});
        let body = body.to_string();
        let enrolment = format!(
            "authorization: Bearer {}",
            created["enrolment_token"].as_str().unwrap()
        );
        let registered = self
            .send("POST /registry/register", &[&enrolment], &body)
            .await;
        assert_eq!(registered.status, 200, "{}", registered.body);
        let token = registered.json();
        format!("authorization: Bearer {}", token["token"].as_str().unwrap())
    }

    /// Returns the fact of how an operator's call to the target is made.
    async fn explain_call(&self, target: &str) -> Value {
        let explain = Explainer::new(Arc::clone(&self.listener.service.context)).into_fn();
        let query = ExplainQuery {
            caller: "operator".to_owned(),
            target: target.to_owned(),
            ..ExplainQuery::default()
        };
        let explained = explain(query).await.unwrap().to_json("operator", target);
        let steps = explained["steps"].as_array().unwrap();
        let step = steps.iter().find(|step| step["step"] == "call");
        step.unwrap_or_else(|| panic!("no call in {explained:#}"))["fact"].clone()
    }

    /// Returns a workspace as an operator reads it.
    async fn read_workspace(&self, id: &str) -> Value {
        let admin = self.admin_field();
        let line = format!("GET /workspaces/{id}");
        let read = self.send(&line, &[&admin], "").await;
        assert_eq!(read.status, 200, "{}", read.body);
        read.json()
    }

    /// Returns the number of calls with this outcome.
    fn count_outcomes(&self, outcome: &str) -> usize {
        let text = self.listener.metrics.render(kernel::metrics::Format::Text);
        let label = format!("outcome=\"{outcome}\"");
        let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        let counts = lines.filter(|(name, _)| {
            name.starts_with("a2a_gateway_exchanges_total{") && name.contains(&label)
        });
        counts
            .map(|(_, count)| count.parse::<usize>().unwrap())
            .sum()
    }

    fn admin_field(&self) -> String {
        format!("authorization: Bearer {}", self.admin.expose_secret())
    }

    /// Sends `POST` to the base of `target` as the operator.
    async fn call(&self, fields: &[&str], body: &str) -> Reply {
        let admin = self.admin_field();
        let fields = [fields, &[&admin]].concat();
        self.send("POST /workspaces/target/a2a", &fields, body)
            .await
    }

    /// Returns the text of one request.
    fn request(line: &str, fields: &[&str], body: &str) -> String {
        let mut request =
            format!("{line} HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nconnection: close\r\n");
        for field in fields {
            request.push_str(&format!("{field}\r\n"));
        }
        if !body.is_empty() {
            let length = body.len();
            request.push_str(&format!(
                "content-type: application/json\r\ncontent-length: {length}\r\n"
            ));
        }
        request.push_str(&format!("\r\n{body}"));
        request
    }

    /// Sends one request.
    async fn send(&self, line: &str, fields: &[&str], body: &str) -> Reply {
        self.send_text(&Self::request(line, fields, body)).await
    }

    /// Connects a caller. The connection is served until it ends.
    fn connect(&self) -> (DuplexStream, JoinHandle<()>) {
        let (caller, gateway) = duplex(64 * 1024);
        let listener = Arc::clone(&self.listener);
        let deadline = Instant::now() + listener.config.snapshot().timeouts.request_head;
        let serving = async move { serve_http1(&listener, Box::new(gateway), deadline).await };
        (caller, tokio::spawn(serving))
    }

    /// Sends the text of one request over a connection of its own, which ends with the answer.
    async fn send_text(&self, request: &str) -> Reply {
        let (mut caller, serving) = self.connect();
        caller.write_all(request.as_bytes()).await.unwrap();
        let answer = read_answer(&mut caller).await;
        // It leaves once it has the answer, as a caller does.
        drop(caller);
        serving.await.unwrap();
        Reply::parse(&answer)
    }
}
