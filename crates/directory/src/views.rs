//! Views of workspaces for readers: discovery, reading one, lists (`docs/reference/http-api.md`). They are the
//! rows, with later heartbeats and the URLs in the shared state. From registered cards the URLs of the agent are
//! removed, as from served cards, for readers other than the workspace and operators.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::core::Core;
use super::liveness::{AgentUrls, must_beat};
use super::rejections::not_found;
use super::resolution::{CachedInstance, Destination, Resolution, hidden_urls};
use a2a::card;
use access::hierarchy::{Permit, Rule};
use access::workspace::{DeliveryMode, InstanceStatus, InstanceView, Liveness, Status, Workspace};
use kernel::ids::WorkspaceId;
use kernel::rejection::Rejection;
use kernel::time::Timestamp;

/// Result of discovery; the control plane adds `proxy_url` and, for workspaces, a token.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DiscoveryResult {
    /// Id of the target.
    #[schema(value_type = WorkspaceId)]
    pub id: String,
    /// Display name.
    pub name: String,
    /// URL to reach it at from the caller's network; `None` for a poll target, and for canvas users and org
    /// tokens, which reach it through the gateway.
    pub url: Option<String>,
    /// Delivery mode: push or poll.
    pub delivery_mode: DeliveryMode,
    /// Lifecycle status.
    pub status: Status,
    /// Time of its last sign of life.
    pub last_seen: Option<Timestamp>,
    /// Registered card; without the agent's URLs, except for the workspace itself and operators.
    #[schema(value_type = Option<Object>)]
    pub agent_card: Option<Box<RawValue>>,
}

/// Reader of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListReader {
    /// A workspace, on the agents' own network.
    Internal,
    /// An operator, on the host's network.
    Host,
}

/// Workspace that the caller may message (`docs/reference/http-api.md`, "`GET /registry/{id}/peers`").
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Peer {
    /// Id of the workspace.
    #[schema(value_type = WorkspaceId)]
    pub id: String,
    /// Display name.
    pub name: String,
    /// Purpose of the agent, as free text.
    pub role: Option<String>,
    /// Lifecycle status.
    pub status: Status,
    /// Delivery mode: push or poll.
    pub delivery_mode: DeliveryMode,
    /// Registered card; without the agent's URLs for a workspace.
    #[schema(value_type = Option<Object>)]
    pub agent_card: Option<Box<RawValue>>,
    /// URL of its agent; `None` if it polls, or if the policy forbids its URL.
    pub url: Option<String>,
    /// Parent workspace.
    pub parent_id: Option<String>,
    /// Active tasks that it reported.
    pub active_tasks: u32,
    /// Relation of the caller to it.
    #[schema(pattern = "^(self|parent|child|sibling|root_sibling|ancestor|descendant|grant)$")]
    pub rule: &'static str,
}

/// Reads workspaces for readers.
pub struct Views {
    pub(super) core: Arc<Core>,
    pub(super) resolution: Arc<Resolution>,
}

impl Views {
    /// Returns the URL of a permitted target: a workspace gets the internal URL, an operator the host's, every
    /// other caller none.
    ///
    /// # Errors
    /// As [`Resolution::resolve`], with `last_seen` where it is offline.
    pub async fn discover(&self, permit: &Permit) -> Result<DiscoveryResult, Rejection> {
        let entry = self.resolution.entries.get(permit.target()).await?;
        let destination = self.resolution.find_destination(permit.target(), &entry);
        let destination = destination.await?;
        let workspace = entry.workspace.as_ref().ok_or_else(not_found)?;
        let url = match (destination, permit.caller()) {
            (Destination::Inbox(_), _) => None,
            (Destination::Agent(_), Some(_)) => entry.urls.internal.as_deref(),
            (Destination::Agent(_), None) => {
                let may_see = permit.rule() == Rule::Operator;
                entry.urls.host.as_deref().filter(|_| may_see)
            }
        };
        // Another program may have written the key: a URL that the policy forbids is not returned.
        let url = url
            .map(|url| self.core.resolver.parse(url))
            .transpose()?
            .map(|endpoint| endpoint.url());
        Ok(DiscoveryResult {
            id: workspace.id.as_str().to_owned(),
            name: workspace.name.clone(),
            url,
            delivery_mode: workspace.delivery_mode,
            status: self.status_of(workspace),
            last_seen: self.core.heartbeats.last_sign_of(workspace),
            agent_card: match permit.rule() {
                Rule::Operator | Rule::SelfRule => workspace.agent_card.clone(),
                _ => self.redacted_card(workspace, &entry.urls).await,
            },
        })
    }

    /// Returns the workspace: the row, and the later heartbeats.
    ///
    /// # Errors
    /// `workspace_not_found`; `store_unavailable`. A removed workspace is returned: the caller decides about
    /// access to it.
    pub async fn find(&self, id: &WorkspaceId) -> Result<Workspace, Rejection> {
        let workspace = self.core.workspaces.find(id).await?.ok_or_else(not_found)?;
        let mut workspace = self.as_of_now(workspace);
        // A lapse counts from its time, not from the next sweep. A heartbeat that another replica received
        // counts, even if SQL does not have it yet.
        if must_beat(&workspace) {
            let (leases, now) = (&self.core.presence.leases, Timestamp::now());
            match leases.renewal_time(id, None, now).await {
                Ok(Some(at)) => workspace.last_seen = workspace.last_seen.max(Some(at)),
                Ok(None) => {
                    let last_seen = self.core.heartbeats.last_sign_of(&workspace);
                    if leases.benefit_of_doubt(last_seen, now).is_none() {
                        workspace.settings.status = Status::Offline;
                    }
                }
                Err(_) => {}
            }
        }
        Ok(workspace)
    }

