//! Metric families of the control plane.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Registry};

use super::family::{register, register_counters};

/// Histogram buckets in seconds: a route responds within a millisecond, or waits for a store.
const SECONDS: [f64; 7] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0];

/// Metrics of control-plane responses.
pub struct Control {
    answers: IntCounterVec,
    seconds: HistogramVec,
}

impl Control {
    pub(super) fn new(r: &Registry) -> Self {
        let seconds = HistogramOpts::new(
            "a2a_gateway_control_seconds",
            "Time until a control-plane answer began, by route pattern. Waits that callers asked for count.",
        );
        Self {
            answers: register_counters(
                r,
                "a2a_gateway_control_answers_total",
                "Control-plane answers, by route pattern and status.",
                &["route", "status"],
            ),
            seconds: register(
                r,
                HistogramVec::new(seconds.buckets(SECONDS.to_vec()), &["route"]),
            ),
        }
    }

    /// Counts one response. `route` is the pattern, never the path.
    pub fn record_response(&self, route: &str, status: u16, elapsed: Duration) {
        self.answers
            .with_label_values(&[route, &status.to_string()])
            .inc();
        self.seconds
            .with_label_values(&[route])
            .observe(elapsed.as_secs_f64());
    }
}
