//! The workspaces behind tokens of platforms. Such a token is in no table, so it ends with its workspace only because the
//! workspace is looked up with each use: from memory in steady state.

use std::sync::Arc;

use super::proof::{CredentialKind, Proof};
use super::refusal::{Refusal, unauthenticated};
use super::token::{Place, Tokens};
use crate::coherence::{Coherence, Coherent};
use crate::ids::WorkspaceId;
use crate::metrics::{self, CredentialFlaw, Metrics};
use crate::rejection::Rejection;
use crate::store::Unavailable;

/// The reason why a platform's token proves nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unplaced {
    /// Its workspace was never created.
    Absent,
    Removed,
    /// Its workspace is not in the org that the token names.
    Elsewhere,
}

impl Unplaced {
    /// Returns the rejection of the token behind `proof`, and the label under which it is counted.
    pub(super) fn rejection(self, proof: &Proof) -> (CredentialFlaw, Rejection) {
        let (flaw, said) = match self {
            Self::Removed => return (Refusal::Unknown.flaw(), Refusal::Unknown.rejection()),
            Self::Absent => (
                CredentialFlaw::Unknown,
                "which does not exist; an operator creates it with POST /workspaces",
            ),
            Self::Elsewhere => (
                CredentialFlaw::Unmapped,
                "which is not in the org that the token names (`org` in auth.workspace_issuers)",
            ),
        };
        // The token names it, so its sender learns nothing.
        let id = proof.principal.name();
        let message = format!("the token is that of the workspace `{id}`, {said}");
        (flaw, unauthenticated(message))
    }
}

/// The workspaces that tokens of platforms name.
#[derive(Clone)]
pub(super) struct Places {
    known: Coherent<WorkspaceId, Place>,
    table: Tokens,
}

impl Places {
    pub(super) fn new(
        coherence: &Arc<Coherence>,
        metrics: &Arc<Metrics>,
        entries_max: u64,
        table: Tokens,
    ) -> Self {
        let known = Coherent::new(
            Arc::clone(coherence),
            Arc::clone(metrics),
            metrics::Cache::Credentials,
            (entries_max, None),
            |_: &Place| true,
        );
        Self { known, table }
    }

    /// Forgets all of them: one has moved, which changes the org of all below it, or was created or removed.
    pub(super) fn forget_all(&self) {
        self.known.forget_all();
    }

    /// Returns the reason why the workspace of a platform's token does not stand. `None`: it does, or the credential is
    /// another one.
    pub(super) async fn unplaced(&self, proof: &Proof) -> Result<Option<Unplaced>, Unavailable> {
        let (CredentialKind::Workload, Some(id)) = (proof.kind, proof.principal.workspace()) else {
            return Ok(None);
        };
        Ok(match self.place(id).await? {
            Place::Absent => Some(Unplaced::Absent),
            Place::Removed => Some(Unplaced::Removed),
            Place::Live(org, _) if proof.in_org.is_none() || proof.in_org == org => None,
            Place::Live(..) => Some(Unplaced::Elsewhere),
        })
    }

    /// Returns the time at which the present life of the workspace began that a signed credential names; 0: the first, or
    /// there is none. `None`: the credential is another one, of a known life.
    pub(super) async fn born_at(&self, proof: &Proof) -> Result<Option<i64>, Unavailable> {
        let is_signed = matches!(proof.kind, CredentialKind::Workload | CredentialKind::Pair);
        match proof.principal.workspace() {
            Some(id) if is_signed => self.born_at_of(id).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the time at which the present life of a workspace began; 0: the first, or there is none.
    pub(super) async fn born_at_of(&self, id: &WorkspaceId) -> Result<i64, Unavailable> {
        Ok(match self.place(id).await? {
            Place::Live(_, born_at) => born_at,
            Place::Absent | Place::Removed => 0,
        })
    }

    async fn place(&self, id: &WorkspaceId) -> Result<Place, Unavailable> {
        let load = || async { self.table.find_place(id).await };
        let place = Box::pin(self.known.get_or_load(id, load)).await;
        place.map_err(|away| Unavailable::clone(&away))
    }
}
