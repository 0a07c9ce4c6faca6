//! The gateway's own listeners, which are never an agent: a call to one would come from the gateway itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use super::endpoint::Endpoint;
use crate::config::Config;
use crate::rejection::{Reason, Rejection};

/// Discard port. No packet is sent, so any port will do.
const DISCARD: u16 = 9;

/// Addresses at which this process listens.
pub(super) struct OwnListeners {
    listeners: [SocketAddr; 2],
    /// Scheme (true: https) and host of the public URL.
    public: Option<(bool, String)>,
}

impl OwnListeners {
    pub(super) fn new(config: &Config) -> Self {
        let public = config.server.public_url.as_ref().map(|url| {
            let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
            (url.scheme() == "https", host.to_owned())
        });
        Self {
            listeners: [config.server.listen, config.admin.listen],
            public,
        }
    }

    /// Checks that `endpoint`, with `address` of its host, is not this process.
    ///
    /// # Errors
    /// `address_forbidden`.
    pub(super) fn check_endpoint(
        &self,
        endpoint: &Endpoint,
        address: IpAddr,
    ) -> Result<(), Rejection> {
        let address = address.to_canonical();
        let is_listener = |listener: &SocketAddr| {
            let ip = listener.ip().to_canonical();
            listener.port() == endpoint.port
                && (ip == address || (ip.is_unspecified() && is_of_this_machine(address)))
        };
        let is_public = self
            .public
            .as_ref()
            .is_some_and(|(tls, host)| (*tls, host) == (endpoint.tls, &endpoint.host));
        if !is_public && !self.listeners.iter().any(is_listener) {
            return Ok(());
        }
        let title = endpoint.title;
        let message = format!(
            "{title} is an address of this gateway: name the one at which the agent listens"
        );
        Err(Rejection::new(Reason::AddressForbidden, message))
    }
}

/// True if a connection to `address` stays on this machine: then the system uses that address as the source,
/// too. Reads the system's routes and sends no packet.
pub(super) fn is_of_this_machine(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(address) if address.is_loopback() => return true,
        IpAddr::V6(address) if address.is_loopback() => return true,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, DISCARD))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::super::policy::tests::shipped;
    use super::*;

    fn own(listen: &str, admin: &str, public: Option<&str>) -> OwnListeners {
        let mut config: Config = toml::from_str(crate::config::load::DEFAULT).unwrap();
        config.server.listen = listen.parse().unwrap();
        config.admin.listen = admin.parse().unwrap();
        config.server.public_url = public.map(|url| url.parse().unwrap());
        OwnListeners::new(&config)
    }

    fn refuses(own: &OwnListeners, url: &str, address: &str) -> bool {
        let endpoint = Endpoint::parse(url, &shipped()).unwrap();
        own.check_endpoint(&endpoint, address.parse().unwrap())
            .is_err()
    }

    #[test]
    fn a_listener_is_known_by_every_address_that_reaches_it() {
        let narrow = own("127.0.0.1:8080", "127.0.0.1:9090", None);
        assert!(refuses(&narrow, "http://127.0.0.1:8080/", "127.0.0.1"));
        assert!(refuses(&narrow, "http://a.test:9090/", "::ffff:127.0.0.1"));
        assert!(!refuses(&narrow, "http://127.0.0.1:8081/", "127.0.0.1"));
        assert!(!refuses(&narrow, "http://127.0.0.2:8080/", "127.0.0.2"));
        let wide = own("0.0.0.0:8080", "[::]:9090", Some("https://gw.example/x"));
        for (url, address) in [
            ("http://127.0.0.2:8080/", "127.0.0.2"),
            ("http://a.test:9090/", "::1"),
            ("http://a.test:9090/", "127.8.0.1"),
            ("https://gw.example/workspaces/a/a2a", "192.0.2.1"),
        ] {
            assert!(refuses(&wide, url, address), "{url}");
        }
        assert!(!refuses(&wide, "http://a.test:8080/", "8.8.8.8"));
        assert!(!refuses(&wide, "http://gw.example/", "192.0.2.1"));
    }
}
