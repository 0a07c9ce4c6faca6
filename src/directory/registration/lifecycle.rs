//! Lifecycle of a workspace: pause, resume and removal by operators, deregistration and card updates by the
//! agent (`docs/reference/http-api.md`).

use serde_json::value::RawValue;

use super::change::{Registrations, is_reachable};
use super::validate::check_card;
use crate::directory::liveness::Lease;
use crate::directory::rejections::{conflict, not_found, removed};
use crate::ids::WorkspaceId;
use crate::rejection::Rejection;
use crate::time::Timestamp;
use crate::workspace::{Liveness, Removed, Settings, Status, Surroundings, Workspace};

impl Registrations {
    /// Pauses the workspace: no message reaches it until it is resumed. A paused workspace stays paused.
    ///
    /// # Errors
    /// `workspace_not_found`, `workspace_removed`, `store_unavailable`.
    pub async fn pause(&self, id: &WorkspaceId) -> Result<Workspace, Rejection> {
        let pause = |workspace: &Workspace, _: &Surroundings| {
            let mut settings = Settings::of(workspace);
            settings.status = Status::Paused;
            Ok(settings)
        };
        let changed = self.alter_in_place(id, pause).await?;
        Ok(self.heartbeats.as_of_now(changed.after))
    }

    /// Resumes a paused workspace: online if it lives, else offline or not yet registered. A workspace that is
    /// not paused stays as it is; one with assumed liveness comes online from any status.
    ///
    /// # Errors
    /// `conflict` if only its registration can bring it back; `workspace_not_found`, `workspace_removed`,
    /// `store_unavailable`.
    pub async fn resume(&self, id: &WorkspaceId) -> Result<Workspace, Rejection> {
        // If the lease cannot be read, the last sign of life counts.
        let lease = self.presence.leases.read(id).await;
        let resume = |workspace: &Workspace, _: &Surroundings| {
            let held = matches!(lease, Ok(Lease::Held(_)));
            let last_seen = self.heartbeats.last_sign_of(workspace);
            let doubtful = self
                .presence
                .leases
                .benefit_of_doubt(last_seen, Timestamp::now());
            let mut settings = Settings::of(workspace);
            settings.status = resumed(workspace, &settings, held || doubtful.is_some())?;
            Ok(settings)
        };
        let changed = self.alter_in_place(id, resume).await?;
        Ok(self.heartbeats.as_of_now(changed.after))
    }

    /// Deregisters the agent: offline until it registers again. A status set by an operator or a provisioner
    /// stays.
    ///
    /// # Errors
    /// `workspace_not_found`, `workspace_removed`, `store_unavailable`.
    pub async fn deregister(&self, id: &WorkspaceId) -> Result<(), Rejection> {
        let leave = |workspace: &Workspace, _: &Surroundings| {
            let mut settings = Settings::of(workspace);
            if workspace.liveness == Liveness::Heartbeat {
                settings.url = None;
                settings.internal_url = None;
            }
            if matches!(
                workspace.status,
                Status::Online | Status::Degraded | Status::Provisioning
            ) {
                settings.status = Status::Offline;
            }
            Ok(settings)
        };
        let changed = self.alter_in_place(id, leave).await?;
        let done = match self.presence.withdraw(id).await {
            Ok(()) => self.presence.catch_up(&changed.after).await,
            Err(away) => Err(away.into()),
        };
        done.map_err(|why| why.after_commit(false))
    }

    /// Replaces the card.
    ///
    /// # Errors
    /// `invalid_params`, `workspace_not_found`, `workspace_removed`, `store_unavailable`.
    pub async fn update_card(&self, id: &WorkspaceId, card: &RawValue) -> Result<(), Rejection> {
        check_card(card)?;
        let updated = self.workspaces.set_card(id, card, Timestamp::now()).await;
        self.announcer.invalidate_after(id, &updated).await;
        if updated? {
            let found = self.workspaces.find(id).await;
            let found = found.map_err(|away| Rejection::from(away).after_commit(false));
            let mut workspace = found?.ok_or_else(not_found)?;
            workspace.agent_card = Some(card.to_owned());
            self.announce_card(workspace).await;
            return Ok(());
        }
        let found = self.workspaces.find(id).await?;
        Err(found.map_or_else(not_found, |_| removed()))
    }

    /// Removes the workspace. Its row stays; the caller revokes its tokens.
    ///
    /// # Errors
    /// `workspace_removed` if it was removed before (remains of that removal are cleared now);
    /// `workspace_not_found`, `store_unavailable`.
    pub async fn remove(&self, id: &WorkspaceId) -> Result<(), Rejection> {
        let outcome = self.workspaces.remove(id, Timestamp::now()).await;
        self.announcer.invalidate_lineage_after(id, &outcome).await;
        let outcome = outcome?;
        match &outcome {
            Removed::Unknown => return Err(not_found()),
            Removed::Now(line) => self.announcer.announce_removal(id, line),
            Removed::Before => {}
        }
        let dropped = self.presence.withdraw(id).await;
        match outcome {
            Removed::Now(_) => dropped.map_err(|away| Rejection::from(away).after_commit(false)),
            Removed::Before | Removed::Unknown => {
                Err(dropped.map_or_else(Rejection::from, |()| removed()))
            }
        }
    }
}

fn resumed(
    workspace: &Workspace,
    settings: &Settings,
    is_alive: bool,
) -> Result<Status, Rejection> {
    let assumed = workspace.liveness == Liveness::Assumed;
    let never_came = workspace.agent_card.is_none() && workspace.last_seen.is_none();
    match workspace.status {
        up @ (Status::Online | Status::Degraded) => Ok(up),
        _ if assumed && is_reachable(settings) => Ok(Status::Online),
        Status::Paused if is_alive && is_reachable(settings) => Ok(Status::Online),
        Status::Paused if never_came => Ok(Status::Provisioning),
        Status::Paused => Ok(Status::Offline),
        same @ (Status::Offline | Status::Provisioning) => Ok(same),
        Status::Failed | Status::Hibernated | Status::Restarting | Status::Removed => {
            Err(conflict(
                "the workspace is not paused, but failed, hibernated or restarting: it comes back when its agent registers",
            ))
        }
    }
}
