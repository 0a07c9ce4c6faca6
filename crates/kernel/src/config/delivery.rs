//! `[stream]` and `[idempotency]`: state that outlives a connection.

use std::time::Duration;

use serde::Deserialize;

use super::value::{ByteSize, duration};

sections! {
    /// `[stream]`.
    Stream {
        /// Silence after which the gateway sends a comment.
        keepalive: Duration as "duration",
        /// Longest time that a stream stays open after its final event.
        final_grace: Duration as "duration",
        /// Maximum events kept of one stream; 0: none, and events get no ids.
        log_events: usize,
        /// Maximum bytes kept of one stream.
        log_bytes: ByteSize,
        /// Retention of the events after the end of the stream.
        log_ttl: Duration as "duration",
        /// Maximum bytes kept of all streams together.
        logs_bytes: ByteSize,
        /// Longest time that a stream continues without a reader.
        linger: Duration as "duration",
        /// Maximum streams that continue without a reader.
        lingering: usize,
        /// Maximum readers of resumed streams.
        readers: usize,
    }

    /// `[idempotency]`.
    Idempotency {
        /// Retention of a response for replays.
        ttl: Duration as "duration",
        /// True if a caller's message id is used as an idempotency key.
        message_id: bool,
    }
}
