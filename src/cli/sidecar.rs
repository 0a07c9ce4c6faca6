//! `a2a-gateway sidecar`: a proxy in front of one agent that admits only callers with a token
//! signed by the gateway.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use url::Url;

use super::{USAGE, print_error};
use crate::config::load::{Layers, LoadedConfig, Source, load};
use crate::config::{Live, Server};
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::server;
use crate::sidecar::{Agent, CardAccess, InvalidUpstream, Issuer, Settings, UnboundTokens};
use crate::telemetry::{self, Chain};

/// Settings of a sidecar that differ from the gateway's defaults. The gateway in front has the
/// timeouts that callers see, and it sends the keep-alive comments of streams: the sidecar's
/// timeouts must not pass first, and a comment of its own would count as a sign of life of the
/// agent. A completed request may be a little longer than the gateway's own limit. All requests
/// come from the address of a gateway, hence no limit per address.
const DEFAULTS: [(&str, &str); 9] = [
    ("server.connections_per_address", "0"),
    ("server.listen", "\"127.0.0.1:8081\""),
    ("timeouts.head", "\"2h\""),
    ("timeouts.idle", "\"2h\""),
    ("timeouts.total", "\"2h\""),
    ("timeouts.stream", "\"2h\""),
    ("timeouts.max", "\"2h\""),
    ("stream.keepalive", "\"1h\""),
    ("limits.request_bytes", "\"16MiB\""),
];

/// The gateway's URL, if none is given.
const LOCAL_GATEWAY: &str = "http://127.0.0.1:8080";

/// Path of the gateway's published keys.
const JWKS_PATH: &str = "/.well-known/jwks.json";

/// Path of the gateway's discovery document, which names its issuer.
const DISCOVERY_PATH: &str = "/.well-known/a2a-gateway";

const EXAMPLES: &str = "\
Examples:
  a2a-gateway sidecar --workspace acme-pm --upstream http://127.0.0.1:8000 \\
      --gateway https://gateway.example.com --listen 0.0.0.0:8081

GET /auth/verify tells who calls, GET /auth/ready whether the keys are known. The agent must be reachable through its sidecar only: let it listen on loopback, and register the
sidecar's address as the agent's. It finds the proven caller in X-Workspace-ID and X-A2A-Caller.

Of the settings in --config, the environment and --set, a sidecar obeys server (listen, tls, limits,
drain), admin.listen (metrics; without it there are none), timeouts, limits, stream, upstream and
telemetry. docs/reference/sidecar.md has more.";

/// `a2a-gateway sidecar`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The agent's workspace: only tokens for it are admitted
    #[arg(long, value_name = "ID")]
    workspace: String,
    /// Where the agent listens: scheme, host and port
    #[arg(long, value_name = "URL")]
    upstream: Url,
    /// Where to listen, instead of the agent [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Base URL of the gateway, which publishes its issuer and keys [default: where --jwks is, if
    /// that is a gateway's, or http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", env = "A2A_GATEWAY_URL")]
    gateway: Option<Url>,
    /// Where the gateway's keys are, if not at /.well-known/jwks.json of --gateway
    #[arg(long, alias = "jwks-url", value_name = "URL")]
    jwks: Option<Url>,
    /// The issuer of the gateway's tokens, instead of asking the gateway for it
    #[arg(long, value_name = "TEXT")]
    issuer: Option<String>,
    /// Fetch keys over plain http from another machine; an attacker on the network path can replace
    /// them
    #[arg(long)]
    plain_http: bool,
    /// Ask for a token also at the agent's card (/.well-known/agent-card.json, agent.json)
    #[arg(long)]
    private_card: bool,
    /// Refuse tokens that are not bound to one request: the agent's workspace needs proof "request" at
    /// the gateway, and agents must call through it
    #[arg(long, alias = "bound-only")]
    require_bound: bool,
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one setting, such as --set timeouts.idle=10min; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// The arguments are wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArgumentError {
    #[error("--workspace: {0}")]
    Workspace(#[from] InvalidWorkspaceId),
    #[error(transparent)]
    Upstream(#[from] InvalidUpstream),
    #[error(
        "--{0} must begin with https:// (or http://) and name a host, without a user, `?` and `#`"
    )]
    NoUrl(&'static str),
    #[error(
        "--{0} is plain http to another machine: whoever is on the way could put in keys of their own and call as \
         anybody. Use https, or say --plain-http if that network is yours alone"
    )]
    PlainHttp(&'static str),
    #[error("--issuer must not be empty")]
    EmptyIssuer,
}

