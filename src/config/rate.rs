//! Rate limits of callers.

use serde::Deserialize;

/// `[rate]`: 0 switches one off.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Requests a second of one caller, over all of its credentials.
    pub caller_per_second: u32,
    /// Requests at once of one caller.
    pub caller_burst: u32,
    /// Requests a second of the canvas users that the tokens of one org name, together.
    pub org_users_per_second: u32,
    /// Requests at once of them.
    pub org_users_burst: u32,
    /// 401 and 403 answers a second to one client address.
    pub failures_per_second: u32,
    /// Cards read without a credential, for each client address.
    pub cards_per_second: u32,
}
