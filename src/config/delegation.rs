//! `[delegation]`: deferred calls.

use std::time::Duration;

use serde::Deserialize;

use super::value::duration;

/// `[delegation]`: delegations and deferred calls.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delegation {
    /// Maximum unfinished calls of one caller, and for one target.
    pub max_pending: i64,
    /// Longest wait of a deferred call for its target.
    #[serde(with = "duration")]
    pub deferred_ttl: Duration,
    /// Retention of finished calls.
    #[serde(with = "duration")]
    pub retention: Duration,
}
