//! Sets up the demo's hierarchy and agents over HTTP, with the same requests as an operator and
//! real agents.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gateway_client::{BEAT, Registry, Request};
use http::Method;
use serde_json::json;
use tokio::time::{Instant, sleep};
use url::Url;

use super::sleeper::{self, SLEEPER};
use crate::Failure;
use crate::agents::{Agent, Kind};

/// Time for the gateway to open its ports and create its tables.
const START: Duration = Duration::from_secs(30);

const NO_AGENT: &str = "cannot start an example agent";

/// Interval between two readiness checks.
const LOOK: Duration = Duration::from_millis(50);

/// One workspace of the demo.
pub(super) struct DemoWorkspace {
    pub(super) id: &'static str,
    pub(super) role: &'static str,
    pub(super) parent: Option<&'static str>,
    /// The workspace's agent; a workspace without one only calls others.
    pub(super) agent: Option<Kind>,
}

/// The workspaces: a parent, two children, a grandchild; and a parent with two children of another org. Parents come
/// before their children.
pub(super) const WORKSPACES: [DemoWorkspace; 7] = [
    DemoWorkspace::new("acme-pm", "plans", None, Some(Kind::Echo)),
    DemoWorkspace::new("acme-dev", "builds", Some("acme-pm"), Some(Kind::Slow)),
    DemoWorkspace::new("acme-intern", "learns", Some("acme-dev"), None),
    DemoWorkspace::new("acme-qa", "tests", Some("acme-pm"), Some(Kind::Flaky)),
    DemoWorkspace::new("rival-spy", "listens", None, None),
    DemoWorkspace::new(
        "rival-ops",
        "repairs",
        Some("rival-spy"),
        Some(Kind::Broken),
    ),
    DemoWorkspace::new(SLEEPER, "sleeps", Some("rival-spy"), Some(Kind::Echo)),
];

impl DemoWorkspace {
    const fn new(
        id: &'static str,
        role: &'static str,
        parent: Option<&'static str>,
        agent: Option<Kind>,
    ) -> Self {
        Self {
            id,
            role,
            parent,
            agent,
        }
    }

    /// Returns its org, with which its id begins.
    fn org(&self) -> &'static str {
        self.id.split_once('-').map_or("", |(org, _)| org)
    }
}

/// The gateway of the demo: its URLs, operator token and folder.
pub(super) struct DemoGateway {
    pub(super) public: Url,
    pub(super) admin: Url,
    /// Listener of the waker.
    pub(super) waker: TcpListener,
    pub(super) operator: String,
    /// True if the gateway serves the canvas.
    pub(super) has_canvas: bool,
    /// True if the gateway serves the console.
    pub(super) has_console: bool,
    /// Folder of stores and keys.
    pub(super) folder: PathBuf,
    /// File for the tokens of the workspaces, if the stores outlive the demo.
    pub(super) tokens_file: Option<PathBuf>,
}

/// The tokens issued by the gateway.
pub(super) struct IssuedTokens {
    /// Tokens by workspace.
    pub(super) tokens: BTreeMap<String, String>,
    /// Token of a canvas user in the org `acme`; `None` if the gateway issues none.
    pub(super) canvas: Option<String>,
}

impl IssuedTokens {
    /// Returns the token of a workspace of [`WORKSPACES`].
    pub(super) fn token(&self, id: &str) -> &str {
        self.tokens.get(id).map_or("", String::as_str)
    }
}

impl DemoGateway {
    /// Starts the agents, creates and registers the workspaces, and sends a first message.
    pub(super) async fn seed(&self) -> Result<IssuedTokens, Failure> {
        self.wait_until_ready().await?;
        let registry = Registry::new(self.public.clone());
        let mut tokens = self.load_tokens()?;
        for workspace in &WORKSPACES {
            let token = self
                .create_workspace(&registry, workspace, tokens.get(workspace.id))
                .await?;
            tokens.insert(workspace.id.to_owned(), token);
            // Saved after each registration: the gateway does not return a token twice.
            self.save_tokens(&tokens)?;
        }
        let night = tokens.get(SLEEPER).cloned().unwrap_or_default();
        // Of this workspace alone: a call to another one whose agent is away fails at once.
        let waker = self
            .waker
            .local_addr()
            .map_err(Failure::because(NO_AGENT))?;
        let wake = json!({"wake": {"url": format!("http://{waker}/wake/{SLEEPER}")}});
        let path = format!("/workspaces/{SLEEPER}");
        let change = Request {
            token: Some(&self.operator),
            ..registry.request(Method::PATCH, &path, &[])
        };
        change.with_body(&wake).fetch_json().await?;
        sleeper::serve(&self.waker, self.public.clone(), &night)
            .map_err(Failure::because(NO_AGENT))?;
        let sleeps = json!({"workspace_id": SLEEPER});
        registry
            .post("/registry/deregister", &night, &sleeps)
            .await?;
        let user = json!({"user": "demo", "org": "acme", "ttl_seconds": 86_400});
        let canvas = match registry.post("/canvas/tokens", &self.operator, &user).await {
            Ok(answer) => answer["token"].as_str().map(str::to_owned),
            Err(error) if error.status() == Some(404) => None,
            Err(error) => return Err(error.into()),
        };
        let issued = IssuedTokens { tokens, canvas };
        self.send_first_message(&registry, &issued).await?;
        Ok(issued)
    }

