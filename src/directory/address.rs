//! Which addresses the gateway may connect to (contract §7.4): a pure judgement.
//!
//! Names are judged by their addresses, in [`super::resolver`], and the judged address is the one
//! dialled; URLs are read in [`super::endpoint`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::config;

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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn policy(allow: &[&str]) -> Policy {
        Policy {
            allow: allow.iter().map(|net| net.parse().unwrap()).collect(),
        }
    }

    /// What the shipped configuration allows.
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
}
