//! Metric families of deferred calls and delegations.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use super::family::{create_children, register_counter, register_counters, register_gauge};

/// The values of the label `kind`.
const KINDS: [&str; 2] = ["delegation", "deferred"];

/// Metrics of deferred calls and delegations.
pub struct JobMetrics {
    /// Calls that this replica is sending, or whose response it awaits.
    pub running: IntGauge,
    /// Attempts that delivered nothing.
    pub retries: IntCounter,
    /// Failed attempts to deliver the result of a delegation to its delegator.
    pub untold: IntCounter,
    accepted: IntCounterVec,
    finished: IntCounterVec,
    refused: IntCounter,
}

impl JobMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let accepted = register_counters(
            r,
            "a2a_gateway_jobs_accepted_total",
            "Calls that this replica accepted to be made later, by kind: delegation, deferred.",
            &["kind"],
        );
        create_children(&accepted, &KINDS);
        let finished = register_counters(
            r,
            "a2a_gateway_jobs_finished_total",
            "Delegations and deferred calls that this replica saw end, by kind and state.",
            &["kind", "state"],
        );
        for kind in KINDS {
            for state in ["completed", "failed", "expired"] {
                finished.with_label_values(&[kind, state]);
            }
        }
        Self {
            running: register_gauge(
                r,
                "a2a_gateway_jobs_running",
                "Delegations and deferred calls that this replica is sending, or whose answer it awaits.",
            ),
            retries: register_counter(
                r,
                "a2a_gateway_job_retries_total",
                "Attempts to send a delegation or a deferred call at which nothing was delivered.",
            ),
            untold: register_counter(
                r,
                "a2a_gateway_job_results_put_off_total",
                "Times that a delegator could not be told how its delegation ended, and was to be told later.",
            ),
            accepted,
            finished,
            refused: register_counter(
                r,
                "a2a_gateway_jobs_refused_total",
                "Calls that were not accepted to be made later, since as many as may be wait (delegation.max_pending).",
            ),
        }
    }

    /// Counts one accepted call by its kind.
    pub fn count_accepted(&self, kind: &'static str) {
        self.accepted.with_label_values(&[kind]).inc();
    }

    /// Counts one finished call by its kind and state.
    pub fn count_finished(&self, kind: &'static str, state: &'static str) {
        self.finished.with_label_values(&[kind, state]).inc();
    }

    /// Counts one rejected call.
    pub fn count_refused(&self) {
        self.refused.inc();
    }
}
