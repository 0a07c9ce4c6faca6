//! Resolves a permit to a destination, and to the source of the agent's card. None of this affects access, which
//! the permit has decided before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::card::CardSource;
use super::destination::{AgentOptions, Destination, ResolutionFailure};
use super::entries::Entries;
use super::entry::Entry;
use super::evidence::Evidence;
use super::learnt::{Finding, Learnt, Observer, Place};
use crate::a2a::Generation;
use crate::a2a::method::Method;
use crate::config::{CardAccess, Live, RefusalStatus};
use crate::directory::address::Resolver;
use crate::directory::liveness::{Lapses, Pulse};
use crate::directory::rejections::{not_found, workspace_removed};
use crate::explain::Witness;
use crate::hierarchy::Permit;
use crate::identity::{Principal, Proof};
use crate::ids::WorkspaceId;
use crate::metrics::LapseSource;
use crate::rejection::{AtStage as _, Rejection};
use crate::stage::Stage;
use crate::workspace::{Status, Workspaces};

/// Resolves permits.
pub struct Resolution {
    pub(crate) entries: Arc<Entries>,
    pub(crate) lapses: Arc<Lapses>,
    pub(crate) workspaces: Workspaces,
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) config: Live,
    /// The findings that calls made of agents.
    pub learnt: Learnt,
}

impl Resolution {
    /// Returns the destination of a permitted message.
    ///
    /// # Errors
    /// `workspace_offline`, `workspace_restarting`, `address_forbidden`, `workspace_removed`;
    /// `store_unavailable` if no entry is known.
    pub async fn resolve(&self, permit: &Permit) -> Result<Destination, Rejection> {
        let entry = self.entries.get(permit.target()).await;
        let entry = entry.at(Stage::State)?;
        self.find_destination(permit.target(), &entry).await
    }

    /// Resolves a permitted message as [`Resolution::resolve`] does, and reports the facts to `witness`. Records
    /// neither a lapse nor a use; values read are cached.
    ///
    /// # Errors
    /// As [`Resolution::resolve`].
    pub async fn explain(
        &self,
        permit: &Permit,
        witness: &mut impl Witness,
    ) -> Result<Destination, ResolutionFailure> {
        let read = self.entries.get_with_source(permit.target()).await;
        let (entry, remembered) = read.map_err(ResolutionFailure::at_check(Stage::State))?;
        let evidence = Evidence {
            presence: &self.entries.presence,
            heartbeats: &self.entries.heartbeats,
            entry: &entry,
            remembered,
        };
        evidence.report(witness);
        entry.destination()
    }

    /// Returns the registered options of a workspace, whether or not it can be reached.
    ///
    /// # Errors
    /// `workspace_not_found`; `store_unavailable`.
    pub async fn load_options(&self, permit: &Permit) -> Result<AgentOptions, Rejection> {
        let entry = self.entries.get(permit.target()).await.at(Stage::State)?;
        let workspace = entry.workspace.as_ref().ok_or_else(not_found)?;
        Ok(AgentOptions::from_workspace(workspace, &self.config.get()))
    }

    /// Returns the HTTP status of refusals of the caller's JSON-RPC calls: that of its workspace, or else of
    /// `a2a.refusal_status`.
    pub async fn refusal_status(&self, caller: Option<&Arc<Proof>>) -> RefusalStatus {
        let own = match caller.map(|proof| &proof.principal) {
            Some(Principal::Workspace { id }) => self.entries.get(id).await.ok(),
            _ => None,
        };
        let own = own.and_then(|entry| entry.workspace.as_ref()?.refusal_status);
        own.unwrap_or(self.config.get().a2a.refusal_status)
    }

    /// Returns the destination of a message; records a lapse that is not recorded yet.
    pub(crate) async fn find_destination(
        &self,
        id: &WorkspaceId,
        entry: &Entry,
    ) -> Result<Destination, Rejection> {
        if entry.pulse == Pulse::Lapsed && !entry.lapse_noted.swap(true, Ordering::AcqRel) {
            let missing = entry.lease_read_at();
            Box::pin(self.lapses.record(id, missing, LapseSource::Request)).await;
        }
        let found = entry.destination();
        found.map_err(|not_reached| not_reached.why.at(not_reached.at))
    }

