//! `trusted_agents`: URL prefixes of agents that the operator trusts, and the match of a URL
//! against one.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use url::{Position, Url};

use super::value::has_user;

/// Percent-encoded separators. An agent may decode them, and the path is then not below the prefix.
const ENCODED_SEPARATORS: [&str; 2] = ["%2f", "%5c"];

/// A prefix of agents' URLs. Scheme, host and port must be equal, and the path covers paths below
/// it by whole segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPrefix {
    tls: bool,
    /// Host, and the port if it is not the scheme's default.
    host: String,
    /// Path without a trailing slash; empty covers every path.
    path: String,
}

impl AgentPrefix {
    /// Parses one entry.
    ///
    /// # Errors
    /// Returns a message that does not quote the text, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let loose = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '\\' | '*');
        let url = match Url::parse(text) {
            Ok(url) if text.contains("://") && !text.contains(loose) => url,
            _ => return Err(FORM),
        };
        if !matches!(url.scheme(), "http" | "https") {
            return Err("a prefix in it begins neither with http:// nor with https://");
        }
        if has_user(&url) {
            return Err("a prefix in it has a user name or a password");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("a prefix in it must end before `?` and `#`");
        }
        if !url.has_host() || url.port() == Some(0) {
            return Err(FORM);
        }
        Ok(Self {
            tls: url.scheme() == "https",
            host: url[Position::BeforeHost..Position::AfterPort].to_owned(),
            path: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// True if the prefix covers the URL of these parts, each as [`url::Url`] writes it: the host
    /// with its port unless that is the scheme's default, the path with the rest of the URL.
    pub fn covers(&self, tls: bool, host: &str, path_and_query: &str) -> bool {
        if self.tls != tls || self.host != host {
            return false;
        }
        if self.path.is_empty() {
            return true;
        }
        let path = path_and_query.split('?').next().unwrap_or_default();
        let lower = path.to_ascii_lowercase();
        let below = path.strip_prefix(&self.path);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            && !ENCODED_SEPARATORS.iter().any(|code| lower.contains(code))
    }
}

const FORM: &str = "is not a list of URL prefixes: write [\"http://10.0.3.7:8000\"], each with its scheme, its \
                    host and, unless it is the scheme's own, its port";

impl<'de> Deserialize<'de> for AgentPrefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer).map_err(|_| D::Error::custom(FORM))?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::{ConfigError, Layers, LoadedConfig, load};

    /// Returns true if `prefix` covers `url`, parsed as the directory parses it.
    fn covers(prefix: &str, url: &str) -> bool {
        let read = Url::parse(url).unwrap();
        AgentPrefix::parse(prefix).unwrap().covers(
            read.scheme() == "https",
            &read[Position::BeforeHost..Position::AfterPort],
            &read[Position::BeforePath..Position::AfterQuery],
        )
    }

