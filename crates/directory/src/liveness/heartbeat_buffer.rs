//! Heartbeat buffer: the latest heartbeats of workspaces and instances at this replica, and which of them SQL has. A
//! heartbeat costs no SQL write: changed tasks of a workspace are written soon, in batches; an unchanged heartbeat, and
//! that of an instance, is written only when SQL's `last_seen` has become old, so that the sweep does not take it for
//! overdue.

use std::hash::Hash;

use dashmap::DashMap;
use parking_lot::Mutex;

use super::presence::lag_max;
use access::workspace::{HeartbeatUpdate, StoredInstance, Workspace, Workspaces};
use kernel::config::Live;
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::time::Timestamp;
use stores::store::Unavailable;

/// Workspaces in one statement: well under the 32,766 parameters that SQLite takes.
const WORKSPACES_MAX: usize = 500;

/// Instances in one transaction: each is a statement.
const INSTANCES_MAX: usize = 100;

/// Body of a heartbeat.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    /// Instance that it is of; `None`: the one agent, or in a workspace with instances `default`.
    pub instance: Option<InstanceId>,
    /// Share of failed calls, 0 to 1. `None` counts as none failed: an agent that never reports a rate
    /// would otherwise stay degraded for ever once it was wedged.
    pub error_rate: Option<f64>,
    /// `runtime_state` is `wedged`.
    pub wedged: bool,
    /// Active tasks.
    pub active_tasks: u32,
    /// Description of its current task.
    pub current_task: Option<String>,
    /// Sample of its errors, as free text.
    pub sample_error: Option<String>,
    /// Uptime of its process, as the number in the request.
    pub uptime_seconds: Option<serde_json::Number>,
    /// Longest silence in its answers, in seconds. `None` keeps the value of before; 0 removes it.
    pub idle_timeout_seconds: Option<u32>,
}

/// Latest reports by name, as received by this replica.
pub(crate) struct Reports<K, R> {
    latest: DashMap<K, LatestReport<R>>,
    /// Those to write at the next flush; each is marked [`LatestReport::is_due`].
    due: Mutex<Vec<K>>,
    /// False if SQL is to have the second of two reports soon.
    is_same: fn(&R, &R) -> bool,
    config: Live,
}

struct LatestReport<R> {
    report: R,
    last_seen: Timestamp,
    /// `last_seen` in SQL.
    written: Option<Timestamp>,
    is_due: bool,
}

impl<R> LatestReport<R> {
    fn is_written(&self) -> bool {
        self.written >= Some(self.last_seen)
    }
}

impl<K: Clone + Eq + Hash, R: Clone> Reports<K, R> {
    fn new(config: Live, is_same: fn(&R, &R) -> bool) -> Self {
        Self {
            latest: DashMap::new(),
            due: Mutex::default(),
            is_same,
            config,
        }
    }

    /// Stores a report; true if it differs from the one before, which was `first` if none came in here. `written`:
    /// `last_seen` of the row as last read.
    pub(crate) fn record(
        &self,
        name: K,
        (report, at): (R, Timestamp),
        written: Option<Timestamp>,
        first: impl FnOnce() -> R,
    ) -> bool {
        let latest = self.latest.entry(name);
        let mut latest = latest.or_insert_with(|| LatestReport {
            report: first(),
            last_seen: at,
            written,
            is_due: false,
        });
        let (name, latest) = latest.pair_mut();
        let has_changed = !(self.is_same)(&latest.report, &report);
        latest.report = report;
        latest.last_seen = latest.last_seen.max(at);
        latest.written = latest.written.max(written);
        let lag_max = lag_max(self.config.get().registry.heartbeat_ttl);
        let is_fresh = |written: Timestamp| latest.last_seen.since(written) < lag_max;
        if has_changed || !latest.written.is_some_and(is_fresh) {
            self.enqueue(name, latest);
        }
        has_changed
    }

    pub(crate) fn get(&self, name: &K) -> Option<(R, Timestamp)> {
        let latest = self.latest.get(name)?;
        Some((latest.report.clone(), latest.last_seen))
    }

    pub(crate) fn last_seen(&self, name: &K) -> Option<Timestamp> {
        self.latest.get(name).map(|latest| latest.last_seen)
    }

    /// Queues all reports that SQL does not have.
    fn queue_all(&self) {
        for mut latest in self.latest.iter_mut() {
            let (name, latest) = latest.pair_mut();
            if !latest.is_written() {
                self.enqueue(name, latest);
            }
        }
    }

    fn drop_silent(&self, before: Timestamp) {
        self.latest
            .retain(|_, latest| latest.is_due || latest.last_seen >= before);
    }

