//! All metric families and their labels (`docs/reference/metrics.md`). Labels are closed sets, never
//! an id. Children are resolved once, since a look-up by label hashes strings.

mod audit;
mod bridge;
mod calls;
mod capacity;
mod caps;
mod control;
mod exchanges;
mod family;
mod guards;
mod in_progress;
mod inbox;
mod jobs;
mod keys;
mod label;
mod process;
mod queues;
mod refusals;
mod render;
mod retained_bytes;
mod role;
mod streams;
mod tasks;
mod telemetry;
mod times;
mod waking;

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::TraceId;
use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};

pub use self::audit::{AuditLoss, AuditMetrics};
pub use self::capacity::{AgentFailure, Capacity, HoldOutcome, InstanceChoice, QueueOutcome};
use self::family::{
    create_children, register_counter, register_counters, register_counters_by, register_gauge,
    register_gauges_by, register_histograms,
};
pub use self::guards::{GuardMetrics, GuardVerdict};
pub use self::in_progress::InProgress;
pub use self::inbox::{InboxMetrics, InboxReader};
pub use self::jobs::JobMetrics;
pub use self::keys::{KeyAges, KeyMetrics};
use self::label::By;
pub use self::label::{
    Cache, ConnectionCut, EventKind, EventReader, JwksFetch, LapseSource, Outcome, RateShare, Shape,
};
use self::process::Process;
pub use self::queues::{Backlog, LostSample, Queues};
pub use self::refusals::{CredentialFlaw, Plane, Refusals};
pub use self::render::Format;
pub use self::retained_bytes::{RetainedBytesMetrics, RetainedKind};
use self::role::Role;
pub use self::streams::Streams;
pub use self::tasks::TaskMetrics;
pub use self::telemetry::Telemetry;
use self::times::Times;
pub use self::waking::{ProbeOutcome, WakeMetrics, WakeOutcome};
pub use self::{bridge::BridgeMetrics, calls::Calls, caps::CapMetrics, control::Control};
use crate::a2a::method::Method;
use crate::rejection::Reason;

const HEADS: &str = "a2a_gateway_head_seconds";
const TOTALS: &str = "a2a_gateway_exchange_seconds";

