//! Changes of a workspace by operators, and by org tokens within their org (`docs/reference/http-api.md`,
//! "`PATCH /workspaces/{id}`"). A change is atomic: checked and written in one transaction. Then the shared
//! state is written, and every cache is invalidated; a failure there is returned, and repeating the request
//! completes the change.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::tree_rules::{Editor, settle};
use super::validate::check_label;
use crate::config::{Bridging, CardAccess, Complete};
use crate::directory::address::{Addresses, NamedUrls, Resolver};
use crate::directory::announcer::Announcer;
use crate::directory::liveness::{HeartbeatBuffer, Presence};
use crate::directory::rejections::{conflict, invalid, not_found, removed};
use crate::directory::resolution::called_at;
use crate::directory::upstream::{UpstreamAuth, UpstreamTls, require_https};
use crate::directory::views::Views;
use crate::ids::WorkspaceId;
use crate::rejection::Rejection;
use crate::store::Unavailable;
use crate::time::Timestamp;
use crate::trust::{Seal, Sealed};
use crate::workspace::{
    CallerProof, Changed, DeliveryMode, Liveness, Move, Origins, SealedTls, Settings, Status,
    Surroundings, Workspace, Workspaces, base,
};

/// Requested change. `None` leaves a setting as it is; `Some(None)` clears it.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Display name.
    pub name: Option<String>,
    /// Purpose of the agent, as free text.
    pub role: Option<Option<String>>,
    /// New parent and org.
    pub place: Move,
    /// URL that its agent listens at.
    pub url: Option<Option<String>>,
    /// URL on the agents' own network.
    pub internal_url: Option<Option<String>>,
    /// URL that its card is fetched from.
    pub card_url: Option<Option<String>>,
    /// Delivery mode: push or poll.
    pub delivery_mode: Option<DeliveryMode>,
    /// Maximum calls in progress.
    pub max_concurrent: Option<Option<u32>>,
    /// Source of its liveness.
    pub liveness: Option<Liveness>,
    /// Completion mode for incomplete calls.
    pub complete: Option<Option<Complete>>,
    /// True if callers may ask for push notifications.
    pub push_notifications: Option<Option<bool>>,
    /// Access to its card. Set by operators only.
    pub card_access: Option<Option<CardAccess>>,
    /// Proof in the tokens that it gets with calls.
    pub proof: Option<Option<CallerProof>>,
    /// Translation of calls.
    pub bridge: Option<Option<Bridging>>,
    /// Credential with which the gateway calls the agent.
    pub upstream_auth: Option<Option<UpstreamAuth>>,
    /// TLS towards the agent. Operators only.
    pub upstream_tls: Option<Option<UpstreamTls>>,
    /// Status set by a provisioner.
    pub status: Option<Status>,
}

/// Change with checked URLs and a sealed credential.
struct Vetted<'a> {
    change: &'a Change,
    url: Option<Option<String>>,
    internal_url: Option<Option<String>>,
    card_url: Option<Option<String>>,
    origins: Origins,
    upstream_auth: Option<Option<Sealed>>,
    upstream_tls: Option<Option<SealedTls>>,
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
}

