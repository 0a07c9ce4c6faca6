//! Idle connections to servers. Each thread that serves clients keeps its own: a connection is watched by the runtime
//! of the thread that opened it, and its next request on another thread would wake two. The other threads, which send
//! what waits for no client, share one shard. One task for each shard looks at its connections each second while there
//! are any: it closes those that were idle for long enough, and those that the server closed or sent something on.

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;

use parking_lot::{Mutex, MutexGuard};
use pingora::protocols::Stream;
use pingora::upstreams::peer::{HttpPeer, Peer as _};
use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::future::{Future as _, poll_fn};
use std::hash::BuildHasher as _;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::time::{Instant, sleep};

/// Interval between two sweeps of the idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum connections that are checked under one lock.
const SWEEP_BATCH: usize = 32;

thread_local! {
    /// The number of this thread among those that serve clients.
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Makes this thread one that serves clients. `number` counts from 0.
pub fn serve_on_this_thread(number: usize) {
    NUMBER.set(Some(number));
}

/// Returns the number of this thread among `threads` that serve clients; `threads` for all others.
pub fn number_of_thread(threads: usize) -> usize {
    NUMBER.get().map_or(threads, |number| number.min(threads))
}

/// Idle connections.
pub struct Pool {
    /// One for each thread that serves clients, and one for the others.
    shards: Box<[PoolShard]>,
    /// Keyed at random, so that no server can be named to have the key of another one.
    hasher: RandomState,
    closing: Arc<AtomicBool>,
}

/// The shard of a thread. No other thread's data are in its cache lines.
#[repr(align(128))]
struct PoolShard(Mutex<IdleConnections>);

/// The idle connections of a shard. Of each key, the connection that was used last is at the end.
struct IdleConnections {
    idle: HashMap<PoolKey, Vec<IdleConnection>>,
    /// The number of connections.
    count: usize,
    max: usize,
    /// True while there is a task that looks at the connections.
    watched: bool,
}

/// A connection that waits for its next call.
struct IdleConnection {
    stream: Stream,
    until: Instant,
}

/// The mark that a task looks at the connections of a shard, until it ends in any way.
struct ShardWatch {
    pool: Weak<Pool>,
    shard: usize,
}

impl Pool {
    /// Creates a pool of at most `max` connections of all threads, `threads` of which serve clients. It closes them
    /// when `closing` is set.
    pub fn new(max: usize, threads: usize, closing: Arc<AtomicBool>) -> Self {
        let shards = threads + 1;
        let shard = || PoolShard(Mutex::new(IdleConnections::new(max / shards)));
        Self {
            shards: (0..shards).map(|_| shard()).collect(),
            hasher: RandomState::new(),
            closing,
        }
    }

    /// Returns the key of connections to `peer`.
    pub(crate) fn key_of(&self, peer: &HttpPeer) -> PoolKey {
        PoolKey {
            address: peer.address().as_inet().copied(),
            hash: self.hasher.hash_one(peer),
        }
    }

    /// Takes the connection that this thread used last, if there is one that is alive.
    pub(crate) fn take(&self, key: &PoolKey) -> Option<Stream> {
        let (shard, now) = (self.shard_of_thread(), Instant::now());
        loop {
            // The lock is not held while a dead one is closed.
            let mut idle = self.lock_shard(shard).pop(key)?;
            if now < idle.until && is_silent(&mut idle.stream) {
                return Some(idle.stream);
            }
        }
    }

    /// Keeps a connection of this thread for `idle`. If its shard is full, the one is closed that was idle for longest.
    pub(crate) fn put(self: &Arc<Self>, key: PoolKey, mut stream: Stream, idle: Duration) {
        if self.closing.load(Ordering::Acquire) || !is_silent(&mut stream) {
            return;
        }
        let (number, until) = (self.shard_of_thread(), Instant::now() + idle);
        let mut shard = self.lock_shard(number);
        let closed = shard.push(key, IdleConnection { stream, until });
        let watch = shard.count > 0 && !std::mem::replace(&mut shard.watched, true);
        drop(shard);
        drop(closed);
        if watch {
            self.spawn_sweeper(number);
        }
    }

    fn shard_of_thread(&self) -> usize {
        number_of_thread(self.shards.len() - 1)
    }

    fn lock_shard(&self, number: usize) -> MutexGuard<'_, IdleConnections> {
        self.shards[number].0.lock()
    }

    /// Starts the task that looks at the connections of a shard, which is marked as watched.
    fn spawn_sweeper(self: &Arc<Self>, shard: usize) {
        let pool = Arc::downgrade(self);
        let mut watch = ShardWatch { pool, shard };
        tokio::spawn(async move {
            loop {
                sleep(SWEEP_INTERVAL).await;
                let Some(pool) = watch.pool.upgrade() else {
                    return;
                };
                pool.sweep(shard).await;
                if pool.clear_watched(shard) {
                    // The mark may be that of another task by now.
                    drop(std::mem::take(&mut watch.pool));
                    return;
                }
            }
        });
    }

    /// Takes the mark from a shard without connections. False if it has any.
    fn clear_watched(&self, shard: usize) -> bool {
        let mut kept = self.lock_shard(shard);
        kept.watched = kept.count > 0;
        !kept.watched
    }

    /// Closes the connections of a shard that are not to be kept.
    async fn sweep(&self, shard: usize) {
        let (now, closing) = (Instant::now(), self.closing.load(Ordering::Acquire));
        let keys: Vec<_> = self.lock_shard(shard).idle.keys().copied().collect();
        let mut checked = 0;
        for key in keys {
            let mut from = 0;
            loop {
                let swept = self.lock_shard(shard).sweep_key(&key, from, |idle| {
                    !closing && now < idle.until && is_silent(&mut idle.stream)
                });
                let Some(swept) = swept else { break };
                from += swept.kept;
                checked += swept.kept + swept.closed.len();
                drop(swept.closed);
                if checked >= SWEEP_BATCH {
                    checked = 0;
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

/// The outcome of a sweep over some connections.
struct SweepOutcome {
    kept: usize,
    closed: Vec<IdleConnection>,
}

impl IdleConnections {
    fn new(max: usize) -> Self {
        Self {
            idle: HashMap::new(),
            count: 0,
            max,
            watched: false,
        }
    }

    fn pop(&mut self, key: &PoolKey) -> Option<IdleConnection> {
        let idle = self.idle.get_mut(key)?.pop()?;
        self.count -= 1;
        Some(idle)
    }

    /// Adds a connection. Returns one that has to go for it.
    fn push(&mut self, key: PoolKey, idle: IdleConnection) -> Option<IdleConnection> {
        if self.max == 0 {
            return Some(idle);
        }
        let closed = (self.count >= self.max)
            .then(|| self.pop_oldest())
            .flatten();
        // Keys without connections are forgotten if there are many.
        if self.idle.len() >= self.max {
            self.idle.retain(|_, idle| !idle.is_empty());
        }
        self.idle.entry(key).or_default().push(idle);
        self.count += 1;
        closed
    }

    fn pop_oldest(&mut self) -> Option<IdleConnection> {
        let filled = self.idle.values_mut().filter(|idle| !idle.is_empty());
        let oldest = filled.min_by_key(|idle| idle.first().map(|idle| idle.until))?;
        self.count -= 1;
        Some(oldest.remove(0))
    }

    /// Looks at some connections of a key, from one on. `None` if there are none, and then the key is forgotten if it
    /// has no connection.
    fn sweep_key(
        &mut self,
        key: &PoolKey,
        from: usize,
        mut keep: impl FnMut(&mut IdleConnection) -> bool,
    ) -> Option<SweepOutcome> {
        let idle = self.idle.get_mut(key)?;
        if idle.is_empty() {
            self.idle.remove(key);
            return None;
        }
        let end = idle.len().min(from + SWEEP_BATCH);
        if end <= from {
            return None;
        }
        let closed: Vec<_> = idle.extract_if(from..end, |idle| !keep(idle)).collect();
        self.count -= closed.len();
        let kept = end - from - closed.len();
        Some(SweepOutcome { kept, closed })
    }
}

impl Drop for ShardWatch {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.lock_shard(self.shard).watched = false;
        }
    }
}

/// True if the server neither closed the connection nor sent anything: it has nothing to say before it is asked.
fn is_silent(stream: &mut Stream) -> bool {
    let mut byte = [0];
    let mut read = ReadBuf::new(&mut byte);
    // Without the budget of the task: without any left, the connection would look alive.
    let look = poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut read));
    let look = pin!(tokio::task::unconstrained(look));
    matches!(
        look.poll(&mut Context::from_waker(Waker::noop())),
        Poll::Pending
    )
}

/// The key of connections that may stand for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    /// The address that was dialled: a connection never stands for one to another address.
    pub address: Option<SocketAddr>,
    /// Of all that distinguishes connections: TLS, names, certificates.
    pub hash: u64,
}
