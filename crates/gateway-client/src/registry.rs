//! JSON requests to a gateway's public listener, among them registrations and heartbeats.

use std::collections::HashSet;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::sleep;
use url::Url;

use super::{ClientError, Request, Response};

/// Heartbeat interval: a third of the default `registry.heartbeat_ttl` of 90 s, so that two in a
/// row may be lost.
pub const BEAT: Duration = Duration::from_secs(30);

/// Timeout of one request; the registry never waits for an agent.
const WITHIN: Duration = Duration::from_secs(10);

/// Timeout of a file.
const FILE_WITHIN: Duration = Duration::from_secs(600);

/// Entries of one page: the most that the gateway gives.
const PAGE: &str = "500";

/// Pages of one list: 2,000,000 entries.
const PAGES_MAX: usize = 4_000;

/// Bytes of all pages of one list: several times those of a million workspaces.
const LIST_BYTES_MAX: usize = 2 << 30;

/// Repetitions of one request that exceeds a rate.
const RATE_REPEATS_MAX: usize = 5;

/// Longest delay before such a repetition.
const RATE_WAIT_MAX: Duration = Duration::from_secs(10);

/// A JSON client of a gateway's public listener.
pub struct Registry {
    base: Url,
}

/// The request to the gateway failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// There was no response.
    #[error("{route} failed: {source}")]
    Unanswered {
        /// Method and path.
        route: String,
        /// The cause.
        #[source]
        source: ClientError,
    },
    /// The gateway rejected the request.
    #[error("{route} was refused with {status} {reason}: {message}")]
    Refused {
        /// Method and path.
        route: String,
        /// HTTP status.
        status: u16,
        /// The gateway's reason; `?` if the response has none.
        reason: String,
        /// The gateway's message.
        message: String,
        /// Time after which the gateway wants to be asked again, if it says one.
        retry_after: Option<Duration>,
    },
    /// A list did not end.
    #[error("{route} has no end: {why}; ask for a part of it, or another gateway")]
    Endless {
        /// Method and path.
        route: String,
        /// The bound that it passed.
        why: &'static str,
    },
}

impl RegistryError {
    /// Returns the HTTP status, if there was a response.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Unanswered { .. } | Self::Endless { .. } => None,
        }
    }

    /// Returns the time after which the gateway wants to be asked again, if it says one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::Unanswered { .. } | Self::Endless { .. } => None,
        }
    }

    /// True if the request was certainly not sent.
    pub fn is_unsent(&self) -> bool {
        matches!(self, Self::Unanswered { source, .. } if source.is_unsent())
    }
}

impl Registry {
    /// Returns a client of the gateway at `base`; nothing is sent yet.
    pub fn new(base: Url) -> Self {
        Self { base }
    }

