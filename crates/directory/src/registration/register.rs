//! Registration and creation of workspaces (`docs/reference/http-api.md`). Writes SQL, then the shared state,
//! then invalidates every cache; a failure in between is returned, and repeating the request completes it.

use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::change::{Change, Registrations, VettedChange, check, decide_settings};
use super::lifecycle::status_after_resume;
use super::registrar::{
    Recheck, Registrar, build_creation, check_registrar, foreign_workspace, is_foreign, mode_of,
    not_registered, require_still_own,
};
use super::tree_rules::{Editor, org_below, require_within};
use super::urls::{check_card, instances_at, is_listed, require_resolvable};
use crate::address::Endpoint;
use crate::probing::require_probed;
use crate::rejections::{invalid, workspace_id_taken, workspace_removed};
use crate::resolution::{JsonRpc, called_at, card_text};
use crate::upstream::require_https;
use access::identity::NewEnrolment;
use access::workspace::{
    CallerProof, CreateOutcome, DeliveryMode, InstanceRegistration, Liveness, Move, NewWorkspace,
    Origins, RegistrationUpdate, Resolve, Settings, Status, Step, StoredInstance, Surroundings,
    Workspace, WorkspaceChange, WorkspaceSettings, credential_base, default_instance,
};
use kernel::ids::{InstanceId, WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::Rejection;
use kernel::time::Timestamp;
use stores::store::Run;

/// Registration of an agent.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Workspace to register.
    pub id: WorkspaceId,
    /// Instance that registers; `None`: the one agent, or in a workspace with instances `default`.
    pub instance: Option<InstanceId>,
    /// URL of its agent. Required for `push`.
    pub url: Option<String>,
    /// URL on the agents' own network.
    pub internal_url: Option<String>,
    /// Card of the agent.
    pub agent_card: Box<RawValue>,
    /// Delivery mode; `None` keeps the current one, or `push` for a new workspace.
    pub delivery_mode: Option<DeliveryMode>,
    /// Proof in the tokens that it gets with calls; `None` keeps the current one.
    pub proof: Option<CallerProof>,
    /// Second check of the registrar.
    pub recheck: Option<Recheck>,
}

/// Result of a registration.
#[derive(Clone, Debug)]
pub struct RegistrationResult {
    /// The workspace after the registration.
    pub workspace: Workspace,
    /// True if the workspace was created.
    pub created: bool,
    /// Mismatch between its URL and its card.
    pub warning: Option<&'static str>,
}

/// Workspace to create.
#[derive(Clone, Debug)]
pub struct Creation {
    /// Id of the workspace.
    pub id: WorkspaceId,
    /// Its settings, a name among them. Without an org it belongs to that of its parent.
    pub change: Change,
    /// The root of the subtree that it must be in: of the org token that creates it.
    pub within: Option<WorkspaceIncarnation>,
    /// Enrolment token that is stored with it.
    pub enrolment: Option<NewEnrolment>,
    /// Creator of the workspace.
    pub editor: Editor,
}

impl Creation {
    /// Returns the creation of a workspace by an operator, without an enrolment token.
    pub fn by_operator(id: WorkspaceId, change: Change) -> Self {
        Self {
            id,
            change,
            within: None,
            enrolment: None,
            editor: Editor::Operator,
        }
    }
}

impl Registrations {
    /// Registers an agent and sets the workspace online, unless it is paused: a pause ends by
    /// [`Registrations::resume`] only.
    ///
    /// # Errors
    /// `invalid_params`, `address_forbidden`, `agent_unreachable` (the URL's name has no address),
    /// `workspace_not_found`, `workspace_removed`, `not_permitted` and `conflict` (a move),
    /// `store_unavailable`.
    pub async fn register(
        &self,
        registration: &Registration,
        registrar: &Registrar,
    ) -> Result<RegistrationResult, Rejection> {
        check_card(&registration.agent_card)?;
        if let Some(done) = self.try_register(registration, registrar).await? {
            return Ok(done);
        }
        // A concurrent request created it. It exists now, and stays.
        let again = self.try_register(registration, registrar).await?;
        again.ok_or_else(workspace_id_taken)
    }

