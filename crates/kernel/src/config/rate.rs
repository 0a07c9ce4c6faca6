//! Rate limits of callers.

use serde::Deserialize;

sections! {
    /// Section `[rate]`: 0 switches a limit off.
    #[derive(PartialEq, Eq)]
    Rate {
        /// Requests a second of one caller, over all of its credentials.
        caller_per_second: u32,
        /// Requests at once of one caller.
        caller_burst: u32,
        /// Requests a second of all canvas users that the tokens of one org name.
        org_users_per_second: u32,
        /// Requests at once of all these users.
        org_users_burst: u32,
        /// Answers 401 and 403 a second to one client address.
        failures_per_second: u32,
        /// Cards read without a credential, for each client address.
        cards_per_second: u32,
    }
}
