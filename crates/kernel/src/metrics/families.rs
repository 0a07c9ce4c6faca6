//! The table of all metric families.

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Registry,
};

use super::exchanges::Exchanges;
use super::family::families;
use super::label::*;
use super::process::Process;
use super::times::Times;
use crate::rejection::Reason;
use a2a::state::TaskState;

/// Histogram buckets in seconds: a route responds within a millisecond, or waits for a store.
const CONTROL_SECONDS: [f64; 7] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0];

/// Histogram buckets: entries of one transaction, at most 256.
const BATCHES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

families! {
    /// All metric families of this process.
    Metrics {
        head_seconds: LabelMap<Shape, Times> = "a2a_gateway_head_seconds" ["shape"],
            "Time from the request head to the agent's response head.";
        call_results: LabelMap<CallResult, IntCounter> = "a2a_gateway_call_results_total" ["result"],
            "A2A exchanges that ended, by what they came to.";
        total_seconds: LabelMap<Shape, Times> = "a2a_gateway_exchange_seconds" ["shape"], "Time of a whole A2A exchange.";
        request_bytes: IntCounter = "a2a_gateway_request_bytes_total", "Bytes of request bodies sent to agents.";
        bodies_refused: IntCounter = "a2a_gateway_bodies_refused_total",
            "Request bodies that were not received to their end for want of room.";
        response_bytes: IntCounter = "a2a_gateway_response_bytes_total", "Bytes of response bodies sent to callers.";
        events: IntCounter = "a2a_gateway_stream_events_total", "Events passed on in streams.";
        open_exchanges: IntGauge = "a2a_gateway_open_exchanges", "Exchanges in progress.";
        open_streams: IntGauge = "a2a_gateway_open_streams", "Streams in progress.";
        target_permits: IntGauge = "a2a_gateway_target_permits",
            "Calls that hold a slot of their target's concurrency limit.";
        resends: IntCounter = "a2a_gateway_resends_total",
            "Requests sent on a new connection because the pooled one had died before anything was sent.";
        cache_lookups: LabelMap<Cache, LabelMap<LookupResult, IntCounter>> = "a2a_gateway_cache_lookups_total" ["cache", "result"],
            "Look-ups in the caches of admission, by cache and whether they were answered from memory.";
        store_seconds: HistogramVec = "a2a_gateway_store_seconds" ["store", "operation"],
            "Time of one store operation.";
        store_errors: IntCounterVec = "a2a_gateway_store_errors_total" ["store", "operation"],
            "Store operations that failed or took too long.";
        lapses: LabelMap<LapseSource, IntCounter> = "a2a_gateway_lapses_total" ["noticed"],
            "Workspaces that this replica moved to offline for want of heartbeats, by how it noticed.";
        coherent: IntGauge = "a2a_gateway_coherent", "1 while the link that carries invalidations is up.";
        rate_shares: LabelMap<RateShare, IntCounter> = "a2a_gateway_rate_shares_total" ["outcome"],
            "Requests that count against a rate on every replica, by whether others were told.";
        jwks_fetches: LabelMap<JwksFetch, IntCounter> = "a2a_gateway_jwks_fetches_total" ["outcome"],
            "Fetches of the keys of foreign issuers, by how they ended.";
        card_fetches: IntCounterVec = "a2a_gateway_card_fetches_total" ["outcome"; "fetched", Reason::AgentUnreachable.as_str()],
            "Fetches of agents' cards: fetched, or the reason why not.";
        token_uses: IntCounterVec = "a2a_gateway_token_uses_total" ["use"; "first", "again", "late", "full"],
            "Tokens bound to a body that a sidecar verified: first use, again (refused), late (expired while its body came; refused), full (refused, since a second use could not be told apart).";
        tokens_kept: IntGauge = "a2a_gateway_tokens_kept", "Used tokens that a sidecar remembers until they expire.";
        config_reloaded: IntGauge = "a2a_gateway_config_last_reload_successful",
            "1 while the configuration as it is written is good; 0 while the last good one is in force instead.";
        config_loaded_at: IntGauge = "a2a_gateway_config_last_reload_success_timestamp_seconds",
            "When the configuration was last read and found good, in seconds since 1970.";
        config_waiting: IntGauge = "a2a_gateway_config_restart_needed",
            "Changed configuration keys that wait for a restart.";
        event_readers: LabelMap<EventReader, IntGauge> = "a2a_gateway_event_readers" ["kind"],
            "Open sockets and streams of events.";
        event_readers_cut: IntCounterVec = "a2a_gateway_event_readers_cut_total" ["why"; "slow", "credential", "silent", "flood"],
            "Readers of events that the gateway cut, by why: slow, credential, silent, flood.";
        connections_cut: LabelMap<ConnectionCut, IntCounter> = "a2a_gateway_connections_cut_total" ["why"],
            "Connections that were refused, or cut outside of an exchange, by why; admin_*: to the admin listener.";
        events_published: LabelMap<EventKind, IntCounter> = "a2a_gateway_events_published_total" ["kind"],
            "Events published by this replica: kept for replay, or only passing.";
        events_dropped: LabelMap<EventKind, IntCounter> = "a2a_gateway_events_dropped_total" ["kind"],
            "Events that were not published (the queue was full, too old by the time the stores were back, or unreadable), and passing ones that a slow reader missed.";
        events_linked: IntGauge = "a2a_gateway_events_linked", "1 while the log of events is followed.";
        events_lost: IntCounter = "a2a_gateway_events_lost_total",
            "How often the log of events was flushed or cut before it was read to its end.";
        /// The registry of all of them.
        pub(super) registry: Registry;
        /// Metrics of the process.
        pub(super) process: Process;
        /// Exchanges that ended.
        pub(super) exchanges: Exchanges;
        /// Metrics of the capacity of agents.
        pub capacity: Capacity;
        /// Metrics of logs and traces.
        pub telemetry: Telemetry;
        /// Metrics of caps.
        pub caps: CapMetrics;
        /// Metrics of translated calls.
        pub bridge: BridgeMetrics;
        /// Metrics of guards.
        pub guards: GuardMetrics;
        /// Metrics of inboxes.
        pub inbox: InboxMetrics;
        /// Metrics of calls with an idempotency key.
        pub calls: Calls;
        /// Metrics of bytes stored in SQL.
        pub kept: RetainedBytesMetrics;
        /// Metrics of streams and their resumption.
        pub streams: Streams;
        /// Metrics of deferred calls and delegations.
        pub jobs: JobMetrics;
        /// Metrics of calls to agents that sleep, and of probes.
        pub waking: WakeMetrics;
        /// Metrics of tasks.
        pub tasks: TaskMetrics;
        /// Metrics of queues.
        pub queues: Queues;
        /// Metrics of rejections.
        pub refusals: Refusals;
        /// Metrics of control-plane responses.
        pub control: Control;
        /// Metrics of the trust keys.
        pub keys: KeyMetrics;
        /// Metrics of the audit chain.
        pub audit: AuditMetrics;
    }

    /// Metrics of the audit chain: written, waiting and lost records.
    AuditMetrics {
        // The children of other events are created at their first record: there are many, and most are rare.
        records: IntCounterVec = "a2a_gateway_audit_records_total" ["event"; "A2A_CALL"],
            "Audit records that this replica chained, by event.";
        lag: Gauge = "a2a_gateway_audit_lag_seconds",
            "Age of the oldest audit record that is not in SQL yet; 0 while all are.";
        waiting: IntGauge = "a2a_gateway_audit_waiting_records",
            "Audit records that are not in SQL yet, in memory and in the spool.";
        spool_bytes: IntGauge = "a2a_gateway_audit_spool_bytes",
            "Bytes of audit records that the spool file holds (audit.spool_bytes is its bound).";
        lost: LabelMap<AuditLoss, IntCounter> = "a2a_gateway_audit_lost_total" ["where"],
            "Audit records that were lost for want of room, by where: queue (in memory), spool (audit.spool_bytes).";
        checkpoints: IntCounter = "a2a_gateway_audit_checkpoints_total",
            "Signed checkpoints of the audit chain that this replica wrote.";
        anchors_failed: IntCounter = "a2a_gateway_audit_anchor_failures_total",
            "Attempts to keep the signed end of the audit chain at audit.anchor that failed, and are made again.";
        write_failures: IntCounter = "a2a_gateway_audit_write_failures_total",
            "Attempts to write audit records or checkpoints that failed, and were made again.";
    }

    /// Metrics of translated calls.
    BridgeMetrics {
        calls: IntCounterVec = "a2a_gateway_bridged_calls_total" ["from", "to", "binding", "method"],
            "Calls that were translated for their agent, by the generation of the caller, generation and binding of the agent, and method.";
        left_out: IntCounterVec = "a2a_gateway_bridge_left_out_total" ["object", "member"],
            "Members of calls and answers that have no place in the other generation, by object and name.";
        failed: IntCounterVec = "a2a_gateway_bridge_failed_total" ["why"],
            "Calls, answers and events without a translation, by why.";
    }

    /// Metrics of calls with a key.
    Calls {
        outcomes: IntCounterVec = "a2a_gateway_idempotent_calls_total"
            ["outcome"; "dispatched", "joined", "replayed", "conflict", "unknown", "unkept"],
            "Calls with a key, by what became of them: dispatched, joined, replayed, conflict, unknown, unkept (the answer was passed on and not kept).";
        unstored: IntCounter = "a2a_gateway_idempotent_unstored_total",
            "Answers to calls with a key that could not be stored, and were given all the same.";
    }

    /// Metrics of the capacity of agents: breakers, learned limits, queues at targets, and calls that wait for their
    /// agent to be back.
    Capacity {
        breakers_open: IntGauge = "a2a_gateway_breakers_open",
            "Targets with a breaker that is open, or lets one call try, at this replica.";
        opened: LabelMap<AgentFailure, IntCounter> = "a2a_gateway_breaker_opened_total" ["cause"],
            "Times that the breaker of a target opened, by the last failure: connect, timeout, protocol, stream, status.";
        choices: LabelMap<InstanceChoice, IntCounter> = "a2a_gateway_instance_choices_total" ["by"],
            "Choices of an instance for a call, by: task, context, hash, load; rebound: the task or context is bound to another one that cannot take it.";
        breakers_closed: IntCounter = "a2a_gateway_breaker_closed_total", "Times that the breaker of a target closed.";
        failures: LabelMap<AgentFailure, IntCounter> = "a2a_gateway_agent_failures_total" ["cause"],
            "Calls that failed at their agent and count for its breaker, by cause.";
        overloads: IntCounter = "a2a_gateway_agent_overloads_total",
            "Calls that an agent refused for its load (429, 503, connection refused), which lower its learned limit.";
        queued: IntGauge = "a2a_gateway_target_queue_calls",
            "Calls that wait for a place at their target (limits.target_queue).";
        queue: LabelMap<QueueOutcome, IntCounter> = "a2a_gateway_target_queue_total" ["outcome"],
            "Calls that waited for a place at their target, or found the queue full, by outcome: placed, timed_out, left, refused, full.";
        held: IntGauge = "a2a_gateway_held_calls",
            "Calls that wait for an agent that refuses connections (upstream.hold).";
        hold: LabelMap<HoldOutcome, IntCounter> = "a2a_gateway_hold_total" ["outcome"],
            "Calls that waited for an agent that refused connections, or found no room to wait, by outcome: connected, timed_out, left, full.";
        retries: IntCounter = "a2a_gateway_retries_total",
            "Connections that were tried again, and requests sent again of which nothing had been sent.";
        retries_refused: IntCounter = "a2a_gateway_retries_refused_total",
            "Requests that were not sent again, since the target's budget of retries was used up.";
    }

    /// Metrics of caps.
    CapMetrics {
        refused: IntCounterVec = "a2a_gateway_cap_refusals_total" ["cap"],
            "Calls that were refused since a cap is reached, by its name in the configuration.";
        differs: IntCounterVec = "a2a_gateway_policy_differs_total" ["rule", "would"],
            "Calls that an observed rule judges otherwise than those in force, by the rule and what it would do: refuse, allow.";
        subjects: IntGauge = "a2a_gateway_cap_subjects",
            "Runs, contexts, callers, pairs, targets and orgs that this replica counts for caps.";
        dropped: IntCounter = "a2a_gateway_cap_subjects_dropped_total",
            "Counts of calls for caps that were made without a share, since this replica counts as many subjects as it may.";
    }

    /// Metrics of control-plane responses.
    Control {
        answers: IntCounterVec = "a2a_gateway_control_answers_total" ["route", "status"],
            "Control-plane answers, by route pattern and status.";
        seconds: HistogramVec = "a2a_gateway_control_seconds" ["route"] in CONTROL_SECONDS,
            "Time until a control-plane answer began, by route pattern. Waits that callers asked for count.";
    }

    /// Metrics of guards. Their names come from the configuration.
    GuardMetrics {
        verdicts: IntCounterVec = "a2a_gateway_guard_verdicts_total" ["guard", "phase", "verdict"],
            "Verdicts of guards, by guard, phase and verdict; other verdicts than pass, reject and replace are failures.";
        seconds: HistogramVec = "a2a_gateway_guard_seconds" ["guard", "phase"],
            "Time until the verdict of a guard, or its failure, by guard and phase.";
    }

    /// Metrics of inboxes.
    InboxMetrics {
        waiting: IntGauge = "a2a_gateway_inbox_waiting", "Entries of inboxes that wait to be written down.";
        unread: IntGauge = "a2a_gateway_inbox_unread",
            "Inboxes in which a message waits for longer than registry.heartbeat_ttl, while their agents neither read, reply nor acknowledge; for all replicas.";
        waits_refused: IntCounter = "a2a_gateway_inbox_waits_refused_total",
            "Messages whose senders would have waited for the reply and were answered at once: as many as may be waited.";
        pruned: IntCounter = "a2a_gateway_inbox_pruned_total",
            "Entries of inboxes that were forgotten: acknowledged long ago, or older than inbox.retention.";
        entries: IntCounter = "a2a_gateway_inbox_entries_total", "Entries that this replica put into inboxes.";
        batches: Histogram = "a2a_gateway_inbox_batch_entries" in BATCHES,
            "Entries of inboxes that were committed together.";
        refused: IntCounterVec = "a2a_gateway_inbox_refused_total" ["why"; "full", "queue"],
            "Entries that were not put into an inbox, by why: full, or queue (this replica cannot keep up).";
        readers: LabelMap<InboxReader, IntGauge> = "a2a_gateway_inbox_readers" ["kind"],
            "Open feeds of inboxes, requests that wait for an entry, and messages whose senders wait for the reply.";
    }

    /// Metrics of deferred calls and delegations.
    JobMetrics {
        running: IntGauge = "a2a_gateway_jobs_running",
            "Delegations and deferred calls that this replica is sending, or whose answer it awaits.";
        retries: IntCounter = "a2a_gateway_job_retries_total",
            "Attempts to send a delegation or a deferred call at which nothing was delivered.";
        untold: IntCounter = "a2a_gateway_job_results_put_off_total",
            "Times that a delegator could not be told how its delegation ended, and was to be told later.";
        accepted: IntCounterVec = "a2a_gateway_jobs_accepted_total" ["kind"; "delegation", "deferred"],
            "Calls that this replica accepted to be made later, by kind: delegation, deferred.";
        finished: IntCounterVec = "a2a_gateway_jobs_finished_total" ["kind", "state"; "delegation completed", "delegation failed",
            "delegation expired", "deferred completed", "deferred failed", "deferred expired"],
            "Delegations and deferred calls that this replica saw end, by kind and state.";
        refused: IntCounter = "a2a_gateway_jobs_refused_total",
            "Calls that were not accepted to be made later, since as many as may be wait (delegation.max_pending).";
    }

    /// Metrics of the trust keys in `keys.dir`.
    KeyMetrics {
        current: IntGauge = "a2a_gateway_keys_current",
            "1 while the trust keys in force are those in keys.dir; 0 while they cannot be read again.";
        count: IntGaugeVec = "a2a_gateway_keys" ["state"; "active", "next", "retired"],
            "Trust keys, by where they are in their life: active, next, retired.";
        age: GaugeVec = "a2a_gateway_key_age_seconds" ["state"; "active", "next"],
            "Time since the trust key that signs (active), and the one that will (next), was made; 0 without one.";
    }

    /// Metrics of queues, and of samples for the console that were lost between replicas.
    Queues {
        entries: LabelMap<Queue, IntGauge> = "a2a_gateway_queue_entries" ["queue"],
            "What waits: in SQL, for all replicas (inbox, jobs), and in this replica's memory (events_kept, events_passing, task_notes).";
        oldest: LabelMap<Backlog, Gauge> = "a2a_gateway_queue_oldest_seconds" ["queue"],
            "Age of what waits longest in SQL (inbox, jobs); 0 while nothing does.";
        samples_lost: LabelMap<LostSample, IntCounter> = "a2a_gateway_console_samples_lost_total" ["why"],
            "Seconds of a replica that were not shown in consoles, by why: too_long or malformed as it came, cut (in part) as it left, full (no place for another replica).";
    }

    /// Metrics of rejections.
    Refusals {
        by_reason: LabelMap<Plane, LabelMap<Reason, IntCounter>> = "a2a_gateway_refusals_total" ["plane", "reason"],
            "What the gateway refused, or cut, instead of an agent's answer, by plane (a2a, control) and reason.";
        credentials: LabelMap<CredentialFlaw, IntCounter> = "a2a_gateway_credentials_refused_total" ["why"],
            "Requests whose credential proved nothing, by why.";
        stops: IntGauge = "a2a_gateway_stops", "Stops of operators that are in force on this replica.";
    }

    /// Metrics of the content that is stored in SQL for workspaces.
    RetainedBytesMetrics {
        total: IntGauge = "a2a_gateway_kept_bytes",
            "Bytes that are kept in SQL for all workspaces: inboxes, answers of calls with a key, delegations.";
        largest: IntGauge = "a2a_gateway_kept_largest_bytes",
            "The same, of the caller or inbox that has the most.";
        refused: LabelMap<RetainedKind, IntCounter> = "a2a_gateway_kept_refused_total" ["kind"],
            "What was not kept, since limits.kept_bytes or limits.kept_bytes_total are used up, by kind: inbox, reply, answer, delegation, result.";
    }

    /// Metrics of streams: their pace, their logs for resumption, and streams without a caller.
    Streams {
        first_event: Histogram = "a2a_gateway_first_event_seconds",
            "Time from the request head to the first event of an agent's stream.";
        between_events: Histogram = "a2a_gateway_between_events_seconds",
            "Time from one event of an agent's stream to the next; events that come together are one.";
        log_bytes: IntGauge = "a2a_gateway_stream_log_bytes", "Bytes that the logs of streams hold.";
        unresumable: IntCounter = "a2a_gateway_streams_unresumable_total",
            "Streams without a log, since there was no room for one (stream.logs_bytes).";
        copies_failed: IntCounter = "a2a_gateway_stream_copies_failed_total",
            "Copies of streams' logs for other replicas that failed, and were tried again.";
        readers: IntGauge = "a2a_gateway_stream_readers", "Open readers of resumed streams.";
        lingering: IntGauge = "a2a_gateway_lingering_streams", "Streams that go on without their callers.";
        lingered: IntCounterVec = "a2a_gateway_lingered_streams_total" ["outcome"; "ended", "unread", "drained", "full"],
            "Streams whose caller left, by what became of them: ended, unread, drained, full.";
    }

    /// Metrics of tasks.
    TaskMetrics {
        learnt: IntCounter = "a2a_gateway_tasks_learnt_total",
            "Tasks whose owner this replica learnt from an agent's answer.";
        notes_dropped: IntCounter = "a2a_gateway_task_notes_dropped_total",
            "Owners and uses of tasks that were not written down for other replicas: the queue was full.";
        states: LabelMap<TaskState, IntCounter> = "a2a_gateway_task_states_total" ["state"],
            "States of tasks that passed: in answers to messages and to questions for a task, in events, and in what agents that poll say.";
    }

    /// Metrics of log lines and spans.
    Telemetry {
        log_lines_dropped: IntGauge = "a2a_gateway_log_lines_dropped",
            "Log lines dropped because the writer was behind.";
        spans_waiting: IntGauge = "a2a_gateway_spans_waiting", "Recorded spans that wait to be sent to the collector.";
        spans: LabelMap<SpanOutcome, IntCounter> = "a2a_gateway_spans_total" ["outcome"],
            "Recorded spans, by what became of them: exported, dropped (no room to wait), failed (the collector did not take them).";
    }

    /// Metrics of calls to agents that sleep, and of probes of agents that do not register.
    WakeMetrics {
        parked: IntGauge = "a2a_gateway_parked_calls", "Calls that wait until their agents are awake.";
        parked_bytes: IntGauge = "a2a_gateway_parked_bytes",
            "Bytes of the bodies of calls that wait until their agents are awake.";
        parked_refused: IntCounter = "a2a_gateway_parked_refused_total",
            "Calls to agents that sleep that were refused at once, since as many as may be wait (wake.max_parked, wake.max_parked_bytes).";
        probes: LabelMap<ProbeOutcome, IntCounter> = "a2a_gateway_probes_total" ["outcome"],
            "Probes of agents that do not register by this replica, by how they ended.";
        wakes: LabelMap<WakeOutcome, IntCounter> = "a2a_gateway_wakes_total" ["outcome"],
            "Requests of this replica to wakers of agents that sleep, by how they ended.";
    }
}
