//! One call to an agent: connect, or take an idle connection, and send once. The head is awaited in `relay/mod.rs`.
//!
//! Pingora dials. Head and body are sent in one write, which Pingora's own client cannot do; [`super::answer`] reads
//! the answer, and [`super::pool`] keeps the connection afterwards.
//! HTTP/1.1 only: agents' servers all support it, and a broken HTTP/2 connection would take several exchanges
//! with it (`ARCHITECTURE.md`).

use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::listeners::ALPN;
use pingora::protocols::Stream;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::AnswerReader;
use super::certificates::Certificates;
use super::pool::{Pool, PoolKey};
use crate::directory::{Agent, Slot};
use crate::drain::Drain;
use crate::metrics::Metrics;
use crate::proxy::outcome::Failure;
use crate::rejection::{Delivery, Reason, Rejection};

/// Largest body that is copied behind the head, so that both leave in one write.
pub(in crate::proxy) const ONE_WRITE: usize = 16 * 1024;

/// Pingora's write buffer: larger writes go to the socket directly.
const WRITE_BUFFER: usize = 1460;

/// Timeout for the response of an agent that stopped reading a request.
const EARLY_ANSWER: Duration = Duration::from_secs(1);

/// Connections to agents.
pub(in crate::proxy) struct Upstream {
    connector: TransportConnector,
    pool: Arc<Pool>,
    certificates: Certificates,
}

/// A request, ready for the wire.
pub(in crate::proxy) struct WireRequest {
    /// Head, with a short body behind it.
    wire: Vec<u8>,
    /// Body, unless it is short.
    body: Bytes,
}

impl WireRequest {
    /// Joins head and body if a copy is cheaper than a second write.
    pub(in crate::proxy) fn new(mut head: Vec<u8>, body: Bytes) -> Self {
        if body.len() <= ONE_WRITE {
            head.extend_from_slice(&body);
            return Self {
                wire: head,
                body: Bytes::new(),
            };
        }
        Self { wire: head, body }
    }
}

/// Returns Pingora's peer for a server at `address`, whose `name` a certificate is for. Servers of two names share no
/// connection. Without TLS a number stands for the name, which costs no copy of it.
pub(in crate::proxy) fn build_peer(
    address: SocketAddr,
    tls: bool,
    name: &str,
    connect: Duration,
) -> Box<HttpPeer> {
    static NAMES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let sni = if tls { name } else { "" };
    let mut peer = Box::new(HttpPeer::new(address, tls, sni.to_owned()));
    if !tls {
        peer.group_key = NAMES.hash_one(name);
    }
    peer.options.connection_timeout = Some(connect);
    peer.options.total_connection_timeout = Some(connect);
    peer.options.alpn = ALPN::H1;
    peer
}

/// A connection on which its holder has sent no byte.
pub(in crate::proxy) struct AgentConnection {
    stream: Stream,
    /// True for a pooled connection, which may be dead.
    reused: bool,
    key: PoolKey,
}

/// Reason why there is no connection to an agent.
pub(in crate::proxy) struct ConnectFailure {
    /// The rejection of the call.
    pub(in crate::proxy) why: Rejection,
    /// True if the agent was not there: a connection was refused, or not made in time. A later attempt may succeed.
    pub(in crate::proxy) is_away: bool,
    /// True if a connection was refused.
    pub(in crate::proxy) is_refused: bool,
}

impl From<ConnectFailure> for Rejection {
    fn from(failed: ConnectFailure) -> Self {
        failed.why
    }
}

/// Progress of a write before it failed.
enum WriteFailure {
    /// No byte was accepted: it may be sent on another connection.
    Nothing(std::io::Error),
    /// Some bytes may have arrived.
    Perhaps(std::io::Error),
}

impl Upstream {
    /// Creates a pool of at most `pool_size` unused connections, of `threads` and all others, which are closed when the
    /// drain begins.
    pub(in crate::proxy) fn new(pool_size: usize, threads: usize, drain: Arc<Drain>) -> Self {
        // Its own pool is not used.
        let options = ConnectorOptions::new(0);
        Self {
            connector: TransportConnector::new(Some(options)),
            pool: Arc::new(Pool::new(pool_size, threads, drain)),
            certificates: Certificates::new(),
        }
    }

