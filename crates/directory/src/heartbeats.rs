//! Heartbeats (`docs/reference/http-api.md`, "`POST /registry/heartbeat`"): they renew the lease, and change
//! the status if needed. In steady state a heartbeat costs one write to the shared state and none to SQL.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::core::Core;
use super::liveness::Heartbeat;
use super::rejections::{invalid, not_found, workspace_removed};
use super::resolution::{CachedInstance, Entries, Entry};
use crate::events::{Event, Kind};
use access::workspace::{DeliveryMode, Liveness, Status, StoredInstance, Workspace};
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::store::Unavailable;

/// Error rate from which a workspace is degraded.
const DEGRADED_FROM: f64 = 0.5;

/// Error rate below which a degraded workspace is online again. Between the two rates the status does not
/// change.
const WELL_BELOW: f64 = 0.1;

/// Longest description of the current task, in characters. A longer one is cut, not rejected: it is a label,
/// and a heartbeat must not fail for it.
const TASK_CHARS_MAX: usize = 1024;

/// Longest sample of an error in an event, in characters.
const SAMPLE_CHARS_MAX: usize = 512;

/// Retention of heartbeats in the buffer, in TTLs of leases.
const BUFFER_TTLS: u32 = 2;

/// Maximum attempts of a heartbeat to change a status that concurrent writers change, too.
const ATTEMPTS_MAX: usize = 3;

/// Result of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatResult {
    /// Time until which the next heartbeat is due.
    pub expires_in: Duration,
    /// Status before.
    pub from: Status,
    /// Status after.
    pub to: Status,
}

/// Records heartbeats, and other signs of life.
pub struct Heartbeats {
    pub(super) entries: Arc<Entries>,
    pub(super) core: Arc<Core>,
}

impl Heartbeats {
    /// Records a heartbeat. While the shared state is away it counts on this replica, and on other replicas by
    /// way of SQL.
    ///
    /// # Errors
    /// `invalid_params`, `workspace_not_found` (answered with `reregister`),
    /// `workspace_removed`, `store_unavailable`.
    pub async fn record(
        &self,
        id: &WorkspaceId,
        beat: &Heartbeat,
    ) -> Result<HeartbeatResult, Rejection> {
        // NaN is out of range, too.
        if beat
            .error_rate
            .is_some_and(|rate| !(0.0..=1.0).contains(&rate))
        {
            return Err(invalid("error_rate must be between 0 and 1"));
        }
        let now = Timestamp::now();
        let mut entry = match self.entries.get(id).await {
            Ok(entry) => entry,
            Err(refusal) => {
                // The status is unknown without SQL. The heartbeat still proves that the agent lives.
                self.renew_lease(id, beat.instance.as_ref(), now).await;
                return Err(refusal);
            }
        };
        // Renew the lease first: the writer of a lapse reads the lease again afterwards.
        let workspace = require_existing(entry.workspace.as_ref())?;
        let known = entry.instance_of(workspace, beat.instance.as_ref())?;
        let instance = known.map(|one| one.row.id.clone());
        let drained = self.lapsed_in_drain(id, known, now).await;
        let began = Instant::now();
        let renewed = self.renew_lease(id, instance.as_ref(), now).await;
        if let Some(instance) = drained.filter(|_| renewed) {
            self.end_drain(workspace, instance).await;
        }
        if drained.is_some() || entry.has_lapsed() {
            // A replica may have recorded the lapse before the lease was renewed. The row decides.
            entry = self.reload_entry(id).await?;
        }
        for _ in 0..ATTEMPTS_MAX {
            let workspace = require_existing(entry.workspace.as_ref())?;
            let known = entry.instance_of(workspace, beat.instance.as_ref())?;
            let of_all = known.map(|known| self.of_all(&entry, workspace, known, beat));
            let of_all = of_all.as_ref().unwrap_or(beat);
            let (from, to) = (
                workspace.status,
                next_status(workspace, entry.urls.host.is_some(), of_all),
            );
            if self.write_changes(workspace, to, of_all).await? {
                entry.extend(began, self.core.presence.leases.ttl());
                self.core.slots.let_try(id, instance.as_ref(), began);
                self.announce_heartbeat(workspace, of_all, now);
                // An entry without it is loaded again, on every replica, unless the lease could not be written.
                if let Some(known) = known
                    && !entry.extend_instance(known, began, self.core.presence.leases.ttl())
                    && renewed
                {
                    self.end_drain(workspace, known).await;
                    self.core.announcer.invalidate(id).await;
                }
                // If the lease cannot be renewed, neither can the keys.
                if renewed
                    && entry.claim_url_renewal()
                    && !self.core.presence.renew_urls(workspace, to).await
                {
                    entry.url_renewal_failed();
                }
                let expires_in = self.core.presence.leases.ttl();
                return Ok(HeartbeatResult {
                    expires_in,
                    from,
                    to,
                });
            }
            // A concurrent writer changed it.
            entry = self.reload_entry(id).await?;
        }
        Err(Rejection::new(
            Reason::Conflict,
            "the workspace's status changes too fast; send the next heartbeat as usual",
        ))
    }

