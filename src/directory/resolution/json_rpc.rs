//! JSON-RPC path in a registered card. It counts for an agent that is registered by its host alone, since many
//! agents take calls at a path below it.

use std::net::IpAddr;

use url::{Host, Url};

use crate::a2a::Generation;
use crate::a2a::card::{Binding, Card};
use crate::directory::address::Endpoint;

/// JSON-RPC interfaces of a registered card, relative to the registered URL.
#[derive(Clone, Debug, Default)]
pub struct JsonRpc {
    /// Paths on the registered server, for calls by generation.
    paths: Vec<(Generation, String)>,
    /// Mismatch between card and URL.
    mismatch: Option<&'static str>,
}

impl JsonRpc {
    /// Reads the interfaces of the agent at `endpoint`.
    pub(crate) fn from_card(card: Option<&str>, endpoint: &Endpoint) -> Self {
        let Some(card) = card.and_then(|card| Card::parse(card.as_bytes()).ok()) else {
            return Self::default();
        };
        // An unreadable URL is ignored.
        let interfaces = card.interfaces(Binding::JsonRpc);
        let interfaces: Vec<_> = interfaces.filter(|one| one.path().is_some()).collect();
        let is_here = |url: &str| is_same_server(url, endpoint);
        let mut paths = Vec::new();
        for interface in interfaces.iter().filter(|one| is_here(&one.url)) {
            paths.extend(interface.path().map(|path| (interface.generation, path)));
        }
        let has_path = endpoint.path_and_query != "/";
        let registered = endpoint.path_and_query.split('?').next().unwrap_or("/");
        let is_registered = |path: &str| {
            let path = path.split('?').next().unwrap_or_default();
            path.trim_end_matches('/') == registered.trim_end_matches('/')
        };
        let fits = interfaces
            .iter()
            .any(|one| one.path().is_some_and(|path| is_registered(&path)));
        let mismatch = match (has_path, paths.is_empty()) {
            _ if fits || interfaces.is_empty() => None,
            (false, false) => None,
            (false, true) => Some(
                "the card has JSON-RPC at another host or port and below a path, and the registered url has no path: \
                 calls go to the registered url; register the url at which the agent takes JSON-RPC",
            ),
            (true, _) => Some(
                "the card has JSON-RPC at another path than the registered url: calls go to the registered url",
            ),
        };
        let counts = !has_path && paths.iter().any(|(_, path)| path != "/");
        Self {
            paths: if counts { paths } else { Vec::new() },
            mismatch,
        }
    }

    /// Returns the path for a call of this generation, if it differs from the registered URL's.
    pub fn path(&self, generation: Generation) -> Option<&str> {
        let same = self.paths.iter().find(|(of, _)| *of == generation);
        let found = same.or_else(|| self.paths.first());
        found.map(|(_, path)| path.as_str())
    }

    /// Returns the path for a call of this method.
    pub fn path_of_method(&self, method: Option<&str>) -> Option<&str> {
        if self.paths.is_empty() {
            return None;
        }
        self.path(method.map_or_else(Generation::default, Generation::of_method))
    }

    /// Returns the mismatch between card and URL, as a sentence.
    pub fn mismatch(&self) -> Option<&'static str> {
        self.mismatch
    }
}

/// True if an interface is on the registered server. Agents on this machine may use any of its names in their
/// card.
fn is_same_server(url: &str, endpoint: &Endpoint) -> bool {
    let Ok(url) = Url::parse(url) else {
        return false;
    };
    let is_tls = url.scheme() == "https";
    let Some(host) = url.host() else {
        return false;
    };
    if is_tls != endpoint.tls || url.port_or_known_default() != Some(endpoint.port) {
        return false;
    }
    let written = match &host {
        Host::Domain(name) => name.trim_end_matches('.').to_owned(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    };
    written == endpoint.sni || (is_local(&written) && is_local(&endpoint.sni))
}

fn is_local(host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    host == "localhost" || address.is_some_and(|a| a.is_loopback() || a.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::address::Policy;

    /// The policy of the shipped configuration.
    fn shipped() -> Policy {
        Policy::new(&toml::from_str(crate::config::load::DEFAULT).unwrap())
    }

    fn of(url: &str, card_url: &str) -> JsonRpc {
        let endpoint = Endpoint::parse(url, &shipped()).unwrap();
        let card = format!(r#"{{"name":"a","protocolVersion":"0.3.0","url":"{card_url}"}}"#);
        JsonRpc::from_card(Some(&card), &endpoint)
    }

    #[test]
    fn the_card_says_the_path_where_the_url_has_none() {
        for (url, card_url, path, fits) in [
            (
                "http://a.test:9000",
                "http://a.test:9000/rpc",
                Some("/rpc"),
                true,
            ),
            (
                "http://127.0.0.1:9000/",
                "http://localhost:9000/rpc",
                Some("/rpc"),
                true,
            ),
            (
                "http://127.0.0.1:9000/",
                "http://0.0.0.0:9000/rpc/",
                Some("/rpc/"),
                true,
            ),
            (
                "http://a.test:9000/",
                "http://a.test:9000/rpc?code=KEY",
                Some("/rpc?code=KEY"),
                true,
            ),
            ("http://a.test:9000/", "http://a.test:9000/", None, true),
            ("http://a.test:9000/", "http://b.test/", None, true),
            ("http://a.test:9000/", "http://b.test:9000/rpc", None, false),
            ("http://a.test:9000/", "http://a.test:9001/rpc", None, false),
            (
                "http://a.test:9000/",
                "https://a.test:9000/rpc",
                None,
                false,
            ),
            (
                "http://a.test:9000/x",
                "http://a.test:9000/rpc",
                None,
                false,
            ),
            (
                "http://a.test:9000/rpc",
                "http://a.test:9000/rpc/",
                None,
                true,
            ),
            ("http://a.test:9000/", "no url", None, true),
        ] {
            let found = of(url, card_url);
            assert_eq!(found.path(Generation::V0), path, "{url} {card_url}");
            assert_eq!(found.mismatch().is_none(), fits, "{url} {card_url}");
        }
    }

    #[test]
    fn a_method_goes_to_the_interface_of_its_generation() {
        let card = r#"{"name":"a","protocolVersion":"0.3.0","url":"http://a.test/old","supportedInterfaces":[
            {"url":"http://a.test/new","protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}"#;
        let endpoint = Endpoint::parse("http://a.test", &shipped()).unwrap();
        let found = JsonRpc::from_card(Some(card), &endpoint);
        assert_eq!(found.path_of_method(Some("message/send")), Some("/old"));
        assert_eq!(found.path_of_method(Some("SendMessage")), Some("/new"));
    }
}