    /// Returns Pingora's peer for the agent. `address` was checked by the policy, and is dialled. A certificate
    /// is verified for [`crate::directory::Endpoint::sni`], which is never empty: for an empty name Pingora
    /// would verify nothing.
    pub(in crate::proxy) async fn agent_peer(
        &self,
        agent: &Agent,
        address: SocketAddr,
        connect: Duration,
    ) -> Box<HttpPeer> {
        let endpoint = &agent.endpoint;
        let mut peer = build_peer(address, endpoint.tls, &endpoint.sni, connect);
        if let Some(tls) = agent.upstream_tls.as_ref().filter(|_| endpoint.tls) {
            // Boxed: it is rare, and its future would otherwise widen that of every exchange.
            Box::pin(self.certificates.apply_to(&mut peer, agent, tls)).await;
        }
        peer
    }

    /// Returns the handle with which connections are returned to the pool, to be kept for `idle`.
    pub(in crate::proxy) fn pool_handle(&self, idle: Duration) -> PoolHandle<'_> {
        PoolHandle {
            pool: &self.pool,
            idle,
        }
    }

    /// Returns a connection to the agent, a pooled one if there is one. Sends no byte.
    ///
    /// # Errors
    /// `agent_unreachable`, `agent_timeout`.
    pub(in crate::proxy) async fn connect(
        &self,
        peer: &HttpPeer,
    ) -> Result<AgentConnection, ConnectFailure> {
        let key = self.pool.key_of(peer);
        let (stream, reused) = match self.pool.take(&key) {
            Some(stream) => (stream, true),
            None => {
                tracing::debug!(%peer, "no idle connection to the agent; dialling");
                (self.dial(peer).await?, false)
            }
        };
        Ok(AgentConnection {
            stream,
            reused,
            key,
        })
    }

    /// Returns a new connection to the agent, which no call has used. Sends no byte.
    ///
    /// # Errors
    /// As [`Upstream::connect`].
    pub(in crate::proxy) async fn connect_anew(
        &self,
        peer: &HttpPeer,
    ) -> Result<AgentConnection, ConnectFailure> {
        Ok(AgentConnection {
            stream: self.dial(peer).await?,
            reused: false,
            key: self.pool.key_of(peer),
        })
    }

    /// Opens a new connection to the agent.
    async fn dial(&self, peer: &HttpPeer) -> Result<Stream, ConnectFailure> {
        // Boxed: with its TLS handshake it is larger than the rest of an exchange's future, and rare.
        let dialled = Box::pin(self.connector.new_stream(peer)).await;
        dialled.map_err(|e| connect_failure(e, peer))
    }

    /// As [`Upstream::connect`], until `deadline`.
    ///
    /// # Errors
    /// As [`Upstream::connect`].
    pub(in crate::proxy) async fn connect_by(
        &self,
        peer: &HttpPeer,
        deadline: Instant,
    ) -> Result<AgentConnection, ConnectFailure> {
        let connected = timeout_at(deadline, self.connect(peer)).await;
        connected.unwrap_or_else(|_| Err(connect_timed_out()))
    }

    /// Sends the call once. It is sent again only if no byte of it was sent: a pooled connection that has died
    /// may accept none, and then a new one is opened, as far as the budget of retries of `slot` allows.
    ///
    /// # Errors
    /// `agent_unreachable`, `agent_timeout`, `agent_protocol_error`, each with its [`Delivery`].
    pub(in crate::proxy) async fn send_over(
        &self,
        AgentConnection {
            mut stream,
            reused,
            key,
        }: AgentConnection,
        peer: &HttpPeer,
        call: &WireRequest,
        deadline: Instant,
        (metrics, slot): (&Metrics, Option<&Slot>),
    ) -> Result<AnswerReader, Rejection> {
        let mut written = timeout_at(deadline, write_request(&mut stream, call)).await;
        if reused
            && matches!(written, Ok(Err(WriteFailure::Nothing(_))))
            && slot.is_none_or(Slot::may_retry)
        {
            metrics.resends.inc();
            let dialled = timeout_at(deadline, self.dial(peer)).await;
            stream = dialled.unwrap_or_else(|_| Err(connect_timed_out()))?;
            written = timeout_at(deadline, write_request(&mut stream, call)).await;
        }
        let answer = AnswerReader::new(stream).with_key(key);
        match written {
            Err(_) => Err(Rejection::new(
                Reason::AgentTimeout,
                "the agent did not take the request in time (timeouts.total)",
            )
            .with_fact("clock", "total")
            .with_delivery(Delivery::Unknown)),
            Ok(Ok(())) => Ok(answer),
            Ok(Err(WriteFailure::Nothing(error))) => Err(Rejection::new(
                Reason::AgentUnreachable,
                "the agent closed the connection at once",
            )
            .with_delivery(Delivery::NotSent)
            .with_cause(error)),
            Ok(Err(WriteFailure::Perhaps(error))) => early_answer(answer, error).await,
        }
    }
}

