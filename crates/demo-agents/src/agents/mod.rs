//! Example agents for the demo and compose files: small A2A 0.3 servers over real sockets.
//!
//! They enforce the protocol strictly (a message without `messageId` is rejected, for example),
//! which makes the gateway's completion of calls visible. Their only state is the newest tasks, in
//! memory.

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
use clap::ValueEnum as _;
use http::{HeaderMap, StatusCode, header};
use http_body_util::channel::Channel;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use url::Url;

use self::rpc::{Call, Fault};
use self::task::{Prompt, STEPS, Task, Tasks};

/// Largest request, in bytes: above the gateway's default of 10 MiB, so that the gateway's limit
/// applies first.
const REQUEST_BYTES_MAX: usize = 12 * 1024 * 1024;

/// Delay of the flaky agent's late response.
const HANG: Duration = Duration::from_secs(2);

/// Delay before a cut response is aborted, so that its first half is sent.
const CUT_AFTER: Duration = Duration::from_millis(100);

/// The behavior of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// Answers with the text of the message.
    Echo,
    /// Fails in turn: status 500, a cut answer, two seconds of silence; the fourth time it works.
    Flaky,
    /// Works for three seconds and streams its progress.
    Slow,
    /// Answers 503 five times, then works three times.
    Broken,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.to_possible_value();
        f.write_str(word.expect("no kind is skipped").get_name())
    }
}

impl Kind {
    /// Returns the description and the example message of the agent's card, and what is in front of its answers.
    const fn describe(self) -> [&'static str; 3] {
        match self {
            Self::Echo => ["Says back what it is told.", "hello", "echo"],
            Self::Flaky => [
                "Fails three times out of four, each time in another way.",
                "are you there?",
                "this time it worked",
            ],
            Self::Slow => [
                "Works for three seconds and streams its progress.",
                "plan the release",
                "done in 10 steps",
            ],
            Self::Broken => [
                "Answers 503 five times, then works three times.",
                "are you up?",
                "up again",
            ],
        }
    }

    /// Returns the steps of the work, and its answer.
    fn plan_work(self, text: &str) -> (&'static [&'static str], String) {
        let [_, _, front] = self.describe();
        let steps: &[&str] = if self == Self::Slow { &STEPS } else { &[] };
        (steps, format!("{front}: {text}"))
    }
}

/// An agent with its port, not serving yet.
pub(super) struct Agent {
    listener: TcpListener,
    state: Arc<AgentState>,
    /// The URL that the agent advertises.
    pub(super) url: Url,
}

/// State shared by all requests of one agent.
struct AgentState {
    kind: Kind,
    card: Value,
    tasks: Tasks,
    /// Messages so far; the flaky and the broken agent pick their behavior by this count.
    turns: AtomicUsize,
}

impl Agent {
    /// Opens the agent's port. `advertise` is the URL of the agent's card; `None` derives it from
    /// the port.
    ///
    /// # Errors
    /// If the port cannot be opened.
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
        let state = Arc::new(AgentState {
            kind,
            card: build_card(kind, &url),
            tasks: Tasks::default(),
            turns: AtomicUsize::new(0),
        });
        Ok(Self {
            listener,
            state,
            url,
        })
    }

    /// Returns the agent card.
    pub(super) fn card(&self) -> &Value {
        &self.state.card
    }

    /// Serves until the future is dropped.
    ///
    /// # Errors
    /// If the listener fails.
    pub(super) async fn serve(self) -> std::io::Result<()> {
        let router = Router::new()
            .route("/", get(read_card).post(receive_call))
            .route("/.well-known/agent-card.json", get(read_card))
            .route("/.well-known/agent.json", get(read_card))
            .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
            .with_state(self.state);
        axum::serve(self.listener, router).await
    }
}

