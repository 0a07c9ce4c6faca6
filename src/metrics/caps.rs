//! Metric families of caps.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use super::family::{register_counter, register_counters, register_gauge};

/// Metrics of caps.
pub struct CapMetrics {
    refused: IntCounterVec,
    /// Subjects that this replica counts.
    pub subjects: IntGauge,
    /// Calls of subjects for which there was no room among them.
    pub dropped: IntCounter,
}

impl CapMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            refused: register_counters(
                r,
                "a2a_gateway_cap_refusals_total",
                "Calls that were refused since a cap is reached, by its name in the configuration.",
                &["cap"],
            ),
            subjects: register_gauge(
                r,
                "a2a_gateway_cap_subjects",
                "Runs, contexts, callers, pairs, targets and orgs that this replica counts for caps.",
            ),
            dropped: register_counter(
                r,
                "a2a_gateway_cap_subjects_dropped_total",
                "Counts of calls for caps that were made without a share, since this replica counts as many subjects as it may.",
            ),
        }
    }

    /// Counts a refused call. `cap` is a name in the configuration.
    pub fn count_refused(&self, cap: &str) {
        self.refused.with_label_values(&[cap]).inc();
    }
}
