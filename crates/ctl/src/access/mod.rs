//! URL and credential of a command: of its flags, else the environment, else a context, else defaults. The one place
//! that decides; `docs/reference/command-line.md` has the rules.

mod contexts;

use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap_complete::engine::ArgValueCandidates;
use gateway_client::Registry;
use url::{Host, Url};

pub(crate) use self::contexts::{Context, Contexts, names_for_shells};
use super::failure::{Failure, OrFail as _};
use super::parse_http_url;
use kernel::config::load::{Layers, load};

/// Variable with the token of a caller.
const TOKEN: &str = "A2A_GATEWAY_TOKEN";

/// Variable with the token of an operator.
const ADMIN_TOKEN: &str = "A2A_GATEWAY_ADMIN_TOKEN";

/// There is no credential.
const NO_CREDENTIAL: &str = "give an operator's or an org's token with --token, in A2A_GATEWAY_TOKEN, in \
    A2A_GATEWAY_ADMIN_TOKEN or by a context (`a2a-gateway login`)";

/// What a user does if nothing listens where a command asks the public listener.
const PUBLIC: &str =
    "; is the gateway running? --url, A2A_GATEWAY_URL, a context or --config says where";

/// The same for the admin listener.
const ADMIN: &str = "; is the gateway running? --admin, A2A_GATEWAY_ADMIN_URL, a context or --config say \
    where its admin listener (admin.listen) is";

/// The listener that a command asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    /// `server.listen`.
    Public,
    /// `admin.listen`.
    Admin,
}

/// The flags that choose a gateway without naming its URL.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct GatewaySelection {
    /// Read the gateway's addresses from this TOML file and the environment, as `serve` does
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ask the gateway of this context, whatever the environment says [default: the one that `context use` chose]
    #[arg(long, value_name = "NAME", conflicts_with = "config", add = ArgValueCandidates::new(contexts::names_for_shells))]
    context: Option<String>,
}

/// The public listener.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct GatewayUrl {
    /// Base URL of the gateway [env: A2A_GATEWAY_URL] [default: server.public_url or server.listen of --config, else of
    /// the context, else http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", value_parser = parse_http_url, conflicts_with = "context")]
    url: Option<Url>,
    #[command(flatten)]
    selection: GatewaySelection,
}

/// The admin listener, and an operator's token.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct AdminAccess {
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
pub struct OperatorAccess {
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

/// The public listener, and the token of a caller.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct CallerAccess {
    /// Credential of the caller [env: A2A_GATEWAY_TOKEN]; better given there or by a context, where other users cannot
    /// see it
    #[arg(long)]
    token: Option<String>,
    /// Act as this workspace, whose token the context has
    #[arg(id = "as", long, value_name = "WORKSPACE", conflicts_with = "token")]
    workspace: Option<String>,
    #[command(flatten)]
    base: GatewayUrl,
}

/// The gateway that a command asks.
pub(crate) struct GatewayEndpoint {
    /// Base URL of its listener.
    pub(crate) url: Url,
    /// The context of the URL, if the URL is from one.
    context: Option<Context>,
    /// True if a flag named the context: it counts more than the environment.
    is_named: bool,
}

impl Listener {
    /// The variable with its URL, and its URL at a gateway with defaults.
    fn defaults(self) -> (&'static str, &'static str) {
        match self {
            Self::Public => ("A2A_GATEWAY_URL", "http://127.0.0.1:8080"),
            Self::Admin => ("A2A_GATEWAY_ADMIN_URL", "http://127.0.0.1:9090"),
        }
    }

    /// Returns its URL in a context. Only that of the admin listener may be missing.
    fn find_url(self, context: &Context) -> Option<&Url> {
        match self {
            Self::Public => Some(&context.url),
            Self::Admin => context.admin_url.as_ref(),
        }
    }

    fn url_in_context(self, name: &str, context: &Context) -> Result<Url, Failure> {
        self.find_url(context).cloned().ok_or_else(|| {
            Failure::usage(format!(
                "the context {name} has no URL of the admin listener (admin.listen): add it with `a2a-gateway context add {name} --replace --admin URL`, which keeps the rest, or give --admin"
            ))
        })
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
    pub(crate) fn resolve_endpoint(
        &self,
        listener: Listener,
        given: Option<&Url>,
    ) -> Result<GatewayEndpoint, Failure> {
        let is_named = self.context.is_some();
        let (variable, default_url) = listener.defaults();
        let of_variable = || {
            let text = read_variable(variable).filter(|_| !is_named)?;
            let url = parse_http_url(&text);
            Some(url.map_err(|advice| Failure::usage(format!("{variable}: {advice}"))))
        };
        let of_file = || Some(listener.url_in_file(self.config.as_ref().filter(|_| !is_named)?));
        let given = given.cloned().map(Ok).or_else(of_variable).or_else(of_file);
        if let Some(url) = given.transpose()? {
            // The tokens of the current context are for its own gateway, however that was named.
            let context = Contexts::read().ok().and_then(|contexts| {
                let current = contexts.find(contexts.current.as_ref()?).ok()?;
                (listener.find_url(current) == Some(&url)).then(|| current.clone())
            });
            return Ok(GatewayEndpoint {
                url,
                context,
                is_named: false,
            });
        }
        let contexts = Contexts::read()?;
        let name = self.context.as_ref().or(contexts.current.as_ref());
        let context = name.map(|name| contexts.find(name)).transpose()?;
        let url = match name.zip(context) {
            Some((name, context)) => listener.url_in_context(name, context)?,
            None => Url::parse(default_url)?,
        };
        Ok(GatewayEndpoint {
            url,
            context: context.cloned(),
            is_named,
        })
    }
}

impl GatewayEndpoint {
    /// Returns the credential: of a flag, of a context that a flag named, of a variable, of the current context. That
    /// of a context goes to no other gateway than its own.
    ///
    /// # Errors
    /// The file with the context's token cannot be read.
    fn resolve_token(
        &self,
        flags: &[&Option<String>],
        variables: &[&str],
    ) -> Result<Option<String>, Failure> {
        // Compose files pass on unset variables as empty ones.
        let given = flags.iter().filter_map(|flag| flag.as_ref());
        let mut given = given.filter(|token| !token.is_empty());
        let of_variable = || variables.iter().find_map(|name| read_variable(name));
        let of_context = || self.context.as_ref().map_or(Ok(None), Context::read_token);
        match given.next() {
            Some(given) => Ok(Some(given.clone())),
            None if self.is_named => Ok(of_context()?.or_else(of_variable)),
            None => of_variable().map_or_else(of_context, |token| Ok(Some(token))),
        }
    }

