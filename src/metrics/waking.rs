//! Metric families of calls to agents that sleep, and of probes of agents that do not register.

use prometheus::{IntCounter, IntGauge, Registry};

use super::family::{register_counter, register_counters_by, register_gauge};
use super::label::By;
use crate::closed_set::words;

words! {
    /// The outcome of a request to a waker. The label `outcome`.
    WakeOutcome {
        /// The waker answered 2xx.
        Accepted => "accepted",
        /// The waker answered another status.
        Refused => "refused",
        /// The waker answered with a redirect, which is not followed.
        Redirected => "redirected",
        /// The connection failed (DNS, TCP or TLS).
        Unreachable => "unreachable",
        /// There was no complete answer in time.
        TimedOut => "timed_out",
        /// The address policy refuses the address.
        Forbidden => "forbidden",
        /// The request could not be made, or the answer was no HTTP or too large.
        Failed => "failed",
    }
}

words! {
    /// The outcome of a probe. The label `outcome`.
    ProbeOutcome {
        /// The agent, or one of its instances, answered 2xx.
        Succeeded => "succeeded",
        /// Another answer, or none in time.
        Failed => "failed",
        /// A store did not answer, or the gateway may not ask: the outcome tells nothing of the agent.
        NotMade => "not_made",
    }
}

/// Metrics of calls to agents that sleep, and of probes.
pub struct WakeMetrics {
    /// Calls that wait for their agents.
    pub parked: IntGauge,
    /// Bytes of the bodies of these calls.
    pub parked_bytes: IntGauge,
    /// Calls that were rejected for lack of room among them.
    pub parked_refused: IntCounter,
    wakes: By<WakeOutcome, IntCounter>,
    probes: By<ProbeOutcome, IntCounter>,
}

impl WakeMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            parked: register_gauge(
                r,
                "a2a_gateway_parked_calls",
                "Calls that wait until their agents are awake.",
            ),
            parked_bytes: register_gauge(
                r,
                "a2a_gateway_parked_bytes",
                "Bytes of the bodies of calls that wait until their agents are awake.",
            ),
            parked_refused: register_counter(
                r,
                "a2a_gateway_parked_refused_total",
                "Calls to agents that sleep that were refused at once, since as many as may be wait (wake.max_parked, wake.max_parked_bytes).",
            ),
            probes: register_counters_by(
                r,
                "a2a_gateway_probes_total",
                "Probes of agents that do not register by this replica, by how they ended.",
                "outcome",
            ),
            wakes: register_counters_by(
                r,
                "a2a_gateway_wakes_total",
                "Requests of this replica to wakers of agents that sleep, by how they ended.",
                "outcome",
            ),
        }
    }

    /// Counts one probe.
    pub fn count_probe(&self, outcome: ProbeOutcome) {
        self.probes[outcome].inc();
    }

    /// Counts one request to a waker.
    pub fn count_wake(&self, outcome: WakeOutcome) {
        self.wakes[outcome].inc();
    }
}
