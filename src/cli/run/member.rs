//! The agent's membership: its token, registration, heartbeats and departure, as the packages in `clients/` do it.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gateway_client::{Registry, RegistryError};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use super::place::{CardError, Place};
use crate::drain::Drain;
use crate::ids::{InstanceId, WorkspaceId};
use crate::telemetry::Chain;

/// Time until the next heartbeat, until the gateway has said how long one counts.
const FIRST_THIRD: Duration = Duration::from_secs(10);

/// First pause after a failure. Each further failure doubles it, up to the time between two heartbeats.
const PAUSE: Duration = Duration::from_millis(500);

/// Number of doublings at most.
const DOUBLINGS: u32 = 8;

/// Longest wait for one answer while the agent leaves.
const LEAVING: Duration = Duration::from_secs(3);

/// Time in which calls may still be on their way to the agent after a drain or a departure.
const ON_THEIR_WAY: Duration = Duration::from_secs(1);

/// Answers of the gateway in a row that say that no call is in progress: behind a load balancer each may be of another
/// replica.
const IDLE_ANSWERS: u32 = 3;

/// Bytes of a token file that are read.
const TOKEN_FILE_MAX: u64 = 4096;

/// Prefix of an enrolment token.
const ENROLMENT: &str = "a2ae_";

/// Ids of the agent.
pub(super) struct Names {
    pub(super) workspace: WorkspaceId,
    pub(super) instance: InstanceId,
}

/// Where its credentials are.
pub(super) struct Credentials {
    pub(super) file: PathBuf,
    pub(super) enrolment: Option<String>,
}

/// The count of the agent's calls in progress.
pub(super) enum Calls {
    /// The guard's, which sees all of them.
    Guard(Arc<Drain>),
    /// That of the replica of the gateway that answers.
    Gateway,
}

/// An agent at a gateway.
pub(super) struct Member {
    pub(super) place: Place,
    registry: Registry,
    names: Names,
    credentials: Credentials,
    is_bound: bool,
    is_registered: Cell<bool>,
}

/// The agent is not registered, or was not heard.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error(transparent)]
    Gateway(#[from] RegistryError),
    #[error(transparent)]
    Card(#[from] CardError),
    #[error(
        "no good token in {file}: ask an operator for one (POST /workspaces/{workspace}/enrolment)"
    )]
    NoToken { file: String, workspace: String },
    #[error(
        "the workspace has a token that is not in {0}: revoke that token, or write it into the file"
    )]
    OtherToken(String),
    #[error("cannot write {file}, so the enrolment token would be used up in vain")]
    Unwritable {
        file: String,
        #[source]
        error: io::Error,
    },
}

impl JoinError {
    fn status(&self) -> Option<u16> {
        match self {
            Self::Gateway(error) => error.status(),
            _ => None,
        }
    }
}

impl Member {
    pub(super) fn new(
        names: Names,
        credentials: Credentials,
        gateway: Url,
        place: Place,
        is_bound: bool,
    ) -> Self {
        Self {
            place,
            registry: Registry::new(gateway),
            names,
            credentials,
            is_bound,
            is_registered: Cell::new(false),
        }
    }

    /// Registers and sends heartbeats. A failure is tried again.
    pub(super) async fn stay(&self, calls: &Calls) -> Infallible {
        let (mut failures, mut third) = (0, FIRST_THIRD);
        loop {
            match self.heartbeat(calls).await {
                Ok(next) => {
                    if failures > 0 {
                        tracing::info!("the gateway hears the agent again");
                    }
                    (failures, third) = (0, next);
                }
                Err(error) => {
                    // 401: the file has another token, or will have. 404: the gateway does not know the agent.
                    if matches!(error.status(), Some(401 | 404)) {
                        self.is_registered.set(false);
                    }
                    failures += 1;
                    tracing::warn!(error = %Chain(&error), "The gateway does not hear the agent; trying again");
                }
            }
            let pause = match failures {
                0 => third,
                failures => third.min(PAUSE * 2_u32.pow((failures - 1).min(DOUBLINGS))),
            };
            sleep(pause.mul_f64(rand::random_range(0.8..1.2))).await;
        }
    }

    /// Registers if needed, and sends a heartbeat. Returns the time until the next one.
    async fn heartbeat(&self, calls: &Calls) -> Result<Duration, JoinError> {
        if !self.is_registered.get() {
            // Also while the answer is on its way: an agent that ends then is deregistered.
            self.is_registered.set(true);
            if let Err(error) = self.register().await {
                self.is_registered.set(false);
                return Err(error);
            }
        }
        let mut body = self.ids();
        if let Calls::Guard(drain) = calls {
            body["active_tasks"] = json!(drain.running());
        }
        let heard = self.post("/registry/heartbeat", &body).await?;
        let counts = heard["expires_in"].as_f64().unwrap_or(0.0);
        Ok(Duration::try_from_secs_f64(counts / 3.0)
            .unwrap_or(FIRST_THIRD)
            .clamp(PAUSE, Duration::from_secs(3600)))
    }

