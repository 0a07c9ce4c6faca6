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

/// Returns keys with their values.
macro_rules! values_of {
    ($config:ident; $($section:ident.$key:ident),* $(,)?) => {
        [$((concat!(stringify!($section), ".", stringify!($key)), $config.$section.$key)),*]
    };
}

impl Checks<'_> {
    pub(super) fn check_spans(&mut self) {
        let c = self.config;
        let zero_is_senseless = values_of!(c;
            stores.timeout, a2a.task_ttl, timeouts.connect, timeouts.head, timeouts.idle, timeouts.total,
            timeouts.stream, timeouts.request_head, timeouts.request_body, timeouts.write, timeouts.max,
            stream.keepalive, stream.log_ttl, idempotency.ttl, upstream.idle, inbox.retention,
            delegation.deferred_ttl, delegation.retention, affinity.ttl, wake.max_wait, wake.cool_down,
            registry.heartbeat_ttl, telemetry.otlp_timeout,
        );
        let zero_is_fine = values_of!(c;
            server.drain, server.keepalive, stream.final_grace, stream.linger, directory.stale, upstream.hold,
        );
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
        for (key, span) in values_of!(c;
            breaker.window, breaker.open, breaker.open_max, limits.target_queue_wait,
        ) {
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
        let limits = values_of!(c;
            limits.request_bytes, limits.bodies_bytes, limits.response_bytes, limits.stream_bytes,
            limits.event_bytes, limits.policy_bytes, limits.kept_bytes, limits.kept_bytes_total,
            stream.log_bytes, stream.logs_bytes,
        );
        let limits = limits.map(|(key, size)| (key, size.0 > 0));
        let counts = values_of!(c;
            limits.policy_workspaces, limits.target_concurrency, stream.readers, server.max_connections,
            server.max_exchanges, events.connections, events.connections_per_caller, inbox.connections,
            wake.max_parked, inbox.connections_per_caller,
        );
        let counts = counts.map(|(key, count)| (key, count > 0));
        let rows = values_of!(c; a2a.tasks_per_caller, inbox.max_messages, delegation.max_pending);
        let rows = rows.map(|(key, count)| (key, count > 0));
        let others = [
            ("stores.sql_connections", c.stores.sql_connections > 0),
            ("directory.cache_entries", c.directory.cache_entries > 0),
        ];
        for (key, is_possible) in limits.into_iter().chain(counts).chain(rows).chain(others) {
            if !is_possible {
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
        let rate = &self.config.rate;
        for (name, per_second, burst) in [
            ("org_users", rate.org_users_per_second, rate.org_users_burst),
            ("caller", rate.caller_per_second, rate.caller_burst),
        ] {
            if per_second > 0 && burst == 0 {
                let why = format!(
                    "must be at least 1 while rate.{name}_per_second is on: with 0 nothing could pass"
                );
                self.add_problem(&format!("rate.{name}_burst"), why);
            }
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