    /// `None` if the workspace did not exist, and was created by a concurrent request.
    async fn try_register(
        &self,
        registration: &Registration,
        registrar: &Registrar,
    ) -> Result<Option<RegistrationResult>, Rejection> {
        let found = self.workspaces.find(&registration.id).await?;
        // For an org token a workspace that it does not look after does not exist, in each check: its creation fails.
        let foreign = is_foreign(&self.workspaces, registrar, found.as_ref()).await?;
        let found = found.filter(|_| !foreign);
        let mode = mode_of(registration, found.as_ref())?;
        let terms = registrar.terms();
        let (name, place) = check_registrar(found.as_ref(), registrar)?;
        let has_tls = found.as_ref().is_some_and(|w| w.upstream_tls.is_some());
        let is_operator = matches!(registrar, Registrar::Operator(_));
        let urls = [
            registration.url.as_deref(),
            registration.internal_url.as_deref(),
            terms.and_then(|terms| terms.card_url.as_deref()),
        ];
        let urls = self
            .addresses
            .vet_urls(&registration.id, urls, &[], is_operator)
            .await?;
        Recheck::run(registration.recheck.as_ref()).await?;
        require_still_own(&self.workspaces, registrar, (&registration.id, foreign)).await?;
        require_https(has_tls, urls.url.as_deref())?;
        let named = urls.url.as_deref().filter(|_| is_operator);
        let named = named.map(|url| credential_base(url, true));
        let moved = place.is_some();
        if let Some(place) = place {
            let change = Change {
                place,
                ..Change::default()
            };
            self.change(&registration.id, &change, Editor::Operator, Run::Real)
                .await?;
        }
        let created = found.is_none();
        if created {
            let creation = build_creation(&registration.id, mode, registrar);
            let mut vetted = self.vet_new(&creation).await?;
            (vetted.url, vetted.internal_url) =
                (Some(urls.url.clone()), Some(urls.internal_url.clone()));
            (vetted.card_url, vetted.origins) = (Some(urls.card_url.clone()), urls.origins.clone());
            // In one transaction with its origins, so that a rejection leaves no workspace behind.
            match self.write_new(&creation, &vetted, Run::Real).await? {
                CreateOutcome::Done(_) => {}
                CreateOutcome::Taken if foreign => return Err(foreign_workspace()),
                CreateOutcome::Taken => return Ok(None),
                CreateOutcome::OriginTaken(taken) => return Err(taken.into()),
            }
        }
        let change = RegistrationUpdate {
            delivery_mode: mode,
            url: urls.url,
            internal_url: urls.internal_url,
            agent_card: Some(registration.agent_card.clone()),
            name,
            liveness: terms.and_then(|terms| terms.liveness),
            card_url: urls.card_url,
            origins: urls.origins,
            upstream_auth_base: named,
            proof: registration.proof,
            instance: InstanceRegistration {
                id: registration.instance.clone(),
                by_operator: is_operator,
                live_since: Timestamp::now().before(self.presence.leases.seen_within()),
            },
        };
        let old_card = found.as_ref().and_then(|w| w.agent_card.as_deref());
        let online = self.bring_online(&registration.id, &change, old_card).await;
        let workspace = online.map_err(|why| match created || moved {
            true => why.after_commit(true),
            false => why,
        })?;
        let warning = self.warn_of_mismatch(&workspace);
        Ok(Some(RegistrationResult {
            workspace,
            created,
            warning,
        }))
    }

