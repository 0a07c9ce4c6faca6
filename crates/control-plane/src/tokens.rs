//! Tokens of workspaces, of orgs and for the canvas (`docs/reference/http-api.md`, "Tokens"). A token appears only in
//! the answer to the request that created it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json as Answer};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Json, OptionalJson, check_note, check_token_label};
use super::dry_run::ChangeResponse;
use super::extract::{Caller, PathId, PathOrg, PathTokenId, is_root_of, not_permitted};
use super::lifecycle::find_editor;
use super::page::Page;
use super::revocations::end_chains;
use super::workspaces::{parse_optional, require_same_org};
use access::identity::{
    CANVAS_TTL_DEFAULT, CredentialKind, EnrolmentMaker, IssuedToken, NewCanvas, OrgTokenRow,
    Principal, Role, TokenRow, TokenTerms,
};
use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use directory::Editor;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// Maximum workspaces in one canvas token: each is looked up before the token is created.
const CANVAS_WORKSPACES_MAX: usize = 200;

/// Longest `expires_in` of a workspace token, in seconds: ten years of 365.25 days, as `10years` on the command line.
const EXPIRES_IN_MAX: u64 = 315_576_000;

#[derive(Serialize, ToSchema)]
#[schema(as = IssuedToken)]
pub(super) struct IssueResponse<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    token: Option<&'a str>,
    prefix: &'a str,
    /// Of an operator's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    role: Option<Role>,
    created_at: Timestamp,
    /// Of a token that was made with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    label: Option<&'a str>,
    /// Of a token that was made with an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at: Option<Timestamp>,
    /// Of an org token that looks after a subtree.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    subtree: Option<&'a str>,
}

/// A page of a list of tokens.
#[derive(Serialize)]
pub(super) struct TokenPage<T> {
    tokens: Vec<T>,
    next_cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct WorkspaceToken {
    id: String,
    prefix: String,
    created_at: Timestamp,
    last_used_at: Option<Timestamp>,
    /// What its maker called it. Absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    label: Option<String>,
    /// When it ends by itself. Enrolment tokens always do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at: Option<Timestamp>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct OrgToken {
    id: String,
    prefix: String,
    note: Option<String>,
    /// The workspace that it looks after, with those below it; absent: all of the org.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    subtree: Option<String>,
    created_at: Timestamp,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RevokedToken)]
pub(super) struct RevokeResponse {
    #[schema(pattern = "^revoked$")]
    status: &'static str,
    /// The ids of enrolment tokens that ended with the last token of their workspace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    ended: Vec<String>,
}

/// `GET /workspaces/{id}/tokens`.
pub(super) async fn list_tokens(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    page: Page,
) -> Result<Answer<TokenPage<WorkspaceToken>>, Rejection> {
    caller.require_own_existing(&gateway, &id).await?;
    let (after, look_ahead) = (&page.after, page.look_ahead());
    let rows = gateway
        .identity
        .tokens
        .list_workspace(&id, after, look_ahead);
    Ok(token_page(&page, rows.await?, |row| WorkspaceToken {
        id: row.token_id,
        prefix: row.prefix,
        created_at: Timestamp(row.created_at),
        last_used_at: row.last_used_at.map(Timestamp),
        label: row.label,
        expires_at: row.expires_at.map(Timestamp),
    }))
}

/// The body of `POST /workspaces/{id}/tokens`, which may be missing. A misspelt end would make a token without one.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewWorkspaceToken)]
pub(super) struct NewToken {
    /// What lists and records call it. No credential.
    #[schema(
        min_length = 1,
        max_length = 64,
        pattern = r"^[^\x00-\x1F\x7F-\x9F]*[^\x00-\x1F\x7F-\x9F\s][^\x00-\x1F\x7F-\x9F]*$"
    )]
    pub(super) label: Option<String>,
    /// When it ends, in the future. Not with `expires_in`.
    #[schema(format = DateTime)]
    pub(super) expires_at: Option<String>,
    /// Seconds until it ends. Not with `expires_at`.
    #[schema(minimum = 1, maximum = 315576000)]
    pub(super) expires_in: Option<u64>,
}

