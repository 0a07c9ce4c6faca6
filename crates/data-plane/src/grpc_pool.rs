//! Connections of HTTP/2 to agents that are called by gRPC. Each thread that serves callers has its own, as with those
//! of HTTP/1. A connection takes as many streams as its agent allows, and no new one once it is said to end.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::future::poll_fn;
use std::hash::BuildHasher as _;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use parking_lot::{Mutex, MutexGuard};
use pingora::protocols::{ALPN, Stream};
use pingora::upstreams::peer::{HttpPeer, Peer as _};
use pingora::{Error, ErrorType, OrErr as _};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use http1::{Connector, number_of_thread};

/// Maximum streams of one connection, if its agent allows more: what its slowest stream holds up.
const STREAMS_MAX: usize = 100;

/// Maximum bytes that one stream may have under way; their sum is bounded by the calls at one target.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The window of a connection: a stream that is read slowly holds up no other one.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Maximum bytes of the metadata of an answer, as of a head of HTTP/1.
const METADATA_BYTES_MAX: u32 = 64 * 1024;

/// Silence after which a connection with streams is asked whether it lives. Servers end connections for a ping each few
/// minutes without data (gRPC: 5 minutes).
const PING_AFTER: Duration = Duration::from_secs(310);

/// Maximum time for the answer to a ping.
const PONG_WITHIN: Duration = Duration::from_secs(20);

/// Time after which a call that ends on a connection that was silent meanwhile is the last that began there: the
/// connection may be broken.
const SUSPECT_AFTER: Duration = Duration::from_secs(5);

/// Interval at which a connection is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The connections of this process.
pub(super) struct GrpcPool {
    shards: Box<[Mutex<HashMap<u64, Agents>>]>,
    hasher: RandomState,
    closing: Arc<AtomicBool>,
    began: Instant,
}

/// The connections of a thread to one agent.
#[derive(Default)]
struct Agents {
    connections: Vec<Arc<Shared>>,
    gate: Arc<Gate>,
}

/// Lets one call dial while others wait for its connection. After a failure they dial beside each other.
#[derive(Default)]
struct Gate {
    turn: tokio::sync::Mutex<()>,
    failures: AtomicUsize,
}

/// One connection.
struct Shared {
    /// `None`: it takes no new stream.
    sender: Mutex<Option<SendRequest<Bytes>>>,
    streams: AtomicUsize,
    /// Milliseconds after the pool began, at which something was received, or a stream ended.
    heard_at: AtomicU64,
    began: Instant,
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn note_heard(&self) {
        self.heard_at.store(self.now(), Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        let heard = Duration::from_millis(self.heard_at.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(heard)
    }

    fn is_retired(&self) -> bool {
        self.sender.lock().is_none()
    }

    /// Takes a place for a stream.
    fn take(self: &Arc<Self>) -> Option<StreamSlot> {
        let mut held = self.sender.lock();
        let sender = held.as_ref()?.clone();
        // It fails on a connection that its agent ends, or that is broken.
        let Some(Ok(sender)) = sender.ready().now_or_never() else {
            *held = None;
            return None;
        };
        let max = sender.current_max_send_streams().min(STREAMS_MAX);
        if self.streams.load(Ordering::Relaxed) >= max {
            return None;
        }
        self.streams.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::clone(self);
        let began_at = self.now();
        Some(StreamSlot {
            connection,
            sender,
            began_at,
        })
    }
}

/// A place for one stream on a connection.
pub(super) struct StreamSlot {
    connection: Arc<Shared>,
    pub(super) sender: SendRequest<Bytes>,
    began_at: u64,
}

impl StreamSlot {
    /// Notes that the agent sent something.
    pub(super) fn note_heard(&self) {
        self.connection.note_heard();
    }

    /// Lets its connection take no new streams. Those that run go on.
    pub(super) fn retire_connection(&self) {
        self.connection.sender.lock().take();
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let silent = self.connection.heard_at.load(Ordering::Relaxed) <= self.began_at;
        let lasted = Duration::from_millis(self.connection.now() - self.began_at);
        if silent && lasted >= SUSPECT_AFTER {
            self.retire_connection();
        }
        if self.connection.streams.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.connection.note_heard();
        }
    }
}

impl GrpcPool {
    /// Creates a pool for `threads` that serve callers and all others, whose unused connections are closed when
    /// `closing` is set.
    pub(super) fn new(threads: usize, closing: Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self {
            shards: (0..=threads).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            closing,
            began: Instant::now(),
        })
    }

