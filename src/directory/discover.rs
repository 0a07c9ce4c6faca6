//! Discovery (contract §4.4) and reading a workspace (§8.1).

use serde::Serialize;
use serde_json::value::RawValue;

use super::endpoint::Endpoint;
use super::entry::{must_beat, not_found};
use super::{Destination, Directory};
use crate::hierarchy::{Permit, Rule};
use crate::ids::WorkspaceId;
use crate::rejection::Rejection;
use crate::workspace::{DeliveryMode, Status, Timestamp, Workspace};

/// What discovery tells of a target; the control plane adds `proxy_url` and, to workspaces, a token.
#[derive(Clone, Debug, Serialize)]
pub struct Discovered {
    /// The target.
    pub id: String,
    /// For people.
    pub name: String,
    /// Where to reach it from where the caller is; `None` for a poll target, and to canvas users and org tokens, who
    /// reach it through the gateway.
    pub url: Option<String>,
    /// How messages reach it.
    pub delivery_mode: DeliveryMode,
    /// Where it is in its life.
    pub status: Status,
    /// Its last sign of life.
    pub last_seen: Option<Timestamp>,
    /// The card that it registered; to others than itself and operators, without its place.
    pub agent_card: Option<Box<RawValue>>,
}

impl Directory {
    /// Tells where a permitted target is: on the agents' own network to a workspace, as the host sees
    /// it to operators, and to others not at all.
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
        // Another program may have written it: nobody is sent where we would not go.
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

    /// The workspace as it is now: the row, and what heartbeats said since it was written.
    ///
    /// # Errors
    /// `workspace_not_found`; `store_unavailable`. A removed one is returned: whether it may be read
    /// is the caller's to decide.
    pub async fn view(&self, id: &WorkspaceId) -> Result<Workspace, Rejection> {
        let workspace = self.workspaces.find(id).await?.ok_or_else(not_found)?;
        let mut workspace = self.as_of_now(workspace);
        // A lapse counts from its moment, not from when the sweep comes by; and a heartbeat that
        // another replica heard, though SQL does not know it yet.
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

    /// With what heartbeats said since the row was written.
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
