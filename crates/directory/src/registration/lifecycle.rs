//! Lifecycle of a workspace: pause, resume and removal by operators; departure of its agent or of an instance, drain
//! and card updates by the agent (`docs/reference/http-api.md`).

use std::time::Duration;

use serde_json::value::RawValue;

use super::change::{Registrations, is_reachable};
use super::urls::check_card;
use crate::rejections::{conflict, no_instance, not_found, workspace_removed};
use access::workspace::{
    Liveness, RemoveOutcome, Settings, Status, StoredInstance, Surroundings, Workspace,
    WorkspaceChange,
};
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::rejection::Rejection;
use kernel::time::Timestamp;
use stores::store::{Run, Unavailable};

impl Registrations {
    /// True if the agent of a workspace lives. If the lease cannot be read, the last sign of life counts.
    pub(super) async fn is_alive(&self, workspace: &Workspace) -> bool {
        let lease = self.presence.leases.read(&workspace.id).await;
        self.is_alive_by(workspace, lease.ok().flatten())
    }

    /// As [`Registrations::is_alive`], with the lease as it was read.
    fn is_alive_by(&self, workspace: &Workspace, lease: Option<Duration>) -> bool {
        let last_seen = self.heartbeats.last_sign_of(workspace);
        let doubt = || {
            let leases = &self.presence.leases;
            leases.benefit_of_doubt(last_seen, Timestamp::now())
        };
        lease.or_else(doubt).is_some()
    }

    /// Pauses the workspace: no message reaches it until it is resumed. A paused workspace stays paused.
    ///
    /// # Errors
    /// `workspace_not_found`, `workspace_removed`, `store_unavailable`.
    pub async fn pause(&self, id: &WorkspaceId, run: Run) -> Result<Workspace, Rejection> {
        let pause = |settings: &mut Settings, _: &Workspace, _: &Surroundings| {
            settings.status = Status::Paused;
            Ok(())
        };
        let changed = self.change_in_place(id, run, pause).await?;
        Ok(self.heartbeats.as_of_now(changed.after))
    }

    /// Resumes a paused workspace: online if it lives, else offline or not yet registered. A workspace that is
    /// not paused stays as it is; one with assumed liveness comes online from any status.
    ///
    /// # Errors
    /// `conflict` if only its registration can bring it back; `workspace_not_found`, `workspace_removed`,
    /// `store_unavailable`.
    pub async fn resume(&self, id: &WorkspaceId, run: Run) -> Result<Workspace, Rejection> {
        // If the lease cannot be read, the last sign of life counts.
        let lease = self.presence.leases.read(id).await.ok().flatten();
        let resume = |settings: &mut Settings, workspace: &Workspace, _: &Surroundings| {
            let lives = self.is_alive_by(workspace, lease);
            settings.status = status_after_resume(workspace, settings, lives)?;
            Ok(())
        };
        let changed = self.change_in_place(id, run, resume).await?;
        Ok(self.heartbeats.as_of_now(changed.after))
    }

    /// Deregisters the agent with all of its instances: offline until it registers again. A status set by an operator
    /// or a provisioner stays.
    ///
    /// # Errors
    /// `workspace_not_found`, `workspace_removed`, `store_unavailable`.
    pub async fn deregister(&self, id: &WorkspaceId) -> Result<(), Rejection> {
        let mut ended = Vec::new();
        let leave = |settings: &mut Settings, workspace: &Workspace, around: &Surroundings| {
            if workspace.liveness == Liveness::Heartbeat {
                ended.clone_from(&around.instances);
            }
            clear_registration(settings, workspace);
            Ok(())
        };
        let changed = self.change_in_place(id, Run::Real, leave).await?;
        self.withdraw(&changed, &ended).await
    }

