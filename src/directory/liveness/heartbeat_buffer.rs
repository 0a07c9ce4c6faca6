//! Heartbeat buffer: the latest heartbeats, and which of them SQL has. A heartbeat costs no SQL write: changed
//! tasks are written soon, in batches; an unchanged heartbeat is written only when SQL's `last_seen` has become
//! old, so that the sweep does not take a live workspace for overdue.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;

use super::instance_heartbeats::InstanceHeartbeats;
use super::lease::lag_max;
use crate::config::Live;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;
use crate::time::Timestamp;
use crate::workspace::{HeartbeatUpdate, Workspace, Workspaces};

/// Workspaces in one statement: well under the 32,766 parameters that SQLite takes.
const BATCH_MAX: usize = 500;

/// Latest heartbeat of each workspace, as received by this replica.
pub(crate) struct HeartbeatBuffer {
    words: DashMap<WorkspaceId, LastSeen>,
    /// Workspaces to write at the next flush; each is marked [`LastSeen::due`].
    due: Mutex<Vec<WorkspaceId>>,
    config: Live,
    /// Heartbeats of instances.
    pub(crate) instances: InstanceHeartbeats,
}

struct LastSeen {
    last_seen: Timestamp,
    active_tasks: u32,
    current_task: Option<String>,
    /// `last_seen` in SQL.
    written: Option<Timestamp>,
    due: bool,
}

impl LastSeen {
    fn has_same_tasks(&self, seen: &HeartbeatUpdate) -> bool {
        self.active_tasks == seen.active_tasks && self.current_task == seen.current_task
    }

    fn is_written(&self) -> bool {
        self.written >= Some(self.last_seen)
    }

    fn to_update(&self, id: &WorkspaceId) -> HeartbeatUpdate {
        HeartbeatUpdate {
            id: id.clone(),
            last_seen: self.last_seen,
            active_tasks: self.active_tasks,
            current_task: self.current_task.clone(),
        }
    }
}

impl HeartbeatBuffer {
    pub(crate) fn new(config: Live) -> Self {
        Self {
            words: DashMap::new(),
            due: Mutex::default(),
            instances: InstanceHeartbeats::new(config.clone()),
            config,
        }
    }

    /// Stores a heartbeat; true if its tasks changed. `row`: the row as last read.
    pub(crate) fn record(&self, seen: HeartbeatUpdate, row: &Workspace) -> bool {
        let mut word = match self.words.get_mut(&seen.id) {
            Some(word) => word,
            None => self.words.entry(seen.id.clone()).or_insert(LastSeen {
                last_seen: seen.last_seen,
                active_tasks: row.active_tasks,
                current_task: row.current_task.clone(),
                written: row.last_seen,
                due: false,
            }),
        };
        let changed = !word.has_same_tasks(&seen);
        word.last_seen = word.last_seen.max(seen.last_seen);
        word.active_tasks = seen.active_tasks;
        word.current_task = seen.current_task;
        let lag_max = lag_max(self.config.get().registry.heartbeat_ttl);
        let fresh = |at: Timestamp| seen.last_seen.since(at) < lag_max;
        if changed || !word.written.is_some_and(fresh) {
            self.enqueue(&seen.id, &mut word);
        }
        changed
    }

    pub(crate) fn get(&self, id: &WorkspaceId) -> Option<HeartbeatUpdate> {
        self.words.get(id).map(|word| word.to_update(id))
    }

    pub(super) fn last_seen(&self, id: &WorkspaceId) -> Option<Timestamp> {
        self.words.get(id).map(|word| word.last_seen)
    }

    /// Returns the last sign of life of a workspace: SQL's, or a later heartbeat at this replica.
    pub(crate) fn last_sign_of(&self, workspace: &Workspace) -> Option<Timestamp> {
        workspace.last_seen.max(self.last_seen(&workspace.id))
    }

    /// Returns the workspace with the heartbeats since its row was written.
    pub(crate) fn as_of_now(&self, mut workspace: Workspace) -> Workspace {
        if let Some(seen) = self.get(&workspace.id)
            && workspace.last_seen < Some(seen.last_seen)
        {
            workspace.last_seen = Some(seen.last_seen);
            workspace.active_tasks = seen.active_tasks;
            workspace.current_task = seen.current_task;
        }
        workspace
    }

    /// Queues the heartbeat of a workspace for the next flush: its status changed, so its row is read.
    pub(crate) fn queue_now(&self, id: &WorkspaceId) {
        if let Some(mut word) = self.words.get_mut(id)
            && !word.is_written()
        {
            self.enqueue(id, &mut word);
        }
    }

    /// Queues all heartbeats that SQL does not have, at shutdown.
    pub(crate) fn queue_all(&self) {
        for mut word in self.words.iter_mut() {
            if !word.is_written() {
                let id = word.key().clone();
                self.enqueue(&id, &mut word);
            }
        }
        self.instances.queue_all();
    }

