//! Address policy: decides which addresses the gateway may connect to, without I/O.
//!
//! The addresses of a name are resolved and checked in [`super::resolver`]; the address that was checked is the
//! one dialled. URLs are parsed in [`super::endpoint`]. Rules: `docs/design/security.md`, "Addresses that the
//! gateway connects to (SSRF)".

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use ipnet::IpNet;

use kernel::config::{AddressProfile, AgentPrefix, Config};

/// Ranges of addresses. The first that has an address decides; an address in none is never allowed.
const RANGES: [(Range, &str); 32] = [
    // No agent is there, and some of these addresses hand out credentials.
    (Range::Never, "0.0.0.0/8"),          // unspecified, "this network"
    (Range::Never, "100.100.100.200/32"), // Alibaba's metadata service
    (Range::Never, "168.63.129.16/32"),   // Azure's host agent: metadata behind a public address
    (Range::Never, "169.254.0.0/16"),     // link-local, metadata
    (Range::Never, "192.0.0.192/32"),     // Oracle's metadata service
    (Range::Never, "224.0.0.0/4"),        // multicast
    (Range::Never, "255.255.255.255/32"), // broadcast
    (Range::Reserved, "100.64.0.0/10"),   // carrier NAT
    (Range::Reserved, "192.0.0.0/24"),    // protocol assignments
    (Range::Reserved, "192.0.2.0/24"),    // documentation
    (Range::Reserved, "192.88.99.0/24"),  // 6to4 relays, withdrawn
    (Range::Reserved, "198.18.0.0/15"),   // benchmark
    (Range::Reserved, "198.51.100.0/24"), // documentation
    (Range::Reserved, "203.0.113.0/24"),  // documentation
    (Range::Reserved, "240.0.0.0/4"),     // reserved
    // Loopback and private: as `address.allow` lists them.
    (Range::Private, "127.0.0.0/8"),
    (Range::Private, "10.0.0.0/8"),
    (Range::Private, "172.16.0.0/12"),
    (Range::Private, "192.168.0.0/16"),
    (Range::Public, "0.0.0.0/0"),
    (Range::Never, "fd00:42::42/128"), // Scaleway's metadata service
    (Range::Never, "fd00:ec2::/32"),   // Amazon's instance services: metadata, credentials
    (Range::Never, "fd00:a9fe:a9fe::1/128"), // Akamai's metadata service
    (Range::Never, "fd20:ce::254/128"), // Google's metadata service
    (Range::Private, "::1/128"),
    (Range::Private, "fc00::/7"),
    (Range::Reserved, "2001:2::/48"),   // benchmark
    (Range::Reserved, "2001:10::/28"),  // ORCHID, withdrawn
    (Range::Reserved, "2001:20::/28"),  // ORCHIDv2: hashes, not routed
    (Range::Reserved, "2001:db8::/32"), // documentation
    (Range::Reserved, "3fff::/20"),     // documentation
    (Range::Public, "2000::/3"), // global unicast; every other one is local, multicast or reserved
];

static NETS: LazyLock<Vec<(Range, IpNet)>> = LazyLock::new(|| {
    let parse = |net: &str| {
        net.parse::<IpNet>()
            .expect("each range is written as a network")
    };
    RANGES.map(|(range, net)| (range, parse(net))).into()
});

/// Agents that may be at an address of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Range {
    /// All agents.
    Public,
    /// Agents at addresses that `address.allow` opens.
    Private,
    /// Agents that an operator trusts.
    Reserved,
    /// No agent.
    Never,
}

/// Policy for the addresses of agents.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Open loopback and private ranges. Empty in the `strict` profile.
    allow: Vec<IpNet>,
    /// Agents that may be at every address that the policy can open.
    trusted: Vec<AgentPrefix>,
}

impl Policy {
    /// Creates the policy of `[address]` and `trusted_agents`.
    pub fn new(config: &Config) -> Self {
        let allow = match config.address.profile {
            AddressProfile::Default => config.address.allow.clone(),
            AddressProfile::Strict => Vec::new(),
        };
        Self {
            allow,
            trusted: config.trusted_agents.clone(),
        }
    }

    /// True if an operator trusts the agent at a URL of these parts.
    pub fn trusts(&self, tls: bool, host: &str, path_and_query: &str) -> bool {
        let mut prefixes = self.trusted.iter();
        prefixes.any(|prefix| prefix.covers(tls, host, path_and_query))
    }

    /// Returns the range that forbids the gateway to connect to `address`; `None` if it is allowed. An IPv6
    /// address that embeds an IPv4 address (mapped, NAT64, 6to4, Teredo) is judged as that address.
    pub(super) fn closed_range(&self, address: IpAddr, trusted: bool) -> Option<Range> {
        let (meant, also) = canonical_addresses(address);
        let is_open = |address: IpAddr, range: Range| match range {
            Range::Public => true,
            Range::Private => trusted || self.allow.iter().any(|net| net.contains(&address)),
            Range::Reserved => trusted,
            Range::Never => false,
        };
        [Some(meant), also]
            .into_iter()
            .flatten()
            .map(|address| {
                let found = NETS.iter().find(|(_, net)| net.contains(&address));
                (address, found.map_or(Range::Never, |(range, _)| *range))
            })
            .find(|(address, range)| !is_open(*address, *range))
            .map(|(_, range)| range)
    }
}