pub(super) fn run(arguments: Arguments) -> ExitCode {
    let settings = match arguments.to_settings() {
        Ok(settings) => settings,
        Err(error) => {
            print_error(&error);
            return ExitCode::from(USAGE);
        }
    };
    match load(&arguments.config_layers()) {
        Ok(loaded) => serve_sidecar(loaded, settings),
        Err(error) => {
            print_error(&error);
            ExitCode::from(USAGE)
        }
    }
}

fn serve_sidecar(loaded: LoadedConfig, settings: Settings) -> ExitCode {
    let _log = match telemetry::start(&loaded.config.telemetry) {
        Ok(log) => log,
        Err(error) => {
            print_error(&error);
            return ExitCode::from(USAGE);
        }
    };
    warn_of_plain(&loaded.config.server);
    let admin = admin_address(&loaded);
    match server::sidecar::run(Live::new(loaded), settings, admin) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %Chain(&error), "the sidecar cannot serve");
            ExitCode::FAILURE
        }
    }
}

/// The gateway that a sidecar of `run` trusts, and what it is set to.
pub(super) struct TrustedGateway {
    pub(super) workspace: String,
    pub(super) gateway: Url,
    pub(super) plain_http: bool,
    pub(super) require_bound: bool,
    pub(super) config: Option<PathBuf>,
    pub(super) set: Vec<String>,
}

/// Returns the address of the admin listener, which a sidecar has only if it is set.
pub(super) fn admin_address(loaded: &LoadedConfig) -> Option<SocketAddr> {
    let mut settings = loaded.settings.iter();
    let is_set =
        settings.any(|setting| setting.key == "admin.listen" && setting.source != Source::Default);
    is_set.then_some(loaded.config.admin.listen)
}

/// Warns if callers' tokens come unencrypted over a network.
pub(super) fn warn_of_plain(server: &Server) {
    let listen = server.listen;
    if !listen.ip().is_loopback() && server.tls.cert.is_none() {
        tracing::warn!(%listen, "No server.tls: tokens travel in the clear unless something in front ends TLS");
    }
}

impl Arguments {
    /// Returns the arguments of a sidecar at `listen` in front of an agent at `upstream`.
    pub(super) fn in_front_of(upstream: Url, listen: SocketAddr, trusted: TrustedGateway) -> Self {
        Self {
            workspace: trusted.workspace,
            upstream,
            listen: Some(listen),
            gateway: Some(trusted.gateway),
            jwks: None,
            issuer: None,
            plain_http: trusted.plain_http,
            private_card: false,
            require_bound: trusted.require_bound,
            config: trusted.config,
            set: trusted.set,
        }
    }

    /// Returns the sources of the sidecar's settings.
    pub(super) fn config_layers(&self) -> Layers {
        let mut set = self.set.clone();
        set.extend(self.listen.map(|listen| format!("server.listen={listen}")));
        Layers {
            defaults: &DEFAULTS,
            ..Layers::of_this_process(self.config.clone(), set)
        }
    }

    /// Checks the arguments.
    ///
    /// # Errors
    /// [`ArgumentError`].
    pub(super) fn to_settings(&self) -> Result<Settings, ArgumentError> {
        let workspace = WorkspaceId::parse(&self.workspace)?;
        let agent = Agent::parse(&self.upstream)?;
        let gateway = self.gateway_url()?;
        let jwks = match &self.jwks {
            Some(jwks) => self.check_url("jwks", jwks.clone())?,
            None => self.check_url("gateway", join_path(&gateway, JWKS_PATH))?,
        };
        let issuer = match &self.issuer {
            Some(issuer) if issuer.is_empty() => return Err(ArgumentError::EmptyIssuer),
            Some(issuer) => Issuer::Named(issuer.clone()),
            None => Issuer::FromDiscovery(
                self.check_url("gateway", join_path(&gateway, DISCOVERY_PATH))?,
            ),
        };
        Ok(Settings {
            workspace,
            agent,
            jwks,
            issuer,
            card: if self.private_card {
                CardAccess::ForCallers
            } else {
                CardAccess::Public
            },
            unbound: if self.require_bound {
                UnboundTokens::Refused
            } else {
                UnboundTokens::Admitted
            },
        })
    }

    /// Returns the gateway's base URL: `--gateway`, else the base of `--jwks`, else the gateway on
    /// this machine.
    fn gateway_url(&self) -> Result<Url, ArgumentError> {
        let beside = || strip_path(self.jwks.as_ref()?, JWKS_PATH);
        match self.gateway.clone().or_else(beside) {
            Some(gateway) => Ok(gateway),
            None => Url::parse(LOCAL_GATEWAY).map_err(|_| ArgumentError::NoUrl("gateway")),
        }
    }

