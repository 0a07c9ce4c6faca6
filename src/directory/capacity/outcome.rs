//! Outcomes of calls, as far as they tell of the agent.

use crate::metrics::AgentFailure;

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOutcome {
    /// The failure of the agent, if it failed.
    pub failure: Option<AgentFailure>,
    /// True if the agent refused it for its load.
    pub overload: bool,
}

impl CallOutcome {
    /// The agent answered.
    pub const ANSWERED: Self = Self {
        failure: None,
        overload: false,
    };

    /// Returns the outcome of a call in which the agent failed in this way.
    pub const fn from_failure(cause: AgentFailure) -> Self {
        Self {
            failure: Some(cause),
            overload: false,
        }
    }

    /// Returns the outcome of an answer with this status.
    pub const fn from_status(status: u16) -> Self {
        match status {
            429 => Self {
                failure: None,
                overload: true,
            },
            503 => Self {
                failure: Some(AgentFailure::Status),
                overload: true,
            },
            502 | 504 => Self::from_failure(AgentFailure::Status),
            _ => Self::ANSWERED,
        }
    }

    /// Returns the outcome of an answer with this status that no caller can read.
    pub fn from_unreadable(status: u16) -> Self {
        let outcome = Self::from_status(status);
        let failure = outcome.failure.or(Some(AgentFailure::Protocol));
        Self { failure, ..outcome }
    }
}

/// Clocks of a call that are the gateway's own. Those that its caller made shorter tell nothing of the agent.
#[derive(Clone, Copy, Debug)]
pub struct OwnTimeouts {
    /// `timeouts.head`.
    pub head: bool,
    /// `timeouts.total`.
    pub total: bool,
}

impl Default for OwnTimeouts {
    fn default() -> Self {
        Self {
            head: true,
            total: true,
        }
    }
}
