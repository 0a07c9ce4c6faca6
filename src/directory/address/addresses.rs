//! Address to dial for an agent. Its name may come to resolve to the server of another workspace's agent, long
//! after its registration, so each new address of a name is claimed in SQL before it is dialled. Without SQL the
//! claimed addresses can still be called, and new ones are `store_unavailable`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::decision::AddressDecision;
use super::endpoint::Endpoint;
use super::resolver::{LookupFor, Resolver};
use crate::config::Live;
use crate::directory::announcer::Announcer;
use crate::explain::Witness;
use crate::ids::WorkspaceId;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::store::Unavailable;
use crate::workspace::{Claim, Origins, Workspaces};

/// Resolves the URLs of agents, and keeps apart the servers of different workspaces.
pub struct Addresses {
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) workspaces: Workspaces,
    pub(crate) announcer: Arc<Announcer>,
    pub(crate) config: Live,
    /// True if all addresses of this machine belong to one gateway.
    pub(crate) is_only_replica: bool,
}

impl Addresses {
    /// Returns the address to dial for `endpoint`, on the server of `decision`: checked by
    /// the policy, and not held by another workspace. Reports the facts to `witness`.
    ///
    /// # Errors
    /// `agent_unreachable`; `address_forbidden`, also if the name resolves to the server of another workspace;
    /// `store_unavailable` if that cannot be decided.
    pub async fn agent_address(
        &self,
        decision: &AddressDecision,
        endpoint: &Endpoint,
        asker: LookupFor,
        witness: &mut impl Witness,
    ) -> Result<SocketAddr, Rejection> {
        let resolved = self.resolver.resolve(endpoint, asker, witness).await?;
        if let Some(addresses) = &resolved.of_name {
            match decision.check(addresses) {
                Some(known) => known?,
                // Boxed: a name rarely has another address, and this future would otherwise widen that of every
                // exchange.
                None => Box::pin(self.claim_addresses(decision, endpoint, addresses)).await?,
            }
        }
        Ok(resolved.address)
    }

    async fn claim_addresses(
        &self,
        decision: &AddressDecision,
        endpoint: &Endpoint,
        addresses: &Arc<[IpAddr]>,
    ) -> Result<(), Rejection> {
        let id = &decision.workspace;
        // At one address of a name, an instance: the others are not its own.
        let own = endpoint.only.as_slice();
        let claimed = if own.is_empty() { addresses } else { own };
        let refusal = match self.origins_at(endpoint, claimed, false) {
            Ok(origins) => match self.claim_free(id, &Origins::new(origins)).await? {
                Claim::Held { .. } => None,
                Claim::Taken { by, origin } => {
                    tracing::warn!(workspace.id = %id, holder = %by, %origin, "The name in an agent's URL has come to \
                        mean the server of another workspace's agent: calls are refused until it has another address. \
                        If the other agent has left, deregister it; if they share the server, list it in \
                        registry.shared_origins");
                    Some(foreign_server(endpoint))
                }
            },
            Err(refusal) => Some(refusal),
        };
        decision.store(addresses, refusal.clone());
        refusal.map_or(Ok(()), Err)
    }

    /// Claims them, also if another workspace has released one of them.
    async fn claim_free(&self, id: &WorkspaceId, origins: &Origins) -> Result<Claim, Unavailable> {
        let mut claim = self.workspaces.claim_origins(id, origins).await?;
        if let Claim::Taken { .. } = claim {
            for held in self.left_by_others(id, origins).await? {
                let left = self.workspaces.release_origin(&held).await;
                self.announcer.invalidate_after(&held.by, &left).await;
                left?;
            }
            claim = self.workspaces.claim_origins(id, origins).await?;
        }
        if claim == (Claim::Held { released: true }) {
            // Other replicas may still take the former addresses for those of this workspace.
            self.announcer.invalidate_after(id, &Ok(())).await;
        }
        Ok(claim)
    }
}

fn foreign_server(endpoint: &Endpoint) -> Rejection {
    let title = endpoint.title;
    if endpoint.only.is_some() {
        // Another instance takes the call.
        let message = format!(
            "the address of this instance, by the name in {title}, is one at which another workspace's agent is registered"
        );
        return Rejection::new(Reason::AgentUnreachable, message).with_delivery(Delivery::NotSent);
    }
    let message = format!(
        "the name in {title} has come to mean a server at which another workspace's agent is registered: give the name \
         the agent's own address. An operator can list a server with several agents in registry.shared_origins"
    );
    Rejection::new(Reason::AddressForbidden, message)
}
