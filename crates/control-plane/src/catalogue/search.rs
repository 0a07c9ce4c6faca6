//! `POST /search`, `GET /agents`, `GET /agents/{urn}` and `POST /explore` of ARD 0.91. What the reader may call is
//! found first; only that is compared, counted and paged.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::request::Parts;
use http::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use url::form_urlencoded;
use utoipa::ToSchema;

use super::entry::{AGENT_TYPE, Entry, parse_urn};
use super::{Reader, SEARCHED_MAX, set_caching, wrong};
use crate::body::Json;
use crate::well_known::tagged_response;
use assembly::gateway::Gateway;
use kernel::config::Config;
use kernel::ids::RequestId;
use kernel::rejection::{Reason, Rejection};

/// Results of a page of `POST /search`, and of `GET /agents`, where the request does not say.
const PAGE_SIZES: (i64, i64) = (10, 20);
/// Results of a page, at most.
const PAGE_SIZE_MAX: i64 = 100;
/// Characters of a query, at most.
const QUERY_CHARS_MAX: usize = 1_000;
/// Words of a query that are compared.
const WORDS_MAX: usize = 32;

/// The body of `POST /search`.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SearchRequest {
    query: SearchQuery,
    /// `auto` and `referrals` are as `none`: this gateway asks no other registry.
    #[serde(default)]
    #[schema(pattern = "^(auto|referrals|none)$")]
    federation: Option<String>,
    /// From 1; 10 by default, 100 at most.
    #[serde(default)]
    #[schema(minimum = 1)]
    page_size: Option<i64>,
    /// Of the page before.
    #[serde(default)]
    page_token: Option<String>,
}

#[derive(Deserialize, ToSchema)]
struct SearchQuery {
    /// Words, of which the results have at least one or its beginning.
    #[serde(default)]
    #[schema(required = true, min_length = 1, max_length = 1000, pattern = r"\S")]
    text: String,
    /// A string or strings by `type`, `publisher`, `identifier`, `displayName`, `tags` or `capabilities`.
    #[serde(default)]
    #[schema(value_type = Object)]
    filter: Map<String, Value>,
}

/// `POST /search`.
pub(crate) async fn search_agents(
    State(gateway): State<Arc<Gateway>>,
    reader: Reader,
    Json(request): Json<SearchRequest>,
) -> Result<Response, Rejection> {
    let config = Arc::clone(&*gateway.config());
    let text = request.query.text.trim();
    if text.is_empty() || text.chars().count() > QUERY_CHARS_MAX {
        return Err(wrong("`query.text` is a text of 1 to 1,000 characters"));
    }
    let federation = request.federation.as_deref().unwrap_or("auto");
    if !["auto", "referrals", "none"].contains(&federation) {
        return Err(wrong("`federation` is `auto`, `referrals` or `none`"));
    }
    let size = read_page_size(request.page_size, PAGE_SIZES.0)?;
    let filter = Filter::parse(&request.query.filter)?;
    let binding = format!(
        "{}\n{text}\n{}",
        reader.name(),
        Value::Object(request.query.filter.clone())
    );
    let offset = read_token(request.page_token.as_deref(), &binding)?;
    let entries = reader
        .collect_entries(&gateway, (None, None), SEARCHED_MAX)
        .await?;
    let words = words_of(text)
        .into_iter()
        .take(WORDS_MAX)
        .collect::<Vec<_>>();
    let mut found: Vec<(u32, &Entry)> = entries
        .iter()
        .filter(|entry| filter.holds(&config, entry))
        .map(|entry| (score(entry, &words), entry))
        .filter(|(score, _)| *score > 0)
        .collect();
    found.sort_by_key(|(score, entry)| (Reverse(*score), entry.identifier.clone()));
    let next = next_token(offset, size, found.len(), &binding);
    let results: Vec<Value> = found
        .iter()
        .skip(offset)
        .take(size)
        .map(|(score, entry)| {
            let mut result = entry.to_result();
            result.insert("score".into(), (*score).into());
            result.insert("source".into(), config.public_url().into());
            Value::Object(result)
        })
        .collect();
    let mut answer = json!({"results": results});
    if federation == "referrals" {
        answer["referrals"] = json!([]);
    }
    if let Some(next) = next {
        answer["pageToken"] = next.into();
    }
    Ok(Answer(answer).into_response())
}

