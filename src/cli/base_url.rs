//! Base URLs of a gateway's listeners: given, or by the configuration of the gateway that is asked.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use gateway_client::{ClientError, RegistryError};
use url::Url;

use super::http_url;
use crate::config::Config;
use crate::config::load::{ConfigError, Layers, load};

/// The public listener of a gateway with defaults.
const PUBLIC: &str = "http://127.0.0.1:8080";

/// The admin listener of a gateway with defaults.
const ADMIN: &str = "http://127.0.0.1:9090";

/// There is no URL to ask.
#[derive(Debug, thiserror::Error)]
pub(super) enum BaseUrlError {
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
}

/// A request to the gateway's control plane failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("{0}; is the gateway running? --url, A2A_GATEWAY_URL or --config says where")]
    NotRunning(ClientError),
    #[error(transparent)]
    Gateway(RegistryError),
}

impl From<RegistryError> for RequestError {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::Unanswered {
                source: away @ ClientError::NotListening { .. },
                ..
            } => Self::NotRunning(away),
            other => Self::Gateway(other),
        }
    }
}

/// Where the public listener is.
#[derive(clap::Args, Debug)]
pub(super) struct GatewayUrl {
    /// Base URL of the gateway [default: server.public_url or server.listen of --config, else http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", env = "A2A_GATEWAY_URL", value_parser = http_url)]
    url: Option<Url>,
    /// Read server.public_url and server.listen from this TOML file and the environment, as `serve` does
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl GatewayUrl {
    /// `--url`; else the URL by which the gateway of `--config` is called; else the default.
    pub(super) fn resolve(&self) -> Result<Url, BaseUrlError> {
        if let Some(url) = &self.url {
            return Ok(url.clone());
        }
        let url = match &self.config {
            Some(file) => {
                let mut config = of_file(file)?;
                config.server.listen = on_this_machine(config.server.listen);
                config.public_url()
            }
            None => PUBLIC.to_owned(),
        };
        parsed("server.listen", &url)
    }
}

/// `given`; else `admin.listen` as `config` and the environment have it; else the default.
pub(super) fn admin_url(given: Option<&Url>, config: Option<&Path>) -> Result<Url, BaseUrlError> {
    if let Some(url) = given {
        return Ok(url.clone());
    }
    let url = match config {
        Some(file) => format!("http://{}", on_this_machine(of_file(file)?.admin.listen)),
        None => ADMIN.to_owned(),
    };
    parsed("admin.listen", &url)
}

fn of_file(file: &Path) -> Result<Config, ConfigError> {
    let layers = Layers::of_this_process(Some(file.to_owned()), Vec::new());
    Ok(load(&layers)?.config)
}

fn parsed(key: &'static str, url: &str) -> Result<Url, BaseUrlError> {
    Url::parse(url).map_err(|source| BaseUrlError::Url { key, source })
}

/// A listener on every interface is asked on this machine.
fn on_this_machine(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}
