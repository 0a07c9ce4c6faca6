//! Check of an agent's addresses before a connection: its name may come to resolve to the server of another
//! workspace's agent, long after its registration. Each new address of a name is claimed in SQL before it is
//! dialled.
//!
//! The decision is kept with the agent's entry while the name has these addresses: a call to such an address
//! reads no store. Without SQL these addresses can still be called, and new ones are `store_unavailable`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::endpoint::Endpoint;
use super::{Directory, LookupFor};
use crate::explain::Witness;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::store::Unavailable;
use crate::workspace::{Claim, Origins};

/// Cached decision about the addresses of one workspace's server.
#[derive(Debug)]
pub struct Settled {
    workspace: WorkspaceId,
    verdict: ArcSwapOption<Verdict>,
}

/// Result of SQL for the addresses of a name.
#[derive(Debug)]
struct Verdict {
    addresses: Arc<[IpAddr]>,
    refusal: Option<Rejection>,
}

impl Settled {
    /// Creates it without a decision.
    pub(super) fn new(workspace: &WorkspaceId) -> Arc<Self> {
        Arc::new(Self {
            workspace: workspace.clone(),
            verdict: ArcSwapOption::empty(),
        })
    }

    /// Copies the decision of `other` for the same server.
    pub(super) fn take_over(&self, other: &Self) {
        self.verdict.store(other.verdict.load_full());
    }

    /// Returns the cached decision about these addresses. A rejection counts only for the DNS answer that it
    /// was made for.
    fn judge(&self, addresses: &Arc<[IpAddr]>) -> Option<Result<(), Rejection>> {
        let verdict = self.verdict.load();
        let verdict = verdict.as_ref()?;
        match &verdict.refusal {
            Some(refusal) => {
                Arc::ptr_eq(&verdict.addresses, addresses).then(|| Err(refusal.clone()))
            }
            None => {
                let mut found = addresses.iter();
                let all = found.all(|address| verdict.addresses.contains(address));
                all.then_some(Ok(()))
            }
        }
    }

    fn keep(&self, addresses: &Arc<[IpAddr]>, refusal: Option<Rejection>) {
        self.verdict.store(Some(Arc::new(Verdict {
            addresses: Arc::clone(addresses),
            refusal,
        })));
    }
}

impl Directory {
    /// Returns the address to dial for `endpoint`, on the server of `settled`: checked as
    /// [`Directory::address`] does, and not held by another workspace.
    ///
    /// # Errors
    /// As [`Directory::address`]; `address_forbidden` if the name resolves to the server of another workspace;
    /// `store_unavailable` if that cannot be decided.
    pub async fn agent_address(
        &self,
        settled: &Settled,
        endpoint: &Endpoint,
        asker: LookupFor,
    ) -> Result<SocketAddr, Rejection> {
        self.agent_address_before(settled, endpoint, asker, &mut ())
            .await
    }

    /// As [`Directory::agent_address`], and reports the facts to `witness`.
    ///
    /// # Errors
    /// As [`Directory::agent_address`].
    pub async fn agent_address_before(
        &self,
        settled: &Settled,
        endpoint: &Endpoint,
        asker: LookupFor,
        witness: &mut impl Witness,
    ) -> Result<SocketAddr, Rejection> {
        let resolved = self.resolver.resolve(endpoint, asker, witness).await?;
        if let Some(addresses) = &resolved.of_name {
            match settled.judge(addresses) {
                Some(known) => known?,
                // Boxed: a name rarely has another address, and this future would otherwise widen that of every
                // exchange.
                None => Box::pin(self.claim(settled, endpoint, addresses)).await?,
            }
        }
        Ok(resolved.address)
    }

    async fn claim(
        &self,
        settled: &Settled,
        endpoint: &Endpoint,
        addresses: &Arc<[IpAddr]>,
    ) -> Result<(), Rejection> {
        let id = &settled.workspace;
        let refusal = match self.origins_at(endpoint, addresses, false) {
            Ok(origins) => match self.claim_free(id, &Origins::new(origins)).await? {
                Claim::Held { .. } => None,
                Claim::Taken { by, origin } => {
                    tracing::warn!(workspace.id = %id, holder = %by, %origin, "The name in an agent's URL has come to \
                        mean the server of another workspace's agent: calls are refused until it has another address. \
                        If the other agent has left, deregister it; if they share the server, list it in \
                        registry.shared_origins");
                    Some(foreign(endpoint))
                }
            },
            Err(refusal) => Some(refusal),
        };
        settled.keep(addresses, refusal.clone());
        refusal.map_or(Ok(()), Err)
    }

    /// Claims them, also if another workspace has released one of them.
    async fn claim_free(&self, id: &WorkspaceId, origins: &Origins) -> Result<Claim, Unavailable> {
        let mut claim = self.workspaces.claim(id, origins).await?;
        if let Claim::Taken { .. } = claim {
            self.free_left_ones(id, origins).await?;
            claim = self.workspaces.claim(id, origins).await?;
        }
        if claim == (Claim::Held { released: true }) {
            // Other replicas may still take the former addresses for those of this workspace.
            self.forget(id, false, &Ok(())).await;
        }
        Ok(claim)
    }
}

fn foreign(endpoint: &Endpoint) -> Rejection {
    let title = endpoint.title;
    let message = format!(
        "the name in {title} has come to mean a server at which another workspace's agent is registered: give the name \
         the agent's own address. An operator can list a server with several agents in registry.shared_origins"
    );
    Rejection::new(Reason::AddressForbidden, message)
}
