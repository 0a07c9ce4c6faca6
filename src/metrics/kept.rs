//! Metric families of the content that is stored in SQL for workspaces.

use prometheus::{IntCounter, IntGauge, Registry};

use super::family::{counters, gauge};

/// The kind of content that was not stored; index into its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptKind {
    /// An entry of an inbox.
    Inbox = 0,
    /// An agent's reply to an entry of its inbox.
    Reply = 1,
    /// The response of a call with an idempotency key.
    Answer = 2,
    /// A delegation or a deferred call.
    Delegation = 3,
    /// The result of a delegation or a deferred call.
    Result = 4,
}

/// Metrics of stored bytes.
pub struct Kept {
    total: IntGauge,
    largest: IntGauge,
    refused: [IntCounter; 5],
}

impl Kept {
    pub(super) fn new(r: &Registry) -> Self {
        let refused = counters(
            r,
            "a2a_gateway_kept_refused_total",
            "What was not kept, since limits.kept_bytes or limits.kept_bytes_total are used up, by kind: inbox, reply, answer, delegation, result.",
            &["kind"],
        );
        Self {
            total: gauge(
                r,
                "a2a_gateway_kept_bytes",
                "Bytes that are kept in SQL for all workspaces: inboxes, answers of calls with a key, delegations.",
            ),
            largest: gauge(
                r,
                "a2a_gateway_kept_largest_bytes",
                "The same, of the caller or inbox that has the most.",
            ),
            refused: ["inbox", "reply", "answer", "delegation", "result"]
                .map(|kind| refused.with_label_values(&[kind])),
        }
    }

    /// Sets the number of stored bytes, in all and of the largest owner.
    pub fn seen(&self, total: i64, largest: i64) {
        self.total.set(total);
        self.largest.set(largest);
    }

    /// Counts content that was rejected.
    pub fn refused(&self, kind: KeptKind) {
        self.refused[kind as usize].inc();
    }
}
