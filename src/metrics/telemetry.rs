//! Metric families of log lines and spans.

use prometheus::{IntCounter, IntGauge, Registry};

use super::{register_counters, register_gauge};

/// Metrics of log lines and spans.
pub struct Telemetry {
    /// Log lines dropped because the writer was behind.
    pub log_lines_dropped: IntGauge,
    /// Spans that wait to be sent.
    pub spans_waiting: IntGauge,
    /// Spans that the collector accepted.
    pub spans_exported: IntCounter,
    /// Spans dropped because the queue was full.
    pub spans_dropped: IntCounter,
    /// Spans that the collector did not accept.
    pub spans_failed: IntCounter,
}

impl Telemetry {
    pub(super) fn new(r: &Registry) -> Self {
        let spans = register_counters(
            r,
            "a2a_gateway_spans_total",
            "Recorded spans, by what became of them: exported, dropped (no room to wait), failed (the collector did not take them).",
            &["outcome"],
        );
        Self {
            log_lines_dropped: register_gauge(
                r,
                "a2a_gateway_log_lines_dropped",
                "Log lines dropped because the writer was behind.",
            ),
            spans_waiting: register_gauge(
                r,
                "a2a_gateway_spans_waiting",
                "Recorded spans that wait to be sent to the collector.",
            ),
            spans_exported: spans.with_label_values(&["exported"]),
            spans_dropped: spans.with_label_values(&["dropped"]),
            spans_failed: spans.with_label_values(&["failed"]),
        }
    }
}