    /// Registers with the token in the file, else with the enrolment token. The workspace's own token replaces either in
    /// the file.
    async fn register(&self) -> Result<(), JoinError> {
        let card = self.place.card().await?;
        let url = self.place.url(&card);
        let mut body = self.ids();
        body["id"] = json!(self.names.workspace.as_str());
        body["url"] = json!(url.as_str());
        body["agent_card"] = card;
        if self.is_bound {
            body["proof"] = json!("request");
        }
        let file = &self.credentials.file;
        let given = self.credentials.enrolment.clone().unwrap_or_default();
        for token in [self.token().await, given] {
            if token.is_empty() {
                continue;
            }
            let is_enrolment = token.starts_with(ENROLMENT);
            // An enrolment token counts once: the new token must find a place.
            let room = is_enrolment.then(|| beside(file)).transpose();
            let room = room.map_err(|error| self.unwritable(error))?;
            let answer = match self
                .registry
                .post("/registry/register", &token, &body)
                .await
            {
                Ok(answer) => answer,
                Err(refused) if refused.status() == Some(401) => continue,
                Err(error) => return Err(error.into()),
            };
            match answer["token"].as_str() {
                Some(own) => {
                    let kept = room.map_or_else(|| beside(file), Ok);
                    let kept = kept.and_then(|room| keep(own, room, file));
                    kept.map_err(|error| self.unwritable(error))?;
                }
                None if is_enrolment => {
                    return Err(JoinError::OtherToken(file.display().to_string()));
                }
                None => {}
            }
            self.joined(&url, answer["warning"].as_str());
            return Ok(());
        }
        Err(JoinError::NoToken {
            file: file.display().to_string(),
            workspace: self.names.workspace.to_string(),
        })
    }

    fn joined(&self, url: &Url, warning: Option<&str>) {
        let (workspace, instance) = (self.names.workspace.as_str(), self.names.instance.as_str());
        tracing::info!(workspace.id = workspace, instance.id = instance, %url, "the agent has joined");
        if let Some(warning) = warning {
            tracing::warn!(warning, "The gateway warns");
        }
    }

    /// Has the gateway send no new calls, and waits until those in progress are over, at most until `until`. An agent
    /// that has not joined has none.
    pub(super) async fn drain(&self, calls: &Calls, until: Instant) {
        if self.is_registered.get() {
            self.tell("/registry/drain").await;
            self.await_calls(calls, until).await;
        }
    }

    /// Takes the agent's place away. To be called when no heartbeat follows: it would register the agent again.
    pub(super) async fn deregister(&self) {
        if self.is_registered.get() {
            self.tell("/registry/deregister").await;
        }
    }

    async fn tell(&self, path: &str) {
        match timeout(LEAVING, self.post(path, &self.ids())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, path, "The gateway does not know that the agent leaves")
            }
            Err(_) => tracing::warn!(path, "The gateway does not answer within {LEAVING:?}"),
        }
    }

    /// Waits until calls on their way have come and those in progress are over, at most until `until`.
    pub(super) async fn await_calls(&self, calls: &Calls, until: Instant) {
        if !self.is_registered.get() {
            return;
        }
        let least = Instant::now() + ON_THEIR_WAY;
        let mut idle = 0;
        while Instant::now() < until {
            let (pause, enough) = match calls {
                Calls::Guard(drain) => {
                    idle = if drain.running() == 0 { idle + 1 } else { 0 };
                    (Duration::from_millis(20), 1)
                }
                Calls::Gateway => {
                    idle = if self.is_idle().await { idle + 1 } else { 0 };
                    (Duration::from_millis(250), IDLE_ANSWERS)
                }
            };
            if idle >= enough && Instant::now() >= least {
                return;
            }
            sleep(pause).await;
        }
    }

    /// True if the replica that answers has no call in progress. A gateway that does not answer sends none.
    async fn is_idle(&self) -> bool {
        let path = format!("/workspaces/{}", self.names.workspace);
        let token = self.token().await;
        match timeout(LEAVING, self.registry.get(&path, Some(&token))).await {
            Ok(Ok(workspace)) => in_flight(&workspace, &self.names.instance) == 0,
            Ok(Err(error)) => !matches!(error.status(), Some(429 | 503)),
            Err(_) => true,
        }
    }

    fn ids(&self) -> Value {
        json!({
            "workspace_id": self.names.workspace.as_str(),
            "instance_id": self.names.instance.as_str(),
        })
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, RegistryError> {
        self.registry.post(path, &self.token().await, body).await
    }

    /// Returns the credential in the file as it is now: one that was rotated counts at once. Empty without one.
    async fn token(&self) -> String {
        let mut text = String::new();
        if let Ok(file) = tokio::fs::File::open(&self.credentials.file).await {
            // A file that cannot be read has no good token, which the caller says.
            let _ = file.take(TOKEN_FILE_MAX).read_to_string(&mut text).await;
        }
        text.trim().to_owned()
    }

    fn unwritable(&self, error: io::Error) -> JoinError {
        let file = self.credentials.file.display().to_string();
        JoinError::Unwritable { file, error }
    }
}

/// Returns the calls in progress of an instance.
fn in_flight(workspace: &Value, instance: &InstanceId) -> u64 {
    let all = workspace["instances"].as_array();
    let mut own = all.into_iter().flatten();
    let own = own.find(|one| one["instance_id"] == instance.as_str());
    own.and_then(|one| one["in_flight"].as_u64()).unwrap_or(0)
}

/// Makes a file, which only its owner may read, in the folder of another.
fn beside(file: &Path) -> io::Result<NamedTempFile> {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))
}

/// Puts a token into the file. A crash leaves the old content or the new one.
fn keep(token: &str, mut room: NamedTempFile, file: &Path) -> io::Result<()> {
    room.write_all(token.as_bytes())?;
    room.as_file().sync_all()?;
    room.persist(file)?;
    Ok(())
}
