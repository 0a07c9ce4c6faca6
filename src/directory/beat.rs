//! Heartbeats (`docs/reference/http-api.md`, "`POST /registry/heartbeat`"): they renew the lease, and change
//! the status if needed. In steady state a heartbeat costs one write to the shared state and none to SQL.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::entry::{Entry, must_beat, not_found, removed};
use super::validate::invalid;
use super::{Directory, URL_TTL};
use crate::coherence::Invalidation;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::store::Unavailable;
use crate::workspace::{DeliveryMode, Seen, Status, Timestamp, Workspace};

/// Error rate from which a workspace is degraded.
const DEGRADED_FROM: f64 = 0.5;
/// Error rate below which a degraded workspace is online again. Between the two rates the status does not
/// change.
pub(super) const WELL_BELOW: f64 = 0.1;
/// Longest description of the current task, in characters. A longer one is cut, not rejected: it is a label,
/// and a heartbeat must not fail for it.
const TASK_CHARS_MAX: usize = 1024;
/// Longest sample of an error in an event, in characters.
const SAMPLE_CHARS_MAX: usize = 512;
/// Maximum attempts of a heartbeat to change a status that concurrent writers change, too.
const ATTEMPTS_MAX: usize = 3;

/// Body of a heartbeat.
#[derive(Clone, Debug, Default)]
pub struct Beat {
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

/// Result of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beaten {
    /// Time until which the next heartbeat is due.
    pub expires_in: Duration,
    /// Status before.
    pub from: Status,
    /// Status after.
    pub to: Status,
}

impl Directory {
    /// Records a heartbeat. While the shared state is away it counts on this replica, and on other replicas by
    /// way of SQL.
    ///
    /// # Errors
    /// `invalid_params`, `workspace_not_found` (answered with `reregister`),
    /// `workspace_removed`, `store_unavailable`.
    pub async fn beat(&self, id: &WorkspaceId, beat: &Beat) -> Result<Beaten, Rejection> {
        // NaN is out of range, too.
        if beat
            .error_rate
            .is_some_and(|rate| !(0.0..=1.0).contains(&rate))
        {
            return Err(invalid("error_rate must be between 0 and 1"));
        }
        let now = Timestamp::now();
        let mut entry = match self.entry(id).await {
            Ok(entry) => entry,
            Err(refusal) => {
                // The status is unknown without SQL. The heartbeat still proves that the agent lives.
                self.renew(id, now).await;
                return Err(refusal);
            }
        };
        // Renew the lease first: the writer of a lapse reads the lease again afterwards.
        live(entry.workspace.as_ref())?;
        let began = Instant::now();
        let renewed = self.renew(id, now).await;
        if entry.has_lapsed() {
            // A replica may have recorded the lapse before the lease was renewed. The row decides.
            entry = self.look_again(id).await?;
        }
        for _ in 0..ATTEMPTS_MAX {
            let workspace = live(entry.workspace.as_ref())?;
            let (from, to) = (
                workspace.status,
                next_status(workspace, entry.urls.host.is_some(), beat),
            );
            if self.moved(workspace, to, beat, now).await? {
                entry.extend(began, self.leases.ttl());
                self.tell_beat(workspace, beat, now);
                // If the lease cannot be renewed, neither can the keys.
                if renewed && entry.claim_url_renewal() && !self.renew_urls(workspace, to).await {
                    entry.url_renewal_failed();
                }
                let expires_in = self.leases.ttl();
                return Ok(Beaten {
                    expires_in,
                    from,
                    to,
                });
            }
            // A concurrent writer changed it.
            entry = self.look_again(id).await?;
        }
        Err(Rejection::new(
            Reason::Conflict,
            "the workspace's status changes too fast; send the next heartbeat as usual",
        ))
    }

    /// Reads the row again, on every replica: the change may have been committed after the store's answer timed
    /// out, so that no replica was notified.
    async fn look_again(&self, id: &WorkspaceId) -> Result<Arc<Entry>, Rejection> {
        self.coherence
            .invalidate(Invalidation::Workspace(id.clone()))
            .await;
        self.entry(id).await
    }

    /// Renews the lease. False if the shared state does not answer.
    async fn renew(&self, id: &WorkspaceId, now: Timestamp) -> bool {
        let renewed = self.leases.renew(id, now).await;
        if let Err(error) = &renewed {
            tracing::debug!(%error, workspace.id = %id, "failed to renew a lease; the heartbeat goes to SQL");
        }
        renewed.is_ok()
    }

