//! Parsers of configuration values: `"120s"`, `"10MiB"`, a SHA-256 in hexadecimal, secret URLs, DNS
//! servers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use secrecy::SecretString;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use url::{Host, Url};

use crate::ids::WorkspaceId;

/// A size in bytes, written `"10MiB"`, `"64KiB"`, `"512B"` or as a bare number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Returns the size as a buffer length.
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let number: u64 = text[..digits].parse().ok()?;
        let unit: u64 = match text[digits..].trim() {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return None,
        };
        number.checked_mul(unit).map(Self)
    }
}

/// A number, or a text with one.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum NumberOrText<N> {
    Number(N),
    Text(String),
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(n) => Ok(Self(n)),
            NumberOrText::Text(text) => Self::parse(&text).ok_or_else(|| {
                D::Error::custom(format!(
                    "`{text}` is not a size: write \"10MiB\", \"64KiB\" or \"512B\""
                ))
            }),
        }
    }
}

/// A SHA-256, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sha256Hex(pub [u8; 32]);

impl fmt::Debug for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[sha256]")
    }
}

impl<'de> Deserialize<'de> for Sha256Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom("a SHA-256 is written as 64 hexadecimal digits");
        hex::FromHex::from_hex(text).map(Self).map_err(|_| wrong())
    }
}

/// Parses a duration with its unit, `"120s"`, `"5min"`, `"1h 30min"`; a bare number is refused.
///
/// # Errors
/// If the text is not a duration.
pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map_err(|_| {
        D::Error::custom(format!(
            "`{text}` is not a duration: write \"120s\", \"500ms\" or \"30min\""
        ))
    })
}

/// True if the host of a URL is this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Longest text that names something of another program, in bytes.
pub(super) const TEXT_MAX: usize = 512;

/// True if a text may name something of another program.
pub(super) fn is_text(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= TEXT_MAX && !text.chars().any(char::is_control)
}

/// True for http:// and https:// with a host.
pub(super) fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

/// True if a URL holds a user or a password.
pub(super) fn has_user(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

/// Parses an optional workspace id.
///
/// # Errors
/// If the text is not a workspace id.
pub fn workspace_id<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<WorkspaceId>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let id = WorkspaceId::parse(&text);
    id.map(Some)
        .map_err(|error| D::Error::custom(format!("`{text}` is no workspace: {error}")))
}

/// Reads a URL that may contain a password into a type that is never printed.
///
/// # Errors
/// If the value is not a string.
pub fn secret_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SecretString, D::Error> {
    String::deserialize(deserializer).map(SecretString::from)
}

/// The port of DNS (RFC 1035, 4.2).
const DNS_PORT: u16 = 53;

/// Parses addresses of DNS servers, each with or without a port: `"10.0.0.53"`, `"10.0.0.53:5353"`, `"[fd00::53]:53"`.
///
/// # Errors
/// If one is not an address.
pub fn name_servers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<SocketAddr>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let address = |text: &String| {
        let bare = |text: &String| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, DNS_PORT));
        text.parse().or_else(|_| bare(text)).map_err(|_| {
            D::Error::custom(format!(
                "`{text}` is not the address of a DNS server: write \"10.0.0.53\" or \"10.0.0.53:5353\""
            ))
        })
    };
    texts.iter().map(address).collect()
}
