//! Changes of a workspace by operators, and by org tokens within their org (`docs/reference/http-api.md`,
//! "`PATCH /workspaces/{id}`"). A change is atomic: checked and written in one transaction. Then the shared
//! state is written, and every cache is invalidated; a failure there is returned, and repeating the request
//! completes the change.

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::registrar::Recheck;
use super::tree_rules::{Editor, apply_move};
use super::urls::{check_label, check_urls, settle_resolve, settle_urls};
use crate::address::{Addresses, Resolver};
use crate::announcer::Announcer;
use crate::liveness::{HeartbeatBuffer, Presence};
use crate::probing::{parse_probe, require_probed};
use crate::rejections::{conflict, invalid, not_found, workspace_removed};
use crate::resolution::{AgentOptions, called_at};
use crate::upstream::{UpstreamAuth, UpstreamTls, require_https};
use crate::views::Views;
use crate::waking::Wake;
use access::workspace::{
    DeliveryMode, Liveness, Move, Origins, SealedTls, Settings, SettingsPatch, Status, StoredProbe,
    StoredWake, Surroundings, Workspace, WorkspaceChange, WorkspaceSettings, Workspaces,
    credential_base, is_base_of_operator,
};
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::rejection::Rejection;
use kernel::time::Timestamp;
use stores::store::Run;
use trust::{Seal, SealedSecret};

/// Requested change, or the settings of a new workspace: a patch, with what its members say.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The patch.
    pub patch: SettingsPatch,
    /// New parent and org.
    pub place: Move,
    /// Credential with which the gateway calls the agent.
    pub upstream_auth: Option<Option<UpstreamAuth>>,
    /// TLS towards the agent.
    pub upstream_tls: Option<Option<UpstreamTls>>,
    /// Waker of the agent while it sleeps.
    pub wake: Option<Option<Wake>>,
    /// Probe of the agent, for assumed liveness.
    pub probe: Option<Option<StoredProbe>>,
    /// Second check of the editor.
    pub recheck: Option<Recheck>,
}

impl Change {
    /// Reads a patch.
    ///
    /// # Errors
    /// `invalid_workspace_id`, `invalid_params`.
    pub fn parse(patch: SettingsPatch) -> Result<Self, Rejection> {
        Ok(Self {
            place: Move {
                parent_id: try_map(&patch.parent_id, |id| Ok(WorkspaceId::parse(id)?))?,
                org: patch.org.clone(),
            },
            upstream_auth: try_map(&patch.upstream_auth, |json| UpstreamAuth::parse(json))?,
            upstream_tls: try_map(&patch.upstream_tls, |json| UpstreamTls::parse(json))?,
            wake: try_map(&patch.wake, |json| Wake::parse(json))?,
            probe: try_map(&patch.probe, parse_probe)?,
            patch,
            recheck: None,
        })
    }
}

/// Converts a value, if there is one that is no `null`.
fn try_map<S, T>(
    said: &Option<Option<S>>,
    convert: impl FnOnce(&S) -> Result<T, Rejection>,
) -> Result<Option<Option<T>>, Rejection> {
    let said = said
        .as_ref()
        .map(|said| said.as_ref().map(convert).transpose());
    said.transpose()
}

/// Change with checked URLs and a sealed credential.
pub(super) struct VettedChange<'a> {
    change: &'a Change,
    pub(super) url: Option<Option<String>>,
    pub(super) internal_url: Option<Option<String>>,
    pub(super) card_url: Option<Option<String>>,
    pub(super) urls: Option<Option<Vec<String>>>,
    pub(super) origins: Origins,
    pub(super) upstream_auth: Option<Option<SealedSecret>>,
    upstream_tls: Option<Option<SealedTls>>,
    wake: Option<Option<StoredWake>>,
}

/// Registers agents, and changes workspaces.
pub struct Registrations {
    pub(crate) workspaces: Workspaces,
    pub(crate) seal: Arc<Seal>,
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) presence: Arc<Presence>,
    pub(crate) heartbeats: Arc<HeartbeatBuffer>,
    pub(crate) announcer: Arc<Announcer>,
    pub(crate) views: Arc<Views>,
    pub(crate) card_reader: OnceLock<CardReader>,
}

/// Begins to read the card of the agent of a workspace.
pub(crate) type CardReader = Box<dyn Fn(&WorkspaceId) + Send + Sync>;

impl Registrations {
    /// Sets what reads the cards of agents that are added or changed. Set once.
    pub fn set_card_reader(&self, read: impl Fn(&WorkspaceId) + Send + Sync + 'static) {
        let _ = self.card_reader.set(Box::new(read));
    }

