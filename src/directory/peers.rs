//! Workspaces in lists: the rows, with later heartbeats and the URLs in the shared state.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::Directory;
use super::endpoint::Endpoint;
use super::entry::Urls;
use crate::hierarchy::Rule;
use crate::ids::WorkspaceId;
use crate::rejection::Rejection;
use crate::workspace::{DeliveryMode, Status, Workspace};

/// Reader of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A workspace, on the agents' own network.
    Internal,
    /// An operator, on the host's network.
    Host,
}

/// Workspace that the caller may message (`docs/reference/http-api.md`, "`GET /registry/{id}/peers`").
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    /// Id of the workspace.
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
    pub agent_card: Option<Box<RawValue>>,
    /// URL of its agent; `None` if it polls, or if the policy forbids its URL.
    pub url: Option<String>,
    /// Parent workspace.
    pub parent_id: Option<String>,
    /// Active tasks that it reported.
    pub active_tasks: u32,
    /// Relation of the caller to it.
    pub rule: &'static str,
}

impl Directory {
    /// Returns the workspaces in order of id, without those that never existed.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn views(&self, ids: &[WorkspaceId]) -> Result<Vec<Workspace>, Rejection> {
        let found = self.workspaces.find_many(ids).await?;
        Ok(found.into_iter().map(|w| self.as_of_now(w)).collect())
    }

    /// Returns the peers in order of id. Their URLs are those of discovery.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn peers(
        &self,
        found: Vec<(WorkspaceId, Rule)>,
        sight: Sight,
    ) -> Result<Vec<Peer>, Rejection> {
        let ids: Vec<_> = found.iter().map(|(id, _)| id.clone()).collect();
        let rules: HashMap<WorkspaceId, Rule> = found.into_iter().collect();
        let mut workspaces = self.views(&ids).await?;
        workspaces.retain(|workspace| workspace.status != Status::Removed);
        let urls = self.urls_of(&workspaces).await;
        let mut peers = Vec::with_capacity(workspaces.len());
        for (one, urls) in workspaces.into_iter().zip(urls) {
            if let Some(rule) = rules.get(&one.id) {
                peers.push(self.peer(one, &urls, rule.as_str(), sight).await);
            }
        }
        Ok(peers)
    }

    async fn peer(&self, one: Workspace, urls: &Urls, rule: &'static str, sight: Sight) -> Peer {
        let agent_card = match sight {
            Sight::Internal => self.shown_card(&one, urls).await,
            Sight::Host => one.agent_card,
        };
        let url = match sight {
            Sight::Internal => urls.internal.as_deref(),
            Sight::Host => urls.host.as_deref(),
        };
        let url = url.filter(|_| one.delivery_mode == DeliveryMode::Push);
        // Another program may have written the key: a URL that the policy forbids is not returned.
        let url = url.and_then(|url| Endpoint::parse(url, &self.resolver.policy()).ok());
        Peer {
            id: one.id.to_string(),
            name: one.name,
            role: one.role,
            status: one.status,
            delivery_mode: one.delivery_mode,
            agent_card,
            url: url.map(|endpoint| endpoint.url()),
            parent_id: one.parent_id.map(|id| id.to_string()),
            active_tasks: one.active_tasks,
            rule,
        }
    }

    /// Returns the URLs of each: from the shared state, in one round trip; from the rows if it does not answer.
    pub(super) async fn urls_of(&self, workspaces: &[Workspace]) -> Vec<Urls> {
        let keys = workspaces.iter().flat_map(|workspace| {
            let id = &workspace.id;
            [self.url_key.key(id), self.internal_url_key.key(id)]
        });
        let keys: Vec<_> = keys.collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let heard = self.shared.get_many(&keys).await;
        let mut heard = heard
            .inspect_err(|_| self.leases.doubt())
            .unwrap_or_default()
            .into_iter();
        let urls = workspaces.iter().map(|workspace| {
            let url = heard.next().flatten();
            Urls::of(workspace, url, heard.next().flatten())
        });
        urls.collect()
    }
}
