//! `/workspaces`: creation and reading (`docs/reference/http-api.md`, "Workspaces").

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::LOCATION;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::body::Json;
use super::change_facts::{about_workspace, auth_kind, probe_kind, waker_origin};
use super::dry_run::{Changer, change_response, secret_unless_dry};
use super::extract::{Caller, PathId, is_root_of, not_permitted};
use crate::config::{Bridging, CardAccess, CompletionMode};
use crate::directory::{Creation, Editor, Probe, UpstreamAuth, UpstreamTls, Wake};
use crate::gateway::Gateway;
use crate::identity::{EnrolmentMaker, Issuance, Principal};
use crate::ids::WorkspaceId;
use crate::policy;
use crate::rejection::{Reason, Rejection};
use crate::store::Run;
use crate::workspace::{
    CallerProof, DeliveryMode, Liveness, Resolve, Status, UrlVisibility, Workspace, WorkspaceView,
};

/// Body of `POST /workspaces`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkspaceRequest {
    id: Option<String>,
    name: String,
    parent_id: Option<String>,
    org: Option<String>,
    role: Option<String>,
    delivery_mode: Option<DeliveryMode>,
    url: Option<String>,
    internal_url: Option<String>,
    card_url: Option<String>,
    urls: Option<Vec<String>>,
    upstream_auth: Option<Box<RawValue>>,
    upstream_tls: Option<Box<RawValue>>,
    max_concurrent: Option<u32>,
    liveness: Option<Liveness>,
    complete: Option<CompletionMode>,
    push_notifications: Option<bool>,
    card_access: Option<CardAccess>,
    proof: Option<CallerProof>,
    bridge: Option<Bridging>,
    resolve: Option<Resolve>,
    wake: Option<Box<RawValue>>,
    probe: Option<Box<RawValue>>,
    #[serde(default)]
    recreate: bool,
}

#[derive(Serialize)]
struct CreateResponse<'a> {
    #[serde(flatten)]
    workspace: WorkspaceView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enrolment_token: Option<&'a str>,
}

/// `POST /workspaces`.
pub(super) async fn create_workspace(
    State(gateway): State<Arc<Gateway>>,
    Changer { caller, run }: Changer,
    Json(new): Json<WorkspaceRequest>,
) -> Result<Response, Rejection> {
    let recreates = new.recreate && new.id.is_some();
    if new.recreate {
        operators_only("recreate", caller.principal(), ())?;
    }
    let mut creation = check_creation(&gateway, &caller, new).await?;
    let maker = match creation.editor {
        Editor::Org => EnrolmentMaker::Org(None),
        Editor::Operator => EnrolmentMaker::Operator,
    };
    let (enrolment, stored) = Issuance::make_enrolment(&creation.id, maker);
    creation.enrolment = Some(stored);
    creation.recheck = Some(caller.recheck(&gateway, None));
    let workspace = match recreates && is_removed(&gateway, &creation.id).await? {
        true => policy::recreate_workspace(&gateway, &creation, run).await?,
        false => {
            let registrations = &gateway.directory.registrations;
            registrations.create(&creation, run).await?
        }
    };
    let enrolment = secret_unless_dry(run, enrolment);
    let created = CreateResponse {
        workspace: workspace.as_view(visible_urls(caller.principal(), &workspace.id)),
        enrolment_token: enrolment.as_ref().map(SecretString::expose_secret),
    };
    if run.is_dry() {
        return Ok((StatusCode::CREATED, change_response(run, created)).into_response());
    }
    let location = [(LOCATION, format!("/workspaces/{}", workspace.id))];
    let auth = auth_kind(creation.upstream_auth.as_ref());
    let wake = waker_origin(creation.wake.as_ref());
    let about = about_workspace(&workspace).with_fact("upstream_auth", auth);
    let probe = probe_kind(creation.probe.as_ref());
    let about = about.with_fact("wake", wake).with_fact("probe", probe);
    let about = match recreates {
        true => about.with_fact("recreate", true),
        false => about,
    };
    Ok((
        StatusCode::CREATED,
        location,
        Extension(about),
        axum::Json(created),
    )
        .into_response())
}

