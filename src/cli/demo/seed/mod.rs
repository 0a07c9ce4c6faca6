//! The demo's hierarchy and its agents, set up over HTTP as an operator and the agents would do it.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use pingora::connectors::http::v1::Connector;
use serde_json::json;
use tokio::time::{Instant, sleep};
use url::Url;

use crate::cli::agents::{Agent, Kind};
use crate::cli::client::{Ask, ask};
use crate::cli::registration::{BEAT, Registry, RegistryError};
use crate::telemetry::Chain;

/// How long the gateway may take to open its ports and make its tables.
const START: Duration = Duration::from_secs(30);

/// Between two looks whether it is up.
const LOOK: Duration = Duration::from_millis(50);

/// One workspace of the demo.
pub(super) struct Seat {
    pub(super) id: &'static str,
    pub(super) role: &'static str,
    pub(super) parent: Option<&'static str>,
    pub(super) org: &'static str,
    /// The agent behind it; a seat without one only calls others.
    pub(super) agent: Option<Kind>,
}

/// A parent, two children, a grandchild, and a stranger. Parents stand before their children.
pub(super) const SEATS: [Seat; 5] = [
    Seat::new("acme-pm", "plans", None, "acme", Some(Kind::Echo)),
    Seat::new(
        "acme-dev",
        "builds",
        Some("acme-pm"),
        "acme",
        Some(Kind::Slow),
    ),
    Seat::new("acme-intern", "learns", Some("acme-dev"), "acme", None),
    Seat::new(
        "acme-qa",
        "tests",
        Some("acme-pm"),
        "acme",
        Some(Kind::Flaky),
    ),
    Seat::new("rival-spy", "listens", None, "rival", None),
];

impl Seat {
    const fn new(
        id: &'static str,
        role: &'static str,
        parent: Option<&'static str>,
        org: &'static str,
        agent: Option<Kind>,
    ) -> Self {
        Self {
            id,
            role,
            parent,
            org,
            agent,
        }
    }
}

/// Where the gateway is and who operates it.
pub(super) struct Demo {
    pub(super) public: Url,
    pub(super) admin: Url,
    pub(super) operator: String,
    /// Whether the gateway serves the canvas.
    pub(super) has_canvas: bool,
    /// Whether it serves the console.
    pub(super) has_console: bool,
    /// Where stores and keys are.
    pub(super) folder: PathBuf,
    /// File with the tokens of the workspaces, when the stores outlive the demo.
    pub(super) kept: Option<PathBuf>,
}

/// The tokens that were given out.
pub(super) struct Cast {
    /// By workspace.
    pub(super) tokens: BTreeMap<String, String>,
    /// Of a user of the canvas in the org `acme`; `None` when the gateway gives out none.
    pub(super) canvas: Option<String>,
}

impl Cast {
    /// The token of a workspace of [`SEATS`].
    pub(super) fn token(&self, id: &str) -> &str {
        self.tokens.get(id).map_or("", String::as_str)
    }
}