/// True if an address is no public one.
pub(crate) fn is_private(address: IpAddr) -> bool {
    let address = canonical_address(address);
    let found = NETS.iter().find(|(_, net)| net.contains(&address));
    found.is_some_and(|(range, _)| *range != Range::Public)
}

/// Returns the canonical form of an address: the IPv4 address if it embeds one.
pub(super) fn canonical_address(address: IpAddr) -> IpAddr {
    match canonical_addresses(address) {
        (meant, None) => meant,
        (_, Some(_)) => address,
    }
}

/// Returns the address to judge: the address itself, or the IPv4 address inside. Teredo (RFC 4380, 4) embeds
/// two: the relay's, and the client's with its bits inverted.
fn canonical_addresses(address: IpAddr) -> (IpAddr, Option<IpAddr>) {
    let IpAddr::V6(six) = address else {
        return (address, None);
    };
    if let Some(mapped) = six.to_ipv4_mapped() {
        return (mapped.into(), None);
    }
    match six.segments() {
        // NAT64, 6to4.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            (embedded_v4(high, low), None)
        }
        // Teredo.
        [0x2001, 0, high, low, .., client_high, client_low] => {
            let client = embedded_v4(!client_high, !client_low);
            (embedded_v4(high, low), Some(client))
        }
        _ => (address, None),
    }
}

fn embedded_v4(high: u16, low: u16) -> IpAddr {
    Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)).into()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn policy(allow: &[&str]) -> Policy {
        Policy {
            allow: allow.iter().map(|net| net.parse().unwrap()).collect(),
            trusted: Vec::new(),
        }
    }

    /// A policy without private addresses, but with these trusted agents.
    pub(in super::super) fn trusting(prefixes: &[&str]) -> Policy {
        let prefixes = prefixes.iter().map(|text| AgentPrefix::parse(text));
        Policy {
            allow: Vec::new(),
            trusted: prefixes.collect::<Result<_, _>>().unwrap(),
        }
    }

    /// The policy of the shipped configuration.
    pub(in super::super) fn shipped() -> Policy {
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

    /// Addresses for trusted agents only.
    const RESERVED: [&str; 22] = [
        "100.64.0.1",
        "100.127.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.7",
        "203.0.113.7",
        "240.0.0.1",
        "255.255.255.254",
        "2001:2::1",
        "2001:10::1",
        "2001:2f::1",
        "2001:db8::1",
        "3fff::1",
        "::ffff:100.64.0.1",
        "64:ff9b::cb00:7107",
        "2002:c612:1::1",
        "2002:6440:1::1",
        "2001:0:c000:201::f7f7:f7f7",
        "2001:0:808:808::3fff:fdfe",
    ];
    const NEVER: [&str; 35] = [
        "0.0.0.0",
        "0.1.2.3",
        "100.100.100.200",
        "168.63.129.16",
        "169.254.169.254",
        "169.254.0.1",
        "192.0.0.192",
        "224.0.0.1",
        "239.255.255.255",
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
        "2002:6464:64c8::1",
        "2001:0:a9fe:a9fe::f7f7:f7f7",
        "2001:0:808:808::5601:5601",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd00:42::42",
        "fd00:a9fe:a9fe::1",
        "fd20:ce::254",
        "ff02::1",
        "ff0e::1",
        "100::1",
        "5f00::1",
    ];

    #[test]
    fn every_range_is_judged_as_the_contract_lists_it() {
        for (addresses, by_default, by_strict, trusted) in [
            (&PUBLIC[..], true, true, true),
            (&PRIVATE[..], true, false, true),
            (&RESERVED[..], false, false, true),
            (&NEVER[..], false, false, false),
        ] {
            for text in addresses {
                let address = text.parse().unwrap();
                assert_eq!(
                    shipped().closed_range(address, false).is_none(),
                    by_default,
                    "{text}"
                );
                let strict = policy(&[]);
                assert_eq!(
                    strict.closed_range(address, false).is_none(),
                    by_strict,
                    "{text} strict"
                );
                assert_eq!(
                    strict.closed_range(address, true).is_none(),
                    trusted,
                    "{text} trusted"
                );
            }
        }
    }

    #[test]
    fn no_allow_list_opens_what_is_always_refused() {
        let open = policy(&["0.0.0.0/0", "::/0"]);
        for text in RESERVED.iter().chain(&NEVER) {
            assert!(
                open.closed_range(text.parse().unwrap(), false).is_some(),
                "{text}"
            );
        }
    }

    #[test]
    fn the_strict_profile_ignores_the_allow_list() {
        let mut config: Config = toml::from_str(kernel::config::load::DEFAULT).unwrap();
        let loopback = "127.0.0.1".parse().unwrap();
        assert_eq!(Policy::new(&config).closed_range(loopback, false), None);
        config.address.profile = AddressProfile::Strict;
        assert_eq!(
            Policy::new(&config).closed_range(loopback, false),
            Some(Range::Private)
        );
    }
}