/// `GET /agents`.
pub(crate) async fn list_agents(
    State(gateway): State<Arc<Gateway>>,
    reader: Reader,
    uri: Uri,
) -> Result<Response, Rejection> {
    let (mut filter, mut order, mut size, mut token) = (None, None, None, None);
    for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        let place = match &*name {
            "filter" => &mut filter,
            "orderBy" => &mut order,
            "pageSize" => &mut size,
            "pageToken" => &mut token,
            _ => {
                return Err(wrong(
                    "the query is `filter`, `orderBy`, `pageSize` and `pageToken`",
                ));
            }
        };
        if place.replace(value.into_owned()).is_some() {
            return Err(wrong(format!("`{name}` stands twice")));
        }
    }
    let config = Arc::clone(&*gateway.config());
    let size = size
        .map(|size| size.parse::<i64>().map_err(|_| wrong_size()))
        .transpose()?;
    let size = read_page_size(size, PAGE_SIZES.1)?;
    let binding = format!("{}\nagents\n{filter:?}\n{order:?}", reader.name());
    let offset = read_token(token.as_deref(), &binding)?;
    let filter = Filter::parse_text(filter.as_deref().unwrap_or_default())?;
    let mut items = reader
        .collect_entries(&gateway, (None, None), SEARCHED_MAX)
        .await?;
    items.retain(|entry| filter.holds(&config, entry));
    match order.as_deref() {
        None | Some("identifier") => items.sort_by(|a, b| a.identifier.cmp(&b.identifier)),
        Some("displayName") => items.sort_by(|a, b| a.display_name.cmp(&b.display_name)),
        Some(_) => return Err(wrong("`orderBy` is `identifier` or `displayName`")),
    }
    let page: Vec<Value> = items
        .iter()
        .skip(offset)
        .take(size)
        .map(Entry::to_json)
        .collect();
    let mut answer = json!({"items": page, "total": items.len()});
    if let Some(next) = next_token(offset, size, items.len(), &binding) {
        answer["pageToken"] = next.into();
    }
    Ok(Answer(answer).into_response())
}

/// `{urn}` of the path, decoded once.
pub(crate) struct PathUrn(String);

impl<S: Send + Sync> FromRequestParts<S> for PathUrn {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let params = RawPathParams::from_request_parts(parts, state).await.ok();
        let urn = params.and_then(|all| all.iter().next().map(|(_, urn)| urn.to_owned()));
        Ok(Self(urn.unwrap_or_default()))
    }
}

/// `GET /agents/{urn}`.
pub(crate) async fn read_agent(
    State(gateway): State<Arc<Gateway>>,
    PathUrn(urn): PathUrn,
    reader: Reader,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    let config = Arc::clone(&*gateway.config());
    let id = parse_urn(&config, &urn).map_err(|()| {
        wrong("write the identifier of an agent, such as urn:air:gw.example.com:planner")
    })?;
    let mut entries = Vec::new();
    if let Some(id) = id {
        reader.add_entries(&gateway, &[id], &mut entries).await?;
    }
    let entry = entries.pop().ok_or_else(|| {
        let message = "the catalogue of this credential has no agent of this identifier";
        Rejection::new(Reason::NotFound, message)
    })?;
    let mut response = tagged_response(&headers, entry.to_json().to_string(), "application/json");
    set_caching(&mut response, &reader);
    Ok(response)
}

/// `POST /explore`: not offered.
pub(crate) async fn explore(Extension(id): Extension<RequestId>) -> Response {
    let message = "this registry offers no facets: use POST /search";
    let body = json!({
        "error": message, "reason": Reason::NotFound.as_str(),
        "errorCode": "UNIMPLEMENTED", "message": message, "request_id": id.as_str(),
    });
    (StatusCode::NOT_IMPLEMENTED, Answer(body)).into_response()
}

