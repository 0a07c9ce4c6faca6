//! Validation of `Host` on the admin listener.

use std::net::IpAddr;

use http::uri::Authority;

use kernel::config::Config;

/// True if the admin listener accepts `host`.
///
/// It accepts every address: a page that rebinds DNS still sends the name of its own domain. A name
/// must be a loopback name, in `server.hosts`, or the host of `server.public_url` or `admin.sign_in.url`. A missing
/// `Host` is accepted: it is HTTP/1.0, used by some health checks and by no browser.
pub(super) fn is_own_host(host: Option<&[u8]>, config: &Config) -> bool {
    let Some(host) = host else {
        return true;
    };
    // An authority in a URL may contain userinfo, a Host may not.
    let authority = Authority::try_from(host).ok();
    let Some(authority) = authority.filter(|_| !host.contains(&b'@')) else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let same = |other: &str| other.eq_ignore_ascii_case(name);
    let loopback = {
        let lower = name.to_ascii_lowercase();
        lower == "localhost" || lower.ends_with(".localhost")
    };
    let server = &config.server;
    address.parse::<IpAddr>().is_ok()
        || loopback
        || server
            .hosts
            .iter()
            .filter_map(|own| own.parse::<Authority>().ok())
            .any(|own| same(own.host()))
        || [&server.public_url, &config.admin.sign_in.url]
            .into_iter()
            .filter_map(|url| url.as_ref()?.host_str())
            .any(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::config::load::{Layers, load};

    #[test]
    fn only_names_that_are_ours_are_answered() {
        let config = load(&Layers {
            overrides: vec![
                "server.hosts=gateway,inner.example:9090".to_owned(),
                "server.public_url=https://gw.example/".to_owned(),
                "admin.sign_in.url=https://operators.example/".to_owned(),
            ],
            ..Layers::default()
        })
        .unwrap()
        .config;
        let check = |host: &str, ours: bool| {
            assert_eq!(is_own_host(Some(host.as_bytes()), &config), ours, "{host}");
        };
        for host in [
            "localhost:9090",
            "a.localhost",
            "127.0.0.1:9090",
            "10.1.2.3:9090",
            "[::1]:9090",
            "gateway:9090",
            "INNER.example",
            "gw.example",
            "operators.example",
            "Operators.example:443",
        ] {
            check(host, true);
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "",
            "a b",
            "x@gateway",
        ] {
            check(host, false);
        }
        assert!(is_own_host(None, &config));
    }
}
