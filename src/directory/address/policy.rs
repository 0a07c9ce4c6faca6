//! Address policy: decides which addresses the gateway may connect to, without I/O.
//!
//! The addresses of a name are resolved and checked in [`super::resolver`]; the address that was checked is the
//! one dialled. URLs are parsed in [`super::endpoint`]. Rules: `docs/design/security.md`, "Addresses that the
//! gateway connects to (SSRF)".

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::config::{AddressProfile, AgentPrefix, Config};

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(s: [u16; 8], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(
        Ipv6Addr::new(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]),
        prefix,
    )
}

/// Always forbidden: no agent is there, and some of these addresses hand out credentials.
const NEVER_V4: [Ipv4Net; 7] = [
    v4(0, 0, 0, 0, 8),          // unspecified, "this network"
    v4(100, 100, 100, 200, 32), // Alibaba's metadata service
    v4(168, 63, 129, 16, 32),   // Azure's host agent: metadata behind a public address
    v4(169, 254, 0, 0, 16),     // link-local, metadata
    v4(192, 0, 0, 192, 32),     // Oracle's metadata service
    v4(224, 0, 0, 0, 4),        // multicast
    v4(255, 255, 255, 255, 32), // broadcast
];

/// Not opened by `address.allow`, but by `trusted_agents`.
const RESERVED_V4: [Ipv4Net; 8] = [
    v4(100, 64, 0, 0, 10),   // carrier NAT
    v4(192, 0, 0, 0, 24),    // protocol assignments
    v4(192, 0, 2, 0, 24),    // documentation
    v4(192, 88, 99, 0, 24),  // 6to4 relays, withdrawn
    v4(198, 18, 0, 0, 15),   // benchmark
    v4(198, 51, 100, 0, 24), // documentation
    v4(203, 0, 113, 0, 24),  // documentation
    v4(240, 0, 0, 0, 4),     // reserved
];

/// Loopback and private: as `address.allow` lists them.
const PRIVATE_V4: [Ipv4Net; 4] = [
    v4(127, 0, 0, 0, 8),
    v4(10, 0, 0, 0, 8),
    v4(172, 16, 0, 0, 12),
    v4(192, 168, 0, 0, 16),
];

/// Forbidden parts of [`PRIVATE_V6`].
const NEVER_V6: [Ipv6Net; 4] = [
    v6([0xfd00, 0x0042, 0, 0, 0, 0, 0, 0x42], 128), // Scaleway's metadata service
    v6([0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0], 32), // Amazon's instance services: metadata, credentials
    v6([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1], 128), // Akamai's metadata service
    v6([0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254], 128), // Google's metadata service
];

/// Reserved parts of [`GLOBAL_V6`].
const RESERVED_V6: [Ipv6Net; 5] = [
    v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48),     // benchmark
    v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28),  // ORCHID, withdrawn
    v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28),  // ORCHIDv2: hashes, not routed
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), // documentation
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),     // documentation
];

/// The global unicast space; every other address is local, multicast or reserved.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
const PRIVATE_V6: Ipv6Net = v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7);
/// Translator prefix with an IPv4 address in the last 32 bits.
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);
const TEREDO: Ipv6Net = v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32);

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
            .map(|address| (address, range_of(address)))
            .find(|(address, range)| !is_open(*address, *range))
            .map(|(_, range)| range)
    }
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
    let s = six.segments();
    if let Some(mapped) = six.to_ipv4_mapped() {
        return (mapped.into(), None);
    }
    if NAT64.contains(&six) {
        return (embedded_v4(s[6], s[7]).into(), None);
    }
    if SIX_TO_FOUR.contains(&six) {
        return (embedded_v4(s[1], s[2]).into(), None);
    }
    if TEREDO.contains(&six) {
        let client = embedded_v4(!s[6], !s[7]).into();
        return (embedded_v4(s[2], s[3]).into(), Some(client));
    }
    (address, None)
}

fn range_of(address: IpAddr) -> Range {
    match address {
        IpAddr::V4(address) => {
            let within = |nets: &[Ipv4Net]| nets.iter().any(|net| net.contains(&address));
            if within(&NEVER_V4) {
                Range::Never
            } else if within(&RESERVED_V4) {
                Range::Reserved
            } else if within(&PRIVATE_V4) {
                Range::Private
            } else {
                Range::Public
            }
        }
        IpAddr::V6(address) => {
            let within = |nets: &[Ipv6Net]| nets.iter().any(|net| net.contains(&address));
            if within(&NEVER_V6) {
                Range::Never
            } else if within(&RESERVED_V6) {
                Range::Reserved
            } else if address.is_loopback() || PRIVATE_V6.contains(&address) {
                Range::Private
            } else if GLOBAL_V6.contains(&address) {
                Range::Public
            } else {
                Range::Never
            }
        }
    }
}

fn embedded_v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))
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
        let mut config: Config = toml::from_str(crate::config::load::DEFAULT).unwrap();
        let loopback = "127.0.0.1".parse().unwrap();
        assert_eq!(Policy::new(&config).closed_range(loopback, false), None);
        config.address.profile = AddressProfile::Strict;
        assert_eq!(
            Policy::new(&config).closed_range(loopback, false),
            Some(Range::Private)
        );
    }
}