/// Wanted values of members: one of a member's, and of all members.
struct Filter(Vec<(&'static str, Vec<String>)>);

impl Filter {
    const NAMES: [&'static str; 6] = [
        "type",
        "publisher",
        "identifier",
        "displayName",
        "tags",
        "capabilities",
    ];

    fn parse(said: &Map<String, Value>) -> Result<Self, Rejection> {
        let mut all = Vec::new();
        for (name, value) in said {
            let known = Self::NAMES.into_iter().find(|known| known == name);
            let known =
                known.ok_or_else(|| wrong(format!("a filter is by {}", Self::NAMES.join(", "))))?;
            let some = match value {
                Value::Array(list) => list.as_slice(),
                one => std::slice::from_ref(one),
            };
            let texts: Option<Vec<_>> = some
                .iter()
                .map(|one| one.as_str().map(str::to_owned))
                .collect();
            all.push((
                known,
                texts
                    .ok_or_else(|| wrong("a filter's value is a string or an array of strings"))?,
            ));
        }
        Ok(Self(all))
    }

    /// Reads `type = "…" AND publisherId = "…"`.
    fn parse_text(said: &str) -> Result<Self, Rejection> {
        let mut all = Vec::new();
        for one in said
            .split(" AND ")
            .map(str::trim)
            .filter(|one| !one.is_empty())
        {
            let parts = one
                .split_once('=')
                .map(|(name, value)| (name.trim(), value.trim()));
            let (name, value) = match parts {
                Some(("type", value)) => ("type", value),
                Some(("publisherId", value)) => ("publisher", value),
                _ => {
                    return Err(wrong(
                        "`filter` is `type=\"…\"`, `publisherId=\"…\"`, or both with ` AND ` between",
                    ));
                }
            };
            all.push((name, vec![value.trim_matches(['"', '\'']).to_owned()]));
        }
        Ok(Self(all))
    }

    fn holds(&self, config: &Config, entry: &Entry) -> bool {
        self.0.iter().all(|(name, wanted)| {
            let has = |text: &str| wanted.iter().any(|one| one == text);
            match *name {
                "type" => has(AGENT_TYPE),
                "publisher" => has(&config.catalog_publisher()),
                "identifier" => has(&entry.identifier),
                "displayName" => has(&entry.display_name),
                "tags" => entry.tags.iter().any(|one| has(one)),
                _ => entry.capabilities.iter().any(|one| has(one)),
            }
        })
    }
}

pub(super) fn words_of(text: &str) -> Vec<String> {
    let words = text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Returns how well an entry fits, from 0 to 100: the average of the words, by the best place in which each stands.
fn score(entry: &Entry, words: &[String]) -> u32 {
    let description = entry.description.iter().cloned().collect();
    let places: [(u32, Vec<String>); 6] = [
        (100, vec![entry.display_name.clone()]),
        (90, entry.capabilities.clone()),
        (90, entry.tags.clone()),
        (70, entry.skills.clone()),
        (50, description),
        (40, entry.modes.clone()),
    ];
    let places = places.map(|(weight, texts)| {
        let words: Vec<String> = texts.iter().flat_map(|text| words_of(text)).collect();
        (weight, words)
    });
    let best = |word: &String| {
        let fits = places.iter().map(|(weight, texts)| {
            let whole = texts.contains(word);
            let begins = || texts.iter().any(|text| text.starts_with(word.as_str()));
            match (whole, whole || begins()) {
                (true, _) => *weight,
                (false, true) => *weight * 3 / 4,
                _ => 0,
            }
        });
        fits.max().unwrap_or_default()
    };
    let count = u32::try_from(words.len()).unwrap_or(u32::MAX).max(1);
    let sum: u32 = words.iter().map(best).sum();
    sum.div_ceil(count).min(100)
}

fn wrong_size() -> Rejection {
    wrong("`pageSize` is a whole number from 1")
}

fn read_page_size(said: Option<i64>, default: i64) -> Result<usize, Rejection> {
    let size = said.unwrap_or(default);
    if size < 1 {
        return Err(wrong_size());
    }
    usize::try_from(size.min(PAGE_SIZE_MAX)).map_err(|_| wrong_size())
}

/// Returns the sum that binds an offset to a reader and its query.
fn token_sum(offset: usize, binding: &str) -> String {
    let sum = Sha256::digest(format!("page\n{offset}\n{binding}"));
    URL_SAFE_NO_PAD.encode(&sum[..16])
}

fn next_token(offset: usize, size: usize, count: usize, binding: &str) -> Option<String> {
    let next = offset.saturating_add(size);
    (next < count).then(|| format!("{next}.{}", token_sum(next, binding)))
}

fn read_token(token: Option<&str>, binding: &str) -> Result<usize, Rejection> {
    let Some(token) = token else {
        return Ok(0);
    };
    let parts = token.split_once('.');
    let parsed = parts.and_then(|(offset, sum)| Some((offset.parse::<usize>().ok()?, sum)));
    match parsed {
        Some((offset, sum)) if sum == token_sum(offset, binding) => Ok(offset),
        _ => Err(wrong(
            "`pageToken` is not one of this caller's search: start without",
        )),
    }
}
