//! All metric families and their labels (`docs/reference/metrics.md`). Labels are closed sets, never
//! an id. Children are resolved once, since a look-up by label hashes strings.

mod exchanges;
mod families;
mod family;
mod label;
mod process;
mod render;
mod times;

use std::time::Duration;

use opentelemetry::TraceId;
use prometheus::{IntGauge, Registry};

pub use self::families::*;
use self::family::{Declaration, Family as _};
pub use self::label::*;
pub use self::process::ProcessMetrics;
pub use self::render::Format;
use crate::time::Timestamp;
use a2a::Generation;
use a2a::bridge::{OmittedMembers, Side};
use a2a::card::Binding;
use a2a::method::Method;

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers all families in a new registry.
    pub fn new() -> Self {
        Self::register(&Declaration::new(&Registry::new(), false))
    }

    /// Registers the families of a sidecar, which omits those of modules that only a gateway has.
    pub fn for_sidecar() -> Self {
        Self::register(&Declaration::new(&Registry::new(), true))
    }

    /// Counts one finished exchange. `trace_id` is that of its trace if it is recorded.
    pub fn record_exchange(
        &self,
        (method, outcome, shape): (Method, Outcome, Shape),
        total: Duration,
        trace_id: Option<TraceId>,
    ) {
        self.exchanges.count(method, outcome);
        if let Outcome::Rejected(reason) = outcome {
            self.refusals.by_reason[Plane::A2a][reason].inc();
        }
        self.total_seconds[shape].observe(total, trace_id);
    }

    /// Records the time to the agent's response head. `trace_id` is that of the trace if it is recorded.
    pub fn record_head_time(&self, shape: Shape, elapsed: Duration, trace_id: Option<TraceId>) {
        self.head_seconds[shape].observe(elapsed, trace_id);
    }

    /// Counts one fetch of a card: `fetched`, or a reason.
    pub fn count_card_fetch(&self, outcome: &'static str) {
        self.card_fetches.with_label_values(&[outcome]).inc();
    }

    /// Counts one token that a sidecar verified, by a value of a closed set. `kept` is the size of the
    /// replay cache.
    pub fn count_token_use(&self, word: &'static str, kept: usize) {
        self.token_uses.with_label_values(&[word]).inc();
        set_count(&self.tokens_kept, kept);
    }

    /// Counts one look-up in a cache.
    pub fn count_lookup(&self, cache: Cache, hit: bool) {
        let result = if hit {
            LookupResult::Hit
        } else {
            LookupResult::Miss
        };
        self.cache_lookups[cache][result].inc();
    }

    /// Records one store operation.
    pub fn record_operation(&self, store: &str, operation: &str, elapsed: Duration, ok: bool) {
        self.store_seconds
            .with_label_values(&[store, operation])
            .observe(elapsed.as_secs_f64());
        // Created by the first operation, so that `rate()` includes the first error.
        let errors = self.store_errors.with_label_values(&[store, operation]);
        errors.inc_by(u64::from(!ok));
    }

    /// Records a valid configuration; `waiting` changed keys need a restart.
    pub fn record_config_loaded(&self, waiting: usize) {
        self.config_reloaded.set(1);
        self.config_loaded_at.set(Timestamp::now().0 / 1000);
        set_count(&self.config_waiting, waiting);
    }

    /// Counts a reader that was disconnected. `why` is a value of a closed set.
    pub fn count_event_reader_cut(&self, why: &'static str) {
        self.event_readers_cut.with_label_values(&[why]).inc();
    }

    /// Counts published events.
    pub fn count_published_events(&self, kind: EventKind, count: usize) {
        self.events_published[kind].inc_by(count as u64);
    }

    /// Counts events that were not published.
    pub fn count_dropped_events(&self, kind: EventKind, count: usize) {
        self.events_dropped[kind].inc_by(count as u64);
    }
}

impl BridgeMetrics {
    /// Counts a call that is translated.
    pub fn count_call(&self, from: Generation, to: Side, method: Method) {
        let binding = match to.binding {
            Binding::JsonRpc => "jsonrpc",
            Binding::HttpJson => "http_json",
        };
        let (from, to) = (from.version(), to.generation.version());
        let labels = [from, to, binding, method.label()];
        self.calls.with_label_values(&labels).inc();
    }

    /// Counts members without a place in the other generation. Their names come from the tables of the translation. The
    /// first state that A2A does not spell so is logged: it may show a client another thing than its agent meant.
    pub fn count_left_out(&self, left_out: &OmittedMembers) {
        for (object, member, count) in left_out.iter() {
            let counter = self.left_out.with_label_values(&[object, member]);
            if member == "state" && counter.get() == 0 {
                tracing::warn!(
                    "an agent names a task state as A2A does not spell it: one in another spelling is read, any other \
                     is unknown to its callers (logged once; a2a_gateway_bridge_left_out_total counts all)"
                );
            }
            counter.inc_by(count.into());
        }
    }
}

impl Calls {
    /// Counts one call by its outcome, a value of a closed set.
    pub fn count_outcome(&self, outcome: &'static str) {
        self.outcomes.with_label_values(&[outcome]).inc();
    }
}

impl Control {
    /// Counts one response. `route` is the pattern, never the path.
    pub fn record_response(&self, route: &str, status: u16, elapsed: Duration) {
        let labels = [route, &status.to_string()];
        self.answers.with_label_values(&labels).inc();
        let seconds = self.seconds.with_label_values(&[route]);
        seconds.observe(elapsed.as_secs_f64());
    }
}

impl GuardMetrics {
    /// Counts one verdict. `phase`: a word of the configuration.
    pub fn record_verdict(
        &self,
        guard: &str,
        phase: &'static str,
        verdict: GuardVerdict,
        elapsed: Duration,
    ) {
        let labels = [guard, phase, verdict.as_str()];
        self.verdicts.with_label_values(&labels).inc();
        let seconds = self.seconds.with_label_values(&[guard, phase]);
        seconds.observe(elapsed.as_secs_f64());
    }
}

impl InboxMetrics {
    /// Counts entries that were committed together.
    pub fn record_batch(&self, entries: u32) {
        self.entries.inc_by(u64::from(entries));
        self.batches.observe(f64::from(entries));
    }
}

impl Queues {
    /// Sets the length of a queue in SQL, which every replica reports, and the age of its oldest entry.
    pub fn set_backlog(&self, which: Backlog, entries: i64, oldest: Duration) {
        let queue = match which {
            Backlog::Inbox => Queue::Inbox,
            Backlog::Jobs => Queue::Jobs,
        };
        self.entries[queue].set(entries);
        self.oldest[which].set(oldest.as_secs_f64());
    }
}

/// Sets a gauge to a number of things.
pub fn set_count(gauge: &IntGauge, count: usize) {
    gauge.set(count.try_into().unwrap_or(i64::MAX));
}

/// Work in progress, counted in a gauge. Dropping it decrements the gauge, also on a panic or a cancellation.
pub struct InProgress {
    gauge: IntGauge,
    amount: i64,
}

impl InProgress {
    /// Increments the gauge until the guard is dropped.
    pub fn begin(gauge: &IntGauge) -> Self {
        Self::begin_many(gauge, 1)
    }

    /// Adds to the gauge until the guard is dropped.
    pub fn begin_many(gauge: &IntGauge, amount: usize) -> Self {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        gauge.add(amount);
        Self {
            gauge: gauge.clone(),
            amount,
        }
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.gauge.sub(self.amount);
    }
}
