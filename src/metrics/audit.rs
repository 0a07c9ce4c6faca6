//! Metric families of the audit chain.

use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, Registry};

use super::family::{
    create_children, register_counter, register_counters, register_counters_by,
    register_float_gauge, register_gauge,
};
use super::label::By;
use crate::closed_set::words;

words! {
    /// The place in which a lost record was queued. The label `where`.
    AuditLoss {
        /// The queue in memory, before the record was chained.
        Queue => "queue",
        /// The spool on disk (`audit.spool_bytes`).
        Spool => "spool",
    }
}

/// Metrics of the audit chain: written, waiting and lost records.
pub struct AuditMetrics {
    records: IntCounterVec,
    /// Age in seconds of the oldest record that is not in SQL yet; 0 if there is none.
    pub lag: Gauge,
    /// Records that are not in SQL yet, in memory and in the spool.
    pub waiting: IntGauge,
    /// Size of the spool in bytes.
    pub spool_bytes: IntGauge,
    lost: By<AuditLoss, IntCounter>,
    /// Signed checkpoints that were written.
    pub checkpoints: IntCounter,
    /// Failed attempts to write records or a checkpoint, which are retried.
    pub write_failures: IntCounter,
    /// Failed attempts to keep the end of the chain outside the database.
    pub anchors_failed: IntCounter,
}

impl AuditMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let records = register_counters(
            r,
            "a2a_gateway_audit_records_total",
            "Audit records that this replica chained, by event.",
            &["event"],
        );
        // The children of other events are created at their first record: there are many, and most are
        // rare.
        create_children(&records, &["A2A_CALL"]);
        Self {
            records,
            lag: register_float_gauge(
                r,
                "a2a_gateway_audit_lag_seconds",
                "Age of the oldest audit record that is not in SQL yet; 0 while all are.",
            ),
            waiting: register_gauge(
                r,
                "a2a_gateway_audit_waiting_records",
                "Audit records that are not in SQL yet, in memory and in the spool.",
            ),
            spool_bytes: register_gauge(
                r,
                "a2a_gateway_audit_spool_bytes",
                "Bytes of audit records that the spool file holds (audit.spool_bytes is its bound).",
            ),
            lost: register_counters_by(
                r,
                "a2a_gateway_audit_lost_total",
                "Audit records that were lost for want of room, by where: queue (in memory), spool (audit.spool_bytes).",
                "where",
            ),
            checkpoints: register_counter(
                r,
                "a2a_gateway_audit_checkpoints_total",
                "Signed checkpoints of the audit chain that this replica wrote.",
            ),
            anchors_failed: register_counter(
                r,
                "a2a_gateway_audit_anchor_failures_total",
                "Attempts to keep the signed end of the audit chain at audit.anchor that failed, and are made again.",
            ),
            write_failures: register_counter(
                r,
                "a2a_gateway_audit_write_failures_total",
                "Attempts to write audit records or checkpoints that failed, and were made again.",
            ),
        }
    }

    /// Counts chained records of one event, a value of a closed set.
    pub fn count_records(&self, event: &'static str, count: u64) {
        self.records.with_label_values(&[event]).inc_by(count);
    }

    /// Returns the counter of one event. Frequent users resolve it once.
    pub fn event_counter(&self, event: &'static str) -> IntCounter {
        self.records.with_label_values(&[event])
    }

    /// Counts lost records.
    pub fn count_lost(&self, place: AuditLoss, records: u64) {
        self.lost[place].inc_by(records);
    }
}
