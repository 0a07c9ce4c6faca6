//! Example agents: small A2A 0.3 servers, real down to the socket, for the demo and compose files.
//!
//! They hold to the protocol strictly (a message without `messageId` is refused, for example), so
//! what the gateway completes can be seen. They keep nothing but the last tasks, in memory.

mod message;
mod rpc;
mod task;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::channel::Channel;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use url::Url;

use self::message::Prompt;
use self::rpc::{Call, Fault};
use self::task::{Script, Task, Tasks};

/// Largest request, in bytes: above the gateway's default of 10 MiB, so that its limit is the one
/// that is met.
const REQUEST_BYTES_MAX: usize = 12 * 1024 * 1024;

/// How long the flaky agent says nothing, when it is its turn to.
const HANG: Duration = Duration::from_secs(2);

/// How long the half of a cut answer has to get out.
const CUT_AFTER: Duration = Duration::from_millis(100);

/// What an agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// Says back what it is told.
    Echo,
    /// Fails in turn: status 500, a cut answer, two seconds of silence; the fourth time it works.
    Flaky,
    /// Works for three seconds and streams its progress.
    Slow,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Echo => "echo",
            Self::Flaky => "flaky",
            Self::Slow => "slow",
        })
    }
}

impl Kind {
    /// For its card: what a caller can expect, and something to say to it.
    fn skill(self) -> (&'static str, &'static str) {
        match self {
            Self::Echo => ("Says back what it is told.", "hello"),
            Self::Flaky => (
                "Fails three times out of four, each time in another way.",
                "are you there?",
            ),
            Self::Slow => (
                "Works for three seconds and streams its progress.",
                "plan the release",
            ),
        }
    }

    fn script(self, text: &str) -> Script {
        match self {
            Self::Echo => Script::at_once(format!("echo: {text}")),
            Self::Flaky => Script::at_once(format!("this time it worked: {text}")),
            Self::Slow => Script::in_steps(text),
        }
    }
}

/// An agent with its port, not serving yet.
pub(super) struct Agent {
    listener: TcpListener,
    desk: Arc<Desk>,
    url: Url,
}

/// What all requests of one agent share.
struct Desk {
    kind: Kind,
    card: Value,
    tasks: Tasks,
    /// Messages so far, for the flaky one.
    turns: AtomicUsize,
}

impl Agent {
    /// Opens the agent's port. `advertise` is its URL for others; `None`: from the port.
    ///
    /// # Errors
    /// When the port cannot be opened.
    pub(super) async fn bind(
        kind: Kind,
        listen: SocketAddr,
        advertise: Option<Url>,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let mut local = listener.local_addr()?;
        if local.ip().is_unspecified() {
            local.set_ip(IpAddr::from([127, 0, 0, 1]));
        }
        let own = Url::parse(&format!("http://{local}/")).map_err(std::io::Error::other)?;
        let url = advertise.unwrap_or(own);
        let desk = Arc::new(Desk {
            kind,
            card: card(kind, &url),
            tasks: Tasks::default(),
            turns: AtomicUsize::new(0),
        });
        Ok(Self {
            listener,
            desk,
            url,
        })
    }

    /// Where callers reach it.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Its agent card.
    pub(super) fn card(&self) -> &Value {
        &self.desk.card
    }

    /// Serves until the future is dropped.
    ///
    /// # Errors
    /// When the listener breaks.
    pub(super) async fn serve(self) -> std::io::Result<()> {
        let router = Router::new()
            .route("/", get(read_card).post(receive))
            .route("/.well-known/agent-card.json", get(read_card))
            .route("/.well-known/agent.json", get(read_card))
            .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
            .with_state(self.desk);
        axum::serve(self.listener, router).await
    }
}

fn card(kind: Kind, url: &Url) -> Value {
    let (description, example) = kind.skill();
    json!({
        "protocolVersion": "0.3.0",
        "name": format!("{kind} (example)"),
        "description": description,
        "url": url,
        "preferredTransport": "JSONRPC",
        "version": env!("CARGO_PKG_VERSION"),
        "capabilities": {"streaming": true, "pushNotifications": false, "stateTransitionHistory": false},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{
            "id": kind.to_string(),
            "name": kind.to_string(),
            "description": description,
            "tags": ["example"],
            "examples": [example],
        }],
    })
}

async fn read_card(State(desk): State<Arc<Desk>>) -> Response {
    json_answer(StatusCode::OK, &desk.card)
}

/// The JSON-RPC endpoint. Faults are answered with status 200, as A2A servers do.
async fn receive(State(desk): State<Arc<Desk>>, headers: HeaderMap, body: Bytes) -> Response {
    if !rpc::is_json(headers.get(header::CONTENT_TYPE)) {
        let fault = Fault::CONTENT_TYPE.answer(&Value::Null);
        return json_answer(StatusCode::UNSUPPORTED_MEDIA_TYPE, &fault);
    }
    let call = match Call::read(&body) {
        Ok(call) => call,
        Err((id, fault)) => return json_answer(StatusCode::OK, &fault.answer(&id)),
    };
    let caller = headers.get("x-workspace-id").and_then(|v| v.to_str().ok());
    answer(&desk, &call, caller)
        .await
        .unwrap_or_else(|fault| json_answer(StatusCode::OK, &fault.answer(&call.id)))
}

