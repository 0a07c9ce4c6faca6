//! Metric families of breakers, learned limits, queues at targets, and calls that wait for their agent to be back.

use prometheus::{IntCounter, IntGauge, Registry};

use super::family::{register_counter, register_counters_by, register_gauge};
use super::label::By;
use crate::closed_set::words;

words! {
    /// The way in which an agent failed. The label `cause`.
    AgentFailure {
        /// No connection: refused, or no TLS.
        Connect => "connect",
        /// No connection, head or piece in time.
        Timeout => "timeout",
        /// Broken HTTP.
        Protocol => "protocol",
        /// A stream without its end.
        Stream => "stream",
        /// The status 502, 503 or 504.
        Status => "status",
    }
}

words! {
    /// The way in which an instance was chosen for a call. The label `by`.
    InstanceChoice {
        /// The call's task is bound to it.
        Task => "task",
        /// The call's context is bound to it.
        Context => "context",
        /// Rendezvous hashing of the context, or of a task that is not bound.
        Hash => "hash",
        /// The less busy of two.
        Load => "load",
        /// The task or the context is bound to another one, which is gone or has an open breaker.
        Rebound => "rebound",
    }
}

words! {
    /// The end of a wait for a place at a target. The label `outcome`.
    QueueOutcome {
        /// It got a place.
        Placed => "placed",
        /// `limits.target_queue_wait` passed.
        TimedOut => "timed_out",
        /// The caller left, or its deadline passed.
        Left => "left",
        /// The breaker opened.
        Refused => "refused",
        /// There was no place in the queue.
        Full => "full",
    }
}

words! {
    /// The end of a wait for an agent that refuses connections. The label `outcome`.
    HoldOutcome {
        /// The agent was back.
        Connected => "connected",
        /// `upstream.hold` passed.
        TimedOut => "timed_out",
        /// The caller left, or its deadline passed.
        Left => "left",
        /// `upstream.hold_calls` or `upstream.hold_bytes` was reached.
        Full => "full",
    }
}

/// Metrics of the capacity of agents.
pub struct Capacity {
    /// Targets with a breaker that is not closed.
    pub breakers_open: IntGauge,
    opened: By<AgentFailure, IntCounter>,
    choices: By<InstanceChoice, IntCounter>,
    /// Breakers that closed.
    pub breakers_closed: IntCounter,
    failures: By<AgentFailure, IntCounter>,
    /// Calls that agents refused for their load.
    pub overloads: IntCounter,
    /// Calls that wait for a place at their target.
    pub queued: IntGauge,
    queue: By<QueueOutcome, IntCounter>,
    /// Calls that wait for their agent to be back.
    pub held: IntGauge,
    hold: By<HoldOutcome, IntCounter>,
    /// Attempts to connect for calls that wait, and requests sent again.
    pub retries: IntCounter,
    /// Those that the budget of retries refused.
    pub retries_refused: IntCounter,
}

impl Capacity {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            breakers_open: register_gauge(
                r,
                "a2a_gateway_breakers_open",
                "Targets with a breaker that is open, or lets one call try, at this replica.",
            ),
            opened: register_counters_by(
                r,
                "a2a_gateway_breaker_opened_total",
                "Times that the breaker of a target opened, by the last failure: connect, timeout, protocol, stream, status.",
                "cause",
            ),
            choices: register_counters_by(
                r,
                "a2a_gateway_instance_choices_total",
                "Choices of an instance for a call, by: task, context, hash, load; rebound: the task or context is bound to another one that cannot take it.",
                "by",
            ),
            breakers_closed: register_counter(
                r,
                "a2a_gateway_breaker_closed_total",
                "Times that the breaker of a target closed.",
            ),
            failures: register_counters_by(
                r,
                "a2a_gateway_agent_failures_total",
                "Calls that failed at their agent and count for its breaker, by cause.",
                "cause",
            ),
            overloads: register_counter(
                r,
                "a2a_gateway_agent_overloads_total",
                "Calls that an agent refused for its load (429, 503, connection refused), which lower its learned limit.",
            ),
            queued: register_gauge(
                r,
                "a2a_gateway_target_queue_calls",
                "Calls that wait for a place at their target (limits.target_queue).",
            ),
            queue: register_counters_by(
                r,
                "a2a_gateway_target_queue_total",
                "Calls that waited for a place at their target, or found the queue full, by outcome: placed, timed_out, left, refused, full.",
                "outcome",
            ),
            held: register_gauge(
                r,
                "a2a_gateway_held_calls",
                "Calls that wait for an agent that refuses connections (upstream.hold).",
            ),
            hold: register_counters_by(
                r,
                "a2a_gateway_hold_total",
                "Calls that waited for an agent that refused connections, or found no room to wait, by outcome: connected, timed_out, left, full.",
                "outcome",
            ),
            retries: register_counter(
                r,
                "a2a_gateway_retries_total",
                "Connections that were tried again, and requests sent again of which nothing had been sent.",
            ),
            retries_refused: register_counter(
                r,
                "a2a_gateway_retries_refused_total",
                "Requests that were not sent again, since the target's budget of retries was used up.",
            ),
        }
    }

    /// Counts a call that failed at its agent.
    pub fn count_failure(&self, cause: AgentFailure) {
        self.failures[cause].inc();
    }

    /// Counts the choice of an instance.
    pub fn count_choice(&self, by: InstanceChoice) {
        self.choices[by].inc();
    }

    /// Counts a breaker that opens.
    pub fn count_opened(&self, cause: AgentFailure) {
        self.opened[cause].inc();
    }

    /// Counts the end of a wait for a place.
    pub fn count_queue_wait(&self, outcome: QueueOutcome) {
        self.queue[outcome].inc();
    }

    /// Counts the end of a wait for an agent.
    pub fn count_hold(&self, outcome: HoldOutcome) {
        self.hold[outcome].inc();
    }
}
