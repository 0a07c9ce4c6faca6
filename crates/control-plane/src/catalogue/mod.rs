//! The catalogue of agents (`docs/reference/http-api.md`, "Catalogue"): each caller sees the agents that it may call,
//! by the code that refuses its calls. The forms of others, AI Catalog 0.9 and ARD 0.91, are in [`entry`].

mod entry;
mod peers;
mod search;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use http::header::{AUTHORIZATION, CACHE_CONTROL, VARY};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Uri};
use serde_json::{Value, json};
use tokio::time::timeout;
use url::form_urlencoded;

use self::entry::Entry;
pub(super) use self::peers::SkillFilter;
#[cfg(test)]
pub(super) use self::search::SearchRequest;
pub(super) use self::search::{explore, list_agents, read_agent, search_agents};
use super::extract::Caller;
use super::well_known::tagged_response;
use access::identity::ClientAddr;
use access::workspace::CandidateQuery;
use assembly::gateway::Gateway;
use directory::stops::End;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// Agents in one document.
const DOCUMENT_ENTRIES: u32 = 1_000;

/// Agents of one caller that are split into documents, at most: readers follow the links of one document only.
const AGENTS_MAX: u32 = 1_000_000;

/// Workspaces that are read at once.
const PAGE: u32 = 500;

/// Agents among which one request searches, at most.
const SEARCHED_MAX: usize = 20_000;

/// Bytes of the cards behind the entries of one request, at most.
const CARD_BYTES_MAX: usize = 64 << 20;

/// Time for the entries of one request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The routes with errors that have the members of ARD, too.
pub(super) const ARD_ROUTES: [&str; 4] = ["/search", "/agents", "/agents/{urn}", "/explore"];

/// Adds the members of ARD's errors to a rejection.
pub(super) fn with_ard_members(rejection: Rejection) -> Rejection {
    let code = match rejection.reason.status() {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        404 => "NOT_FOUND",
        429 => "RATE_LIMIT_EXCEEDED",
        _ => "INTERNAL_ERROR",
    };
    let message = rejection.message.to_string();
    let rejection = rejection.with_fact("errorCode", code);
    rejection.with_fact("message", message)
}

/// The reader of the catalogue: a caller, or a client without a credential.
pub(super) struct Reader(Option<Caller>);

impl FromRequestParts<Arc<Gateway>> for Reader {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let is_silent = !parts.headers.contains_key(AUTHORIZATION);
        match Caller::from_request_parts(parts, gateway).await {
            Err(refusal) if is_silent && refusal.reason == Reason::Unauthenticated => {
                if let Some(client) = parts.extensions.get::<ClientAddr>() {
                    gateway.rates.count_card_read(client.0)?;
                }
                Ok(Self(None))
            }
            proven => proven.map(|caller| Self(Some(caller))),
        }
    }
}

impl Reader {
    /// Returns the name to which page tokens are bound.
    fn name(&self) -> String {
        match &self.0 {
            Some(caller) => format!("{:?}", caller.principal()),
            None => String::new(),
        }
    }

    /// Returns whether the agent `id` is in the catalogue of this reader.
    ///
    /// # Errors
    /// `store_unavailable`.
    async fn may_see(&self, gateway: &Gateway, id: &WorkspaceId) -> Result<bool, Rejection> {
        gateway.stops.require_known()?;
        match &self.0 {
            Some(caller) => {
                let permitted = gateway.hierarchy.permit(&caller.0, id).await;
                let checked = match permitted {
                    Ok(permit) => {
                        let checked = gateway.check_chain(&caller.0, &permit).await;
                        checked.and_then(|()| gateway.stops.check(&permit))
                    }
                    Err(why) => Err(why),
                };
                hide_refused(checked)
            }
            None => {
                let source = gateway
                    .workspaces
                    .has_public_card(id, gateway.config().card.access);
                if !source.await? {
                    return Ok(false);
                }
                let place = gateway.hierarchy.load_lineage(id).await?;
                let end = End::at_workspace(id, place.as_deref());
                Ok(gateway.stops.find_over(end).is_none())
            }
        }
    }

    /// Returns the entries of the reader's agents, in order of id: those after `after`, up to `last`.
    ///
    /// # Errors
    /// `store_unavailable`; `overloaded` if it takes too long; `invalid_params` if there are more than `max`.
    async fn collect_entries(
        &self,
        gateway: &Gateway,
        (from, before): (Option<&str>, Option<&str>),
        max: usize,
    ) -> Result<Vec<Entry>, Rejection> {
        let reading = self.read_entries(gateway, (from, before), max);
        timeout(PATIENCE, reading).await.unwrap_or_else(|_| {
            let message = "the agents of this credential could not be read in time";
            let late = Rejection::new(Reason::Overloaded, message);
            Err(late.with_retry_after(Duration::from_secs(1)))
        })
    }

    async fn read_entries(
        &self,
        gateway: &Gateway,
        (from, before): (Option<&str>, Option<&str>),
        max: usize,
    ) -> Result<Vec<Entry>, Rejection> {
        let mut entries = Vec::new();
        let mut after = String::new();
        if let Some(from) = from {
            // Pages continue after an id; this one is in it.
            let id = WorkspaceId::parse(from)?;
            self.add_entries(gateway, &[id], &mut entries).await?;
            from.clone_into(&mut after);
        }
        loop {
            let (mut ids, mut more) = self.find_page(gateway, &after).await?;
            if let Some(at) = ids
                .iter()
                .position(|id| before.is_some_and(|before| id.as_str() >= before))
            {
                ids.truncate(at);
                more = false;
            }
            let last = ids.last().map(|id| id.as_str().to_owned());
            self.add_entries(gateway, &ids, &mut entries).await?;
            let bytes: usize = entries.iter().map(|entry| entry.card_bytes).sum();
            if entries.len() > max || bytes > CARD_BYTES_MAX {
                let message = format!(
                    "this credential reaches more than {max} agents, or more than {} MiB of cards: use one that \
                     reaches fewer",
                    CARD_BYTES_MAX >> 20
                );
                return Err(Rejection::new(Reason::InvalidParams, message));
            }
            match last {
                Some(last) if more => after = last,
                _ => return Ok(entries),
            }
        }
    }

