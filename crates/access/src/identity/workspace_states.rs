//! The workspaces behind tokens of platforms. Such a token is in no table, so it ends with its workspace only because
//! the workspace is looked up with each use: from memory in steady state.

use std::sync::Arc;

use super::proof::{CredentialKind, Proof};
use super::refusal::{Refusal, unauthenticated};
use super::tokens::FIND_STATE;
use crate::rows::sql;
use kernel::ids::WorkspaceId;
use kernel::metrics::{self, CredentialFlaw, Metrics};
use kernel::rejection::Rejection;
use stores::coherence::{Coherence, CoherentCache};
use stores::db::Db;
use stores::store::Unavailable;

/// The state of a workspace, as far as a token that names it depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WorkspaceState {
    /// It was never created.
    Absent,
    Removed,
    /// It exists, in this org; its life began at this time, 0: the first.
    Live(Option<String>, i64),
}

/// The reason why a platform's token proves nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkspaceRefusal {
    /// Its workspace was never created.
    Absent,
    Removed,
    /// Its workspace is not in the org that the token names.
    Elsewhere,
}

impl WorkspaceRefusal {
    /// Returns the rejection of the token behind `proof`, and the label under which it is counted.
    pub(super) fn to_rejection(self, proof: &Proof) -> (CredentialFlaw, Rejection) {
        let (flaw, said) = match self {
            Self::Removed => return (Refusal::Unknown.flaw(), Refusal::Unknown.to_rejection()),
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
pub(super) struct WorkspaceStates {
    states: CoherentCache<WorkspaceId, WorkspaceState>,
    db: Db,
}

impl WorkspaceStates {
    pub(super) fn new(
        coherence: &Arc<Coherence>,
        metrics: &Arc<Metrics>,
        entries_max: u64,
        db: Db,
    ) -> Self {
        let states = CoherentCache::new(
            Arc::clone(coherence),
            Arc::clone(metrics),
            metrics::Cache::Credentials,
            (entries_max, None),
            |_| true,
        );
        Self { states, db }
    }

    /// Forgets all of them: one has moved, which changes the org of all below it, or was created or removed.
    pub(super) fn forget_all(&self) {
        self.states.forget_all();
    }

    /// Returns the reason why the workspace of a platform's token does not stand. `None`: it does, or the credential is
    /// another one.
    pub(super) async fn find_refusal(
        &self,
        proof: &Proof,
    ) -> Result<Option<WorkspaceRefusal>, Unavailable> {
        let (CredentialKind::Workload, Some(id)) = (proof.kind, proof.principal.workspace()) else {
            return Ok(None);
        };
        Ok(match self.load_state(id).await? {
            WorkspaceState::Absent => Some(WorkspaceRefusal::Absent),
            WorkspaceState::Removed => Some(WorkspaceRefusal::Removed),
            WorkspaceState::Live(org, _) if proof.in_org.is_none() || proof.in_org == org => None,
            WorkspaceState::Live(..) => Some(WorkspaceRefusal::Elsewhere),
        })
    }

    /// Returns the time at which the present life of the workspace began that a signed credential names; 0: the first,
    /// or there is none. `None`: the credential is another one, of a known life.
    pub(super) async fn find_born_at(&self, proof: &Proof) -> Result<Option<i64>, Unavailable> {
        let is_signed = matches!(proof.kind, CredentialKind::Workload | CredentialKind::Pair);
        match proof.principal.workspace() {
            Some(id) if is_signed => self.load_born_at(id).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the time at which the present life of a workspace began; 0: the first, or there is none.
    pub(super) async fn load_born_at(&self, id: &WorkspaceId) -> Result<i64, Unavailable> {
        Ok(match self.load_state(id).await? {
            WorkspaceState::Live(_, born_at) => born_at,
            WorkspaceState::Absent | WorkspaceState::Removed => 0,
        })
    }

    async fn load_state(&self, id: &WorkspaceId) -> Result<WorkspaceState, Unavailable> {
        Ok(self.states.get_or_read(id, || self.read_state(id)).await?.0)
    }

    /// Returns the state of a workspace from the store.
    pub(super) async fn read_state(&self, id: &WorkspaceId) -> Result<WorkspaceState, Unavailable> {
        let query = sql!(FIND_STATE, id.as_str());
        let row: Option<(String, _, _)> = self.db.fetch_optional("find_place", query).await?;
        Ok(match row {
            None => WorkspaceState::Absent,
            Some((status, ..)) if status == "removed" => WorkspaceState::Removed,
            Some((_, org, born_at)) => WorkspaceState::Live(org, born_at),
        })
    }
}
