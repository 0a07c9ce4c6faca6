//! Bounds of durations and numbers.

use std::time::Duration;

use super::Checks;

/// Longest duration of any key. A longer one is a mistake, and adding it to an instant could
/// overflow.
const SPAN_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Allowed lifetimes of a pair token: at most a day, for which a retired key still verifies.
const PAIR_TTL: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(10)..=Duration::from_secs(24 * 3600);

/// Longest tolerated clock difference to an issuer: clocks that differ more are to be set.
const LEEWAY_MAX: Duration = Duration::from_secs(5 * 60);

/// Shortest audit retention without a note.
const AUDIT_RETENTION_SHORT: Duration = Duration::from_secs(24 * 3600);

/// Maximum worker threads: far more than the cores of any machine.
const THREADS_MAX: usize = 1024;

/// Largest body of one request to the control plane, in bytes.
const CONTROL_BODY_BYTES: u64 = 1024 * 1024;

impl Checks<'_> {
    pub(super) fn check_spans(&mut self) {
        let c = self.config;
        let zero_is_senseless = [
            ("stores.timeout", c.stores.timeout),
            ("a2a.task_ttl", c.a2a.task_ttl),
            ("timeouts.connect", c.timeouts.connect),
            ("timeouts.head", c.timeouts.head),
            ("timeouts.idle", c.timeouts.idle),
            ("timeouts.total", c.timeouts.total),
            ("timeouts.stream", c.timeouts.stream),
            ("timeouts.request_head", c.timeouts.request_head),
            ("timeouts.request_body", c.timeouts.request_body),
            ("timeouts.write", c.timeouts.write),
            ("timeouts.max", c.timeouts.max),
            ("stream.keepalive", c.stream.keepalive),
            ("stream.log_ttl", c.stream.log_ttl),
            ("idempotency.ttl", c.idempotency.ttl),
            ("upstream.idle", c.upstream.idle),
            ("inbox.retention", c.inbox.retention),
            ("delegation.deferred_ttl", c.delegation.deferred_ttl),
            ("delegation.retention", c.delegation.retention),
            ("affinity.ttl", c.affinity.ttl),
            ("wake.max_wait", c.wake.max_wait),
            ("wake.cool_down", c.wake.cool_down),
            ("registry.heartbeat_ttl", c.registry.heartbeat_ttl),
            ("telemetry.otlp_timeout", c.telemetry.otlp_timeout),
        ];
        let zero_is_fine = [
            ("server.drain", c.server.drain),
            ("server.keepalive", c.server.keepalive),
            ("stream.final_grace", c.stream.final_grace),
            ("stream.linger", c.stream.linger),
            ("directory.stale", c.directory.stale),
            ("upstream.hold", c.upstream.hold),
        ];
        for (key, span) in zero_is_senseless {
            if span.is_zero() {
                self.add_problem(
                    key,
                    "must be longer than nothing: every wait would end at once",
                );
            }
        }
        for (key, span) in zero_is_senseless.into_iter().chain(zero_is_fine) {
            if span > SPAN_MAX {
                self.add_problem(key, "must be at most a year");
            }
        }
        if c.registry.heartbeat_ttl < Duration::from_secs(1) && !c.registry.heartbeat_ttl.is_zero()
        {
            self.add_problem(
                "registry.heartbeat_ttl",
                "must be at least 1s: leases count in seconds",
            );
        }
        if c.auth.leeway > LEEWAY_MAX || c.auth.leeway.subsec_nanos() > 0 {
            self.add_problem(
                "auth.leeway",
                "must be whole seconds, and at most 5min: a token counts that much longer",
            );
        }
        if !PAIR_TTL.contains(&c.tokens.pair_ttl) {
            self.add_problem(
                "tokens.pair_ttl",
                "must be 10s to 24h: shorter ones end on the way, and keys retire after a day",
            );
        }
        if c.stream.keepalive >= c.timeouts.idle {
            self.add_note(
                "stream.keepalive is not shorter than timeouts.idle: no keep-alive comment will be \
                 sent before a silent stream is ended",
            );
        }
        if c.timeouts.total > c.timeouts.max {
            self.add_note(
                "timeouts.total is longer than timeouts.max, which bounds only X-Timeout",
            );
        }
    }

    /// Checks how much agents are taken to take.
    pub(super) fn check_capacity(&mut self) {
        let c = self.config;
        for (key, span) in [
            ("breaker.window", c.breaker.window),
            ("breaker.open", c.breaker.open),
            ("breaker.open_max", c.breaker.open_max),
            ("limits.target_queue_wait", c.limits.target_queue_wait),
        ] {
            if span.is_zero() || span > SPAN_MAX {
                self.add_problem(key, "must be longer than nothing, and at most a year");
            }
        }
        if c.breaker.open > c.breaker.open_max {
            self.add_problem("breaker.open_max", "must be at least breaker.open");
        }
    }

    /// Notes a short audit retention: removed records cannot be restored.
    pub(super) fn check_audit(&mut self) {
        let c = self.config;
        if !c.audit.retention.is_zero() && c.audit.retention < AUDIT_RETENTION_SHORT {
            let kept = humantime::format_duration(c.audit.retention);
            self.add_note(format!(
                "audit.retention is {kept}: older audit records are removed for good (`m` are minutes, `M` months)"
            ));
        }
    }

    pub(super) fn check_counts(&mut self) {
        let c = self.config;
        let limits = [
            ("limits.request_bytes", c.limits.request_bytes.0),
            ("limits.bodies_bytes", c.limits.bodies_bytes.0),
            ("limits.response_bytes", c.limits.response_bytes.0),
            ("limits.stream_bytes", c.limits.stream_bytes.0),
            ("limits.event_bytes", c.limits.event_bytes.0),
            ("limits.policy_bytes", c.limits.policy_bytes.0),
            (
                "limits.policy_workspaces",
                c.limits.policy_workspaces as u64,
            ),
            (
                "a2a.tasks_per_caller",
                u64::try_from(c.a2a.tasks_per_caller).unwrap_or(0),
            ),
            ("limits.kept_bytes", c.limits.kept_bytes.0),
            ("limits.kept_bytes_total", c.limits.kept_bytes_total.0),
            ("stream.log_bytes", c.stream.log_bytes.0),
            ("stream.logs_bytes", c.stream.logs_bytes.0),
            ("stream.readers", c.stream.readers as u64),
            (
                "limits.target_concurrency",
                c.limits.target_concurrency as u64,
            ),
            ("server.max_connections", c.server.max_connections as u64),
            ("server.max_exchanges", c.server.max_exchanges as u64),
            (
                "stores.sql_connections",
                u64::from(c.stores.sql_connections),
            ),
            ("directory.cache_entries", c.directory.cache_entries),
            ("events.connections", c.events.connections as u64),
            (
                "events.connections_per_caller",
                c.events.connections_per_caller as u64,
            ),
            (
                "inbox.max_messages",
                u64::try_from(c.inbox.max_messages).unwrap_or(0),
            ),
            (
                "delegation.max_pending",
                u64::try_from(c.delegation.max_pending).unwrap_or(0),
            ),
            ("inbox.connections", c.inbox.connections as u64),
            ("wake.max_parked", c.wake.max_parked as u64),
            (
                "inbox.connections_per_caller",
                c.inbox.connections_per_caller as u64,
            ),
        ];
        for (key, limit) in limits {
            if limit == 0 {
                self.add_problem(key, "must be at least 1: with 0 nothing could ever pass");
            }
        }
        self.check_rooms();
        if c.server.threads > THREADS_MAX {
            self.add_problem("server.threads", format!("must be at most {THREADS_MAX}"));
        }
        self.rate_bursts();
    }

    fn rate_bursts(&mut self) {
        let c = self.config;
        if c.rate.org_users_per_second > 0 && c.rate.org_users_burst == 0 {
            self.add_problem(
                "rate.org_users_burst",
                "must be at least 1 while rate.org_users_per_second is on: with 0 nothing could pass",
            );
        }
        if c.rate.caller_per_second > 0 && c.rate.caller_burst == 0 {
            self.add_problem(
                "rate.caller_burst",
                "must be at least 1 while rate.caller_per_second is on: with 0 nothing could pass",
            );
        }
    }

    /// Refuses byte limits for all bodies that are smaller than one body.
    fn check_rooms(&mut self) {
        let c = self.config;
        let bodies = c.limits.bodies_bytes.0;
        if bodies > 0 && bodies < c.limits.request_bytes.0 {
            self.add_problem(
                "limits.bodies_bytes",
                "must be at least limits.request_bytes: it is the room for all bodies together",
            );
        }
        if c.wake.max_parked_bytes.0 < c.limits.request_bytes.0 {
            self.add_problem(
                "wake.max_parked_bytes",
                "must be at least limits.request_bytes: it is the room for the bodies of all parked calls together",
            );
        }
        let control = c.limits.control_bodies_bytes.0;
        if control < CONTROL_BODY_BYTES {
            self.add_problem(
                "limits.control_bodies_bytes",
                "must be at least 1MiB, which one body may have: it is the room for all bodies together",
            );
        }
    }
}
