//! Registration and creation of workspaces (`docs/reference/http-api.md`). Writes SQL, then the shared state,
//! then invalidates every cache; a failure in between is returned, and repeating the request completes it.

use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::change::{Change, Registrations};
use super::recheck::{Recheck, is_foreign, require_still_own};
use super::registrar::{
    Registrar, build_creation, check_registrar, foreign_workspace, mode_of, not_registered,
};
use super::tree_rules::{Editor, org_below, require_within};
use super::urls::{check_urls, instances_at, require_resolvable};
use super::validate::{check_card, check_label};
use crate::config::{Bridging, CardAccess, CompletionMode};
use crate::directory::address::{NamedUrls, VettedUrls};
use crate::directory::probing::{Probe, require_probed};
use crate::directory::rejections::{invalid, workspace_id_taken, workspace_removed};
use crate::directory::resolution::{JsonRpc, called_at, card_text};
use crate::directory::upstream::{UpstreamAuth, UpstreamTls, require_https};
use crate::directory::waking::Wake;
use crate::identity::NewEnrolment;
use crate::ids::{InstanceId, WorkspaceId, WorkspaceIncarnation};
use crate::rejection::Rejection;
use crate::store::Run;
use crate::time::Timestamp;
use crate::workspace::{
    CallerProof, CreateOutcome, DeliveryMode, InstanceRegistration, Liveness, Move, NewWorkspace,
    RegistrationUpdate, Resolve, Status, Step, Workspace, credential_base, default_instance,
};

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
    /// Display name.
    pub name: String,
    /// Parent workspace.
    pub parent_id: Option<WorkspaceId>,
    /// The root of the subtree that it must be in: of the org token that creates it.
    pub within: Option<WorkspaceIncarnation>,
    /// Org of the workspace; `None`: the parent's org.
    pub org: Option<String>,
    /// Purpose of the agent, as free text.
    pub role: Option<String>,
    /// Delivery mode: push or poll.
    pub delivery_mode: DeliveryMode,
    /// URL that its agent listens at.
    pub url: Option<String>,
    /// URL on the agents' own network.
    pub internal_url: Option<String>,
    /// URL that its card is fetched from.
    pub card_url: Option<String>,
    /// URLs of its instances, for assumed liveness. Operators only.
    pub urls: Option<Vec<String>>,
    /// Maximum calls in progress.
    pub max_concurrent: Option<u32>,
    /// Source of its liveness.
    pub liveness: Liveness,
    /// Completion mode for incomplete calls.
    pub complete: Option<CompletionMode>,
    /// True if callers may ask for push notifications.
    pub push_notifications: Option<bool>,
    /// Access to its card. Set by operators only.
    pub card_access: Option<CardAccess>,
    /// Proof in the tokens that it gets with calls.
    pub proof: Option<CallerProof>,
    /// Translation of calls.
    pub bridge: Option<Bridging>,
    /// Addresses of its name that get calls, for assumed liveness. Operators only.
    pub resolve: Option<Resolve>,
    /// Credential with which the gateway calls the agent.
    pub upstream_auth: Option<UpstreamAuth>,
    /// TLS towards the agent. Operators only.
    pub upstream_tls: Option<UpstreamTls>,
    /// Waker of the agent while it sleeps. Operators only.
    pub wake: Option<Wake>,
    /// Probe of the agent, for assumed liveness. Operators only.
    pub probe: Option<Probe>,
    /// Enrolment token that is stored with it.
    pub enrolment: Option<NewEnrolment>,
    /// Creator of the workspace.
    pub editor: Editor,
    /// Second check of the creator.
    pub recheck: Option<Recheck>,
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
        let urls = NamedUrls {
            url: registration.url.as_deref(),
            internal_url: registration.internal_url.as_deref(),
            card_url: terms.and_then(|terms| terms.card_url.as_deref()),
            urls: &[],
        };
        let urls = self
            .addresses
            .vet_urls(&registration.id, urls, is_operator)
            .await?;
        Recheck::run(registration.recheck.as_ref()).await?;
        require_still_own(&self.workspaces, registrar, (&registration.id, foreign)).await?;
        require_https(has_tls, urls.url.as_deref())?;
        let named = urls.url.as_deref().filter(|_| is_operator);
        let named = named.map(|url| credential_base(url, true));
        let moved = place.is_some();
        if let Some(place) = place {
            self.move_to(&registration.id, place).await?;
        }
        let created = found.is_none();
        if created {
            let creation = build_creation(&registration.id, mode, registrar);
            check_creation(&creation)?;
            // In one transaction with its origins, so that a rejection leaves no workspace behind.
            match self.write_new(&creation, urls.clone(), Run::Real).await? {
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
                live_since: self.presence.leases.seen_since(Timestamp::now()),
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

    async fn move_to(&self, id: &WorkspaceId, place: Move) -> Result<(), Rejection> {
        let change = Change {
            place,
            ..Change::default()
        };
        self.change(id, &change, Editor::Operator, Run::Real)
            .await
            .map(drop)
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
            shared = self.presence.leases.renew(id, now).await;
        }
        if shared.is_ok()
            && let Some(instance) = &instance
        {
            // The agent that registered without an id is alive; it counts as an instance from now on.
            let first = registered.made_default.then(default_instance);
            let alive: Vec<&InstanceId> = first.iter().chain([instance]).collect();
            shared = self.presence.leases.renew_with(id, &alive, now).await;
        }
        // The row has changed, even if the write to the shared state failed.
        self.announcer.invalidate(id).await;
        let done = match shared {
            Ok(()) => self.presence.catch_up(&workspace).await,
            Err(away) => Err(away.into()),
        };
        done.map_err(|why| why.after_commit(false))?;
        self.views.slots.reset_target(id, instance.as_ref(), began);
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
        let urls = self.vet_new(creation).await?;
        match self.write_new(creation, urls, run).await? {
            CreateOutcome::Done(workspace) => Ok(*workspace),
            CreateOutcome::Taken => Err(workspace_id_taken()),
            CreateOutcome::OriginTaken(taken) => Err(taken.into()),
        }
    }

    /// Checks a creation, apart from its place, and its URLs.
    pub(super) async fn vet_new(&self, creation: &Creation) -> Result<VettedUrls, Rejection> {
        check_creation(creation)?;
        let urls = NamedUrls {
            url: creation.url.as_deref(),
            internal_url: creation.internal_url.as_deref(),
            card_url: creation.card_url.as_deref(),
            urls: creation.urls.as_deref().unwrap_or_default(),
        };
        let may_share = creation.editor == Editor::Operator;
        self.addresses.vet_urls(&creation.id, urls, may_share).await
    }

    /// Writes a new workspace with these URLs.
    async fn write_new(
        &self,
        creation: &Creation,
        urls: VettedUrls,
        run: Run,
    ) -> Result<CreateOutcome, Rejection> {
        let new = self.prepare(creation, urls).await?;
        let created = self.insert(&new, creation, run).await?;
        if let CreateOutcome::Done(workspace) = &created
            && !run.is_dry()
        {
            self.announce_created(workspace).await;
        }
        Ok(created)
    }

    /// Invalidates what is known of an id, publishes the status of the workspace that has it now, and has its card read.
    pub(super) async fn announce_created(&self, workspace: &Workspace) {
        let id = &workspace.id;
        self.announcer.invalidate_lineage_after(id, &Ok(())).await;
        self.announcer.announce_status(id, workspace.status);
        self.read_card_of(workspace);
    }

    /// Returns the row of a new workspace with these URLs, in the org that the creation says. Checks its creator again after
    /// the last look-up of a name.
    pub(super) async fn prepare(
        &self,
        creation: &Creation,
        urls: VettedUrls,
    ) -> Result<NewWorkspace, Rejection> {
        let VettedUrls {
            url,
            internal_url,
            card_url,
            urls,
            origins,
        } = urls;
        let instances = instances_at(&urls, &[], Timestamp::now())?;
        let url = url.or_else(|| urls.first().cloned());
        let id = creation.id.clone();
        let assumed = creation.liveness == Liveness::Assumed;
        let called = called_at(&url, &card_url, creation.liveness);
        let by_operator = creation.editor == Editor::Operator;
        let place = called.map(|url| credential_base(url, by_operator));
        let auth = creation.upstream_auth.as_ref();
        let auth = auth.map(|auth| Ok::<_, Rejection>((auth.seal(&self.seal, &id)?, place)));
        let tls = creation.upstream_tls.as_ref();
        require_https(tls.is_some(), called)?;
        for url in &urls {
            require_https(tls.is_some(), Some(url))?;
        }
        let tls = tls.map(|tls| tls.seal(&self.seal, &id));
        let wake = self.vet_wake(&id, creation.wake.as_ref()).await?;
        Recheck::run(creation.recheck.as_ref()).await?;
        Ok(NewWorkspace {
            id,
            name: creation.name.clone(),
            role: creation.role.clone(),
            parent_id: creation.parent_id.clone(),
            org: creation.org.clone(),
            status: if assumed {
                Status::Online
            } else {
                Status::Provisioning
            },
            delivery_mode: creation.delivery_mode,
            liveness: creation.liveness,
            url,
            internal_url,
            card_url,
            agent_card: None,
            upstream_auth: auth.transpose()?,
            upstream_tls: tls.transpose()?,
            wake,
            probe: creation
                .probe
                .as_ref()
                .map(|probe| probe.as_stored().clone()),
            complete: creation.complete,
            push_notifications: creation.push_notifications,
            card_access: creation.card_access,
            proof: creation.proof,
            bridge: creation.bridge,
            resolve: creation.resolve,
            max_concurrent: creation.max_concurrent,
            instances,
            origins,
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

    async fn insert(
        &self,
        new: &NewWorkspace,
        creation: &Creation,
        run: Run,
    ) -> Result<CreateOutcome, Rejection> {
        let (id, now) = (&new.id, Timestamp::now());
        let Some(parent) = &creation.parent_id else {
            let created = self.workspaces.create(new, now, run).await;
            self.announcer
                .invalidate_left(&new.origins, run, &created)
                .await;
            return Ok(created?);
        };
        let mut is_above = false;
        let judge = |line: &[Step]| {
            require_within(line, creation.within.as_ref())?;
            // To a caller of a subtree a workspace above it is as any other with this id.
            is_above = creation.within.is_some() && line.iter().any(|step| step.id == *id);
            if is_above {
                return Err(workspace_id_taken());
            }
            org_below(id, line, creation.org.as_deref())
        };
        let created = self.workspaces.create_below(parent, new, (now, run), judge);
        let created = created.await;
        self.announcer
            .invalidate_left(&new.origins, run, &created)
            .await;
        match created? {
            Err(_) if is_above => Ok(CreateOutcome::Taken),
            created => created,
        }
    }
}

/// Checks a creation without reading a store.
fn check_creation(creation: &Creation) -> Result<(), Rejection> {
    creation.id.check_new()?;
    check_label("name", &creation.name)?;
    for (name, label) in [("role", &creation.role), ("org", &creation.org)] {
        label.as_deref().map_or(Ok(()), |l| check_label(name, l))?;
    }
    if creation.max_concurrent == Some(0) {
        return Err(invalid("max_concurrent must be at least 1"));
    }
    if creation.probe.is_some() {
        require_probed(creation.liveness, creation.delivery_mode)?;
    }
    if creation.resolve == Some(Resolve::Each) {
        let kind = (creation.liveness, creation.delivery_mode);
        require_resolvable(kind, creation.url.as_deref(), creation.urls.is_some())?;
    }
    let assumed = creation.liveness == Liveness::Assumed;
    if let Some(urls) = &creation.urls {
        check_urls(urls)?;
        if creation.url.is_some() || creation.internal_url.is_some() {
            return Err(invalid(
                "urls takes the place of url and internal_url: leave them out",
            ));
        }
        if !assumed {
            return Err(invalid(
                "urls needs \"liveness\":\"assumed\": instances that send heartbeats register with an instance_id",
            ));
        }
    }
    let nowhere = creation.urls.is_none()
        && called_at(&creation.url, &creation.card_url, creation.liveness).is_none();
    if assumed && creation.delivery_mode == DeliveryMode::Push && nowhere {
        return Err(invalid(
            "liveness assumed needs the url at which the agent listens, or its card_url: it will not register; \
             an agent that fetches its messages needs neither, but \"delivery_mode\":\"poll\"",
        ));
    }
    Ok(())
}
