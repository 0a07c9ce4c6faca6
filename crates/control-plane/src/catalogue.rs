//! The agents as a catalogue: the files of AI Catalog 0.9, which ARD 0.91 reads, too, and ARD's search
//! (`docs/guide/find-agents.md`). Each caller sees the agents that it may call; without a credential those whose card
//! is public.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Path, Query, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, VARY};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::body::Json;
use super::extract::Caller;
use super::well_known::tagged_response;
use a2a::catalogue::{Listing, split_search};
use access::hierarchy::ReachablePage;
use access::identity::{ClientAddr, Proof};
use access::workspace::{CandidateQuery, Search, Workspace};
use assembly::gateway::Gateway;
use directory::stops::End;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// The version of AI Catalog.
const SPEC_VERSION: &str = "0.9";

const CARD_TYPE: &str = "application/a2a-agent-card+json";
const CATALOG_TYPE: &str = "application/ai-catalog+json";
const REGISTRY_TYPE: &str = "application/ai-registry+json";

/// Agents in one catalogue; a longer one is nested.
const CATALOG_MAX: usize = 1000;

/// Agents that a nested catalogue reaches.
const NESTED_MAX: usize = 100_000;

/// Agents that one search reads at most.
const SEARCHED_MAX: usize = 20_000;

/// Time for one search.
const SEARCH_TIME: Duration = Duration::from_secs(3);

/// Workspaces that are read at once.
const READ_AT_ONCE: u32 = 500;

/// Who reads: a proven caller, or a client without a credential.
pub(super) struct Reader(Option<Arc<Proof>>);

impl FromRequestParts<Arc<Gateway>> for Reader {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        match Caller::from_request_parts(parts, gateway).await {
            Ok(caller) => Ok(Self(Some(caller.0))),
            Err(refusal)
                if refusal.reason == Reason::Unauthenticated
                    && !parts.headers.contains_key(AUTHORIZATION) =>
            {
                if let Some(client) = parts.extensions.get::<ClientAddr>() {
                    gateway.rates.count_card_read(client.0)?;
                }
                Ok(Self(None))
            }
            Err(refusal) => Err(refusal),
        }
    }
}

impl Reader {
    /// Returns a page of the workspaces that it may call, in order of id.
    async fn list(
        &self,
        gateway: &Gateway,
        wish: &CandidateQuery<'_>,
    ) -> Result<ReachablePage, Rejection> {
        let mut page = match &self.0 {
            Some(proof) => gateway.hierarchy.list_visible(proof, wish).await?,
            None => {
                let default = gateway.config().card.access;
                gateway.hierarchy.list_public(default, wish).await?
            }
        };
        if gateway.stops.is_idle() {
            return Ok(page);
        }
        let mut kept = Vec::with_capacity(page.found.len());
        for (id, rule) in std::mem::take(&mut page.found) {
            if self.is_callable(gateway, &id).await? {
                kept.push((id, rule));
            }
        }
        page.found = kept;
        Ok(page)
    }

    /// True if a call to the workspace would be permitted: by the code that decides on calls. Of a client without a
    /// credential: if the card is public, and nothing stops the workspace.
    async fn is_callable(&self, gateway: &Gateway, id: &WorkspaceId) -> Result<bool, Rejection> {
        match &self.0 {
            Some(proof) => match gateway.hierarchy.permit(proof, id).await {
                Ok(permit) => Ok(gateway.stops.check(&permit).is_ok()),
                Err(refusal) if refusal.reason == Reason::StoreUnavailable => Err(refusal),
                Err(_) => Ok(false),
            },
            None => {
                let public = gateway.resolution.public_card_source(id).await?.is_some();
                let place = gateway.hierarchy.load_lineage(id).await?;
                let end = End::at_workspace(id, place.as_deref());
                Ok(public && gateway.stops.find_over(end).is_none())
            }
        }
    }

    /// Returns the agents of a page.
    async fn read(
        &self,
        gateway: &Gateway,
        page: &ReachablePage,
    ) -> Result<Vec<ListedAgent>, Rejection> {
        let ids: Vec<_> = page.found.iter().map(|(id, _)| id.clone()).collect();
        read_agents(gateway, &ids).await
    }

    /// Binds a token of a page to its reader and to what was asked, so that no other can use it.
    fn seal(&self, asked: &str, place: &str) -> String {
        let who = self.0.as_ref().map(|proof| proof.principal.to_string());
        let mark = Sha256::new()
            .chain_update(who.unwrap_or_default())
            .chain_update([0])
            .chain_update(asked)
            .chain_update([0])
            .chain_update(place);
        let mark = URL_SAFE_NO_PAD.encode(&mark.finalize()[..9]);
        URL_SAFE_NO_PAD.encode(format!("{mark}{place}"))
    }

