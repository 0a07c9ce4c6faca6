//! `[delegation]`: calls that are made later: delegations and deferred calls.

use std::time::Duration;

use serde::Deserialize;

use super::value::duration;

/// `[delegation]`: delegations and deferred calls.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delegation {
    /// Maximum unfinished ones of one caller, and for one target. Both kinds count together.
    pub max_pending: i64,
    /// Longest wait of a deferred call for its target. A delegation has a deadline of its own.
    #[serde(with = "duration")]
    pub deferred_ttl: Duration,
    /// Retention of finished ones, of both kinds.
    #[serde(with = "duration")]
    pub retention: Duration,
}
