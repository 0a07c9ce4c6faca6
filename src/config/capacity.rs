//! `[upstream]`, `[breaker]`, `[concurrency]` and `[affinity]`: connections to agents, how much they take, and which
//! instance gets a call.

use std::time::Duration;

use serde::Deserialize;

use super::telemetry::Ratio;
use super::value::{ByteSize, duration};

/// `[upstream]`: connections to agents.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// Longest time that an unused connection is kept.
    #[serde(with = "duration")]
    pub idle: Duration,
    /// Longest wait of a call for an agent that refuses connections. 0: none.
    #[serde(with = "duration")]
    pub hold: Duration,
    /// Maximum calls that wait so.
    pub hold_calls: usize,
    /// Maximum bytes of their bodies.
    pub hold_bytes: ByteSize,
}

/// `[breaker]`: circuit breakers of agents.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    /// Failures in a row that open it. 0: any number may follow each other.
    pub failures: u32,
    /// Share of failed calls in the window that opens it. 0: any share may fail.
    pub ratio: Ratio,
    /// Time for which a call counts.
    #[serde(with = "duration")]
    pub window: Duration,
    /// Time for which it is open first.
    #[serde(with = "duration")]
    pub open: Duration,
    /// Longest time for which it is open.
    #[serde(with = "duration")]
    pub open_max: Duration,
}

impl Breaker {
    /// True if nothing opens it.
    pub fn is_off(&self) -> bool {
        self.failures == 0 && self.ratio.0 <= 0.0
    }
}

/// `[concurrency]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// True if the gateway learns how many calls an agent takes at once.
    pub adaptive: bool,
}

/// `[affinity]`: bindings of tasks and contexts to the instances of an agent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Affinity {
    /// Lifetime of a binding after its last use.
    #[serde(with = "duration")]
    pub ttl: Duration,
}