async fn is_removed(gateway: &Gateway, id: &WorkspaceId) -> Result<bool, Rejection> {
    let found = gateway.workspaces.find(id).await?;
    Ok(found.is_some_and(|found| found.status == Status::Removed))
}

/// Checks a creation: an org token stays within its org, and within its subtree; without a parent its root is the parent.
async fn check_creation(
    gateway: &Gateway,
    caller: &Caller,
    new: WorkspaceRequest,
) -> Result<Creation, Rejection> {
    let mut parent_id = parse_optional(new.parent_id.as_deref())?;
    let org = match caller.principal() {
        Principal::Operator => new.org,
        Principal::Org { org, within } => {
            require_same_org(org, new.org.as_deref())?;
            parent_id = parent_id.or_else(|| within.as_ref().map(|root| root.id.clone()));
            // A caller learns nothing of a parent in another org.
            if let Some(parent) = &parent_id {
                gateway.hierarchy.permit(&caller.0, parent).await?;
            }
            Some(org.clone())
        }
        Principal::Workspace { .. } | Principal::Canvas { .. } => {
            return Err(not_permitted("this needs an admin token or an org token"));
        }
    };
    Ok(Creation {
        recheck: None,
        id: parse_optional(new.id.as_deref())?.unwrap_or_else(WorkspaceId::random),
        name: new.name,
        parent_id,
        within: caller.principal().within().cloned(),
        org,
        role: new.role,
        delivery_mode: new.delivery_mode.unwrap_or(DeliveryMode::Push),
        url: new.url,
        internal_url: new.internal_url,
        card_url: new.card_url,
        urls: match new.urls {
            Some(urls) => Some(operators_only("urls", caller.principal(), urls)?),
            None => None,
        },
        max_concurrent: new.max_concurrent,
        liveness: new.liveness.unwrap_or(Liveness::Heartbeat),
        complete: new.complete,
        push_notifications: new.push_notifications,
        card_access: match new.card_access {
            Some(access) => Some(operators_only("card_access", caller.principal(), access)?),
            None => None,
        },
        proof: new.proof,
        bridge: new.bridge,
        resolve: match new.resolve {
            Some(resolve) => Some(operators_only("resolve", caller.principal(), resolve)?),
            None => None,
        },
        upstream_auth: parse_upstream_auth(new.upstream_auth.as_deref())?,
        editor: match caller.principal() {
            Principal::Operator => Editor::Operator,
            _ => Editor::Org,
        },
        upstream_tls: match new.upstream_tls.as_deref() {
            Some(tls) => parse_upstream_tls(caller.principal(), tls)?,
            None => None,
        },
        wake: match new.wake.as_deref() {
            Some(wake) => parse_wake(caller.principal(), wake)?,
            None => None,
        },
        probe: match new.probe.as_deref() {
            Some(probe) => parse_probe(caller.principal(), probe)?,
            None => None,
        },
        enrolment: None,
    })
}

/// `GET /workspaces/{id}`.
pub(super) async fn read_workspace(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
) -> Result<Response, Rejection> {
    // A paused workspace may read itself.
    if caller.principal().workspace() != Some(&id) {
        gateway.hierarchy.permit(&caller.0, &id).await?;
    }
    let workspace = gateway.directory.views.find(&id).await?;
    workspace_response(&gateway, &caller, workspace, Run::Real).await
}

/// Returns one workspace in the form for the caller, as it is, or as a change made it.
///
/// # Errors
/// `store_unavailable`, if its instances cannot be read.
pub(super) async fn workspace_response(
    gateway: &Gateway,
    caller: &Caller,
    workspace: Workspace,
    run: Run,
) -> Result<Response, Rejection> {
    let (instances, warnings) = match visible_urls(caller.principal(), &workspace.id) {
        UrlVisibility::Hidden => Default::default(),
        UrlVisibility::Shown | UrlVisibility::WithCertificates => (
            gateway.directory.views.load_instances(&workspace).await?,
            gateway.resolution.warnings(&workspace.id).await,
        ),
    };
    let mut one = [workspace];
    let view = workspace_views(gateway, caller, &mut one).await.pop();
    let view = view.map(|view| view.for_owner(instances, warnings));
    Ok(change_response(run, view).into_response())
}

