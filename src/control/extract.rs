//! What a handler needs, in its signature: who asks, the names in the path, the page of a list.
//! Extractors run in the order of the arguments, which is the order of the contract's checks:
//! path, credential, caller header, rate; the body comes last.

use std::sync::{Arc, OnceLock};

use axum::extract::{FromRequestParts, Query, RawPathParams};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, LINK};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Uri};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use crate::gateway::Gateway;
use crate::identity::{Allowance, Identity, Principal, Proof};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::workspace::{Search, Status};

/// Entries of a list when nothing is asked for.
const LIMIT_DEFAULT: u32 = 100;

/// Entries of a list at most.
const LIMIT_MAX: u32 = 500;

/// Longest name of an org or a token in a path, in characters.
const NAME_CHARS_MAX: usize = 256;

/// Who asks, proven.
pub(super) struct Caller(pub(super) Arc<Proof>);

impl Caller {
    /// Who it is.
    pub(super) fn principal(&self) -> &Principal {
        &self.0.principal
    }

    /// Operators only.
    ///
    /// # Errors
    /// `not_permitted`.
    pub(super) fn require_operator(&self) -> Result<(), Rejection> {
        match self.principal() {
            Principal::Operator => Ok(()),
            _ => Err(not_permitted("this needs an admin token")),
        }
    }

    /// The workspace itself, or an operator.
    ///
    /// # Errors
    /// `not_permitted`.
    pub(super) fn require_own(&self, id: &WorkspaceId) -> Result<(), Rejection> {
        match self.principal() {
            Principal::Operator => Ok(()),
            Principal::Workspace { id: own } if own == id => Ok(()),
            _ => Err(not_permitted(
                "this needs the workspace's own token, or an admin token",
            )),
        }
    }

    /// The same, and an operator is told when there is no such workspace, or none any more.
    ///
    /// # Errors
    /// `not_permitted`, `workspace_not_found`, `workspace_removed`, `store_unavailable`.
    pub(super) async fn require_own_existing(
        &self,
        gateway: &Gateway,
        id: &WorkspaceId,
    ) -> Result<(), Rejection> {
        self.require_own(id)?;
        if self.principal().workspace().is_some() {
            return Ok(());
        }
        match gateway.workspaces.find(id).await? {
            None => Err(Rejection::new(
                Reason::WorkspaceNotFound,
                "there is no workspace of this id: create it with POST /workspaces",
            )),
            Some(workspace) if workspace.status == Status::Removed => Err(Rejection::new(
                Reason::WorkspaceRemoved,
                "the workspace was removed, and its tokens with it",
            )),
            Some(_) => Ok(()),
        }
    }

    /// The workspace itself, and nobody in its place.
    ///
    /// # Errors
    /// `not_permitted`.
    pub(super) fn require_itself(&self, id: &WorkspaceId) -> Result<(), Rejection> {
        if self.principal().workspace() == Some(id) {
            return Ok(());
        }
        Err(not_permitted("this needs the workspace's own token"))
    }
}

impl FromRequestParts<Arc<Gateway>> for Caller {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let field = authorization(&parts.headers)?;
        let proof = gateway.identity.authenticate(field).await?;
        admit(gateway, parts, &proof)?;
        Ok(Self(proof))
    }
}

/// Who takes up what a message began: as [`Caller`], and a pair token counts, too, if it is for the target.
pub(super) struct MessageCaller(pub(super) Arc<Proof>);

impl FromRequestParts<Arc<Gateway>> for MessageCaller {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let field = authorization(&parts.headers)?;
        let proof = gateway.identity.authenticate_message(field).await?;
        admit(gateway, parts, &proof)?;
        Ok(Self(proof))
    }
}

/// After which event a reader goes on: `Last-Event-ID`, or `?last_event_id=`. Empty: none.
pub(super) struct LastEventId(pub(super) Option<String>);

#[derive(Deserialize)]
struct LastEventQuery {
    last_event_id: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for LastEventId {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let query = Query::<LastEventQuery>::from_request_parts(parts, state).await;
        let Ok(Query(query)) = query else {
            let message = "the query is `last_event_id`, once at most";
            return Err(Rejection::new(Reason::InvalidParams, message));
        };
        let field = parts.headers.get("last-event-id");
        // What is not text is no id that we gave.
        let field = field.map(|value| value.to_str().unwrap_or("-").to_owned());
        let after = field.or(query.last_event_id);
        Ok(Self(after.filter(|after| !after.is_empty())))
    }
}

/// Who registers: as [`Caller`], and an enrolment token counts, too.
pub(super) struct Registrant(pub(super) Caller);

impl FromRequestParts<Arc<Gateway>> for Registrant {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let field = authorization(&parts.headers)?;
        let proof = gateway.identity.authenticate_enrolment(field).await?;
        admit(gateway, parts, &proof)?;
        Ok(Self(Caller(proof)))
    }
}

