//! What outlives a connection: streams that are kept, and calls that are sent once.

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
    /// How long a stream may stay open after its final event.
    #[serde(with = "duration")]
    pub final_grace: Duration,
    /// Events kept of one stream; 0: none, and events get no ids.
    pub log_events: usize,
    /// Bytes kept of one stream.
    pub log_bytes: ByteSize,
    /// How long they are kept after its end.
    #[serde(with = "duration")]
    pub log_ttl: Duration,
    /// What all logs hold together.
    pub logs_bytes: ByteSize,
    /// How long a stream goes on with nobody reading it.
    #[serde(with = "duration")]
    pub linger: Duration,
    /// Streams that go on without their callers at most.
    pub lingering: usize,
    /// Readers of resumed streams at most.
    pub readers: usize,
}

/// `[idempotency]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idempotency {
    /// How long an answer is kept for the call that is sent again.
    #[serde(with = "duration")]
    pub ttl: Duration,
    /// Whether the id of a message is a key, if its caller gave it.
    pub message_id: bool,
}
