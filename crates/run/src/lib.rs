//! `a2a-gateway run`: starts an agent, registers it at a gateway, keeps it registered, and lets it leave without a lost
//! call. The agent needs no code for it. With `--guard`, a sidecar stands in front of it
//! (`docs/guide/connect-an-agent.md`).
//!
//! One thread runs the agent; the sidecar has threads of its own. The process ends with the agent, and never starts it
//! again: that is the work of a supervisor.

mod credentials;
mod listener;
mod location;
mod member;
mod process;
pub mod sidecar;

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use gateway_client::Registry;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};
use url::Url;

use self::credentials::Credentials;
use self::location::AgentLocation;
use self::member::{Member, MembershipState};
use self::process::{AgentEnvironment, AgentProcess, Signal, Signals, exit_code};
use assembly::sidecar::Settings;
use ctl::{ConfigFlags, Failure, OrFail as _, build_runtime, parse_http_url};
use kernel::config::Live;
use kernel::config::load::{LoadedConfig, load};
use kernel::ids::{InstanceId, WorkspaceId, host_name};
use kernel::telemetry;
use server::sidecar::start;

/// What cannot be watched.
const UNWATCHED: &str = "cannot watch the agent or signals";

/// Longest part of an instance's default id that is the host's name: a port and a hyphen follow.
const HOST_MAX: usize = 58;

/// `a2a-gateway run`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The agent's workspace
    #[arg(long, value_name = "ID", env = "A2A_GATEWAY_WORKSPACE")]
    workspace: String,
    /// File with the workspace's token or its enrolment token; read for each request to the gateway
    #[arg(
        long,
        value_name = "FILE",
        env = "A2A_GATEWAY_TOKEN_FILE",
        default_value = "agent-token"
    )]
    token_file: PathBuf,
    /// Enrolment token, used if the file has no good token; better given in the environment, where other users cannot
    /// see it
    #[arg(
        long,
        value_name = "TOKEN",
        env = "A2A_GATEWAY_ENROLMENT_TOKEN",
        hide_env_values = true
    )]
    enrolment_token: Option<String>,
    /// Base URL of the gateway
    #[arg(long, value_name = "URL", env = "A2A_GATEWAY_URL", value_parser = parse_http_url, default_value = "http://127.0.0.1:8080")]
    gateway: Url,
    /// Port at which the agent listens on 127.0.0.1, also given to it as PORT [default: a free one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// URL at which the gateway reaches the agent; needed if the gateway is on another machine. Without a path: that of
    /// JSON-RPC in the agent's card
    #[arg(long, value_name = "URL", env = "A2A_GATEWAY_AGENT_URL", value_parser = parse_http_url)]
    advertise: Option<Url>,
    /// Guard the agent as `sidecar` does: listen here, and admit only callers that the gateway vouches for
    #[arg(long, value_name = "ADDR")]
    guard: Option<SocketAddr>,
    /// Name of this process among the instances of the agent [default: host name and port]
    #[arg(long, value_name = "ID", env = "A2A_GATEWAY_INSTANCE")]
    instance: Option<String>,
    /// Path of the agent's card
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/.well-known/agent-card.json"
    )]
    card: String,
    /// Register the agent whatever listens at its port, such as a container; else a process of the command must
    #[arg(long)]
    any_listener: bool,
    /// Time for the agent to serve its card; after it, the agent is ended
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    ready_within: Duration,
    /// Time for calls and for the agent to end after SIGTERM; after it, the agent is killed
    #[arg(long, value_name = "TIME", default_value = "25s", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// With --guard: refuse tokens that are not bound to one request; registers the agent with proof "request"
    #[arg(long, requires = "guard")]
    require_bound: bool,
    /// With --guard: fetch the gateway's keys over plain http from another machine
    #[arg(long, requires = "guard")]
    plain_http: bool,
    #[command(flatten)]
    settings: ConfigFlags,
    /// The agent's command; it stays in the foreground
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// All that is needed to run the agent.
struct Plan {
    arguments: Arguments,
    environment: AgentEnvironment,
    member: Member,
    guard: Option<Settings>,
}

