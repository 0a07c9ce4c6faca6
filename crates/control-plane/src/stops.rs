//! `/stops`: stops calls of and to a workspace, a subtree, an org, a pair, or all (`docs/reference/http-api.md`,
//! "Stops"). Operators; org tokens within their org, or their subtree.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::body::UniqueJson;
use super::extract::{Caller, PathStopId, not_permitted};
use super::page::Page;
use access::hierarchy::Permit;
use access::identity::{Operator, Principal};
use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use directory::stops::{
    Cancel, Counts, Mode, NewStop, Scope, Stop, TaskOutcome, read_expiry, read_mode, read_reason,
    read_scope,
};
use kernel::ids::WorkspaceIncarnation;
use kernel::rejection::{Reason, Rejection};

/// Stops that are read at once while those of a subtree are sought.
const SEARCH_BATCH: u32 = 500;

/// The body of `POST /stops`.
#[derive(Deserialize, ToSchema)]
pub(super) struct StopRequest {
    #[schema(value_type = String, pattern = "^#StopScope$")]
    scope: Map<String, Value>,
    #[schema(value_type = Mode)]
    mode: String,
    /// Refused callers get it.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\x00-\x1F\x7F-\x9F]*[^\x00-\x20\x7F-\x9F][^\x00-\x1F\x7F-\x9F]*$"
    )]
    reason: String,
    /// In the future.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Sends tasks/cancel for each known unfinished task. With mode `running` only.
    #[serde(default)]
    #[schema(default = false)]
    cancel_tasks: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Stop)]
pub(super) struct StopResponse {
    id: String,
    #[schema(value_type = String, pattern = "^#StopScope$")]
    scope: Value,
    mode: Mode,
    reason: String,
    /// As records name a caller.
    created_by: String,
    /// The operator who made it; told to operators only, and absent of stops of org tokens and of earlier releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    operator: Option<Operator>,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    /// The cancellation of its tasks; `null` without `cancel_tasks`.
    cancel: Option<Cancellation>,
}

/// How far the cancellation of the tasks of a stop is.
#[derive(Serialize, ToSchema)]
struct Cancellation {
    #[schema(pattern = "^(wanted|listed|done)$")]
    state: &'static str,
    #[schema(minimum = 0)]
    tasks: i64,
    #[schema(minimum = 0)]
    pending: i64,
    #[schema(minimum = 0)]
    canceled: i64,
    /// Their agents say that they had ended, or know none.
    #[schema(minimum = 0)]
    over: i64,
    #[schema(minimum = 0)]
    failed: i64,
}

#[derive(Serialize)]
pub(super) struct StopPage {
    stops: Vec<StopResponse>,
    next_cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ReleaseResponse {
    #[schema(pattern = "^released$")]
    status: &'static str,
    #[serde(flatten)]
    stop: StopResponse,
}

/// The bounds of an org token.
struct Bounds<'a> {
    org: &'a str,
    /// The root of its subtree.
    root: Option<&'a WorkspaceIncarnation>,
}

impl Bounds<'_> {
    /// True if a token of the same org, or of the same subtree, made the stop; a token of the whole org is over those
    /// of its subtrees.
    fn have_made(&self, stop: &Stop) -> bool {
        stop.by_org.as_deref() == Some(self.org)
            && (self.root.is_none() || stop.by_subtree.as_ref() == self.root)
    }
}

/// Returns the bounds that the caller is confined to; `None` for an operator.
///
/// # Errors
/// `not_permitted`, also while the root of its subtree is in another org; `store_unavailable`.
async fn find_bounds<'a>(
    gateway: &Gateway,
    caller: &'a Caller,
) -> Result<Option<Bounds<'a>>, Rejection> {
    gateway.hierarchy.require_root(caller.principal()).await?;
    match caller.principal() {
        Principal::Operator => Ok(None),
        Principal::Org { org, within } => {
            let root = within.as_ref();
            Ok(Some(Bounds { org, root }))
        }
        Principal::Workspace { .. } | Principal::Canvas { .. } => Err(not_permitted(
            "this needs an admin token, or a token of the org",
        )),
    }
}

