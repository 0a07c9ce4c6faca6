//! Tokens of workspaces, of orgs and for the canvas (`docs/reference/http-api.md`, "Tokens"). A token appears only in the answer to
//! the request that created it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use http::StatusCode;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::body::{Json, OptionalJson, check_note};
use super::extract::{Caller, PathId, PathOrg, PathTokenId, not_permitted};
use super::lifecycle::editor;
use super::page::Page;
use super::workspaces::require_same_org;
use crate::audit::change::About;
use crate::gateway::Gateway;
use crate::identity::{
    CANVAS_TTL_DEFAULT, CredentialKind, IssuedToken, NewCanvas, Principal, TokenRow,
};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::workspace::Timestamp;

/// Maximum workspaces in one canvas token: each is looked up before the token is created.
const CANVAS_WORKSPACES_MAX: usize = 200;

#[derive(Serialize)]
struct Issued<'a> {
    id: &'a str,
    token: &'a str,
    prefix: &'a str,
    created_at: Timestamp,
}

/// A page of a list of tokens.
#[derive(Serialize)]
pub(super) struct Listed<T> {
    tokens: Vec<T>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
pub(super) struct WorkspaceToken {
    id: String,
    prefix: String,
    created_at: Timestamp,
    last_used_at: Option<Timestamp>,
    /// Present only for enrolment tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

#[derive(Serialize)]
pub(super) struct OrgToken {
    id: String,
    prefix: String,
    note: Option<String>,
    created_at: Timestamp,
}

#[derive(Serialize)]
pub(super) struct Revoked {
    status: &'static str,
}

/// `GET /workspaces/{id}/tokens`.
pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    page: Page,
) -> Result<Answer<Listed<WorkspaceToken>>, Rejection> {
    caller.require_own_existing(&gateway, &id).await?;
    let (after, look_ahead) = (&page.after, page.look_ahead());
    let rows = gateway
        .identity
        .tokens
        .list_workspace(&id, after, look_ahead);
    Ok(listed(&page, rows.await?, |row| WorkspaceToken {
        id: row.token_id,
        prefix: row.prefix,
        created_at: Timestamp(row.created_at),
        last_used_at: row.last_used_at.map(Timestamp),
        expires_at: row.expires_at.map(Timestamp),
    }))
}

/// `POST /workspaces/{id}/tokens`. Needs no body.
pub(super) async fn issue(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
) -> Result<Response, Rejection> {
    caller.require_own_existing(&gateway, &id).await?;
    if caller.principal().workspace().is_some() {
        gateway.hierarchy.require_running(&id).await?;
    }
    Ok(issued(&gateway.identity.tokens.issue_workspace(&id).await?))
}

/// `DELETE /workspaces/{id}/tokens/{token_id}`.
pub(super) async fn revoke(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    PathTokenId(token_id): PathTokenId,
    caller: Caller,
) -> Result<Answer<Revoked>, Rejection> {
    caller.require_own_existing(&gateway, &id).await?;
    let found = gateway.identity.tokens.revoke_workspace(&id, &token_id);
    revoked(found.await?)
}

#[derive(Serialize)]
struct Enrolment<'a> {
    enrolment_token: &'a str,
    expires_at: Timestamp,
}

/// `POST /workspaces/{id}/enrolment`: issues an enrolment token for an agent that lost its token. Needs no body.
pub(super) async fn enrol(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
) -> Result<Response, Rejection> {
    editor(&gateway, &caller, &id).await?;
    if let Principal::Org { .. } = caller.principal() {
        gateway.hierarchy.require_ungranted(&id).await?;
    }
    let (token, expires_at) = gateway.identity.tokens.issue_enrolment(&id).await?;
    let about = About::default().with("token_id", token.token_id.as_str());
    let answer = Enrolment {
        enrolment_token: token.token.expose_secret(),
        expires_at: Timestamp(expires_at),
    };
    Ok((StatusCode::CREATED, Extension(about), Answer(answer)).into_response())
}

/// `GET /orgs/{org}/tokens`.
pub(super) async fn list_org(
    State(gateway): State<Arc<Gateway>>,
    PathOrg(org): PathOrg,
    caller: Caller,
    page: Page,
) -> Result<Answer<Listed<OrgToken>>, Rejection> {
    caller.require_operator()?;
    let (after, look_ahead) = (&page.after, page.look_ahead());
    let rows = gateway.identity.tokens.list_org(&org, after, look_ahead);
    Ok(listed(&page, rows.await?, |row| OrgToken {
        id: row.token_id,
        prefix: row.prefix,
        note: row.note,
        created_at: Timestamp(row.created_at),
    }))
}