/// The one `Authorization` field. Of two nobody knows which the sender meant.
pub(super) fn authorization(headers: &HeaderMap) -> Result<Option<&[u8]>, Rejection> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    let field = fields.next();
    if fields.next().is_some() {
        return Err(Rejection::new(
            Reason::Unauthenticated,
            "the request has several `Authorization` fields: send exactly one",
        ));
    }
    Ok(field.map(|value| value.as_bytes()))
}

/// What the credential may still ask for, once it was let in: for the fields of the answer.
#[derive(Clone, Default)]
pub(super) struct Admitted(Arc<OnceLock<Allowance>>);

impl Admitted {
    /// If the credential has a limit.
    pub(super) fn allowance(&self) -> Option<&Allowance> {
        self.0.get()
    }
}

/// What every proven request passes: what it claims, and how often it comes.
///
/// # Errors
/// `caller_mismatch` and `rate_limited`.
pub(super) fn admit(gateway: &Gateway, parts: &Parts, proof: &Proof) -> Result<(), Rejection> {
    for claimed in parts.headers.get_all("x-workspace-id") {
        Identity::check_caller(proof, Some(claimed.as_bytes()))?;
    }
    let allowance = gateway.rates.admit(proof)?;
    if let (Some(allowance), Some(admitted)) = (allowance, parts.extensions.get::<Admitted>()) {
        let _ = admitted.0.set(allowance);
    }
    Ok(())
}

/// `not_permitted`, saying what it takes.
pub(super) fn not_permitted(message: &'static str) -> Rejection {
    Rejection::new(Reason::NotPermitted, message)
}

/// `{id}` of the path: a workspace.
pub(super) struct PathId(pub(super) WorkspaceId);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        // What is not UTF-8 is not an id either.
        let id = path_param(parts, state, "id").await.unwrap_or_default();
        // Nor is an encoded one, as on A2A routes: a workspace has one spelling in a path.
        let as_written = parts.uri.path().split('/').any(|segment| segment == id);
        let id = WorkspaceId::parse(if as_written { &id } else { "" })?;
        Ok(Self(id))
    }
}

/// `{org}` of the path.
pub(super) struct PathOrg(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathOrg {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        path_name(parts, state, "org").await.map(Self)
    }
}

/// `{token_id}` of the path.
pub(super) struct PathTokenId(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathTokenId {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        path_name(parts, state, "token_id").await.map(Self)
    }
}

/// `{grant_id}` of the path.
pub(super) struct PathGrantId(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathGrantId {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        path_name(parts, state, "grant_id").await.map(Self)
    }
}

/// `{activity_id}` of the path.
pub(super) struct PathActivityId(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathActivityId {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        path_name(parts, state, "activity_id").await.map(Self)
    }
}

/// `{stream}` of the path. Not a name of any form is none that exists.
pub(super) struct PathStream(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathStream {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let stream = path_param(parts, state, "stream").await;
        Ok(Self(stream.unwrap_or_default()))
    }
}

/// `{delegation_id}` of the path.
pub(super) struct PathDelegationId(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathDelegationId {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        path_name(parts, state, "delegation_id").await.map(Self)
    }
}

async fn path_name<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    name: &'static str,
) -> Result<String, Rejection> {
    let text = path_param(parts, state, name).await;
    let text = text.filter(|text| is_name(text));
    text.ok_or_else(|| {
        let message = format!("`{name}` in the path is text of 1 to {NAME_CHARS_MAX} characters");
        Rejection::new(Reason::InvalidParams, message)
    })
}

/// A parameter of the path, decoded.
async fn path_param<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    name: &'static str,
) -> Option<String> {
    let params = RawPathParams::from_request_parts(parts, state).await.ok()?;
    let found = params.iter().find(|(key, _)| *key == name);
    found.map(|(_, value)| value.to_owned())
}

/// Which part of a list: `?cursor=&limit=` (contract §1).
#[derive(Debug)]
pub(super) struct Page {
    /// Entries wanted.
    pub(super) limit: u32,
    /// The name after which to go on; empty: from the first.
    pub(super) after: String,
    /// What was asked for, for the link to the next page.
    here: Uri,
}

#[derive(Deserialize)]
struct PageQuery {
    cursor: Option<String>,
    limit: Option<u32>,
}

impl<S: Send + Sync> FromRequestParts<S> for Page {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let wrong = |message| Rejection::new(Reason::InvalidParams, message);
        let query = Query::<PageQuery>::from_request_parts(parts, state).await;
        let Ok(Query(query)) = query else {
            return Err(wrong("`limit` is a whole number from 1 to 500"));
        };
        let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(wrong("`limit` is a whole number from 1 to 500"));
        }
        let after = query.cursor.as_deref().map(read_cursor);
        let after = after.unwrap_or_else(|| Some(String::new()));
        let after = after.ok_or_else(not_our_cursor)?;
        let here = parts.uri.clone();
        Ok(Self { limit, after, here })
    }
}