/// `POST /stops`.
pub(super) async fn create_stop(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    UniqueJson(new): UniqueJson<StopRequest>,
) -> Result<Response, Rejection> {
    let bounds = find_bounds(&gateway, &caller).await?;
    let scope = read_scope(&new.scope)?;
    if let Some(id) = scope.named_workspaces().last() {
        caller.set_target(id);
    }
    let org = org_of(&gateway, &caller, &scope, bounds.as_ref()).await?;
    let mode = read_mode(&new.mode)?;
    if new.cancel_tasks && mode == Mode::New {
        return Err(invalid_params(
            r#"`cancel_tasks` goes with mode "running": with "new" what is under way goes on"#,
        ));
    }
    let reason = read_reason(&new.reason)?;
    let new = NewStop {
        scope,
        org,
        by_org: bounds.as_ref().map(|bounds| bounds.org.to_owned()),
        by_subtree: bounds.and_then(|bounds| bounds.root.cloned()),
        mode,
        reason: reason.to_owned(),
        created_by: caller.0.principal.name().into_owned(),
        operator: caller.0.operator.clone(),
        expires_at: parse_expiry(new.expires_at.as_deref())?,
        cancel_tasks: new.cancel_tasks,
    };
    let stop = gateway.stops.create_stop(&new, caller.run()).await?;
    let about = describe_stop(&stop)
        .with_fact("cancel_tasks", new.cancel_tasks)
        .with_fact("expires_at", stop.expires_at.map(|at| at.to_string()))
        .with_fact("mode", stop.mode.as_str())
        .with_fact("reason", stop.reason.as_str());
    let shown = stop_response(stop, &Counts::default(), &caller);
    Ok(caller.respond_created(about, shown))
}

/// `GET /stops`.
pub(super) async fn list_stops(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    page: Page,
) -> Result<Answer<StopPage>, Rejection> {
    let mut stops = match find_bounds(&gateway, &caller).await? {
        Some(bounds) if bounds.root.is_some() => {
            list_in_subtree(&gateway, &caller, &bounds, &page).await?
        }
        bounds => {
            let org = bounds.map(|bounds| bounds.org);
            let stops = gateway.stops.list(org, &page.after, page.look_ahead());
            stops.await?
        }
    };
    let next_cursor = page.truncate_page(&mut stops, |stop| &stop.id);
    let mut listed = Vec::with_capacity(stops.len());
    for stop in stops {
        let counts = match stop.cancel {
            Cancel::None => Counts::default(),
            _ => gateway.stops.count_tasks(&stop.id).await?,
        };
        listed.push(stop_response(stop, &counts, &caller));
    }
    Ok(Answer(StopPage {
        stops: listed,
        next_cursor,
    }))
}

/// Returns the stops of a page that a token of a subtree sees: those that tokens of the subtree made, and those that
/// name workspaces in it and no others. There are at most [`directory::stops::STOPS_MAX`] to look at.
async fn list_in_subtree(
    gateway: &Gateway,
    caller: &Caller,
    bounds: &Bounds<'_>,
    page: &Page,
) -> Result<Vec<Stop>, Rejection> {
    let (mut found, mut after) = (Vec::new(), page.after.clone());
    let wanted = usize::try_from(page.look_ahead()).unwrap_or(usize::MAX);
    loop {
        let stops = gateway.stops.list(Some(bounds.org), &after, SEARCH_BATCH);
        let stops = stops.await?;
        let Some(last) = stops.last() else {
            return Ok(found);
        };
        after.clone_from(&last.id);
        for stop in stops {
            if bounds.have_made(&stop) || names_inside(gateway, caller, &stop).await? {
                found.push(stop);
            }
            if found.len() >= wanted {
                return Ok(found);
            }
        }
    }
}

/// True if the stop names workspaces, and the caller looks after each of them.
async fn names_inside(gateway: &Gateway, caller: &Caller, stop: &Stop) -> Result<bool, Rejection> {
    let mut names = false;
    for id in stop.scope.named_workspaces() {
        let hierarchy = &gateway.hierarchy;
        if !hierarchy.may_reach_id(caller.principal(), id).await? {
            return Ok(false);
        }
        names = true;
    }
    Ok(names)
}