    async fn bring_online(
        &self,
        id: &WorkspaceId,
        change: &RegistrationUpdate,
        old_card: Option<&RawValue>,
    ) -> Result<Workspace, Rejection> {
        let (now, began) = (Timestamp::now(), Instant::now());
        let registered = self.workspaces.register(id, change, now).await;
        self.announcer.resolve_doubt(id, now, &registered).await;
        let left = &change.origins;
        self.announcer
            .invalidate_left(left, Run::Real, &registered)
            .await;
        let registered = registered?
            .map_err(not_registered)?
            .ok_or_else(workspace_removed)?;
        let (workspace, instance) = (registered.workspace, registered.instance);
        // An operator vouches for an instance.
        let is_vouched = instance.is_some() && change.instance.by_operator;
        let url = workspace.url.as_deref().filter(|_| !is_vouched);
        if workspace.upstream_auth.is_some()
            && url.is_some_and(|url| !workspace.has_credential_for(url))
        {
            tracing::warn!(workspace.id = %id, "The agent registered at another host or port than its upstream_auth was \
                set for; it is withheld until an operator sets it again (PATCH /workspaces/{{id}})");
        }
        let said = instance.as_ref().map(InstanceId::as_str);
        let payload = said.map_or_else(|| json!({}), |said| json!({"instance_id": said}));
        self.announcer
            .announce_status_with(id, workspace.status, payload);
        if let Some(card) = &workspace.agent_card
            && old_card.map(RawValue::get) != Some(card.get())
        {
            self.announce_card(workspace.clone()).await;
        }
        let mut shared = self.presence.publish(&workspace).await;
        if shared.is_ok()
            && workspace.status == Status::Paused
            && workspace.liveness == Liveness::Heartbeat
        {
            // The agent lives, so that the workspace is online once it is resumed.
            shared = self.presence.leases.renew(id, &[], now).await;
        }
        if shared.is_ok()
            && let Some(instance) = &instance
        {
            // The agent that registered without an id is alive; it counts as an instance from now on.
            let first = registered.made_default.then(default_instance);
            let alive: Vec<&InstanceId> = first.iter().chain([instance]).collect();
            shared = self.presence.leases.renew(id, &alive, now).await;
        }
        // The row has changed, even if the write to the shared state failed.
        self.announcer.invalidate(id).await;
        let done = match shared {
            Ok(()) => self.presence.catch_up(&workspace).await,
            Err(away) => Err(away.into()),
        };
        done.map_err(|why| why.after_commit(false))?;
        self.views
            .core
            .slots
            .reset_target(id, instance.as_ref(), began);
        self.views.resolution.learnt.forget_place(id).await;
        self.read_card_of(&workspace);
        let status = workspace.status;
        self.announcer.announce_if_overtaken(id, status).await;
        Ok(workspace)
    }

    /// Creates a workspace. It waits for its agent to register, unless its liveness is assumed.
    ///
    /// # Errors
    /// `invalid_workspace_id`, `invalid_params`, `address_forbidden`, `agent_unreachable`, `conflict` (the id
    /// is or was taken; the parent cannot have children), `store_unavailable`.
    pub async fn create(&self, creation: &Creation, run: Run) -> Result<Workspace, Rejection> {
        let vetted = self.vet_new(creation).await?;
        match self.write_new(creation, &vetted, run).await? {
            CreateOutcome::Done(workspace) => Ok(*workspace),
            CreateOutcome::Taken => Err(workspace_id_taken()),
            CreateOutcome::OriginTaken(taken) => Err(taken.into()),
        }
    }

    /// Checks a creation, apart from its place, and its URLs.
    pub(super) async fn vet_new<'c>(
        &self,
        creation: &'c Creation,
    ) -> Result<VettedChange<'c>, Rejection> {
        check_creation(creation)?;
        self.vet_change(&creation.id, &creation.change, creation.editor)
            .await
    }

    /// Writes a new workspace.
    async fn write_new(
        &self,
        creation: &Creation,
        vetted: &VettedChange<'_>,
        run: Run,
    ) -> Result<CreateOutcome, Rejection> {
        let new = self.prepare(creation, vetted).await?;
        let now = Timestamp::now();
        let mut is_above = false;
        let judge = |line: &[Step]| {
            require_within(line, creation.within.as_ref())?;
            // To a caller of a subtree a workspace above it is as any other with this id.
            is_above = creation.within.is_some() && line.iter().any(|step| step.id == new.id);
            if is_above {
                return Err(workspace_id_taken());
            }
            org_below(&new.id, line, new.settings.org.as_deref())
        };
        let created = match &new.settings.parent_id {
            None => self.workspaces.create(&new, now, run).await.map(Ok),
            Some(parent) => {
                let created = self
                    .workspaces
                    .create_below(parent, &new, (now, run), judge);
                created.await
            }
        };
        let left = &new.origins;
        self.announcer.invalidate_left(left, run, &created).await;
        let created = match created? {
            Err(_) if is_above => CreateOutcome::Taken,
            created => created?,
        };
        if let CreateOutcome::Done(workspace) = &created
            && !run.is_dry()
        {
            self.announce_created(workspace).await;
        }
        Ok(created)
    }

    /// Invalidates what is known of an id, publishes the status of the workspace that has it now, and has its card
    /// read.
    pub(super) async fn announce_created(&self, workspace: &Workspace) {
        let id = &workspace.id;
        self.announcer.invalidate_lineage_after(id, &Ok(())).await;
        self.announcer.announce_status(id, workspace.status);
        self.read_card_of(workspace);
    }

    /// Returns the row of a new workspace, in the org that the creation says. Checks its creator again after the last
    /// look-up of a name.
    pub(super) async fn prepare(
        &self,
        creation: &Creation,
        vetted: &VettedChange<'_>,
    ) -> Result<NewWorkspace, Rejection> {
        let mut settings = WorkspaceSettings::default();
        vetted.apply_to(&mut settings);
        settings.parent_id = creation.change.place.parent_id.clone().flatten();
        let urls = vetted.urls.as_ref().and_then(Option::as_deref);
        let urls = urls.unwrap_or_default();
        let instances = instances_at(urls, &[], Timestamp::now())?;
        settings.url = settings.url.or_else(|| urls.first().cloned());
        if settings.liveness == Liveness::Assumed {
            settings.status = Status::Online;
        }
        let called = called_at(&settings.url, &settings.card_url, settings.liveness);
        for url in called.into_iter().chain(urls.iter().map(String::as_str)) {
            require_https(settings.upstream_tls.is_some(), Some(url))?;
        }
        let by_operator = creation.editor == Editor::Operator;
        let place = called.filter(|_| settings.upstream_auth.is_some());
        settings.upstream_auth_base = place.map(|url| credential_base(url, by_operator));
        Recheck::run(creation.change.recheck.as_ref()).await?;
        Ok(NewWorkspace {
            id: creation.id.clone(),
            settings,
            instances,
            origins: vetted.origins.clone(),
            enrolment: creation.enrolment.clone(),
        })
    }

    /// Returns a mismatch between the registered URL and the registered card, and logs it.
    fn warn_of_mismatch(&self, workspace: &Workspace) -> Option<&'static str> {
        let endpoint = self.resolver.parse(workspace.url.as_deref()?).ok()?;
        let warning = JsonRpc::from_card(card_text(workspace), &endpoint).mismatch()?;
        tracing::warn!(workspace.id = %workspace.id, "An agent registered: {warning}");
        Some(warning)
    }
}

