//! Discovery and reading a workspace (`docs/reference/http-api.md`).

use serde::Serialize;
use serde_json::value::RawValue;

use super::endpoint::Endpoint;
use super::entry::{must_beat, not_found};
use super::{Destination, Directory};
use crate::hierarchy::{Permit, Rule};
use crate::ids::WorkspaceId;
use crate::rejection::Rejection;
use crate::workspace::{DeliveryMode, Status, Timestamp, Workspace};

/// Result of discovery; the control plane adds `proxy_url` and, for workspaces, a token.
#[derive(Clone, Debug, Serialize)]
pub struct Discovered {
    /// Id of the target.
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
    pub agent_card: Option<Box<RawValue>>,
}

impl Directory {
    /// Returns the URL of a permitted target: a workspace gets the internal URL, an operator the host's, every
    /// other caller none.
    ///
    /// # Errors
    /// As [`Directory::resolve`], with `last_seen` where it is offline.
    pub async fn discover(&self, permit: &Permit) -> Result<Discovered, Rejection> {
        let entry = self.entry(permit.target()).await?;
        let destination = self.destination(permit.target(), &entry).await?;
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
            .map(|url| Endpoint::parse(url, &self.resolver.policy()))
            .transpose()?
            .map(|endpoint| endpoint.url());
        Ok(Discovered {
            id: workspace.id.as_str().to_owned(),
            name: workspace.name.clone(),
            url,
            delivery_mode: workspace.delivery_mode,
            status: workspace.status,
            last_seen: self.last_seen(workspace),
            agent_card: match permit.rule() {
                Rule::Operator | Rule::SelfRule => workspace.agent_card.clone(),
                _ => self.shown_card(workspace, &entry.urls).await,
            },
        })
    }

    /// Returns the workspace: the row, and the later heartbeats.
    ///
    /// # Errors
    /// `workspace_not_found`; `store_unavailable`. A removed workspace is returned: the caller decides about
    /// access to it.
    pub async fn view(&self, id: &WorkspaceId) -> Result<Workspace, Rejection> {
        let workspace = self.workspaces.find(id).await?.ok_or_else(not_found)?;
        let mut workspace = self.as_of_now(workspace);
        // A lapse counts from its time, not from the next sweep. A heartbeat that another replica received
        // counts, even if SQL does not have it yet.
        if must_beat(&workspace) {
            let now = Timestamp::now();
            let renewed = self.leases.renewed(std::slice::from_ref(id), now).await;
            match renewed.as_deref() {
                Ok([Some(at)]) => workspace.last_seen = workspace.last_seen.max(Some(*at)),
                Ok(_) => {
                    let last_seen = self.last_seen(&workspace);
                    if self.leases.benefit_of_doubt(last_seen, now).is_none() {
                        workspace.status = Status::Offline;
                    }
                }
                Err(_) => {}
            }
        }
        Ok(workspace)
    }

    /// Adds the heartbeats since the row was written.
    pub(super) fn as_of_now(&self, mut workspace: Workspace) -> Workspace {
        if let Some(seen) = self.heartbeat_buffer.of(&workspace.id)
            && workspace.last_seen < Some(seen.last_seen)
        {
            workspace.last_seen = Some(seen.last_seen);
            workspace.active_tasks = seen.active_tasks;
            workspace.current_task = seen.current_task;
        }
        workspace
    }
}