/// `POST /workspaces/{id}/tokens`.
pub(super) async fn issue_token(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    OptionalJson(new): OptionalJson<NewToken>,
) -> Result<Response, Rejection> {
    caller.require_own_existing(&gateway, &id).await?;
    if caller.principal().workspace().is_some() {
        gateway.hierarchy.require_running(&id).await?;
    }
    let terms = new.into_terms(Timestamp::now())?;
    refuse_outliving(&caller, &terms)?;
    let issue = gateway
        .identity
        .tokens
        .issue_workspace(&id, &terms, caller.run());
    Ok(issue_response(&caller, &issue.await?, &terms, (None, None)))
}

impl NewToken {
    /// Returns the terms on which the token is made.
    ///
    /// # Errors
    /// `invalid_params`.
    pub(super) fn into_terms(self, now: Timestamp) -> Result<TokenTerms, Rejection> {
        check_token_label(self.label.as_deref())?;
        let wrong = |message| Rejection::new(Reason::InvalidParams, message);
        let expires_at = match (self.expires_at, self.expires_in) {
            (None, None) => None,
            (Some(text), None) => {
                let at = Timestamp::parse(&text).filter(|at| *at > now);
                Some(at.ok_or_else(|| {
                    wrong("`expires_at` is a time by RFC 3339 in the future, such as 2030-11-21T10:00:00Z")
                })?)
            }
            (None, Some(seconds)) => {
                if !(1..=EXPIRES_IN_MAX).contains(&seconds) {
                    return Err(wrong(
                        "`expires_in` is a whole number of seconds from 1 to 315576000, which is ten years",
                    ));
                }
                Some(now.after(Duration::from_secs(seconds)))
            }
            (Some(_), Some(_)) => {
                return Err(wrong(
                    "`expires_at` and `expires_in` are one thing: send one of them",
                ));
            }
        };
        Ok(TokenTerms {
            label: self.label,
            expires_at: expires_at.map(|at| at.0),
        })
    }
}

/// Refuses a token that outlives the credential of the workspace that makes it: the end of that credential would count
/// for nothing. One made by the token of a platform would outlive its issuer.
fn refuse_outliving(caller: &Caller, terms: &TokenTerms) -> Result<(), Rejection> {
    if caller.0.kind == CredentialKind::Workload {
        return Err(Rejection::new(
            Reason::NotPermitted,
            "the token of a platform makes no tokens: use it itself, or ask an operator",
        ));
    }
    let of_workspace = caller.principal().workspace();
    let Some(end) = caller.0.ends_at().filter(|_| of_workspace.is_some()) else {
        return Ok(());
    };
    if terms.expires_at.is_some_and(|at| at <= end) {
        return Ok(());
    }
    Err(Rejection::new(
        Reason::NotPermitted,
        format!(
            "the credential ends at {}, and makes no token that lasts longer: send `expires_at`, or ask an operator",
            Timestamp(end)
        ),
    ))
}

/// `DELETE /workspaces/{id}/tokens/{token_id}`.
pub(super) async fn revoke_token(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    PathTokenId(token_id): PathTokenId,
    caller: Caller,
) -> Result<
    (
        Extension<ChangeFacts>,
        Answer<ChangeResponse<RevokeResponse>>,
    ),
    Rejection,
> {
    caller.require_own_existing(&gateway, &id).await?;
    let found = gateway
        .identity
        .tokens
        .revoke_workspace(&id, &token_id, caller.run());
    let ended = found.await?.ok_or_else(no_such_token)?;
    end_chains(&gateway, &caller, token_id).await?;
    let about = match &*ended {
        [] => ChangeFacts::default(),
        ids => ChangeFacts::default().with_fact("ended", ids),
    };
    let status = "revoked";
    Ok((
        Extension(about),
        caller.respond(RevokeResponse { status, ended }),
    ))
}

#[derive(Serialize, ToSchema)]
#[schema(as = Enrolment)]
pub(super) struct EnrolmentResponse<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    enrolment_token: Option<&'a str>,
    expires_at: Timestamp,
}

