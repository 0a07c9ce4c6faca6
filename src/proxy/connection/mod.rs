//! The application of a listener. It bounds the open connections, in total and per client address
//! (`server.connections_per_address`), and terminates TLS;
//! the certificate may change while the listener is open.

mod caller;
pub(in crate::proxy) mod chunks;
pub(in crate::proxy) mod head;
pub(in crate::proxy) mod http1;
pub(in crate::proxy) mod http2;
pub(in crate::proxy) mod listener;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pingora::listeners::tls::Acceptor;
use pingora::protocols::l4::stream::Stream as L4Stream;
use pingora::protocols::{ALPN, GetSocketDigest as _, Peek as _, SocketDigest, Stream};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use self::listener::Listener;
use crate::config::{Derived, Server};
use crate::dialect::Dialect;
use crate::ids::RequestId;
use crate::metrics::ConnectionCut;
use crate::proxy::load::Slot;
use crate::proxy::respond::reject::format_rejection;
use crate::rejection::{Reason, Rejection};

/// Maximum time for sending the reason to a rejected connection.
const FAREWELL: Duration = Duration::from_secs(1);

/// Maximum rejected connections that are being answered at once; further ones are only closed.
const FAREWELLS_MAX: usize = 256;

/// The application of a listener, bounded by `server.max_connections`.
pub struct Connections {
    listener: Arc<Listener>,
    open: AtomicUsize,
    refused: AtomicUsize,
    addresses: AddressCounts,
    tls: Derived<Option<Arc<Acceptor>>>,
}

impl Connections {
    /// Creates the application of `listener`.
    pub fn new(listener: Listener) -> Self {
        Self {
            open: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            addresses: AddressCounts::default(),
            tls: Derived::new(&listener.relay.config, |config, _| {
                let serving = config.server.tls.serving.as_ref()?;
                Some(Arc::new(Acceptor::from_server_config(serving.config())))
            }),
            listener: Arc::new(listener),
        }
    }

    /// Serves a connection that was accepted from `peer`, to its end, on this thread. `guard` is dropped at the end.
    pub fn spawn_connection(
        self: &Arc<Self>,
        socket: TcpStream,
        peer: SocketAddr,
        guard: impl Send + 'static,
    ) {
        // It fails on a connection that is closed already, which the first read finds out.
        let _ = socket.set_nodelay(true);
        let mut stream = L4Stream::from(socket);
        let digest = SocketDigest::from_raw_fd(stream.as_raw_fd());
        let _ = digest.peer_addr.set(Some(peer.into()));
        stream.set_socket_digest(digest);
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let _guard = guard;
            this.serve_connection(Box::new(stream)).await;
        });
    }

    fn count_cut(&self, why: ConnectionCut) {
        self.listener.relay.metrics.count_connection_cut(why);
    }

    /// Terminates TLS, if it is configured. `None` if the handshake failed or did not end in time.
    async fn accept_tls(&self, stream: Stream, deadline: Instant) -> Option<Stream> {
        match (*self.tls.get()).clone() {
            None => Some(stream),
            // Boxed, here and below: an established connection should not hold the state of its handshake.
            Some(acceptor) => Box::pin(self.handshake_tls(acceptor, stream, deadline)).await,
        }
    }

    async fn handshake_tls(
        &self,
        acceptor: Arc<Acceptor>,
        stream: Stream,
        deadline: Instant,
    ) -> Option<Stream> {
        let peer = stream.get_socket_digest();
        let peer = peer.and_then(|digest| digest.peer_addr().map(ToString::to_string));
        // The listener is plain TCP, so every connection begins here.
        let mut stream = stream.into_any().downcast::<L4Stream>().ok()?;
        let mut first = [0];
        let begun = timeout_at(deadline, stream.try_peek(&mut first)).await;
        if matches!(begun, Ok(Ok(_))) && first[0].is_ascii_uppercase() {
            self.count_cut(ConnectionCut::Handshake);
            self.answer_plain_http(*stream).await;
            return None;
        }
        let why = match timeout_at(deadline, acceptor.tls_handshake(*stream)).await {
            Ok(Ok(stream)) => return Some(Box::new(stream)),
            Ok(Err(error)) => error.to_string(),
            Err(late) => late.to_string(),
        };
        // Debug only: any client could otherwise fill the log.
        tracing::debug!(peer, error = why, "TLS handshake failed");
        self.count_cut(ConnectionCut::Handshake);
        None
    }

    /// Answers a plain HTTP request on a TLS port with a hint, unencrypted.
    async fn answer_plain_http(&self, stream: L4Stream) {
        let Some(_farewell) = Slot::take(&self.refused, FAREWELLS_MAX) else {
            return;
        };
        let message = "this port speaks TLS (server.tls.cert); write https:// instead of http://";
        let rejection = Rejection::new(Reason::InvalidRequest, message);
        let answer = format_rejection(
            &rejection,
            &RequestId::random(),
            &Dialect::Plain.into(),
            false,
        );
        http1::lingering_close(&mut (Box::new(stream) as Stream), &answer, FAREWELL).await;
    }

    /// Sends a 503 before closing, unless too many rejected connections are already being answered.
    async fn refuse_connection(&self, stream: Stream, why: ConnectionCut, message: &'static str) {
        self.count_cut(why);
        let Some(_farewell) = Slot::take(&self.refused, FAREWELLS_MAX) else {
            return;
        };
        let Some(mut stream) = self.accept_tls(stream, Instant::now() + FAREWELL).await else {
            return;
        };
        // HTTP/2 callers cannot read this. They see a closed connection and should retry as well.
        let rejection =
            Rejection::new(Reason::Overloaded, message).with_retry_after(Duration::from_secs(1));
        let answer = format_rejection(
            &rejection,
            &RequestId::random(),
            &Dialect::Plain.into(),
            false,
        );
        http1::lingering_close(&mut stream, &answer, FAREWELL).await;
    }

    /// Records that connections are accepted.
    pub fn mark_open(&self) {
        self.listener.relay.drain.open();
    }

    /// Serves one connection to its end, if there is a slot for it.
    async fn serve_connection(&self, stream: Stream) {
        let (deadline, max, each, proxied) = {
            let config = self.listener.relay.config.get();
            let peer = peer_address(&stream);
            let each = config.server.connections_per_address;
            let each = AddressCounts::limit_for(&config.server, peer, each);
            let proxied = peer.is_some_and(|peer| is_proxy(&config.server, peer));
            let deadline = Instant::now() + config.timeouts.request_head;
            (deadline, config.server.max_connections, each, proxied)
        };
        let Some(_slot) = Slot::take(&self.open, max) else {
            let message = "as many connections as may be are open (server.max_connections)";
            return Box::pin(self.refuse_connection(stream, ConnectionCut::Full, message)).await;
        };
        let _connected = self.listener.relay.drain.count_connection();
        let Ok(_of_address) = self.addresses.count_connection(each) else {
            let message = "too many connections from one address (server.connections_per_address)";
            return Box::pin(self.refuse_connection(stream, ConnectionCut::Address, message)).await;
        };
        let Some(stream) = self.accept_tls(stream, deadline).await else {
            return;
        };
        if matches!(stream.selected_alpn_proto(), Some(ALPN::H2)) {
            Box::pin(http2::serve(&self.listener, stream, deadline, proxied)).await;
        } else {
            http1::serve(&self.listener, stream, deadline).await;
        }
    }
}

