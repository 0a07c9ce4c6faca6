//! Signs of life of a polling agent, other than heartbeats: its requests to its inbox.

use super::beat::WELL_BELOW;
use super::{Beat, Directory};
use crate::ids::WorkspaceId;
use crate::workspace::{DeliveryMode, Liveness};

impl Directory {
    /// Records a sign of life of a polling agent: it counts as a heartbeat without tasks and errors. Best
    /// effort.
    pub async fn shows_life(&self, id: &WorkspaceId) {
        let Ok(entry) = self.entry(id).await else {
            return;
        };
        let polls = entry.workspace.as_ref().filter(|workspace| {
            workspace.delivery_mode == DeliveryMode::Poll
                && workspace.liveness == Liveness::Heartbeat
        });
        let Some(workspace) = polls else {
            return;
        };
        let (active_tasks, current_task) = match self.heartbeat_buffer.of(id) {
            Some(seen) => (seen.active_tasks, seen.current_task),
            None => (workspace.active_tasks, workspace.current_task.clone()),
        };
        let beat = Beat {
            // Between the two rates: a degraded workspace stays degraded.
            error_rate: Some(WELL_BELOW),
            active_tasks,
            current_task,
            ..Beat::default()
        };
        if let Err(refusal) = self.beat(id, &beat).await {
            let reason = refusal.reason.as_str();
            tracing::debug!(workspace.id = %id, reason, "failed to record a sign of life; the next one will retry");
        }
    }
}