    /// Returns the place in a token that [`Reader::seal`] made.
    ///
    /// # Errors
    /// `invalid_params`.
    fn unseal(&self, asked: &str, token: Option<&str>) -> Result<String, Rejection> {
        let Some(token) = token else {
            return Ok(String::new());
        };
        let read = URL_SAFE_NO_PAD.decode(token).ok();
        let read = read.and_then(|read| String::from_utf8(read).ok());
        let place = read.as_deref().and_then(|read| read.get(12..));
        let place = place.filter(|place| self.seal(asked, place) == token);
        place
            .map(str::to_owned)
            .ok_or_else(|| wrong("`pageToken` is not one of an answer to this request"))
    }
}

fn wrong(message: impl Into<std::borrow::Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::InvalidParams, message)
}

/// An agent in a catalogue.
struct ListedAgent {
    id: WorkspaceId,
    listing: Listing,
    entry: Value,
}

async fn read_agents(
    gateway: &Gateway,
    ids: &[WorkspaceId],
) -> Result<Vec<ListedAgent>, Rejection> {
    let views = &gateway.directory.views;
    let mut workspaces = views.find_many(ids).await?;
    // Removed since the page was found.
    workspaces.retain(|one| one.status != access::workspace::Status::Removed);
    views.redact_cards(&mut workspaces, |_| true).await;
    Ok(workspaces
        .iter()
        .map(|one| list_agent(gateway, one))
        .collect())
}

fn list_agent(gateway: &Gateway, workspace: &Workspace) -> ListedAgent {
    let config = gateway.config();
    let card = workspace.agent_card.as_ref();
    let card: Option<Value> = card.and_then(|card| serde_json::from_str(card.get()).ok());
    let listing = Listing::new(&workspace.name, workspace.role.as_deref(), card.as_ref());
    let mut entry = json!({
        "identifier": name_agent(&config.publisher(), &workspace.id),
        "displayName": listing.name,
        "type": CARD_TYPE,
        "url": format!("{}/.well-known/agent-card.json", config.base_of(&workspace.id)),
        "updatedAt": workspace.updated_at.to_string(),
    });
    let lists = [("tags", &listing.tags), ("capabilities", &listing.skills)];
    for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        entry[name] = json!(list);
    }
    if let Some(description) = &listing.description {
        entry["description"] = json!(description);
    }
    // Readers warn about any other number.
    if listing.examples.len() >= 2 {
        entry["representativeQueries"] = json!(listing.examples[..listing.examples.len().min(5)]);
    }
    ListedAgent {
        id: workspace.id.clone(),
        listing,
        entry,
    }
}

fn name_agent(publisher: &str, id: &WorkspaceId) -> String {
    format!("urn:air:{publisher}:{id}")
}

#[derive(Deserialize)]
pub(super) struct NestedQuery {
    /// The id after which a nested catalogue begins; empty: the first.
    after: Option<String>,
}

/// `GET /.well-known/ard.json`.
pub(super) async fn serve_ard(
    State(gateway): State<Arc<Gateway>>,
    reader: Reader,
    Query(nested): Query<NestedQuery>,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    serve_catalog(
        &gateway,
        &reader,
        nested.after,
        &headers,
        "application/json",
    )
    .await
}

/// `GET /.well-known/ai-catalog.json`.
pub(super) async fn serve_ai_catalog(
    State(gateway): State<Arc<Gateway>>,
    reader: Reader,
    Query(nested): Query<NestedQuery>,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    serve_catalog(&gateway, &reader, nested.after, &headers, CATALOG_TYPE).await
}

