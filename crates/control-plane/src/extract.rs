//! Extractors of handlers: the proven caller, the names in the path, the position to resume from. They run in the order
//! of the arguments, which is the documented order of checks (`docs/reference/http-api.md`): path, credential, caller
//! field, rate, switches of the query; the body comes last.

use std::sync::{Arc, OnceLock};

use axum::extract::{FromRequestParts, MatchedPath, Query, RawPathParams};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use serde::Deserialize;
use url::form_urlencoded;

use super::{DECLARED, Offer, Route};
use access::identity::{Allowance, Principal, Proof};
use access::workspace::Status;
use assembly::gateway::Gateway;
use directory::Recheck;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::shares::Share;
use stores::store::{DRY_RUN, Run};

/// Maximum characters of the name of an org or a token in a path.
const NAME_CHARS_MAX: usize = 256;

/// The proven caller.
pub(super) struct Caller(pub(super) Arc<Proof>, AdmittedRequest, Run);

impl Caller {
    /// Sets the workspace of the request if the body names it, so that the record of a rejection names it as well.
    pub(super) fn set_target(&self, id: &WorkspaceId) {
        let _ = self.1.0.target.set(id.clone());
    }

    /// Returns the check that precedes a write whose request names hosts: the caller stands, and reaches the workspace
    /// `id`.
    pub(super) fn recheck(&self, gateway: &Arc<Gateway>, id: Option<&WorkspaceId>) -> Recheck {
        let (gateway, proof, id) = (Arc::clone(gateway), Arc::clone(&self.0), id.cloned());
        Recheck::new(move || {
            let (gateway, proof, id) = (Arc::clone(&gateway), Arc::clone(&proof), id.clone());
            async move {
                gateway.identity.recheck(&proof).await?;
                match id {
                    Some(id) => gateway.hierarchy.permit(&proof, &id).await.map(drop),
                    None => Ok(()),
                }
            }
        })
    }

    /// Returns whether the request makes its change, or is a dry run.
    pub(super) fn run(&self) -> Run {
        self.2
    }

    /// Returns the principal.
    pub(super) fn principal(&self) -> &Principal {
        &self.0.principal
    }

    /// Checks that the caller is an operator.
    ///
    /// # Errors
    /// `not_permitted`.
    pub(super) fn require_operator(&self) -> Result<(), Rejection> {
        match self.principal() {
            Principal::Operator => Ok(()),
            _ => Err(not_permitted("this needs an admin token")),
        }
    }

    /// Checks that the caller is the workspace itself or an operator.
    ///
    /// # Errors
    /// `not_permitted`.
    pub(super) fn require_own(&self, id: &WorkspaceId) -> Result<(), Rejection> {
        self.set_target(id);
        match self.principal() {
            Principal::Operator => Ok(()),
            Principal::Workspace { id: own } if own == id => Ok(()),
            _ => Err(not_permitted(
                "this needs the workspace's own token, or an admin token",
            )),
        }
    }

    /// Checks the same, and, for an operator, that the workspace exists and was not removed.
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

    /// Checks that the caller is the workspace itself. An operator may not act in its place.
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
        let offers = declared_route(parts).map_or(&[][..], |route| route.offers);
        if offers.contains(&Offer::DryRun) {
            let (caller, [_]) = prove_with(parts, gateway, [DRY_RUN]).await?;
            return Ok(caller);
        }
        let caller = prove(parts, gateway, Run::Real).await?;
        refuse_dry_run(parts)?;
        Ok(caller)
    }
}

async fn prove(parts: &Parts, gateway: &Gateway, run: Run) -> Result<Caller, Rejection> {
    let field = single_authorization(&parts.headers)?;
    let proof = gateway.identity.authenticate(field).await?;
    check_proof(gateway, parts, &proof)?;
    let proof = gateway.identity.with_chain(proof, &parts.headers).await?;
    Ok(Caller(proof, AdmittedRequest::from_parts(parts), run))
}

