//! The console's feed, read as a client: its events, with a clock for silence.

use std::time::Duration;

use gateway_client::{Registry, Request};
use http::Method;
use serde_json::Value;
use tokio::time::timeout;

use super::super::failure::Failure;
use super::super::sse::EventStream;

/// Longest wait for the head of the answer.
const HEAD: Duration = Duration::from_secs(10);

/// Longest silence of a feed, which has an event each second.
const SILENCE: Duration = Duration::from_secs(15);

/// Longest life of one connection; then the feed is opened again.
const LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// An open feed.
pub(super) struct Feed(EventStream);

/// The feed ended, or was not opened.
pub(super) struct TailError {
    pub(super) failure: Failure,
    /// True if another try may succeed.
    pub(super) may_pass: bool,
}

impl TailError {
    fn from_refusal(reason: &str, message: &str) -> Self {
        let may_pass = matches!(
            reason,
            "shutting_down" | "too_slow" | "overloaded" | "store_unavailable" | "rate_limited"
        );
        let failure = Failure::new(format!("{reason}: {message}"));
        Self { failure, may_pass }
    }
}

impl From<Failure> for TailError {
    fn from(failure: Failure) -> Self {
        let may_pass = true;
        Self { failure, may_pass }
    }
}

/// A part of the feed.
pub(super) enum FeedEvent {
    /// The exchanges of a second, and how many more there were.
    Exchanges {
        /// Those that are listed.
        list: Vec<Value>,
        /// The number of others.
        more: u64,
    },
    /// A message of the gateway; the feed goes on.
    Trouble(String),
}

impl Feed {
    /// Opens the feed of the gateway whose admin listener `client` asks.
    ///
    /// # Errors
    /// [`TailError`], if it is not there or refuses.
    pub(super) async fn open(client: &Registry) -> Result<Self, TailError> {
        let request = Request {
            accept: "text/event-stream",
            within: LIFE,
            ..client.request(Method::GET, "/console/feed", &[])
        };
        let opened = timeout(HEAD, request.send()).await;
        let opened = opened
            .map_err(|_| Failure::new(format!("no answer of the gateway within {HEAD:?}")))?;
        let answer = opened.map_err(Failure::from)?;
        if answer.is_stream() {
            return Ok(Self(EventStream::new(answer)));
        }
        let (status, body) = answer.read_json().await.map_err(Failure::from)?;
        match (body["reason"].as_str(), body["error"].as_str()) {
            (Some(reason), Some(message)) if reason != "not_found" => {
                Err(TailError::from_refusal(reason, message))
            }
            _ => Err(TailError {
                failure: Failure::new(format!(
                    "status {status}, and not the feed of a console: --admin takes admin.listen, such as http://127.0.0.1:9090, of a gateway with admin.console"
                )),
                // Of a load balancer whose gateways are away.
                may_pass: status >= 500,
            }),
        }
    }

    /// Returns the next part that is about exchanges.
    ///
    /// # Errors
    /// [`TailError`], if the feed has ended or fallen silent.
    pub(super) async fn next(&mut self) -> Result<FeedEvent, TailError> {
        loop {
            let event = timeout(SILENCE, self.0.next_event()).await;
            let event = event
                .map_err(|_| Failure::new(format!("the feed said nothing for {SILENCE:?}")))??;
            let event = event.ok_or_else(|| Failure::new("the feed ended"))?;
            if let Some(piece) = piece_of(serde_json::from_str(&event).unwrap_or_default())? {
                return Ok(piece);
            }
        }
    }
}

/// Reads an event by its members: those that are not about exchanges have none of them.
fn piece_of(mut event: Value) -> Result<Option<FeedEvent>, TailError> {
    if let Value::Array(list) = event["exchanges"].take() {
        let more = event["more"].as_u64().unwrap_or_default();
        return Ok(Some(FeedEvent::Exchanges { list, more }));
    }
    let (Some(reason), Some(message)) = (event["reason"].as_str(), event["message"].as_str())
    else {
        return Ok(None);
    };
    match reason {
        // The reasons of `end`.
        "shutting_down" | "unauthenticated" | "too_slow" => {
            Err(TailError::from_refusal(reason, message))
        }
        _ => Ok(Some(FeedEvent::Trouble(format!("{reason}: {message}")))),
    }
}
