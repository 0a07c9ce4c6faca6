//! Metric families of queues, and of samples for the console that were lost between replicas.

use std::time::Duration;

use prometheus::{Gauge, IntCounter, IntGauge, Registry};

use super::family::{register_counters_by, register_float_gauges, register_gauges};
use super::label::By;
use crate::closed_set::words;

/// Metrics of queues. Those of [`Backlog`] are in SQL, and every replica reports all of them. The others
/// are in this replica's memory.
pub struct Queues {
    /// Events to be published that are kept for replay.
    pub events_kept: IntGauge,
    /// Events to be published that are not kept.
    pub events_passing: IntGauge,
    /// Owners and uses of tasks to be written for other replicas.
    pub task_notes: IntGauge,
    backlog: By<Backlog, (IntGauge, Gauge)>,
    samples_lost: By<LostSample, IntCounter>,
}

words! {
    /// The reason why a replica's sample for the console is not shown. The label `why`.
    LostSample {
        /// Received, and too long.
        TooLong => "too_long",
        /// Received, and malformed.
        Malformed => "malformed",
        /// Truncated before it was sent, to fit.
        Cut => "cut",
        /// Received from more replicas than can be shown.
        Full => "full",
    }
}

words! {
    /// A queue in SQL. The label `queue`.
    Backlog {
        /// Unacknowledged entries of inboxes.
        Inbox => "inbox",
        /// Delegations and deferred calls that are not sent yet.
        Jobs => "jobs",
    }
}

impl Queues {
    pub(super) fn new(r: &Registry) -> Self {
        let entries = register_gauges(
            r,
            "a2a_gateway_queue_entries",
            "What waits: in SQL, for all replicas (inbox, jobs), and in this replica's memory (events_kept, events_passing, task_notes).",
            &["queue"],
        );
        let oldest = register_float_gauges(
            r,
            "a2a_gateway_queue_oldest_seconds",
            "Age of what waits longest in SQL (inbox, jobs); 0 while nothing does.",
            &["queue"],
        );
        let entries = |queue: &str| entries.with_label_values(&[queue]);
        Self {
            events_kept: entries("events_kept"),
            events_passing: entries("events_passing"),
            task_notes: entries("task_notes"),
            backlog: By::new(|queue| (entries(queue), oldest.with_label_values(&[queue]))),
            samples_lost: register_counters_by(
                r,
                "a2a_gateway_console_samples_lost_total",
                "Seconds of a replica that were not shown in consoles, by why: too_long or malformed as it came, cut (in part) as it left, full (no place for another replica).",
                "why",
            ),
        }
    }

    /// Counts a sample that is not shown, or not completely.
    pub fn count_lost_sample(&self, why: LostSample) {
        self.samples_lost[why].inc();
    }

    /// Sets the length of a queue in SQL and the age of its oldest entry.
    pub fn set_backlog(&self, which: Backlog, entries: i64, oldest: Duration) {
        let (count, age) = &self.backlog[which];
        count.set(entries);
        age.set(oldest.as_secs_f64());
    }
}
