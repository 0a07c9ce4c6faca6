//! The console's feed, read as a client: its events, with a clock for silence.

use std::collections::VecDeque;
use std::time::Duration;

use gateway_client::{Call, Response};
use serde_json::Value;
use tokio::time::timeout;

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::sse::EventParser;

/// Longest wait for the head of the answer.
const HEAD: Duration = Duration::from_secs(10);

/// Longest silence of a feed, which has an event each second.
const SILENCE: Duration = Duration::from_secs(15);

/// Longest life of one connection; then the feed is opened again.
const LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// An open feed.
pub(super) struct Feed {
    answer: Response,
    events: EventParser,
    /// Events that arrived together.
    ready: VecDeque<String>,
}

/// The feed ended, or was not opened.
pub(super) struct TailError {
    pub(super) failure: Failure,
    /// True if another try may succeed.
    pub(super) may_pass: bool,
}

impl TailError {
    pub(super) fn new(failure: impl Into<Failure>, may_pass: bool) -> Self {
        let failure = failure.into();
        Self { failure, may_pass }
    }

    fn from_refusal(reason: &str, message: &str) -> Self {
        let may_pass = matches!(
            reason,
            "shutting_down" | "too_slow" | "overloaded" | "store_unavailable" | "rate_limited"
        );
        Self::new(Failure::new(format!("{reason}: {message}")), may_pass)
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
    pub(super) async fn open(client: &Client) -> Result<Self, TailError> {
        let call = Call {
            accept: "text/event-stream",
            within: LIFE,
            ..client.call("/console/feed")
        };
        let Ok(opened) = timeout(HEAD, client.open(&call)).await else {
            let complaint = format!("no answer of the gateway within {HEAD:?}");
            return Err(TailError::new(Failure::new(complaint), true));
        };
        let answer =
            opened.map_err(|error| TailError::new(client.fail_unanswered(&error), true))?;
        if answer.is_stream() {
            return Ok(Self {
                answer,
                events: EventParser::default(),
                ready: VecDeque::new(),
            });
        }
        let (status, body) = answer
            .read_json()
            .await
            .map_err(|error| TailError::new(error, true))?;
        match (body["reason"].as_str(), body["error"].as_str()) {
            (Some(reason), Some(message)) if reason != "not_found" => {
                Err(TailError::from_refusal(reason, message))
            }
            _ => {
                let complaint = format!(
                    "status {status}, and not the feed of a console: --admin takes admin.listen, such as http://127.0.0.1:9090, of a gateway with admin.console"
                );
                // Of a load balancer whose gateways are away.
                Err(TailError::new(Failure::new(complaint), status >= 500))
            }
        }
    }

    /// Returns the next part that is about exchanges.
    ///
    /// # Errors
    /// [`TailError`], if the feed has ended or fallen silent.
    pub(super) async fn next(&mut self) -> Result<FeedEvent, TailError> {
        loop {
            while let Some(event) = self.ready.pop_front() {
                let event: Value = serde_json::from_str(&event).unwrap_or_default();
                if let Some(piece) = piece_of(event)? {
                    return Ok(piece);
                }
            }
            let Ok(piece) = timeout(SILENCE, self.answer.next_chunk()).await else {
                let complaint = format!("the feed said nothing for {SILENCE:?}");
                return Err(TailError::new(Failure::new(complaint), true));
            };
            let Some(piece) = piece.map_err(|error| TailError::new(error, true))? else {
                return Err(TailError::new(Failure::new("the feed ended"), true));
            };
            let whole = self.events.push(&piece);
            let whole = whole.map_err(|error| TailError::new(error, true))?;
            self.ready.extend(whole);
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
