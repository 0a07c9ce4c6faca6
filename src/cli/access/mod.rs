//! URL and credential of a command: of its flags, else the environment, else a context, else defaults. The one place
//! that decides; `docs/reference/command-line.md` has the rules.

mod contexts;

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap_complete::engine::ArgValueCandidates;
use url::Url;

pub(super) use self::contexts::{Context, Contexts, ContextsError, Secret, names_for_shells};
use super::parse_http_url;
use crate::config::Config;
use crate::config::load::{ConfigError, Layers, load};

/// Variable with the token of a caller.
const TOKEN: &str = "A2A_GATEWAY_TOKEN";

/// Variable with the token of an operator.
const ADMIN_TOKEN: &str = "A2A_GATEWAY_ADMIN_TOKEN";

/// The listener that a command asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    /// `server.listen`.
    Public,
    /// `admin.listen`.
    Admin,
}

/// There is no URL to ask, or no credential to ask with.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    /// The file, or what is set beside it, is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The setting makes no URL.
    #[error("{key} cannot be written as a URL")]
    Url {
        /// The setting.
        key: &'static str,
        #[source]
        source: url::ParseError,
    },
    /// The variable is no URL.
    #[error("{variable}: {advice}")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// A description of a good value.
        advice: &'static str,
    },
    /// The contexts cannot be used.
    #[error(transparent)]
    Contexts(#[from] ContextsError),
    /// The context is of a gateway whose admin listener it does not name.
    #[error(
        "the context {0} has no URL of the admin listener (admin.listen): add it with `a2a-gateway context add {0} --replace --admin URL`, which keeps the rest, or give --admin"
    )]
    NoAdmin(String),
    /// There is no credential.
    #[error(
        "give an operator's or an org's token with --token, in A2A_GATEWAY_TOKEN, in A2A_GATEWAY_ADMIN_TOKEN or by a context (`a2a-gateway context add`)"
    )]
    NoCredential,
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
    /// The context of the URL, with its name, if the URL is from one.
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

    fn url_in_context(self, context: &Context) -> Result<Url, AccessError> {
        match self {
            Self::Public => Ok(context.url.clone()),
            Self::Admin => context
                .admin_url
                .clone()
                .ok_or_else(|| AccessError::NoAdmin(context.name.clone())),
        }
    }

    fn url_in_file(self, file: &Path) -> Result<Url, AccessError> {
        let mut config = load_config(file)?;
        match self {
            Self::Public => {
                config.server.listen = to_loopback(config.server.listen);
                parse_url("server.listen", &config.public_url())
            }
            Self::Admin => {
                let url = format!("http://{}", to_loopback(config.admin.listen));
                parse_url("admin.listen", &url)
            }
        }
    }
}

impl GatewaySelection {
    /// Returns the gateway to ask. `given` is the URL of a flag.
    ///
    /// # Errors
    /// [`AccessError`], if what was given makes no URL.
    pub(super) fn resolve_endpoint(
        &self,
        listener: Listener,
        given: Option<&Url>,
    ) -> Result<GatewayEndpoint, AccessError> {
        let alone = |url| GatewayEndpoint {
            url,
            context: None,
            is_named: false,
        };
        if let Some(url) = given {
            return Ok(alone(url.clone()));
        }
        if let Some(name) = &self.context {
            let context = Contexts::read()?.find(name)?;
            return Ok(GatewayEndpoint {
                url: listener.url_in_context(&context)?,
                context: Some(context),
                is_named: true,
            });
        }
        let variable = listener.url_variable();
        if let Some(text) = read_variable(variable) {
            let url = parse_http_url(&text);
            let url = url.map_err(|advice| AccessError::Variable { variable, advice })?;
            return Ok(alone(url));
        }
        if let Some(file) = &self.config {
            return Ok(alone(listener.url_in_file(file)?));
        }
        match Contexts::read()?.current()? {
            Some(context) => Ok(GatewayEndpoint {
                url: listener.url_in_context(&context)?,
                context: Some(context),
                is_named: false,
            }),
            None => Ok(alone(parse_url("URL", listener.default_url())?)),
        }
    }
}

impl GatewayEndpoint {
    /// Returns the credential: of a flag, of a context that a flag named, of a variable, of the current context. That of
    /// a context goes to no other gateway than its own.
    ///
    /// # Errors
    /// [`AccessError::Contexts`], if the file with the context's token cannot be read.
    pub(super) fn resolve_token(
        &self,
        flags: &[&Option<String>],
        variables: &[&str],
    ) -> Result<Option<String>, AccessError> {
        // Compose files pass on unset variables as empty ones.
        let mut given = flags.iter().filter_map(|flag| flag.as_ref());
        let given = given.find(|token| !token.is_empty()).cloned();
        let of_context = || match &self.context {
            Some(context) => context.read_token(),
            None => Ok(None),
        };
        if given.is_some() {
            return Ok(given);
        }
        if self.is_named
            && let Some(token) = of_context()?
        {
            return Ok(Some(token));
        }
        let set = variables.iter().find_map(|name| read_variable(name));
        match set {
            Some(token) => Ok(Some(token)),
            None => Ok(of_context()?),
        }
    }
}

impl GatewayUrl {
    /// Returns the gateway to ask.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`].
    pub(super) fn resolve_endpoint(&self) -> Result<GatewayEndpoint, AccessError> {
        self.selection
            .resolve_endpoint(Listener::Public, self.url.as_ref())
    }

    /// Returns the URL to ask, and the credential of a caller: `flags`, then the variables, the operator's last if
    /// `operator` says so.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`] and [`GatewayEndpoint::resolve_token`].
    pub(super) fn resolve(
        &self,
        flags: &[&Option<String>],
        operator: bool,
    ) -> Result<(Url, Option<String>), AccessError> {
        let endpoint = self.resolve_endpoint()?;
        let variables = [TOKEN, ADMIN_TOKEN];
        let variables = if operator {
            &variables[..]
        } else {
            &variables[..1]
        };
        let token = endpoint.resolve_token(flags, variables)?;
        Ok((endpoint.url, token))
    }
}

impl AdminAccess {
    /// Returns the URL to ask, and the operator's token if there is one.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`] and [`GatewayEndpoint::resolve_token`].
    pub(super) fn resolve(&self) -> Result<(Url, Option<String>), AccessError> {
        let endpoint = self
            .selection
            .resolve_endpoint(Listener::Admin, self.admin.as_ref())?;
        let token = endpoint.resolve_token(&[&self.token], &[ADMIN_TOKEN])?;
        Ok((endpoint.url, token))
    }
}

impl OperatorAccess {
    /// Returns the URL to ask and the credential.
    ///
    /// # Errors
    /// As [`GatewaySelection::resolve_endpoint`] and [`GatewayEndpoint::resolve_token`]; [`AccessError::NoCredential`].
    pub(super) fn resolve(&self) -> Result<(Url, String), AccessError> {
        let (url, token) = self.base.resolve(&[&self.token, &self.operator], true)?;
        Ok((url, token.ok_or(AccessError::NoCredential)?))
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

fn load_config(file: &Path) -> Result<Config, ConfigError> {
    let layers = Layers::of_this_process(Some(file.to_owned()), Vec::new());
    Ok(load(&layers)?.config)
}

fn parse_url(key: &'static str, url: &str) -> Result<Url, AccessError> {
    Url::parse(url).map_err(|source| AccessError::Url { key, source })
}

/// A listener on every interface is asked on this machine.
fn to_loopback(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}
