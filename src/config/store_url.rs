//! Forms of store URLs, looked at together with all other values: nothing is opened or made, and
//! nothing of a value is repeated, since it may hold a password. What only a driver can tell is left
//! to the rooms that open the stores.

use redis::IntoConnectionInfo as _;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use url::Url;

/// `stores.sql`.
///
/// # Errors
/// What is wrong, and what to write instead.
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

/// `stores.shared`.
///
/// # Errors
/// What is wrong, and what to write instead.
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
    Url::parse(text).map_err(|error| {
        format!("is not a URL ({error}); percent-encode special characters in the password")
    })
}