    /// Returns the heartbeat of a workspace with instances: that of the healthiest of those that send theirs here, and
    /// the tasks of all of them. Otherwise each heartbeat of another instance would change the row.
    fn of_all(
        &self,
        entry: &Entry,
        workspace: &Workspace,
        instance: &CachedInstance,
        beat: &Heartbeat,
    ) -> Heartbeat {
        let (id, now) = (&workspace.id, Timestamp::now());
        let heard = &self.core.heartbeats.instances;
        let name = |row: &StoredInstance| (id.clone(), row.id.clone());
        let (row, report) = (&instance.row, (beat.clone(), now));
        heard.record(name(row), report, Some(row.last_seen), || beat.clone());
        let live_since = now.before(self.core.presence.leases.ttl());
        let mut all = Heartbeat {
            error_rate: Some(1.0),
            wedged: true,
            active_tasks: 0,
            current_task: None,
            ..beat.clone()
        };
        for one in &entry.instances {
            let said = heard.get(&name(&one.row));
            if let Some((said, _)) = said.filter(|(_, at)| *at >= live_since) {
                let rate = match said.wedged {
                    true => 1.0,
                    false => said.error_rate.unwrap_or(0.0),
                };
                all.error_rate = all.error_rate.map(|best| best.min(rate));
                all.wedged &= said.wedged;
                all.active_tasks = all.active_tasks.saturating_add(said.active_tasks);
                all.current_task = all.current_task.or(said.current_task);
            } else if one.is_alive() {
                // Another replica may hear from a healthier one. Between the two rates, and as well, the status stays.
                all.error_rate = all.error_rate.map(|best| best.min(WELL_BELOW));
                all.wedged = false;
            }
        }
        all
    }

    /// Returns the instance if it drains and has no lease. The store is asked, since the entry may be older than the
    /// lapse.
    async fn lapsed_in_drain<'i>(
        &self,
        id: &WorkspaceId,
        instance: Option<&'i CachedInstance>,
        now: Timestamp,
    ) -> Option<&'i CachedInstance> {
        let instance = instance.filter(|one| one.row.is_draining)?;
        let leases = &self.core.presence.leases;
        let renewed = leases.renewal_time(id, Some(&instance.row.id), now);
        let has_lapsed = matches!(renewed.await, Ok(None)) && leases.doubt_left().is_zero();
        has_lapsed.then_some(instance)
    }

    /// Ends the drain of an instance that lapsed. Best effort.
    async fn end_drain(&self, workspace: &Workspace, instance: &CachedInstance) {
        let (id, row) = (&workspace.id, &instance.row);
        if !row.is_draining {
            return;
        }
        let ended = self
            .core
            .workspaces
            .instances
            .set_draining(id, &row.id, false)
            .await;
        if let Err(error) = ended {
            tracing::debug!(%error, workspace.id = %id, "failed to end the drain of an instance that lapsed");
        }
    }

    /// Publishes a heartbeat, and a change of its tasks.
    fn announce_heartbeat(&self, workspace: &Workspace, beat: &Heartbeat, now: Timestamp) {
        let id = &workspace.id;
        let current_task = beat.current_task.as_deref().map(|task| {
            // PostgreSQL does not store NUL in text.
            let text = task.chars().filter(|c| *c != '\0');
            text.take(TASK_CHARS_MAX).collect::<String>()
        });
        let report = ((beat.active_tasks, current_task.clone()), now);
        let first = || (workspace.active_tasks, workspace.current_task.clone());
        let heard = &self.core.heartbeats.workspaces;
        if heard.record(id.clone(), report, workspace.last_seen, first) {
            let payload = json!({"current_task": current_task, "active_tasks": beat.active_tasks});
            self.core
                .events
                .publish(Event::new(Kind::TaskUpdated, id, payload));
        }
        if self.core.events.has_readers() {
            let payload =
                json!({"active_tasks": beat.active_tasks, "uptime_seconds": beat.uptime_seconds});
            let event = Event::new(Kind::WorkspaceHeartbeat, id, payload);
            self.core.events.publish(event);
        }
    }

    /// Reads the row again, on every replica: the change may have been committed after the store's answer timed
    /// out, so that no replica was notified.
    async fn reload_entry(&self, id: &WorkspaceId) -> Result<Arc<Entry>, Rejection> {
        self.core.announcer.invalidate(id).await;
        self.entries.get(id).await
    }

    /// Renews the lease, and that of the instance. False if the shared state does not answer.
    async fn renew_lease(
        &self,
        id: &WorkspaceId,
        instance: Option<&InstanceId>,
        now: Timestamp,
    ) -> bool {
        let leases = &self.core.presence.leases;
        let renewed = leases.renew(id, instance.as_slice(), now).await;
        if let Err(error) = &renewed {
            tracing::debug!(%error, workspace.id = %id, "failed to renew a lease; the heartbeat goes to SQL");
        }
        renewed.is_ok()
    }

    /// Writes changes to the row, if there are any; false if the row has another status.
    async fn write_changes(
        &self,
        workspace: &Workspace,
        to: Status,
        beat: &Heartbeat,
    ) -> Result<bool, Unavailable> {
        let id = &workspace.id;
        // Later than the renewal of the lease: see `LAPSE`.
        let now = Timestamp::now();
        let timeout = beat.idle_timeout_seconds.map(|s| (s > 0).then_some(s));
        let timeout = timeout.filter(|new| *new != workspace.idle_timeout_seconds);
        if workspace.status == to && timeout.is_none() {
            return Ok(true);
        }
        if workspace.status != to {
            let set = self
                .core
                .workspaces
                .set_status(id, workspace.status, to, now)
                .await;
            self.core.announcer.resolve_doubt(id, now, &set).await;
            if !set? {
                return Ok(false);
            }
            let payload = status_payload(to, beat);
            self.core.announcer.announce_status_with(id, to, payload);
        }
        let timed = match timeout {
            Some(seconds) => {
                self.core
                    .workspaces
                    .set_idle_timeout(id, seconds, now)
                    .await
            }
            None => Ok(()),
        };
        self.core.announcer.invalidate_after(id, &timed).await;
        timed?;
        if workspace.status != to {
            self.core.announcer.announce_if_overtaken(id, to).await;
        }
        Ok(true)
    }

    /// Records a request of a polling agent to its inbox: it counts as a heartbeat without tasks and errors. Best
    /// effort.
    pub async fn record_poll(&self, id: &WorkspaceId) {
        let Ok(entry) = self.entries.get(id).await else {
            return;
        };
        let polls = entry.workspace.as_ref().filter(|workspace| {
            workspace.delivery_mode == DeliveryMode::Poll
                && workspace.liveness == Liveness::Heartbeat
        });
        let Some(workspace) = polls else {
            return;
        };
        let (active_tasks, current_task) = match self.core.heartbeats.workspaces.get(id) {
            Some((tasks, _)) => tasks,
            None => (workspace.active_tasks, workspace.current_task.clone()),
        };
        let beat = Heartbeat {
            // Between the two rates: a degraded workspace stays degraded.
            error_rate: Some(WELL_BELOW),
            active_tasks,
            current_task,
            ..Heartbeat::default()
        };
        if let Err(refusal) = self.record(id, &beat).await {
            let reason = refusal.reason.as_str();
            tracing::debug!(workspace.id = %id, reason, "failed to record a sign of life; the next one will retry");
        }
    }

    /// Writes the queued heartbeats. Runs every second.
    ///
    /// # Errors
    /// When SQL does not answer; the heartbeats stay queued.
    pub async fn flush(&self) -> Result<(), Unavailable> {
        self.core.heartbeats.flush(&self.core.workspaces).await
    }

    /// Writes all heartbeats, at shutdown.
    ///
    /// # Errors
    /// When SQL does not answer.
    pub async fn flush_all(&self) -> Result<(), Unavailable> {
        self.core.heartbeats.queue_all();
        self.flush().await
    }

    /// Drops silent workspaces from the buffer. Runs now and then.
    pub fn drop_silent(&self) {
        let kept = self.core.presence.leases.ttl() * BUFFER_TTLS;
        self.core
            .heartbeats
            .drop_silent(Timestamp::now().before(kept));
    }
}