/// `POST /workspaces/{id}/enrolment`: issues an enrolment token for an agent that lost its token. Needs no body.
pub(super) async fn issue_enrolment(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
) -> Result<Response, Rejection> {
    let (editor, permit) = find_editor(&gateway, &caller, &id).await?;
    if is_root_of(&caller, &id) {
        return Err(not_permitted(
            "the token looks after this workspace and those below it, and a token of its own reaches further: it needs \
             an admin token, or a token of the whole org",
        ));
    }
    let maker = match editor {
        Editor::Org => {
            gateway.hierarchy.require_no_grant(&id).await?;
            // The permit may be older than a move that commits now. Then the token proves nothing.
            EnrolmentMaker::Org(permit.target_lineage().map(|place| place.generation))
        }
        Editor::Operator => EnrolmentMaker::Operator,
    };
    let tokens = &gateway.identity.tokens;
    let (token, expires_at) = tokens.issue_enrolment(&id, maker, caller.run()).await?;
    let about = ChangeFacts::default().with_fact("token_id", token.token_id.as_str());
    let answer = EnrolmentResponse {
        enrolment_token: caller.secret(token.token.expose_secret()),
        expires_at: Timestamp(expires_at),
    };
    Ok(caller.respond_created(about, answer))
}

/// `GET /orgs/{org}/tokens`.
pub(super) async fn list_org(
    State(gateway): State<Arc<Gateway>>,
    PathOrg(org): PathOrg,
    caller: Caller,
    page: Page,
) -> Result<Answer<TokenPage<OrgToken>>, Rejection> {
    caller.require_operator()?;
    let (after, look_ahead) = (&page.after, page.look_ahead());
    let rows = gateway.identity.tokens.list_org(&org, after, look_ahead);
    let show = |row: OrgTokenRow| OrgToken {
        id: row.token_id,
        prefix: row.prefix,
        note: row.note,
        subtree: row.subtree,
        created_at: Timestamp(row.created_at),
    };
    Ok(page_by(&page, rows.await?, |row| &row.token_id, show))
}

/// The body of `POST /orgs/{org}/tokens`, which may be missing. A misspelt subtree would make a token of the whole org.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewOrgToken {
    #[schema(max_length = 256, pattern = r"^[^\x00-\x1F\x7F-\x9F]*$")]
    note: Option<String>,
    /// A workspace of the org: the token looks after it and those below it, and reaches nothing else.
    #[schema(value_type = Option<WorkspaceId>)]
    subtree: Option<String>,
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
    let root = parse_optional(new.subtree.as_deref())?;
    let issue = gateway
        .identity
        .tokens
        .issue_org((&org, root.as_ref()), note, caller.run());
    let (terms, kind) = (TokenTerms::default(), (None, root.as_ref()));
    Ok(issue_response(&caller, &issue.await?, &terms, kind))
}

/// `DELETE /orgs/{org}/tokens/{token_id}`.
pub(super) async fn revoke_org(
    State(gateway): State<Arc<Gateway>>,
    PathOrg(org): PathOrg,
    PathTokenId(token_id): PathTokenId,
    caller: Caller,
) -> Result<Answer<ChangeResponse<RevokeResponse>>, Rejection> {
    caller.require_operator()?;
    let found = gateway
        .identity
        .tokens
        .revoke_org(&org, &token_id, caller.run());
    revoke_response(&caller, found.await?)
}

/// The body of `POST /canvas/tokens`.
#[derive(Deserialize, ToSchema)]
pub(super) struct NewCanvasToken {
    #[schema(pattern = "^#Label$")]
    user: String,
    #[schema(pattern = "^#Label$")]
    org: Option<String>,
    #[schema(value_type = Option<Vec<WorkspaceId>>, min_items = 1, max_items = 200)]
    workspaces: Option<Vec<String>>,
    /// The groups of the user that `access.require` may name.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, max_items = 64)]
    groups: Option<Vec<String>>,
    #[schema(minimum = 1, maximum = 86400, default = 3600)]
    ttl_seconds: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = CanvasToken)]
