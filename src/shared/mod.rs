//! Shared state: what lives for a while (leases, claims, counters) and what must be told at once
//! (publish/subscribe, changed keys). In process for one gateway, on Redis for replicas.
//!
//! Rooms own their key names and channels; the only Redis commands are in `redis/`.

mod client;
mod connections;
mod log;
mod memory;
mod numbered;
mod redis;
mod subscription;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use secrecy::ExposeSecret as _;
use tokio::time::{Instant, MissedTickBehavior, interval};

pub use self::log::{Entry, EntryId, Followed, NotAnEntryId, Tail};
use self::memory::Memory;
use self::redis::Redis;
pub use self::subscription::{Notice, Subscription};
use crate::config;
use crate::metrics::Metrics;
use crate::store::{Answering, Cause, InvalidUrl, Unavailable};

/// Handle to the shared state. Clones are the same store.
///
/// Every operation is [`Unavailable`] at the latest after `stores.timeout`, and then a write may or
/// may not have been done. Times to live count in milliseconds; less than one counts as one.
#[derive(Clone)]
pub struct Shared {
    store: Store,
    metrics: Arc<Metrics>,
    answering: Arc<Answering>,
}

#[derive(Clone)]
enum Store {
    Memory(Arc<Memory>),
    Redis(Arc<Redis>),
}

impl Shared {
    /// Checks the URL. Connects to nothing: the first operation does.
    ///
    /// # Errors
    /// When `stores.shared` has no known form, or names a certificate file that cannot be read.
    pub fn open(settings: &config::Stores, metrics: Arc<Metrics>) -> Result<Self, InvalidUrl> {
        let url = settings.shared.expose_secret();
        let store = if url == "memory" {
            Store::Memory(Arc::default())
        } else {
            Store::Redis(Arc::new(Redis::open(url, settings.timeout)?))
        };
        Ok(Self {
            store,
            metrics,
            answering: Arc::default(),
        })
    }

    /// Whether this is the memory of a single gateway.
    pub fn is_embedded(&self) -> bool {
        matches!(self.store, Store::Memory(_))
    }