/// Returns workspaces in the form for the caller.
pub(super) async fn workspace_views<'w>(
    gateway: &Gateway,
    caller: &Caller,
    workspaces: &'w mut [Workspace],
) -> Vec<WorkspaceView<'w>> {
    let sight = |one: &Workspace| visible_urls(caller.principal(), &one.id);
    let hidden = |one: &Workspace| sight(one) == UrlVisibility::Hidden;
    gateway
        .directory
        .views
        .redact_cards(workspaces, hidden)
        .await;
    let views = workspaces.iter().map(|one| {
        let view = one.as_view(sight(one));
        match is_root_of(caller, &one.id) {
            true => view.without_parent(),
            false => view,
        }
    });
    views.collect()
}

/// The workspace itself and operators see the agent's URLs.
fn visible_urls(principal: &Principal, id: &WorkspaceId) -> UrlVisibility {
    match principal {
        Principal::Operator => UrlVisibility::WithCertificates,
        Principal::Workspace { id: own } if own == id => UrlVisibility::Shown,
        Principal::Workspace { .. } | Principal::Canvas { .. } | Principal::Org { .. } => {
            UrlVisibility::Hidden
        }
    }
}

/// Checks that an org in a body is the org that the token acts in.
///
/// # Errors
/// `not_permitted`.
pub(super) fn require_same_org(own: &str, named: Option<&str>) -> Result<(), Rejection> {
    if named.is_none_or(|named| named == own) {
        return Ok(());
    }
    Err(not_permitted(
        "an org token acts in its own org only; leave `org` out",
    ))
}

/// Parses an optional id in a body.
///
/// # Errors
/// `invalid_workspace_id`.
pub(super) fn parse_optional(text: Option<&str>) -> Result<Option<WorkspaceId>, Rejection> {
    Ok(text.map(WorkspaceId::parse).transpose()?)
}

/// Parses an optional credential of an agent in a body.
///
/// # Errors
/// `invalid_params`.
pub(super) fn parse_upstream_auth(
    json: Option<&RawValue>,
) -> Result<Option<UpstreamAuth>, Rejection> {
    let said = json.filter(|json| json.get() != "null");
    said.map(UpstreamAuth::parse).transpose()
}

/// Reads TLS towards an agent from a body, or `null`. For operators only: the gateway's client certificate is
/// shown to the server of the URL, and the CA decides which server counts as the agent.
///
/// # Errors
/// `not_permitted`, `invalid_params`.
pub(super) fn parse_upstream_tls(
    principal: &Principal,
    json: &RawValue,
) -> Result<Option<UpstreamTls>, Rejection> {
    let json = operators_only("upstream_tls", principal, json)?;
    let said = Some(json).filter(|json| json.get() != "null");
    said.map(UpstreamTls::parse).transpose()
}

/// Reads the waker of an agent from a body, or `null`. For operators only: the gateway calls its URL.
///
/// # Errors
/// `not_permitted`, `invalid_params`.
pub(super) fn parse_wake(
    principal: &Principal,
    json: &RawValue,
) -> Result<Option<Wake>, Rejection> {
    let json = operators_only("wake", principal, json)?;
    let said = Some(json).filter(|json| json.get() != "null");
    said.map(Wake::parse).transpose()
}

/// Reads the probe of an agent from a body, or `null`. For operators only: the gateway asks the agent by itself.
///
/// # Errors
/// `not_permitted`, `invalid_params`.
pub(super) fn parse_probe(
    principal: &Principal,
    json: &RawValue,
) -> Result<Option<Probe>, Rejection> {
    let json = operators_only("probe", principal, json)?;
    let said = Some(json).filter(|json| json.get() != "null");
    said.map(Probe::parse).transpose()
}

/// Returns a member of a body that only operators may set.
///
/// # Errors
/// `not_permitted`.
pub(super) fn operators_only<T>(
    member: &'static str,
    principal: &Principal,
    said: T,
) -> Result<T, Rejection> {
    if *principal == Principal::Operator {
        return Ok(said);
    }
    Err(Rejection::new(
        Reason::NotPermitted,
        format!("{member} needs an admin token"),
    ))
}