/// Returns the address of the peer.
pub(super) fn peer_address(stream: &Stream) -> Option<IpAddr> {
    let digest = stream.get_socket_digest()?;
    digest.peer_addr()?.as_inet().map(SocketAddr::ip)
}

/// Open connections by address. It never has more entries than there are open connections.
#[derive(Default)]
struct AddressCounts(Mutex<HashMap<IpAddr, usize>>);

/// An address and the maximum of its open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AddressLimit {
    address: IpAddr,
    max: usize,
}

/// Error: the address already has its maximum of open connections.
#[derive(Debug)]
struct TooManyConnections;

/// A counted connection. Dropping it decrements the count.
struct AddressGuard<'a> {
    addresses: &'a AddressCounts,
    limit: Option<AddressLimit>,
}

impl AddressCounts {
    /// Returns the limit of `peer`, with `max` connections (0: unlimited). `None` if its connections are not counted:
    /// the limit is off, `peer` is a trusted proxy that stands for many callers, or the gateway listens on loopback.
    fn limit_for(server: &Server, peer: Option<IpAddr>, max: usize) -> Option<AddressLimit> {
        let address = peer?.to_canonical();
        (max > 0 && !is_proxy(server, address) && !server.listen.ip().is_loopback()).then(|| {
            AddressLimit {
                address: one_holder(address),
                max,
            }
        })
    }

    /// Counts one connection more.
    ///
    /// # Errors
    /// [`TooManyConnections`]. The connection is then not counted.
    fn count_connection(
        &self,
        limit: Option<AddressLimit>,
    ) -> Result<AddressGuard<'_>, TooManyConnections> {
        if let Some(AddressLimit { address, max }) = limit {
            let mut open = self.lock_counts();
            let count = open.entry(address).or_default();
            if *count >= max {
                return Err(TooManyConnections);
            }
            *count += 1;
        }
        Ok(AddressGuard {
            addresses: self,
            limit,
        })
    }

    fn lock_counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressGuard<'_> {
    fn drop(&mut self) {
        let Some(AddressLimit { address, .. }) = self.limit else {
            return;
        };
        let mut open = self.addresses.lock_counts();
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

/// True if `peer` is a trusted proxy, which stands for many callers.
fn is_proxy(server: &Server, peer: IpAddr) -> bool {
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

    fn limit(server: &Server, peer: &str) -> Option<AddressLimit> {
        let max = server.connections_per_address;
        AddressCounts::limit_for(server, Some(peer.parse().unwrap()), max)
    }

    #[test]
    fn each_holder_of_an_address_has_its_own_places() {
        let server = server("0.0.0.0:1", &["10.1.0.0/16"]);
        let addresses = AddressCounts::default();
        let enter = |peer| addresses.count_connection(limit(&server, peer));
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
        let addresses = AddressCounts::default();
        drop(
            addresses
                .count_connection(limit(&server, "192.0.2.1"))
                .unwrap(),
        );
        assert!(addresses.lock_counts().is_empty());
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
