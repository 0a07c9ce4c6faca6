//! Announces changes of workspaces: to the caches of every replica, and as events to subscribers
//! (`docs/reference/events.md`): each change of status, parent, org and card, and each removal.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::events::{Event, Events, Kind};
use access::hierarchy::Lineage;
use access::workspace::{Origins, Status, Step, Workspace, WorkspaceChange, Workspaces, url_base};
use audit::{Draft, EventType};
use kernel::ids::WorkspaceId;
use kernel::time::Timestamp;
use stores::coherence::{Coherence, Invalidation};
use stores::store::{Run, Unavailable};

/// Longest card in an event, in bytes. A longer one must be fetched.
const EVENT_CARD_BYTES_MAX: usize = 16 * 1024;

/// Maximum looks for a change that the store did not confirm, while the store does not answer.
const LATE_LOOKS_MAX: u32 = 5;

/// Announces changes of workspaces.
pub(crate) struct Announcer {
    pub(super) workspaces: Workspaces,
    pub(super) events: Arc<Events>,
    pub(super) coherence: Arc<Coherence>,
}

impl Announcer {
    /// Drops the entry of a workspace on every replica.
    pub(super) async fn invalidate(&self, id: &WorkspaceId) {
        let workspace = Invalidation::Workspace(id.clone());
        self.coherence.invalidate(workspace).await;
    }

    /// Drops the entry of a workspace on every replica, after a change with this outcome.
    pub(super) async fn invalidate_after<T>(
        &self,
        id: &WorkspaceId,
        outcome: &Result<T, Unavailable>,
    ) {
        let workspace = Invalidation::Workspace(id.clone());
        self.coherence.invalidate_after(outcome, workspace).await;
    }

    /// Drops the entries of the workspaces whose former servers a change with this outcome released, on every replica.
    pub(super) async fn invalidate_left<T>(
        &self,
        origins: &Origins,
        run: Run,
        outcome: &Result<T, Unavailable>,
    ) {
        if run.is_dry() {
            return;
        }
        for held in &origins.left {
            self.invalidate_after(&held.by, outcome).await;
        }
    }

    /// As [`Announcer::invalidate_after`], after a change of its place in the hierarchy: drops the lineages of
    /// the workspace and its descendants, too.
    pub(super) async fn invalidate_lineage_after<T>(
        &self,
        id: &WorkspaceId,
        outcome: &Result<T, Unavailable>,
    ) {
        let lineage = Invalidation::Lineage(id.clone());
        self.coherence.invalidate_after(outcome, lineage).await;
        self.invalidate_after(id, outcome).await;
    }

    /// Publishes a status, also after a registration.
    pub(super) fn announce_status(&self, id: &WorkspaceId, status: Status) {
        self.announce_status_with(id, status, json!({}));
    }

    /// Publishes a status with more members, as an object.
    pub(super) fn announce_status_with(&self, id: &WorkspaceId, status: Status, payload: Value) {
        self.events.publish(status_event(id, status, payload));
    }

    /// Publishes the row's status if it is not `announced`, the status that was just published. Two replicas
    /// that change a status at the same moment may publish in the wrong order; each then reads the row, so that
    /// the last event has the row's status. Best effort.
    pub(super) async fn announce_if_overtaken(&self, id: &WorkspaceId, announced: Status) {
        if let Ok(Some(row)) = self.workspaces.find(id).await
            && row.status != announced
            && row.status != Status::Removed
        {
            self.announce_status(id, row.status);
        }
    }

    /// Handles a change of status at `at` that the store may or may not have made: every replica drops its
    /// entry of the workspace, and the status is published once it is known.
    pub(super) async fn resolve_doubt<T>(
        &self,
        id: &WorkspaceId,
        at: Timestamp,
        outcome: &Result<T, Unavailable>,
    ) {
        if outcome.as_ref().is_err_and(|error| !error.is_refusal()) {
            self.invalidate_after(id, outcome).await;
            self.announce_status_if_made(id, at);
        }
    }

    /// Publishes the status of a change at `at` for which the store did not answer in time, if the change was
    /// made after all. Best effort; ends with the process.
    pub(super) fn announce_status_if_made(
        &self,
        id: &WorkspaceId,
        at: Timestamp,
    ) -> JoinHandle<()> {
        let (workspaces, events) = (self.workspaces.clone(), Arc::clone(&self.events));
        let (id, doubt) = (id.clone(), self.coherence.write_uncertainty());
        tokio::spawn(async move {
            for _ in 0..LATE_LOOKS_MAX {
                sleep(doubt).await;
                let Ok(row) = workspaces.find(&id).await else {
                    continue;
                };
                let row = row.filter(|row| row.updated_at == at && row.status != Status::Removed);
                if let Some(row) = row {
                    events.publish(status_event(&id, row.status, json!({})));
                }
                return;
            }
        })
    }

    /// Publishes the new card of a workspace. The card must be redacted before.
    pub(super) fn announce_card(&self, redacted: &Workspace) {
        let card = redacted.agent_card.as_deref();
        let card = card.filter(|card| card.get().len() <= EVENT_CARD_BYTES_MAX);
        let card: Option<Value> = card.and_then(|card| serde_json::from_str(card.get()).ok());
        let payload = json!({"agent_card": card});
        let event = Event::new(Kind::AgentCardUpdated, &redacted.id, payload);
        self.events.publish(event);
    }

    /// Publishes a change of parent, org or status.
    pub(super) fn announce_change(&self, changed: &WorkspaceChange) {
        let (before, after) = (&changed.before, &changed.after);
        if before.parent_id != after.parent_id || before.org != after.org {
            let parent_id = after.parent_id.as_ref().map(WorkspaceId::as_str);
            let payload = json!({"parent_id": parent_id, "org": after.org});
            self.announce_with_line(Kind::WorkspaceMoved, &after.id, payload, &changed.line);
        }
        if before.status != after.status {
            self.announce_status(&after.id, after.status);
        }
    }

    /// Publishes and records that the credential for an agent goes to another place, where another program moved it.
    /// The event is for all who see the workspace, so it has no address.
    pub(super) fn announce_credential(&self, workspace: &Workspace, to: &str) {
        let id = &workspace.id;
        let from = workspace.upstream_auth_base.as_deref().map(url_base);
        let record = Draft::new(EventType::CredentialMoved).with_target(id);
        self.events
            .record_change(record.with_detail(json!({"from": from, "to": to})));
        let event = Event::new(Kind::CredentialMoved, id, json!({}));
        self.events.publish(event);
    }

    /// Publishes a removal. `line` is the workspace with its former ancestors.
    pub(super) fn announce_removal(&self, id: &WorkspaceId, line: &[Step]) {
        self.announce_with_line(Kind::WorkspaceRemoved, id, json!({}), line);
    }

    fn announce_with_line(&self, kind: Kind, id: &WorkspaceId, payload: Value, line: &[Step]) {
        let mut event = Event::new(kind, id, payload);
        event.was = Lineage::from_line(line.to_vec()).map(Arc::new);
        self.events.publish(event);
    }
}

fn status_event(id: &WorkspaceId, status: Status, mut payload: Value) -> Event {
    let kind = match status {
        Status::Online => Kind::WorkspaceOnline,
        Status::Degraded => Kind::WorkspaceDegraded,
        _ => Kind::WorkspaceOffline,
    };
    payload["status"] = json!(status);
    Event::new(kind, id, payload)
}