impl Page {
    /// One more than the page holds, to see whether there is more.
    pub(super) fn look_ahead(&self) -> u32 {
        self.limit + 1
    }

    /// The number in a cursor of a list that is ordered by numbers.
    ///
    /// # Errors
    /// `invalid_params` when it is none.
    pub(super) fn number(&self) -> Result<Option<i64>, Rejection> {
        if self.after.is_empty() {
            return Ok(None);
        }
        let number = self.after.parse().ok();
        number.map(Some).ok_or_else(not_our_cursor)
    }

    /// The cursor that [`Page::number`] reads.
    pub(super) fn cursor(number: i64) -> String {
        URL_SAFE_NO_PAD.encode(number.to_string())
    }

    /// Cuts what was looked ahead; answers with the cursor of the next page, if there is one.
    pub(super) fn cut<T>(&self, rows: &mut Vec<T>, name: impl Fn(&T) -> &str) -> Option<String> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| more)?;
        Some(URL_SAFE_NO_PAD.encode(name(last)))
    }

    /// The cursor of the page beyond what was found, if there is one.
    pub(super) fn after_last<T>(&self, found: &[(WorkspaceId, T)], more: bool) -> Option<String> {
        let (last, _) = found.last().filter(|_| more)?;
        Some(URL_SAFE_NO_PAD.encode(last.as_str()))
    }

    /// A list that is an array: where the next page is stands in `Link` (RFC 8288), with the filters
    /// of this one. The reference has no host, since callers may know the gateway by several.
    pub(super) fn answer<T: Serialize>(&self, rows: &[T], next: Option<String>) -> Response {
        self.linked(rows, next.map(|cursor| ("cursor", cursor)))
    }

    /// The same, where this parameter of the query makes the next page.
    pub(super) fn linked<T: Serialize>(
        &self,
        rows: &[T],
        next: Option<(&'static str, String)>,
    ) -> Response {
        let mut response = axum::Json(rows).into_response();
        if let Some((name, value)) = next {
            let query = self.here.query().unwrap_or_default();
            let kept = form_urlencoded::parse(query.as_bytes()).filter(|(other, _)| other != name);
            let query = form_urlencoded::Serializer::new(String::new())
                .extend_pairs(kept)
                .append_pair(name, &value)
                .finish();
            let link = format!("<{}?{query}>; rel=\"next\"", self.here.path());
            if let Ok(link) = HeaderValue::from_str(&link) {
                response.headers_mut().insert(LINK, link);
            }
        }
        response
    }
}

/// Which entries of a list of workspaces: `?q=&status=`.
pub(super) struct Filter {
    /// Those whose name or role has this in it.
    pub(super) search: Option<Search>,
    /// Those in this status.
    pub(super) status: Option<Status>,
}

#[derive(Deserialize)]
struct FilterQuery {
    q: Option<String>,
    status: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Filter {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let wrong = |message| Rejection::new(Reason::InvalidParams, message);
        let query = Query::<FilterQuery>::from_request_parts(parts, state).await;
        let Ok(Query(query)) = query else {
            return Err(wrong("`q` and `status` stand once at most, as UTF-8"));
        };
        let q = query.q.as_deref().map(str::trim).filter(|q| !q.is_empty());
        if !q.is_none_or(is_name) {
            return Err(wrong(
                "`q` has at most 256 characters, none of them a control character",
            ));
        }
        let status = query.status.as_deref().map(|word| {
            Status::parse(word).ok_or_else(|| {
                wrong("`status` is the status of a workspace, such as `online` (docs/api.md)")
            })
        });
        Ok(Self {
            search: q.map(Search::new),
            status: status.transpose()?,
        })
    }
}

/// Which grants: `?caller_id=&target_id=`.
pub(super) struct Ends {
    /// Those of this caller.
    pub(super) caller: Option<WorkspaceId>,
    /// Those to this target.
    pub(super) target: Option<WorkspaceId>,
}

#[derive(Deserialize)]
struct EndsQuery {
    caller_id: Option<String>,
    target_id: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Ends {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let query = Query::<EndsQuery>::from_request_parts(parts, state).await;
        let Ok(Query(query)) = query else {
            let message = "`caller_id` and `target_id` stand once at most";
            return Err(Rejection::new(Reason::InvalidParams, message));
        };
        let parse = |id: Option<String>| id.map(|id| WorkspaceId::parse(&id)).transpose();
        Ok(Self {
            caller: parse(query.caller_id)?,
            target: parse(query.target_id)?,
        })
    }
}

fn not_our_cursor() -> Rejection {
    let message = "`cursor` is not one that this gateway gave: start without, and follow `next_cursor` or `Link`";
    Rejection::new(Reason::InvalidParams, message)
}

fn read_cursor(cursor: &str) -> Option<String> {
    let name = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    String::from_utf8(name).ok().filter(|name| is_name(name))
}

fn is_name(text: &str) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= NAME_CHARS_MAX
        && !text.chars().any(char::is_control)
}