fn build_card(kind: Kind, url: &Url) -> Value {
    let [description, example, _] = kind.describe();
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

async fn read_card(State(state): State<Arc<AgentState>>) -> Response {
    json_response(StatusCode::OK, &state.card)
}

/// Serves the JSON-RPC endpoint. Faults are answered with status 200, as A2A servers do.
async fn receive_call(
    State(state): State<Arc<AgentState>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !rpc::is_json(headers.get(header::CONTENT_TYPE)) {
        let fault = Fault::CONTENT_TYPE.error_response(&Value::Null);
        return json_response(StatusCode::UNSUPPORTED_MEDIA_TYPE, &fault);
    }
    let call = match Call::parse(&body) {
        Ok(call) => call,
        Err((id, fault)) => return json_response(StatusCode::OK, &fault.error_response(&id)),
    };
    let caller = headers.get("x-workspace-id").and_then(|v| v.to_str().ok());
    answer_call(&state, &call, caller)
        .await
        .unwrap_or_else(|fault| json_response(StatusCode::OK, &fault.error_response(&call.id)))
}

async fn answer_call(
    state: &Arc<AgentState>,
    call: &Call,
    caller: Option<&str>,
) -> Result<Response, Fault> {
    let result = |value: Value| json_response(StatusCode::OK, &call.result_response(&value));
    match call.method.as_str() {
        method @ ("message/send" | "message/stream") => {
            let prompt = Prompt::from_params(&call.params, &state.tasks)?;
            if let Some(failure) = inject_failure(state, call).await {
                return Ok(failure);
            }
            if method == "message/send" {
                return send_message(state, prompt, caller).await.map(result);
            }
            let task = state.tasks.create(&prompt)?;
            let response = stream_task(&task, call);
            let (steps, answer) = state.kind.plan_work(&prompt.text);
            tokio::spawn(task.run_steps(steps, answer));
            Ok(response)
        }
        "tasks/get" => Ok(result(state.tasks.find_in_params(&call.params)?.snapshot())),
        "tasks/cancel" => {
            let task = state.tasks.find_in_params(&call.params)?;
            task.cancel()?;
            Ok(result(task.snapshot()))
        }
        "tasks/resubscribe" => Ok(stream_task(
            &state.tasks.find_in_params(&call.params)?,
            call,
        )),
        "agent/getAuthenticatedExtendedCard" => Err(Fault::NO_EXTENDED_CARD),
        method if method.starts_with("tasks/pushNotificationConfig/") => Err(Fault::NO_PUSH),
        _ => Err(Fault::METHOD),
    }
}

/// Returns the result of one `message/send`: a message of the quick agents, a task of the slow one.
async fn send_message(
    state: &AgentState,
    prompt: Prompt,
    caller: Option<&str>,
) -> Result<Value, Fault> {
    let (steps, answer) = state.kind.plan_work(&prompt.text);
    if state.kind != Kind::Slow {
        let mut message = task::agent_message(&prompt.context_id, &answer);
        // The caller that the gateway has authenticated; canvas users have none.
        message["metadata"] = json!({"caller": caller});
        return Ok(message);
    }
    let task = state.tasks.create(&prompt)?;
    let work = tokio::spawn(Arc::clone(&task).run_steps(steps, answer));
    if prompt.blocking {
        // The work panics only by a bug, and the snapshot then shows its progress.
        let _ = work.await;
    }
    Ok(task.snapshot())
}

/// Makes the flaky and the broken agent fail on their failing turns; other agents never fail.
async fn inject_failure(state: &AgentState, call: &Call) -> Option<Response> {
    if !matches!(state.kind, Kind::Flaky | Kind::Broken) {
        return None;
    }
    let turn = state.turns.fetch_add(1, Ordering::Relaxed);
    let fail = |status| json_response(status, &Fault::INTERNAL.error_response(&call.id));
    match (state.kind, turn % 8) {
        (Kind::Broken, turn) => (turn < 5).then(|| fail(StatusCode::SERVICE_UNAVAILABLE)),
        (_, 0 | 4) => Some(fail(StatusCode::INTERNAL_SERVER_ERROR)),
        (_, 1 | 5) => Some(cut_response(call)),
        (_, 2 | 6) => {
            tokio::time::sleep(HANG).await;
            None
        }
        _ => None,
    }
}

/// Returns a response that breaks off after half the body.
fn cut_response(call: &Call) -> Response {
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
    let whole = call
        .result_response(&json!({"kind": "message"}))
        .to_string();
    let half = Bytes::copy_from_slice(&whole.as_bytes()[..whole.len() / 2]);
    tokio::spawn(async move {
        // An error means that the caller has disconnected; the abort below is then harmless.
        let _ = sender.send_data(half).await;
        // The server discards unsent data when a body fails.
        tokio::time::sleep(CUT_AFTER).await;
        sender.abort(std::io::ErrorKind::ConnectionAborted.into());
    });
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (content_type, Body::new(body)).into_response()
}

/// Streams the task's events; the first event is the current task.
fn stream_task(task: &Arc<Task>, call: &Call) -> Response {
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let (now, ended, mut events) = task.subscribe();
    let frame = |call: &Call, event: &Value| {
        Bytes::from(format!("data: {}\n\n", call.result_response(event)))
    };
    let call = call.clone();
    tokio::spawn(async move {
        let mut open = sender.send_data(frame(&call, &now)).await.is_ok() && !ended;
        while open {
            open = match events.recv().await {
                Ok(event) => {
                    let last = event["final"] == true;
                    sender.send_data(frame(&call, &event)).await.is_ok() && !last
                }
                // A slow reader misses progress events; the channel is large enough for the last
                // ones.
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

fn json_response(status: StatusCode, body: &Value) -> Response {
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (status, content_type, body.to_string()).into_response()
}

#[cfg(test)]
mod tests;