async fn serve_catalog(
    gateway: &Gateway,
    reader: &Reader,
    after: Option<String>,
    headers: &HeaderMap,
    media_type: &'static str,
) -> Result<Response, Rejection> {
    let is_nested = after.is_some();
    let bound = if is_nested { CATALOG_MAX } else { NESTED_MAX };
    let ids = list_ids(gateway, reader, after.unwrap_or_default(), bound).await?;
    let config = gateway.config();
    let publisher = config.publisher();
    let mut entries = Vec::new();
    if ids.len() <= CATALOG_MAX {
        for some in ids.chunks(READ_AT_ONCE as usize) {
            let agents = read_agents(gateway, some).await?;
            entries.extend(agents.into_iter().map(|agent| agent.entry));
        }
    } else {
        let begins = ids.chunks(CATALOG_MAX).map(|some| some.last());
        let begins = std::iter::once(None).chain(begins);
        for (number, after) in (1..).zip(begins.take(ids.len().div_ceil(CATALOG_MAX))) {
            let after = after.map_or("", WorkspaceId::as_str);
            entries.push(json!({
                "identifier": format!("urn:air:{publisher}:gateway:catalog-{number}"),
                "displayName": format!("Agents, part {number}"),
                "type": CATALOG_TYPE,
                "url": format!("{}/.well-known/ai-catalog.json?after={after}", config.public_url()),
            }));
        }
    }
    if !is_nested {
        entries.push(json!({
            "identifier": format!("urn:air:{publisher}:gateway:registry"),
            "displayName": "Search of the agents",
            "type": REGISTRY_TYPE,
            "url": config.public_url(),
            "representativeQueries": ["which agent can review a contract?", "agents that take images"],
        }));
    }
    let document = json!({
        "specVersion": SPEC_VERSION,
        "host": {"displayName": "a2a-gateway", "identifier": publisher},
        "entries": entries,
    });
    Ok(cached_response(reader, headers, &document, media_type))
}

/// Returns the ids of the workspaces that the reader may call, those after `after`, at most `bound`.
async fn list_ids(
    gateway: &Gateway,
    reader: &Reader,
    mut after: String,
    bound: usize,
) -> Result<Vec<WorkspaceId>, Rejection> {
    let mut ids = Vec::new();
    loop {
        let page = reader.list(gateway, &wish(&after, &[])).await?;
        let more = page.more;
        after = match page.found.last() {
            Some((last, _)) => last.to_string(),
            None => return Ok(ids),
        };
        ids.extend(page.found.into_iter().map(|(id, _)| id));
        if !more || ids.len() >= bound {
            ids.truncate(bound);
            return Ok(ids);
        }
    }
}

const fn wish<'a>(after: &'a str, search: &'a [Search]) -> CandidateQuery<'a> {
    CandidateQuery {
        search,
        in_cards: true,
        public: None,
        status: None,
        after,
        limit: READ_AT_ONCE,
    }
}

/// Answers with a document that readers may keep, but for others than a proven one.
fn cached_response(
    reader: &Reader,
    headers: &HeaderMap,
    document: &Value,
    media_type: &'static str,
) -> Response {
    let mut response = tagged_response(headers, document.to_string());
    let kept = match reader.0 {
        Some(_) => "private, no-cache",
        None => "public, max-age=60",
    };
    let fields = response.headers_mut();
    fields.insert(CACHE_CONTROL, HeaderValue::from_static(kept));
    fields.insert(VARY, HeaderValue::from_static("Authorization, Origin"));
    if fields.contains_key(CONTENT_TYPE) {
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    }
    response
}

/// The body of `POST /search`.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SearchRequest {
    query: SearchQuery,
    /// `auto`, `referrals` or `none`: this registry asks no other.
    #[serde(default)]
    federation: Option<String>,
    #[schema(minimum = 1, maximum = 100)]
    page_size: Option<i64>,
    page_token: Option<String>,
}

#[derive(Deserialize, ToSchema)]
pub(super) struct SearchQuery {
    /// Words; each may begin one in the agent's name, tags, skills, description or examples.
    text: String,
    /// Paths (`type`, `publisher`, `identifier`, `tags`, `capabilities`, `inputModes`, `outputModes`) to a text or to
    /// texts of which one is wanted.
    #[serde(default)]
    #[schema(value_type = Object)]
    filter: Map<String, Value>,
}

