//! What is written down of calls and changes.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use url::{Host, Url};

use super::value::{ByteSize, duration};

/// `[audit]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audit {
    /// Whether anything is.
    pub enabled: bool,
    /// Where records wait while the database is away.
    pub spool_dir: PathBuf,
    /// How much of them may wait there.
    pub spool_bytes: ByteSize,
    /// How long records are kept; zero: for ever.
    #[serde(with = "duration")]
    pub retention: Duration,
    /// How much of a client's address is written down.
    pub client_address: ClientAddress,
    /// Where the newest signed end of the chain is kept besides the database.
    #[serde(default)]
    pub anchor: Option<AuditAnchor>,
}

/// Where the newest signed end of the chain is kept: `log`, `file:PATH` or a URL.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum AuditAnchor {
    /// In the log.
    Log,
    /// In a file.
    File(PathBuf),
    /// It is sent there.
    Url(Url),
}

impl TryFrom<String> for AuditAnchor {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const FORMS: &str = "is not a place for the end of the audit: write \"log\", \"file:PATH\" or \"https://…\" \
            (http:// for a loopback address only), without user and password";
        if text == "log" {
            return Ok(Self::Log);
        }
        if let Some(path) = text.strip_prefix("file:") {
            return match path {
                "" => Err(FORMS),
                path => Ok(Self::File(path.into())),
            };
        }
        let url = Url::parse(&text).map_err(|_| FORMS)?;
        let loopback = match url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        let plain = url.username().is_empty() && url.password().is_none();
        match url.scheme() {
            "https" if plain => Ok(Self::Url(url)),
            "http" if plain && loopback => Ok(Self::Url(url)),
            _ => Err(FORMS),
        }
    }
}

/// How much of a client's address is written down, in audit records and access lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAddress {
    /// All of it.
    Full,
    /// The network: 24 bits of an IPv4 address, 48 of an IPv6 address.
    Prefix,
    /// Nothing.
    None,
}