    #[test]
    fn a_prefix_covers_what_is_below_it_and_nothing_that_only_begins_alike() {
        for (prefix, covered) in [
            ("http://10.0.0.5", "http://10.0.0.5/"),
            ("http://10.0.0.5", "http://10.0.0.5:80/a2a?x=1"),
            ("http://10.0.0.5/", "http://0x0a.5/a2a"),
            ("HTTP://Agent.Example:80/", "http://agent.example/"),
            (
                "https://agent.example:8443/a2a",
                "https://agent.example:8443/a2a",
            ),
            (
                "https://agent.example:8443/a2a",
                "https://agent.example:8443/a2a/v1",
            ),
            (
                "https://agent.example:8443/a2a/",
                "https://agent.example:8443/a2a?x=1",
            ),
            ("http://[::1]:8000", "http://[0::1]:8000/x"),
        ] {
            assert!(covers(prefix, covered), "{prefix} and {covered}");
        }
        for (prefix, other) in [
            ("http://10.0.0.5", "http://10.0.0.50/"),
            ("http://10.0.0.5", "http://10.0.0.5@evil.example/"),
            ("http://10.0.0.5", "http://10.0.0.5.evil.example/"),
            ("http://10.0.0.5", "http://10.0.0.5:8000/"),
            ("http://10.0.0.5", "https://10.0.0.5/"),
            ("http://10.0.0.5:8000", "http://10.0.0.5/"),
            ("http://10.0.0.5:800", "http://10.0.0.5:8000/"),
            ("http://agent.example", "http://agent.example./"),
            ("http://agent.example", "http://agent.example.evil.example/"),
            ("http://agent.example", "http://sub.agent.example/"),
            ("http://agent.example/a2a", "http://agent.example/a2ab"),
            ("http://agent.example/a2a", "http://agent.example/"),
            (
                "http://agent.example/a2a",
                "http://agent.example/a2a/../admin",
            ),
            (
                "http://agent.example/a2a",
                "http://agent.example/a2a/%2e%2e/admin",
            ),
            (
                "http://agent.example/a2a",
                "http://agent.example/a2a/..%2Fadmin",
            ),
            (
                "http://agent.example/a2a",
                "http://agent.example/a2a/..%5cadmin",
            ),
            ("http://agent.example/a2a", "http://agent.example/x?/a2a/"),
        ] {
            assert!(!covers(prefix, other), "{prefix} and {other}");
        }
    }

    #[test]
    fn what_is_no_prefix_is_refused_and_not_repeated() {
        for text in [
            "",
            "10.0.0.5",
            "agent.example:8000",
            "http:/10.0.0.5",
            "ftp://10.0.0.5",
            "file:///geheim",
            "http://",
            "http://u:geheim@10.0.0.5",
            "http://geheim@10.0.0.5",
            "http://10.0.0.5/?geheim",
            "http://10.0.0.5/#geheim",
            "http://10.0.0.5:0",
            "http://*.example",
            "http://10.0.0.5\\@evil",
            "http://10.0.0.5/ ",
        ] {
            let said = AgentPrefix::parse(text).unwrap_err();
            assert!(!said.contains("geheim"), "{text}: {said}");
        }
    }

    fn set(sets: &[&str]) -> Result<LoadedConfig, ConfigError> {
        load(&Layers {
            overrides: sets.iter().map(|set| (*set).to_owned()).collect(),
            ..Layers::default()
        })
    }

    fn file(text: &str) -> Result<LoadedConfig, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.toml");
        std::fs::write(&path, text).unwrap();
        load(&Layers {
            file: Some(path),
            ..Layers::default()
        })
    }

    #[test]
    fn prefixes_and_name_servers_are_read_from_every_layer() {
        let loaded = set(&[
            "trusted_agents=http://10.0.0.5:8000,https://agents.example/a",
            "address.nameservers=10.0.0.53,[::1]:5353",
        ]);
        let config = loaded.unwrap().config;
        assert!(config.trusted_agents[1].covers(true, "agents.example", "/a/b"));
        let servers = config.address.nameservers.iter();
        let servers: Vec<_> = servers.map(ToString::to_string).collect();
        assert_eq!(servers, ["10.0.0.53:53", "[::1]:5353"]);
        let written = "trusted_agents = [\"http://[::1]:8000\"]\n[address]\nprofile = \"strict\"\n";
        assert_eq!(file(written).unwrap().config.trusted_agents.len(), 1);
        for (refused, part) in [
            (
                file("[address]\ntrusted_agents = []\n"),
                "did you mean `trusted_agents`",
            ),
            (
                file("trusted_agents = \"http://u:geheim@h/\"\n"),
                "not a list of URL prefixes",
            ),
            (
                set(&["trusted_agents=10.0.0.5"]),
                "not a list of URL prefixes",
            ),
            (
                set(&["trusted_agents=http://u:geheim@10.0.0.5"]),
                "a user name or a password",
            ),
            (
                set(&["address.nameservers=dns.example"]),
                "is not the address of a DNS server",
            ),
        ] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains(part) && !text.contains("geheim"), "{text}");
        }
    }
}