/// Runs the agent to its end.
///
/// # Errors
/// Its exit status, or what kept it from running.
pub fn run(arguments: Arguments) -> Result<String, Failure> {
    process::restart_without_credentials().or_fail(
        "cannot keep the operator's token from the agent: unset A2A_GATEWAY_ADMIN_TOKEN and A2A_GATEWAY_TOKEN, and run it again",
    )?;
    let port = free_port(arguments.port)?;
    let (plan, loaded) = arguments.build_plan(port)?;
    let _log = telemetry::start(&loaded.config.telemetry).or_usage()?;
    let status = plan.run(loaded).unwrap_or_else(|failure| {
        tracing::error!(error = %failure, "cannot run the agent");
        failure.status
    });
    Err(Failure::quiet(status))
}

/// Returns `asked` if nothing listens there, else a free port. A process that was left over at the port would pass for
/// the agent.
fn free_port(asked: Option<u16>) -> Result<u16, Failure> {
    let port = asked.unwrap_or(0);
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let address = bound.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| {
        Failure::new(format!(
            "port {port} of 127.0.0.1 is taken ({error}); choose another with --port"
        ))
    })
}

impl Arguments {
    fn build_plan(self, port: u16) -> Result<(Plan, LoadedConfig), Failure> {
        let workspace = WorkspaceId::parse(&self.workspace);
        let workspace = workspace.map_err(|why| Failure::usage(format!("--workspace: {why}")))?;
        let listens = self.guard.map_or(port, |guard| guard.port());
        let instance = self.instance.clone();
        let instance = instance.unwrap_or_else(|| own_instance(listens));
        let instance = InstanceId::parse(&instance);
        let instance = instance.map_err(|why| Failure::usage(format!("--instance: {why}")))?;
        let clocks = Duration::from_nanos(1)..=Duration::from_secs(24 * 3600);
        if !clocks.contains(&self.grace) || !clocks.contains(&self.ready_within) {
            return Err(Failure::usage(
                "--grace and --ready-within must be longer than 0s and at most 24h",
            ));
        }
        if !self.card.starts_with('/') {
            return Err(Failure::usage(
                "--card takes a path, such as /.well-known/agent-card.json",
            ));
        }
        let environment = self.agent_environment(port);
        let guard = self.guard_arguments(Url::parse(&format!("http://127.0.0.1:{port}/"))?);
        let layers = match &guard {
            Some(guard) => guard.config_layers(),
            None => self.settings.clone().into_layers(),
        };
        let loaded = load(&layers).or_usage()?;
        let guard = guard.map(|guard| guard.to_settings()).transpose()?;
        let has_tls = loaded.config.server.tls.cert.is_some();
        let guarded_at = self.guard.map(|address| (address, has_tls));
        let advertise = self.advertise.clone();
        let location = AgentLocation::new(port, &self.card, advertise, guarded_at, &self.gateway)?;
        let member = Member {
            location,
            guard: None,
            registry: Registry::new(self.gateway.clone()),
            workspace,
            instance,
            credentials: Credentials::new(self.token_file.clone(), self.enrolment_token.clone()),
            is_bound: self.require_bound,
            state: watch::Sender::new(MembershipState::Absent),
            beating: Mutex::default(),
        };
        let plan = Plan {
            arguments: self,
            environment,
            member,
            guard,
        };
        Ok((plan, loaded))
    }

    /// Returns the variables by which the agent knows its port, and its place at the gateway, where it may call others.
    fn agent_environment(&self, port: u16) -> AgentEnvironment {
        let gateway = self.gateway.as_str().trim_end_matches('/');
        let file = &self.token_file;
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        [
            ("PORT", port.to_string().into()),
            ("A2A_GATEWAY_URL", gateway.into()),
            ("A2A_GATEWAY_WORKSPACE", self.workspace.clone().into()),
            ("A2A_GATEWAY_TOKEN_FILE", file.into()),
        ]
    }

