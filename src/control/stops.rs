//! `/stops`: stops calls of and to a workspace, a subtree, an org, a pair, or all (`docs/reference/http-api.md`, "Stops").
//! Operators; org tokens within their org.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::body::Json;
use super::dry_run::{Changer, told};
use super::extract::{Caller, PathStopId, not_permitted};
use super::page::Page;
use crate::audit::change::About;
use crate::gateway::Gateway;
use crate::hierarchy::Permit;
use crate::identity::Principal;
use crate::rejection::{Reason, Rejection};
use crate::stops::{
    Cancel, Counts, Mode, NewStop, Scope, Stop, TaskOutcome, read_expiry, read_mode, read_reason,
    read_scope,
};
use crate::workspace::Timestamp;

/// The body of `POST /stops`.
#[derive(Deserialize)]
pub(super) struct New {
    scope: Map<String, Value>,
    mode: String,
    reason: String,
    expires_at: Option<String>,
    #[serde(default)]
    cancel_tasks: bool,
}

#[derive(Serialize)]
pub(super) struct Shown {
    id: String,
    scope: Value,
    mode: Mode,
    reason: String,
    created_by: String,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    /// The cancellation of its tasks; `null`: it was not asked for.
    cancel: Value,
}

#[derive(Serialize)]
pub(super) struct Listed {
    stops: Vec<Shown>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Released {
    status: &'static str,
    #[serde(flatten)]
    stop: Shown,
}

/// Returns the org that the caller is confined to; `None` for an operator.
///
/// # Errors
/// `not_permitted`.
fn authority(caller: &Caller) -> Result<Option<&str>, Rejection> {
    match caller.principal() {
        Principal::Operator => Ok(None),
        Principal::Org { org } => Ok(Some(org)),
        Principal::Workspace { .. } | Principal::Canvas { .. } => Err(not_permitted(
            "this needs an admin token, or a token of the org",
        )),
    }
}

/// `POST /stops`.
pub(super) async fn create(
    State(gateway): State<Arc<Gateway>>,
    Changer { caller, run }: Changer,
    Json(new): Json<New>,
) -> Result<Response, Rejection> {
    let by_org = authority(&caller)?.map(str::to_owned);
    let scope = read_scope(&new.scope)?;
    if let Some(id) = scope.named().last() {
        caller.means(id);
    }
    let org = org_of(&gateway, &caller, &scope, by_org.as_deref()).await?;
    let mode = read_mode(&new.mode)?;
    if new.cancel_tasks && mode == Mode::New {
        return Err(wrong(
            r#"`cancel_tasks` goes with mode "running": with "new" what is under way goes on"#,
        ));
    }
    let reason = read_reason(&new.reason)?;
    let new = NewStop {
        scope,
        org,
        by_org,
        mode,
        reason: reason.to_owned(),
        created_by: caller.0.principal.name().into_owned(),
        expires_at: expiry(new.expires_at.as_deref())?,
        cancel_tasks: new.cancel_tasks,
    };
    let stop = gateway.stops.stop(&new, run).await?;
    let about = about(&stop)
        .with("cancel_tasks", new.cancel_tasks)
        .with("expires_at", stop.expires_at.map(|at| at.to_string()))
        .with("mode", stop.mode.as_str())
        .with("reason", stop.reason.as_str());
    let shown = shown(stop, &Counts::default());
    Ok((StatusCode::CREATED, Extension(about), told(run, shown)).into_response())
}

/// `GET /stops`.
pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    page: Page,
) -> Result<Answer<Listed>, Rejection> {
    let org = authority(&caller)?;
    let stops = gateway.stops.list(org, &page.after, page.look_ahead());
    let mut stops = stops.await?;
    let next_cursor = page.cut(&mut stops, |stop| &stop.id);
    let mut listed = Vec::with_capacity(stops.len());
    for stop in stops {
        let counts = match stop.cancel {
            Cancel::None => Counts::default(),
            _ => gateway.stops.counts(&stop.id).await?,
        };
        listed.push(shown(stop, &counts));
    }
    Ok(Answer(Listed {
        stops: listed,
        next_cursor,
    }))
}