/// `POST /search`.
pub(super) async fn search(
    State(gateway): State<Arc<Gateway>>,
    reader: Reader,
    Json(asked): Json<SearchRequest>,
) -> Result<Response, Rejection> {
    let words = split_search(&asked.query.text);
    if words.is_empty() {
        return Err(wrong("`query.text` has at least one word"));
    }
    let federation = asked.federation.as_deref().unwrap_or("auto");
    if !["auto", "referrals", "none"].contains(&federation) {
        return Err(wrong("`federation` is `auto`, `referrals` or `none`"));
    }
    let filter = Filter::parse(&asked.query.filter)?;
    let size = read_size(asked.page_size, 10)?;
    let shape = format!("{} {}", words.join(" "), json!(asked.query.filter));
    let from = reader.unseal(&shape, asked.page_token.as_deref())?;
    let from: usize = from.parse().unwrap_or(0);
    let mut found = Vec::new();
    let texts: Vec<Search> = words.iter().map(|word| Search::new(word)).collect();
    let publisher = gateway.config().publisher();
    each_agent(&gateway, &reader, &texts, |agent| {
        let score = agent.listing.score(&words);
        if score > 0 && filter.takes(&agent, &publisher) {
            found.push((Reverse(score), agent));
        }
        true
    })
    .await?;
    found.sort_by(|(one, this), (other, that)| (one, &this.id).cmp(&(other, &that.id)));
    let source = gateway.config().public_url();
    let total = found.len();
    let results = found.into_iter().skip(from).take(size);
    let results: Vec<Value> = results
        .map(|(Reverse(score), agent)| {
            let mut entry = agent.entry;
            if let Some(members) = entry.as_object_mut() {
                members.remove("representativeQueries");
            }
            entry["score"] = score.into();
            entry["source"] = source.as_str().into();
            entry
        })
        .collect();
    let mut answer = json!({"results": results});
    if federation == "referrals" {
        answer["referrals"] = json!([]);
    }
    if from + size < total {
        answer["pageToken"] = reader.seal(&shape, &(from + size).to_string()).into();
    }
    Ok(axum::Json(answer).into_response())
}

/// Calls `take` with each agent that the reader may call and that has one of the texts, until it returns false.
///
/// # Errors
/// `overloaded`: there are too many, or they take too long to read.
async fn each_agent(
    gateway: &Gateway,
    reader: &Reader,
    texts: &[Search],
    mut take: impl FnMut(ListedAgent) -> bool,
) -> Result<(), Rejection> {
    let (until, mut read) = (Instant::now() + SEARCH_TIME, 0);
    let mut after = String::new();
    loop {
        let page = reader.list(gateway, &wish(&after, texts)).await?;
        let agents = reader.read(gateway, &page).await?;
        read += agents.len();
        if !agents.into_iter().all(&mut take) || !page.more {
            return Ok(());
        }
        if read >= SEARCHED_MAX || Instant::now() >= until {
            let message = "the search finds too many agents to read in time; ask for rarer words";
            return Err(Rejection::new(Reason::Overloaded, message));
        }
        match page.found.last() {
            Some((last, _)) => after = last.to_string(),
            None => return Ok(()),
        }
    }
}

/// Reads the size of a page, which is at most 100.
fn read_size(asked: Option<i64>, default: usize) -> Result<usize, Rejection> {
    match asked {
        None => Ok(default),
        Some(size) if size < 1 => Err(wrong("`pageSize` is at least 1")),
        Some(size) => Ok(usize::try_from(size).unwrap_or(100).min(100)),
    }
}

/// The filter of a search: each path has one of its values.
struct Filter(Vec<(String, Vec<String>)>);

impl Filter {
    /// # Errors
    /// `invalid_params` for an unknown path: else a misspelt one would look like no result.
    fn parse(filter: &Map<String, Value>) -> Result<Self, Rejection> {
        let known = [
            "type",
            "publisher",
            "identifier",
            "tags",
            "capabilities",
            "inputModes",
            "outputModes",
        ];
        let mut all = Vec::new();
        for (path, wanted) in filter {
            if !known.contains(&path.as_str()) {
                let known = known.join(", ");
                return Err(wrong(format!("`filter` has the paths {known}")));
            }
            let wanted: Option<Vec<String>> = match wanted {
                Value::String(one) => Some(vec![one.clone()]),
                Value::Array(list) => list
                    .iter()
                    .map(|one| Some(one.as_str()?.to_owned()))
                    .collect(),
                _ => None,
            };
            let wanted = wanted
                .ok_or_else(|| wrong("each path of `filter` has a text, or a list of them"))?;
            all.push((path.clone(), wanted));
        }
        Ok(Self(all))
    }