fn require_existing(workspace: Option<&Workspace>) -> Result<&Workspace, Rejection> {
    match workspace {
        None => Err(not_found()),
        Some(workspace) if workspace.status == Status::Removed => Err(workspace_removed()),
        Some(workspace) => Ok(workspace),
    }
}

/// Returns the status after a heartbeat. A heartbeat proves life, so it ends a hibernation, too. It does not undo
/// another change by an operator; a workspace that restarts comes back by registering.
fn next_status(workspace: &Workspace, has_url: bool, beat: &Heartbeat) -> Status {
    let error_rate = beat.error_rate.unwrap_or(0.0);
    let trouble = beat.wedged || error_rate >= DEGRADED_FROM;
    let calm = !trouble && error_rate < WELL_BELOW;
    let reachable = has_url || workspace.delivery_mode == DeliveryMode::Poll;
    match workspace.status {
        Status::Offline | Status::Provisioning | Status::Hibernated if !reachable => {
            workspace.status
        }
        Status::Online | Status::Offline | Status::Provisioning | Status::Hibernated if trouble => {
            Status::Degraded
        }
        Status::Offline | Status::Provisioning | Status::Hibernated => Status::Online,
        Status::Degraded if calm => Status::Online,
        same => same,
    }
}

/// Returns the further members of the event of a change to `to`.
fn status_payload(to: Status, beat: &Heartbeat) -> Value {
    let mut payload = json!({});
    if to == Status::Degraded {
        payload["error_rate"] = json!(beat.error_rate.unwrap_or(0.0));
        if beat.wedged {
            payload["runtime_state"] = json!("wedged");
        }
        if let Some(sample) = &beat.sample_error {
            let printable = sample.chars().filter(|c| !c.is_control());
            payload["sample_error"] = json!(printable.take(SAMPLE_CHARS_MAX).collect::<String>());
        }
    }
    payload
}
