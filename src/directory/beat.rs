//! Heartbeats (contract §4.2): renew the lease, and move the status where it changes. In steady state
//! one write to the shared state and none to SQL.

use std::time::Duration;

use super::entry::{Entry, must_beat, not_found, removed};
use super::intake::invalid;
use super::{Directory, URL_TTL};
use crate::coherence::Invalidation;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::store::Unavailable;
use crate::workspace::{DeliveryMode, Seen, Status, Timestamp, Workspace};

/// From here on a workspace is in trouble …
const DEGRADED_FROM: f64 = 0.5;
/// … and below this it is well again. In between it stays what it is.
const WELL_BELOW: f64 = 0.1;
/// Longest description of the current task that is kept, in characters. It is a label for people, so
/// a longer one is cut rather than refused: a heartbeat must not fail for it.
const TASK_CHARS_MAX: usize = 1024;
/// Status changes that a heartbeat tries when others change it too.
const ATTEMPTS_MAX: usize = 3;

/// What a heartbeat says.
#[derive(Clone, Debug, Default)]
pub struct Beat {
    /// Share of failed calls, 0 to 1. `None` counts as none failed: an agent that never reports a rate
    /// would otherwise stay degraded for ever once it was wedged.
    pub error_rate: Option<f64>,
    /// `runtime_state` is `wedged`.
    pub wedged: bool,
    /// How many tasks it has.
    pub active_tasks: u32,
    /// What it is working on.
    pub current_task: Option<String>,
    /// Longest silence in its answers, in seconds. `None` keeps what was said before, 0 takes it back.
    pub idle_timeout_seconds: Option<u32>,
}

/// What a heartbeat did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beaten {
    /// When the next one is due at the latest.
    pub expires_in: Duration,
    /// The status before.
    pub from: Status,
    /// The status now.
    pub to: Status,
}

impl Directory {
    /// Takes in a heartbeat. While the shared state is away it counts here, and for the other replicas
    /// by way of SQL.
    ///
    /// # Errors
    /// `invalid_params`, `workspace_not_found` (to be answered with `reregister`),
    /// `workspace_removed`, `store_unavailable`.
    pub async fn beat(&self, id: &WorkspaceId, beat: &Beat) -> Result<Beaten, Rejection> {
        // Also what is not a number is outside.
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
                // Its status cannot be told without SQL. That it lives is proven, and outlasts that.
                self.renew(id, now).await;
                return Err(refusal);
            }
        };
        // The lease first: whoever notes a lapse looks at it again afterwards.
        live(entry.workspace.as_ref())?;
        self.renew(id, now).await;
        for _ in 0..ATTEMPTS_MAX {
            let workspace = live(entry.workspace.as_ref())?;
            let (from, to) = (
                workspace.status,
                next_status(workspace, entry.urls.host.is_some(), beat),
            );
            if self.moved(workspace, to, beat, now).await? {
                self.news.note(seen(id, beat, now));
                entry.extend(self.leases.ttl());
                if entry.has_lapsed() {
                    // It lapsed on paper nowhere, so nobody is told that it is back but this cache;
                    // others look again within a second.
                    let revived = Invalidation::Workspace(id.clone());
                    self.coherence.apply(&revived).await;
                }
                self.refresh_urls(workspace).await;
                let expires_in = self.leases.ttl();
                return Ok(Beaten {
                    expires_in,
                    from,
                    to,
                });
            }
            // Somebody else moved it: look again.
            self.coherence
                .apply(&Invalidation::Workspace(id.clone()))
                .await;
            entry = self.entry(id).await?;
        }
        Err(Rejection::new(
            Reason::Conflict,
            "the workspace's status changes too fast; send the next heartbeat as usual",
        ))
    }

    async fn renew(&self, id: &WorkspaceId, now: Timestamp) {
        if let Err(error) = self.leases.renew(id, now).await {
            tracing::debug!(%error, workspace.id = %id, "a heartbeat reached no lease; it goes to SQL");
        }
    }

    /// Writes down what changed, if anything; false when it is not as we knew it.
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
        if workspace.status != to
            && !self
                .workspaces
                .set_status(id, workspace.status, to, now)
                .await?
        {
            return Ok(false);
        }
        if let Some(seconds) = timeout {
            self.workspaces.set_idle_timeout(id, seconds, now).await?;
        }
        self.coherence
            .invalidate(Invalidation::Workspace(id.clone()))
            .await;
        Ok(true)
    }

    /// Keeps the URL keys alive: with the value they have, which may be another program's, else with
    /// what was registered. Only every few minutes; best effort, since SQL has the URLs too.
    async fn refresh_urls(&self, workspace: &Workspace) {
        let id = &workspace.id;
        if workspace.delivery_mode == DeliveryMode::Poll || self.refreshed.contains_key(id) {
            return;
        }
        self.refreshed.insert(id.clone(), ()).await;
        let keys = [self.url_key.key(id), self.internal_url_key.key(id)];
        let found = self.shared.get_many(&[&keys[0], &keys[1]]).await;
        let Ok(found) = found else { return };
        let own = [&workspace.url, &workspace.internal_url];
        for ((key, found), own) in keys.iter().zip(found).zip(own) {
            let Some(url) = found.or_else(|| own.clone()) else {
                continue;
            };
            if let Err(error) = self.shared.set(key, &url, Some(URL_TTL)).await {
                tracing::debug!(%error, workspace.id = %id, "a URL key was not refreshed");
            }
        }
    }

    /// Writes down what heartbeats said since the last time. Every few seconds, and at the end.
    ///
    /// # Errors
    /// When SQL does not answer; nothing is lost, the next call writes it.
    pub async fn flush_last_seen(&self) -> Result<(), Unavailable> {
        self.news.flush(&self.workspaces).await
    }

    /// Notes that a workspace lapsed, unless a heartbeat came in between. Best effort: whoever comes
    /// next, the sweep at the latest, does it again.
    pub(super) async fn note_lapse(&self, id: &WorkspaceId) -> bool {
        let now = Timestamp::now();
        match self.workspaces.lapse(id, now).await {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                tracing::debug!(%error, workspace.id = %id, "a lapse was not noted");
                return false;
            }
        }
        // A heartbeat that saw "online" just before has left it at that. It is heard now.
        if let Ok(super::lease::Lease::Held(_)) = self.leases.read(id).await {
            let revived = self
                .workspaces
                .set_status(id, Status::Offline, Status::Online, now);
            if let Err(error) = revived.await {
                tracing::debug!(%error, workspace.id = %id, "the next heartbeat will revive it");
            }
        } else {
            tracing::info!(workspace.id = %id, "Workspace offline: its heartbeat lapsed");
        }
        self.coherence
            .invalidate(Invalidation::Workspace(id.clone()))
            .await;
        true
    }
}

impl Entry {
    /// Whether it is online on paper, and dead by its lease.
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

/// Where a heartbeat moves a workspace. It proves life; it does not undo what an operator did, and
/// one that is put to sleep or restarted comes back by registering.
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

fn seen(id: &WorkspaceId, beat: &Beat, now: Timestamp) -> Seen {
    Seen {
        id: id.clone(),
        last_seen: now,
        active_tasks: beat.active_tasks,
        current_task: beat.current_task.as_deref().map(|task| {
            // PostgreSQL keeps no NUL in text.
            task.chars()
                .filter(|c| *c != '\0')
                .take(TASK_CHARS_MAX)
                .collect()
        }),
    }
}