    /// Writes changes to the row, if there are any; false if the row has another status.
    async fn moved(
        &self,
        workspace: &Workspace,
        to: Status,
        beat: &Beat,
        now: Timestamp,
    ) -> Result<bool, Unavailable> {
        let id = &workspace.id;
        let timeout = beat.idle_timeout_seconds.map(|s| (s > 0).then_some(s));
        let timeout = timeout.filter(|new| *new != workspace.idle_timeout_seconds);
        if workspace.status == to && timeout.is_none() {
            return Ok(true);
        }
        if workspace.status != to {
            let set = self
                .workspaces
                .set_status(id, workspace.status, to, now)
                .await;
            self.doubt(id, now, &set).await;
            if !set? {
                return Ok(false);
            }
            self.tell_status_with(id, to, why(to, beat));
        }
        let timed = match timeout {
            Some(seconds) => self.workspaces.set_idle_timeout(id, seconds, now).await,
            None => Ok(()),
        };
        self.forget(id, false, &timed).await;
        timed?;
        if workspace.status != to {
            self.tell_if_overtaken(id, to).await;
        }
        Ok(true)
    }

    /// Renews the URL keys: an existing key keeps its value, which may be another program's; a missing key gets
    /// the registered URL. `status`: the row's status after this heartbeat. Best effort, since SQL has the
    /// URLs, too; true if the keys were renewed.
    async fn renew_urls(&self, workspace: &Workspace, status: Status) -> bool {
        let id = &workspace.id;
        if workspace.delivery_mode == DeliveryMode::Poll {
            return true;
        }
        let keys = [self.url_key.key(id), self.internal_url_key.key(id)];
        let there = self.shared.refresh(&[&keys[0], &keys[1]], URL_TTL).await;
        let Ok(there) = there else { return false };
        let own = [&workspace.url, &workspace.internal_url];
        let mut brought_back = false;
        for ((key, there), own) in keys.iter().zip(there).zip(own) {
            let Some(url) = own.as_deref().filter(|_| !there) else {
                continue;
            };
            // Another program may be writing the key at the same time: its value takes precedence.
            match self.shared.set_if_absent(key, url, URL_TTL).await {
                Ok(written) => brought_back |= written,
                Err(_) => return false,
            }
        }
        if brought_back {
            // The key may be missing because the agent deregistered. Then the row has that status.
            let written = Workspace {
                status,
                ..workspace.clone()
            };
            return self.catch_up(&written).await.is_ok();
        }
        true
    }
}

impl Entry {
    /// True if its status is online, but its lease has ended.
    pub(super) fn has_lapsed(&self) -> bool {
        let beats = self.workspace.as_ref().is_some_and(must_beat);
        beats && (self.pulse == super::entry::Pulse::Lapsed || !self.is_alive())
    }
}

fn live(workspace: Option<&Workspace>) -> Result<&Workspace, Rejection> {
    match workspace {
        None => Err(not_found()),
        Some(workspace) if workspace.status == Status::Removed => Err(removed()),
        Some(workspace) => Ok(workspace),
    }
}

/// Returns the status after a heartbeat. A heartbeat proves life. It does not undo a change by an operator; a
/// workspace that hibernates or restarts comes back by registering.
fn next_status(workspace: &Workspace, has_url: bool, beat: &Beat) -> Status {
    let error_rate = beat.error_rate.unwrap_or(0.0);
    let trouble = beat.wedged || error_rate >= DEGRADED_FROM;
    let calm = !trouble && error_rate < WELL_BELOW;
    let reachable = has_url || workspace.delivery_mode == DeliveryMode::Poll;
    match workspace.status {
        Status::Offline | Status::Provisioning if !reachable => workspace.status,
        Status::Online | Status::Offline | Status::Provisioning if trouble => Status::Degraded,
        Status::Offline | Status::Provisioning => Status::Online,
        Status::Degraded if calm => Status::Online,
        same => same,
    }
}

/// Returns the further members of the event of a change to `to`.
fn why(to: Status, beat: &Beat) -> Value {
    let mut why = json!({});
    if to == Status::Degraded {
        why["error_rate"] = json!(beat.error_rate.unwrap_or(0.0));
        if beat.wedged {
            why["runtime_state"] = json!("wedged");
        }
        if let Some(sample) = &beat.sample_error {
            why["sample_error"] = json!(printable(sample, SAMPLE_CHARS_MAX));
        }
    }
    why
}

/// Returns at most `max` characters of `text`, without control characters.
fn printable(text: &str, max: usize) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    printable.take(max).collect()
}

impl Beat {
    /// Returns the values that are stored of a heartbeat.
    pub(super) fn seen(&self, id: &WorkspaceId, now: Timestamp) -> Seen {
        Seen {
            id: id.clone(),
            last_seen: now,
            active_tasks: self.active_tasks,
            current_task: self.current_task.as_deref().map(|task| {
                // PostgreSQL does not store NUL in text.
                task.chars()
                    .filter(|c| *c != '\0')
                    .take(TASK_CHARS_MAX)
                    .collect()
            }),
        }
    }
}