    /// Posts JSON to a path of the gateway and returns the JSON of the response.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn post(
        &self,
        path: &str,
        token: &str,
        body: &Value,
    ) -> Result<Value, RegistryError> {
        let body = body.to_string().into_bytes();
        self.request_json(Method::POST, path, Some(token), body)
            .await
    }

    /// Returns the JSON at a path of the gateway.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn get(&self, path: &str, token: Option<&str>) -> Result<Value, RegistryError> {
        self.request_json(Method::GET, path, token, Vec::new())
            .await
    }

    /// Returns the JSON at a path of the gateway, with a query.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn get_page(
        &self,
        path: &str,
        token: &str,
        query: &[(&str, &str)],
    ) -> Result<Value, RegistryError> {
        let mut url = self.url_at(path);
        url.query_pairs_mut().extend_pairs(query);
        let route = format!("GET {path}");
        self.send_request(Method::GET, url, route, Some(token), Vec::new())
            .await
    }

    /// Opens what is at a path of the gateway, with a query, as this media type; it may be long.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn open(
        &self,
        path: &str,
        token: &str,
        query: &[(&str, &str)],
        accept: &'static str,
    ) -> Result<Response, RegistryError> {
        let mut url = self.url_at(path);
        url.query_pairs_mut().extend_pairs(query);
        let route = format!("GET {path}");
        let request = Request {
            token: Some(token),
            accept,
            ..Request::get(&url, FILE_WITHIN)
        };
        let unanswered = |source| RegistryError::Unanswered {
            route: route.clone(),
            source,
        };
        let answer = request.send().await.map_err(unanswered)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let retry_after = answer.retry_after();
        let (status, body) = answer.read_json().await.map_err(unanswered)?;
        Err(to_refusal(route.clone(), status, &body, retry_after))
    }

    /// Returns one page of a list with the cursor of the next one, `next_cursor` or that in `Link` of an array, and its
    /// bytes. A request that exceeds a rate is repeated when the gateway says so.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn get_list_page(
        &self,
        path: &str,
        token: &str,
        query: &[(&str, &str)],
        cursor: Option<&str>,
    ) -> Result<(Value, Option<String>, usize), RegistryError> {
        let mut url = self.url_at(path);
        url.query_pairs_mut()
            .extend_pairs(query)
            .append_pair("limit", PAGE)
            .extend_pairs(cursor.map(|cursor| ("cursor", cursor)));
        let route = format!("GET {path}");
        let mut repeats = 0;
        loop {
            let request = Request {
                token: Some(token),
                ..Request::get(&url, WITHIN)
            };
            let unanswered = |source| RegistryError::Unanswered {
                route: route.clone(),
                source,
            };
            let answer = request.send().await.map_err(unanswered)?;
            if answer.status() == StatusCode::TOO_MANY_REQUESTS && repeats < RATE_REPEATS_MAX {
                repeats += 1;
                let wait = answer.retry_after().unwrap_or(Duration::from_secs(1));
                sleep(wait.min(RATE_WAIT_MAX)).await;
                continue;
            }
            let linked = next_cursor(&answer);
            let retry_after = answer.retry_after();
            let status = answer.status().as_u16();
            let text = answer.read_body().await.map_err(unanswered)?;
            let body = serde_json::from_slice(&text).unwrap_or_default();
            let body = check_response(route.clone(), status, body, retry_after)?;
            let cursor = body["next_cursor"].as_str().map(str::to_owned).or(linked);
            return Ok((body, cursor, text.len()));
        }
    }

    /// Returns all entries of a list: of the array itself, or of its member `name`.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn get_whole_list(
        &self,
        path: &str,
        token: &str,
        query: &[(&str, &str)],
        name: Option<&str>,
    ) -> Result<Vec<Value>, RegistryError> {
        let mut entries = Vec::new();
        let (mut cursors, mut bytes) = (HashSet::new(), 0);
        let mut cursor: Option<String> = None;
        let why = loop {
            let page = self.get_list_page(path, token, query, cursor.as_deref());
            let (mut page, next, size) = page.await?;
            bytes += size;
            let list = match name {
                Some(name) => page[name].take(),
                None => page,
            };
            if let Value::Array(list) = list {
                entries.extend(list);
            }
            let Some(next) = next else {
                return Ok(entries);
            };
            if !cursors.insert(next.clone()) {
                break "a page leads back to an earlier one";
            }
            if cursors.len() >= PAGES_MAX || bytes > LIST_BYTES_MAX {
                break "it has more than 4,000 pages, or 2 GiB";
            }
            cursor = Some(next);
        };
        let route = format!("GET {path}");
        Err(RegistryError::Endless { route, why })
    }

    /// Changes what is at a path of the gateway, with a query; a body of `null` is none. Returns the JSON of the response.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn change_resource(
        &self,
        (method, path): (Method, &str),
        query: &[(&str, &str)],
        token: &str,
        body: &Value,
    ) -> Result<Value, RegistryError> {
        let mut url = self.url_at(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let route = format!("{method} {path}");
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        self.send_request(method, url, route, Some(token), body)
            .await
    }

    fn url_at(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url
    }

    async fn request_json(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: Vec<u8>,
    ) -> Result<Value, RegistryError> {
        let route = format!("{method} {path}");
        self.send_request(method, self.url_at(path), route, token, body)
            .await
    }

    async fn send_request(
        &self,
        method: Method,
        url: Url,
        route: String,
        token: Option<&str>,
        body: Vec<u8>,
    ) -> Result<Value, RegistryError> {
        let request = Request {
            method,
            token,
            body,
            ..Request::get(&url, WITHIN)
        };
        let whole = async {
            let answer = request.send().await?;
            let retry_after = answer.retry_after();
            let (status, answer) = answer.read_json().await?;
            Ok((status, retry_after, answer))
        };
        let (status, retry_after, answer) = match whole.await {
            Ok(answered) => answered,
            Err(source) => return Err(RegistryError::Unanswered { route, source }),
        };
        check_response(route, status, answer, retry_after)
    }

    /// Registers a workspace. Returns its new token, if the gateway issued one.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn register(
        &self,
        token: &str,
        body: &Value,
    ) -> Result<Option<String>, RegistryError> {
        let answer = self.post("/registry/register", token, body).await?;
        Ok(answer["token"].as_str().map(str::to_owned))
    }

    /// Sends a heartbeat of the workspace's agent.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn send_heartbeat(&self, id: &str, token: &str) -> Result<(), RegistryError> {
        let body = json!({"workspace_id": id});
        self.post("/registry/heartbeat", token, &body)
            .await
            .map(drop)
    }
}

/// Returns the body of a response, unless it is a refusal.
fn check_response(
    route: String,
    status: u16,
    body: Value,
    retry_after: Option<Duration>,
) -> Result<Value, RegistryError> {
    if (200..300).contains(&status) {
        return Ok(body);
    }
    Err(to_refusal(route, status, &body, retry_after))
}

fn to_refusal(
    route: String,
    status: u16,
    body: &Value,
    retry_after: Option<Duration>,
) -> RegistryError {
    let word = |name: &str| body[name].as_str().unwrap_or("?").to_owned();
    RegistryError::Refused {
        route,
        status,
        reason: word("reason"),
        message: word("error"),
        retry_after,
    }
}

/// Returns the cursor of the page that `Link` calls the next one (RFC 8288).
fn next_cursor(answer: &Response) -> Option<String> {
    let link = answer.header_value("link")?;
    let (target, rest) = link.strip_prefix('<')?.split_once('>')?;
    if !rest.contains("rel=\"next\"") {
        return None;
    }
    let base = Url::parse("http://gateway.invalid").ok()?;
    let target = base.join(target).ok()?;
    let mut query = target.query_pairs();
    query
        .find(|(name, _)| name == "cursor")
        .map(|(_, cursor)| cursor.into_owned())
}