    /// Writes the queued reports, at most `batch_max` at once. They stay queued until they are written.
    async fn flush<F: Future<Output = Result<(), Unavailable>>>(
        &self,
        batch_max: usize,
        write: impl Fn(Vec<(K, R, Timestamp)>) -> F,
    ) -> Result<(), Unavailable> {
        let due = std::mem::take(&mut *self.due.lock());
        let mut rest = due.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(rest.len().min(batch_max));
            let latest = batch.iter().filter_map(|name| {
                let (report, at) = self.get(name)?;
                Some((name.clone(), report, at))
            });
            let latest: Vec<_> = latest.collect();
            if let Err(error) = write(latest.clone()).await {
                self.due.lock().extend_from_slice(rest);
                return Err(error);
            }
            for (name, report, at) in latest {
                self.mark_written(&name, &report, at);
            }
            rest = later;
        }
        Ok(())
    }

    fn mark_written(&self, name: &K, report: &R, at: Timestamp) {
        if let Some(mut latest) = self.latest.get_mut(name) {
            latest.written = latest.written.max(Some(at));
            latest.is_due = false;
            // A later one changed it.
            if !(self.is_same)(&latest.report, report) {
                self.enqueue(name, &mut latest);
            }
        }
    }

    fn enqueue(&self, name: &K, latest: &mut LatestReport<R>) {
        if !std::mem::replace(&mut latest.is_due, true) {
            self.due.lock().push(name.clone());
        }
    }
}

impl Reports<(WorkspaceId, InstanceId), Heartbeat> {
    /// Returns the last sign of life of an instance: SQL's, or a later heartbeat at this replica.
    pub(crate) fn last_sign_of(&self, id: &WorkspaceId, row: &StoredInstance) -> Timestamp {
        let here = self.last_seen(&(id.clone(), row.id.clone()));
        here.map_or(row.last_seen, |here| here.max(row.last_seen))
    }
}

/// Active tasks, and the current one.
pub(crate) type TaskReport = (u32, Option<String>);

/// Latest heartbeats.
pub(crate) struct HeartbeatBuffer {
    /// Those of workspaces.
    pub(crate) workspaces: Reports<WorkspaceId, TaskReport>,
    /// Those of instances.
    pub(crate) instances: Reports<(WorkspaceId, InstanceId), Heartbeat>,
}

impl HeartbeatBuffer {
    pub(crate) fn new(config: Live) -> Self {
        Self {
            workspaces: Reports::new(config.clone(), PartialEq::eq),
            instances: Reports::new(config, |_, _| true),
        }
    }

    /// Returns the last sign of life of a workspace: SQL's, or a later heartbeat at this replica.
    pub(crate) fn last_sign_of(&self, workspace: &Workspace) -> Option<Timestamp> {
        workspace
            .last_seen
            .max(self.workspaces.last_seen(&workspace.id))
    }

    /// Returns the workspace with the heartbeats since its row was written.
    pub(crate) fn as_of_now(&self, mut workspace: Workspace) -> Workspace {
        if let Some((report, at)) = self.workspaces.get(&workspace.id)
            && workspace.last_seen < Some(at)
        {
            workspace.last_seen = Some(at);
            (workspace.active_tasks, workspace.current_task) = report;
        }
        workspace
    }

    /// Queues the heartbeat of a workspace for the next flush: its status changed, so its row is read.
    pub(crate) fn queue_now(&self, id: &WorkspaceId) {
        if let Some(mut latest) = self.workspaces.latest.get_mut(id)
            && !latest.is_written()
        {
            self.workspaces.enqueue(id, &mut latest);
        }
    }

    /// Queues all heartbeats that SQL does not have, at shutdown.
    pub(crate) fn queue_all(&self) {
        self.workspaces.queue_all();
        self.instances.queue_all();
    }

    /// Drops workspaces and instances without a heartbeat here since `before`: they send them to another replica, or
    /// not at all.
    pub(crate) fn drop_silent(&self, before: Timestamp) {
        self.workspaces.drop_silent(before);
        self.instances.drop_silent(before);
    }

