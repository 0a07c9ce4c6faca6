//! Parses a URL to an [`Endpoint`], once: the gateway connects to the parsed host, and no second parser with
//! other rules is involved.

use std::net::IpAddr;
use std::sync::Arc;

use url::{Host, Url};

use super::policy::{Policy, Range};
use kernel::rejection::{Reason, Rejection};

/// Longest URL of an agent, in bytes.
const URL_BYTES_MAX: usize = 2048;

/// Host part of the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Address, checked when it was parsed and again for each connection.
    Literal(IpAddr),
    /// Name; its addresses are checked for each connection.
    Name(Arc<str>),
}

/// Location of an agent: an `http(s)` URL that the policy allows.
///
/// Constructed by [`Endpoint::parse`] only. An address in the URL is checked there, and again for each
/// connection by [`super::Addresses::agent_address`], like the addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// True if the scheme is `https`.
    pub tls: bool,
    /// `Host` field: name or address, with the port unless it is the scheme's default.
    pub host: String,
    /// Name that the certificate must have: the host without brackets and trailing dot.
    pub sni: String,
    /// Target of the request line.
    pub path_and_query: String,
    /// TCP port.
    pub port: u16,
    pub(super) target: Target,
    /// The one address of the name that is dialled; `None`: the first.
    pub(crate) only: Option<IpAddr>,
    /// Name of the URL in rejections.
    pub(super) title: &'static str,
}

impl Endpoint {
    /// Parses `text` and checks what can be checked without asking the DNS.
    ///
    /// # Errors
    /// `address_forbidden`, with a message that names the rule.
    pub fn parse(text: &str, policy: &Policy) -> Result<Self, Rejection> {
        Self::parse_as("the agent's URL", text, policy)
    }

    /// [`Endpoint::parse`] of a URL that refusals call `title`.
    ///
    /// # Errors
    /// `address_forbidden`, with a message that names the rule.
    pub(crate) fn parse_as(
        title: &'static str,
        text: &str,
        policy: &Policy,
    ) -> Result<Self, Rejection> {
        let forbidden = |rule| address_forbidden(format!("{title} {rule}"));
        let url = parse_url(text).map_err(forbidden)?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => {
                return Err(forbidden("must start with http:// or https://"));
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(forbidden("must not carry a user name or password"));
        }
        if url.fragment().is_some() {
            return Err(forbidden("must not have a fragment"));
        }
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(forbidden("names no host"));
        };
        if port == 0 {
            return Err(forbidden("names port 0, which cannot be connected to"));
        }
        let (target, sni) = match host {
            Host::Domain(name) => {
                let bare = name.strip_suffix('.').unwrap_or(name);
                (Target::Name(name.into()), bare.to_owned())
            }
            Host::Ipv4(address) => (Target::Literal(address.into()), address.to_string()),
            Host::Ipv6(address) => (Target::Literal(address.into()), address.to_string()),
        };
        if sni.is_empty() {
            return Err(forbidden("names no host"));
        }
        // Pingora would replace the underscore by a hyphen, in the request and in verification: the name of
        // another host.
        if tls
            && sni
                .split_once('.')
                .is_some_and(|(first, _)| first.contains('_'))
        {
            return Err(forbidden(
                "is https and has an underscore in the first part of its name, which no certificate can be verified for: give it another name",
            ));
        }
        let endpoint = Self {
            tls,
            host: url[url::Position::BeforeHost..url::Position::AfterPort].to_owned(),
            sni,
            path_and_query: url[url::Position::BeforePath..url::Position::AfterQuery].to_owned(),
            port,
            target,
            only: None,
            title,
        };
        match endpoint.target {
            Target::Literal(address) => endpoint.check_address(address, policy).map(|()| endpoint),
            Target::Name(_) => Ok(endpoint),
        }
    }

    /// Checks that `policy` lets the gateway reach the agent of this URL at `address`.
    ///
    /// # Errors
    /// `address_forbidden`. The message does not contain an address, since that would disclose internal
    /// addresses of names. For an address in the URL it names the setting that would allow it.
    pub(super) fn check_address(&self, address: IpAddr, policy: &Policy) -> Result<(), Rejection> {
        let trusted = policy.trusts(self.tls, &self.host, &self.path_and_query);
        let Some(closed) = policy.closed_range(address, trusted) else {
            return Ok(());
        };
        let advice = match (&self.target, closed) {
            (Target::Literal(_), Range::Never) => {
                "no setting opens link-local, metadata, multicast and unspecified addresses"
            }
            (Target::Literal(_), Range::Reserved) => {
                "an operator can name it in trusted_agents; address.allow opens no reserved ranges"
            }
            (Target::Literal(_), _) => {
                "an operator can open loopback and private ranges with address.allow (but under \
                 address.profile \"strict\"), or name it in trusted_agents"
            }
            (Target::Name(_), _) => {
                "an operator can open loopback and private ranges with address.allow (but under \
                 address.profile \"strict\"), or name it in trusted_agents; no setting opens link-local \
                 and metadata addresses"
            }
        };
        let title = self.title;
        let refusal = format!("the address policy refuses the address of {title}: {advice}");
        Err(address_forbidden(refusal).with_cause(RefusedAddress(address)))
    }

    /// Returns another path on the same server. A path may be trusted where another is not, so its address is
    /// checked for this path.
    #[must_use]
    pub fn with_path(&self, path_and_query: String) -> Self {
        Self {
            path_and_query,
            ..self.clone()
        }
    }

    /// True if `other` has the same scheme, host and port.
    pub(crate) fn has_host_of(&self, other: &Self) -> bool {
        (self.tls, &self.host) == (other.tls, &other.host)
    }

    /// Returns the normalized URL, which is stored and handed out.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.host, self.path_and_query)
    }
}

