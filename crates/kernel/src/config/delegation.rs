//! `[delegation]`: calls that are made later: delegations and deferred calls.

use std::time::Duration;

use serde::Deserialize;

use super::value::duration;

sections! {
    /// `[delegation]`: delegations and deferred calls.
    Delegation {
        /// Maximum unfinished ones of one caller, and for one target. Both kinds count together.
        max_pending: i64,
        /// Longest wait of a deferred call for its target. A delegation has a deadline of its own.
        deferred_ttl: Duration as "duration",
        /// Retention of finished ones, of both kinds.
        retention: Duration as "duration",
    }
}
