//! What a handler needs, in its signature: who asks, the names in the path, where it goes on.
//! Extractors run in the order of the arguments, which is the order of the contract's checks:
//! path, credential, caller header, rate; the body comes last.

use std::sync::{Arc, OnceLock};

use axum::extract::{FromRequestParts, Query, RawPathParams};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use serde::Deserialize;

use crate::gateway::Gateway;
use crate::identity::{Allowance, Identity, Principal, Proof};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::shares::Share;
use crate::workspace::Status;

/// Longest name of an org or a token in a path, in characters.
const NAME_CHARS_MAX: usize = 256;

/// Who asks, proven.
pub(super) struct Caller(pub(super) Arc<Proof>, Admitted);

impl Caller {
    /// Says which workspace the request is about, where that stands in its body: the record of a refusal names it, too.
    pub(super) fn means(&self, id: &WorkspaceId) {
        let _ = self.1.0.target.set(id.clone());
    }

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
        self.means(id);
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
        Ok(Self(proof, Admitted::of(parts)))
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
        Ok(Self(Caller(proof, Admitted::of(parts))))
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

/// Who was let in, and what the credential may still ask for: for the frame around the handler.
#[derive(Clone, Default)]
pub(super) struct Admitted(Arc<Entered>);

#[derive(Default)]
struct Entered {
    proof: OnceLock<Arc<Proof>>,
    allowance: OnceLock<Allowance>,
    target: OnceLock<WorkspaceId>,
    body: OnceLock<Share>,
}

impl Admitted {
    /// That of a request. One without, as in a test of a handler alone, is told to nobody.
    fn of(parts: &Parts) -> Self {
        parts.extensions.get().cloned().unwrap_or_default()
    }

    /// The workspace that the request is about, if its body said so.
    pub(super) fn target(&self) -> Option<&WorkspaceId> {
        self.0.target.get()
    }

    /// Keeps the room of the request's body until it is answered.
    pub(super) fn hold(&self, body: Share) {
        let _ = self.0.body.set(body);
    }

    /// Who asks, once that is proven.
    pub(super) fn proof(&self) -> Option<Arc<Proof>> {
        self.0.proof.get().cloned()
    }

    /// If the credential has a limit.
    pub(super) fn allowance(&self) -> Option<&Allowance> {
        self.0.allowance.get()
    }
}

/// What every proven request passes: what it claims, and how often it comes.
///
/// # Errors
/// `caller_mismatch` and `rate_limited`.
pub(super) fn admit(gateway: &Gateway, parts: &Parts, proof: &Arc<Proof>) -> Result<(), Rejection> {
    let admitted = parts.extensions.get::<Admitted>();
    if let Some(admitted) = admitted {
        let _ = admitted.0.proof.set(Arc::clone(proof));
    }
    for claimed in parts.headers.get_all("x-workspace-id") {
        Identity::check_caller(proof, Some(claimed.as_bytes()))?;
    }
    let allowance = gateway.rates.admit(proof)?;
    if let (Some(allowance), Some(admitted)) = (allowance, admitted) {
        let _ = admitted.0.allowance.set(allowance);
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

/// Names in the path, each with its parameter: text that may name something.
macro_rules! path_names {
    ($($name:ident: $parameter:literal,)+) => {
        $(
            #[doc = concat!("`{", $parameter, "}` of the path.")]
            pub(super) struct $name(pub(super) String);

            impl<S: Send + Sync> FromRequestParts<S> for $name {
                type Rejection = Rejection;

                async fn from_request_parts(
                    parts: &mut Parts,
                    state: &S,
                ) -> Result<Self, Rejection> {
                    path_name(parts, state, $parameter).await.map(Self)
                }
            }
        )+
    };
}

path_names! {
    PathOrg: "org",
    PathTokenId: "token_id",
    PathGrantId: "grant_id",
    PathActivityId: "activity_id",
    PathDelegationId: "delegation_id",
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

/// Whether it is text that may name something.
pub(super) fn is_name(text: &str) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= NAME_CHARS_MAX
        && !text.chars().any(char::is_control)
}
