//! JSON requests to a gateway's public listener, among them registrations and heartbeats.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use url::Url;

use super::{Ask, ClientError};

/// Heartbeat interval: a third of the default `registry.heartbeat_ttl` of 90 s, so that two in a
/// row may be lost.
pub const BEAT: Duration = Duration::from_secs(30);

/// Timeout of one request; the registry never waits for an agent.
const WITHIN: Duration = Duration::from_secs(10);

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
    },
}

impl RegistryError {
    /// Returns the HTTP status, if there was a response.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Unanswered { .. } => None,
        }
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
        self.exchange(Method::POST, path, Some(token), body).await
    }

    /// Returns the JSON at a path of the gateway.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn get(&self, path: &str, token: Option<&str>) -> Result<Value, RegistryError> {
        self.exchange(Method::GET, path, token, Vec::new()).await
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
        let mut url = self.at(path);
        url.query_pairs_mut().extend_pairs(query);
        let route = format!("GET {path}");
        self.ask(Method::GET, url, route, Some(token), Vec::new())
            .await
    }

    /// Deletes what is at a path of the gateway and returns the JSON of the response.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn delete(&self, path: &str, token: &str) -> Result<Value, RegistryError> {
        self.exchange(Method::DELETE, path, Some(token), Vec::new())
            .await
    }

    fn at(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: Vec<u8>,
    ) -> Result<Value, RegistryError> {
        let route = format!("{method} {path}");
        self.ask(method, self.at(path), route, token, body).await
    }

    async fn ask(
        &self,
        method: Method,
        url: Url,
        route: String,
        token: Option<&str>,
        body: Vec<u8>,
    ) -> Result<Value, RegistryError> {
        let request = Ask {
            method,
            token,
            body,
            ..Ask::get(&url, WITHIN)
        };
        let whole = async { request.send().await?.json().await };
        let (status, answer) = match whole.await {
            Ok(answered) => answered,
            Err(source) => return Err(RegistryError::Unanswered { route, source }),
        };
        if (200..300).contains(&status) {
            return Ok(answer);
        }
        let word = |name: &str| answer[name].as_str().unwrap_or("?").to_owned();
        Err(RegistryError::Refused {
            route,
            status,
            reason: word("reason"),
            message: word("error"),
        })
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
    pub async fn beat(&self, id: &str, token: &str) -> Result<(), RegistryError> {
        let body = json!({"workspace_id": id});
        self.post("/registry/heartbeat", token, &body)
            .await
            .map(drop)
    }
}