/// Proves the caller, then reads the switches of the query, of which the first is `dry_run`.
///
/// # Errors
/// `unauthenticated`, and those of [`check_proof`] and [`parse_switches`].
pub(super) async fn prove_with<const N: usize>(
    parts: &Parts,
    gateway: &Gateway,
    names: [&str; N],
) -> Result<(Caller, [bool; N]), Rejection> {
    let switches = parse_switches(parts, names);
    let first = switches.as_ref().ok().and_then(|switches| switches.first());
    let run = Run::from_dry_run(first == Some(&true));
    // Also if the caller is refused, so that the record of the refusal says so.
    AdmittedRequest::from_parts(parts).set_run(run);
    Ok((prove(parts, gateway, run).await?, switches?))
}

/// Reads a query that has nothing but these names, each `true` or `false`, and once at most. A misspelt `dry_run` would
/// make the change.
///
/// # Errors
/// `invalid_params`.
pub(super) fn parse_switches<const N: usize>(
    parts: &Parts,
    names: [&str; N],
) -> Result<[bool; N], Rejection> {
    let wrong = || {
        let names = names.map(|name| format!("`{name}`")).join(" and ");
        let message =
            format!("the query of this route is {names}: `true` or `false`, and once at most");
        Rejection::new(Reason::InvalidParams, message)
    };
    let mut switches = [None; N];
    let query = parts.uri.query().unwrap_or_default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let place = names.iter().position(|known| **known == *name);
        let switch = place
            .and_then(|place| switches.get_mut(place))
            .ok_or_else(wrong)?;
        let value = value.parse().map_err(|_| wrong())?;
        if switch.replace(value).is_some() {
            return Err(wrong());
        }
    }
    Ok(switches.map(Option::unwrap_or_default))
}

/// Returns the route of a request, as it is declared.
fn declared_route(parts: &Parts) -> Option<&'static Route> {
    let pattern = parts.extensions.get::<MatchedPath>()?;
    Route::find(DECLARED, &parts.method, pattern.as_str())
}

/// A caller that continues a message: a [`Caller`], or a pair token for the target.
pub(super) struct MessageCaller(pub(super) Arc<Proof>);

impl FromRequestParts<Arc<Gateway>> for MessageCaller {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let field = single_authorization(&parts.headers)?;
        let proof = gateway.identity.authenticate_message(field).await?;
        admit(gateway, parts, &proof)?;
        let proof = gateway.identity.with_chain(proof, &parts.headers).await?;
        Ok(Self(proof))
    }
}

/// The event after which a reader resumes: `Last-Event-ID`, or `?last_event_id=`. An empty value counts as none.
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
        // A value that is not text cannot be an id of the gateway.
        let field = field.map(|value| value.to_str().unwrap_or("-").to_owned());
        let after = field.or(query.last_event_id);
        Ok(Self(after.filter(|after| !after.is_empty())))
    }
}

/// A caller that registers: a [`Caller`], or an enrolment token.
pub(super) struct Registrant(pub(super) Caller);

impl FromRequestParts<Arc<Gateway>> for Registrant {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let field = single_authorization(&parts.headers)?;
        let proof = gateway.identity.authenticate_enrolment(field).await?;
        admit(gateway, parts, &proof)?;
        Ok(Self(Caller(
            proof,
            AdmittedRequest::from_parts(parts),
            Run::Real,
        )))
    }
}

