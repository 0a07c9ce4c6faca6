//! `/workspaces/{id}`: changes, pause, resume and removal, by operators and, within their org, by org tokens.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use super::body::{Json, OptionalJson};
use super::change_facts::about_change;
use super::dry_run::{ChangeResponse, status_json};
use super::extract::{Caller, PathId, is_root_of, not_permitted};
use super::workspaces::{check_setters, editor_role, workspace_response};
use access::hierarchy::Permit;
use access::workspace::{SettingsPatch, Workspace};
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use directory::{Change, Editor};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// `PATCH /workspaces/{id}`.
pub(super) async fn change_workspace(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    Json(patch): Json<SettingsPatch>,
) -> Result<Response, Rejection> {
    let (editor, _) = find_editor(&gateway, &caller, &id).await?;
    if patch.parent_id.is_some() && is_root_of(&caller, &id) {
        // Also to where it is: the answer would tell.
        return Err(not_permitted(
            "the token looks after this workspace and those below it: moving it needs an admin token",
        ));
    }
    check_setters(&caller, &patch)?;
    let mut change = Change::parse(patch)?;
    change.recheck = Some(caller.recheck(&gateway, Some(&id)));
    let workspace = gateway
        .directory
        .registrations
        .change(&id, &change, editor, caller.run())
        .await?;
    let about = about_change(ChangeFacts::for_workspace(&id), &change);
    let mut response = show_changed(&gateway, &caller, workspace).await?;
    response.extensions_mut().insert(about);
    Ok(response)
}

/// Body of the routes that need none. Its content is ignored.
#[derive(Default, Deserialize)]
pub(super) struct EmptyBody {}

/// `POST /workspaces/{id}/pause`.
pub(super) async fn pause_workspace(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    OptionalJson(EmptyBody {}): OptionalJson<EmptyBody>,
) -> Result<Response, Rejection> {
    find_editor(&gateway, &caller, &id).await?;
    let registrations = &gateway.directory.registrations;
    let workspace = registrations.pause(&id, caller.run()).await?;
    show_changed(&gateway, &caller, workspace).await
}

/// `POST /workspaces/{id}/resume`.
pub(super) async fn resume_workspace(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    OptionalJson(EmptyBody {}): OptionalJson<EmptyBody>,
) -> Result<Response, Rejection> {
    find_editor(&gateway, &caller, &id).await?;
    let registrations = &gateway.directory.registrations;
    let workspace = registrations.resume(&id, caller.run()).await?;
    show_changed(&gateway, &caller, workspace).await
}

/// Returns the answer to a change, with the workspace after it.
async fn show_changed(
    gateway: &Gateway,
    caller: &Caller,
    workspace: Workspace,
) -> Result<Response, Rejection> {
    let shown = workspace_response(gateway, caller, workspace, caller.run()).await;
    shown.map_err(|why| why.after_commit(false))
}

/// `DELETE /workspaces/{id}`.
pub(super) async fn remove_workspace(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
) -> Result<Answer<ChangeResponse<Value>>, Rejection> {
    // Also if it was removed before: the earlier removal may not have completed.
    if let Err(refusal) = find_editor(&gateway, &caller, &id).await
        && !is_gone(&refusal)
    {
        return Err(refusal);
    }
    if is_root_of(&caller, &id) {
        return Err(not_permitted(
            "the token looks after this workspace and those below it: removing it needs an admin token, or a token of \
             the whole org",
        ));
    }
    let registrations = &gateway.directory.registrations;
    let removed = registrations.remove(&id, caller.run()).await;
    if !caller.run().is_dry() && removed.as_ref().err().is_none_or(is_gone) {
        let revoked = gateway.identity.tokens.revoke_all(&id).await;
        revoked.map_err(|away| match removed {
            Ok(()) => Rejection::from(away).after_commit(false),
            Err(_) => away.into(),
        })?;
    }
    removed?;
    Ok(caller.respond(status_json("removed")))
}

fn is_gone(refusal: &Rejection) -> bool {
    refusal.reason == Reason::WorkspaceRemoved
}

/// Returns the role in which the caller changes `id`, and the permit. A caller without access learns nothing of it.
pub(super) async fn find_editor(
    gateway: &Gateway,
    caller: &Caller,
    id: &WorkspaceId,
) -> Result<(Editor, Permit), Rejection> {
    let editor = editor_role(caller)?;
    let permit = gateway.hierarchy.permit(&caller.0, id).await?;
    Ok((editor, permit))
}
