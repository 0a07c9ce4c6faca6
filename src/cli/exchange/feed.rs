//! The console's feed, read as a client: its events, with a clock for silence.

use std::time::Duration;

use gateway_client::{ClientError, Request, Response};
use serde_json::Value;
use tokio::time::timeout;
use url::Url;

use super::super::sse::EventParser;
use super::TailError;

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
    ready: std::collections::VecDeque<String>,
    to: String,
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
    /// Opens the feed of the gateway whose admin listener is at `base`.
    ///
    /// # Errors
    /// [`TailError`], if it is not there or refuses.
    pub(super) async fn open(base: &Url, token: &str) -> Result<Self, TailError> {
        let mut url = base.clone();
        url.set_path(&format!(
            "{}/console/feed",
            base.path().trim_end_matches('/')
        ));
        let to = url.origin().ascii_serialization();
        let request = Request {
            token: Some(token),
            accept: "text/event-stream",
            ..Request::get(&url, LIFE)
        };
        let answer = match timeout(HEAD, request.send()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error @ ClientError::NotListening { .. })) => {
                return Err(TailError::Nobody(error));
            }
            Ok(Err(error)) => return Err(TailError::Client(error)),
            Err(_) => return Err(TailError::Client(ClientError::TooSlow { to, after: HEAD })),
        };
        if answer.is_stream() {
            return Ok(Self {
                answer,
                events: EventParser::default(),
                ready: std::collections::VecDeque::new(),
                to,
            });
        }
        let (status, body) = answer.read_json().await.map_err(TailError::Client)?;
        let word = |name: &str| body[name].as_str().map(str::to_owned);
        match (word("reason"), word("error")) {
            (Some(reason), _) if reason == "not_found" => Err(TailError::Elsewhere(status)),
            (Some(reason), Some(message)) => Err(TailError::Refused { reason, message }),
            _ => Err(TailError::Elsewhere(status)),
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
            let piece = timeout(SILENCE, self.answer.next_chunk()).await;
            let to = self.to.clone();
            let piece = match piece {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) => {
                    let why = "the feed ended".to_owned();
                    return Err(TailError::Client(ClientError::Connection { to, why }));
                }
                Ok(Err(error)) => return Err(TailError::Client(error)),
                Err(_) => {
                    let after = SILENCE;
                    return Err(TailError::Client(ClientError::TooSlow { to, after }));
                }
            };
            let whole = self.events.push(&piece);
            let whole = whole.map_err(|error| {
                let why = error.to_string();
                TailError::Client(ClientError::Connection { to, why })
            })?;
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
    let (reason, message) = (reason.to_owned(), message.to_owned());
    match reason.as_str() {
        // The reasons of `end`.
        "shutting_down" | "unauthenticated" | "too_slow" => {
            Err(TailError::Refused { reason, message })
        }
        _ => Ok(Some(FeedEvent::Trouble(format!("{reason}: {message}")))),
    }
}
