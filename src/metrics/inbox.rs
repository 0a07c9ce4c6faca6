//! Metric families of inboxes.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Registry};

use super::family::{
    create_children, register, register_counter, register_counters, register_gauge,
    register_gauges_by,
};
use super::label::By;
use crate::closed_set::words;

/// Histogram buckets: entries of one transaction, at most 256.
const BATCHES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

words! {
    /// The kind of a waiting reader of an inbox.
    InboxReader {
        /// A request with `?wait=`.
        Wait => "wait",
        /// An event stream.
        Stream => "stream",
        /// A message that waits for the agent's reply.
        Sender => "sender",
    }
}

/// Metrics of inboxes.
pub struct InboxMetrics {
    /// Entries that are queued to be written.
    pub waiting: IntGauge,
    /// Entries that were deleted.
    pub pruned: IntCounter,
    entries: IntCounter,
    batches: Histogram,
    refused: IntCounterVec,
    readers: By<InboxReader, IntGauge>,
    /// Inboxes with messages that their agents no longer fetch.
    pub unread: IntGauge,
    /// Messages that were acknowledged at once, because the maximum number already waits for a reply.
    pub waits_refused: IntCounter,
}

impl InboxMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let refused = register_counters(
            r,
            "a2a_gateway_inbox_refused_total",
            "Entries that were not put into an inbox, by why: full, or queue (this replica cannot keep up).",
            &["why"],
        );
        create_children(&refused, &["full", "queue"]);
        let batches = HistogramOpts::new(
            "a2a_gateway_inbox_batch_entries",
            "Entries of inboxes that were committed together.",
        );
        Self {
            waiting: register_gauge(
                r,
                "a2a_gateway_inbox_waiting",
                "Entries of inboxes that wait to be written down.",
            ),
            unread: register_gauge(
                r,
                "a2a_gateway_inbox_unread",
                "Inboxes in which a message waits for longer than registry.heartbeat_ttl, while their agents neither read, reply nor acknowledge; for all replicas.",
            ),
            waits_refused: register_counter(
                r,
                "a2a_gateway_inbox_waits_refused_total",
                "Messages whose senders would have waited for the reply and were answered at once: as many as may be waited.",
            ),
            pruned: register_counter(
                r,
                "a2a_gateway_inbox_pruned_total",
                "Entries of inboxes that were forgotten: acknowledged long ago, or older than inbox.retention.",
            ),
            entries: register_counter(
                r,
                "a2a_gateway_inbox_entries_total",
                "Entries that this replica put into inboxes.",
            ),
            batches: register(r, Histogram::with_opts(batches.buckets(BATCHES.to_vec()))),
            refused,
            readers: register_gauges_by(
                r,
                "a2a_gateway_inbox_readers",
                "Open feeds of inboxes, requests that wait for an entry, and messages whose senders wait for the reply.",
                "kind",
            ),
        }
    }

    /// Counts entries that were committed together.
    pub fn record_batch(&self, entries: u32) {
        self.entries.inc_by(u64::from(entries));
        self.batches.observe(f64::from(entries));
    }

    /// Counts one rejected entry, by a value of a closed set.
    pub fn count_refused(&self, why: &'static str) {
        self.refused.with_label_values(&[why]).inc();
    }

    /// Returns the gauge of open readers of a kind.
    pub fn readers(&self, kind: InboxReader) -> &IntGauge {
        &self.readers[kind]
    }
}
