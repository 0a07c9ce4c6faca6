//! Metric families of guards.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, Registry};

use super::family::{register_counters, register_histograms};
use crate::closed_set::words;

words! {
    /// The verdict of a guard, or how it failed. The label `verdict`.
    GuardVerdict {
        /// The document passes.
        Pass => "pass",
        /// It is rejected.
        Reject => "reject",
        /// It passes in another form.
        Replace => "replace",
        /// There was no answer in time.
        Timeout => "timeout",
        /// There was no connection, the address policy refused the address, or the connection broke.
        Unreachable => "unreachable",
        /// The answer was no verdict, too large, or a replacement that does not keep the names.
        Invalid => "invalid",
        /// The document is larger than the guard's `max_bytes`.
        TooLarge => "too_large",
        /// As many questions as may be were in progress for all of the time.
        Busy => "busy",
        /// It was not asked, since it had failed too often.
        Open => "open",
    }
}

/// Metrics of guards. Their names come from the configuration.
pub struct GuardMetrics {
    verdicts: IntCounterVec,
    seconds: HistogramVec,
}

impl GuardMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            verdicts: register_counters(
                r,
                "a2a_gateway_guard_verdicts_total",
                "Verdicts of guards, by guard, phase and verdict; other verdicts than pass, reject and replace are failures.",
                &["guard", "phase", "verdict"],
            ),
            seconds: register_histograms(
                r,
                "a2a_gateway_guard_seconds",
                "Time until the verdict of a guard, or its failure, by guard and phase.",
                &["guard", "phase"],
            ),
        }
    }

    /// Counts one verdict. `phase`: a word of the configuration.
    pub fn record_verdict(
        &self,
        guard: &str,
        phase: &'static str,
        verdict: GuardVerdict,
        elapsed: Duration,
    ) {
        let labels = [guard, phase, verdict.as_str()];
        self.verdicts.with_label_values(&labels).inc();
        let seconds = self.seconds.with_label_values(&[guard, phase]);
        seconds.observe(elapsed.as_secs_f64());
    }
}
