//! `/grants`: permissions to message besides those of the hierarchy (`docs/reference/http-api.md`, "Grants"). Operators
//! only.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::body::{Json, check_note};
use super::dry_run::{ChangeResponse, status_json};
use super::extract::{Caller, PathGrantId};
use super::page::{Ends, Page};
use access::hierarchy::{Grant, NewGrant};
use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// The body of `POST /grants`.
#[derive(Deserialize, ToSchema)]
pub(super) struct GrantRequest {
    #[schema(value_type = WorkspaceId)]
    caller_id: String,
    #[schema(value_type = WorkspaceId)]
    target_id: String,
    /// In the future.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    #[schema(max_length = 256, pattern = r"^[^\x00-\x1F\x7F-\x9F]*$")]
    note: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Grant)]
pub(super) struct GrantResponse {
    id: String,
    #[schema(value_type = WorkspaceId)]
    caller_id: String,
    #[schema(value_type = WorkspaceId)]
    target_id: String,
    note: Option<String>,
    expires_at: Option<Timestamp>,
    created_at: Timestamp,
}

#[derive(Serialize)]
pub(super) struct GrantPage {
    grants: Vec<GrantResponse>,
    next_cursor: Option<String>,
}

/// `POST /grants`.
pub(super) async fn create_grant(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Json(new): Json<GrantRequest>,
) -> Result<Response, Rejection> {
    if let Ok(target) = WorkspaceId::parse(&new.target_id) {
        caller.set_target(&target);
    }
    caller.require_operator()?;
    check_note(new.note.as_deref())?;
    let new = NewGrant {
        caller: WorkspaceId::parse(&new.caller_id)?,
        target: WorkspaceId::parse(&new.target_id)?,
        expires_at: parse_expiry(new.expires_at.as_deref())?,
        note: new.note,
    };
    let grant = gateway.hierarchy.put_grant(&new, caller.run()).await?;
    let about = ChangeFacts::for_workspace(&new.target)
        .with_fact("caller_id", new.caller.as_str())
        .with_fact("expires_at", new.expires_at.map(|at| at.to_string()))
        .with_fact("grant_id", grant.id.as_str());
    Ok(caller.respond_created(about, grant_response(grant)))
}

fn parse_expiry(text: Option<&str>) -> Result<Option<Timestamp>, Rejection> {
    let Some(text) = text else {
        return Ok(None);
    };
    let time = Timestamp::parse(text);
    time.map(Some).ok_or_else(|| {
        let message = "`expires_at` is a time by RFC 3339, such as 2026-11-21T10:00:00Z";
        Rejection::new(Reason::InvalidParams, message)
    })
}

/// `GET /grants`.
pub(super) async fn list_grants(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    page: Page,
    ends: Ends,
) -> Result<Answer<GrantPage>, Rejection> {
    caller.require_operator()?;
    let (one, other) = (ends.caller.as_ref(), ends.target.as_ref());
    let grants = gateway
        .hierarchy
        .list_grants(one, other, &page.after, page.look_ahead());
    let mut grants = grants.await?;
    let next_cursor = page.truncate_page(&mut grants, |grant| &grant.id);
    Ok(Answer(GrantPage {
        grants: grants.into_iter().map(grant_response).collect(),
        next_cursor,
    }))
}

/// `DELETE /grants/{grant_id}`.
pub(super) async fn remove_grant(
    State(gateway): State<Arc<Gateway>>,
    PathGrantId(id): PathGrantId,
    caller: Caller,
) -> Result<Answer<ChangeResponse<Value>>, Rejection> {
    caller.require_operator()?;
    if gateway.hierarchy.remove_grant(&id, caller.run()).await? {
        return Ok(caller.respond(status_json("removed")));
    }
    Err(Rejection::new(
        Reason::NotFound,
        "there is no such grant; GET /grants has the ids",
    ))
}

fn grant_response(grant: Grant) -> GrantResponse {
    GrantResponse {
        id: grant.id,
        caller_id: grant.caller.to_string(),
        target_id: grant.target.to_string(),
        note: grant.note,
        expires_at: grant.expires_at,
        created_at: grant.created_at,
    }
}