    fn lock_shard(&self, number: usize) -> MutexGuard<'_, HashMap<u64, Agents>> {
        self.shards[number].lock()
    }

    /// Takes a place on a connection of this thread to the agent, or the gate for a new one.
    fn take(&self, (number, key): (usize, u64)) -> Result<StreamSlot, Arc<Gate>> {
        let mut shard = self.lock_shard(number);
        let agents = shard.entry(key).or_default();
        let found = agents.connections.iter().find_map(Shared::take);
        agents.connections.retain(|one| !one.is_retired());
        found.ok_or_else(|| Arc::clone(&agents.gate))
    }

    /// Returns a place for a stream to the agent, on a new connection if there is none. It is kept for `idle` without a
    /// stream.
    ///
    /// # Errors
    /// Pingora's.
    pub(super) async fn open(
        self: &Arc<Self>,
        connector: &Connector,
        peer: &HttpPeer,
        idle: Duration,
    ) -> pingora::Result<StreamSlot> {
        let place = (
            number_of_thread(self.shards.len() - 1),
            self.hasher.hash_one(peer),
        );
        let gate = match self.take(place) {
            Ok(slot) => return Ok(slot),
            Err(gate) => gate,
        };
        let failures = gate.failures.load(Ordering::Relaxed);
        let turn = gate.turn.lock().await;
        let slot = match self.take(place) {
            Ok(slot) => return Ok(slot),
            Err(_) if gate.failures.load(Ordering::Relaxed) != failures => {
                drop(turn);
                self.dial(connector, peer, (place, idle)).await
            }
            Err(_) => self.dial(connector, peer, (place, idle)).await,
        };
        if slot.is_err() {
            gate.failures.fetch_add(1, Ordering::Relaxed);
        }
        slot
    }

    async fn dial(
        self: &Arc<Self>,
        connector: &Connector,
        peer: &HttpPeer,
        (place, idle): ((usize, u64), Duration),
    ) -> pingora::Result<StreamSlot> {
        let stream = connector.dial(peer).await?;
        if peer.tls() && !matches!(stream.selected_alpn_proto(), Some(ALPN::H2)) {
            let why = "the agent's TLS server does not offer HTTP/2 (ALPN h2)";
            return Error::e_explain(ErrorType::TLSHandshakeFailure, why);
        }
        let connect = peer.options.connection_timeout.unwrap_or(PONG_WITHIN);
        let begun = timeout(connect, begin_http2(stream)).await;
        let begun = begun.or_err(ErrorType::ConnectTimedout, "no HTTP/2 in time")?;
        let (sender, connection, pings) = begun?;
        let shared = Arc::new(Shared {
            sender: Mutex::new(Some(sender)),
            streams: AtomicUsize::new(0),
            heard_at: AtomicU64::new(0),
            began: self.began,
        });
        shared.note_heard();
        let slot = shared.take().ok_or_else(|| {
            Error::explain(
                ErrorType::ConnectError,
                "the agent takes no stream of HTTP/2",
            )
        })?;
        let (number, key) = place;
        let mut shard = self.lock_shard(number);
        let agents = shard.entry(key).or_default();
        agents.connections.push(Arc::clone(&shared));
        drop(shard);
        let keeper = Keeper {
            pool: Arc::downgrade(self),
            place,
            shared,
            idle,
        };
        tokio::spawn(keeper.drive(connection, pings));
        Ok(slot)
    }
}

