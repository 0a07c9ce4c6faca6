//! Metric families of calls with a key.

use prometheus::{IntCounter, IntCounterVec, Registry};

use super::family::{create_children, register_counter, register_counters};

/// Metrics of calls with a key.
pub struct Calls {
    outcomes: IntCounterVec,
    /// Responses that were sent although they could not be stored first.
    pub unstored: IntCounter,
}

impl Calls {
    pub(super) fn new(r: &Registry) -> Self {
        let outcomes = register_counters(
            r,
            "a2a_gateway_idempotent_calls_total",
            "Calls with a key, by what became of them: dispatched, joined, replayed, conflict, unknown, unkept (the answer was passed on and not kept).",
            &["outcome"],
        );
        create_children(
            &outcomes,
            &[
                "dispatched",
                "joined",
                "replayed",
                "conflict",
                "unknown",
                "unkept",
            ],
        );
        Self {
            outcomes,
            unstored: register_counter(
                r,
                "a2a_gateway_idempotent_unstored_total",
                "Answers to calls with a key that could not be stored, and were given all the same.",
            ),
        }
    }

    /// Counts one call by its outcome, a value of a closed set.
    pub fn count_outcome(&self, outcome: &'static str) {
        self.outcomes.with_label_values(&[outcome]).inc();
    }
}