    /// Another number whenever a link to the store was lost or made again: it may have come back
    /// empty.
    pub fn losses(&self) -> u64 {
        match &self.store {
            Store::Memory(_) => 0,
            Store::Redis(redis) => redis.losses(),
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn get(&self, key: &str) -> Result<Option<String>, Unavailable> {
        self.run("get", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.get(key)),
                Store::Redis(redis) => redis.get(key).await,
            }
        })
        .await
    }

    /// The values of several keys in their order, in one round trip.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn get_many(&self, keys: &[&str]) -> Result<Vec<Option<String>>, Unavailable> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.run("get_many", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.get_many(keys)),
                Store::Redis(redis) => redis.get_many(keys).await,
            }
        })
        .await
    }

    /// The value of a key and how long it still lives; `None`: until it is deleted.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn get_with_ttl(
        &self,
        key: &str,
    ) -> Result<Option<(String, Option<Duration>)>, Unavailable> {
        self.run("get_with_ttl", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.get_with_ttl(key)),
                Store::Redis(redis) => redis.get_with_ttl(key).await,
            }
        })
        .await
    }

    /// Writes a key, with its time to live or for good. An earlier time to live is forgotten.
    ///
    /// # Errors
    /// When the store does not answer, or is full.
    pub async fn set(
        &self,
        key: &str,
        value: &str,
        ttl: Option<Duration>,
    ) -> Result<(), Unavailable> {
        self.run("set", async {
            match &self.store {
                Store::Memory(memory) => memory.set(key, value, ttl),
                Store::Redis(redis) => redis.set(key, value, ttl).await,
            }
        })
        .await
    }

    /// Writes a key unless it exists. Of several callers at once, exactly one reads `true`.
    ///
    /// # Errors
    /// When the store does not answer, or is full.
    pub async fn set_if_absent(
        &self,
        key: &str,
        value: &str,
        ttl: Duration,
    ) -> Result<bool, Unavailable> {
        self.run("set_if_absent", async {
            match &self.store {
                Store::Memory(memory) => memory.set_if_absent(key, value, ttl),
                Store::Redis(redis) => redis.set_if_absent(key, value, ttl).await,
            }
        })
        .await
    }

    /// Gives keys a new time to live and leaves their values; answers which of them exist.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn refresh(&self, keys: &[&str], ttl: Duration) -> Result<Vec<bool>, Unavailable> {
        self.run("refresh", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.refresh(keys, ttl)),
                Store::Redis(redis) => redis.refresh(keys, ttl).await,
            }
        })
        .await
    }

    /// Deletes keys; those that do not exist are no error.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn delete(&self, keys: &[&str]) -> Result<(), Unavailable> {
        if keys.is_empty() {
            return Ok(());
        }
        self.run("delete", async {
            match &self.store {
                Store::Memory(memory) => {
                    memory.delete(keys);
                    Ok(())
                }
                Store::Redis(redis) => redis.delete(keys).await,
            }
        })
        .await
    }

    /// Adds one to a counter and returns it. `ttl` counts from the first increment, not the last.
    ///
    /// # Errors
    /// When the store does not answer, is full, or the key holds something else.
    pub async fn increment(&self, key: &str, ttl: Duration) -> Result<i64, Unavailable> {
        self.run("increment", async {
            match &self.store {
                Store::Memory(memory) => memory.increment(key, ttl),
                Store::Redis(redis) => redis.increment(key, ttl).await,
            }
        })
        .await
    }

    /// Tells everyone who is subscribed to `channel` right now, on every replica, this one included.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn publish(&self, channel: &str, message: &str) -> Result<(), Unavailable> {
        self.run("publish", async {
            match &self.store {
                Store::Memory(memory) => {
                    memory.publish(channel, message);
                    Ok(())
                }
                Store::Redis(redis) => redis.publish(channel, message).await,
            }
        })
        .await
    }

    /// Reads and deletes a key in one step: of several callers at once, one gets the value.
    ///
    /// # Errors
    /// When the store does not answer; then it may be gone, or not.
    pub async fn take(&self, key: &str) -> Result<Option<String>, Unavailable> {
        self.run("take", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.take(key)),
                Store::Redis(redis) => redis.take(key).await,
            }
        })
        .await
    }

    /// Appends to `log` in the order given, and forgets all but about `entries_max` of the newest.
    ///
    /// # Errors
    /// When the store does not answer; then some may be appended, or all.
    pub async fn append(
        &self,
        log: &'static str,
        texts: &[String],
        entries_max: usize,
    ) -> Result<(), Unavailable> {
        if texts.is_empty() {
            return Ok(());
        }
        self.run("append", async {
            match &self.store {
                Store::Memory(memory) => {
                    memory.log_append(log, texts, entries_max);
                    Ok(())
                }
                Store::Redis(redis) => redis.log_append(log, texts, entries_max).await,
            }
        })
        .await
    }

    /// Adds a member to a set that keeps the newest `max` for `ttl` after the last one, and answers those that had to go.
    /// In memory nothing is kept: a gateway alone has no use for it.
    ///
    /// # Errors
    /// When the store does not answer; then it may be there, and some may have gone.
    pub async fn add_newest(
        &self,
        set: &str,
        member: &str,
        max: i64,
        ttl: Duration,
    ) -> Result<Vec<String>, Unavailable> {
        self.run("add_newest", async {
            match &self.store {
                Store::Memory(_) => Ok(Vec::new()),
                Store::Redis(redis) => redis.add_newest(set, member, max, ttl).await,
            }
        })
        .await
    }

    /// Follows `log`, beginning with the newest `keep` entries that are there. On Redis it has a
    /// connection of its own, which is known to be dead within 1 s; nothing is lost over it.
    pub fn tail(&self, log: &'static str, keep: usize) -> Tail {
        match &self.store {
            Store::Memory(memory) => Tail::in_memory(Arc::clone(memory), log, keep),
            Store::Redis(redis) => Tail::on_redis(Arc::clone(redis), log, keep),
        }
    }

    /// Appends to a log whose writer numbers its entries, upwards from 1, and keeps the newest `keep` of
    /// it, for `ttl`. An entry whose number is there already, or lower than the last, is left out: it may
    /// have been appended by a try without an answer.
    ///
    /// # Errors
    /// When the store does not answer; then some may be appended, or all.
    pub async fn append_numbered(
        &self,
        log: &str,
        entries: &[(u64, Bytes)],
        keep: usize,
        ttl: Duration,
    ) -> Result<(), Unavailable> {
        if entries.is_empty() {
            return Ok(());
        }
        self.run("append_numbered", async {
            match &self.store {
                Store::Memory(memory) => {
                    memory.numbered.append(log, entries, keep, ttl);
                    Ok(())
                }
                Store::Redis(redis) => redis.append_numbered(log, entries, keep, ttl).await,
            }
        })
        .await
    }

    /// The entries of such a log that are numbered higher than `after`, `max` at most.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn read_numbered(
        &self,
        log: &str,
        after: u64,
        max: usize,
    ) -> Result<Vec<(u64, Bytes)>, Unavailable> {
        self.run("read_numbered", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.numbered.read(log, after, max)),
                Store::Redis(redis) => redis.read_numbered(log, after, max).await,
            }
        })
        .await
    }

    /// Learns whether the store answers and takes writes.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ping(&self) -> Result<(), Unavailable> {
        let written = self.run("ping", async {
            match &self.store {
                Store::Memory(_) => Ok(()),
                Store::Redis(redis) => redis.write_probe().await,
            }
        });
        written.await?;
        self.answering.takes_writes(STORE);
        Ok(())
    }

    /// Whether the store answered since the process began.
    pub fn has_answered(&self) -> bool {
        self.answering.has_answered()
    }

    /// Whether the store answers and takes writes, as far as is known. Asks nothing.
    pub fn is_well(&self) -> bool {
        self.answering.is_well()
    }

    /// Probes a Redis regularly, until it is dropped: its reads go on where its writes fail.
    pub async fn probe_regularly(&self) {
        if self.is_embedded() {
            return;
        }
        let mut tick = interval(PROBE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            // How it ended is noted and counted where it is made.
            let _ = self.ping().await;
        }
    }

    /// The server's clock.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn clock(&self) -> Result<Option<SystemTime>, Unavailable> {
        match &self.store {
            Store::Memory(_) => Ok(None),
            Store::Redis(redis) => {
                let asked = self.run("ping", async { redis.clock().await });
                asked.await.map(Some)
            }
        }
    }

    /// Listens to a channel. Nothing is complete before the first [`Notice::Up`]. On Redis the link
    /// is made by the first [`Subscription::next`], and is its own.
    pub fn subscribe(&self, channel: &'static str) -> Subscription {
        match &self.store {
            Store::Memory(memory) => memory.subscribe(channel),
            Store::Redis(redis) => redis.subscribe(channel),
        }
    }

    /// Listens to changes of keys that begin with one of `prefixes`, whoever makes them: each
    /// message is the name of a key that was written or deleted, or has lapsed (which may be told
    /// late). Otherwise like [`Shared::subscribe`].
    pub fn watch(&self, prefixes: Vec<String>) -> Subscription {
        match &self.store {
            Store::Memory(memory) => memory.watch(prefixes),
            Store::Redis(redis) => redis.watch(prefixes),
        }
    }

    /// Listens to keys that begin with `prefix` and lapse: each message is the name of one. Best
    /// effort: Redis tells only where `notify-keyspace-events` has `E` and `x` (ours to ask for, not
    /// to switch on), late under load, and never what lapsed while the link was down. Otherwise like
    /// [`Shared::subscribe`].
    pub fn lapses(&self, prefix: &str) -> Subscription {
        match &self.store {
            Store::Memory(memory) => Memory::lapses(memory, prefix),
            Store::Redis(redis) => redis.lapses(prefix),
        }
    }

    async fn run<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, Cause>>,
    ) -> Result<T, Unavailable> {
        let started = Instant::now();
        let result = work.await.map_err(|source| Unavailable {
            store: STORE,
            operation,
            source,
        });
        self.metrics
            .store(STORE, operation, started.elapsed(), result.is_ok());
        match &result {
            Err(error) if redis::refuses_writes(&error.source) => {
                self.answering.refuses_writes(STORE, error);
            }
            _ => self.answering.note(STORE, &result),
        }
        result
    }
}

/// How often a Redis is probed.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// The metric label of this store.
const STORE: &str = "shared";
