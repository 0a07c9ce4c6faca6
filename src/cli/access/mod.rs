//! URL and credential of a command: of its flags, else the environment, else a context, else defaults. The one place
//! that decides; `docs/reference/command-line.md` has the rules.

mod contexts;

use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap_complete::engine::ArgValueCandidates;
use url::{Host, Url};

pub(super) use self::contexts::{Context, Contexts, names_for_shells};
use super::client::{self, Client};
use super::failure::{Failure, OrFail as _};
use super::parse_http_url;
use kernel::config::load::{Layers, load};

/// Variable with the token of a caller.
const TOKEN: &str = "A2A_GATEWAY_TOKEN";

/// Variable with the token of an operator.
const ADMIN_TOKEN: &str = "A2A_GATEWAY_ADMIN_TOKEN";

/// There is no credential.
const NO_CREDENTIAL: &str = "give an operator's or an org's token with --token, in A2A_GATEWAY_TOKEN, in \
    A2A_GATEWAY_ADMIN_TOKEN or by a context (`a2a-gateway context add`)";

/// The listener that a command asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    /// `server.listen`.
    Public,
    /// `admin.listen`.
    Admin,
}

/// The flags that choose a gateway without naming its URL.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct GatewaySelection {
    /// Read the gateway's addresses from this TOML file and the environment, as `serve` does
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ask the gateway of this context, whatever the environment says [default: the one that `context use` chose]
    #[arg(long, value_name = "NAME", conflicts_with = "config", add = ArgValueCandidates::new(contexts::names_for_shells))]
    context: Option<String>,
}

/// The public listener.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct GatewayUrl {
    /// Base URL of the gateway [env: A2A_GATEWAY_URL] [default: server.public_url or server.listen of --config, else of
    /// the context, else http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", value_parser = parse_http_url, conflicts_with = "context")]
    url: Option<Url>,
    #[command(flatten)]
    selection: GatewaySelection,
}

/// The admin listener, and an operator's token.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct AdminAccess {
    /// Base URL of the admin listener [env: A2A_GATEWAY_ADMIN_URL] [default: admin.listen of --config, else of the
    /// context, else http://127.0.0.1:9090]
    #[arg(long, value_name = "URL", value_parser = parse_http_url, conflicts_with = "context")]
    admin: Option<Url>,
    /// An operator's token [env: A2A_GATEWAY_ADMIN_TOKEN]; better given there or by a context, where other users cannot
    /// see it
    #[arg(long)]
    token: Option<String>,
    #[command(flatten)]
    selection: GatewaySelection,
}

/// The public listener, and the token of an operator or an org.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct OperatorAccess {
    /// Token of an operator or an org [env: A2A_GATEWAY_TOKEN]; better given there or by a context, where other users
    /// cannot see it
    #[arg(long)]
    token: Option<String>,
    /// An operator's token, when no other is given [env: A2A_GATEWAY_ADMIN_TOKEN]
    #[arg(long = "admin-token", value_name = "TOKEN")]
    operator: Option<String>,
    #[command(flatten)]
    base: GatewayUrl,
}

/// The gateway that a command asks.
pub(super) struct GatewayEndpoint {
    /// Base URL of its listener.
    pub(super) url: Url,
    /// The context of the URL, if the URL is from one.
    context: Option<Context>,
    /// True if a flag named the context: it counts more than the environment.
    is_named: bool,
}

impl Listener {
    fn url_variable(self) -> &'static str {
        match self {
            Self::Public => "A2A_GATEWAY_URL",
            Self::Admin => "A2A_GATEWAY_ADMIN_URL",
        }
    }

    /// The address of a gateway with defaults.
    fn default_url(self) -> &'static str {
        match self {
            Self::Public => "http://127.0.0.1:8080",
            Self::Admin => "http://127.0.0.1:9090",
        }
    }

    fn url_in_context(self, name: &str, context: &Context) -> Result<Url, Failure> {
        match self {
            Self::Public => Ok(context.url.clone()),
            Self::Admin => context.admin_url.clone().ok_or_else(|| {
                Failure::usage(format!(
                    "the context {name} has no URL of the admin listener (admin.listen): add it with `a2a-gateway context add {name} --replace --admin URL`, which keeps the rest, or give --admin"
                ))
            }),
        }
    }

    fn url_in_file(self, file: &Path) -> Result<Url, Failure> {
        let layers = Layers::of_this_process(Some(file.to_owned()), Vec::new());
        let mut config = load(&layers).or_usage()?.config;
        let (key, url) = match self {
            Self::Public => {
                config.server.listen = to_loopback(config.server.listen);
                ("server.listen", config.public_url())
            }
            Self::Admin => {
                let address = to_loopback(config.admin.listen);
                ("admin.listen", format!("http://{address}"))
            }
        };
        let url = Url::parse(&url);
        url.map_err(|error| Failure::usage(format!("{key} cannot be written as a URL: {error}")))
    }
}

impl GatewaySelection {
    /// Returns the gateway to ask. `given` is the URL of a flag.
    ///
    /// # Errors
    /// What was given makes no URL.
    pub(super) fn resolve_endpoint(
        &self,
        listener: Listener,
        given: Option<&Url>,
    ) -> Result<GatewayEndpoint, Failure> {
        let is_named = self.context.is_some();
        let variable = listener.url_variable();
        let url = if let Some(url) = given {
            Some(url.clone())
        } else if is_named {
            None
        } else if let Some(text) = read_variable(variable) {
            let url = parse_http_url(&text);
            Some(url.map_err(|advice| Failure::usage(format!("{variable}: {advice}")))?)
        } else if let Some(file) = &self.config {
            Some(listener.url_in_file(file)?)
        } else {
            None
        };
        if let Some(url) = url {
            return Ok(GatewayEndpoint {
                url,
                context: None,
                is_named: false,
            });
        }
        let contexts = Contexts::read()?;
        let name = self.context.as_deref().or(contexts.current_name());
        let context = name.map(|name| contexts.find(name)).transpose()?;
        let url = match name.zip(context) {
            Some((name, context)) => listener.url_in_context(name, context)?,
            None => Url::parse(listener.default_url())?,
        };
        Ok(GatewayEndpoint {
            url,
            context: context.cloned(),
            is_named,
        })
    }
}

