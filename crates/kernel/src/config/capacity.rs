//! `[upstream]`, `[breaker]`, `[concurrency]` and `[affinity]`: connections to agents, how much they take, and which
//! instance gets a call.

use std::time::Duration;

use serde::Deserialize;

use super::telemetry::Ratio;
use super::value::{ByteSize, duration};

sections! {
    /// `[upstream]`: connections to agents.
    Upstream {
        /// Longest time that an unused connection is kept.
        idle: Duration as "duration",
        /// Longest wait of a call for an agent that refuses connections. 0: none.
        hold: Duration as "duration",
        /// Maximum calls that wait so.
        hold_calls: usize,
        /// Maximum bytes of their bodies.
        hold_bytes: ByteSize,
    }

    /// `[breaker]`: circuit breakers of agents.
    Breaker {
        /// Failures in a row that open it. 0: any number may follow each other.
        failures: u32,
        /// Share of failed calls in the window that opens it. 0: any share may fail.
        ratio: Ratio,
        /// Time for which a call counts.
        window: Duration as "duration",
        /// Time for which it is open first.
        open: Duration as "duration",
        /// Longest time for which it is open.
        open_max: Duration as "duration",
    }
}

impl Breaker {
    /// True if nothing opens it.
    pub fn is_off(&self) -> bool {
        self.failures == 0 && self.ratio.0 <= 0.0
    }
}

sections! {
    /// `[concurrency]`.
    Concurrency {
        /// True if the gateway learns how many calls an agent takes at once.
        adaptive: bool,
    }

    /// `[affinity]`: bindings of tasks and contexts to the instances of an agent.
    Affinity {
        /// Lifetime of a binding after its last use.
        ttl: Duration as "duration",
    }
}
