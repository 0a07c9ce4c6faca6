//! The Redis client for `stores.shared`: the forms of the URL, and TLS.

use std::sync::Arc;

use redis::{Client, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion, TlsCertificates};

use crate::store::InvalidUrl;

/// Parses a `redis://` or `rediss://` URL. Uses RESP3, which push messages need.
pub(super) fn client(text: &str) -> Result<Client, InvalidUrl> {
    if !text.starts_with("redis://") && !text.starts_with("rediss://") {
        return Err(invalid("write `memory`, `redis://HOST` or `rediss://HOST`"));
    }
    let mut url = url::Url::parse(text).map_err(|error| {
        invalid(format!(
            "not a URL ({error}); percent-encode special characters in the password"
        ))
    })?;
    if url.fragment().is_some() {
        return Err(invalid(
            "certificates are always checked: instead of `#insecure` name the issuer, `?sslrootcert=FILE`",
        ));
    }
    let issuer = take_issuer(&mut url)?;
    let info = url
        .into_connection_info()
        .map_err(|error| invalid(format!("not a Redis URL: {error}")))?;
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3);
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
    build(info, text.starts_with("rediss://"), issuer)
        .map_err(|error| invalid(format!("not a Redis URL: {error}")))
}

fn build(
    info: ConnectionInfo,
    tls: bool,
    root_cert: Option<Vec<u8>>,
) -> redis::RedisResult<Client> {
    if !tls {
        return Client::open(info);
    }
    // rustls panics without a provider. Pingora installs the same one with the first listener, so
    // an error here means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client_tls = None;
    Client::build_with_tls(
        info,
        TlsCertificates {
            client_tls,
            root_cert,
        },
    )
}

/// Removes `sslrootcert=FILE` (PEM; the name is PostgreSQL's) from the URL and reads the file.
fn take_issuer(url: &mut url::Url) -> Result<Option<Vec<u8>>, InvalidUrl> {
    let (ours, rest): (Vec<_>, Vec<_>) = url
        .query_pairs()
        .into_owned()
        .partition(|(key, _)| key == "sslrootcert");
    url.set_query(None);
    if !rest.is_empty() {
        url.query_pairs_mut().extend_pairs(rest);
    }
    let Some((_, path)) = ours.into_iter().next() else {
        return Ok(None);
    };
    std::fs::read(&path).map(Some).map_err(|error| InvalidUrl {
        source: Some(Arc::new(error)),
        ..invalid(format!("`sslrootcert`: cannot read `{path}`"))
    })
}

fn invalid(problem: impl Into<String>) -> InvalidUrl {
    InvalidUrl {
        key: "stores.shared",
        problem: problem.into(),
        source: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked_and_never_repeated() {
        for good in [
            "redis://127.0.0.1",
            "redis://user:pass%40word@redis.internal:6380/3",
            "rediss://:secret@redis.internal",
        ] {
            assert!(client(good).is_ok(), "{good}");
        }
        for bad in [
            "rabbit://:secret@host",
            "redis://:secret@",
            "redis://:secret@host:port",
            "redis://:secret@host/db",
            "rediss://:secret@host#insecure",
            "rediss://:secret@host?sslrootcert=/does/not/exist",
        ] {
            let error = client(bad).err().map(|error| format!("{error} {error:?}"));
            assert!(error.is_some_and(|e| !e.contains("secret@")), "{bad}");
        }
    }
}
