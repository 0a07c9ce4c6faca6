//! Shared state ([`Shared`]): short-lived entries (leases, claims, counters), and messages for immediate
//! delivery (publish/subscribe, changed keys). In process for one gateway, on Redis for replicas.
//!
//! Modules own their key names and channels; the only Redis commands are in `redis/`.

mod cluster;
mod connections;
mod counters;
mod counting;
mod log;
mod memory;
mod node;
mod numbered_logs;
mod redis;
mod sentinel;
mod server;
mod subscription;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use secrecy::ExposeSecret as _;
use tokio::time::{Instant, MissedTickBehavior, interval};

pub use self::counters::{CounterChange, CounterState};
pub use self::log::{Entry, EntryId, InvalidEntryId, LogEvent, Tail};
use self::memory::Memory;
use self::redis::Redis;
pub use self::subscription::{Notice, Subscription};
use crate::config;
use crate::metrics::Metrics;
use crate::store::{Cause, InvalidUrl, StoreHealth, Unavailable};

/// A handle to the shared state. Clones share one store.
///
/// Each operation fails with [`Unavailable`] after `stores.timeout` at the latest; a write may or may not have
/// happened then. Times to live count in milliseconds; less than one counts as one.
#[derive(Clone)]
pub struct Shared {
    store: Store,
    metrics: Arc<Metrics>,
    health: Arc<StoreHealth>,
}

#[derive(Clone)]
enum Store {
    Memory(Arc<Memory>),
    Redis(Arc<Redis>),
}

