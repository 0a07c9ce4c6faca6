//! Metric families of the content that is stored in SQL for workspaces.

use prometheus::{IntCounter, IntGauge, Registry};

use super::family::{register_counters_by, register_gauge};
use super::label::By;
use crate::closed_set::words;

words! {
    /// The kind of content that was not stored.
    RetainedKind {
        /// An entry of an inbox.
        Inbox => "inbox",
        /// An agent's reply to an entry of its inbox.
        Reply => "reply",
        /// The response of a call with an idempotency key.
        Answer => "answer",
        /// A delegation or a deferred call.
        Delegation => "delegation",
        /// The result of a delegation or a deferred call.
        Result => "result",
    }
}

/// Metrics of stored bytes.
pub struct RetainedBytesMetrics {
    total: IntGauge,
    largest: IntGauge,
    refused: By<RetainedKind, IntCounter>,
}

impl RetainedBytesMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            total: register_gauge(
                r,
                "a2a_gateway_kept_bytes",
                "Bytes that are kept in SQL for all workspaces: inboxes, answers of calls with a key, delegations.",
            ),
            largest: register_gauge(
                r,
                "a2a_gateway_kept_largest_bytes",
                "The same, of the caller or inbox that has the most.",
            ),
            refused: register_counters_by(
                r,
                "a2a_gateway_kept_refused_total",
                "What was not kept, since limits.kept_bytes or limits.kept_bytes_total are used up, by kind: inbox, reply, answer, delegation, result.",
                "kind",
            ),
        }
    }

    /// Sets the number of stored bytes, in all and of the largest owner.
    pub fn set_bytes(&self, total: i64, largest: i64) {
        self.total.set(total);
        self.largest.set(largest);
    }

    /// Counts content that was rejected.
    pub fn count_refused(&self, kind: RetainedKind) {
        self.refused[kind].inc();
    }
}
