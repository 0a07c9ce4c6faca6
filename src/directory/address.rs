//! Where the gateway may connect to (contract §7.4): a pure judgement of addresses and of URLs.
//!
//! A URL is read by one parser, once, into an [`Endpoint`], and the gateway connects to what that
//! parser saw: there is no second reading with other rules. Names are judged by their addresses,
//! in [`super::resolver`], and the judged address is the one dialled.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

use crate::config;
use crate::rejection::{Reason, Rejection};

/// Longest URL of an agent, in bytes.
const URL_BYTES_MAX: usize = 2048;

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(s: [u16; 8], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(
        Ipv6Addr::new(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]),
        prefix,
    )
}

/// No `address.allow` opens these: nothing there is an agent, and some of it hands out credentials.
const NEVER_V4: [Ipv4Net; 13] = [
    v4(0, 0, 0, 0, 8),          // unspecified, "this network"
    v4(100, 64, 0, 0, 10),      // carrier NAT; Alibaba's metadata service is in it
    v4(168, 63, 129, 16, 32),   // Azure's host agent: metadata behind a public address
    v4(169, 254, 0, 0, 16),     // link-local, metadata
    v4(192, 0, 0, 0, 24),       // protocol assignments; Oracle's metadata service is in it
    v4(192, 0, 2, 0, 24),       // documentation
    v4(192, 88, 99, 0, 24),     // 6to4 relays, withdrawn
    v4(198, 18, 0, 0, 15),      // benchmark
    v4(198, 51, 100, 0, 24),    // documentation
    v4(203, 0, 113, 0, 24),     // documentation
    v4(224, 0, 0, 0, 4),        // multicast
    v4(240, 0, 0, 0, 4),        // reserved
    v4(255, 255, 255, 255, 32), // broadcast
];

/// Loopback and private: only as `address.allow` lists them.
const GUARDED_V4: [Ipv4Net; 4] = [
    v4(127, 0, 0, 0, 8),
    v4(10, 0, 0, 0, 8),
    v4(172, 16, 0, 0, 12),
    v4(192, 168, 0, 0, 16),
];

/// Holes in what [`GLOBAL_V6`] and [`PRIVATE_V6`] would let through.
const NEVER_V6: [Ipv6Net; 7] = [
    v6([0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0], 32), // Amazon's instance services: metadata, credentials
    v6([0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254], 128), // Google's metadata service
    v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48),      // benchmark
    v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28),   // ORCHID, withdrawn
    v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28),   // ORCHIDv2: hashes, not routed
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),  // documentation
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),      // documentation
];

/// The only global unicast space there is; everything else is local, multicast or reserved.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
const PRIVATE_V6: Ipv6Net = v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7);
/// An address of IPv4 in the last 32 bits, reached through a translator.
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);
const TEREDO: Ipv6Net = v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32);

/// Which addresses an agent may have.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Loopback and private ranges that are open. Empty in the `strict` profile.
    allow: Vec<IpNet>,
}

impl Policy {
    /// The policy that `[address]` describes.
    pub fn new(settings: &config::Address) -> Self {
        let allow = match settings.profile {
            config::AddressProfile::Default => settings.allow.clone(),
            config::AddressProfile::Strict => Vec::new(),
        };
        Self { allow }
    }

    /// Whether the gateway may connect to `address`. An IPv6 address that stands for one of IPv4
    /// (mapped, NAT64, 6to4, Teredo) is judged as what it stands for.
    pub fn permits(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.permits_v4(address),
            IpAddr::V6(address) => self.permits_v6(address),
        }
    }

    fn permits_v4(&self, address: Ipv4Addr) -> bool {
        if NEVER_V4.iter().any(|net| net.contains(&address)) {
            return false;
        }
        let guarded = GUARDED_V4.iter().any(|net| net.contains(&address));
        !guarded || self.lists(address.into())
    }

    fn permits_v6(&self, address: Ipv6Addr) -> bool {
        let s = address.segments();
        if let Some(mapped) = address.to_ipv4_mapped() {
            return self.permits_v4(mapped);
        }
        if NAT64.contains(&address) {
            return self.permits_v4(embedded(s[6], s[7]));
        }
        if SIX_TO_FOUR.contains(&address) {
            return self.permits_v4(embedded(s[1], s[2]));
        }
        if TEREDO.contains(&address) {
            // The relay's address, and the client's with its bits inverted (RFC 4380, 4).
            return self.permits_v4(embedded(s[2], s[3]))
                && self.permits_v4(embedded(!s[6], !s[7]));
        }
        if NEVER_V6.iter().any(|net| net.contains(&address)) {
            return false;
        }
        if address.is_loopback() || PRIVATE_V6.contains(&address) {
            return self.lists(address.into());
        }
        GLOBAL_V6.contains(&address)
    }

    fn lists(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|net| net.contains(&address))
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))
}

/// What stands in the URL where the connection goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// An address, already judged.
    Literal(IpAddr),
    /// A name, judged by its addresses at each connect.
    Name(Arc<str>),
}