/// Checks a creation without reading a store.
fn check_creation(creation: &Creation) -> Result<(), Rejection> {
    creation.id.check_new()?;
    check(&creation.change)?;
    let patch = &creation.change.patch;
    let (liveness, mode) = (
        patch.liveness.unwrap_or_default(),
        patch.delivery_mode.unwrap_or_default(),
    );
    let (url, card_url) = (
        patch.url.clone().flatten(),
        patch.card_url.clone().flatten(),
    );
    let has_list = matches!(patch.urls, Some(Some(_)));
    if matches!(creation.change.probe, Some(Some(_))) {
        require_probed(liveness, mode)?;
    }
    if patch.resolve == Some(Some(Resolve::Each)) {
        require_resolvable((liveness, mode), url.as_deref(), has_list)?;
    }
    let assumed = liveness == Liveness::Assumed;
    if has_list && !assumed {
        return Err(invalid(
            "urls needs \"liveness\":\"assumed\": instances that send heartbeats register with an instance_id",
        ));
    }
    let nowhere = !has_list && called_at(&url, &card_url, liveness).is_none();
    if assumed && mode == DeliveryMode::Push && nowhere {
        return Err(invalid(
            "liveness assumed needs the url at which the agent listens, or its card_url: it will not register; \
             an agent that fetches its messages needs neither, but \"delivery_mode\":\"poll\"",
        ));
    }
    Ok(())
}

/// Change of a workspace, and of its pause.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// The change.
    pub change: Change,
    /// True: it is paused; false: resumed. `None` leaves it as it is.
    pub paused: Option<bool>,
}

/// Update with checked URLs.
pub struct VettedUpdate<'a> {
    vetted: VettedChange<'a>,
    update: &'a Update,
    /// True if its agent lives, so that it is online once it is resumed.
    is_alive: bool,
}

impl VettedUpdate<'_> {
    /// Returns the settings of the workspace after the update.
    ///
    /// # Errors
    /// As [`Registrations::change`], [`Registrations::pause`] and [`Registrations::resume`].
    pub fn apply_to(
        &self,
        workspace: &Workspace,
        around: &Surroundings,
    ) -> Result<Settings, Rejection> {
        if workspace.status == Status::Removed {
            return Err(workspace_removed());
        }
        let mut settings = decide_settings(workspace, around, &self.vetted, Editor::Operator)?;
        match self.update.paused {
            Some(true) => settings.status = Status::Paused,
            Some(false) if workspace.status == Status::Paused => {
                settings.status = status_after_resume(workspace, &settings, self.is_alive)?;
            }
            _ => {}
        }
        Ok(settings)
    }

    /// Returns the requested parent and org, and the origins of its new URLs.
    pub fn move_and_origins(&self) -> (&Move, &Origins) {
        (&self.update.change.place, &self.vetted.origins)
    }
}