    /// Returns a page of candidates. [`Reader::may_see`] decides about each.
    async fn find_page(
        &self,
        gateway: &Gateway,
        after: &str,
    ) -> Result<(Vec<WorkspaceId>, bool), Rejection> {
        let wish = CandidateQuery {
            search: None,
            status: None,
            after,
            limit: PAGE,
        };
        let Some(caller) = &self.0 else {
            return gateway.hierarchy.list_public(&wish).await;
        };
        let page = gateway.hierarchy.list_visible(&caller.0, &wish).await?;
        let ids = page.found.into_iter().map(|(id, _)| id).collect();
        Ok((ids, page.more))
    }

    async fn add_entries(
        &self,
        gateway: &Gateway,
        ids: &[WorkspaceId],
        entries: &mut Vec<Entry>,
    ) -> Result<(), Rejection> {
        let mut seen = Vec::with_capacity(ids.len());
        for id in ids {
            if self.may_see(gateway, id).await? {
                seen.push(id.clone());
            }
        }
        let views = &gateway.directory.views;
        let mut workspaces = views.find_many(&seen).await?;
        views.redact_cards(&mut workspaces, |_| true).await;
        let config = gateway.config();
        entries.extend(workspaces.iter().map(|one| Entry::new(&config, one)));
        Ok(())
    }
}

/// Returns whether a call would pass. What is refused is hidden; what cannot be decided is an error.
fn hide_refused(checked: Result<(), Rejection>) -> Result<bool, Rejection> {
    match checked {
        Ok(()) => Ok(true),
        Err(refusal) => match refusal.reason {
            Reason::NotPermitted
            | Reason::RootRequired
            | Reason::Stopped
            | Reason::WorkspaceNotFound
            | Reason::WorkspaceRemoved => Ok(false),
            _ => Err(refusal),
        },
    }
}

/// `GET /.well-known/ard.json`.
pub(super) async fn serve_ard(
    State(gateway): State<Arc<Gateway>>,
    reader: Reader,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    serve_catalogue(&gateway, &reader, &uri, &headers, "application/json").await
}

/// `GET /.well-known/ai-catalog.json`.
pub(super) async fn serve_ai_catalog(
    State(gateway): State<Arc<Gateway>>,
    reader: Reader,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    serve_catalogue(&gateway, &reader, &uri, &headers, entry::CATALOGUE_TYPE).await
}

async fn serve_catalogue(
    gateway: &Gateway,
    reader: &Reader,
    uri: &Uri,
    headers: &HeaderMap,
    media: &'static str,
) -> Result<Response, Rejection> {
    let config = Arc::clone(&*gateway.config());
    let part = parse_part(uri)?;
    let max = usize::try_from(DOCUMENT_ENTRIES).unwrap_or(usize::MAX);
    let mut entries: Vec<Value> = Vec::new();
    let starts = if part == Part::default() {
        let proof = reader.0.as_ref().map(|caller| &*caller.0);
        let limits = (DOCUMENT_ENTRIES, AGENTS_MAX);
        gateway.hierarchy.find_boundaries(proof, limits).await?
    } else {
        Vec::new()
    };
    if starts.len() > 1 {
        for (at, start) in starts.iter().enumerate() {
            entries.push(entry::nested(&config, start, starts.get(at + 1)));
        }
    } else {
        let bounds = (part.from.as_deref(), part.before.as_deref());
        // Those that were added since the links were made are in the document, too.
        let found = reader
            .collect_entries(gateway, bounds, max.saturating_mul(2))
            .await?;
        entries.extend(found.iter().map(Entry::to_json));
    }
    if uri.query().is_none() {
        entries.push(entry::registry(&config));
    }
    let document = json!({
        "specVersion": entry::SPEC_VERSION,
        "host": {"displayName": "a2a-gateway", "identifier": config.catalog_publisher()},
        "entries": entries,
    });
    let mut response = tagged_response(headers, document.to_string(), media);
    set_caching(&mut response, reader);
    Ok(response)
}

/// Sets how long an answer may be kept, and where.
fn set_caching(response: &mut Response, reader: &Reader) {
    let kept = match reader.0 {
        Some(_) => "private, no-cache",
        None => "public, max-age=60",
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(kept));
    // The data plane adds the CORS fields for the page's origin.
    headers.insert(VARY, HeaderValue::from_static("Origin, Authorization"));
}

/// The range of workspaces of a nested catalogue.
#[derive(Default, PartialEq)]
struct Part {
    from: Option<String>,
    before: Option<String>,
}

/// Reads `?from=&before=` of a nested catalogue.
fn parse_part(uri: &Uri) -> Result<Part, Rejection> {
    let mut part = Part::default();
    for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        let place = match &*name {
            "from" => &mut part.from,
            "before" => &mut part.before,
            _ => {
                return Err(wrong(
                    "the query is `from` and `before`, of a link in the catalogue",
                ));
            }
        };
        *place = Some(WorkspaceId::parse(&value)?.to_string());
    }
    Ok(part)
}

fn wrong(message: impl Into<std::borrow::Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::InvalidParams, message)
}
