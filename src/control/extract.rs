//! What a handler needs, in its signature: who asks, the names in the path, the page of a list.
//! Extractors run in the order of the arguments, which is the order of the contract's checks:
//! path, credential, caller header, rate; the body comes last.

use std::sync::{Arc, OnceLock};

use axum::extract::{FromRequestParts, Query, RawPathParams};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use serde::Deserialize;

use crate::gateway::Gateway;
use crate::identity::{Allowance, Identity, Principal, Proof};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};

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
fn authorization(headers: &HeaderMap) -> Result<Option<&[u8]>, Rejection> {
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

fn admit(gateway: &Gateway, parts: &Parts, proof: &Proof) -> Result<(), Rejection> {
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
        let after = after.ok_or_else(|| {
            wrong("`cursor` is not one that this gateway gave: start without, and follow `next_cursor`")
        })?;
        Ok(Self { limit, after })
    }
}

impl Page {
    /// One more than the page holds, to see whether there is more.
    pub(super) fn look_ahead(&self) -> u32 {
        self.limit + 1
    }

    /// Cuts what was looked ahead; answers with the cursor of the next page, if there is one.
    pub(super) fn cut<T>(&self, rows: &mut Vec<T>, name: impl Fn(&T) -> &str) -> Option<String> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| more)?;
        Some(URL_SAFE_NO_PAD.encode(name(last)))
    }
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
