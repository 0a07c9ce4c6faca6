//! What watchers hear of workspaces (contract §8.4): every change of status, place, card and being.

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

/// Longest card in an event, in bytes. A longer one is to be read.
const EVENT_CARD_BYTES_MAX: usize = 16 * 1024;

/// How often it is looked whether a change was made that the store did not answer for, while the store is away.
const LATE_LOOKS_MAX: u32 = 5;

impl Directory {
    /// It has another status, or registered.
    pub(super) fn tell_status(&self, id: &WorkspaceId, status: Status) {
        self.tell_status_with(id, status, json!({}));
    }

    /// The same, and what else there is to say of it, in an object.
    pub(super) fn tell_status_with(&self, id: &WorkspaceId, status: Status, payload: Value) {
        self.events.tell(of_status(id, status, payload));
    }

    /// After a status was told: of two that change it at the same moment, on two replicas, the earlier
    /// may tell last. Whoever told looks at the row, so the last that is told is what it says. Best
    /// effort.
    pub(super) async fn tell_if_overtaken(&self, id: &WorkspaceId, told: Status) {
        if let Ok(Some(row)) = self.workspaces.find(id).await
            && row.status != told
            && row.status != Status::Removed
        {
            self.tell_status(id, row.status);
        }
    }

    /// After a change of status at `at`: where the store did not say whether it made it, everybody forgets what is known of
    /// the workspace, and what became of it is told when it is known.
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

    /// Tells of a change at `at` for which the store did not answer in time, if it was made all the same. Best effort, as
    /// long as the process lives.
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

    /// What a heartbeat said.
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

    /// It has another card, which is told as those see it who may not know where the agent is: who may
    /// is not asked for each reader.
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

    /// What a change did to its place and its status.
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

    /// It is gone. `line` is the one that it had.
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