    /// Returns the named instances of a workspace, with calls and breakers of this replica; empty if it has none. For
    /// the workspace itself and operators: they have the URLs.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn load_instances(
        &self,
        workspace: &Workspace,
    ) -> Result<Vec<InstanceView>, Rejection> {
        if workspace.instances == 0 && !workspace.resolves_each() {
            return Ok(Vec::new());
        }
        let found = self.resolution.entries.instances_now(workspace).await?;
        let capacity = self.core.slots.capacity_views(&workspace.id);
        let view = |one: CachedInstance| {
            let status = match (one.is_alive(), one.row.is_draining) {
                (false, _) => InstanceStatus::Offline,
                (true, true) => InstanceStatus::Draining,
                (true, false) => InstanceStatus::Online,
            };
            let (row, last_seen) = (one.row, one.last_seen);
            let mut capacity = capacity.iter();
            let capacity = capacity.find(|one| one.instance.as_ref() == Some(&row.id));
            InstanceView {
                instance_id: row.id.as_str().to_owned(),
                url: row.url,
                status,
                last_seen,
                in_flight: capacity.map_or(0, |one| one.in_progress),
                breaker: capacity.map_or("closed", |one| one.breaker),
            }
        };
        Ok(found.into_iter().map(view).collect())
    }

    /// Returns the workspaces in order of id, without those that never existed.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn find_many(&self, ids: &[WorkspaceId]) -> Result<Vec<Workspace>, Rejection> {
        let found = self.core.workspaces.find_many(ids).await?;
        Ok(found.into_iter().map(|w| self.as_of_now(w)).collect())
    }

    /// Returns the workspace with the heartbeats since its row was written, and with what calls to it tell.
    fn as_of_now(&self, workspace: Workspace) -> Workspace {
        let mut workspace = self.core.heartbeats.as_of_now(workspace);
        workspace.settings.status = self.status_of(&workspace);
        workspace
    }

    /// Returns the status. A workspace of assumed liveness is degraded while its breaker is open: nothing else tells.
    fn status_of(&self, workspace: &Workspace) -> Status {
        let assumed = workspace.liveness == Liveness::Assumed;
        match workspace.status {
            Status::Online if assumed && self.core.slots.is_open(&workspace.id) => Status::Degraded,
            status => status,
        }
    }

    /// Returns the peers in order of id. Their URLs are those of discovery.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn load_peers(
        &self,
        found: Vec<(WorkspaceId, Rule)>,
        sight: ListReader,
    ) -> Result<Vec<Peer>, Rejection> {
        let ids: Vec<_> = found.iter().map(|(id, _)| id.clone()).collect();
        let rules: HashMap<WorkspaceId, Rule> = found.into_iter().collect();
        let mut workspaces = self.find_many(&ids).await?;
        workspaces.retain(|workspace| workspace.status != Status::Removed);
        let urls = self.core.presence.urls_of(&workspaces).await;
        let mut peers = Vec::with_capacity(workspaces.len());
        for (one, urls) in workspaces.into_iter().zip(urls) {
            let Some(rule) = rules.get(&one.id) else {
                continue;
            };
            let (agent_card, url) = match sight {
                ListReader::Internal => (self.redacted_card(&one, &urls).await, urls.internal),
                ListReader::Host => (one.agent_card, urls.host),
            };
            let settings = one.settings;
            let url = url.filter(|_| settings.delivery_mode == DeliveryMode::Push);
            // Another program may have written the key: a URL that the policy forbids is not returned.
            let url = url.and_then(|url| self.core.resolver.parse(&url).ok());
            peers.push(Peer {
                id: one.id.to_string(),
                name: settings.name,
                role: settings.role,
                status: settings.status,
                delivery_mode: settings.delivery_mode,
                agent_card,
                url: url.map(|endpoint| endpoint.url()),
                parent_id: settings.parent_id.map(|id| id.to_string()),
                active_tasks: one.active_tasks,
                rule: rule.as_str(),
            });
        }
        Ok(peers)
    }

    /// Redacts the cards of the workspaces for which the reader `has_no_sight` of the URLs.
    pub async fn redact_cards(
        &self,
        workspaces: &mut [Workspace],
        has_no_sight: impl Fn(&Workspace) -> bool,
    ) {
        let concerns = |one: &Workspace| one.agent_card.is_some() && has_no_sight(one);
        if !workspaces.iter().any(concerns) {
            return;
        }
        let urls = self.core.presence.urls_of(workspaces).await;
        for (one, urls) in workspaces.iter_mut().zip(urls) {
            if concerns(one) {
                one.agent_card = self.redacted_card(one, &urls).await;
            }
        }
    }

    /// Returns the card without the URLs of its agent. `None` if they cannot be removed reliably, as from a
    /// card with a duplicate key.
    async fn redacted_card(
        &self,
        workspace: &Workspace,
        urls: &AgentUrls,
    ) -> Option<Box<RawValue>> {
        // A page may have megabytes of cards: yield to other tasks.
        tokio::task::yield_now().await;
        let registered = workspace.agent_card.as_deref()?;
        urls.instances.as_ref()?;
        let base = self.core.config.get().base_of(&workspace.id);
        let hidden = hidden_urls(workspace, urls);
        let shown = card::conceal_addresses(registered.get(), &base, &hidden).ok()?;
        RawValue::from_string(shown).ok()
    }
}
