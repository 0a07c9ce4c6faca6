//! Where the admin listener is: by URL, or by the configuration of the gateway that is asked.

use std::path::Path;

use url::Url;

use crate::config::Config;
use crate::config::load::{ConfigError, Layers, load};

/// Of a gateway with defaults.
const DEFAULT: &str = "http://127.0.0.1:9090";

/// There is no URL to ask.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminUrlError {
    /// The file, or what is set beside it, is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address is none of a URL.
    #[error("admin.listen cannot be written as a URL")]
    Url(#[from] url::ParseError),
}

/// `given`; else `admin.listen` as `config` and the environment have it; else the default.
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

/// A listener on every interface is asked on this machine.
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