/// The body of `POST /orgs/{org}/tokens`, which may be missing.
#[derive(Default, Deserialize)]
pub(super) struct NewOrgToken {
    note: Option<String>,
}

/// `POST /orgs/{org}/tokens`.
pub(super) async fn issue_org(
    State(gateway): State<Arc<Gateway>>,
    PathOrg(org): PathOrg,
    caller: Caller,
    OptionalJson(new): OptionalJson<NewOrgToken>,
) -> Result<Response, Rejection> {
    caller.require_operator()?;
    let note = new.note.as_deref();
    check_note(note)?;
    Ok(issued(
        &gateway.identity.tokens.issue_org(&org, note).await?,
    ))
}

/// `DELETE /orgs/{org}/tokens/{token_id}`.
pub(super) async fn revoke_org(
    State(gateway): State<Arc<Gateway>>,
    PathOrg(org): PathOrg,
    PathTokenId(token_id): PathTokenId,
    caller: Caller,
) -> Result<Answer<Revoked>, Rejection> {
    caller.require_operator()?;
    revoked(gateway.identity.tokens.revoke_org(&org, &token_id).await?)
}

/// The body of `POST /canvas/tokens`.
#[derive(Deserialize)]
pub(super) struct NewCanvasToken {
    user: String,
    org: Option<String>,
    workspaces: Option<Vec<String>>,
    ttl_seconds: Option<u64>,
}

#[derive(Serialize)]
struct IssuedCanvas {
    token: String,
    expires_at: Timestamp,
    /// Lifetime in seconds.
    expires_in: u64,
}

/// `POST /canvas/tokens`.
pub(super) async fn issue_canvas(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Json(new): Json<NewCanvasToken>,
) -> Result<Response, Rejection> {
    let org = match caller.principal() {
        Principal::Operator => new.org.as_deref(),
        Principal::Org { org } => {
            require_same_org(org, new.org.as_deref())?;
            Some(org.as_str())
        }
        Principal::Workspace { .. } | Principal::Canvas { .. } => {
            return Err(not_permitted("this needs an admin token or an org token"));
        }
    };
    let workspaces = new.workspaces.as_deref().map(parse_list).transpose()?;
    // The list alone decides which workspaces the user may reach, so callers may only list workspaces that they may
    // reach themselves.
    for id in workspaces.iter().flatten() {
        gateway.hierarchy.permit(&caller.0, id).await?;
    }
    let ttl = new
        .ttl_seconds
        .map_or(CANVAS_TTL_DEFAULT, Duration::from_secs);
    let (token, expires_at) = gateway.identity.signed.issue_canvas(&NewCanvas {
        user: &new.user,
        org,
        workspaces: workspaces.as_deref(),
        ttl,
        maker: Some(&caller.0),
    })?;
    let about = About::default()
        .with("kind", CredentialKind::Canvas.as_str())
        .with("org", org)
        .with("user", new.user.as_str());
    let answer = IssuedCanvas {
        token,
        expires_at: Timestamp(expires_at),
        expires_in: ttl.as_secs(),
    };
    Ok((StatusCode::CREATED, Extension(about), Answer(answer)).into_response())
}

fn parse_list(ids: &[String]) -> Result<Vec<WorkspaceId>, Rejection> {
    if !(1..=CANVAS_WORKSPACES_MAX).contains(&ids.len()) {
        let message = "`workspaces` names 1 to 200 workspaces; leave it out for all of the org";
        return Err(Rejection::new(Reason::InvalidParams, message));
    }
    let ids = ids.iter().map(|id| WorkspaceId::parse(id));
    Ok(ids.collect::<Result<_, _>>()?)
}

fn issued(token: &IssuedToken) -> Response {
    let answer = Issued {
        id: &token.token_id,
        token: token.token.expose_secret(),
        prefix: &token.prefix,
        created_at: Timestamp(token.created_at),
    };
    let about = About::default().with("token_id", token.token_id.as_str());
    (StatusCode::CREATED, Extension(about), Answer(answer)).into_response()
}

fn listed<T>(
    page: &Page,
    mut rows: Vec<TokenRow>,
    show: impl Fn(TokenRow) -> T,
) -> Answer<Listed<T>> {
    let next_cursor = page.cut(&mut rows, |row| &row.token_id);
    let tokens = rows.into_iter().map(show).collect();
    Answer(Listed {
        tokens,
        next_cursor,
    })
}

fn revoked(found: bool) -> Result<Answer<Revoked>, Rejection> {
    if found {
        return Ok(Answer(Revoked { status: "revoked" }));
    }
    Err(Rejection::new(
        Reason::NotFound,
        "there is no such token here; the list has the ids",
    ))
}