pub(super) struct CanvasResponse {
    /// A signed JWT.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    token: Option<String>,
    /// Its `jti`, by which it is revoked.
    id: String,
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
        Principal::Org { org, .. } => {
            require_same_org(org, new.org.as_deref())?;
            Some(org.as_str())
        }
        Principal::Workspace { .. } | Principal::Canvas { .. } => {
            return Err(not_permitted("this needs an admin token or an org token"));
        }
    };
    gateway.hierarchy.require_root(caller.principal()).await?;
    let workspaces = new.workspaces.as_deref().map(parse_list).transpose()?;
    // The list alone decides which workspaces the user may reach, so callers may only list workspaces that they may
    // reach themselves.
    for id in workspaces.iter().flatten() {
        gateway.hierarchy.permit(&caller.0, id).await?;
    }
    let ttl = new
        .ttl_seconds
        .map_or(CANVAS_TTL_DEFAULT, Duration::from_secs);
    let issued = gateway.identity.signed.issue_canvas(&NewCanvas {
        user: &new.user,
        org,
        workspaces: workspaces.as_deref(),
        groups: new.groups.as_deref().unwrap_or_default(),
        ttl,
        maker: Some(&caller.0),
    })?;
    let about = ChangeFacts::default()
        .with_fact("kind", CredentialKind::Canvas.as_str())
        .with_fact("org", org)
        .with_fact("token_id", issued.id.as_str())
        .with_fact("user", new.user.as_str());
    let answer = CanvasResponse {
        token: caller.secret(issued.token.expose_secret().to_owned()),
        id: issued.id,
        expires_at: Timestamp(issued.expires_at),
        expires_in: ttl.as_secs(),
    };
    Ok(caller.respond_created(about, answer))
}

fn parse_list(ids: &[String]) -> Result<Vec<WorkspaceId>, Rejection> {
    if !(1..=CANVAS_WORKSPACES_MAX).contains(&ids.len()) {
        let message = "`workspaces` names 1 to 200 workspaces; leave it out for all of the org";
        return Err(Rejection::new(Reason::InvalidParams, message));
    }
    let ids = ids.iter().map(|id| WorkspaceId::parse(id));
    Ok(ids.collect::<Result<_, _>>()?)
}

/// Returns the answer to a request that made a token: of an operator with `role`, or of an org for the subtree of
/// `root`.
pub(super) fn issue_response(
    caller: &Caller,
    token: &IssuedToken,
    terms: &TokenTerms,
    (role, root): (Option<Role>, Option<&WorkspaceId>),
) -> Response {
    let (label, expires_at) = (terms.label.as_deref(), terms.expires_at.map(Timestamp));
    let answer = IssueResponse {
        id: &token.token_id,
        token: caller.secret(token.token.expose_secret()),
        prefix: &token.prefix,
        role,
        created_at: Timestamp(token.created_at),
        label,
        expires_at,
        subtree: root.map(WorkspaceId::as_str),
    };
    let facts = [
        ("token_id", Some(token.token_id.clone())),
        ("role", role.map(|role| role.as_str().to_owned())),
        ("label", label.map(str::to_owned)),
        ("expires_at", expires_at.map(|at| at.to_string())),
        ("subtree", root.map(ToString::to_string)),
    ];
    let mut about = ChangeFacts::default();
    for (name, value) in facts {
        if let Some(value) = value {
            about = about.with_fact(name, value);
        }
    }
    caller.respond_created(about, answer)
}

fn token_page<T>(
    page: &Page,
    rows: Vec<TokenRow>,
    show: impl Fn(TokenRow) -> T,
) -> Answer<TokenPage<T>> {
    page_by(page, rows, |row| &row.token_id, show)
}

/// Returns a page of rows. Their `id` is the cursor.
pub(super) fn page_by<R, T>(
    page: &Page,
    mut rows: Vec<R>,
    id: impl Fn(&R) -> &String,
    show: impl Fn(R) -> T,
) -> Answer<TokenPage<T>> {
    let next_cursor = page.truncate_page(&mut rows, |row| id(row));
    let tokens = rows.into_iter().map(show).collect();
    Answer(TokenPage {
        tokens,
        next_cursor,
    })
}

pub(super) fn revoke_response(
    caller: &Caller,
    found: bool,
) -> Result<Answer<ChangeResponse<RevokeResponse>>, Rejection> {
    let (status, ended) = ("revoked", Vec::new());
    let revoked = found.then(|| caller.respond(RevokeResponse { status, ended }));
    revoked.ok_or_else(no_such_token)
}

fn no_such_token() -> Rejection {
    Rejection::new(
        Reason::NotFound,
        "there is no such token here; the list has the ids",
    )
}