// Creations, changes and removals of many workspaces in one transaction (`assembly::policy`), by the rules of the
// single ones. What a rule needs of other workspaces comes from the caller, as they are after all changes.
impl Registrations {
    /// Checks a creation as [`Registrations::create`] does, apart from its place, and returns its row.
    ///
    /// # Errors
    /// As [`Registrations::create`], but `conflict`.
    pub async fn vet_creation(&self, creation: &Creation) -> Result<NewWorkspace, Rejection> {
        let vetted = self.vet_new(creation).await?;
        self.prepare(creation, &vetted).await
    }

    /// Checks an update as [`Registrations::change`] does, apart from its row.
    ///
    /// # Errors
    /// As [`Registrations::change`], but those about its row and its place.
    pub async fn vet_update<'a>(
        &self,
        workspace: &Workspace,
        update: &'a Update,
    ) -> Result<VettedUpdate<'a>, Rejection> {
        check(&update.change)?;
        let id = &workspace.id;
        let vetted = self
            .vet_change(id, &update.change, Editor::Operator)
            .await?;
        let resumes = update.paused == Some(false) && workspace.status == Status::Paused;
        Ok(VettedUpdate {
            vetted,
            update,
            is_alive: resumes && self.is_alive(workspace).await,
        })
    }

    /// Returns the form in which a URL is stored.
    ///
    /// # Errors
    /// `invalid_params`, `address_forbidden`.
    pub fn stored_url(&self, member: &'static str, url: &str) -> Result<String, Rejection> {
        Endpoint::parse_as(member, url, &self.resolver.policy()).map(|endpoint| endpoint.url())
    }

    /// Publishes workspaces that were created. `invalidates`: caches are to be told of each.
    pub async fn publish_created(&self, workspace: &Workspace, invalidates: bool) {
        // An earlier life of the id may have left keys.
        if let Err(error) = self.presence.withdraw(&workspace.id).await {
            tracing::debug!(%error, workspace.id = %workspace.id, "failed to clear the keys of a new workspace");
        }
        match invalidates {
            true => self.announce_created(workspace).await,
            false => self
                .announcer
                .announce_status(&workspace.id, workspace.status),
        }
    }

    /// Publishes an update that was made. `invalidates`: caches are to be told of it.
    ///
    /// # Errors
    /// `store_unavailable`, if the shared state was not written.
    pub async fn publish_update(
        &self,
        update: &VettedUpdate<'_>,
        changed: &WorkspaceChange,
        invalidates: bool,
    ) -> Result<(), Rejection> {
        let id = &changed.after.id;
        self.announcer.announce_change(changed);
        let published = self.publish_change(&update.vetted, changed).await;
        if invalidates {
            self.announcer.invalidate_lineage_after(id, &Ok(())).await;
        }
        if update.vetted.has_urls() {
            self.presence.catch_up(&changed.after).await?;
        }
        self.read_card_of(&changed.after);
        published
    }

    /// Publishes the removal of a workspace. `line`: it and its former ancestors; `invalidates`: caches are to be told.
    ///
    /// # Errors
    /// `store_unavailable`, if the shared state was not written.
    pub async fn publish_removal(
        &self,
        id: &WorkspaceId,
        line: &[Step],
        invalidates: bool,
    ) -> Result<(), Rejection> {
        if invalidates {
            self.announcer.invalidate_lineage_after(id, &Ok(())).await;
        }
        self.announcer.announce_removal(id, line);
        Ok(self.presence.withdraw(id).await?)
    }
}

/// Returns the URLs of a workspace that an operator lists, the first one first; `None`: there is no list.
pub fn listed_urls(workspace: &Workspace, instances: &[StoredInstance]) -> Option<Vec<String>> {
    if instances.is_empty() || reports_itself(workspace, instances) {
        return None;
    }
    let mut urls: Vec<String> = instances.iter().map(|one| one.url.clone()).collect();
    urls.sort_unstable_by_key(|url| (Some(url) != workspace.url.as_ref(), url.clone()));
    Some(urls)
}

/// True if the agent of a workspace names its URLs itself.
pub fn reports_itself(workspace: &Workspace, instances: &[StoredInstance]) -> bool {
    workspace.liveness == Liveness::Heartbeat || !instances.iter().all(is_listed)
}
