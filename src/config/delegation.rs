//! Calls that are made later.

use std::time::Duration;

use serde::Deserialize;

use super::value::duration;

/// `[delegation]`: calls that are made later.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delegation {
    /// Unfinished ones of one caller at most, and for one target.
    pub max_pending: i64,
    /// How long a deferred call waits for its target.
    #[serde(with = "duration")]
    pub deferred_ttl: Duration,
    /// How long a finished one is kept.
    #[serde(with = "duration")]
    pub retention: Duration,
}