/// All metric families of this process.
pub struct Metrics {
    registry: Registry,
    exchanges: IntCounterVec,
    exchange_children: Vec<OnceLock<IntCounter>>,
    /// Time from the end of the request head to the agent's response head, unary and streamed.
    head_seconds: By<Shape, Times>,
    /// Duration of the exchange, unary and streamed.
    total_seconds: By<Shape, Times>,
    /// Bytes of request bodies sent to agents.
    pub request_bytes: IntCounter,
    /// Request bodies that were rejected for lack of space.
    pub bodies_refused: IntCounter,
    /// Bytes of response bodies sent to callers.
    pub response_bytes: IntCounter,
    /// Events forwarded in streams.
    pub events: IntCounter,
    /// Exchanges in progress.
    pub open_exchanges: IntGauge,
    /// Streams in progress.
    pub open_streams: IntGauge,
    /// Calls that hold a slot of their target's concurrency limit.
    pub target_permits: IntGauge,
    /// Requests that were sent again because the first attempt had sent nothing.
    pub resends: IntCounter,
    /// Metrics of the capacity of agents.
    pub capacity: Capacity,
    cache_hits: By<Cache, IntCounter>,
    cache_misses: By<Cache, IntCounter>,
    store_seconds: HistogramVec,
    store_errors: IntCounterVec,
    /// Lapses that this replica recorded, by the way they were noticed.
    lapses: By<LapseSource, IntCounter>,
    /// Metrics of logs and traces.
    pub telemetry: Telemetry,
    /// 1 while the link that carries cache invalidations is up.
    pub coherent: IntGauge,
    rate_shares: By<RateShare, IntCounter>,
    jwks_fetches: By<JwksFetch, IntCounter>,
    card_fetches: IntCounterVec,
    token_uses: IntCounterVec,
    tokens_kept: IntGauge,
    config_reloaded: IntGauge,
    config_loaded_at: IntGauge,
    config_waiting: IntGauge,
    /// Open event readers, sockets and streams.
    event_readers: By<EventReader, IntGauge>,
    /// Event readers that were disconnected, by reason.
    event_readers_cut: IntCounterVec,
    /// Connections of callers that were rejected or closed, by reason.
    connections_cut: By<ConnectionCut, IntCounter>,
    /// Events that this replica published: kept for replay, or passing.
    events_published: By<EventKind, IntCounter>,
    /// Events that were not published, kept and passing.
    events_dropped: By<EventKind, IntCounter>,
    /// 1 while the event log is followed.
    pub events_linked: IntGauge,
    /// Times that the event log was lost.
    pub events_lost: IntCounter,
    /// Metrics of caps.
    pub caps: CapMetrics,
    /// Metrics of translated calls.
    pub bridge: BridgeMetrics,
    /// Metrics of guards.
    pub guards: GuardMetrics,
    /// Metrics of inboxes.
    pub inbox: InboxMetrics,
    /// Metrics of calls with an idempotency key.
    pub calls: Calls,
    /// Metrics of bytes stored in SQL.
    pub kept: RetainedBytesMetrics,
    /// Metrics of streams and their resumption.
    pub streams: Streams,
    /// Metrics of deferred calls and delegations.
    pub jobs: JobMetrics,
    /// Metrics of calls to agents that sleep, and of probes.
    pub waking: WakeMetrics,
    /// Metrics of tasks.
    pub tasks: TaskMetrics,
    /// Metrics of queues.
    pub queues: Queues,
    /// Metrics of rejections.
    pub refusals: Refusals,
    /// Metrics of control-plane responses.
    pub control: Control,
    /// Metrics of the trust keys.
    pub keys: KeyMetrics,
    process: Process,
    role: Role,
    /// Metrics of the audit chain.
    pub audit: AuditMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers all families in a new registry.
    #[expect(
        clippy::too_many_lines,
        reason = "a list: each family with its name, help and labels"
    )]
    pub fn new() -> Self {
        let r = Registry::new();
        let exchanges = register_counters(
            &r,
            "a2a_gateway_exchanges_total",
            "A2A exchanges that ended, by method and outcome.",
            &["method", "outcome"],
        );
        let heads = register_histograms(
            &r,
            HEADS,
            "Time from the request head to the agent's response head.",
            &["shape"],
        );
        let totals = register_histograms(&r, TOTALS, "Time of a whole A2A exchange.", &["shape"]);
        let by_shape =
            |family, times: &HistogramVec| By::new(|shape| Times::for_shape(family, times, shape));
        let caches = register_counters(
            &r,
            "a2a_gateway_cache_lookups_total",
            "Look-ups in the caches of admission, by cache and whether they were answered from memory.",
            &["cache", "result"],
        );
        let cached = |result| By::new(|cache| caches.with_label_values(&[cache, result]));
        let event_readers_cut = register_counters(
            &r,
            "a2a_gateway_event_readers_cut_total",
            "Readers of events that the gateway cut, by why: slow, credential, silent, flood.",
            &["why"],
        );
        create_children(
            &event_readers_cut,
            &["slow", "credential", "silent", "flood"],
        );
        let token_uses = register_counters(
            &r,
            "a2a_gateway_token_uses_total",
            "Tokens bound to a body that a sidecar verified: first use, again (refused), late (expired while its body came; refused), full (refused, since a second use could not be told apart).",
            &["use"],
        );
        create_children(&token_uses, &["first", "again", "late", "full"]);
        let card_fetches = register_counters(
            &r,
            "a2a_gateway_card_fetches_total",
            "Fetches of agents' cards: fetched, or the reason why not.",
            &["outcome"],
        );
        create_children(
            &card_fetches,
            &["fetched", Reason::AgentUnreachable.as_str()],
        );
        Self {
            connections_cut: register_counters_by(
                &r,
                "a2a_gateway_connections_cut_total",
                "Connections that were refused, or cut outside of an exchange, by why; admin_*: to the admin listener.",
                "why",
            ),
            lapses: register_counters_by(
                &r,
                "a2a_gateway_lapses_total",
                "Workspaces that this replica moved to offline for want of heartbeats, by how it noticed.",
                "noticed",
            ),
            head_seconds: by_shape(HEADS, &heads),
            total_seconds: by_shape(TOTALS, &totals),
            exchange_children: exchanges::create_children(&exchanges),
            exchanges,
            request_bytes: register_counter(
                &r,
                "a2a_gateway_request_bytes_total",
                "Bytes of request bodies sent to agents.",
            ),
            bodies_refused: register_counter(
                &r,
                "a2a_gateway_bodies_refused_total",
                "Request bodies that were not received to their end for want of room.",
            ),
            response_bytes: register_counter(
                &r,
                "a2a_gateway_response_bytes_total",
                "Bytes of response bodies sent to callers.",
            ),
            events: register_counter(
                &r,
                "a2a_gateway_stream_events_total",
                "Events passed on in streams.",
            ),
            open_exchanges: register_gauge(
                &r,
                "a2a_gateway_open_exchanges",
                "Exchanges in progress.",
            ),
            open_streams: register_gauge(&r, "a2a_gateway_open_streams", "Streams in progress."),
            target_permits: register_gauge(
                &r,
                "a2a_gateway_target_permits",
                "Calls that hold a slot of their target's concurrency limit.",
            ),
            resends: register_counter(
                &r,
                "a2a_gateway_resends_total",
                "Requests sent on a new connection because the pooled one had died before anything was sent.",
            ),
            capacity: Capacity::new(&r),
            cache_hits: cached("hit"),
            cache_misses: cached("miss"),
            store_seconds: register_histograms(
                &r,
                "a2a_gateway_store_seconds",
                "Time of one store operation.",
                &["store", "operation"],
            ),
            store_errors: register_counters(
                &r,
                "a2a_gateway_store_errors_total",
                "Store operations that failed or took too long.",
                &["store", "operation"],
            ),
            telemetry: Telemetry::new(&r),
            coherent: register_gauge(
                &r,
                "a2a_gateway_coherent",
                "1 while the link that carries invalidations is up.",
            ),
            jwks_fetches: register_counters_by(
                &r,
                "a2a_gateway_jwks_fetches_total",
                "Fetches of the keys of foreign issuers, by how they ended.",
                "outcome",
            ),
            card_fetches,
            token_uses,
            tokens_kept: register_gauge(
                &r,
                "a2a_gateway_tokens_kept",
                "Used tokens that a sidecar remembers until they expire.",
            ),
            rate_shares: register_counters_by(
                &r,
                "a2a_gateway_rate_shares_total",
                "Requests that count against a rate on every replica, by whether others were told.",
                "outcome",
            ),
            config_reloaded: register_gauge(
                &r,
                "a2a_gateway_config_last_reload_successful",
                "1 while the configuration as it is written is good; 0 while the last good one is in force instead.",
            ),
            config_loaded_at: register_gauge(
                &r,
                "a2a_gateway_config_last_reload_success_timestamp_seconds",
                "When the configuration was last read and found good, in seconds since 1970.",
            ),
            config_waiting: register_gauge(
                &r,
                "a2a_gateway_config_restart_needed",
                "Changed configuration keys that wait for a restart.",
            ),
            event_readers: register_gauges_by(
                &r,
                "a2a_gateway_event_readers",
                "Open sockets and streams of events.",
                "kind",
            ),
            event_readers_cut,
            events_published: register_counters_by(
                &r,
                "a2a_gateway_events_published_total",
                "Events published by this replica: kept for replay, or only passing.",
                "kind",
            ),
            events_dropped: register_counters_by(
                &r,
                "a2a_gateway_events_dropped_total",
                "Events that were not published (the queue was full, too old by the time the stores were back, or unreadable), and passing ones that a slow reader missed.",
                "kind",
            ),
            events_linked: register_gauge(
                &r,
                "a2a_gateway_events_linked",
                "1 while the log of events is followed.",
            ),
            events_lost: register_counter(
                &r,
                "a2a_gateway_events_lost_total",
                "How often the log of events was flushed or cut before it was read to its end.",
            ),
            caps: CapMetrics::new(&r),
            bridge: BridgeMetrics::new(&r),
            guards: GuardMetrics::new(&r),
            inbox: InboxMetrics::new(&r),
            calls: Calls::new(&r),
            kept: RetainedBytesMetrics::new(&r),
            streams: Streams::new(&r),
            jobs: JobMetrics::new(&r),
            audit: AuditMetrics::new(&r),
            tasks: TaskMetrics::new(&r),
            waking: WakeMetrics::new(&r),
            queues: Queues::new(&r),
            refusals: Refusals::new(&r),
            control: Control::new(&r),
            keys: KeyMetrics::new(&r),
            process: Process::new(&r),
            role: Role::Gateway,
            registry: r,
        }
    }

    /// Registers the families of a sidecar, which omits those of modules that only a gateway has.
    pub fn for_sidecar() -> Self {
        Self {
            role: Role::Sidecar,
            ..Self::new()
        }
    }

    /// Counts one finished exchange. `trace_id` is that of its trace if it is recorded.
    pub fn record_exchange(
        &self,
        (method, outcome, shape): (Method, Outcome, Shape),
        total: Duration,
        trace_id: Option<TraceId>,
    ) {
        let index = method.index() * Outcome::COUNT + outcome.index();
        self.exchange_children[index]
            .get_or_init(|| {
                self.exchanges
                    .with_label_values(&[method.label(), outcome.as_str()])
            })
            .inc();
        if let Outcome::Rejected(reason) = outcome {
            self.refusals.count_refusal(Plane::A2a, reason);
        }
        self.total_seconds[shape].observe(total, trace_id);
    }

    /// Records the time to the agent's response head. `trace_id` is that of the trace if it is recorded.
    pub fn record_head_time(&self, shape: Shape, elapsed: Duration, trace_id: Option<TraceId>) {
        self.head_seconds[shape].observe(elapsed, trace_id);
    }

    /// Counts one fetch of an issuer's keys.
    pub fn count_jwks_fetch(&self, outcome: JwksFetch) {
        self.jwks_fetches[outcome].inc();
    }

    /// Counts one fetch of a card: `fetched`, or a reason.
    pub fn count_card_fetch(&self, outcome: &'static str) {
        self.card_fetches.with_label_values(&[outcome]).inc();
    }

    /// Counts one token that a sidecar verified, by a value of a closed set. `kept` is the size of the
    /// replay cache.
    pub fn count_token_use(&self, word: &'static str, kept: usize) {
        self.token_uses.with_label_values(&[word]).inc();
        self.tokens_kept
            .set(i64::try_from(kept).unwrap_or(i64::MAX));
    }

    /// Counts requests whose rate usage is shared between replicas.
    pub fn count_rate_share(&self, outcome: RateShare, count: u64) {
        self.rate_shares[outcome].inc_by(count);
    }

    /// Counts one look-up in a cache.
    pub fn count_lookup(&self, cache: Cache, hit: bool) {
        let children = [&self.cache_misses, &self.cache_hits][usize::from(hit)];
        children[cache].inc();
    }

    /// Counts one lapse.
    pub fn count_lapse(&self, noticed: LapseSource) {
        self.lapses[noticed].inc();
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        self.config_reloaded.set(1);
        self.config_loaded_at
            .set(i64::try_from(now).unwrap_or(i64::MAX));
        self.config_waiting
            .set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Records an invalid configuration.
    pub fn record_config_refused(&self) {
        self.config_reloaded.set(0);
    }

    /// Returns the gauge of open readers of a kind.
    pub fn event_readers(&self, kind: EventReader) -> &IntGauge {
        &self.event_readers[kind]
    }

    /// Counts a reader that was disconnected. `why` is a value of a closed set.
    pub fn count_event_reader_cut(&self, why: &'static str) {
        self.event_readers_cut.with_label_values(&[why]).inc();
    }

    /// Counts a connection that was rejected or closed.
    pub fn count_connection_cut(&self, why: ConnectionCut) {
        self.connections_cut[why].inc();
    }

    /// Counts published events.
    pub fn count_published_events(&self, kind: EventKind, count: usize) {
        self.events_published[kind].inc_by(u64::try_from(count).unwrap_or(0));
    }

    /// Counts events that were not published.
    pub fn count_dropped_events(&self, kind: EventKind, count: usize) {
        self.events_dropped[kind].inc_by(u64::try_from(count).unwrap_or(0));
    }
}