impl Registrations {
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
    ) -> Result<Workspace, Rejection> {
        check(change)?;
        let vetted = self.vet_change(id, change, editor).await?;
        let judge = |workspace: &Workspace, around: &Surroundings| {
            judge(workspace, around, &vetted, editor)
        };
        let changed = self
            .alter(id, &change.place, &vetted.origins, judge)
            .await?;
        let published = self.publish_change(&vetted, &changed).await;
        // The keys come before SQL, so entries that were loaded in between are stale.
        self.announcer.invalidate(id).await;
        let done = match published {
            Ok(()) if vetted.url.is_some() || vetted.internal_url.is_some() => {
                self.presence.catch_up(&changed.after).await
            }
            published => published.map_err(Rejection::from),
        };
        done.map_err(|why| why.after_commit(false))?;
        Ok(self.heartbeats.as_of_now(changed.after))
    }

    /// Applies `judge` to the row, and publishes the result.
    pub(super) async fn alter(
        &self,
        id: &WorkspaceId,
        wanted: &Move,
        origins: &Origins,
        judge: impl FnOnce(&Workspace, &Surroundings) -> Result<Settings, Rejection>,
    ) -> Result<Changed, Rejection> {
        let now = Timestamp::now();
        let new_status = AtomicBool::new(false);
        let pauses = AtomicBool::new(false);
        let judge = |workspace: &Workspace, around: &Surroundings| {
            if workspace.status == Status::Removed {
                return Err(removed());
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
            .change(id, wanted, origins, now, judge)
            .await;
        if let Ok(Ok(Some(changed))) = &outcome {
            self.announcer.announce_change(changed);
        }
        if !matches!(outcome, Ok(Err(_))) {
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

    /// As [`Registrations::alter`], without a change of place and URLs.
    pub(super) async fn alter_in_place(
        &self,
        id: &WorkspaceId,
        judge: impl FnOnce(&Workspace, &Surroundings) -> Result<Settings, Rejection>,
    ) -> Result<Changed, Rejection> {
        self.alter(id, &Move::default(), &Origins::default(), judge)
            .await
    }

    /// Publishes a new card. It has no URLs of the agent, so that access to them need not be checked for each
    /// reader.
    pub(super) async fn announce_card(&self, mut workspace: Workspace) {
        let cards = slice::from_mut(&mut workspace);
        self.views.redact_cards(cards, |_| true).await;
        self.announcer.announce_card(&workspace);
    }

    async fn vet_change<'a>(
        &self,
        id: &WorkspaceId,
        change: &'a Change,
        editor: Editor,
    ) -> Result<Vetted<'a>, Rejection> {
        let sealed = |auth: &UpstreamAuth| auth.seal(&self.seal, id);
        let upstream_auth = change.upstream_auth.as_ref();
        let upstream_auth = upstream_auth.map(|auth| auth.as_ref().map(sealed).transpose());
        let sealed = |tls: &UpstreamTls| tls.seal(&self.seal, id);
        let upstream_tls = change.upstream_tls.as_ref();
        let upstream_tls = upstream_tls.map(|tls| tls.as_ref().map(sealed).transpose());
        let said = |url: &'a Option<Option<String>>| url.as_ref().and_then(Option::as_deref);
        let named = NamedUrls {
            url: said(&change.url),
            internal_url: said(&change.internal_url),
            card_url: said(&change.card_url),
        };
        let may_share = editor == Editor::Operator;
        let urls = self.addresses.vet_urls(id, named, may_share).await?;
        Ok(Vetted {
            change,
            url: change.url.as_ref().map(|_| urls.url),
            internal_url: change.internal_url.as_ref().map(|_| urls.internal_url),
            card_url: change.card_url.as_ref().map(|_| urls.card_url),
            origins: urls.origins,
            upstream_auth: upstream_auth.transpose()?,
            upstream_tls: upstream_tls.transpose()?,
        })
    }

    /// Writes the changed URL keys, and a lease if the workspace must send heartbeats from now on.
    async fn publish_change(
        &self,
        vetted: &Vetted<'_>,
        changed: &Changed,
    ) -> Result<(), Unavailable> {
        let id = &changed.after.id;
        let urls = [vetted.url.as_ref(), vetted.internal_url.as_ref()];
        self.presence.write_urls(id, urls).await?;
        let must_beat = changed.after.liveness == Liveness::Heartbeat;
        if must_beat && changed.before.liveness == Liveness::Assumed {
            self.presence.leases.renew(id, Timestamp::now()).await?;
        }
        Ok(())
    }
}

/// Runs the checks that need no row.
fn check(change: &Change) -> Result<(), Rejection> {
    let labels = [
        ("name", change.name.as_ref()),
        ("role", change.role.as_ref().and_then(Option::as_ref)),
        ("org", change.place.org.as_ref().and_then(Option::as_ref)),
    ];
    for (name, label) in labels {
        label.map_or(Ok(()), |label| check_label(name, label))?;
    }
    if change.max_concurrent == Some(Some(0)) {
        return Err(invalid("max_concurrent must be at least 1, or null"));
    }
    match change.status {
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

fn judge(
    workspace: &Workspace,
    around: &Surroundings,
    vetted: &Vetted<'_>,
    editor: Editor,
) -> Result<Settings, Rejection> {
    let change = vetted.change;
    let mut settings = Settings::of(workspace);
    settle(workspace, around, &change.place, editor, &mut settings)?;
    put(&mut settings.name, &change.name);
    put(&mut settings.role, &change.role);
    put(&mut settings.url, &vetted.url);
    put(&mut settings.internal_url, &vetted.internal_url);
    put(&mut settings.card_url, &vetted.card_url);
    put(&mut settings.delivery_mode, &change.delivery_mode);
    put(&mut settings.max_concurrent, &change.max_concurrent);
    put(&mut settings.liveness, &change.liveness);
    put(&mut settings.complete, &change.complete);
    put(&mut settings.push_notifications, &change.push_notifications);
    put(&mut settings.card_access, &change.card_access);
    put(&mut settings.proof, &change.proof);
    put(&mut settings.bridge, &change.bridge);
    put(&mut settings.upstream_auth, &vetted.upstream_auth);
    put(&mut settings.upstream_tls, &vetted.upstream_tls);
    let moves_agent = change.url.is_some() && editor == Editor::Operator;
    if change.upstream_auth.is_some() || moves_agent {
        let url = called_at(&settings.url, &settings.card_url, settings.liveness);
        let has_auth = settings.upstream_auth.is_some();
        settings.upstream_auth_base = url.filter(|_| has_auth).map(base).map(str::to_owned);
    } else if change.url.is_some() && settings.upstream_auth_base.is_none() {
        settings.upstream_auth_base = workspace.url.as_deref().map(base).map(str::to_owned);
    }
    if change.url.is_some() || change.card_url.is_some() || change.upstream_tls.is_some() {
        let url = called_at(&settings.url, &settings.card_url, settings.liveness);
        require_https(settings.upstream_tls.is_some(), url)?;
    }
    settings.status = next_status(workspace, &settings, change)?;
    let said = change.url.is_some()
        || change.card_url.is_some()
        || change.delivery_mode.is_some()
        || change.liveness.is_some();
    let needed = settings.liveness == Liveness::Assumed || settings.status.is_up();
    if said && needed && !is_reachable(&settings) {
        return Err(invalid(
            "delivery_mode push needs the url at which the agent listens, or with liveness assumed its \
             card_url: say one, too, or poll",
        ));
    }
    Ok(settings)
}

fn next_status(
    workspace: &Workspace,
    settings: &Settings,
    change: &Change,
) -> Result<Status, Rejection> {
    let assumed_now = settings.liveness == Liveness::Assumed
        && workspace.liveness != Liveness::Assumed
        && is_reachable(settings);
    match (change.status, workspace.status) {
        (Some(status), before) if before == Status::Paused && status != before => Err(conflict(
            "the workspace is paused: POST /workspaces/{id}/resume first",
        )),
        (Some(status), _) => Ok(status),
        (None, Status::Offline | Status::Provisioning) if assumed_now => Ok(Status::Online),
        (None, before) => Ok(before),
    }
}

fn put<T: Clone>(setting: &mut T, said: &Option<T>) {
    if let Some(said) = said {
        setting.clone_from(said);
    }
}

/// True if messages can be delivered: it has a URL or an inbox.
pub(super) fn is_reachable(settings: &Settings) -> bool {
    settings.delivery_mode == DeliveryMode::Poll
        || called_at(&settings.url, &settings.card_url, settings.liveness).is_some()
}
