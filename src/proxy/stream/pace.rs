//! What is measured of a stream's events: when they come, and the states of tasks that they tell.

use std::sync::Arc;

use tokio::time::Instant;

use crate::a2a::event::states_told;
use crate::metrics::Metrics;

/// One stream's events as its agent sends them.
pub(in crate::proxy) struct Pace {
    metrics: Arc<Metrics>,
    /// The request head at first, then the last event.
    since: Instant,
    begun: bool,
}

impl Pace {
    /// Of a stream whose request head had been read at `started`.
    pub(in crate::proxy) fn new(metrics: Arc<Metrics>, started: Instant) -> Self {
        Self {
            metrics,
            since: started,
            begun: false,
        }
    }

    /// Takes whole events that came together at `now`: they are one beat.
    pub(super) fn events(&mut self, now: Instant, events: &[u8]) {
        let waited = now.duration_since(self.since).as_secs_f64();
        let streams = &self.metrics.streams;
        if self.begun {
            streams.between_events.observe(waited);
        } else {
            streams.first_event.observe(waited);
        }
        self.begun = true;
        self.since = now;
        for state in states_told(events) {
            self.metrics.tasks.seen(state);
        }
    }
}
