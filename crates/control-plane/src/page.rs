//! Pagination and filters of lists (`docs/reference/http-api.md`, "Conventions").

use axum::extract::{FromRequestParts, Query};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::LINK;
use http::request::Parts;
use http::{HeaderValue, Uri};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use super::extract::is_name;
use access::workspace::{Search, Status};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// Default entries of a page.
const LIMIT_DEFAULT: u32 = 100;

/// Maximum entries of a page.
const LIMIT_MAX: u32 = 500;

/// Bytes of the name in a cursor.
const CURSOR_BYTES_MAX: usize = 1_024;

/// The requested page of a list: `?cursor=&limit=`.
#[derive(Debug)]
pub(super) struct Page {
    /// Maximum entries of this page.
    pub(super) limit: u32,
    /// The name after which to continue; empty for the first page.
    pub(super) after: String,
    /// The requested URI, for the link to the next page.
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
    /// Returns the page size plus one, to detect further entries.
    pub(super) fn look_ahead(&self) -> u32 {
        self.limit + 1
    }

    /// Returns the number in the cursor of a list that is ordered by numbers.
    ///
    /// # Errors
    /// `invalid_params` if the cursor is not a number.
    pub(super) fn number_cursor(&self) -> Result<Option<i64>, Rejection> {
        if self.after.is_empty() {
            return Ok(None);
        }
        let number = self.after.parse().ok();
        number.map(Some).ok_or_else(not_our_cursor)
    }

    /// Builds the cursor that [`Page::number_cursor`] reads.
    pub(super) fn encode_number(number: i64) -> String {
        URL_SAFE_NO_PAD.encode(number.to_string())
    }

    /// Truncates to the page size. Returns the cursor of the next page, if there is one.
    pub(super) fn truncate_page<T>(
        &self,
        rows: &mut Vec<T>,
        name: impl Fn(&T) -> &str,
    ) -> Option<String> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| more)?;
        Some(URL_SAFE_NO_PAD.encode(name(last)))
    }

    /// Returns the cursor of the page after the found entries, if there is one.
    pub(super) fn after_last<T>(&self, found: &[(WorkspaceId, T)], more: bool) -> Option<String> {
        Self::cursor_after(found.last().map(|(last, _)| last.as_str()), more)
    }

    /// Returns the cursor of the page after the entry `last`, if there are more entries.
    pub(super) fn cursor_after(last: Option<&str>, more: bool) -> Option<String> {
        last.filter(|_| more)
            .map(|last| URL_SAFE_NO_PAD.encode(last))
    }

    /// Answers with an array. The next page is in `Link` (RFC 8288), with the filters of this one. The reference has no
    /// host, since callers may know the gateway by several.
    pub(super) fn to_response<T: Serialize>(&self, rows: &[T], next: Option<String>) -> Response {
        self.to_linked_response(rows, next.map(|cursor| ("cursor", cursor)))
    }

    /// Answers with an array; the parameter in `next` selects the next page.
    pub(super) fn to_linked_response<T: Serialize>(
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

/// The filter of a list of workspaces: `?q=&status=`.
pub(super) struct Filter {
    /// Workspaces with this text in their name or role.
    pub(super) search: Option<Search>,
    /// Workspaces in this status.
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
                wrong("`status` is the status of a workspace, such as `online` (docs/reference/http-api.md)")
            })
        });
        Ok(Self {
            search: q.map(Search::new),
            status: status.transpose()?,
        })
    }
}

/// The filter of a list of grants: `?caller_id=&target_id=`.
pub(super) struct Ends {
    /// Grants of this caller.
    pub(super) caller: Option<WorkspaceId>,
    /// Grants to this target.
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
    let name = String::from_utf8(name).ok();
    // A row of a matrix has the ids of two workspaces in its name.
    name.filter(|name| name.len() <= CURSOR_BYTES_MAX)
        .filter(|name| !name.trim().is_empty() && !name.contains(char::is_control))
}
