//! Counts open connections per client address and bounds them (`server.connections_per_address`).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::Server;

/// Open connections by address. It never has more entries than there are open connections.
#[derive(Default)]
pub(in crate::proxy) struct Addresses(Mutex<HashMap<IpAddr, usize>>);

/// An address and the maximum of its open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct Limit {
    address: IpAddr,
    max: usize,
}

/// Error: the address already has its maximum of open connections.
#[derive(Debug)]
pub(in crate::proxy) struct TooMany;

/// A counted connection. Dropping it decrements the count.
pub(in crate::proxy) struct Counted<'a> {
    addresses: &'a Addresses,
    limit: Option<Limit>,
}

impl Addresses {
    /// Returns the limit of `peer`, with `max` connections (0: unlimited). `None` if its connections are not counted:
    /// the limit is off, `peer` is a trusted proxy that stands for many callers, or the gateway listens on loopback.
    pub(in crate::proxy) fn limit(
        server: &Server,
        peer: Option<IpAddr>,
        max: usize,
    ) -> Option<Limit> {
        let address = peer?.to_canonical();
        (max > 0 && !is_proxy(server, address) && !server.listen.ip().is_loopback()).then(|| {
            Limit {
                address: one_holder(address),
                max,
            }
        })
    }

    /// Counts one connection more.
    ///
    /// # Errors
    /// [`TooMany`]. The connection is then not counted.
    pub(in crate::proxy) fn enter(&self, limit: Option<Limit>) -> Result<Counted<'_>, TooMany> {
        if let Some(Limit { address, max }) = limit {
            let mut open = self.open();
            let count = open.entry(address).or_default();
            if *count >= max {
                return Err(TooMany);
            }
            *count += 1;
        }
        Ok(Counted {
            addresses: self,
            limit,
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let Some(Limit { address, .. }) = self.limit else {
            return;
        };
        let mut open = self.addresses.open();
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

/// True if `peer` is a trusted proxy, which stands for many callers.
pub(in crate::proxy) fn is_proxy(server: &Server, peer: IpAddr) -> bool {
    let address = peer.to_canonical();
    server.trusted_proxies.iter().any(|n| n.contains(&address))
}

/// Returns the address to count by. One holder of IPv6 addresses has a whole /64 network.
fn one_holder(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::load::DEFAULT;

    fn server(listen: &str, proxies: &[&str]) -> Server {
        let mut config: Config = toml::from_str(DEFAULT).unwrap();
        config.server.listen = listen.parse().unwrap();
        config.server.connections_per_address = 2;
        config.server.trusted_proxies = proxies.iter().map(|n| n.parse().unwrap()).collect();
        config.server
    }

    fn limit(server: &Server, peer: &str) -> Option<Limit> {
        let max = server.connections_per_address;
        Addresses::limit(server, Some(peer.parse().unwrap()), max)
    }

    #[test]
    fn each_holder_of_an_address_has_its_own_places() {
        let server = server("0.0.0.0:1", &["10.1.0.0/16"]);
        let addresses = Addresses::default();
        let enter = |peer| addresses.enter(limit(&server, peer));
        let one = enter("192.0.2.1").unwrap();
        let _two = enter("::ffff:192.0.2.1").unwrap();
        assert!(enter("192.0.2.1").is_err());
        let _other = enter("192.0.2.2").unwrap();
        drop(one);
        let _again = enter("192.0.2.1").unwrap();
        let _six = [enter("2001:db8::1").unwrap(), enter("2001:db8::2").unwrap()];
        assert!(enter("2001:db8:0:0:9::3").is_err(), "the same network");
        assert!(enter("2001:db8:0:1::1").is_ok());
        let _proxied: Vec<_> = (0..9).map(|_| enter("10.1.2.3").unwrap()).collect();
    }

    #[test]
    fn what_is_left_leaves_nothing() {
        let server = server("0.0.0.0:1", &[]);
        let addresses = Addresses::default();
        drop(addresses.enter(limit(&server, "192.0.2.1")).unwrap());
        assert!(addresses.open().is_empty());
    }

    #[test]
    fn callers_of_this_machine_are_not_counted_where_there_are_no_others() {
        assert_eq!(limit(&server("127.0.0.1:1", &[]), "127.0.0.1"), None);
        assert!(limit(&server("0.0.0.0:1", &[]), "127.0.0.1").is_some());
        let mut off = server("0.0.0.0:1", &[]);
        off.connections_per_address = 0;
        assert_eq!(limit(&off, "192.0.2.1"), None);
    }
}
