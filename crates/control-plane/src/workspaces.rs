//! `/workspaces`: creation and reading (`docs/reference/http-api.md`, "Workspaces").

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::LOCATION;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;

use super::body::Json;
use super::change_facts::about_creation;
use super::dry_run::change_response;
use super::extract::{Caller, PathId, is_root_of, not_permitted};
use access::identity::{EnrolmentMaker, NewEnrolment, Principal};
use access::workspace::{
    NewWorkspaceBody, SetBy, SettingsPatch, Status, UrlVisibility, Workspace, WorkspaceView,
};
use assembly::gateway::Gateway;
use assembly::policy;
use directory::{Change, Creation, Editor};
use kernel::health::Health;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use stores::store::Run;

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
    caller: Caller,
    Json(new): Json<NewWorkspaceBody>,
) -> Result<Response, Rejection> {
    let recreates = new.recreate && new.id.is_some();
    if new.recreate {
        operators_only("recreate", &caller)?;
    }
    let mut creation = check_creation(&gateway, &caller, new).await?;
    let maker = match creation.editor {
        Editor::Org => EnrolmentMaker::Org(None),
        Editor::Operator => EnrolmentMaker::Operator,
    };
    let stored = NewEnrolment::new(&creation.id, maker);
    let enrolment = stored.token.token.clone();
    creation.enrolment = Some(stored);
    creation.change.recheck = Some(caller.recheck(&gateway, None));
    let workspace = match recreates && is_removed(&gateway, &creation.id).await? {
        true => policy::recreate_workspace(&gateway, &creation, caller.run()).await?,
        false => {
            let registrations = &gateway.directory.registrations;
            registrations.create(&creation, caller.run()).await?
        }
    };
    let enrolment = caller.secret(enrolment);
    let created = CreateResponse {
        workspace: workspace.as_view(visible_urls(caller.principal(), &workspace.id)),
        enrolment_token: enrolment.as_ref().map(SecretString::expose_secret),
    };
    if caller.run().is_dry() {
        return Ok((StatusCode::CREATED, caller.respond(created)).into_response());
    }
    let location = [(LOCATION, format!("/workspaces/{}", workspace.id))];
    let about = about_creation(&workspace, &creation.change);
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

/// Checks a creation: an org token stays within its org, and within its subtree; without a parent its root is the
/// parent.
async fn check_creation(
    gateway: &Gateway,
    caller: &Caller,
    new: NewWorkspaceBody,
) -> Result<Creation, Rejection> {
    let editor = editor_role(caller)?;
    let id = parse_optional(new.id.as_deref())?.unwrap_or_else(WorkspaceId::random);
    let mut patch = new.into_patch();
    if patch.name.is_none() {
        return Err(Rejection::new(Reason::InvalidParams, "`name` is missing"));
    }
    if let Principal::Org { org, within } = caller.principal() {
        require_same_org(org, patch.org.as_ref().and_then(Option::as_deref))?;
        patch.org = Some(Some(org.clone()));
        let root = within.as_ref().map(|root| Some(root.id.to_string()));
        patch.parent_id = patch.parent_id.or(root);
    }
    check_setters(caller, &patch)?;
    let change = Change::parse(patch)?;
    if let (Editor::Org, Some(Some(parent))) = (editor, &change.place.parent_id) {
        // A caller learns nothing of a parent in another org.
        gateway.hierarchy.permit(&caller.0, parent).await?;
    }
    Ok(Creation {
        id,
        change,
        within: caller.principal().within().cloned(),
        enrolment: None,
        editor,
    })
}

/// Returns the role in which the caller changes workspaces.
///
/// # Errors
/// `not_permitted`.
pub(super) fn editor_role(caller: &Caller) -> Result<Editor, Rejection> {
    match caller.principal() {
        Principal::Operator => Ok(Editor::Operator),
        Principal::Org { .. } => Ok(Editor::Org),
        Principal::Workspace { .. } | Principal::Canvas { .. } => {
            Err(not_permitted("this needs an admin token or an org token"))
        }
    }
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
    let mut healths = judge_for(gateway, caller, workspaces).await.into_iter();
    let views = workspaces.iter().map(|one| {
        let view = one.as_view(sight(one)).with_health(healths.next());
        match is_root_of(caller, &one.id) {
            true => view.without_parent(),
            false => view,
        }
    });
    views.collect()
}

/// Returns how the workspaces are, for operators; none for other callers: the causes name operators and calls.
async fn judge_for(gateway: &Gateway, caller: &Caller, workspaces: &[Workspace]) -> Vec<Health> {
    if !matches!(caller.principal(), Principal::Operator) {
        return Vec::new();
    }
    let mut places = Vec::new();
    if gateway.health.needs_places() {
        for one in workspaces {
            places.push(gateway.hierarchy.load_lineage(&one.id).await.ok().flatten());
        }
    }
    gateway.health.judge_each(workspaces, &places).await
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

/// Checks that the caller may set all that a patch says. Some settings are an operator's: with TLS the gateway's client
/// certificate is shown to the server of the URL, and the CA decides which server counts as the agent; the gateway
/// calls the URL of a waker, and asks an agent with a probe by itself.
///
/// # Errors
/// `not_permitted`.
pub(super) fn check_setters(caller: &Caller, patch: &SettingsPatch) -> Result<(), Rejection> {
    let said = patch.said().into_iter();
    let mut theirs = said.filter(|setting| setting.set_by == SetBy::Operators);
    theirs.try_for_each(|setting| operators_only(setting.name, caller))
}

fn operators_only(member: &str, caller: &Caller) -> Result<(), Rejection> {
    if *caller.principal() == Principal::Operator {
        return Ok(());
    }
    let message = format!("{member} needs an admin token");
    Err(Rejection::new(Reason::NotPermitted, message))
}