    /// Returns the source of the card of a permitted target. A target that cannot be reached has one, too.
    ///
    /// # Errors
    /// `workspace_removed`, `workspace_not_found`, `store_unavailable`.
    pub async fn card_source(&self, permit: &Permit) -> Result<Arc<CardSource>, Rejection> {
        self.source_by_id(permit.target()).await
    }

    /// As [`Resolution::card_source`], for what the gateway does by itself.
    ///
    /// # Errors
    /// As [`Resolution::card_source`].
    pub async fn source_by_id(&self, id: &WorkspaceId) -> Result<Arc<CardSource>, Rejection> {
        let entry = self.entries.get(id).await.at(Stage::State)?;
        self.source_of(id, &entry).await
    }

    /// Returns the source of the card of `id` if it is public. `None`: a credential is required, or there is no
    /// such workspace. A public card may be in memory; every other id costs one statement, so that the latency
    /// does not show which of them exist.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn public_card_source(
        &self,
        id: &WorkspaceId,
    ) -> Result<Option<Arc<CardSource>>, Rejection> {
        let default = self.config.get().card.access;
        let is_public = |entry: &Entry| {
            let workspace = entry.workspace.as_ref();
            workspace.is_some_and(|one| {
                one.status != Status::Removed
                    && one.card_access.unwrap_or(default) == CardAccess::Public
            })
        };
        let in_memory = self.entries.cache.get(id);
        if !in_memory.is_some_and(|entry| is_public(&entry))
            && !self.workspaces.has_public_card(id, default).await?
        {
            return Ok(None);
        }
        let entry = self.entries.get(id).await?;
        if !is_public(&entry) {
            return Ok(None);
        }
        self.source_of(id, &entry).await.map(Some)
    }

    async fn source_of(
        &self,
        id: &WorkspaceId,
        entry: &Entry,
    ) -> Result<Arc<CardSource>, Rejection> {
        let destination = self.find_destination(id, entry).await;
        let workspace = entry.workspace.as_ref().ok_or_else(not_found)?;
        if workspace.status == Status::Removed {
            return Err(workspace_removed());
        }
        let config = self.config.get();
        let a2a = &config.a2a;
        let source = entry.card.get_or_init(|| {
            Arc::new(CardSource::new(
                workspace,
                &entry.urls,
                destination,
                (a2a.push_notifications, a2a.bridge),
                &self.resolver.policy(),
            ))
        });
        Ok(Arc::clone(source))
    }
}

// What calls have shown of agents.

impl Resolution {
    /// Returns what the answers of a target have shown of the generation that it takes for `method`.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn finding(
        &self,
        permit: &Permit,
        method: Method,
    ) -> Result<Option<Finding>, Rejection> {
        if self.learnt.is_empty() {
            return Ok(None);
        }
        let source = self.card_source(permit).await?;
        Ok(self.learnt.find(&source, method).await)
    }

    /// Returns what keeps the generation that the answer of a target shows for `method`.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn observer(
        &self,
        permit: &Permit,
        method: Method,
        (tried, agrees): (Generation, bool),
    ) -> Result<Observer, Rejection> {
        Ok(Observer {
            learnt: self.learnt.clone(),
            source: self.card_source(permit).await?,
            method,
            tried,
            agrees,
        })
    }

    /// Returns the place to which a target redirects calls of `path`.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn place(&self, permit: &Permit, path: &str) -> Result<Option<Place>, Rejection> {
        let source = self.card_source(permit).await?;
        Ok(self.learnt.find_place(&source, path).await)
    }

    /// Keeps that the agent of a workspace redirected a call of JSON-RPC, and took it there.
    pub async fn keep_place(&self, id: &WorkspaceId, from: &str, to: &str) {
        if let Ok(source) = self.source_by_id(id).await {
            self.learnt.keep_place(&source, from, to).await;
        }
    }

    /// Returns the warnings for the owner of a workspace.
    pub async fn warnings(&self, id: &WorkspaceId) -> Vec<String> {
        if self.learnt.is_empty() {
            return Vec::new();
        }
        let Ok(source) = self.source_by_id(id).await else {
            return Vec::new();
        };
        self.learnt.warnings(&source).await
    }
}
