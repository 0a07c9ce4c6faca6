//! `/grants`: permissions to message besides those of the hierarchy (`docs/reference/http-api.md`, "Grants"). Operators only.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::body::{Json, check_note};
use super::dry_run::{Changer, Told, told};
use super::extract::{Caller, PathGrantId};
use super::page::{Ends, Page};
use crate::audit::change::About;
use crate::gateway::Gateway;
use crate::hierarchy::{Grant, NewGrant};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::workspace::Timestamp;

/// The body of `POST /grants`.
#[derive(Deserialize)]
pub(super) struct New {
    caller_id: String,
    target_id: String,
    expires_at: Option<String>,
    note: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Shown {
    id: String,
    caller_id: String,
    target_id: String,
    note: Option<String>,
    expires_at: Option<Timestamp>,
    created_at: Timestamp,
}

#[derive(Serialize)]
pub(super) struct Listed {
    grants: Vec<Shown>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Removed {
    status: &'static str,
}

/// `POST /grants`.
pub(super) async fn create(
    State(gateway): State<Arc<Gateway>>,
    Changer { caller, run }: Changer,
    Json(new): Json<New>,
) -> Result<Response, Rejection> {
    if let Ok(target) = WorkspaceId::parse(&new.target_id) {
        caller.means(&target);
    }
    caller.require_operator()?;
    let (one, other) = (&new.caller_id, &new.target_id);
    let (caller, target) = (WorkspaceId::parse(one)?, WorkspaceId::parse(other)?);
    let expires_at = expiry(new.expires_at.as_deref())?;
    check_note(new.note.as_deref())?;
    let new = NewGrant {
        caller,
        target,
        expires_at,
        note: new.note,
    };
    let grant = gateway.hierarchy.grant(&new, run).await?;
    let about = About::workspace(&new.target)
        .with("caller_id", new.caller.as_str())
        .with("expires_at", new.expires_at.map(|at| at.to_string()))
        .with("grant_id", grant.id.as_str());
    Ok((
        StatusCode::CREATED,
        Extension(about),
        told(run, shown(grant)),
    )
        .into_response())
}

fn expiry(text: Option<&str>) -> Result<Option<Timestamp>, Rejection> {
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
pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    page: Page,
    ends: Ends,
) -> Result<Answer<Listed>, Rejection> {
    caller.require_operator()?;
    let (one, other) = (ends.caller.as_ref(), ends.target.as_ref());
    let grants = gateway
        .hierarchy
        .list_grants(one, other, &page.after, page.look_ahead());
    let mut grants = grants.await?;
    let next_cursor = page.cut(&mut grants, |grant| &grant.id);
    Ok(Answer(Listed {
        grants: grants.into_iter().map(shown).collect(),
        next_cursor,
    }))
}

/// `DELETE /grants/{grant_id}`.
pub(super) async fn remove(
    State(gateway): State<Arc<Gateway>>,
    PathGrantId(id): PathGrantId,
    Changer { caller, run }: Changer,
) -> Result<Answer<Told<Removed>>, Rejection> {
    caller.require_operator()?;
    if gateway.hierarchy.remove_grant(&id, run).await? {
        return Ok(told(run, Removed { status: "removed" }));
    }
    Err(Rejection::new(
        Reason::NotFound,
        "there is no such grant; GET /grants has the ids",
    ))
}

fn shown(grant: Grant) -> Shown {
    Shown {
        id: grant.id,
        caller_id: grant.caller.to_string(),
        target_id: grant.target.to_string(),
        note: grant.note,
        expires_at: grant.expires_at,
        created_at: grant.created_at,
    }
}
