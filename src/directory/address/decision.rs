//! Decision about the addresses of an agent, kept with its entry while its name has these addresses: a call to
//! such an address reads no store.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::ids::WorkspaceId;
use crate::rejection::Rejection;

/// Cached decision about the addresses of one workspace's server.
#[derive(Debug)]
pub struct AddressDecision {
    pub(super) workspace: WorkspaceId,
    verdict: ArcSwapOption<Verdict>,
    /// The address of a name with several at which a connection was made, where the first made none.
    pub(super) connected: ArcSwapOption<IpAddr>,
}

/// Result of SQL for the addresses of a name.
#[derive(Debug)]
struct Verdict {
    addresses: Arc<[IpAddr]>,
    refusal: Option<Rejection>,
}

impl AddressDecision {
    /// Creates it without a decision.
    pub(crate) fn new(workspace: &WorkspaceId) -> Arc<Self> {
        Arc::new(Self {
            workspace: workspace.clone(),
            verdict: ArcSwapOption::empty(),
            connected: ArcSwapOption::empty(),
        })
    }

    /// Copies the decision of `other` for the same server.
    pub(crate) fn take_over(&self, other: &Self) {
        self.verdict.store(other.verdict.load_full());
        self.connected.store(other.connected.load_full());
    }

    /// Returns the cached decision about these addresses. A rejection counts only for the DNS answer that it
    /// was made for.
    pub(super) fn check(&self, addresses: &Arc<[IpAddr]>) -> Option<Result<(), Rejection>> {
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

    /// Stores the decision about these addresses.
    pub(super) fn store(&self, addresses: &Arc<[IpAddr]>, refusal: Option<Rejection>) {
        self.verdict.store(Some(Arc::new(Verdict {
            addresses: Arc::clone(addresses),
            refusal,
        })));
    }
}