/// `DELETE /stops/{stop_id}`.
pub(super) async fn release_stop(
    State(gateway): State<Arc<Gateway>>,
    PathStopId(id): PathStopId,
    caller: Caller,
) -> Result<Response, Rejection> {
    if let Some(bounds) = find_bounds(&gateway, &caller).await? {
        let found = gateway.stops.get(&id).await?;
        // One of another org looks like one that does not exist.
        if found.is_none_or(|stop| !bounds.have_made(&stop)) {
            return Err(not_permitted(
                "a token of an org releases what a token of that org stopped, and one of a subtree what a token of that \
                 subtree stopped: this needs an admin token",
            ));
        }
    }
    let Some((stop, counts)) = gateway.stops.release(&id, caller.run()).await? else {
        return Err(Rejection::new(
            Reason::NotFound,
            "there is no such stop: it was released, or has expired; GET /stops has the ids",
        ));
    };
    let about = describe_stop(&stop).with_fact("by", "request");
    let released = ReleaseResponse {
        status: "released",
        stop: stop_response(stop, &counts, &caller),
    };
    Ok((Extension(about), caller.respond(released)).into_response())
}

fn describe_stop(stop: &Stop) -> ChangeFacts {
    let about = match stop.scope.named_workspaces().last() {
        Some(id) => ChangeFacts::for_workspace(id),
        None => ChangeFacts::default(),
    };
    about
        .with_fact("scope", stop.scope.to_json())
        .with_fact("stop_id", stop.id.as_str())
}

/// Checks that the caller may stop what the scope names, and returns the one org of that.
///
/// # Errors
/// `not_permitted`; `workspace_not_found` and `workspace_removed` for callers that may know; `store_unavailable`.
async fn org_of(
    gateway: &Gateway,
    caller: &Caller,
    scope: &Scope,
    bounds: Option<&Bounds<'_>>,
) -> Result<Option<String>, Rejection> {
    let is_over = |org: &str| bounds.is_none_or(|by| by.root.is_none() && by.org == org);
    match scope {
        Scope::Org(org) if is_over(org) => return Ok(Some(org.clone())),
        Scope::All if bounds.is_none() => return Ok(None),
        Scope::Org(_) | Scope::All => {
            return Err(not_permitted(
                "a token of an org stops calls of that org, and one of a subtree those of its workspaces: this needs \
                 an admin token",
            ));
        }
        Scope::Workspace(_) | Scope::Subtree(_) | Scope::Pair(..) => {}
    }
    let mut orgs = Vec::new();
    for id in scope.named_workspaces() {
        let permit: Permit = gateway.hierarchy.permit(&caller.0, id).await?;
        orgs.push(permit.target_lineage().and_then(|place| place.org.clone()));
    }
    orgs.dedup();
    let one = orgs.len() == 1;
    Ok(orgs.pop().flatten().filter(|_| one))
}

fn parse_expiry(text: Option<&str>) -> Result<Option<Timestamp>, Rejection> {
    let Some(text) = text else {
        return Ok(None);
    };
    let at = read_expiry(text)?;
    if at <= Timestamp::now() {
        return Err(invalid_params(
            "`expires_at` has passed; name a time in the future, or leave it out",
        ));
    }
    Ok(Some(at))
}

fn invalid_params(message: impl Into<std::borrow::Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::InvalidParams, message)
}

fn stop_response(stop: Stop, counts: &Counts, caller: &Caller) -> StopResponse {
    let is_operator = matches!(caller.principal(), Principal::Operator);
    let operator = stop.operator.filter(|_| is_operator);
    let count = |outcome| counts.get(&outcome).copied().unwrap_or(0);
    let cancel = (stop.cancel != Cancel::None).then(|| Cancellation {
        state: stop.cancel.as_str(),
        tasks: counts.values().sum(),
        pending: count(TaskOutcome::Pending),
        canceled: count(TaskOutcome::Canceled),
        over: count(TaskOutcome::Over),
        failed: count(TaskOutcome::Failed),
    });
    StopResponse {
        id: stop.id,
        scope: stop.scope.to_json(),
        mode: stop.mode,
        reason: stop.reason,
        created_by: stop.created_by,
        operator: operator.map(Arc::unwrap_or_clone),
        created_at: stop.created_at,
        expires_at: stop.expires_at,
        cancel,
    }
}
