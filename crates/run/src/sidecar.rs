//! `a2a-gateway sidecar`: a proxy in front of one agent that admits only callers with a token
//! signed by the gateway.

use std::net::SocketAddr;

use url::Url;

use assembly::sidecar::{Agent, CardAccess, Issuer, Settings, UnboundTokens};
use ctl::{ConfigFlags, Failure, OrFail as _, is_bare, is_loopback};
use kernel::config::load::{Layers, LoadedConfig, Source, load};
use kernel::config::{Live, Server};
use kernel::ids::WorkspaceId;
use kernel::telemetry::{self, Chain};

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

/// `a2a-gateway sidecar`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The agent's workspace: only tokens for it are admitted
    #[arg(long, value_name = "ID")]
    pub(super) workspace: String,
    /// Where the agent listens: scheme, host and port
    #[arg(long, value_name = "URL")]
    pub(super) upstream: Url,
    /// Where to listen, instead of the agent [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    pub(super) listen: Option<SocketAddr>,
    /// Base URL of the gateway, which publishes its issuer and keys [default: where --jwks is, if
    /// that is a gateway's, or http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", env = "A2A_GATEWAY_URL")]
    pub(super) gateway: Option<Url>,
    /// Where the gateway's keys are, if not at /.well-known/jwks.json of --gateway
    #[arg(long, alias = "jwks-url", value_name = "URL")]
    pub(super) jwks: Option<Url>,
    /// The issuer of the gateway's tokens, instead of asking the gateway for it
    #[arg(long, value_name = "TEXT")]
    pub(super) issuer: Option<String>,
    /// Fetch keys over plain http from another machine; an attacker on the network path can replace
    /// them
    #[arg(long)]
    pub(super) plain_http: bool,
    /// Ask for a token also at the agent's card (/.well-known/agent-card.json, agent.json)
    #[arg(long)]
    pub(super) private_card: bool,
    /// Refuse tokens that are not bound to one request: the agent's workspace needs proof "request" at
    /// the gateway, and agents must call through it
    #[arg(long, alias = "bound-only")]
    pub(super) require_bound: bool,
    #[command(flatten)]
    pub(super) settings: ConfigFlags,
}

/// Runs `a2a-gateway sidecar` until it is to end.
///
/// # Errors
/// Arguments or settings are wrong, or it cannot serve.
pub fn run(arguments: &Arguments) -> Result<String, Failure> {
    let settings = arguments.to_settings()?;
    let loaded = load(&arguments.config_layers()).or_usage()?;
    let _log = telemetry::start(&loaded.config.telemetry).or_usage()?;
    warn_of_plain(&loaded.config.server);
    let admin = admin_address(&loaded);
    server::sidecar::run(Live::new(loaded), settings, admin).map_err(|error| {
        tracing::error!(error = %Chain(&error), "the sidecar cannot serve");
        Failure::quiet(1)
    })?;
    Ok(String::new())
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
    /// Returns the sources of the sidecar's settings.
    pub(super) fn config_layers(&self) -> Layers {
        let mut layers = self.settings.clone().into_layers();
        layers.defaults = &DEFAULTS;
        let listen = self.listen.map(|listen| format!("server.listen={listen}"));
        layers.overrides.extend(listen);
        layers
    }

    /// Checks the arguments.
    ///
    /// # Errors
    /// One of them is wrong.
    pub(super) fn to_settings(&self) -> Result<Settings, Failure> {
        let workspace = WorkspaceId::parse(&self.workspace);
        let workspace = workspace.map_err(|why| Failure::usage(format!("--workspace: {why}")))?;
        let agent = Agent::parse(&self.upstream).or_usage()?;
        let gateway = self.gateway_url()?;
        let jwks = match &self.jwks {
            Some(jwks) => self.check_url("jwks", jwks.clone())?,
            None => self.check_url("gateway", join_path(&gateway, JWKS_PATH))?,
        };
        let issuer = match self.issuer.as_deref() {
            Some("") => return Err(Failure::usage("--issuer must not be empty")),
            Some(issuer) => Issuer::Named(issuer.to_owned()),
            None => {
                let discovery = join_path(&gateway, DISCOVERY_PATH);
                Issuer::FromDiscovery(self.check_url("gateway", discovery)?)
            }
        };
        Ok(Settings {
            workspace,
            agent,
            jwks,
            issuer,
            card: match self.private_card {
                true => CardAccess::ForCallers,
                false => CardAccess::Public,
            },
            unbound: match self.require_bound {
                true => UnboundTokens::Refused,
                false => UnboundTokens::Admitted,
            },
        })
    }

    /// Returns the gateway's base URL: `--gateway`, else the base of `--jwks`, else the gateway on
    /// this machine.
    fn gateway_url(&self) -> Result<Url, Failure> {
        let beside = || strip_path(self.jwks.as_ref()?, JWKS_PATH);
        match self.gateway.clone().or_else(beside) {
            Some(gateway) => Ok(gateway),
            None => Ok(Url::parse(LOCAL_GATEWAY)?),
        }
    }

    /// Returns the URL if keys may be fetched from it: https, or http on loopback or with
    /// `--plain-http`; no user, query or fragment.
    fn check_url(&self, flag: &str, url: Url) -> Result<Url, Failure> {
        match url.scheme() {
            "https" | "http" if url.host().is_none() || !is_bare(&url) => {}
            "https" => return Ok(url),
            "http" if is_loopback(&url) || self.plain_http => return Ok(url),
            "http" => {
                return Err(Failure::usage(format!(
                    "--{flag} is plain http to another machine: whoever is on the way could put in keys of their own and call as \
                     anybody. Use https, or say --plain-http if that network is yours alone"
                )));
            }
            _ => {}
        }
        Err(Failure::usage(format!(
            "--{flag} must begin with https:// (or http://) and name a host, without a user, `?` and `#`"
        )))
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
    use assembly::sidecar::Issuer;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn settings(more: &[&str]) -> Result<Settings, Failure> {
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
