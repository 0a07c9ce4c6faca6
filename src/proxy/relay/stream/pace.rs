//! Metrics of a stream's events: the times between them, and the task states that they report.

use std::sync::Arc;

use tokio::time::Instant;

use crate::a2a::event::states_in;
use crate::metrics::Metrics;

/// The measurement of one stream's events, as the agent sends them.
pub(in crate::proxy) struct EventPace {
    metrics: Arc<Metrics>,
    /// The time of the request head at first, then of the last event.
    since: Instant,
    begun: bool,
}

impl EventPace {
    /// Creates the measurement of a stream whose request head was complete at `started`.
    pub(in crate::proxy) fn new(metrics: Arc<Metrics>, started: Instant) -> Self {
        Self {
            metrics,
            since: started,
            begun: false,
        }
    }

    /// Observes complete events that arrived together at `now`: they count as one arrival. Returns true if one of them
    /// reports that the task has ended.
    pub(super) fn observe_events(&mut self, now: Instant, events: &[u8]) -> bool {
        let waited = now.duration_since(self.since).as_secs_f64();
        let streams = &self.metrics.streams;
        if self.begun {
            streams.between_events.observe(waited);
        } else {
            streams.first_event.observe(waited);
        }
        self.begun = true;
        self.since = now;
        let mut ended = false;
        for state in states_in(events) {
            self.metrics.tasks.count_state(state);
            ended |= state.is_terminal();
        }
        ended
    }
}
