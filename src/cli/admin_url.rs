//! The URL of the admin listener: given on the command line, or read from a gateway's
//! configuration.

use std::path::Path;

use url::Url;

use crate::config::Config;
use crate::config::load::{ConfigError, Layers, load};

/// The admin listener of a gateway with default settings.
const DEFAULT: &str = "http://127.0.0.1:9090";

/// The URL of the admin listener could not be determined.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminUrlError {
    /// The file or the environment holds a wrong setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address cannot be part of a URL.
    #[error("admin.listen cannot be written as a URL")]
    Url(#[from] url::ParseError),
}

/// Returns `given`; else `admin.listen` of the file `config` and the environment; else the default.
pub(super) fn admin_url(given: Option<&Url>, config: Option<&Path>) -> Result<Url, AdminUrlError> {
    if let Some(url) = given {
        return Ok(url.clone());
    }
    let Some(file) = config else {
        return Ok(Url::parse(DEFAULT)?);
    };
    let loaded = load(&Layers::of_this_process(Some(file.to_owned()), Vec::new()))?;
    Ok(of_config(&loaded.config)?)
}

/// Returns the URL of `admin.listen`; an unspecified address (all interfaces) becomes loopback.
fn of_config(config: &Config) -> Result<Url, url::ParseError> {
    let mut address = config.admin.listen;
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    Url::parse(&format!("http://{address}"))
}