/// Where an agent listens: an `http(s)` URL that the policy lets through.
///
/// Only [`Endpoint::parse`] makes one. An address in the URL was judged there; the addresses of a
/// name are judged each time, by [`super::Directory::address`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// The `Host` field: name or address, and the port when it is not the scheme's own.
    pub host: String,
    /// The name that the certificate must have: the host without brackets and trailing dot.
    pub sni: String,
    /// What stands in the request line.
    pub path_and_query: String,
    /// The TCP port.
    pub port: u16,
    pub(super) target: Target,
}

impl Endpoint {
    /// Reads `text` and judges what can be judged without asking the DNS.
    ///
    /// # Errors
    /// `address_forbidden`, with a sentence that says which rule.
    pub fn parse(text: &str, policy: &Policy) -> Result<Self, Rejection> {
        if text.len() > URL_BYTES_MAX {
            return Err(forbidden("the agent's URL is longer than 2048 bytes"));
        }
        let url = Url::parse(text).map_err(|_| {
            forbidden("the agent's URL cannot be read: write http://host:port/path")
        })?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => {
                return Err(forbidden(
                    "the agent's URL must start with http:// or https://",
                ));
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(forbidden(
                "the agent's URL must not carry a user name or password",
            ));
        }
        if url.fragment().is_some() {
            return Err(forbidden("the agent's URL must not have a fragment"));
        }
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(forbidden("the agent's URL names no host"));
        };
        if port == 0 {
            return Err(forbidden(
                "port 0 of the agent's URL cannot be connected to",
            ));
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
            return Err(forbidden("the agent's URL names no host"));
        }
        if matches!(target, Target::Literal(address) if !policy.permits(address)) {
            return Err(refused_by_policy());
        }
        Ok(Self {
            tls,
            host: url[url::Position::BeforeHost..url::Position::AfterPort].to_owned(),
            sni,
            path_and_query: url[url::Position::BeforePath..url::Position::AfterQuery].to_owned(),
            port,
            target,
        })
    }
}

fn forbidden(message: &'static str) -> Rejection {
    Rejection::new(Reason::AddressForbidden, message)
}

/// The refusal of an address. It names no address: that would tell a caller what a name means inside.
pub(super) fn refused_by_policy() -> Rejection {
    forbidden(
        "the address policy refuses the agent's address: an operator can open loopback and private \
         ranges with address.allow",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str]) -> Policy {
        Policy {
            allow: allow.iter().map(|net| net.parse().unwrap()).collect(),
        }
    }

    fn shipped() -> Policy {
        policy(&[
            "127.0.0.0/8",
            "::1/128",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "fc00::/7",
        ])
    }

    const PUBLIC: [&str; 8] = [
        "8.8.8.8",
        "100.63.255.255",
        "172.32.0.1",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
        "2001:0:808:808::f7f7:f7f7",
    ];
    const PRIVATE: [&str; 10] = [
        "127.0.0.1",
        "127.255.255.255",
        "10.0.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "::1",
        "fd12::1",
        "::ffff:127.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::1",
    ];
    const NEVER: [&str; 44] = [
        "0.0.0.0",
        "0.1.2.3",
        "100.64.0.1",
        "100.127.255.255",
        "100.100.100.200",
        "168.63.129.16",
        "169.254.169.254",
        "169.254.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.7",
        "203.0.113.7",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::8.8.8.8",
        "::127.0.0.1",
        "::169.254.169.254",
        "::ffff:169.254.169.254",
        "::ffff:0:1.2.3.4",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "64:ff9b:1:a9fe:a9:fe00::",
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe::f7f7:f7f7",
        "2001:0:808:808::5601:5601",
        "2001:2::1",
        "2001:10::1",
        "2001:2f::1",
        "2001:db8::1",
        "3fff::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "ff02::1",
        "100::1",
    ];

    #[test]
    fn every_range_is_judged_as_the_contract_lists_it() {
        for (addresses, by_default, by_strict) in [
            (&PUBLIC[..], true, true),
            (&PRIVATE[..], true, false),
            (&NEVER[..], false, false),
        ] {
            for text in addresses {
                let address = text.parse().unwrap();
                assert_eq!(shipped().permits(address), by_default, "{text}");
                assert_eq!(policy(&[]).permits(address), by_strict, "{text} strict");
            }
        }
    }

    #[test]
    fn no_allow_list_opens_what_is_always_refused() {
        let open = policy(&["0.0.0.0/0", "::/0"]);
        for text in NEVER {
            assert!(!open.permits(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn the_strict_profile_ignores_the_allow_list() {
        let settings = config::Address {
            profile: config::AddressProfile::Strict,
            allow: vec!["127.0.0.0/8".parse().unwrap()],
        };
        assert!(!Policy::new(&settings).permits("127.0.0.1".parse().unwrap()));
    }

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
        let standard = Endpoint::parse("http://example.com:80/", &shipped()).unwrap();
        assert_eq!((standard.host.as_str(), standard.port), ("example.com", 80));
    }
}
