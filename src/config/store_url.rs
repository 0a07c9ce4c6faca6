//! Validates the syntax of store URLs without opening a store. Messages never quote a value, since
//! it may hold a password. Errors that only a driver can detect are reported when the stores are
//! opened.

use redis::IntoConnectionInfo as _;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use url::Url;

/// Validates `stores.sql`.
///
/// # Errors
/// Returns the problem, and the form to write instead.
pub(super) fn sql(text: &str) -> Result<(), String> {
    if let Some(rest) = text.strip_prefix("sqlite:") {
        let path = rest.strip_prefix("//").unwrap_or(rest);
        if path.is_empty() || path == ":memory:" || path.contains('?') {
            return Err(
                "SQLite needs the path of a file and takes no parameters: write \
                        \"sqlite:data/gateway.db\""
                    .to_owned(),
            );
        }
        return Ok(());
    }
    if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
        return Err(
            "must be \"sqlite:PATH\" or \"postgres://user:password@host/database\"".to_owned(),
        );
    }
    let url = parsed(text)?;
    PgConnectOptions::from_url(&url)
        .map(drop)
        .map_err(|_| "a parameter of the PostgreSQL URL is not understood".to_owned())
}

/// Validates `stores.shared`.
///
/// # Errors
/// Returns the problem, and the form to write instead.
pub(super) fn shared(text: &str) -> Result<(), String> {
    if text == "memory" {
        return Ok(());
    }
    if !text.starts_with("redis://") && !text.starts_with("rediss://") {
        return Err(
            "must be \"memory\", \"redis://host:6379/0\" or \"rediss://host:6379/0\"".to_owned(),
        );
    }
    let mut url = parsed(text)?;
    if url.fragment().is_some() {
        return Err(
            "must have nothing behind `#`: certificates are always checked; `?sslrootcert=FILE` \
             names their issuer"
                .to_owned(),
        );
    }
    url.set_query(None);
    url.into_connection_info()
        .map(drop)
        .map_err(|_| "is not a Redis URL: write \"redis://user:password@host:6379/0\"".to_owned())
}

fn parsed(text: &str) -> Result<Url, String> {
    if names_several_hosts(text) {
        return Err(ONE_HOST.to_owned());
    }
    Url::parse(text).map_err(|error| {
        format!("is not a URL ({error}); percent-encode special characters in the password")
    })
}

/// True if the host of a URL is a list, which URL parsers report as an invalid port.
fn names_several_hosts(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    hosts.contains(',')
}

const ONE_HOST: &str = "it names several hosts; write one: a name or an address that follows the primary \
                        (docs/guide/connect-the-stores.md)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_hosts_are_seen_and_commas_elsewhere_are_not() {
        for several in [
            "postgres://u:p@a,b/db",
            "postgres://u:p@a:5432,b:5433/db?x=y",
            "redis://a:1,b:2",
        ] {
            assert!(names_several_hosts(several), "{several}");
        }
        for one in [
            "postgres://u:p,q@a/db,c?d=e,f",
            "redis://:a,b@c:1/0",
            "memory",
        ] {
            assert!(!names_several_hosts(one), "{one}");
        }
    }
}
