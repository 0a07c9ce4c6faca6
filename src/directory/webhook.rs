//! URLs for push notifications: it is the agent that calls them, and a caller who names them. The agent
//! must not be made to call where the gateway would not (contract §5).

use super::endpoint::Endpoint;
use super::{Directory, LookupFor};
use crate::rejection::{Reason, Rejection};
use crate::shares::Account;

const TITLE: &str = "the URL for push notifications";

/// The caller's arguments are wrong, though the reason is the address policy's.
const INVALID_PARAMS: i32 = -32_602;

impl Directory {
    /// Judges a URL for push notifications as it judges an agent's. A name that has no address here is
    /// refused: what it means to the agent nobody could say.
    ///
    /// `account`: whose look-up it is.
    ///
    /// The agent looks the name up again when it calls. That is beyond the gateway.
    ///
    /// # Errors
    /// `address_forbidden`, with the code of invalid params.
    pub async fn vet_webhook(&self, url: &str, account: Account) -> Result<(), Rejection> {
        let judged = async {
            let endpoint = Endpoint::parse_as(TITLE, url, &self.resolver.policy())?;
            self.address(&endpoint, LookupFor::naming(account)).await
        };
        // Without its cause: a caller brings it on itself, and could fill the log with it.
        judged.await.map(drop).map_err(|refusal| {
            Rejection::new(Reason::AddressForbidden, refusal.message).rpc_code(INVALID_PARAMS)
        })
    }
}
