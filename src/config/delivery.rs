//! `[stream]` and `[idempotency]`: state that outlives a connection.

use std::time::Duration;

use serde::Deserialize;

use super::value::{ByteSize, duration};

/// `[stream]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Silence after which the gateway sends a comment.
    #[serde(with = "duration")]
    pub keepalive: Duration,
    /// Longest time that a stream stays open after its final event.
    #[serde(with = "duration")]
    pub final_grace: Duration,
    /// Maximum events kept of one stream; 0: none, and events get no ids.
    pub log_events: usize,
    /// Maximum bytes kept of one stream.
    pub log_bytes: ByteSize,
    /// Retention of the events after the end of the stream.
    #[serde(with = "duration")]
    pub log_ttl: Duration,
    /// Maximum bytes kept of all streams together.
    pub logs_bytes: ByteSize,
    /// Longest time that a stream continues without a reader.
    #[serde(with = "duration")]
    pub linger: Duration,
    /// Maximum streams that continue without a reader.
    pub lingering: usize,
    /// Maximum readers of resumed streams.
    pub readers: usize,
}

/// `[idempotency]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idempotency {
    /// Retention of a response for replays.
    #[serde(with = "duration")]
    pub ttl: Duration,
    /// True if a caller's message id is used as an idempotency key.
    pub message_id: bool,
}
