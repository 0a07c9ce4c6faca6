//! JSON requests to a gateway's public listener, among them registrations and heartbeats.

use std::collections::HashSet;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;
use url::Url;

use super::{ClientError, Request, Response};

/// Heartbeat interval: a third of the default `registry.heartbeat_ttl` of 90 s, so that two in a
/// row may be lost.
pub const BEAT: Duration = Duration::from_secs(30);

/// Timeout of one request; the registry never waits for an agent.
const WITHIN: Duration = Duration::from_secs(10);

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
    #[error(
        "{route} was refused with {status} {}: {}",
        refusal_word(body, "reason"),
        refusal_word(body, "error")
    )]
    Refused {
        /// Method and path.
        route: String,
        /// HTTP status.
        status: u16,
        /// The gateway's reason and message; null if the response is not JSON.
        body: Value,
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

/// A request to a path of a gateway.
#[derive(Clone)]
pub struct Call<'a> {
    /// Its method.
    pub method: Method,
    /// Its path, below the base URL of the gateway.
    pub path: &'a str,
    /// Its query.
    pub query: &'a [(&'a str, &'a str)],
    /// The bearer credential.
    pub token: Option<&'a str>,
    /// Media type of the response.
    pub accept: &'static str,
    /// JSON; null is none.
    pub body: &'a Value,
    /// Timeout of the whole exchange.
    pub within: Duration,
}

impl<'a> Call<'a> {
    /// Returns a request for the JSON at `path`, without a credential.
    pub fn get(path: &'a str) -> Self {
        Self {
            method: Method::GET,
            path,
            query: &[],
            token: None,
            accept: "application/json",
            body: &Value::Null,
            within: WITHIN,
        }
    }

    fn unanswered(&self, source: ClientError) -> RegistryError {
        let route = format!("{} {}", self.method, self.path);
        RegistryError::Unanswered { route, source }
    }

    fn refused(&self, status: u16, body: Value, retry_after: Option<Duration>) -> RegistryError {
        RegistryError::Refused {
            route: format!("{} {}", self.method, self.path),
            status,
            body,
            retry_after,
        }
    }
}

impl Registry {
    /// Returns a client of the gateway at `base`; nothing is sent yet.
    pub fn new(base: Url) -> Self {
        Self { base }
    }

    /// Sends a request, and returns the head of the response, whatever its status.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn open(&self, call: &Call<'_>) -> Result<Response, ClientError> {
        let mut url = self.base.clone();
        let base = self.base.path().trim_end_matches('/');
        url.set_path(&format!("{base}{}", call.path));
        url.set_query(None);
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(call.query);
        }
        let request = Request {
            method: call.method.clone(),
            url: &url,
            token: call.token,
            accept: call.accept,
            body: match call.body {
                Value::Null => Vec::new(),
                body => body.to_string().into_bytes(),
            },
            within: call.within,
        };
        request.send().await
    }

    /// Sends a request, and returns the head of the response unless that is a refusal.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn send(&self, call: &Call<'_>) -> Result<Response, RegistryError> {
        let answer = self.open(call).await;
        let answer = answer.map_err(|error| call.unanswered(error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let retry_after = answer.retry_after();
        let read = answer.read_json().await;
        let (status, body) = read.map_err(|error| call.unanswered(error))?;
        Err(call.refused(status, body, retry_after))
    }

    /// Sends a request, and returns the JSON of the response.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn request(&self, call: &Call<'_>) -> Result<Value, RegistryError> {
        let read = self.send(call).await?.read_json().await;
        let (_, body) = read.map_err(|error| call.unanswered(error))?;
        Ok(body)
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
        let call = Call {
            method: Method::POST,
            token: Some(token),
            body,
            ..Call::get(path)
        };
        self.request(&call).await
    }

    /// Returns one page of a list with the cursor of the next one, `next_cursor` or that in `Link` of an array, and its
    /// bytes. A request that exceeds a rate is repeated when the gateway says so.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn get_list_page(
        &self,
        call: &Call<'_>,
        cursor: Option<&str>,
    ) -> Result<(Value, Option<String>, usize), RegistryError> {
        let mut query = [call.query, &[("limit", PAGE)]].concat();
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let call = Call {
            query: &query,
            ..call.clone()
        };
        let mut repeats = 0;
        let answer = loop {
            let sent = self.send(&call).await;
            let wait = match &sent {
                Err(error) if error.status() == Some(429) && repeats < RATE_REPEATS_MAX => {
                    error.retry_after().unwrap_or(Duration::from_secs(1))
                }
                _ => break sent?,
            };
            repeats += 1;
            sleep(wait.min(RATE_WAIT_MAX)).await;
        };
        let linked = next_cursor(&answer);
        let text = answer.read_body().await;
        let text = text.map_err(|error| call.unanswered(error))?;
        let body: Value = serde_json::from_slice(&text).unwrap_or_default();
        let cursor = body["next_cursor"].as_str().map(str::to_owned).or(linked);
        Ok((body, cursor, text.len()))
    }

    /// Returns all entries of a list: of the array itself, or of its member `name`.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn get_whole_list(
        &self,
        call: &Call<'_>,
        name: Option<&str>,
    ) -> Result<Vec<Value>, RegistryError> {
        let mut entries = Vec::new();
        let (mut cursors, mut bytes) = (HashSet::new(), 0);
        let mut cursor: Option<String> = None;
        let why = loop {
            let (mut page, next, size) = self.get_list_page(call, cursor.as_deref()).await?;
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
        let route = format!("{} {}", call.method, call.path);
        Err(RegistryError::Endless { route, why })
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

/// Returns a member of a refusal; `?` if it has none.
fn refusal_word<'a>(body: &'a Value, name: &str) -> &'a str {
    body[name].as_str().unwrap_or("?")
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