    /// Has the card of an agent that was added or changed read, if calls to it need that.
    pub(super) fn read_card_of(&self, workspace: &Workspace) {
        let takes_calls =
            workspace.status == Status::Online && workspace.delivery_mode == DeliveryMode::Push;
        if let Some(read) = self.card_reader.get().filter(|_| takes_calls) {
            let options = AgentOptions::from_workspace(workspace, &self.views.core.config.get());
            if workspace.url.is_none() || !options.has_card {
                read(&workspace.id);
            }
        }
    }

    /// Changes the workspace and returns its new state.
    ///
    /// # Errors
    /// `invalid_params`, `address_forbidden`, `agent_unreachable`, `workspace_not_found`,
    /// `workspace_removed`, `not_permitted` (a move by a caller that is not an operator), `conflict` (a parent
    /// that is not possible; a status while it is paused), `store_unavailable`.
    pub async fn change(
        &self,
        id: &WorkspaceId,
        change: &Change,
        editor: Editor,
        run: Run,
    ) -> Result<Workspace, Rejection> {
        check(change)?;
        let began = Instant::now();
        let vetted = self.vet_change(id, change, editor).await?;
        Recheck::run(change.recheck.as_ref()).await?;
        let judge = |workspace: &Workspace, around: &Surroundings| {
            decide_settings(workspace, around, &vetted, editor)
        };
        let changed = self
            .apply_change(id, &change.place, &vetted.origins, run, judge)
            .await?;
        if run.is_dry() {
            return Ok(self.heartbeats.as_of_now(changed.after));
        }
        let published = self.publish_change(&vetted, &changed).await;
        // The keys come before SQL, so entries that were loaded in between are stale.
        self.announcer.invalidate(id).await;
        let done = match published {
            Ok(()) if vetted.has_urls() => self.presence.catch_up(&changed.after).await,
            published => published,
        };
        done.map_err(|why| why.after_commit(false))?;
        if vetted.has_urls() {
            // At another place the agent may be well.
            self.views.core.slots.reset_target(id, None, began);
            self.views.resolution.learnt.forget_place(id).await;
        }
        self.read_card_of(&changed.after);
        Ok(self.heartbeats.as_of_now(changed.after))
    }

    /// Applies `judge` to the row, and publishes the result unless it is a dry run.
    pub(super) async fn apply_change(
        &self,
        id: &WorkspaceId,
        wanted: &Move,
        origins: &Origins,
        run: Run,
        judge: impl FnOnce(&Workspace, &Surroundings) -> Result<Settings, Rejection>,
    ) -> Result<WorkspaceChange, Rejection> {
        let now = Timestamp::now();
        let new_status = AtomicBool::new(false);
        let pauses = AtomicBool::new(false);
        let judge = |workspace: &Workspace, around: &Surroundings| {
            if workspace.status == Status::Removed {
                return Err(workspace_removed());
            }
            let settings = judge(workspace, around)?;
            let changes = settings.status != workspace.status;
            new_status.store(changes, Ordering::Relaxed);
            let paused = [settings.status, workspace.status].contains(&Status::Paused);
            pauses.store(changes && paused, Ordering::Relaxed);
            Ok(settings)
        };
        let outcome = self
            .workspaces
            .change(id, wanted, origins, (now, run), judge)
            .await;
        if run.is_dry() {
            return outcome??.ok_or_else(not_found);
        }
        if let Ok(Ok(Some(changed))) = &outcome {
            self.announcer.announce_change(changed);
        }
        if !matches!(outcome, Ok(Err(_))) {
            self.announcer.invalidate_left(origins, run, &outcome).await;
            // Also if the store did not answer in time: the row may have been changed. A pause is part of the
            // place that decides about calls.
            if !wanted.is_empty() || pauses.load(Ordering::Relaxed) {
                self.announcer.invalidate_lineage_after(id, &outcome).await;
            } else {
                self.announcer.invalidate_after(id, &outcome).await;
            }
        }
        if new_status.load(Ordering::Relaxed) && outcome.is_err() {
            self.announcer.announce_status_if_made(id, now);
        }
        let changed = outcome??.ok_or_else(not_found)?;
        if changed.before.status != changed.after.status {
            let status = changed.after.status;
            self.announcer.announce_if_overtaken(id, status).await;
        }
        Ok(changed)
    }

    /// As [`Registrations::apply_change`], without a change of place and URLs: `edit` gets the present settings.
    pub(super) async fn change_in_place(
        &self,
        id: &WorkspaceId,
        run: Run,
        edit: impl FnOnce(&mut Settings, &Workspace, &Surroundings) -> Result<(), Rejection>,
    ) -> Result<WorkspaceChange, Rejection> {
        let judge = |workspace: &Workspace, around: &Surroundings| {
            let mut settings = Settings::from_workspace(workspace);
            edit(&mut settings, workspace, around)?;
            Ok(settings)
        };
        self.apply_change(id, &Move::default(), &Origins::default(), run, judge)
            .await
    }