/// Parses `text` as a URL, strictly: a text that parsers read differently is rejected. The error is a sentence
/// without its subject.
pub(super) fn parse_url(text: &str) -> Result<Url, &'static str> {
    if text.len() > URL_BYTES_MAX {
        return Err(TOO_LONG);
    }
    let loose = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    if text.contains(loose) {
        return Err(
            "has a control character, a space or a backslash in it: write http://host:port/path",
        );
    }
    if !text.contains("://") {
        return Err("has no scheme: write http://host:port/path");
    }
    let url =
        Url::parse(text).map_err(|_| "cannot be read as a URL: write http://host:port/path")?;
    // Escapes make the URL longer.
    if url.as_str().len() > URL_BYTES_MAX {
        return Err(TOO_LONG);
    }
    Ok(url)
}

const TOO_LONG: &str = "is longer than 2048 bytes";

fn address_forbidden(message: String) -> Rejection {
    Rejection::new(Reason::AddressForbidden, message)
}

/// Cause for the operator's log.
#[derive(Debug, thiserror::Error)]
#[error("{0} is refused by the address policy")]
struct RefusedAddress(IpAddr);

#[cfg(test)]
mod tests {
    use super::super::policy::tests::{policy, shipped, trusting};
    use super::*;

    #[test]
    fn every_spelling_of_an_address_is_the_address() {
        for text in [
            "http://2852039166/",
            "http://0xa9fea9fe/",
            "http://0251.0376.0251.0376/",
            "http://169.254.43518/",
            "http://169.254.169.254./",
            "http://[::ffff:a9fe:a9fe]/",
            "http://①⑥⑨.254.169.254/",
            "http:169.254.169.254",
            "http:\\\\169.254.169.254\\",
        ] {
            let refusal = Endpoint::parse(text, &shipped()).unwrap_err();
            assert_eq!(refusal.reason, Reason::AddressForbidden, "{text}");
        }
        let loopback = Endpoint::parse("http://0x7f.1:9001/a", &shipped()).unwrap();
        assert_eq!(loopback.host, "127.0.0.1:9001");
    }