/// Returns the only `Authorization` field. Two of them are ambiguous.
pub(super) fn single_authorization(headers: &HeaderMap) -> Result<Option<&[u8]>, Rejection> {
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

/// The proven caller and its remaining rate, passed to the middleware around the handler.
#[derive(Clone, Default)]
pub(super) struct AdmittedRequest(Arc<RequestFacts>);

#[derive(Default)]
struct RequestFacts {
    proof: OnceLock<Arc<Proof>>,
    allowance: OnceLock<Allowance>,
    target: OnceLock<WorkspaceId>,
    body: OnceLock<Share>,
    run: OnceLock<Run>,
}

impl AdmittedRequest {
    /// Returns the value of a request. Without one, as in a test of a single handler, returns one that is not read.
    pub(super) fn from_parts(parts: &Parts) -> Self {
        parts.extensions.get().cloned().unwrap_or_default()
    }

    /// Returns the workspace that the body of the request named.
    pub(super) fn target(&self) -> Option<&WorkspaceId> {
        self.0.target.get()
    }

    /// Sets the run of the change that the request makes.
    pub(super) fn set_run(&self, run: Run) {
        let _ = self.0.run.set(run);
    }

    /// True if the request is a dry run.
    pub(super) fn is_dry(&self) -> bool {
        self.0.run.get().is_some_and(|run| run.is_dry())
    }

    /// Holds the memory share of the request's body until the answer.
    pub(super) fn keep_share(&self, body: Share) {
        let _ = self.0.body.set(body);
    }

    /// Returns the proof of the caller, once the caller is proven.
    pub(super) fn proof(&self) -> Option<Arc<Proof>> {
        self.0.proof.get().cloned()
    }

    /// Returns the remaining rate, if the credential has a limit.
    pub(super) fn allowance(&self) -> Option<&Allowance> {
        self.0.allowance.get()
    }
}

/// Checks a proven request of a route without a dry run.
///
/// # Errors
/// Those of [`check_proof`]; `invalid_params` for `dry_run`.
pub(super) fn admit(gateway: &Gateway, parts: &Parts, proof: &Arc<Proof>) -> Result<(), Rejection> {
    check_proof(gateway, parts, proof)?;
    refuse_dry_run(parts)
}

fn refuse_dry_run(parts: &Parts) -> Result<(), Rejection> {
    let pattern = parts.extensions.get::<MatchedPath>();
    let route = pattern.map_or("", MatchedPath::as_str);
    Run::refuse_in(parts.uri.query(), parts.method.as_str(), route)
}

/// Checks a proven request: the caller it claims, its rate, and the role of an operator.
///
/// # Errors
/// `caller_mismatch`, `rate_limited` and `not_permitted`.
fn check_proof(gateway: &Gateway, parts: &Parts, proof: &Arc<Proof>) -> Result<(), Rejection> {
    let admitted = parts.extensions.get::<AdmittedRequest>();
    if let Some(admitted) = admitted {
        let _ = admitted.0.proof.set(Arc::clone(proof));
    }
    for claimed in parts.headers.get_all("x-workspace-id") {
        proof.check_caller(Some(claimed.as_bytes()))?;
    }
    let allowance = gateway.rates.admit(proof)?;
    if let (Some(allowance), Some(admitted)) = (allowance, admitted) {
        let _ = admitted.0.allowance.set(allowance);
    }
    let run = Run::from_dry_run(admitted.is_some_and(AdmittedRequest::is_dry));
    let role = Route::required_role(declared_route(parts), &parts.method, run);
    proof.require_at_least(role)
}

/// True if the caller looks after a subtree, and `id` is its root. Its relations lead out of the subtree, to its parent
/// and its siblings, so its credentials and its place are an operator's.
pub(super) fn is_root_of(caller: &Caller, id: &WorkspaceId) -> bool {
    let within = caller.principal().within();
    within.is_some_and(|root| root.id == *id)
}

/// Builds `not_permitted`, with a message that names the required credential.
pub(super) fn not_permitted(message: &'static str) -> Rejection {
    Rejection::new(Reason::NotPermitted, message)
}

/// The workspace in `{id}` of the path.
pub(super) struct PathId(pub(super) WorkspaceId);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        // A segment that is not UTF-8 is not an id.
        let id = path_param(parts, state, "id").await.unwrap_or_default();
        // An encoded id is invalid, as on A2A routes: a workspace has one spelling in a path.
        let as_written = parts.uri.path().split('/').any(|segment| segment == id);
        let id = WorkspaceId::parse(if as_written { &id } else { "" })?;
        Ok(Self(id))
    }
}

/// Extractors of names in the path, by parameter.
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
    PathIssuer: "name",
    PathStopId: "stop_id",
    PathActivityId: "activity_id",
    PathDelegationId: "delegation_id",
}

/// `{stream}` of the path. A name of invalid form does not exist.
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

/// Returns a parameter of the path, decoded.
async fn path_param<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    name: &'static str,
) -> Option<String> {
    let params = RawPathParams::from_request_parts(parts, state).await.ok()?;
    let found = params.iter().find(|(key, _)| *key == name);
    found.map(|(_, value)| value.to_owned())
}

/// True if the text is valid as a name.
pub(super) fn is_name(text: &str) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= NAME_CHARS_MAX
        && !text.chars().any(char::is_control)
}
