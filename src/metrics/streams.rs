//! Metric families of streams: their pace, their logs for resumption, and streams without a caller.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};

use super::family::{
    create_children, register_counter, register_counters, register_gauge, register_histogram,
};

/// Metrics of streams.
pub struct Streams {
    /// Time from the request head to the agent's first event.
    pub first_event: Histogram,
    /// Time from one event to the next. Events received together count as one.
    pub between_events: Histogram,
    /// Bytes in all stream logs.
    pub log_bytes: IntGauge,
    /// Streams without a log, for lack of space.
    pub unresumable: IntCounter,
    /// Failed copies to other replicas, which are retried.
    pub copies_failed: IntCounter,
    /// Open readers of resumed streams.
    pub readers: IntGauge,
    /// Streams that continue after their callers disconnected.
    pub lingering: IntGauge,
    lingered: IntCounterVec,
}

impl Streams {
    pub(super) fn new(r: &Registry) -> Self {
        let lingered = register_counters(
            r,
            "a2a_gateway_lingered_streams_total",
            "Streams whose caller left, by what became of them: ended, unread, drained, full.",
            &["outcome"],
        );
        create_children(&lingered, &["ended", "unread", "drained", "full"]);
        Self {
            first_event: register_histogram(
                r,
                "a2a_gateway_first_event_seconds",
                "Time from the request head to the first event of an agent's stream.",
            ),
            between_events: register_histogram(
                r,
                "a2a_gateway_between_events_seconds",
                "Time from one event of an agent's stream to the next; events that come together are one.",
            ),
            log_bytes: register_gauge(
                r,
                "a2a_gateway_stream_log_bytes",
                "Bytes that the logs of streams hold.",
            ),
            unresumable: register_counter(
                r,
                "a2a_gateway_streams_unresumable_total",
                "Streams without a log, since there was no room for one (stream.logs_bytes).",
            ),
            copies_failed: register_counter(
                r,
                "a2a_gateway_stream_copies_failed_total",
                "Copies of streams' logs for other replicas that failed, and were tried again.",
            ),
            readers: register_gauge(
                r,
                "a2a_gateway_stream_readers",
                "Open readers of resumed streams.",
            ),
            lingering: register_gauge(
                r,
                "a2a_gateway_lingering_streams",
                "Streams that go on without their callers.",
            ),
            lingered,
        }
    }

    /// Counts a stream that continued without its caller, by a value of a closed set.
    pub fn count_lingered(&self, outcome: &'static str) {
        self.lingered.with_label_values(&[outcome]).inc();
    }
}