    /// Every range that is refused always, in every notation that a URL parser reads.
    #[test]
    fn no_notation_hides_a_refused_address() {
        let v4 = [
            "0.0.0.0",
            "100.64.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "169.254.169.254",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
        ];
        for dotted in v4 {
            let [a, b, c, d] = dotted.parse::<std::net::Ipv4Addr>().unwrap().octets();
            let whole = u32::from_be_bytes([a, b, c, d]);
            let (high, low) = (whole >> 16, whole & 0xffff);
            let hosts = [
                dotted.to_owned(),
                format!("{dotted}."),
                format!("{whole}"),
                format!("{whole:#x}"),
                format!("{whole:#X}").replace("0X", "0x"),
                format!("0{whole:o}"),
                format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
                format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
                format!("{a}.{}", whole & 0x00ff_ffff),
                format!("{a}.{b}.{low}"),
                format!("{a:#x}.0{b:o}.{c}.{d:#x}"),
                dotted.replace('.', "。"),
                dotted.replace('0', "０").replace('1', "１"),
                dotted.replace('.', "%2e"),
                format!("[::ffff:{dotted}]"),
                format!("[::FFFF:{high:x}:{low:x}]"),
                format!("[0:0:0:0:0:ffff:{high:04x}:{low:04x}]"),
                format!("[::{dotted}]"),
                format!("[64:ff9b::{dotted}]"),
                format!("[64:ff9b::{high:x}:{low:x}]"),
                format!("[64:ff9b:1::{dotted}]"),
                format!("[2002:{high:x}:{low:x}::1]"),
                format!("[2001:0:{high:x}:{low:x}::f7f7:f7f7]"),
                format!("[2001:0:808:808::{:x}:{:x}]", high ^ 0xffff, low ^ 0xffff),
            ];
            for host in hosts {
                for (before, after) in [
                    ("http://", "/"),
                    ("https://", ":8443/a2a?x=1"),
                    ("HTTP://", ":80"),
                    ("http://user:pw@", "/"),
                    ("http://example.com@", ":8000/"),
                ] {
                    let text = format!("{before}{host}{after}");
                    let wide = policy(&["0.0.0.0/0", "::/0"]);
                    let refusal = Endpoint::parse(&text, &wide).map(|e| e.url()).unwrap_err();
                    assert_eq!(refusal.reason, Reason::AddressForbidden, "{text}");
                }
            }
        }
    }