    /// Writes the queued heartbeats. They stay queued until they are written.
    pub(crate) async fn flush(&self, workspaces: &Workspaces) -> Result<(), Unavailable> {
        let write = |latest: Vec<(WorkspaceId, TaskReport, Timestamp)>| async move {
            let seen = latest.into_iter().map(|(id, tasks, last_seen)| {
                let (active_tasks, current_task) = tasks;
                HeartbeatUpdate {
                    id,
                    last_seen,
                    active_tasks,
                    current_task,
                }
            });
            let seen: Vec<_> = seen.collect();
            workspaces.set_last_seen_many(&seen).await
        };
        self.workspaces.flush(WORKSPACES_MAX, write).await?;
        let write = |latest: Vec<((WorkspaceId, InstanceId), Heartbeat, Timestamp)>| async move {
            let seen = latest.into_iter();
            let seen: Vec<_> = seen.map(|((id, one), _, at)| (id, one, at)).collect();
            workspaces.instances.touch_many(&seen).await
        };
        self.instances.flush(INSTANCES_MAX, write).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use kernel::config::Config;

    fn make_buffer() -> HeartbeatBuffer {
        let mut config: Config = toml::from_str(kernel::config::load::DEFAULT).unwrap();
        config.registry.heartbeat_ttl = Duration::from_millis(90);
        HeartbeatBuffer::new(config.into())
    }

    fn id() -> WorkspaceId {
        WorkspaceId::parse("a").unwrap()
    }

    /// Records a heartbeat of the workspace, whose row has no tasks and was written at 100.
    fn record(buffer: &HeartbeatBuffer, at: i64, active_tasks: u32) -> bool {
        let report = ((active_tasks, None), Timestamp(at));
        let written = Some(Timestamp(100));
        buffer
            .workspaces
            .record(id(), report, written, || (0, None))
    }

    fn due(buffer: &HeartbeatBuffer) -> usize {
        buffer.workspaces.due.lock().len()
    }

    /// Simulates a flush.
    fn write(buffer: &HeartbeatBuffer) {
        for id in std::mem::take(&mut *buffer.workspaces.due.lock()) {
            let (report, at) = buffer.workspaces.get(&id).unwrap();
            buffer.workspaces.mark_written(&id, &report, at);
        }
    }

    #[test]
    fn only_what_changed_or_what_sql_has_not_heard_for_long_is_due() {
        let buffer = make_buffer();
        assert!(!record(&buffer, 130, 0));
        assert_eq!(due(&buffer), 0, "30 ms behind");
        assert!(!record(&buffer, 160, 0));
        assert_eq!(due(&buffer), 1, "60 ms behind");
        assert!(record(&buffer, 161, 2));
        assert_eq!(due(&buffer), 1, "once");
        write(&buffer);
        assert!(!record(&buffer, 190, 2));
        assert_eq!(due(&buffer), 0);
        assert!(record(&buffer, 191, 3), "another count");
        assert_eq!(due(&buffer), 1);
        let id = id();
        let (older, at) = buffer.workspaces.get(&id).unwrap();
        assert!(record(&buffer, 192, 4));
        std::mem::take(&mut *buffer.workspaces.due.lock());
        buffer.workspaces.mark_written(&id, &older, at);
        assert_eq!(due(&buffer), 1, "what came while it was written waits");
        write(&buffer);
        buffer.queue_now(&id);
        assert_eq!(due(&buffer), 0, "all is written");
        assert!(!record(&buffer, 200, 4));
        buffer.queue_all();
        assert_eq!(due(&buffer), 1);
        buffer.drop_silent(Timestamp(300));
        assert!(buffer.workspaces.get(&id).is_some(), "what is due is kept");
        write(&buffer);
        buffer.drop_silent(Timestamp(200));
        assert!(buffer.workspaces.get(&id).is_some());
        buffer.drop_silent(Timestamp(201));
        assert!(buffer.workspaces.get(&id).is_none());
    }

    #[test]
    fn only_an_instance_that_sql_has_not_heard_for_long_is_due() {
        let (buffer, id) = (make_buffer(), WorkspaceId::parse("a").unwrap());
        let row = |id: &str, last_seen: i64| StoredInstance {
            id: InstanceId::parse(id).unwrap(),
            url: "http://127.0.0.1:9001/".to_owned(),
            internal_url: None,
            is_draining: false,
            has_auth: false,
            registered_at: Timestamp(0),
            last_seen: Timestamp(last_seen),
        };
        let (signs, one) = (&buffer.instances, row("one", 100));
        let beat = |at: i64| {
            let report = (Heartbeat::default(), Timestamp(at));
            let name = (id.clone(), one.id.clone());
            signs.record(name, report, Some(one.last_seen), Heartbeat::default);
        };
        beat(130);
        assert_eq!(signs.due.lock().len(), 0, "30 ms behind");
        beat(145);
        beat(150);
        assert_eq!(signs.due.lock().len(), 1, "45 ms behind, and once");
        assert_eq!(signs.last_sign_of(&id, &one), Timestamp(150));
        signs.drop_silent(Timestamp(200));
        assert_eq!(signs.last_sign_of(&id, &one), Timestamp(150), "it is due");
        assert_eq!(signs.last_sign_of(&id, &row("one", 160)), Timestamp(160));
        assert_eq!(signs.last_sign_of(&id, &row("two", 7)), Timestamp(7));
    }
}
