//! Metric families of calls with a key.

use prometheus::{IntCounter, IntCounterVec, Registry};

use super::family::{begin, counter, counters};

/// Metrics of calls with a key.
pub struct Calls {
    outcomes: IntCounterVec,
    /// Responses that were sent although they could not be stored first.
    pub unstored: IntCounter,
}

impl Calls {
    pub(super) fn new(r: &Registry) -> Self {
        let outcomes = counters(
            r,
            "a2a_gateway_idempotent_calls_total",
            "Calls with a key, by what became of them: dispatched, joined, replayed, conflict, unknown, unkept (the answer was passed on and not kept).",
            &["outcome"],
        );
        begin(
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
            unstored: counter(
                r,
                "a2a_gateway_idempotent_unstored_total",
                "Answers to calls with a key that could not be stored, and were given all the same.",
            ),
        }
    }

    /// Counts one call by its outcome, a value of a closed set.
    pub fn counted(&self, outcome: &'static str) {
        self.outcomes.with_label_values(&[outcome]).inc();
    }
}
