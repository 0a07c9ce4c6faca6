//! Publishes events of workspaces (`docs/reference/events.md`): each change of status, parent, org and card,
//! and each removal.

use std::slice;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{Beat, Directory};
use crate::events::{Event, Kind};
use crate::hierarchy::Lineage;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;
use crate::workspace::{Changed, Status, Step, Timestamp, Workspace};

/// Longest card in an event, in bytes. A longer one must be fetched.
const EVENT_CARD_BYTES_MAX: usize = 16 * 1024;

/// Maximum looks for a change that the store did not confirm, while the store does not answer.
const LATE_LOOKS_MAX: u32 = 5;

impl Directory {
    /// Publishes a status, also after a registration.
    pub(super) fn tell_status(&self, id: &WorkspaceId, status: Status) {
        self.tell_status_with(id, status, json!({}));
    }

    /// Publishes a status with more members, as an object.
    pub(super) fn tell_status_with(&self, id: &WorkspaceId, status: Status, payload: Value) {
        self.events.tell(of_status(id, status, payload));
    }

    /// Publishes the row's status if it is not `told`, the status that was just published. Two replicas that
    /// change a status at the same moment may publish in the wrong order; each then reads the row, so that the
    /// last event has the row's status. Best effort.
    pub(super) async fn tell_if_overtaken(&self, id: &WorkspaceId, told: Status) {
        if let Ok(Some(row)) = self.workspaces.find(id).await
            && row.status != told
            && row.status != Status::Removed
        {
            self.tell_status(id, row.status);
        }
    }

    /// Handles a change of status at `at` that the store may or may not have made: every replica drops its
    /// entry of the workspace, and the status is published once it is known.
    pub(super) async fn doubt<T>(
        &self,
        id: &WorkspaceId,
        at: Timestamp,
        outcome: &Result<T, Unavailable>,
    ) {
        if outcome.as_ref().is_err_and(|error| !error.is_refusal()) {
            self.forget(id, false, outcome).await;
            self.tell_status_if_made(id, at);
        }
    }

    /// Publishes the status of a change at `at` for which the store did not answer in time, if the change was
    /// made after all. Best effort; ends with the process.
    pub(super) fn tell_status_if_made(&self, id: &WorkspaceId, at: Timestamp) -> JoinHandle<()> {
        let (workspaces, events) = (self.workspaces.clone(), Arc::clone(&self.events));
        let (id, doubt) = (id.clone(), self.coherence.doubt());
        tokio::spawn(async move {
            for _ in 0..LATE_LOOKS_MAX {
                sleep(doubt).await;
                let Ok(row) = workspaces.find(&id).await else {
                    continue;
                };
                let row = row.filter(|row| row.updated_at == at && row.status != Status::Removed);
                if let Some(row) = row {
                    events.tell(of_status(&id, row.status, json!({})));
                }
                return;
            }
        })
    }

    /// Publishes a heartbeat, and a change of its tasks.
    pub(super) fn tell_beat(&self, workspace: &Workspace, beat: &Beat, now: Timestamp) {
        let id = &workspace.id;
        let seen = beat.seen(id, now);
        let current_task = seen.current_task.clone();
        if self.heartbeat_buffer.note(seen, workspace) {
            let payload = json!({"current_task": current_task, "active_tasks": beat.active_tasks});
            self.events.tell(Event::new(Kind::TaskUpdated, id, payload));
        }
        if self.events.heard() {
            let payload =
                json!({"active_tasks": beat.active_tasks, "uptime_seconds": beat.uptime_seconds});
            let event = Event::new(Kind::WorkspaceHeartbeat, id, payload);
            self.events.tell(event);
        }
    }

    /// Publishes a new card. It has no URLs of the agent, so that access to them need not be checked for each
    /// reader.
    pub(super) async fn tell_card(&self, mut workspace: Workspace) {
        self.conceal(slice::from_mut(&mut workspace), |_| true)
            .await;
        let shown = workspace.agent_card;
        let shown = shown.filter(|card| card.get().len() <= EVENT_CARD_BYTES_MAX);
        let card: Option<Value> = shown.and_then(|card| serde_json::from_str(card.get()).ok());
        let payload = json!({"agent_card": card});
        let event = Event::new(Kind::AgentCardUpdated, &workspace.id, payload);
        self.events.tell(event);
    }

    /// Publishes a change of parent, org or status.
    pub(super) fn tell_changed(&self, changed: &Changed) {
        let (before, after) = (&changed.before, &changed.after);
        if before.parent_id != after.parent_id || before.org != after.org {
            let parent_id = after.parent_id.as_ref().map(WorkspaceId::as_str);
            let payload = json!({"parent_id": parent_id, "org": after.org});
            self.tell_with_line(Kind::WorkspaceMoved, &after.id, payload, &changed.line);
        }
        if before.status != after.status {
            self.tell_status(&after.id, after.status);
        }
    }

    /// Publishes a removal. `line` is the workspace with its former ancestors.
    pub(super) fn tell_removed(&self, id: &WorkspaceId, line: &[Step]) {
        self.tell_with_line(Kind::WorkspaceRemoved, id, json!({}), line);
    }

    fn tell_with_line(&self, kind: Kind, id: &WorkspaceId, payload: Value, line: &[Step]) {
        let mut event = Event::new(kind, id, payload);
        event.was = Lineage::of_line(line.to_vec()).map(Arc::new);
        self.events.tell(event);
    }
}

fn of_status(id: &WorkspaceId, status: Status, mut payload: Value) -> Event {
    let kind = match status {
        Status::Online => Kind::WorkspaceOnline,
        Status::Degraded => Kind::WorkspaceDegraded,
        _ => Kind::WorkspaceOffline,
    };
    payload["status"] = json!(status);
    Event::new(kind, id, payload)
}
