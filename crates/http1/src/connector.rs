//! Connections to servers: dialled or taken from the pool, and a request sent once.
//!
//! Pingora dials. Head and body are sent in one write, which Pingora's own client cannot do.

use futures_util::future::BoxFuture;
use pingora::Error;
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::listeners::ALPN;
use pingora::protocols::Stream;
use pingora::upstreams::peer::HttpPeer;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use crate::answer::AnswerReader;
use crate::pool::{Pool, PoolKey};
use crate::request::WireRequest;

/// Pingora's write buffer: larger writes go to the socket directly.
const WRITE_BUFFER: usize = 1460;

/// Timeout for the response of a server that stopped reading a request.
const EARLY_ANSWER: Duration = Duration::from_secs(1);

/// Returns Pingora's peer for a server at `address`, whose `name` a certificate is for. Servers of two names share no
/// connection. Without TLS a number stands for the name, which costs no copy of it.
pub fn build_peer(address: SocketAddr, tls: bool, name: &str, connect: Duration) -> Box<HttpPeer> {
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
pub struct Connection {
    stream: Stream,
    /// True for a pooled connection, which may be dead.
    reused: bool,
    key: PoolKey,
}

/// The reasons why no answer to a request can be awaited.
pub enum SendError {
    /// No connection was made.
    NotConnected(Box<Error>),
    /// No connection was made in time.
    LateConnection,
    /// The server did not take the request in time.
    Late,
    /// The connection broke before the server accepted a byte.
    NotSent(io::Error),
    /// The connection broke while the request was being sent.
    BrokenOff(io::Error),
}

/// Connections to servers.
pub struct Connector {
    transport: TransportConnector,
    pool: Arc<Pool>,
}

impl Connector {
    /// Creates a connector that keeps connections in `pool`.
    pub fn new(pool: Pool) -> Self {
        // Its own pool is not used.
        let options = ConnectorOptions::new(0);
        Self {
            transport: TransportConnector::new(Some(options)),
            pool: Arc::new(pool),
        }
    }

    /// Returns the handle with which connections are returned to the pool, to be kept for `idle`.
    pub fn pool_handle(&self, idle: Duration) -> PoolHandle<'_> {
        let pool = &self.pool;
        PoolHandle { pool, idle }
    }

    /// Takes a connection to the server from the pool.
    pub fn take_idle(&self, peer: &HttpPeer) -> Option<Connection> {
        let key = self.pool.key_of(peer);
        let stream = self.pool.take(&key)?;
        let reused = true;
        Some(Connection {
            stream,
            reused,
            key,
        })
    }

    /// Opens a connection to the server. Sends no byte.
    ///
    /// # Errors
    /// Pingora's.
    pub async fn connect(&self, peer: &HttpPeer) -> pingora::Result<Connection> {
        Ok(Connection {
            stream: self.dial(peer).await?,
            reused: false,
            key: self.pool.key_of(peer),
        })
    }

    /// Dials the server, with TLS if the peer has it. The stream is in no pool.
    ///
    /// # Errors
    /// Pingora's.
    pub async fn dial(&self, peer: &HttpPeer) -> pingora::Result<Stream> {
        // Boxed: with its TLS handshake it is larger than the rest of an exchange's future, and rare.
        let dialled: BoxFuture<'_, _> = Box::pin(self.transport.new_stream(peer));
        dialled.await
    }

    /// Sends the request once. It is sent again only if no byte of it was sent: a pooled connection that has died
    /// may accept none, and then a new one is opened, if `may_resend` allows it.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send(
        &self,
        Connection {
            mut stream,
            reused,
            key,
        }: Connection,
        peer: &HttpPeer,
        request: &WireRequest,
        deadline: Instant,
        may_resend: impl FnOnce() -> bool,
    ) -> Result<AnswerReader, SendError> {
        let mut written = timeout_at(deadline, write_request(&mut stream, request)).await;
        if reused && matches!(written, Ok(Err(SendError::NotSent(_)))) && may_resend() {
            let dialled = timeout_at(deadline, self.dial(peer)).await;
            let dialled = dialled.map_err(|_| SendError::LateConnection)?;
            stream = dialled.map_err(SendError::NotConnected)?;
            written = timeout_at(deadline, write_request(&mut stream, request)).await;
        }
        let mut answer = AnswerReader::new(stream);
        answer.key = Some(key);
        match written.map_err(|_| SendError::Late)? {
            Err(SendError::BrokenOff(error)) => {
                // A server may send an answer early, such as 413, and close without reading the rest.
                match timeout(EARLY_ANSWER, answer.read_head()).await {
                    Ok(Ok(())) => Ok(answer),
                    _ => Err(SendError::BrokenOff(error)),
                }
            }
            written => written.map(|()| answer),
        }
    }
}

async fn write_request(stream: &mut Stream, request: &WireRequest) -> Result<(), SendError> {
    let first = stream
        .write(&request.wire)
        .await
        .map_err(SendError::NotSent)?;
    if first == request.wire.len() && request.body.is_empty() {
        return stream.flush().await.map_err(|error| {
            // A short call was still in the buffer: after an error at the flush no byte has left.
            if request.wire.len() < WRITE_BUFFER {
                SendError::NotSent(error)
            } else {
                SendError::BrokenOff(error)
            }
        });
    }
    let rest = async {
        stream.write_all(&request.wire[first..]).await?;
        stream.write_all(&request.body).await?;
        stream.flush().await
    };
    rest.await.map_err(SendError::BrokenOff)
}

/// The handle with which a connection is returned to the pool after a complete response.
#[derive(Clone, Copy)]
pub struct PoolHandle<'a> {
    pool: &'a Arc<Pool>,
    /// Time that it is kept in the pool.
    idle: Duration,
}

impl PoolHandle<'_> {
    /// Returns the connection to the pool if the server left it usable. Called before the last byte is sent to
    /// the client, so that the client's next call finds it there.
    pub fn check_in(self, answer: AnswerReader) {
        // One that is not kept is dropped: a graceful close could block on a server that does not read.
        if let Some((key, stream)) = answer.key.zip(answer.into_reusable()) {
            self.pool.put(key, stream, self.idle);
        }
    }
}
