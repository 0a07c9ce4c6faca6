//! URLs for push notifications: it is the agent that calls them, and a caller who names them. The agent
//! must not be made to call where the gateway would not (contract §5).

use super::Directory;
use super::endpoint::Endpoint;
use crate::rejection::{Reason, Rejection};

/// The caller's arguments are wrong, though the reason is the address policy's.
const INVALID_PARAMS: i32 = -32_602;

impl Directory {
    /// Judges a URL for push notifications as it judges an agent's. A name that has no address here is
    /// refused: what it means to the agent nobody could say.
    ///
    /// The agent looks the name up again when it calls. That is beyond the gateway.
    ///
    /// # Errors
    /// `address_forbidden`, with the code of invalid params.
    pub async fn vet_webhook(&self, url: &str) -> Result<(), Rejection> {
        let judged = async {
            let endpoint = Endpoint::parse(url, &self.resolver.policy())?;
            self.resolver.address(&endpoint).await
        };
        match judged.await {
            Ok(_) => Ok(()),
            Err(refusal) => Err(refused(&refusal)),
        }
    }
}

fn refused(refusal: &Rejection) -> Rejection {
    let message = if refusal.reason == Reason::AddressForbidden {
        "the address policy refuses the URL for push notifications: it takes http:// or https:// without \
         user name and fragment, at an address where an agent may be (address.allow, trusted_agents)"
    } else {
        "the name in the URL for push notifications has no address: check it, and the gateway's DNS"
    };
    // Without its cause: a caller brings it on itself, and could fill the log with it.
    Rejection::new(Reason::AddressForbidden, message).rpc_code(INVALID_PARAMS)
}