async fn answer(desk: &Arc<Desk>, call: &Call, caller: Option<&str>) -> Result<Response, Fault> {
    let result = |value: Value| json_answer(StatusCode::OK, &call.result(&value));
    match call.method.as_str() {
        "message/send" => {
            let prompt = Prompt::read(&call.params, &desk.tasks)?;
            if let Some(failure) = fail(desk, call).await {
                return Ok(failure);
            }
            send(desk, prompt, caller).await.map(result)
        }
        "message/stream" => {
            let prompt = Prompt::read(&call.params, &desk.tasks)?;
            if let Some(failure) = fail(desk, call).await {
                return Ok(failure);
            }
            let task = desk.tasks.open(&prompt)?;
            let response = follow(&task, call);
            tokio::spawn(task.work(desk.kind.script(&prompt.text)));
            Ok(response)
        }
        "tasks/get" => Ok(result(desk.tasks.named(&call.params)?.snapshot())),
        "tasks/cancel" => {
            let task = desk.tasks.named(&call.params)?;
            task.cancel()?;
            Ok(result(task.snapshot()))
        }
        "tasks/resubscribe" => Ok(follow(&desk.tasks.named(&call.params)?, call)),
        "agent/getAuthenticatedExtendedCard" => Err(Fault::NO_EXTENDED_CARD),
        method if method.starts_with("tasks/pushNotificationConfig/") => Err(Fault::NO_PUSH),
        _ => Err(Fault::METHOD),
    }
}

/// The answer to one message: a message from the quick ones, a task from the slow one.
async fn send(desk: &Desk, prompt: Prompt, caller: Option<&str>) -> Result<Value, Fault> {
    let script = desk.kind.script(&prompt.text);
    if desk.kind != Kind::Slow {
        return Ok(json!({
            "kind": "message",
            "messageId": uuid::Uuid::new_v4().to_string(),
            "contextId": prompt.context_id,
            "role": "agent",
            "parts": [{"kind": "text", "text": script.answer}],
            // The caller that the gateway has proven; the canvas has none.
            "metadata": {"caller": caller},
        }));
    }
    let task = desk.tasks.open(&prompt)?;
    let work = tokio::spawn(Arc::clone(&task).work(script));
    if prompt.blocking {
        // Only a bug ends the work early, and then the task says how far it came.
        let _ = work.await;
    }
    Ok(task.snapshot())
}

/// Lets the flaky agent fail when it is its turn to; the others never do.
async fn fail(desk: &Desk, call: &Call) -> Option<Response> {
    if desk.kind != Kind::Flaky {
        return None;
    }
    match desk.turns.fetch_add(1, Ordering::Relaxed) % 4 {
        0 => Some(json_answer(
            StatusCode::INTERNAL_SERVER_ERROR,
            &Fault::INTERNAL.answer(&call.id),
        )),
        1 => Some(cut(call)),
        2 => {
            tokio::time::sleep(HANG).await;
            None
        }
        _ => None,
    }
}

/// Half an answer, and then the connection breaks.
fn cut(call: &Call) -> Response {
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
    let whole = call.result(&json!({"kind": "message"})).to_string();
    let half = Bytes::copy_from_slice(&whole.as_bytes()[..whole.len() / 2]);
    tokio::spawn(async move {
        // The caller left: then there is nobody to break off from.
        let _ = sender.send_data(half).await;
        // The server throws away what it has not sent when a body breaks.
        tokio::time::sleep(CUT_AFTER).await;
        sender.abort(std::io::ErrorKind::ConnectionAborted.into());
    });
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (content_type, Body::new(body)).into_response()
}

/// A stream of the task's events, the first one being the task as it is now.
fn follow(task: &Arc<Task>, call: &Call) -> Response {
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let (now, ended, mut events) = task.subscribe();
    let frame =
        |call: &Call, event: &Value| Bytes::from(format!("data: {}\n\n", call.result(event)));
    let call = call.clone();
    tokio::spawn(async move {
        let mut open = sender.send_data(frame(&call, &now)).await.is_ok() && !ended;
        while open {
            open = match events.recv().await {
                Ok(event) => {
                    let last = event["final"] == true;
                    sender.send_data(frame(&call, &event)).await.is_ok() && !last
                }
                // A reader that is too slow misses progress; the last events always fit.
                Err(RecvError::Lagged(_)) => true,
                Err(RecvError::Closed) => false,
            };
        }
    });
    let fields = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (fields, Body::new(body)).into_response()
}

fn json_answer(status: StatusCode, body: &Value) -> Response {
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (status, content_type, body.to_string()).into_response()
}

#[cfg(test)]
mod tests;
