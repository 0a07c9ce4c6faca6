//! An example agent's side of the registry: it registers, and sends heartbeats.

use std::time::Duration;

use http::Method;
use pingora::connectors::http::v1::Connector;
use serde_json::{Value, json};
use url::Url;

use super::client::{Ask, ClientError, ask};

/// A third of the default lease of 90 s: two heartbeats in a row may be lost.
pub(super) const BEAT: Duration = Duration::from_secs(30);

/// One call of the registry, which never waits for an agent.
const WITHIN: Duration = Duration::from_secs(10);

/// The gateway, as its operators and agents talk to it.
pub(super) struct Registry {
    connector: Connector,
    base: Url,
}

/// The gateway did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistryError {
    /// No answer.
    #[error("{route} failed")]
    Unanswered {
        /// Method and path.
        route: String,
        /// Why.
        #[source]
        source: ClientError,
    },
    /// It said no.
    #[error("{route} was refused with {status} {reason}: {message}")]
    Refused {
        /// Method and path.
        route: String,
        /// HTTP status.
        status: u16,
        /// The gateway's own word, if it gave one.
        reason: String,
        /// Its sentence.
        message: String,
    },
}

impl RegistryError {
    /// The HTTP status, when there was an answer.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Unanswered { .. } => None,
        }
    }
}

impl Registry {
    /// The gateway at `base`; nothing is sent yet.
    pub(super) fn new(base: Url) -> Self {
        Self {
            connector: Connector::new(None),
            base,
        }
    }

    /// Posts JSON to a path of the gateway and reads the JSON that it answers.
    pub(super) async fn post(
        &self,
        path: &str,
        token: &str,
        body: &Value,
    ) -> Result<Value, RegistryError> {
        let body = body.to_string().into_bytes();
        self.exchange(Method::POST, path, Some(token), body).await
    }

    /// Reads the JSON at a path of the gateway.
    pub(super) async fn get(
        &self,
        path: &str,
        token: Option<&str>,
    ) -> Result<Value, RegistryError> {
        self.exchange(Method::GET, path, token, Vec::new()).await
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: Vec<u8>,
    ) -> Result<Value, RegistryError> {
        let route = format!("{method} {path}");
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        let request = Ask {
            method,
            url: &url,
            token,
            accept: "application/json",
            body,
            within: WITHIN,
        };
        let whole = async {
            let answer = ask(&self.connector, request).await?;
            let status = answer.status.as_u16();
            Ok((status, answer.whole().await?))
        };
        let (status, answer) = match whole.await {
            Ok(answered) => answered,
            Err(source) => return Err(RegistryError::Unanswered { route, source }),
        };
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
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

    /// Registers a workspace. Answers its new token, when the gateway gave it one.
    pub(super) async fn register(
        &self,
        token: &str,
        body: &Value,
    ) -> Result<Option<String>, RegistryError> {
        let answer = self.post("/registry/register", token, body).await?;
        Ok(answer["token"].as_str().map(str::to_owned))
    }

    /// Says that the workspace's agent lives.
    pub(super) async fn beat(&self, id: &str, token: &str) -> Result<(), RegistryError> {
        let body = json!({"workspace_id": id});
        self.post("/registry/heartbeat", token, &body)
            .await
            .map(drop)
    }
}
