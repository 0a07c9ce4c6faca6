//! The families of what waits, and of what replicas tell one another and is lost.

use std::time::Duration;

use prometheus::{Gauge, IntCounter, IntGauge, Registry};

use super::family::{counters, gauges, measures};

/// What waits. Those of [`Backlog`] are in SQL, and every replica tells of all of them; the others are this
/// replica's own, in memory.
pub struct Queues {
    /// Events that are kept, to be published.
    pub events_kept: IntGauge,
    /// Events that only pass, to be published.
    pub events_passing: IntGauge,
    /// Owners and uses of tasks, to be written down for other replicas.
    pub task_notes: IntGauge,
    backlog: [(IntGauge, Gauge); 2],
    samples_lost: [IntCounter; 4],
}

/// What replicas tell one another for the console, and is not shown. The label `why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostSample {
    /// Longer than it may be; it came from elsewhere.
    TooLong = 0,
    /// Not of its form; likewise.
    Malformed = 1,
    /// Some of our own was left out, to be short enough.
    Cut = 2,
    /// Of a replica for which there was no place.
    Full = 3,
}

/// What waits in SQL. The label `queue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backlog {
    /// Entries of inboxes that nobody acknowledged.
    Inbox = 0,
    /// Delegations and deferred calls that were not sent.
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

    /// Counts a second of a replica that is not shown, or not whole.
    pub fn console_sample_lost(&self, why: LostSample) {
        self.samples_lost[why as usize].inc();
    }

    /// Notes how much waits in SQL, and how long the oldest has.
    pub fn backlog(&self, which: Backlog, entries: i64, oldest: Duration) {
        let (count, age) = &self.backlog[which as usize];
        count.set(entries);
        age.set(oldest.as_secs_f64());
    }
}