    fn takes(&self, agent: &ListedAgent, publisher: &str) -> bool {
        self.0.iter().all(|(path, wanted)| {
            let one = |value: &str| wanted.iter().any(|text| text == value);
            let any = |list: &[String]| list.iter().any(|value| one(value));
            match path.as_str() {
                "type" => one(CARD_TYPE),
                "publisher" => one(publisher),
                "identifier" => one(&name_agent(publisher, &agent.id)),
                "tags" => any(&agent.listing.tags),
                "capabilities" => any(&agent.listing.skills),
                "inputModes" => any(&agent.listing.input_modes),
                _ => any(&agent.listing.output_modes),
            }
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentsQuery {
    filter: Option<String>,
    order_by: Option<String>,
    page_size: Option<i64>,
    page_token: Option<String>,
}

/// The answer of `GET /agents`.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentsResponse {
    /// Entries of the catalogue, in order of id.
    #[schema(value_type = Vec<Object>)]
    items: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    page_token: Option<String>,
}

/// `GET /agents`.
pub(super) async fn list_agents(
    State(gateway): State<Arc<Gateway>>,
    reader: Reader,
    query: Result<Query<AgentsQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<axum::Json<AgentsResponse>, Rejection> {
    let Query(query) =
        query.map_err(|_| wrong("`pageSize` is a whole number; each parameter stands once"))?;
    let size = read_size(query.page_size, 20)?;
    let asked = query.filter.unwrap_or_default();
    if query
        .order_by
        .is_some_and(|order| !["", "identifier"].contains(&order.as_str()))
    {
        return Err(wrong("`orderBy` is `identifier`"));
    }
    let publisher = gateway.config().publisher();
    let is_wanted = match asked
        .split_once('=')
        .map(|(path, text)| (path.trim(), text.trim()))
    {
        None if asked.is_empty() => true,
        Some(("type", text)) => text.trim_matches(['"', '\'']) == CARD_TYPE,
        Some(("publisherId", text)) => text.trim_matches(['"', '\'']) == publisher,
        _ => return Err(wrong("`filter` is `type=\"…\"` or `publisherId=\"…\"`")),
    };
    let mut after = reader.unseal(&asked, query.page_token.as_deref())?;
    let (mut items, mut page_token) = (Vec::new(), None);
    while is_wanted && items.len() < size {
        let limit = u32::try_from(size - items.len()).unwrap_or(READ_AT_ONCE);
        let wish = CandidateQuery {
            limit,
            ..wish(&after, &[])
        };
        let page = reader.list(&gateway, &wish).await?;
        let agents = reader.read(&gateway, &page).await?;
        items.extend(agents.into_iter().map(|agent| agent.entry));
        page_token = None;
        let Some((last, _)) = page.found.last().filter(|_| page.more) else {
            break;
        };
        after = last.to_string();
        page_token = Some(reader.seal(&asked, &after));
    }
    Ok(axum::Json(AgentsResponse { items, page_token }))
}

/// `GET /agents/{urn}`.
pub(super) async fn find_agent(
    State(gateway): State<Arc<Gateway>>,
    reader: Reader,
    Path(urn): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    let parts: Vec<&str> = urn.splitn(4, ':').collect();
    let [urn_word, air, publisher, name] = parts[..] else {
        return Err(wrong("an agent is named urn:air:PUBLISHER:ID"));
    };
    let is_plain = |text: &str, more: &[u8]| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || more.contains(&byte);
        !text.is_empty() && text.bytes().all(plain)
    };
    let is_urn = urn_word.eq_ignore_ascii_case("urn") && air == "air" && is_plain(publisher, b".-");
    if !is_urn || !name.split(':').all(|part| is_plain(part, b"._-")) {
        return Err(wrong("an agent is named urn:air:PUBLISHER:ID"));
    }
    let unknown = || Rejection::new(Reason::NotFound, "there is no such agent that you may call");
    let id = WorkspaceId::parse(name).map_err(|_| unknown())?;
    if publisher != gateway.config().publisher() || !reader.is_callable(&gateway, &id).await? {
        return Err(unknown());
    }
    let agents = read_agents(&gateway, &[id]).await?;
    let agent = agents.into_iter().next().ok_or_else(unknown)?;
    Ok(cached_response(
        &reader,
        &headers,
        &agent.entry,
        "application/json",
    ))
}

/// `POST /explore`.
pub(super) async fn explore() -> Response {
    let message = "this registry has no facets: POST /search, or GET /agents";
    let body = json!({
        "error": message, "reason": "not_found", "errorCode": "UNIMPLEMENTED", "message": message,
    });
    (StatusCode::NOT_IMPLEMENTED, axum::Json(body)).into_response()
}

/// Adds the members of errors that ARD has.
pub(super) fn add_ard_members(pattern: &str, rejection: Rejection) -> Rejection {
    if !["/search", "/agents", "/agents/{urn}"].contains(&pattern) {
        return rejection;
    }
    let code = match rejection.reason.status() {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RATE_LIMIT_EXCEEDED",
        503 => "UNAVAILABLE",
        500.. => "INTERNAL_ERROR",
        _ => "INVALID_ARGUMENT",
    };
    let message = rejection.message.to_string();
    rejection
        .with_fact("errorCode", code)
        .with_fact("message", message)
}
