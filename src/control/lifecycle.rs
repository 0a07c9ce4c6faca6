//! `/workspaces/{id}`: changes, pause, resume and removal, by operators and, within their org, by org tokens.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::body::{Json, OptionalJson};
use super::change_facts::about_change;
use super::dry_run::{ChangeResponse, Changer, change_response};
use super::extract::{Caller, PathId, is_root_of, not_permitted};
use super::workspaces::{
    operators_only, parse_optional, parse_probe, parse_upstream_auth, parse_upstream_tls,
    parse_wake, workspace_response,
};
use crate::audit::change::ChangeFacts;
use crate::config::{Bridging, CardAccess, CompletionMode, RefusalStatus};
use crate::directory::{Change, Editor};
use crate::gateway::Gateway;
use crate::hierarchy::Permit;
use crate::identity::Principal;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::workspace::{CallerProof, DeliveryMode, Liveness, Move, Resolve, Status};

/// Body of `PATCH /workspaces/{id}`. An absent member is unchanged. `null` clears a member that can be cleared,
/// and is a wrong type for any other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Patch {
    #[serde(default, deserialize_with = "deserialize_present")]
    name: Option<String>,
    #[serde(default, deserialize_with = "deserialize_present")]
    role: Option<Option<String>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    parent_id: Option<Option<String>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    org: Option<Option<String>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    url: Option<Option<String>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    internal_url: Option<Option<String>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    card_url: Option<Option<String>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    urls: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    delivery_mode: Option<DeliveryMode>,
    #[serde(default, deserialize_with = "deserialize_present")]
    max_concurrent: Option<Option<u32>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    liveness: Option<Liveness>,
    #[serde(default, deserialize_with = "deserialize_present")]
    complete: Option<Option<CompletionMode>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    push_notifications: Option<Option<bool>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    card_access: Option<Option<CardAccess>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    proof: Option<Option<CallerProof>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    bridge: Option<Option<Bridging>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    refusal_status: Option<Option<RefusalStatus>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    resolve: Option<Option<Resolve>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    upstream_auth: Option<Option<Box<RawValue>>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    upstream_tls: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    wake: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    probe: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    status: Option<Status>,
}

/// Deserializes a present member, `null` included. serde's own `Option` treats `null` as absent.
fn deserialize_present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(reader).map(Some)
}

impl Patch {
    fn into_change(self, principal: &Principal) -> Result<Change, Rejection> {
        let parent_id = match &self.parent_id {
            Some(parent_id) => Some(parse_optional(parent_id.as_deref())?),
            None => None,
        };
        let upstream_auth = match &self.upstream_auth {
            Some(auth) => Some(parse_upstream_auth(auth.as_deref())?),
            None => None,
        };
        let upstream_tls = match &self.upstream_tls {
            Some(tls) => Some(parse_upstream_tls(principal, tls)?),
            None => None,
        };
        let wake = match &self.wake {
            Some(wake) => Some(parse_wake(principal, wake)?),
            None => None,
        };
        let probe = match &self.probe {
            Some(probe) => Some(parse_probe(principal, probe)?),
            None => None,
        };
        let card_access = match self.card_access {
            Some(access) => Some(operators_only("card_access", principal, access)?),
            None => None,
        };
        let urls = match self.urls {
            Some(urls) => Some(operators_only("urls", principal, urls)?),
            None => None,
        };
        let resolve = match self.resolve {
            Some(resolve) => Some(operators_only("resolve", principal, resolve)?),
            None => None,
        };
        Ok(Change {
            recheck: None,
            name: self.name,
            role: self.role,
            place: Move {
                parent_id,
                org: self.org,
            },
            url: self.url,
            internal_url: self.internal_url,
            card_url: self.card_url,
            urls,
            delivery_mode: self.delivery_mode,
            max_concurrent: self.max_concurrent,
            liveness: self.liveness,
            complete: self.complete,
            push_notifications: self.push_notifications,
            card_access,
            proof: self.proof,
            bridge: self.bridge,
            refusal_status: self.refusal_status,
            resolve,
            upstream_auth,
            upstream_tls,
            wake,
            probe,
            status: self.status,
        })
    }
}