    /// Returns the URL if keys may be fetched from it: https, or http on loopback or with
    /// `--plain-http`; no user, query or fragment.
    fn check_url(&self, flag: &'static str, url: Url) -> Result<Url, ArgumentError> {
        let bare = url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        let loopback = match url.host() {
            Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            None => return Err(ArgumentError::NoUrl(flag)),
        };
        match url.scheme() {
            "https" | "http" if !bare => Err(ArgumentError::NoUrl(flag)),
            "https" => Ok(url),
            "http" if loopback || self.plain_http => Ok(url),
            "http" => Err(ArgumentError::PlainHttp(flag)),
            _ => Err(ArgumentError::NoUrl(flag)),
        }
    }
}

/// Returns the URL of `path` below a base URL.
fn join_path(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    url
}

/// Returns the base URL below which `url` is `path`.
fn strip_path(url: &Url, path: &str) -> Option<Url> {
    let base = url.path().strip_suffix(path)?.to_owned();
    let mut gateway = url.clone();
    gateway.set_path(&base);
    Some(gateway)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::sidecar::Issuer;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn settings(more: &[&str]) -> Result<Settings, ArgumentError> {
        let line = [
            "sidecar",
            "--workspace",
            "pm",
            "--upstream",
            "http://127.0.0.1:8000",
        ];
        let line = Line::try_parse_from(line.iter().chain(more)).unwrap();
        line.arguments.to_settings()
    }

    #[test]
    fn a_sidecars_defaults_are_settings_that_there_are() {
        let layers = Layers {
            defaults: &DEFAULTS,
            ..Layers::default()
        };
        let loaded = load(&layers).unwrap();
        assert_eq!(loaded.config.server.listen.port(), 8081);
        assert_eq!(loaded.config.timeouts.idle.as_secs(), 7200);
        assert_eq!(loaded.config.limits.request_bytes.0, 16 * 1024 * 1024);
    }

    #[test]
    fn the_gateway_is_found_by_its_base_or_by_its_keys() {
        let told = |more: &[&str]| {
            let settings = settings(more).unwrap();
            let issuer = match settings.issuer {
                Issuer::Named(name) => name,
                Issuer::FromDiscovery(url) => format!("at {url}"),
            };
            (settings.jwks.to_string(), issuer)
        };
        for (more, jwks, issuer) in [
            (
                &[][..],
                "http://127.0.0.1:8080/.well-known/jwks.json",
                "at http://127.0.0.1:8080/.well-known/a2a-gateway",
            ),
            (
                &["--gateway", "https://gw.test/base/"],
                "https://gw.test/base/.well-known/jwks.json",
                "at https://gw.test/base/.well-known/a2a-gateway",
            ),
            (
                &["--jwks", "https://gw.test/.well-known/jwks.json"],
                "https://gw.test/.well-known/jwks.json",
                "at https://gw.test/.well-known/a2a-gateway",
            ),
            (
                &[
                    "--jwks",
                    "https://cdn.test/.well-known/jwks.json",
                    "--gateway",
                    "https://gw.test",
                ],
                "https://cdn.test/.well-known/jwks.json",
                "at https://gw.test/.well-known/a2a-gateway",
            ),
            (
                &["--jwks", "https://cdn.test/keys"],
                "https://cdn.test/keys",
                "at http://127.0.0.1:8080/.well-known/a2a-gateway",
            ),
            (
                &[
                    "--jwks-url",
                    "https://cdn.test/keys",
                    "--issuer",
                    "https://gw.test",
                ],
                "https://cdn.test/keys",
                "https://gw.test",
            ),
            (
                &["--gateway", "http://gw.internal", "--plain-http"],
                "http://gw.internal/.well-known/jwks.json",
                "at http://gw.internal/.well-known/a2a-gateway",
            ),
        ] {
            assert_eq!(told(more), (jwks.to_owned(), issuer.to_owned()), "{more:?}");
        }
    }

    #[test]
    fn keys_that_anybody_could_replace_are_refused() {
        for bad in [
            &["--gateway", "http://gw.internal"][..],
            &["--jwks", "http://10.0.0.7/.well-known/jwks.json"],
            &["--gateway", "ftp://gw.test"],
            &["--gateway", "https://ada:secret@gw.test"],
            &["--jwks", "https://gw.test/jwks.json?a=b"],
            &["--issuer", ""],
        ] {
            assert!(settings(bad).is_err(), "{bad:?}");
        }
    }
}
