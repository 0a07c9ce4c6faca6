//! Calls with a key.

use prometheus::{IntCounter, IntCounterVec, Registry};

use super::family::{begin, counter, counters};

/// Families of calls that may be sent again.
pub struct Calls {
    outcomes: IntCounterVec,
    /// Answers that could not be stored before they were given.
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

    /// Counts one, by a word of a closed set.
    pub fn counted(&self, outcome: &'static str) {
        self.outcomes.with_label_values(&[outcome]).inc();
    }
}