    #[test]
    fn a_trusted_agent_may_be_anywhere_but_at_metadata() {
        let policy = trusting(&[
            "http://10.0.0.5:8000",
            "http://198.18.0.7",
            "http://169.254.169.254",
            "http://[::1]:9000/a2a",
        ]);
        for text in [
            "http://10.0.0.5:8000/a2a",
            "http://0xa.5:8000",
            "http://198.18.0.7:80/",
            "http://[0::1]:9000/a2a/x",
        ] {
            assert!(Endpoint::parse(text, &policy).is_ok(), "{text}");
        }
        for text in [
            "http://10.0.0.5/",
            "http://10.0.0.50:8000/",
            "https://10.0.0.5:8000/",
            "http://10.0.0.5:8000@127.0.0.1/",
            "http://198.18.0.70/",
            "http://169.254.169.254/",
            "http://169.254.169.254/latest/meta-data",
            "http://[::1]:9000/",
            "http://[::1]:9000/a2ab",
        ] {
            assert!(Endpoint::parse(text, &policy).is_err(), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_which_url_and_advises_only_what_can_help() {
        let message = |text: &str| {
            let refusal = Endpoint::parse_as("card_url", text, &policy(&[])).unwrap_err();
            refusal.message.into_owned()
        };
        for (text, helps, in_vain) in [
            ("http://169.254.169.254/", "no setting", "address.allow"),
            ("http://[fe80::1]/", "no setting", "trusted_agents"),
            (
                "http://198.18.0.7/",
                "name it in trusted_agents",
                "open loopback",
            ),
            ("http://10.0.0.1/", "with address.allow", "no setting"),
            (
                "http://[2002:a00:1::1]/",
                "with address.allow",
                "no setting",
            ),
            ("ftp://example.com/", "must start with http", "address"),
            ("example.com", "has no scheme", "address"),
        ] {
            let message = message(text);
            assert!(message.contains("card_url"), "{message}");
            assert!(message.contains(helps), "{message}");
            assert!(!message.contains(in_vain), "{message}");
        }
    }

    #[test]
    fn only_plain_http_urls_are_endpoints() {
        for text in [
            "",
            "agent:8000",
            "file:///etc/passwd",
            "ftp://example.com/",
            "http://",
            "http://:8080/a2a",
            "http://user@example.com/",
            "http://:secret@example.com/",
            "http://example.com/#part",
            "http://example.com:0/",
            "http://./",
            "unix:/run/agent.sock",
            "mailto:a@example.com",
            &format!("http://example.com/{}", "x".repeat(2048)),
        ] {
            assert!(Endpoint::parse(text, &shipped()).is_err(), "{text}");
        }
    }

    #[test]
    fn what_others_could_read_otherwise_is_no_url() {
        for text in [
            "127.0.0.1:8001",
            "localhost:8001",
            "http:/127.0.0.1/",
            "http://127.0.0.1:1\\@example.com/",
            " http://127.0.0.1/",
            "http://127.0.0.1/ ",
            "http://127.0.0.1/a b",
            "http://127.0.0.1/\t",
            "http://127.0.0.1/a\r\nHost: b",
            "http://127.0.0.1/\0",
            "http://127.0.0.1/\u{7f}",
            "http://127.0.0.1/\u{a0}",
            &format!("http://127.0.0.1/{}", "ü".repeat(1000)),
        ] {
            assert!(parse_url(text).is_err(), "{text:?}");
        }
        for (text, kept) in [
            ("HTTP://0x7f.1:80", "http://127.0.0.1/"),
            (
                "http://127.0.0.1:9001/a/../b?x=ü",
                "http://127.0.0.1:9001/b?x=%C3%BC",
            ),
            ("http://[0:0::1]:81/?", "http://[::1]:81/?"),
        ] {
            assert_eq!(Endpoint::parse(text, &shipped()).unwrap().url(), kept);
            assert_eq!(Endpoint::parse(kept, &shipped()).unwrap().url(), kept);
        }
    }

    #[test]
    fn an_endpoint_says_what_the_connection_and_the_request_need() {
        let named = Endpoint::parse("https://Agent.Example.com./a2a/v1?x=1", &shipped()).unwrap();
        assert!(named.tls);
        assert_eq!(named.port, 443);
        assert_eq!(named.host, "agent.example.com.");
        assert_eq!(named.sni, "agent.example.com");
        assert_eq!(named.path_and_query, "/a2a/v1?x=1");
        let literal = Endpoint::parse("http://[::1]:8000", &shipped()).unwrap();
        assert_eq!(literal.host, "[::1]:8000");
        assert_eq!(literal.sni, "::1");
        assert_eq!(literal.path_and_query, "/");
        // With TLS a name is verified, and this one cannot be.
        for (url, fits) in [
            ("https://my_agent.corp.example/", false),
            ("https://my_agent.corp.example.:8443/", false),
            ("http://my_agent.corp.example/", true),
            ("https://my-agent.corp.example/", true),
            ("https://agent.my_corp.example/", true),
        ] {
            assert_eq!(Endpoint::parse(url, &shipped()).is_ok(), fits, "{url}");
        }
        let standard = Endpoint::parse("http://example.com:80/", &shipped()).unwrap();
        assert_eq!((standard.host.as_str(), standard.port), ("example.com", 80));
    }
}