    /// Publishes a new card. It has no URLs of the agent, so that access to them need not be checked for each
    /// reader.
    pub(super) async fn announce_card(&self, mut workspace: Workspace) {
        let cards = slice::from_mut(&mut workspace);
        self.views.redact_cards(cards, |_| true).await;
        self.announcer.announce_card(&workspace);
    }

    pub(super) async fn vet_change<'a>(
        &self,
        id: &WorkspaceId,
        change: &'a Change,
        editor: Editor,
    ) -> Result<VettedChange<'a>, Rejection> {
        let patch = &change.patch;
        let may_share = editor == Editor::Operator;
        let said = [&patch.url, &patch.internal_url, &patch.card_url];
        let said = said.map(|url| url.as_ref().and_then(Option::as_deref));
        let list = patch.urls.as_ref().and_then(Option::as_deref);
        let list = list.unwrap_or_default();
        let urls = self.addresses.vet_urls(id, said, list, may_share).await?;
        let wake = match &change.wake {
            Some(Some(wake)) => {
                let url = self.addresses.vet_waker(&wake.shown.url).await?;
                Some(Some(wake.seal(&self.seal, id, url)?))
            }
            said => said.as_ref().map(|_| None),
        };
        Ok(VettedChange {
            change,
            url: patch.url.as_ref().map(|_| urls.url),
            internal_url: patch.internal_url.as_ref().map(|_| urls.internal_url),
            card_url: patch.card_url.as_ref().map(|_| urls.card_url),
            urls: patch
                .urls
                .as_ref()
                .map(|said| said.as_ref().map(|_| urls.urls)),
            origins: urls.origins,
            upstream_auth: try_map(&change.upstream_auth, |auth| auth.seal(&self.seal, id))?,
            upstream_tls: try_map(&change.upstream_tls, |tls| tls.seal(&self.seal, id))?,
            wake,
        })
    }

    /// Writes the changed URL keys, and a lease if the workspace must send heartbeats from now on.
    pub(super) async fn publish_change(
        &self,
        vetted: &VettedChange<'_>,
        changed: &WorkspaceChange,
    ) -> Result<(), Rejection> {
        let (id, after) = (&changed.after.id, &changed.after);
        let urls = if vetted.urls.is_some() {
            [Some(&after.url), Some(&after.internal_url)]
        } else {
            [vetted.url.as_ref(), vetted.internal_url.as_ref()]
        };
        self.presence.write_urls(id, urls).await?;
        let must_beat = changed.after.liveness == Liveness::Heartbeat;
        if must_beat && changed.before.liveness == Liveness::Assumed {
            let instances = match after.instances {
                0 => Vec::new(),
                _ => self.workspaces.instances.find_all(id).await?,
            };
            let instances: Vec<&InstanceId> = instances.iter().map(|one| &one.id).collect();
            let leases = &self.presence.leases;
            leases.renew(id, &instances, Timestamp::now()).await?;
        }
        Ok(())
    }
}

/// Runs the checks that need no row.
pub(super) fn check(change: &Change) -> Result<(), Rejection> {
    let patch = &change.patch;
    let labels = [
        ("name", patch.name.as_ref()),
        ("role", patch.role.as_ref().and_then(Option::as_ref)),
        ("org", patch.org.as_ref().and_then(Option::as_ref)),
    ];
    for (name, label) in labels {
        label.map_or(Ok(()), |label| check_label(name, label))?;
    }
    if let Some(Some(urls)) = &patch.urls {
        check_urls(urls)?;
        if patch.url.is_some() || patch.internal_url.is_some() {
            return Err(invalid(
                "urls takes the place of url and internal_url: leave them out",
            ));
        }
    }
    if patch.max_concurrent == Some(Some(0)) {
        return Err(invalid("max_concurrent must be at least 1, or null"));
    }
    match patch.status {
        Some(Status::Online | Status::Degraded) => Err(invalid(
            "status cannot be set to online or degraded: registrations and heartbeats do that, and resume",
        )),
        Some(Status::Paused) => Err(invalid(
            "status cannot be set to paused: POST /workspaces/{id}/pause does that",
        )),
        Some(Status::Removed) => Err(invalid(
            "status cannot be set to removed: DELETE /workspaces/{id} does that",
        )),
        _ => Ok(()),
    }
}

impl VettedChange<'_> {
    pub(super) fn has_urls(&self) -> bool {
        self.url.is_some() || self.internal_url.is_some() || self.urls.is_some()
    }

    /// Sets all settings that the change says, apart from the place.
    pub(super) fn apply_to(&self, settings: &mut WorkspaceSettings) {
        settings.apply_plain(&self.change.patch);
        set_if_given(&mut settings.url, &self.url);
        set_if_given(&mut settings.internal_url, &self.internal_url);
        set_if_given(&mut settings.card_url, &self.card_url);
        set_if_given(&mut settings.upstream_auth, &self.upstream_auth);
        set_if_given(&mut settings.upstream_tls, &self.upstream_tls);
        set_if_given(&mut settings.wake, &self.wake);
        set_if_given(&mut settings.probe, &self.change.probe);
    }
}

