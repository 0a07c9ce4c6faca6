//! Address to dial for an agent. Its name may come to resolve to the server of another workspace's agent, long
//! after its registration, so each new address of a name is claimed in SQL before it is dialled. Without SQL the
//! claimed addresses can still be called, and new ones are `store_unavailable`.

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;

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

/// Addresses of one name that are dialled at most.
const DIALLED_MAX: usize = 4;

/// The addresses to dial for an agent, each of which was checked.
#[derive(Clone, Debug)]
pub struct AgentAddress {
    /// The one that is dialled first.
    pub first: SocketAddr,
    /// Those of the same name that are dialled if that one makes no connection.
    others: Vec<SocketAddr>,
    decision: Arc<AddressDecision>,
}

impl AgentAddress {
    /// Puts `first` before the others of its name, and before it the one that made a connection.
    fn new(first: SocketAddr, of_name: &[IpAddr], decision: &Arc<AddressDecision>) -> Self {
        let connected = decision.connected.load().as_deref().copied();
        let preferred = connected.filter(|known| of_name.contains(known));
        let preferred = preferred.unwrap_or(first.ip());
        let mut others = Vec::new();
        for ip in std::iter::once(first.ip()).chain(of_name.iter().copied()) {
            let address = SocketAddr::new(ip, first.port());
            if ip != preferred && others.len() + 1 < DIALLED_MAX && !others.contains(&address) {
                others.push(address);
            }
        }
        Self {
            first: SocketAddr::new(preferred, first.port()),
            others,
            decision: Arc::clone(decision),
        }
    }

    /// True if there are several.
    pub fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns them in the order in which they are dialled.
    pub fn in_order(&self) -> impl Iterator<Item = SocketAddr> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Notes at which of them a connection was made.
    pub fn note_connected(&self, at: SocketAddr) {
        if at != self.first {
            self.decision.connected.store(Some(Arc::new(at.ip())));
        }
    }
}

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
    /// Returns the addresses to dial for `endpoint`, on the server of `decision`: checked by
    /// the policy, and not held by another workspace. Reports the facts to `witness`.
    ///
    /// # Errors
    /// `agent_unreachable`; `address_forbidden`, also if the name resolves to the server of another workspace;
    /// `store_unavailable` if that cannot be decided.
    pub async fn agent_address(
        &self,
        decision: &Arc<AddressDecision>,
        endpoint: &Endpoint,
        asker: LookupFor,
        witness: &mut impl Witness,
    ) -> Result<AgentAddress, Rejection> {
        let resolved = self.resolver.resolve(endpoint, asker, witness).await?;
        if let Some(addresses) = &resolved.of_name {
            match decision.check(addresses) {
                Some(known) => known?,
                // Boxed: a name rarely has another address, and this future would otherwise widen that of every
                // exchange.
                None => Box::pin(self.claim_addresses(decision, endpoint, addresses)).await?,
            }
        }
        // At one address of a name, an instance: the others are not its own.
        let of_name = resolved.of_name.filter(|_| endpoint.only.is_none());
        let of_name = of_name.as_deref().unwrap_or_default();
        Ok(AgentAddress::new(resolved.address, of_name, decision))
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