    /// Returns the arguments of the sidecar in front of the agent.
    fn guard_arguments(&self, upstream: Url) -> Option<sidecar::Arguments> {
        let listen = Some(self.guard?);
        Some(sidecar::Arguments {
            workspace: self.workspace.clone(),
            upstream,
            listen,
            gateway: Some(self.gateway.clone()),
            jwks: None,
            issuer: None,
            plain_http: self.plain_http,
            private_card: false,
            require_bound: self.require_bound,
            settings: self.settings.clone(),
        })
    }
}

/// Returns the default id of an instance, as the packages for agents make it.
fn own_instance(port: u16) -> String {
    let host = host_name();
    let sign = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => c,
        _ => '-',
    };
    let host: String = host.chars().map(sign).take(HOST_MAX).collect();
    format!("{host}-{port}")
}

impl Plan {
    fn run(mut self, loaded: LoadedConfig) -> Result<u8, Failure> {
        if let Some(settings) = self.guard.take() {
            let admin = sidecar::admin_address(&loaded);
            sidecar::warn_of_plain(&loaded.config.server);
            let guard = start(Live::new(loaded), settings, admin);
            self.member.guard = Some(guard.or_fail("cannot guard the agent")?);
        }
        let runtime = build_runtime().or_fail(UNWATCHED)?;
        let ended = runtime.block_on(self.run_to_end());
        // A read of the token file may still wait for the file system.
        runtime.shutdown_background();
        ended
    }

    /// Starts the agent's command.
    fn start_agent(&self) -> Result<AgentProcess, Failure> {
        AgentProcess::start(&self.arguments.command, &self.environment).map_err(|error| {
            let program = self
                .arguments
                .command
                .first()
                .map_or(Path::new(""), Path::new);
            // As `env` and `timeout` end.
            let status = match error.kind() {
                io::ErrorKind::NotFound => 127,
                _ => 126,
            };
            let complaint = format!("cannot run {}: {error}", program.display());
            Failure::new(complaint).with_status(status)
        })
    }

    /// Runs the agent to its end, and returns its exit status.
    async fn run_to_end(mut self) -> Result<u8, Failure> {
        let mut signals = Signals::new().or_fail(UNWATCHED)?;
        let mut agent = self.start_agent()?;
        let group = agent.group;
        self.member.location.owner = (!self.arguments.any_listener).then_some(group);
        let member = &self.member;
        let mut staying = pin!(member.stay_registered(self.arguments.ready_within));
        let (mut ended, mut failure, mut signal) = (None, None, Signal::TERM);
        tokio::select! {
            biased;
            status = agent.wait() => ended = Some(status),
            asked = signals.wait_for_stop(group) => signal = asked,
            Err(error) = &mut staying => failure = Some(error),
            () = member.guard_ended() => {
                failure = Some(Failure::new("the guard has ended, which is a bug"));
            }
        }
        let grace = self.arguments.grace;
        let until = Instant::now() + grace;
        if ended.is_none() && failure.is_none() {
            tracing::info!("draining the agent");
            let share = until - grace / 5;
            let leaving = member.drain_and_leave(staying.as_mut());
            // The agent's own end, a second signal, or the end of their share ends the wait for its calls.
            tokio::select! {
                biased;
                _ = agent.wait() => {}
                again = signals.wait_for_stop(group) => signal = again,
                _ = timeout_at(share, leaving) => {}
            }
        }
        let leaving = member.finish_leaving(staying, until);
        let status = if let Some(status) = ended {
            tokio::select! {
                () = leaving => {}
                _ = signals.wait_for_stop(group) => {}
            }
            status
        } else {
            tokio::join!(agent.stop(signal, &mut signals, until), leaving).0
        };
        let status = status.or_fail(UNWATCHED)?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        tracing::info!(%status, "the agent has ended");
        Ok(exit_code(status))
    }
}

#[cfg(test)]
mod tests;
