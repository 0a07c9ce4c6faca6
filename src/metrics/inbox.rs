//! Metric families of inboxes.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Registry};

use super::family::{begin, counter, counters, gauge, gauges, register};

/// Histogram buckets: entries of one transaction, at most 256.
const BATCHES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// The kind of a waiting reader of an inbox; index into its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboxReader {
    /// A request with `?wait=`.
    Wait = 0,
    /// An event stream.
    Stream = 1,
    /// A message that waits for the agent's reply.
    Sender = 2,
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
    readers: [IntGauge; 3],
    /// Inboxes with messages that their agents no longer fetch.
    pub unread: IntGauge,
    /// Messages that were acknowledged at once, because the maximum number already waits for a reply.
    pub waits_refused: IntCounter,
}

impl InboxMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let readers = gauges(
            r,
            "a2a_gateway_inbox_readers",
            "Open feeds of inboxes, requests that wait for an entry, and messages whose senders wait for the reply.",
            &["kind"],
        );
        let refused = counters(
            r,
            "a2a_gateway_inbox_refused_total",
            "Entries that were not put into an inbox, by why: full, or queue (this replica cannot keep up).",
            &["why"],
        );
        begin(&refused, &["full", "queue"]);
        let batches = HistogramOpts::new(
            "a2a_gateway_inbox_batch_entries",
            "Entries of inboxes that were committed together.",
        );
        Self {
            waiting: gauge(
                r,
                "a2a_gateway_inbox_waiting",
                "Entries of inboxes that wait to be written down.",
            ),
            unread: gauge(
                r,
                "a2a_gateway_inbox_unread",
                "Inboxes in which a message waits for longer than registry.heartbeat_ttl, while their agents neither read, reply nor acknowledge; for all replicas.",
            ),
            waits_refused: counter(
                r,
                "a2a_gateway_inbox_waits_refused_total",
                "Messages whose senders would have waited for the reply and were answered at once: as many as may be waited.",
            ),
            pruned: counter(
                r,
                "a2a_gateway_inbox_pruned_total",
                "Entries of inboxes that were forgotten: acknowledged long ago, or older than inbox.retention.",
            ),
            entries: counter(
                r,
                "a2a_gateway_inbox_entries_total",
                "Entries that this replica put into inboxes.",
            ),
            batches: register(r, Histogram::with_opts(batches.buckets(BATCHES.to_vec()))),
            refused,
            readers: ["wait", "stream", "sender"].map(|kind| readers.with_label_values(&[kind])),
        }
    }

    /// Counts entries that were committed together.
    pub fn batch(&self, entries: u32) {
        self.entries.inc_by(u64::from(entries));
        self.batches.observe(f64::from(entries));
    }

    /// Counts one rejected entry, by a value of a closed set.
    pub fn refused(&self, why: &'static str) {
        self.refused.with_label_values(&[why]).inc();
    }

    /// Returns the gauge of open readers of a kind.
    pub fn readers(&self, kind: InboxReader) -> &IntGauge {
        &self.readers[kind as usize]
    }
}
