//! Checks URLs for push notifications: a caller names them, and the agent calls them. The agent must not be
//! made to call an address that is forbidden to the gateway (`docs/reference/a2a.md`, "Push notifications").

use super::endpoint::Endpoint;
use super::{Directory, LookupFor};
use crate::rejection::{Reason, Rejection};
use crate::shares::Account;

const TITLE: &str = "the URL for push notifications";

/// The arguments are wrong, though the reason is that of the address policy.
const INVALID_PARAMS: i32 = -32_602;

impl Directory {
    /// Checks a URL for push notifications like the URL of an agent. A name without an address here is
    /// rejected, since its meaning at the agent is unknown.
    ///
    /// `account`: the account of the look-up.
    ///
    /// The agent resolves the name again when it calls, which the gateway cannot check.
    ///
    /// # Errors
    /// `address_forbidden`, with the code of invalid params.
    pub async fn vet_webhook(&self, url: &str, account: Account) -> Result<(), Rejection> {
        let judged = async {
            let endpoint = Endpoint::parse_as(TITLE, url, &self.resolver.policy())?;
            self.address(&endpoint, LookupFor::naming(account)).await
        };
        // Without its cause: callers could fill the log with it.
        judged.await.map(drop).map_err(|refusal| {
            Rejection::new(Reason::AddressForbidden, refusal.message).rpc_code(INVALID_PARAMS)
        })
    }
}
