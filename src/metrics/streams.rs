//! Streams that can be taken up again.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use super::family::{counter, counters, gauge};

/// Families of streams' logs, of those who read them, and of streams without callers.
pub struct Streams {
    /// Bytes that all logs hold.
    pub log_bytes: IntGauge,
    /// Streams without a log, for want of room.
    pub unresumable: IntCounter,
    /// Copies for other replicas that failed, and are tried again.
    pub copies_failed: IntCounter,
    /// Open readers of resumed streams.
    pub readers: IntGauge,
    /// Streams that go on without their callers.
    pub lingering: IntGauge,
    lingered: IntCounterVec,
}

impl Streams {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            log_bytes: gauge(
                r,
                "a2a_gateway_stream_log_bytes",
                "Bytes that the logs of streams hold.",
            ),
            unresumable: counter(
                r,
                "a2a_gateway_streams_unresumable_total",
                "Streams without a log, since there was no room for one (stream.logs_bytes).",
            ),
            copies_failed: counter(
                r,
                "a2a_gateway_stream_copies_failed_total",
                "Copies of streams' logs for other replicas that failed, and were tried again.",
            ),
            readers: gauge(
                r,
                "a2a_gateway_stream_readers",
                "Open readers of resumed streams.",
            ),
            lingering: gauge(
                r,
                "a2a_gateway_lingering_streams",
                "Streams that go on without their callers.",
            ),
            lingered: counters(
                r,
                "a2a_gateway_lingered_streams_total",
                "Streams whose caller left, by what became of them: ended, unread, drained, full.",
                &["outcome"],
            ),
        }
    }

    /// Counts a stream whose caller had left, by a word of a closed set.
    pub fn lingered(&self, outcome: &'static str) {
        self.lingered.with_label_values(&[outcome]).inc();
    }
}