/// Begins HTTP/2, and waits until the agent has said how many streams it takes.
async fn begin_http2(
    stream: Stream,
) -> pingora::Result<(SendRequest<Bytes>, Connection<Stream, Bytes>, PingPong)> {
    const FAILED: &str = "the agent does not speak HTTP/2";
    let handshake = Builder::new()
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(METADATA_BYTES_MAX)
        .handshake(stream)
        .await;
    let (sender, mut connection) = handshake.or_err(ErrorType::ConnectError, FAILED)?;
    let mut pings = connection
        .ping_pong()
        .ok_or_else(|| Error::explain(ErrorType::InternalError, "its pings are taken"))?;
    // Its settings come before the answer to a ping.
    pings
        .send_ping(Ping::opaque())
        .or_err(ErrorType::ConnectError, FAILED)?;
    tokio::select! {
        biased;
        pong = poll_fn(|cx| pings.poll_pong(cx)) => pong.or_err(ErrorType::ConnectError, FAILED)?,
        ended = &mut connection => {
            ended.or_err(ErrorType::ConnectError, FAILED)?;
            return Error::e_explain(ErrorType::ConnectError, FAILED);
        }
    };
    Ok((sender, connection, pings))
}

/// What keeps a connection: it is closed once it has had no stream for some time, or does not answer a ping.
struct Keeper {
    pool: Weak<GrpcPool>,
    place: (usize, u64),
    shared: Arc<Shared>,
    idle: Duration,
}

impl Keeper {
    async fn drive(self, connection: Connection<Stream, Bytes>, mut pings: PingPong) {
        let mut connection = pin!(connection);
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pinged = None;
        loop {
            tokio::select! {
                _ = &mut connection => break,
                pong = poll_fn(|cx| pings.poll_pong(cx)), if pinged.is_some() => {
                    pinged = None;
                    if pong.is_ok() {
                        self.shared.note_heard();
                    }
                }
                _ = looks.tick() => {
                    let has_streams = self.shared.streams.load(Ordering::Relaxed) > 0;
                    if pinged.is_some_and(|at: Instant| at.elapsed() > PONG_WITHIN) {
                        break;
                    }
                    if has_streams && pinged.is_none() && self.shared.silence() > PING_AFTER
                        && pings.send_ping(Ping::opaque()).is_ok() {
                        pinged = Some(Instant::now());
                    }
                    if !has_streams && self.is_over() {
                        self.leave();
                    }
                }
            }
        }
        self.leave();
    }

    fn is_over(&self) -> bool {
        let closing = |pool: Arc<GrpcPool>| pool.closing.load(Ordering::Acquire);
        self.shared.silence() >= self.idle || self.pool.upgrade().is_none_or(closing)
    }

    /// Takes the connection out of the pool. It ends with its last stream.
    fn leave(&self) {
        let Some(pool) = self.pool.upgrade() else {
            self.shared.sender.lock().take();
            return;
        };
        let (number, key) = self.place;
        let mut shard = pool.lock_shard(number);
        self.shared.sender.lock().take();
        if let Some(agents) = shard.get_mut(&key) {
            agents.connections.retain(|one| !one.is_retired());
            if agents.connections.is_empty() && Arc::strong_count(&agents.gate) == 1 {
                shard.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::time::advance;

    use super::*;

    /// A connection that is not driven, and its agent's end.
    async fn connection() -> (Arc<Shared>, impl Sized) {
        let (ours, agents) = duplex(1 << 16);
        let agent = h2::server::handshake(agents);
        let client = Builder::new().handshake::<_, Bytes>(ours);
        let (agent, client) = tokio::join!(agent, client);
        let (sender, connection) = client.unwrap();
        let shared = Shared {
            sender: Mutex::new(Some(sender)),
            streams: AtomicUsize::new(0),
            heard_at: AtomicU64::new(0),
            began: Instant::now(),
        };
        (Arc::new(shared), (agent, connection))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_stays_silent_under_a_call_takes_no_other() {
        for (seconds, is_heard, takes) in [(4, false, true), (6, true, true), (6, false, false)] {
            let (shared, _kept) = connection().await;
            let other = shared.take().unwrap();
            let slot = shared.take().unwrap();
            advance(Duration::from_secs(seconds)).await;
            if is_heard {
                other.note_heard();
            }
            drop(slot);
            assert_eq!(shared.take().is_some(), takes, "{seconds} {is_heard}");
        }
    }

    #[tokio::test]
    async fn a_connection_has_a_bound_of_streams() {
        let (shared, _kept) = connection().await;
        let mut slots: Vec<_> = (0..STREAMS_MAX).map(|_| shared.take().unwrap()).collect();
        assert!(shared.take().is_none() && !shared.is_retired());
        slots.pop();
        assert!(shared.take().is_some());
    }
}