    /// Deregisters one instance; it may have left before. With the last one the workspace goes offline, as by
    /// [`Registrations::deregister`]. It goes offline, too, if all that are left are silent; each of them brings it
    /// back with its next heartbeat.
    ///
    /// # Errors
    /// `workspace_not_found`, `workspace_removed`, `store_unavailable`.
    pub async fn deregister_instance(
        &self,
        id: &WorkspaceId,
        instance: &InstanceId,
    ) -> Result<(), Rejection> {
        let rows = self.workspaces.instances.find_all(id).await?;
        // If the leases cannot be read, all of them count as alive.
        let silent = self.silent_of(id, rows).await.unwrap_or_default();
        let (mut ended, mut left) = (Vec::new(), Vec::new());
        let (mut is_last, mut all_silent) = (false, false);
        let leave_one = |settings: &mut Settings, workspace: &Workspace, around: &Surroundings| {
            let all = around.instances.iter().cloned();
            let (one, others): (Vec<_>, Vec<_>) = all.partition(|one| one.id == *instance);
            let Some(url) = one.first().map(|one| one.url.clone()) else {
                return Ok(());
            };
            let must_beat = workspace.liveness == Liveness::Heartbeat;
            if must_beat {
                ended = one;
            }
            is_last = others.is_empty();
            if is_last {
                clear_registration(settings, workspace);
                return Ok(());
            }
            if workspace.url.as_ref() == Some(&url) {
                // The one that was seen last, preferably one that does not drain.
                let last = |one: &&StoredInstance| (!one.is_draining, one.last_seen);
                if let Some(one) = others.iter().max_by_key(last) {
                    settings.url = Some(one.url.clone());
                    settings.internal_url.clone_from(&one.internal_url);
                }
            }
            all_silent = must_beat && others.iter().all(|one| is_among(one, &silent));
            if all_silent && workspace.status.is_up() {
                settings.status = Status::Offline;
            }
            left.clone_from(&others);
            settings.instances = Some(others);
            Ok(())
        };
        let changed = self.change_in_place(id, Run::Real, leave_one).await?;
        let after = &changed.after;
        // An earlier departure of the last one may have left its keys.
        let has_left = after.status == Status::Offline && after.url.is_none();
        if is_last || has_left {
            return self.withdraw(&changed, &ended).await;
        }
        let urls = [Some(&after.url), Some(&after.internal_url)];
        let done = async {
            self.end_leases(id, &ended).await?;
            if all_silent {
                self.fall_silent(&changed, left).await?;
            }
            if after.url != changed.before.url {
                self.presence.write_urls(id, urls).await?;
                self.presence.catch_up(after).await?;
            }
            Ok(())
        };
        done.await.map_err(|why: Rejection| why.after_commit(false))
    }

    /// Returns those of `instances` without a lease.
    async fn silent_of(
        &self,
        id: &WorkspaceId,
        instances: Vec<StoredInstance>,
    ) -> Result<Vec<StoredInstance>, Unavailable> {
        if instances.is_empty() {
            return Ok(instances);
        }
        let (leases, now) = (&self.presence.leases, Timestamp::now());
        let names = instances.iter().map(|one| (id, Some(&one.id)));
        let renewed = leases.renewal_times(names, now).await?;
        let is_silent = |one: &StoredInstance| {
            let last_sign = self.heartbeats.instances.last_sign_of(id, one);
            leases.benefit_of_doubt(Some(last_sign), now).is_none()
        };
        let silent = instances.into_iter().zip(renewed);
        let silent = silent.filter(|(one, renewed)| renewed.is_none() && is_silent(one));
        Ok(silent.map(|(one, _)| one).collect())
    }

    /// Ends the lease of a workspace whose instances were `left` silent, unless one of them came back meanwhile.
    async fn fall_silent(
        &self,
        changed: &WorkspaceChange,
        left: Vec<StoredInstance>,
    ) -> Result<(), Rejection> {
        let (id, count) = (&changed.after.id, left.len());
        self.presence.leases.delete(id).await?;
        if self.silent_of(id, left).await?.len() == count {
            return Ok(());
        }
        self.presence
            .leases
            .renew(id, &[], Timestamp::now())
            .await?;
        if !changed.before.status.is_up() {
            return Ok(());
        }
        // A heartbeat that read "online" just before did not change the row. Its lease counts now.
        let revive = |settings: &mut Settings, workspace: &Workspace, around: &Surroundings| {
            if workspace.status == Status::Offline && !around.instances.is_empty() {
                settings.status = Status::Online;
            }
            Ok(())
        };
        self.change_in_place(id, Run::Real, revive).await.map(drop)
    }

