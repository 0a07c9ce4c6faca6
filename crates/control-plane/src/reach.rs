//! Reachability between workspaces: the list of workspaces, peers and access checks (`docs/reference/http-api.md`,
//! "Workspaces" and "Registry").

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::{FromRequestParts, Query, State};
use axum::response::Response;
use http::request::Parts;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::body::Json;
use super::extract::{Caller, PathId, is_name, not_permitted};
use super::page::{Filter, Page};
use super::workspaces::workspace_views;
use access::identity::Principal;
use access::workspace::{CandidateQuery, Status};
use assembly::gateway::Gateway;
use directory::{ListReader, Peer};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

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
    cards: CardFilter,
) -> Result<Response, Rejection> {
    caller.require_own(&id)?;
    if filter.status == Some(Status::Removed) {
        return Ok(page.to_response::<Peer>(&[], None));
    }
    let sight = match caller.principal() {
        Principal::Workspace { .. } => ListReader::Internal,
        _ => ListReader::Host,
    };
    let (mut peers, mut after) = (Vec::new(), page.after.clone());
    let most = usize::try_from(page.limit).unwrap_or(usize::MAX);
    let mut rounds = 0..PAGES_READ_MAX;
    loop {
        let wish = CandidateQuery {
            after: &after,
            limit: page.limit - u32::try_from(peers.len()).unwrap_or(0),
            ..list_wish(&page, &filter)
        };
        let reached = gateway.hierarchy.list_peers(&id, &wish).await?;
        let next = page.after_last(&reached.found, reached.more);
        let last = reached.found.last().map(|(id, _)| id.to_string());
        let found = gateway.directory.views.load_peers(reached.found, sight);
        peers.extend(found.await?.into_iter().filter(|peer| cards.holds(peer)));
        match last.filter(|_| reached.more && peers.len() < most && rounds.next().is_some()) {
            Some(last) => after = last,
            // A page with fewer than may be is not the last one if it has a next one.
            None => return Ok(page.to_response(&peers, next)),
        }
    }
}

/// Pages of peers that are read for one page of those whose cards fit.
const PAGES_READ_MAX: usize = 20;

/// The filter of peers by their registered cards: `?skill=&mode=`.
pub(super) struct CardFilter {
    skill: Option<String>,
    mode: Option<String>,
}

#[derive(Deserialize)]
struct CardFilterQuery {
    skill: Option<String>,
    mode: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for CardFilter {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let query = Query::<CardFilterQuery>::from_request_parts(parts, state).await;
        let read = |text: Option<String>| match text.map(|text| text.trim().to_owned()) {
            Some(text) if !text.is_empty() && !is_name(&text) => Err(()),
            text => Ok(text.filter(|text| !text.is_empty())),
        };
        let wrong = || {
            let message = "`skill` and `mode` stand once at most, with at most 256 characters, none of them a control character";
            Rejection::new(Reason::InvalidParams, message)
        };
        let Query(query) = query.map_err(|_| wrong())?;
        Ok(Self {
            skill: read(query.skill).map_err(|()| wrong())?,
            mode: read(query.mode).map_err(|()| wrong())?,
        })
    }
}

impl CardFilter {
    /// True if the card has the skill, by its id, name or a tag, and the media type, of input or output.
    fn holds(&self, peer: &Peer) -> bool {
        if self.skill.is_none() && self.mode.is_none() {
            return true;
        }
        let card = peer.agent_card.as_ref();
        let card: Value = card
            .and_then(|card| serde_json::from_str(card.get()).ok())
            .unwrap_or_default();
        let skills = card["skills"].as_array().map_or(&[][..], Vec::as_slice);
        let lists = |node: &Value, names: [&str; 2], wanted: &str| {
            let named = names
                .iter()
                .filter_map(|name| node[*name].as_array())
                .flatten();
            named
                .filter_map(Value::as_str)
                .any(|one| one.eq_ignore_ascii_case(wanted))
        };
        let has_skill = |wanted: &str| {
            skills.iter().any(|skill| {
                let texts = ["id", "name"]
                    .iter()
                    .filter_map(|name| skill[*name].as_str());
                texts
                    .into_iter()
                    .any(|one| one.eq_ignore_ascii_case(wanted))
                    || lists(skill, ["tags", ""], wanted)
            })
        };
        let has_mode = |wanted: &str| {
            lists(&card, ["defaultInputModes", "defaultOutputModes"], wanted)
                || skills
                    .iter()
                    .any(|skill| lists(skill, ["inputModes", "outputModes"], wanted))
        };
        self.skill.as_deref().is_none_or(has_skill) && self.mode.as_deref().is_none_or(has_mode)
    }
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
