//! `[audit]`: records of calls and changes.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use url::Url;

use super::value::{ByteSize, duration, has_user, is_loopback};

use crate::closed_set::words;

sections! {
    /// `[audit]`.
    Audit {
        /// True if records are written.
        enabled: bool,
        /// Folder of the spool, which holds records while the database is unavailable.
        spool_dir: PathBuf,
        /// Maximum bytes in the spool.
        spool_bytes: ByteSize,
        /// Retention of records; zero: for ever.
        retention: Duration as "duration",
        /// Retention of the sums of usage; zero: for ever.
        usage_retention: Duration as "duration",
        /// Part of the client's address that is recorded.
        client_address: ClientAddress,
        /// Copy of the newest signed chain head outside the database.
        #[serde(default)]
        anchor: Option<AuditAnchor>,
    }
}

/// Destination of the copy of the newest signed chain head: `log`, `file:PATH` or a URL.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum AuditAnchor {
    /// The log.
    Log,
    /// A file.
    File(PathBuf),
    /// A URL that gets a POST.
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
            let path = (!path.is_empty()).then(|| path.into());
            return path.map(Self::File).ok_or(FORMS);
        }
        let url = Url::parse(&text).map_err(|_| FORMS)?;
        let plain = !has_user(&url);
        match url.scheme() {
            "https" if plain => Ok(Self::Url(url)),
            "http" if plain && is_loopback(&url) => Ok(Self::Url(url)),
            _ => Err(FORMS),
        }
    }
}

words! {
    /// Part of a client's address in audit records and access lines.
    ClientAddress {
        /// The whole address.
        Full => "full",
        /// The network: 24 bits of an IPv4 address, 48 of an IPv6 address.
        Prefix => "prefix",
        /// Nothing.
        None => "none",
    }
}