/// Why the scene could not be set.
#[derive(Debug, thiserror::Error)]
pub(super) enum SeedError {
    #[error("the gateway was not ready within {START:?}")]
    NotReady,
    #[error("cannot start an example agent")]
    Agent(#[source] io::Error),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("cannot keep the tokens in {}", path.display())]
    Tokens {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{0} is known to the gateway, and its token is not in the folder of --data; remove the folder or take another"
    )]
    TokenLost(&'static str),
    #[error("the gateway gave {0} no token")]
    NoToken(&'static str),
    #[error("the first message had no result: {0}")]
    NoResult(String),
}

impl Demo {
    /// Starts the agents, makes the workspaces, registers each, and sends a first message.
    pub(super) async fn seed(&self) -> Result<Cast, SeedError> {
        self.wait_until_ready().await?;
        let registry = Registry::new(self.public.clone());
        let mut tokens = self.kept_tokens()?;
        for seat in &SEATS {
            let token = self.seat(&registry, seat, tokens.get(seat.id)).await?;
            tokens.insert(seat.id.to_owned(), token);
            // After each, since a token that is lost on the way cannot be had again.
            self.keep_tokens(&tokens)?;
        }
        let user = json!({"user": "demo", "org": "acme", "ttl_seconds": 86_400});
        let canvas = match registry.post("/canvas/tokens", &self.operator, &user).await {
            Ok(answer) => answer["token"].as_str().map(str::to_owned),
            Err(error) if error.status() == Some(404) => None,
            Err(error) => return Err(error.into()),
        };
        let cast = Cast { tokens, canvas };
        self.first_message(&registry, &cast).await?;
        Ok(cast)
    }

    /// Sends heartbeats for all seats, for ever.
    pub(super) async fn keep_alive(&self, cast: &Cast) {
        let registry = Registry::new(self.public.clone());
        loop {
            sleep(BEAT).await;
            for (id, token) in &cast.tokens {
                if let Err(error) = registry.beat(id, token).await {
                    tracing::warn!(workspace.id = id, error = %Chain(&error), "heartbeat failed");
                }
            }
        }
    }

    async fn wait_until_ready(&self) -> Result<(), SeedError> {
        let deadline = Instant::now() + START;
        let mut url = self.admin.clone();
        url.set_path("/readyz");
        let connector = Connector::new(None);
        while Instant::now() < deadline {
            let look = Ask {
                method: Method::GET,
                url: &url,
                token: None,
                accept: "application/json",
                body: Vec::new(),
                within: Duration::from_secs(5),
            };
            if ask(&connector, look)
                .await
                .is_ok_and(|answer| answer.status == 200)
            {
                return Ok(());
            }
            sleep(LOOK).await;
        }
        Err(SeedError::NotReady)
    }

    /// Makes one workspace, starts its agent and registers it. Answers its token.
    async fn seat(
        &self,
        registry: &Registry,
        seat: &Seat,
        kept: Option<&String>,
    ) -> Result<String, SeedError> {
        let delivery = if seat.agent.is_some() { "push" } else { "poll" };
        let wanted = json!({
            "id": seat.id,
            "name": seat.id,
            "role": seat.role,
            "parent_id": seat.parent,
            "org": seat.org,
            "delivery_mode": delivery,
        });
        let credential = match registry.post("/workspaces", &self.operator, &wanted).await {
            Ok(answer) => answer["enrolment_token"]
                .as_str()
                .ok_or(SeedError::NoToken(seat.id))?
                .to_owned(),
            // A folder that is kept: the workspace is there since the last time.
            Err(error) if error.status() == Some(409) => {
                kept.cloned().ok_or(SeedError::TokenLost(seat.id))?
            }
            Err(error) => return Err(error.into()),
        };
        let mut body = json!({"id": seat.id, "delivery_mode": delivery});
        match seat.agent {
            Some(kind) => {
                let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let agent = Agent::bind(kind, any, None)
                    .await
                    .map_err(SeedError::Agent)?;
                body["url"] = json!(agent.url());
                body["agent_card"] = agent.card().clone();
                tokio::spawn(agent.serve());
            }
            None => body["agent_card"] = json!({"name": seat.id, "description": "calls others"}),
        }
        registry
            .register(&credential, &body)
            .await?
            .or_else(|| kept.cloned())
            .ok_or(SeedError::NoToken(seat.id))
    }

    /// The page promises a result; so it is tried before the page is printed.
    async fn first_message(&self, registry: &Registry, cast: &Cast) -> Result<(), SeedError> {
        let message = json!({"message": {"text": "hello"}});
        let token = cast.token("acme-dev");
        let answer = registry
            .post("/workspaces/acme-pm/a2a", token, &message)
            .await?;
        if answer["result"].is_object() {
            Ok(())
        } else {
            Err(SeedError::NoResult(answer.to_string()))
        }
    }

    fn kept_tokens(&self) -> Result<BTreeMap<String, String>, SeedError> {
        let Some(path) = &self.kept else {
            return Ok(BTreeMap::new());
        };
        match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| tokens_error(path, e.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(tokens_error(path, error)),
        }
    }

    fn keep_tokens(&self, tokens: &BTreeMap<String, String>) -> Result<(), SeedError> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let Some(path) = &self.kept else {
            return Ok(());
        };
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .and_then(|mut file| file.write_all(json!(tokens).to_string().as_bytes()))
            .map_err(|error| tokens_error(path, error))
    }
}

fn tokens_error(path: &Path, source: io::Error) -> SeedError {
    SeedError::Tokens {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