    /// Sends heartbeats for all workspaces, without end.
    pub(super) async fn keep_alive(&self, issued: &IssuedTokens) {
        let registry = Registry::new(self.public.clone());
        loop {
            sleep(BEAT).await;
            // The one that sleeps has no agent now that could send one.
            for (id, token) in issued.tokens.iter().filter(|(id, _)| *id != SLEEPER) {
                if let Err(error) = registry.send_heartbeat(id, token).await {
                    tracing::warn!(workspace.id = id, %error, "heartbeat failed");
                }
            }
        }
    }

    async fn wait_until_ready(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + START;
        let mut url = self.admin.clone();
        url.set_path("/readyz");
        while Instant::now() < deadline {
            let look = Request::get(url.clone(), Duration::from_secs(5))
                .send()
                .await;
            if look.is_ok_and(|answer| answer.status() == 200) {
                return Ok(());
            }
            sleep(LOOK).await;
        }
        Err(Failure::new(format!(
            "the gateway was not ready within {START:?}"
        )))
    }

    /// Creates one workspace, starts its agent and registers it. Returns its token.
    async fn create_workspace(
        &self,
        registry: &Registry,
        workspace: &DemoWorkspace,
        kept: Option<&String>,
    ) -> Result<String, Failure> {
        let delivery = if workspace.agent.is_some() {
            "push"
        } else {
            "poll"
        };
        let wanted = json!({
            "id": workspace.id,
            "name": workspace.id,
            "role": workspace.role,
            "parent_id": workspace.parent,
            "org": workspace.org(),
            "delivery_mode": delivery,
        });
        let no_token = || Failure::new(format!("the gateway gave {} no token", workspace.id));
        let credential = match registry.post("/workspaces", &self.operator, &wanted).await {
            Ok(answer) => answer["enrolment_token"].as_str().map(str::to_owned).ok_or_else(no_token)?,
            // The folder was kept: the workspace exists since an earlier run.
            Err(error) if error.status() == Some(409) => kept.cloned().ok_or_else(|| {
                Failure::new(format!(
                    "{} is known to the gateway, and its token is not in the folder of --data; remove the folder or take another",
                    workspace.id
                ))
            })?,
            Err(error) => return Err(error.into()),
        };
        let mut body = json!({"id": workspace.id, "delivery_mode": delivery});
        match workspace.agent {
            Some(kind) => {
                let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let agent = Agent::bind(kind, any, None).await;
                let agent = agent.map_err(Failure::because(NO_AGENT))?;
                body["url"] = json!(agent.url);
                body["agent_card"] = agent.card().clone();
                if workspace.id != SLEEPER {
                    tokio::spawn(agent.serve());
                }
            }
            None => {
                body["agent_card"] = json!({"name": workspace.id, "description": "calls others"})
            }
        }
        registry
            .register(&credential, &body)
            .await?
            .or_else(|| kept.cloned())
            .ok_or_else(no_token)
    }

    /// Sends the page's first command before the page is printed, to check that it has a result.
    async fn send_first_message(
        &self,
        registry: &Registry,
        issued: &IssuedTokens,
    ) -> Result<(), Failure> {
        let message = json!({"message": {"text": "hello"}});
        let token = issued.token("acme-dev");
        let answer = registry
            .post("/workspaces/acme-pm/a2a", token, &message)
            .await?;
        if answer["result"].is_object() {
            Ok(())
        } else {
            Err(Failure::new(format!(
                "the first message had no result: {answer}"
            )))
        }
    }

    fn load_tokens(&self) -> Result<BTreeMap<String, String>, Failure> {
        let Some(path) = &self.tokens_file else {
            return Ok(BTreeMap::new());
        };
        match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| tokens_error(path, e.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(tokens_error(path, error)),
        }
    }

    fn save_tokens(&self, tokens: &BTreeMap<String, String>) -> Result<(), Failure> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let Some(path) = &self.tokens_file else {
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

fn tokens_error(path: &Path, source: io::Error) -> Failure {
    Failure::because(format!("cannot keep the tokens in {}", path.display()))(source)
}

#[cfg(test)]
mod tests;