    /// Returns a client with the credential, if there is one.
    fn connect(
        self,
        flags: &[&Option<String>],
        variables: &[&str],
        advice: &'static str,
    ) -> Result<Registry, Failure> {
        let token = self.resolve_token(flags, variables)?;
        Ok(Registry::for_user(self.url, token, advice))
    }
}

impl GatewayUrl {
    /// Returns the gateway to ask, without a credential.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`].
    pub(crate) fn build_anonymous(&self) -> Result<Registry, Failure> {
        let url = self.resolve_endpoint()?.url;
        Ok(Registry::for_user(url, None, PUBLIC))
    }

    fn resolve_endpoint(&self) -> Result<GatewayEndpoint, Failure> {
        self.selection
            .resolve_endpoint(Listener::Public, self.url.as_ref())
    }
}

impl CallerAccess {
    /// Returns the gateway to ask, and if there is one the credential of a caller: that of `--as`, else of the flag,
    /// the variable or the context.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`] and [`GatewayEndpoint::resolve_token`]; there is no token of `--as`.
    pub(crate) fn build_client(&self) -> Result<Registry, Failure> {
        let endpoint = self.base.resolve_endpoint()?;
        let Some(workspace) = &self.workspace else {
            return endpoint.connect(&[&self.token], &[TOKEN], PUBLIC);
        };
        let context = endpoint.context.as_ref().ok_or_else(|| {
            Failure::usage(format!(
                "--as {workspace} takes a token of a context, and the gateway is not from one: leave out --url, --config and A2A_GATEWAY_URL, or give --context"
            ))
        })?;
        let token = context.find_caller(workspace)?;
        Ok(Registry::for_user(endpoint.url, Some(token), PUBLIC))
    }
}

impl AdminAccess {
    /// Returns the admin listener to ask, with the operator's token if there is one.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`] and [`GatewayEndpoint::resolve_token`].
    pub(crate) fn build_client(&self) -> Result<Registry, Failure> {
        let selection = &self.selection;
        let endpoint = selection.resolve_endpoint(Listener::Admin, self.admin.as_ref())?;
        endpoint.connect(&[&self.token], &[ADMIN_TOKEN], ADMIN)
    }
}

impl OperatorAccess {
    /// Returns the gateway to ask, with the credential.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`] and [`GatewayEndpoint::resolve_token`]; there is no credential.
    pub(crate) fn build_client(&self) -> Result<Registry, Failure> {
        let (endpoint, flags) = (self.base.resolve_endpoint()?, [&self.token, &self.operator]);
        let client = endpoint.connect(&flags, &[TOKEN, ADMIN_TOKEN], PUBLIC)?;
        match client.token {
            Some(_) => Ok(client),
            None => Err(Failure::usage(NO_CREDENTIAL)),
        }
    }

    /// The access of a command line that is being completed: what it has of `--url` and `--context`.
    pub(crate) fn from_words(words: &[String]) -> Self {
        let behind = |flag: &str| {
            let value = |(at, word): (usize, &String)| match word.strip_prefix(flag)? {
                "" => words.get(at + 1).cloned(),
                rest => rest.strip_prefix('=').map(str::to_owned),
            };
            words.iter().enumerate().find_map(value)
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
pub fn token_alone(text: &[u8]) -> Result<String, &'static str> {
    let token = text.trim_ascii();
    let is_token = token.iter().all(u8::is_ascii_graphic);
    is_token
        .then(|| String::from_utf8_lossy(token).into_owned())
        .ok_or("it has more than one line, or bytes that no token has (such as NUL or a BOM): write the token alone")
}

/// Returns a URL without its user and password.
pub(crate) fn without_user(url: &Url) -> String {
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
pub fn to_loopback(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// True if the URL is of this machine.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// True for a URL without a user, a query and a fragment.
pub fn is_bare(url: &Url) -> bool {
    without_user(url) == url.as_str() && url.query().is_none() && url.fragment().is_none()
}
