//! Client addresses as logs and audit records show them (`audit.client_address`).

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::ClientAddress;

/// Prefix lengths with `audit.client_address = "prefix"`.
const PREFIX_V4: u8 = 24;
const PREFIX_V6: u8 = 48;

/// An address or its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskedAddress {
    /// The whole address.
    Full(IpAddr),
    /// The network: `192.0.2.0/24`, `2001:db8::/48`.
    Network(IpNet),
}

impl MaskedAddress {
    /// Masks an address as the setting says, or returns `None` if it is not shown.
    pub fn mask(address: IpAddr, shown: ClientAddress) -> Option<Self> {
        let bits = if address.is_ipv4() {
            PREFIX_V4
        } else {
            PREFIX_V6
        };
        let network = || IpNet::new(address, bits).ok();
        match shown {
            ClientAddress::Full => Some(Self::Full(address)),
            ClientAddress::Prefix => network().map(|network| Self::Network(network.trunc())),
            ClientAddress::None => None,
        }
    }
}

impl fmt::Display for MaskedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(address) => address.fmt(f),
            Self::Network(network) => network.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_as_a_whole_by_its_network_or_not() {
        let shown = |address: &str, how| {
            let shown = MaskedAddress::mask(address.parse().unwrap(), how);
            shown.map(|shown| shown.to_string())
        };
        for (address, network) in [
            ("192.0.2.77", "192.0.2.0/24"),
            ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ] {
            assert_eq!(
                shown(address, ClientAddress::Full).as_deref(),
                Some(address)
            );
            assert_eq!(
                shown(address, ClientAddress::Prefix).as_deref(),
                Some(network)
            );
            assert_eq!(shown(address, ClientAddress::None), None);
        }
    }
}