impl GatewayEndpoint {
    /// Returns the credential: of a flag, of a context that a flag named, of a variable, of the current context. That of
    /// a context goes to no other gateway than its own.
    ///
    /// # Errors
    /// The file with the context's token cannot be read.
    fn resolve_token(
        &self,
        flags: &[&Option<String>],
        variables: &[&str],
    ) -> Result<Option<String>, Failure> {
        // Compose files pass on unset variables as empty ones.
        let mut given = flags.iter().filter_map(|flag| flag.as_ref());
        if let Some(given) = given.find(|token| !token.is_empty()) {
            return Ok(Some(given.clone()));
        }
        let of_variable = || variables.iter().find_map(|name| read_variable(name));
        match (&self.context, self.is_named) {
            (None, _) => Ok(of_variable()),
            (Some(context), true) => Ok(context.read_token()?.or_else(of_variable)),
            (Some(context), false) => {
                of_variable().map_or_else(|| context.read_token(), |token| Ok(Some(token)))
            }
        }
    }
}

impl GatewayUrl {
    /// Returns the gateway to ask, without a credential.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`].
    pub(super) fn build_anonymous(&self) -> Result<Client, Failure> {
        Ok(Client::new(
            self.resolve_endpoint()?.url,
            None,
            client::PUBLIC,
        ))
    }

    /// Returns the gateway to ask, and if there is one the credential of a caller: of the flag, then of the variable.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`] and [`GatewayEndpoint::resolve_token`].
    pub(super) fn build_client(&self, token: &Option<String>) -> Result<Client, Failure> {
        let endpoint = self.resolve_endpoint()?;
        let token = endpoint.resolve_token(&[token], &[TOKEN])?;
        Ok(Client::new(endpoint.url, token, client::PUBLIC))
    }

    fn resolve_endpoint(&self) -> Result<GatewayEndpoint, Failure> {
        self.selection
            .resolve_endpoint(Listener::Public, self.url.as_ref())
    }
}

impl AdminAccess {
    /// Returns the admin listener to ask, with the operator's token if there is one.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`] and [`GatewayEndpoint::resolve_token`].
    pub(super) fn build_client(&self) -> Result<Client, Failure> {
        let selection = &self.selection;
        let endpoint = selection.resolve_endpoint(Listener::Admin, self.admin.as_ref())?;
        let token = endpoint.resolve_token(&[&self.token], &[ADMIN_TOKEN])?;
        Ok(Client::new(endpoint.url, token, client::ADMIN))
    }
}

impl OperatorAccess {
    /// Returns the gateway to ask, with the credential.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`] and [`GatewayEndpoint::resolve_token`]; there is no credential.
    pub(super) fn build_client(&self) -> Result<Client, Failure> {
        let endpoint = self.base.resolve_endpoint()?;
        let flags = [&self.token, &self.operator];
        let token = endpoint.resolve_token(&flags, &[TOKEN, ADMIN_TOKEN])?;
        let token = token.ok_or_else(|| Failure::usage(NO_CREDENTIAL))?;
        Ok(Client::new(endpoint.url, Some(token), client::PUBLIC))
    }

    /// The access of a command line that is being completed: what it has of `--url` and `--context`.
    pub(super) fn from_words(words: &[String]) -> Self {
        let behind = |flag: &str| {
            let joined = format!("{flag}=");
            let mut words = words.iter();
            while let Some(word) = words.next() {
                if word == flag {
                    return words.next().cloned();
                }
                if let Some(value) = word.strip_prefix(&joined) {
                    return Some(value.to_owned());
                }
            }
            None
        };
        Self {
            token: behind("--token"),
            operator: behind("--admin-token"),
            base: GatewayUrl {
                url: behind("--url").and_then(|url| parse_http_url(&url).ok()),
                selection: GatewaySelection {
                    config: behind("--config").map(PathBuf::from),
                    context: behind("--context"),
                },
            },
        }
    }
}

/// Returns the token that a text is, without the white space around it; an empty one too.
///
/// # Errors
/// The advice for a text with anything else, such as a second line or NUL.
pub(super) fn token_alone(text: &[u8]) -> Result<String, &'static str> {
    let token = text.trim_ascii();
    let is_token = token.iter().all(u8::is_ascii_graphic);
    is_token
        .then(|| String::from_utf8_lossy(token).into_owned())
        .ok_or("it has more than one line, or bytes that no token has (such as NUL or a BOM): write the token alone")
}

/// Returns a URL without its user and password.
pub(super) fn without_user(url: &Url) -> String {
    let mut url = url.clone();
    // Both succeed where there is a host.
    let _ = (url.set_username(""), url.set_password(None));
    url.into()
}

/// Returns a variable of the environment, unless it is empty.
#[expect(
    clippy::disallowed_methods,
    reason = "addresses and tokens of a command are no settings of a gateway"
)]
fn read_variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the address at which a listener is reached on its own machine: one on all interfaces at loopback.
pub(super) fn to_loopback(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// True if the URL is of this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// True for a URL without a user, a query and a fragment.
pub(super) fn is_bare(url: &Url) -> bool {
    without_user(url) == url.as_str() && url.query().is_none() && url.fragment().is_none()
}