impl Shared {
    /// Checks the URL. Does not connect: the first operation does.
    ///
    /// # Errors
    /// If `stores.shared` has no known form, or names a certificate file that cannot be read.
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
            health: Arc::default(),
        })
    }

    /// Returns true if this is the memory of a single gateway.
    pub fn is_embedded(&self) -> bool {
        matches!(self.store, Store::Memory(_))
    }

    /// Returns a number that changes when a link to the store is lost or reopened: the store may have come back
    /// empty.
    pub fn loss_count(&self) -> u64 {
        match &self.store {
            Store::Memory(_) => 0,
            Store::Redis(redis) => redis.loss_count(),
        }
    }

    /// Returns the number of times that other servers took the place of those before. A message that was published at an
    /// earlier one may not have reached every replica.
    pub fn move_count(&self) -> u64 {
        match &self.store {
            Store::Memory(_) => 0,
            Store::Redis(redis) => redis.move_count(),
        }
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn get(&self, key: &str) -> Result<Option<String>, Unavailable> {
        self.run("get", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.get(key)),
                Store::Redis(redis) => redis.get(key).await,
            }
        })
        .await
    }

    /// Returns the values of several keys in their order, in one round trip.
    ///
    /// # Errors
    /// If the store does not answer.
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

    /// Returns the value of a key and its remaining time to live. `None`: it has no expiry.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn get_with_ttl(
        &self,
        key: &str,
    ) -> Result<Option<(String, Option<Duration>)>, Unavailable> {
        self.run("get_with_ttl", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.get_with_ttl(key)),
                Store::Redis(redis) => redis::scripts::get_with_ttl(redis, key).await,
            }
        })
        .await
    }

    /// Writes a key, with a time to live or without expiry. Replaces an earlier time to live.
    ///
    /// # Errors
    /// If the store does not answer, or is full.
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

    /// Writes keys, each with the same time to live, in one round trip.
    ///
    /// # Errors
    /// If the store does not answer, or is full; some or all may be written then.
    pub async fn set_many(
        &self,
        values: &[(&str, &str)],
        ttl: Duration,
    ) -> Result<(), Unavailable> {
        self.run("set_many", async {
            match &self.store {
                Store::Memory(memory) => {
                    let set = |(key, value): &(&str, &str)| memory.set(key, value, Some(ttl));
                    values.iter().try_for_each(set)
                }
                Store::Redis(redis) => redis.set_many(values, Some(ttl)).await,
            }
        })
        .await
    }

    /// Writes a key unless it exists. Of several concurrent callers exactly one gets `true`.
    ///
    /// # Errors
    /// If the store does not answer, or is full.
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

    /// Sets a new time to live for keys and keeps their values. Returns which of them exist.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn refresh(&self, keys: &[&str], ttl: Duration) -> Result<Vec<bool>, Unavailable> {
        self.run("refresh", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.refresh(keys, ttl)),
                Store::Redis(redis) => redis.refresh(keys, ttl).await,
            }
        })
        .await
    }

    /// Deletes keys. A key that does not exist is not an error.
    ///
    /// # Errors
    /// If the store does not answer.
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

    /// Increments a counter and returns it. `ttl` counts from the first increment, not the last.
    ///
    /// # Errors
    /// If the store does not answer or is full, or the value is not a counter.
    pub async fn increment(&self, key: &str, ttl: Duration) -> Result<i64, Unavailable> {
        self.run("increment", async {
            match &self.store {
                Store::Memory(memory) => memory.increment(key, ttl),
                Store::Redis(redis) => redis::scripts::increment(redis, key, ttl).await,
            }
        })
        .await
    }

    /// Broadcasts to the current subscribers of `channel` on each replica, including this one.
    ///
    /// # Errors
    /// If the store does not answer.
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

    /// Reads and deletes a key atomically: of several concurrent callers one gets the value.
    ///
    /// # Errors
    /// If the store does not answer; the key may or may not be deleted then.
    pub async fn take(&self, key: &str) -> Result<Option<String>, Unavailable> {
        self.run("take", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.take(key)),
                Store::Redis(redis) => redis::scripts::take(redis, key).await,
            }
        })
        .await
    }

    /// Appends to `log` in the order given, and drops all but about `entries_max` of the newest.
    ///
    /// # Errors
    /// If the store does not answer; some or all may be appended then.
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

    /// Adds a member to a set that keeps the newest `max` for `ttl` after the last addition. Returns the
    /// members removed. The in-process store keeps nothing: a single gateway does not need the set.
    ///
    /// # Errors
    /// If the store does not answer; the member may be added then, and some may be removed.
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

    /// Follows `log`, beginning with the newest `keep` entries. On Redis it has its own connection. A dead
    /// connection is detected within 1 s, and no entry is lost over it.
    pub fn follow_log(&self, log: &'static str, keep: usize) -> Tail {
        match &self.store {
            Store::Memory(memory) => Tail::in_memory(Arc::clone(memory), log, keep),
            Store::Redis(redis) => Tail::on_redis(Arc::clone(redis), log, keep),
        }
    }

    /// Appends to a log in which the writer numbers the entries upwards from 1. Keeps the newest `keep`
    /// entries, for `ttl`. Skips an entry if its number exists already or is lower than the last: an attempt
    /// without an answer may have appended it.
    ///
    /// # Errors
    /// If the store does not answer; some or all may be appended then.
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

    /// Returns the entries of such a log with a number above `after`, at most `max`.
    ///
    /// # Errors
    /// If the store does not answer.
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

    /// Checks that the store answers and takes writes.
    ///
    /// # Errors
    /// If it does not.
    pub async fn ping(&self) -> Result<(), Unavailable> {
        let written = self.run("ping", async {
            match &self.store {
                Store::Memory(_) => Ok(()),
                Store::Redis(redis) => redis::write_probe(redis).await,
            }
        });
        written.await?;
        self.health.record_accepted_write(STORE);
        Ok(())
    }

    /// Returns true if the store has answered since the process began.
    pub fn has_answered(&self) -> bool {
        self.health.has_answered()
    }

    /// Returns true if the store answered and took writes when last used. Sends nothing.
    pub fn is_well(&self) -> bool {
        self.health.is_well()
    }

    /// Probes Redis regularly, until dropped: its reads may succeed while its writes fail.
    pub async fn probe_regularly(&self) {
        if self.is_embedded() {
            return;
        }
        let mut tick = interval(PROBE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            // `run` records and counts the outcome.
            let _ = self.ping().await;
        }
    }

    /// Returns the server's clock.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn read_clock(&self) -> Result<Option<SystemTime>, Unavailable> {
        match &self.store {
            Store::Memory(_) => Ok(None),
            Store::Redis(redis) => {
                let asked = self.run("ping", async { redis::read_clock(redis).await });
                asked.await.map(Some)
            }
        }
    }

    /// Subscribes to a channel. Nothing is complete before the first [`Notice::Up`]. On Redis the first
    /// [`Subscription::next`] opens the link, which is not shared.
    pub fn subscribe(&self, channel: &'static str) -> Subscription {
        match &self.store {
            Store::Memory(memory) => memory.subscribe(channel),
            Store::Redis(redis) => redis.subscribe(channel),
        }
    }

    /// Subscribes to changes of keys that begin with one of `prefixes`, by any writer. Each message is the name
    /// of a key that was written or deleted, or has lapsed (which may be reported late). Otherwise like
    /// [`Shared::subscribe`].
    pub fn watch_keys(&self, prefixes: Vec<String>) -> Subscription {
        match &self.store {
            Store::Memory(memory) => memory.watch_keys(prefixes),
            Store::Redis(redis) => redis.watch_keys(prefixes),
        }
    }

    /// Subscribes to lapses of keys that begin with `prefix`. Each message is the name of a key. Best effort:
    /// Redis reports them only if `notify-keyspace-events` has `E` and `x` (which the operator sets, not the
    /// gateway), late under load, and never for lapses while the link was down. Otherwise like
    /// [`Shared::subscribe`].
    pub fn watch_lapses(&self, prefix: &str) -> Subscription {
        match &self.store {
            Store::Memory(memory) => Memory::watch_lapses(memory, prefix),
            Store::Redis(redis) => redis.watch_lapses(prefix),
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
            .record_operation(STORE, operation, started.elapsed(), result.is_ok());
        match &result {
            Err(error) if redis::refuses_writes(&error.source) => {
                self.health.record_refused_write(STORE, error);
            }
            _ => self.health.record_result(STORE, &result),
        }
        result
    }
}

/// Interval between probes of Redis.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// The metric label of this store.
const STORE: &str = "shared";