    /// Lets an instance drain: it gets only calls that are bound to it, until it deregisters, lapses or registers
    /// again.
    ///
    /// # Errors
    /// `workspace_not_found` (also if there is no such instance), `workspace_removed`, `conflict` (its instances are
    /// the addresses of a name), `store_unavailable`.
    pub async fn drain(&self, id: &WorkspaceId, instance: &InstanceId) -> Result<(), Rejection> {
        let workspace = self.workspaces.find(id).await?.ok_or_else(not_found)?;
        if workspace.status == Status::Removed {
            return Err(workspace_removed());
        }
        if workspace.resolves_each() {
            return Err(conflict(
                "the instances of the workspace are the addresses of its name (resolve): take the address out of the \
                 name, and it gets no calls within 15 s",
            ));
        }
        let drains = self
            .workspaces
            .instances
            .set_draining(id, instance, true)
            .await;
        self.announcer.invalidate_after(id, &drains).await;
        drains?.then_some(()).ok_or_else(no_instance)
    }

    /// Deletes the URL keys and the leases of a workspace whose agent has left.
    async fn withdraw(
        &self,
        changed: &WorkspaceChange,
        ended: &[StoredInstance],
    ) -> Result<(), Rejection> {
        let id = &changed.after.id;
        let done = async {
            self.presence.withdraw(id).await?;
            self.end_leases(id, ended).await?;
            self.presence.catch_up(&changed.after).await
        };
        done.await.map_err(|why| why.after_commit(false))
    }

    /// Deletes the leases of instances whose rows are deleted. One that has a row again keeps its lease: its next
    /// process registered in between.
    pub(crate) async fn end_leases(
        &self,
        id: &WorkspaceId,
        ended: &[StoredInstance],
    ) -> Result<(), Rejection> {
        if ended.is_empty() {
            return Ok(());
        }
        let ids: Vec<&InstanceId> = ended.iter().map(|one| &one.id).collect();
        let leases = &self.presence.leases;
        leases.end_instances(id, &ids).await?;
        // Read after the deletion: a registration writes its row before its lease, so one that is not found now grants
        // its lease later.
        let rows = self.workspaces.instances.find_all(id).await?;
        let back = rows.iter().map(|row| &row.id);
        let back: Vec<&InstanceId> = back.filter(|one| ids.contains(one)).collect();
        if !back.is_empty() {
            leases.renew(id, &back, Timestamp::now()).await?;
            self.announcer.invalidate(id).await;
        }
        Ok(())
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
        Err(found.map_or_else(not_found, |_| workspace_removed()))
    }

    /// Removes the workspace. Its row stays; the caller revokes its tokens.
    ///
    /// # Errors
    /// `workspace_removed` if it was removed before (remains of that removal are cleared now);
    /// `workspace_not_found`, `store_unavailable`.
    pub async fn remove(&self, id: &WorkspaceId, run: Run) -> Result<(), Rejection> {
        let outcome = self.workspaces.remove(id, Timestamp::now(), run).await;
        if run.is_dry() {
            return match outcome? {
                RemoveOutcome::Unknown => Err(not_found()),
                RemoveOutcome::Before => Err(workspace_removed()),
                RemoveOutcome::Now(_) => Ok(()),
            };
        }
        self.announcer.invalidate_lineage_after(id, &outcome).await;
        let outcome = outcome?;
        match &outcome {
            RemoveOutcome::Unknown => return Err(not_found()),
            RemoveOutcome::Now(line) => self.announcer.announce_removal(id, line),
            RemoveOutcome::Before => {}
        }
        let dropped = self.presence.withdraw(id).await;
        match outcome {
            RemoveOutcome::Now(_) => {
                dropped.map_err(|away| Rejection::from(away).after_commit(false))
            }
            RemoveOutcome::Before | RemoveOutcome::Unknown => {
                Err(dropped.map_or_else(Rejection::from, |()| workspace_removed()))
            }
        }
    }
}

pub(super) fn status_after_resume(
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

fn clear_registration(settings: &mut Settings, workspace: &Workspace) {
    if workspace.liveness == Liveness::Heartbeat {
        settings.url = None;
        settings.internal_url = None;
        // The instances of an agent with assumed liveness are an operator's, and stay.
        if workspace.instances > 0 {
            settings.instances = Some(Vec::new());
        }
    }
    if matches!(
        workspace.status,
        Status::Online | Status::Degraded | Status::Provisioning
    ) {
        settings.status = Status::Offline;
    }
}

/// True if `instances` has this instance, with the same registration.
fn is_among(one: &StoredInstance, instances: &[StoredInstance]) -> bool {
    let is_same =
        |other: &StoredInstance| (&other.id, other.registered_at) == (&one.id, one.registered_at);
    instances.iter().any(is_same)
}