/// `DELETE /stops/{stop_id}`.
pub(super) async fn release(
    State(gateway): State<Arc<Gateway>>,
    PathStopId(id): PathStopId,
    Changer { caller, run }: Changer,
) -> Result<Response, Rejection> {
    if let Some(org) = authority(&caller)? {
        let found = gateway.stops.get(&id).await?;
        // One of another org looks like one that does not exist.
        if found.is_none_or(|stop| stop.by_org.as_deref() != Some(org)) {
            return Err(not_permitted(
                "a token of an org releases what a token of that org stopped: this needs an admin token",
            ));
        }
    }
    let Some((stop, counts)) = gateway.stops.release(&id, run).await? else {
        return Err(Rejection::new(
            Reason::NotFound,
            "there is no such stop: it was released, or has expired; GET /stops has the ids",
        ));
    };
    let about = about(&stop).with("by", "request");
    let released = Released {
        status: "released",
        stop: shown(stop, &counts),
    };
    Ok((Extension(about), told(run, released)).into_response())
}

fn about(stop: &Stop) -> About {
    let about = match stop.scope.named().last() {
        Some(id) => About::workspace(id),
        None => About::default(),
    };
    about
        .with("scope", stop.scope.json())
        .with("stop_id", stop.id.as_str())
}

/// Checks that the caller may stop what the scope names, and returns the one org of that.
///
/// # Errors
/// `not_permitted`; `workspace_not_found` and `workspace_removed` for callers that may know; `store_unavailable`.
async fn org_of(
    gateway: &Gateway,
    caller: &Caller,
    scope: &Scope,
    by_org: Option<&str>,
) -> Result<Option<String>, Rejection> {
    match scope {
        Scope::Org(org) if by_org.is_none_or(|by| by == org) => return Ok(Some(org.clone())),
        Scope::All if by_org.is_none() => return Ok(None),
        Scope::Org(_) | Scope::All => {
            return Err(not_permitted(
                "a token of an org stops calls of that org: this needs an admin token",
            ));
        }
        Scope::Workspace(_) | Scope::Subtree(_) | Scope::Pair(..) => {}
    }
    let mut orgs = Vec::new();
    for id in scope.named() {
        let permit: Permit = gateway.hierarchy.permit(&caller.0, id).await?;
        orgs.push(permit.to().and_then(|place| place.org.clone()));
    }
    orgs.dedup();
    let one = orgs.len() == 1;
    Ok(orgs.pop().flatten().filter(|_| one))
}

fn expiry(text: Option<&str>) -> Result<Option<Timestamp>, Rejection> {
    let Some(text) = text else {
        return Ok(None);
    };
    let at = read_expiry(text)?;
    if at <= Timestamp::now() {
        return Err(wrong(
            "`expires_at` has passed; name a time in the future, or leave it out",
        ));
    }
    Ok(Some(at))
}

fn wrong(message: impl Into<std::borrow::Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::InvalidParams, message)
}

fn shown(stop: Stop, counts: &Counts) -> Shown {
    let count = |outcome| counts.get(&outcome).copied().unwrap_or(0);
    let cancel = match stop.cancel {
        Cancel::None => Value::Null,
        state => json!({
            "state": state.as_str(),
            "tasks": counts.values().sum::<i64>(),
            "pending": count(TaskOutcome::Pending),
            "canceled": count(TaskOutcome::Canceled),
            "over": count(TaskOutcome::Over),
            "failed": count(TaskOutcome::Failed),
        }),
    };
    Shown {
        id: stop.id,
        scope: stop.scope.json(),
        mode: stop.mode,
        reason: stop.reason,
        created_by: stop.created_by,
        created_at: stop.created_at,
        expires_at: stop.expires_at,
        cancel,
    }
}
