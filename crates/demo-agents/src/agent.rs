//! `a2a-gateway agent`: one example agent in a process of its own, for compose files.

use std::cell::OnceCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use gateway_client::{BEAT, Registry, RegistryError};
use parking_lot::Mutex;
use serde_json::{Value, json};
use url::Url;

use crate::agents::{Agent, Kind};
use crate::{Failure, Gateway, print, run_until_stopped};

/// Delay between two attempts to register, while the gateway is not up or rejects them.
const AGAIN: Duration = Duration::from_secs(2);

/// Time between drain and deregistration of an instance that stops.
const DRAIN: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  a2a-gateway agent echo
  a2a-gateway agent slow --gateway http://127.0.0.1:8080 --id acme-slow";

/// `a2a-gateway agent KIND`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Its behaviour: `echo` answers at once, `slow` streams its progress, `flaky` often fails, `broken` answers 503
    /// five times out of eight
    kind: Kind,
    /// Address and port; port 0 is a free one [default: 127.0.0.1 and the port in PORT, which `a2a-gateway run` sets,
    /// else a free one]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Base URL under which the gateway reaches the agent; without it, made from --listen
    #[arg(long, value_name = "URL")]
    advertise: Option<Url>,
    /// Base URL of a gateway to register with; needs --id and a credential
    #[arg(long, value_name = "URL", requires = "id")]
    gateway: Option<Url>,
    /// The workspace that the agent registers as
    #[arg(long, requires = "gateway")]
    id: Option<String>,
    /// One of several instances of the workspace's agent: it registers under this id, and drains before it stops
    #[arg(long, value_name = "ID", requires = "gateway")]
    instance: Option<String>,
    /// Token of the workspace, or its enrolment token
    #[arg(long, env = "A2A_GATEWAY_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// An operator's token, used when there is no --token: it also creates the workspace
    #[arg(long, env = "A2A_GATEWAY_ADMIN_TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
}

impl Arguments {
    /// Returns the workspace that the agent registers as.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the first credential that is not empty: compose files pass unset variables as empty
    /// strings.
    fn read_credential(&self) -> Option<String> {
        [&self.token, &self.admin_token]
            .into_iter()
            .flatten()
            .find(|token| !token.is_empty())
            .cloned()
    }
}

/// Runs the agent until the process is asked to end.
pub fn run(arguments: Arguments, gateway: Gateway) -> ExitCode {
    match run_agent(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            (gateway.print_error)(&error);
            ExitCode::from(error.code)
        }
    }
}

fn run_agent(arguments: Arguments) -> Result<(), Failure> {
    let credential = arguments.read_credential();
    if arguments.gateway.is_some() && credential.is_none() {
        return Err(Failure::usage(
            "--gateway needs a credential: --token, A2A_GATEWAY_TOKEN or A2A_GATEWAY_ADMIN_TOKEN in the environment",
        ));
    }
    let is_instance = arguments.instance.is_some();
    let registrant: OnceCell<Registrant> = OnceCell::new();
    let leave = async {
        if let Some(registrant) = registrant.get().filter(|_| is_instance) {
            registrant.deregister().await;
        }
    };
    run_until_stopped(serve(arguments, credential, &registrant), leave)
}

/// Returns the port in PORT, by which `a2a-gateway run` says where its agent is to listen; 0 if there is none.
///
/// # Errors
/// PORT is no port.
fn own_port() -> Result<u16, Failure> {
    #[expect(
        clippy::disallowed_methods,
        reason = "as platforms name the port to programs"
    )]
    let given = std::env::var("PORT").unwrap_or_default();
    if given.is_empty() {
        return Ok(0);
    }
    given.parse().map_err(|_| {
        Failure::new(format!(
            "PORT is {given:?}, which is no port; set another, or give --listen"
        ))
    })
}

async fn serve(
    arguments: Arguments,
    credential: Option<String>,
    registrant: &OnceCell<Registrant>,
) -> Result<(), Failure> {
    let listen = match arguments.listen {
        Some(listen) => listen,
        None => SocketAddr::from((Ipv4Addr::LOCALHOST, own_port()?)),
    };
    let agent = Agent::bind(arguments.kind, listen, arguments.advertise).await;
    let agent = agent.map_err(|error| {
        Failure::new(format!(
            "cannot listen on {listen}: {error}; choose another with --listen"
        ))
    })?;
    print(&format!("{} agent at {}\n", arguments.kind, agent.url))?;
    let wanted = (arguments.gateway, arguments.id, credential);
    let ended = if let (Some(gateway), Some(id), Some(credential)) = wanted {
        let body = json!({
            "id": id,
            "url": agent.url,
            "agent_card": agent.card(),
            "delivery_mode": "push",
            "instance_id": arguments.instance,
        });
        let registrant = registrant.get_or_init(|| Registrant {
            registry: Registry::new(gateway),
            name: json!({"workspace_id": id, "instance_id": arguments.instance}),
            credential,
            own: Mutex::default(),
            body,
        });
        tokio::select! {
            ended = agent.serve() => ended,
            () = registrant.stay_registered() => Ok(()),
        }
    } else {
        agent.serve().await
    };
    ended.map_err(Failure::because("the agent cannot listen any longer"))
}

/// Registration of an agent.
struct Registrant {
    registry: Registry,
    /// `workspace_id` and `instance_id`.
    name: Value,
    credential: String,
    /// The workspace's own token, once a registration has returned one.
    own: Mutex<Option<String>>,
    /// Body of the registration.
    body: Value,
}

impl Registrant {
    /// Registers, then sends heartbeats. Registers again when the gateway answers a heartbeat with 404
    /// (the agent is unknown) or 401 (the workspace's own token is no longer valid).
    async fn stay_registered(&self) {
        loop {
            match self.registry.register(&self.token(), &self.body).await {
                // An enrolment token works once; the workspace's own token replaces it.
                Ok(Some(given)) => self.set_token(Some(given)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "not registered yet");
                    if error.status() == Some(401) {
                        self.set_token(None);
                    }
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            }
            tracing::info!(workspace = %self.name, "registered");
            loop {
                tokio::time::sleep(BEAT).await;
                match self.post("/registry/heartbeat").await {
                    Ok(_) => {}
                    Err(error) if matches!(error.status(), Some(401 | 404)) => break,
                    Err(error) => tracing::warn!(%error, "heartbeat failed"),
                }
            }
        }
    }

    /// Drains and deregisters. Calls about its tasks reach it until then.
    async fn deregister(&self) {
        let drained = self.post("/registry/drain").await;
        if drained.is_ok() {
            tokio::time::sleep(DRAIN).await;
        }
        if let Err(error) = self.post("/registry/deregister").await {
            tracing::warn!(%error, "not deregistered");
        }
    }

    async fn post(&self, path: &str) -> Result<Value, RegistryError> {
        self.registry.post(path, &self.token(), &self.name).await
    }

    fn token(&self) -> String {
        let own = self.own.lock();
        own.as_ref().unwrap_or(&self.credential).clone()
    }

    fn set_token(&self, token: Option<String>) {
        *self.own.lock() = token;
    }
}
