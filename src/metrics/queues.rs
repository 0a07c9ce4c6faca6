//! Metric families of queues, and of samples for the console that were lost between replicas.

use std::time::Duration;

use prometheus::{Gauge, IntCounter, IntGauge, Registry};

use super::family::{counters, gauges, measures};

/// Metrics of queues. Those of [`Backlog`] are in SQL, and every replica reports all of them. The others
/// are in this replica's memory.
pub struct Queues {
    /// Events to be published that are kept for replay.
    pub events_kept: IntGauge,
    /// Events to be published that are not kept.
    pub events_passing: IntGauge,
    /// Owners and uses of tasks to be written for other replicas.
    pub task_notes: IntGauge,
    backlog: [(IntGauge, Gauge); 2],
    samples_lost: [IntCounter; 4],
}

/// The reason why a replica's sample for the console is not shown. The label `why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostSample {
    /// Received, and too long.
    TooLong = 0,
    /// Received, and malformed.
    Malformed = 1,
    /// Truncated before it was sent, to fit.
    Cut = 2,
    /// Received from more replicas than can be shown.
    Full = 3,
}

/// A queue in SQL. The label `queue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backlog {
    /// Unacknowledged entries of inboxes.
    Inbox = 0,
    /// Delegations and deferred calls that are not sent yet.
    Jobs = 1,
}

impl Queues {
    pub(super) fn new(r: &Registry) -> Self {
        let entries = gauges(
            r,
            "a2a_gateway_queue_entries",
            "What waits: in SQL, for all replicas (inbox, jobs), and in this replica's memory (events_kept, events_passing, task_notes).",
            &["queue"],
        );
        let oldest = measures(
            r,
            "a2a_gateway_queue_oldest_seconds",
            "Age of what waits longest in SQL (inbox, jobs); 0 while nothing does.",
            &["queue"],
        );
        let lost = counters(
            r,
            "a2a_gateway_console_samples_lost_total",
            "Seconds of a replica that were not shown in consoles, by why: too_long or malformed as it came, cut (in part) as it left, full (no place for another replica).",
            &["why"],
        );
        let entries = |queue: &str| entries.with_label_values(&[queue]);
        Self {
            events_kept: entries("events_kept"),
            events_passing: entries("events_passing"),
            task_notes: entries("task_notes"),
            backlog: ["inbox", "jobs"]
                .map(|queue| (entries(queue), oldest.with_label_values(&[queue]))),
            samples_lost: ["too_long", "malformed", "cut", "full"]
                .map(|why| lost.with_label_values(&[why])),
        }
    }

    /// Counts a sample that is not shown, or not completely.
    pub fn console_sample_lost(&self, why: LostSample) {
        self.samples_lost[why as usize].inc();
    }

    /// Sets the length of a queue in SQL and the age of its oldest entry.
    pub fn backlog(&self, which: Backlog, entries: i64, oldest: Duration) {
        let (count, age) = &self.backlog[which as usize];
        count.set(entries);
        age.set(oldest.as_secs_f64());
    }
}