/// `PATCH /workspaces/{id}`.
pub(super) async fn change_workspace(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    Changer { caller, run }: Changer,
    Json(patch): Json<Patch>,
) -> Result<Response, Rejection> {
    let editor = find_editor(&gateway, &caller, &id).await?;
    if patch.parent_id.is_some() && is_root_of(&caller, &id) {
        // Also to where it is: the answer would tell.
        return Err(not_permitted(
            "the token looks after this workspace and those below it: moving it needs an admin token",
        ));
    }
    let mut change = patch.into_change(caller.principal())?;
    change.recheck = Some(caller.recheck(&gateway, Some(&id)));
    let workspace = gateway
        .directory
        .registrations
        .change(&id, &change, editor, run)
        .await?;
    let about = about_change(ChangeFacts::for_workspace(&id), &change);
    let shown = workspace_response(&gateway, &caller, workspace, run).await;
    let mut response = shown.map_err(|why| why.after_commit(false))?;
    response.extensions_mut().insert(about);
    Ok(response)
}

/// Body of the routes that need none. Its content is ignored.
#[derive(Default, Deserialize)]
pub(super) struct NoBody {}

/// `POST /workspaces/{id}/pause`.
pub(super) async fn pause_workspace(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    Changer { caller, run }: Changer,
    OptionalJson(NoBody {}): OptionalJson<NoBody>,
) -> Result<Response, Rejection> {
    find_editor(&gateway, &caller, &id).await?;
    let workspace = gateway.directory.registrations.pause(&id, run).await?;
    let shown = workspace_response(&gateway, &caller, workspace, run).await;
    shown.map_err(|why| why.after_commit(false))
}

/// `POST /workspaces/{id}/resume`.
pub(super) async fn resume_workspace(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    Changer { caller, run }: Changer,
    OptionalJson(NoBody {}): OptionalJson<NoBody>,
) -> Result<Response, Rejection> {
    find_editor(&gateway, &caller, &id).await?;
    let workspace = gateway.directory.registrations.resume(&id, run).await?;
    let shown = workspace_response(&gateway, &caller, workspace, run).await;
    shown.map_err(|why| why.after_commit(false))
}

#[derive(Serialize)]
pub(super) struct RemoveResponse {
    status: &'static str,
}

/// `DELETE /workspaces/{id}`.
pub(super) async fn remove_workspace(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    Changer { caller, run }: Changer,
) -> Result<axum::Json<ChangeResponse<RemoveResponse>>, Rejection> {
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
    let removed = gateway.directory.registrations.remove(&id, run).await;
    if !run.is_dry() && removed.as_ref().err().is_none_or(is_gone) {
        let revoked = gateway.identity.tokens.revoke_all(&id).await;
        revoked.map_err(|away| match removed {
            Ok(()) => Rejection::from(away).after_commit(false),
            Err(_) => away.into(),
        })?;
    }
    removed?;
    Ok(change_response(run, RemoveResponse { status: "removed" }))
}

fn is_gone(refusal: &Rejection) -> bool {
    refusal.reason == Reason::WorkspaceRemoved
}

/// Returns the role in which the caller changes `id`. A caller without access learns nothing of it.
pub(super) async fn find_editor(
    gateway: &Gateway,
    caller: &Caller,
    id: &WorkspaceId,
) -> Result<Editor, Rejection> {
    find_permitted_editor(gateway, caller, id)
        .await
        .map(|(editor, _)| editor)
}

/// As [`find_editor`], with the permit.
pub(super) async fn find_permitted_editor(
    gateway: &Gateway,
    caller: &Caller,
    id: &WorkspaceId,
) -> Result<(Editor, Permit), Rejection> {
    let editor = match caller.principal() {
        Principal::Operator => Editor::Operator,
        Principal::Org { .. } => Editor::Org,
        Principal::Workspace { .. } | Principal::Canvas { .. } => {
            return Err(not_permitted("this needs an admin token or an org token"));
        }
    };
    let permit = gateway.hierarchy.permit(&caller.0, id).await?;
    Ok((editor, permit))
}