pub(super) fn decide_settings(
    workspace: &Workspace,
    around: &Surroundings,
    vetted: &VettedChange<'_>,
    editor: Editor,
) -> Result<Settings, Rejection> {
    let change = vetted.change;
    let mut settings = Settings::from_workspace(workspace);
    apply_move(workspace, around, &change.place, editor, &mut settings)?;
    vetted.apply_to(&mut settings);
    let patch = &change.patch;
    let new_kind = patch.liveness.is_some() || patch.delivery_mode.is_some();
    if settings.probe.is_some() && (new_kind || change.probe.is_some()) {
        require_probed(settings.liveness, settings.delivery_mode)?;
    }
    settle_urls(
        workspace,
        &around.instances,
        patch,
        vetted.urls.as_ref(),
        &mut settings,
    )?;
    settle_resolve(workspace, patch, &settings)?;
    let says_url = patch.url.is_some() || patch.urls.is_some();
    settle_credential(workspace, around, vetted, editor, &mut settings);
    if says_url || patch.card_url.is_some() || patch.upstream_tls.is_some() {
        let has_tls = settings.upstream_tls.is_some();
        let url = called_at(&settings.url, &settings.card_url, settings.liveness);
        require_https(has_tls, url)?;
        for one in settings.instances.iter().flatten() {
            require_https(has_tls, Some(&one.url))?;
        }
    }
    let assumed_now = settings.liveness == Liveness::Assumed
        && workspace.liveness != Liveness::Assumed
        && is_reachable(&settings);
    settings.status = match (patch.status, workspace.status) {
        (Some(status), Status::Paused) if status != Status::Paused => {
            return Err(conflict(
                "the workspace is paused: POST /workspaces/{id}/resume first",
            ));
        }
        (Some(status), _) => status,
        (None, Status::Offline | Status::Provisioning) if assumed_now => Status::Online,
        (None, before) => before,
    };
    let said = says_url || patch.card_url.is_some() || new_kind;
    let needed = settings.liveness == Liveness::Assumed || settings.status.is_up();
    if said && needed && !is_reachable(&settings) {
        return Err(invalid(
            "delivery_mode push needs the url at which the agent listens, or with liveness assumed its \
             card_url: say one, too, or poll",
        ));
    }
    Ok(settings)
}

/// Settles the place of the credential: where its agent is when it is set, and until then where it was. A change of
/// the agent's URL moves no credential; one that waits for a place gets the first that an operator names.
fn settle_credential(
    workspace: &Workspace,
    around: &Surroundings,
    vetted: &VettedChange<'_>,
    editor: Editor,
    settings: &mut Settings,
) {
    let by_operator = editor == Editor::Operator;
    let change = vetted.change;
    let sets = change.upstream_auth.is_some();
    // Of the address that is called others may have set a part, so it counts only where the credential is set.
    let named = [&vetted.url, &vetted.card_url].map(|url| url.as_ref().and_then(Option::as_deref));
    let first = vetted.urls.iter().flatten().flatten().next();
    let named = named[0].or(first.map(String::as_str)).or(named[1]);
    let waits = workspace.upstream_auth_base.is_none() && by_operator;
    let named = match sets {
        true => called_at(&settings.url, &settings.card_url, settings.liveness),
        false => named.filter(|_| waits),
    };
    if !sets && named.is_none() {
        return;
    }
    let named = named.map(|url| credential_base(url, by_operator));
    let old = workspace.upstream_auth_base.as_ref();
    let old = old.filter(|_| workspace.upstream_auth.is_some());
    let old = old.filter(|place| !by_operator || is_base_of_operator(place));
    let place = named.or_else(|| old.cloned());
    settings.upstream_auth_base = place.filter(|_| settings.upstream_auth.is_some());
    if sets && settings.upstream_auth.is_some() && workspace.instances > 0 {
        // It is for the servers of all present instances.
        let instances = settings.instances.take();
        let mut instances = instances.unwrap_or_else(|| around.instances.clone());
        instances.iter_mut().for_each(|one| one.has_auth = true);
        settings.instances = Some(instances);
    }
}

fn set_if_given<T: Clone>(setting: &mut T, said: &Option<T>) {
    if let Some(said) = said {
        setting.clone_from(said);
    }
}

/// True if messages can be delivered: it has a URL or an inbox.
pub(super) fn is_reachable(settings: &WorkspaceSettings) -> bool {
    settings.delivery_mode == DeliveryMode::Poll
        || called_at(&settings.url, &settings.card_url, settings.liveness).is_some()
}
