//! Reachability between workspaces: the list of workspaces, peers and access checks (`docs/reference/http-api.md`,
//! "Workspaces" and "Registry").

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::Json;
use super::catalogue::SkillFilter;
use super::extract::{Caller, PathId, not_permitted};
use super::page::{Filter, Page};
use super::workspaces::workspace_views;
use access::identity::Principal;
use access::workspace::{CandidateQuery, Status};
use assembly::gateway::Gateway;
use directory::{ListReader, Peer};
use kernel::ids::WorkspaceId;
use kernel::rejection::Rejection;

/// The reason a workspace gets about a pair it is not permitted to know, whatever the cause: ids cannot be probed.
const NO_RULE: &str = "no rule lets the caller message the target, or one of the two does not exist: \
     an operator can move one of them, or make a grant";

/// `GET /workspaces`.
pub(super) async fn list_workspaces(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    page: Page,
    filter: Filter,
) -> Result<Response, Rejection> {
    let operator = matches!(caller.principal(), Principal::Operator);
    if filter.status == Some(Status::Removed) && !operator {
        return Err(not_permitted(
            "removed workspaces are listed to operators only",
        ));
    }
    let reached = gateway
        .hierarchy
        .list_visible(&caller.0, &list_wish(&page, &filter))
        .await?;
    let next = page.after_last(&reached.found, reached.more);
    let ids: Vec<_> = reached.found.into_iter().map(|(id, _)| id).collect();
    let mut workspaces = gateway.directory.views.find_many(&ids).await?;
    // Drops workspaces that were removed after the page was found.
    workspaces.retain(|one| operator || one.status != Status::Removed);
    let views = workspace_views(&gateway, &caller, &mut workspaces).await;
    Ok(page.to_response(&views, next))
}

/// `GET /registry/{id}/peers`.
pub(super) async fn list_peers(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    page: Page,
    filter: Filter,
    skills: SkillFilter,
) -> Result<Response, Rejection> {
    caller.require_own(&id)?;
    if filter.status == Some(Status::Removed) {
        return Ok(page.to_response::<Peer>(&[], None));
    }
    let wish = list_wish(&page, &filter);
    let (found, next) = if skills.is_empty() {
        let reached = gateway.hierarchy.list_peers(&id, &wish).await?;
        let next = page.after_last(&reached.found, reached.more);
        (reached.found, next)
    } else {
        let (found, last) = skills.find_peers(&gateway, &id, wish).await?;
        (found, Page::cursor_after(last.as_deref(), true))
    };
    let sight = match caller.principal() {
        Principal::Workspace { .. } => ListReader::Internal,
        _ => ListReader::Host,
    };
    let peers = gateway.directory.views.load_peers(found, sight).await?;
    Ok(page.to_response(&peers, next))
}

fn list_wish<'a>(page: &'a Page, filter: &'a Filter) -> CandidateQuery<'a> {
    CandidateQuery {
        search: filter.search.as_ref(),
        status: filter.status,
        after: &page.after,
        limit: page.limit,
    }
}

/// The body of `POST /registry/check-access`.
#[derive(Deserialize, ToSchema)]
pub(super) struct CheckAccessRequest {
    #[schema(value_type = WorkspaceId)]
    caller_id: String,
    #[schema(value_type = WorkspaceId)]
    target_id: String,
}

#[derive(Serialize, ToSchema)]
pub(super) struct CheckAccessResponse {
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^#Rule$", nullable = false)]
    rule: Option<&'static str>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

/// `POST /registry/check-access`.
pub(super) async fn check_access(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Json(pair): Json<CheckAccessRequest>,
) -> Result<Answer<CheckAccessResponse>, Rejection> {
    let one = WorkspaceId::parse(&pair.caller_id)?;
    let other = WorkspaceId::parse(&pair.target_id)?;
    let operator = match caller.principal() {
        Principal::Operator => true,
        Principal::Workspace { id } if *id == one || *id == other => false,
        _ => {
            return Err(not_permitted(
                "this needs an admin token, or the token of one of the two workspaces",
            ));
        }
    };
    let verdict = gateway.hierarchy.check_access(&one, &other).await?;
    let why_not = |why: String| if operator { why } else { NO_RULE.to_owned() };
    Ok(Answer(CheckAccessResponse {
        allowed: verdict.is_ok(),
        rule: verdict.as_ref().ok().map(|rule| rule.as_str()),
        reason: verdict.err().map(why_not),
    }))
}