/// The handle with which a connection is returned to the pool after a complete response.
#[derive(Clone, Copy)]
pub(in crate::proxy) struct PoolHandle<'a> {
    pool: &'a Arc<Pool>,
    /// Time that it is kept in the pool.
    idle: Duration,
}

impl PoolHandle<'_> {
    /// Returns the connection to the pool if the agent left it usable. Called before the last byte is sent to
    /// the caller, so that the caller's next call finds it there.
    pub(in crate::proxy) fn check_in(self, answer: AnswerReader) {
        // One that is not kept is dropped: a graceful close could block on an agent that does not read.
        if let Some((key, stream)) = answer.pool_key().zip(answer.into_reusable()) {
            self.pool.put(key, stream, self.idle);
        }
    }
}

async fn write_request(stream: &mut Stream, call: &WireRequest) -> Result<(), WriteFailure> {
    let first = stream
        .write(&call.wire)
        .await
        .map_err(WriteFailure::Nothing)?;
    if first == call.wire.len() && call.body.is_empty() {
        return stream.flush().await.map_err(|error| {
            // A short call was still in the buffer: after an error at the flush no byte has left.
            if call.wire.len() < WRITE_BUFFER {
                WriteFailure::Nothing(error)
            } else {
                WriteFailure::Perhaps(error)
            }
        });
    }
    let rest = async {
        stream.write_all(&call.wire[first..]).await?;
        stream.write_all(&call.body).await?;
        stream.flush().await
    };
    rest.await.map_err(WriteFailure::Perhaps)
}

/// Reads an early response: an agent may send one, such as 413, and close without reading the rest.
async fn early_answer(
    mut answer: AnswerReader,
    error: std::io::Error,
) -> Result<AnswerReader, Rejection> {
    match timeout(EARLY_ANSWER, answer.read_head()).await {
        Ok(Ok(())) => Ok(answer),
        _ => Err(Rejection::new(
            Reason::AgentProtocolError,
            "the agent closed the connection while the request was being sent",
        )
        .with_delivery(Delivery::Unknown)
        .with_cause(error)),
    }
}

/// Returns the rejection of a call with a deadline before `timeouts.connect`.
fn connect_timed_out() -> ConnectFailure {
    let message = "no connection to the agent in time (timeouts.total; of a gateway, X-Timeout may ask for more)";
    let why = Rejection::new(Reason::AgentTimeout, message)
        .with_fact("clock", "total")
        .with_delivery(Delivery::NotSent);
    ConnectFailure {
        why,
        is_away: false,
        is_refused: false,
    }
}

fn connect_failure(error: Box<Error>, peer: &HttpPeer) -> ConnectFailure {
    let connect = peer.options.connection_timeout.unwrap_or_default();
    let timed_out = matches!(
        error.etype(),
        ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout
    );
    let handshake = *error.etype() == ErrorType::TLSHandshakeFailure;
    let is_refused = *error.etype() == ErrorType::ConnectRefused;
    let own = is_local_failure(&error);
    let rejection = if own {
        Rejection::new(
            Reason::Overloaded,
            "the gateway can open no more connections: its open files, its memory or its local ports are used up",
        )
        .with_retry_after(Duration::from_secs(1))
    } else if handshake {
        Rejection::new(
            Reason::AgentUnreachable,
            "no TLS connection to the agent: its certificate must be valid for the host of its URL, from an \
             authority that the system or its upstream_tls.ca trusts, and an agent may ask for upstream_tls.client_cert",
        )
    } else if timed_out {
        Rejection::new(
            Reason::AgentTimeout,
            format!(
                "no connection to the agent within {} (timeouts.connect)",
                humantime::format_duration(connect)
            ),
        )
        .with_fact("clock", "connect")
    } else {
        Rejection::new(
            Reason::AgentUnreachable,
            "no connection to the agent: check that it listens at the url of its workspace, or its card_url",
        )
    };
    ConnectFailure {
        why: rejection
            .with_delivery(Delivery::NotSent)
            .with_cause(Failure(error)),
        is_away: !handshake && !own,
        is_refused,
    }
}

/// True if a connection failed for want of something on this machine, which tells nothing of the agent.
fn is_local_failure(error: &Error) -> bool {
    const WANTS: [i32; 5] = [
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::EADDRNOTAVAIL,
    ];
    let cause = error.cause.as_ref();
    let io = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let code = io.and_then(std::io::Error::raw_os_error);
    *error.etype() == ErrorType::SocketError || code.is_some_and(|code| WANTS.contains(&code))
}
