//! Rate limits of callers.

use serde::Deserialize;

/// Section `[rate]`: 0 switches a limit off.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Requests a second of one caller, over all of its credentials.
    pub caller_per_second: u32,
    /// Requests at once of one caller.
    pub caller_burst: u32,
    /// Requests a second of all canvas users that the tokens of one org name.
    pub org_users_per_second: u32,
    /// Requests at once of all these users.
    pub org_users_burst: u32,
    /// Answers 401 and 403 a second to one client address.
    pub failures_per_second: u32,
    /// Cards read without a credential, for each client address.
    pub cards_per_second: u32,
}