    /// Drops workspaces without a heartbeat here since `before`: they send them to another replica, or not at
    /// all.
    pub(crate) fn drop_silent(&self, before: Timestamp) {
        self.words
            .retain(|_, word| word.due || word.last_seen >= before);
        self.instances.drop_silent(before);
    }

    /// Writes the queued heartbeats. They stay queued until they are written.
    pub(crate) async fn flush(&self, workspaces: &Workspaces) -> Result<(), Unavailable> {
        let due = std::mem::take(&mut *self.lock_due());
        let mut rest = due.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(rest.len().min(BATCH_MAX));
            let seen: Vec<HeartbeatUpdate> = batch.iter().filter_map(|id| self.get(id)).collect();
            if let Err(error) = workspaces.set_last_seen_many(&seen).await {
                self.lock_due().extend_from_slice(rest);
                return Err(error);
            }
            seen.iter().for_each(|seen| self.mark_written(seen));
            rest = later;
        }
        self.instances.flush(workspaces).await
    }

    fn mark_written(&self, seen: &HeartbeatUpdate) {
        if let Some(mut word) = self.words.get_mut(&seen.id) {
            word.written = word.written.max(Some(seen.last_seen));
            word.due = false;
            // A later heartbeat changed the tasks.
            if !word.has_same_tasks(seen) {
                self.enqueue(&seen.id, &mut word);
            }
        }
    }

    fn enqueue(&self, id: &WorkspaceId, word: &mut LastSeen) {
        if !word.due {
            word.due = true;
            self.lock_due().push(id.clone());
        }
    }

    fn lock_due(&self) -> MutexGuard<'_, Vec<WorkspaceId>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;
    use crate::workspace::{DeliveryMode, Liveness, Status};

    fn seen(at: i64, active_tasks: u32) -> HeartbeatUpdate {
        HeartbeatUpdate {
            id: WorkspaceId::parse("a").unwrap(),
            last_seen: Timestamp(at),
            active_tasks,
            current_task: None,
        }
    }

    fn row(last_seen: Timestamp) -> Workspace {
        Workspace {
            id: WorkspaceId::parse("a").unwrap(),
            name: "a".to_owned(),
            role: None,
            parent_id: None,
            org: None,
            status: Status::Online,
            delivery_mode: DeliveryMode::Push,
            liveness: Liveness::Heartbeat,
            url: None,
            internal_url: None,
            card_url: None,
            agent_card: None,
            upstream_auth: None,
            push_notifications: None,
            card_access: None,
            proof: None,
            bridge: None,
            refusal_status: None,
            resolve: None,
            upstream_auth_base: None,
            upstream_tls: None,
            wake: None,
            probe: None,
            complete: None,
            max_concurrent: None,
            idle_timeout_seconds: None,
            instances: 0,
            current_task: None,
            active_tasks: 0,
            last_seen: Some(last_seen),
            created_at: last_seen,
            updated_at: last_seen,
        }
    }

    fn due(buffer: &HeartbeatBuffer) -> usize {
        buffer.lock_due().len()
    }

    /// Simulates a flush.
    fn write(buffer: &HeartbeatBuffer) {
        for id in std::mem::take(&mut *buffer.lock_due()) {
            buffer.mark_written(&buffer.get(&id).unwrap());
        }
    }

    #[test]
    fn only_what_changed_or_what_sql_has_not_heard_for_long_is_due() {
        let mut config: Config = toml::from_str(crate::config::load::DEFAULT).unwrap();
        config.registry.heartbeat_ttl = Duration::from_millis(90);
        let buffer = HeartbeatBuffer::new(config.into());
        let row = row(Timestamp(100));
        assert!(!buffer.record(seen(130, 0), &row));
        assert_eq!(due(&buffer), 0, "30 ms behind");
        assert!(!buffer.record(seen(160, 0), &row));
        assert_eq!(due(&buffer), 1, "60 ms behind");
        assert!(buffer.record(seen(161, 2), &row));
        assert_eq!(due(&buffer), 1, "once");
        write(&buffer);
        assert!(!buffer.record(seen(190, 2), &row));
        assert_eq!(due(&buffer), 0);
        assert!(buffer.record(seen(191, 3), &row), "another count");
        assert_eq!(due(&buffer), 1);
        let id = seen(0, 0).id;
        let older = buffer.get(&id).unwrap();
        assert!(buffer.record(seen(192, 4), &row));
        std::mem::take(&mut *buffer.lock_due());
        buffer.mark_written(&older);
        assert_eq!(due(&buffer), 1, "what came while it was written waits");
        write(&buffer);
        buffer.queue_now(&id);
        assert_eq!(due(&buffer), 0, "all is written");
        assert!(!buffer.record(seen(200, 4), &row));
        buffer.queue_all();
        assert_eq!(due(&buffer), 1);
        buffer.drop_silent(Timestamp(300));
        assert!(buffer.get(&id).is_some(), "what is due is kept");
        write(&buffer);
        buffer.drop_silent(Timestamp(200));
        assert!(buffer.get(&id).is_some());
        buffer.drop_silent(Timestamp(201));
        assert!(buffer.get(&id).is_none());
    }
}
