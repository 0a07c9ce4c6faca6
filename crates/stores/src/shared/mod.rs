//! Shared state ([`Shared`]): short-lived entries (leases, claims, counters), and messages for immediate
//! delivery (publish/subscribe, changed keys). In process for one gateway, on Redis for replicas.
//!
//! Modules own their key names and channels; the only Redis commands are in `redis/`.

mod cluster;
mod connections;
mod counters;
mod log;
mod memory;
mod node;
mod redis;
mod sentinel;
mod server;
mod subscription;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use secrecy::ExposeSecret as _;
use tokio::time::Instant;

pub use self::counters::{CounterChange, CounterState};
pub use self::log::{Entry, EntryId, InvalidEntryId, LogEvent, Tail};
use self::memory::Memory;
use self::redis::Redis;
pub use self::subscription::{Notice, Subscription};
use crate::store::{Cause, InvalidUrl, StoreHealth, Unavailable};
use kernel::config;
use kernel::deadline::ticks;
use kernel::metrics::Metrics;

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

    fn redis(&self) -> Option<&Redis> {
        match &self.store {
            Store::Memory(_) => None,
            Store::Redis(redis) => Some(redis),
        }
    }

    /// Returns true if this is the memory of a single gateway.
    pub fn is_embedded(&self) -> bool {
        self.redis().is_none()
    }

    /// Returns a number that changes when a link to the store is lost or reopened: the store may have come back
    /// empty.
    pub fn loss_count(&self) -> u64 {
        self.redis()
            .map_or(0, |redis| redis.connections.loss_count())
    }

    /// Returns the number of times that other servers took the place of those before. A message that was published at
    /// an earlier one may not have reached every replica.
    pub fn move_count(&self) -> u64 {
        self.redis()
            .map_or(0, |redis| redis.connections.move_count())
    }

    /// Follows `log`, beginning with the newest `keep` entries. On Redis it has its own connection. A dead
    /// connection is detected within 1 s, and no entry is lost over it.
    pub fn follow_log(&self, log: &'static str, keep: usize) -> Tail {
        match &self.store {
            Store::Memory(memory) => Tail::in_memory(Arc::clone(memory), log, keep),
            Store::Redis(redis) => Tail::on_redis(Arc::clone(redis), log, keep),
        }
    }

    /// Checks that the store answers and takes writes.
    ///
    /// # Errors
    /// If it does not.
    pub async fn ping(&self) -> Result<(), Unavailable> {
        let written = async {
            match self.redis() {
                Some(redis) => redis.write_probe().await,
                None => Ok(()),
            }
        };
        self.run("ping", written).await?;
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
        let mut tick = ticks(PROBE_EVERY);
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
        match self.redis() {
            Some(redis) => self.run("ping", redis.read_clock()).await.map(Some),
            None => Ok(None),
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
            Store::Memory(memory) => memory.watch_lapses(prefix),
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

/// Declares the operations that both stores have under the same name. `skip`: nothing is to be done.
macro_rules! operations {
    ($($(#[$doc:meta])* $operation:literal: fn $name:ident($($arg:ident: $type:ty),*) -> $value:ty
        $(, skip if $nothing:expr)?;)*) => {
        impl Shared {
            $($(#[$doc])*
            pub async fn $name(&self, $($arg: $type),*) -> Result<$value, Unavailable> {
                $(if $nothing {
                    return Ok(<$value>::default());
                })?
                let work = async {
                    match &self.store {
                        Store::Memory(memory) => memory.$name($($arg),*),
                        Store::Redis(redis) => redis.$name($($arg),*).await,
                    }
                };
                self.run($operation, work).await
            })*
        }
    };
}

operations! {
    /// Returns the value of a key.
    ///
    /// # Errors
    /// If the store does not answer.
    "get": fn get(key: &str) -> Option<String>;

    /// Returns the values of several keys in their order, in one round trip.
    ///
    /// # Errors
    /// If the store does not answer.
    "get_many": fn get_many(keys: &[&str]) -> Vec<Option<String>>, skip if keys.is_empty();

    /// Returns the value of a key and its remaining time to live. `None`: it has no expiry.
    ///
    /// # Errors
    /// If the store does not answer.
    "get_with_ttl": fn get_with_ttl(key: &str) -> Option<(String, Option<Duration>)>;

    /// Writes a key, with a time to live or without expiry. Replaces an earlier time to live.
    ///
    /// # Errors
    /// If the store does not answer, or is full.
    "set": fn set(key: &str, value: &str, ttl: Option<Duration>) -> ();

    /// Writes keys, each with the same time to live, in one round trip.
    ///
    /// # Errors
    /// If the store does not answer, or is full; some or all may be written then.
    "set_many": fn set_many(values: &[(&str, &str)], ttl: Duration) -> ();

    /// Writes a key unless it exists. Of several concurrent callers exactly one gets `true`.
    ///
    /// # Errors
    /// If the store does not answer, or is full.
    "set_if_absent": fn set_if_absent(key: &str, value: &str, ttl: Duration) -> bool;

    /// Sets a new time to live for keys and keeps their values. Returns which of them exist.
    ///
    /// # Errors
    /// If the store does not answer.
    "refresh": fn refresh(keys: &[&str], ttl: Duration) -> Vec<bool>;

    /// Deletes keys. A key that does not exist is not an error.
    ///
    /// # Errors
    /// If the store does not answer.
    "delete": fn delete(keys: &[&str]) -> (), skip if keys.is_empty();

    /// Increments a counter and returns it. `ttl` counts from the first increment, not the last.
    ///
    /// # Errors
    /// If the store does not answer or is full, or the value is not a counter.
    "increment": fn increment(key: &str, ttl: Duration) -> i64;

    /// Broadcasts to the current subscribers of `channel` on each replica, including this one.
    ///
    /// # Errors
    /// If the store does not answer.
    "publish": fn publish(channel: &str, message: &str) -> ();

    /// Reads and deletes a key atomically: of several concurrent callers one gets the value.
    ///
    /// # Errors
    /// If the store does not answer; the key may or may not be deleted then.
    "take": fn take(key: &str) -> Option<String>;

    /// Appends to `log` in the order given, and drops all but about `entries_max` of the newest.
    ///
    /// # Errors
    /// If the store does not answer; some or all may be appended then.
    "append": fn append(log: &'static str, texts: &[String], entries_max: usize) -> (), skip if texts.is_empty();

    /// Adds a member to a set that keeps the newest `max` for `ttl` after the last addition. Returns the
    /// members removed. The in-process store keeps nothing: a single gateway does not need the set.
    ///
    /// # Errors
    /// If the store does not answer; the member may be added then, and some may be removed.
    "add_newest": fn add_newest(set: &str, member: &str, max: i64, ttl: Duration) -> Vec<String>;

    /// Appends to a log in which the writer numbers the entries upwards from 1. Keeps the newest `keep`
    /// entries, for `ttl`. Skips an entry if its number exists already or is lower than the last: an attempt
    /// without an answer may have appended it.
    ///
    /// # Errors
    /// If the store does not answer; some or all may be appended then.
    "append_numbered": fn append_numbered(log: &str, entries: &[(u64, Bytes)], keep: usize, ttl: Duration) -> (),
        skip if entries.is_empty();

    /// Returns the entries of such a log with a number above `after`, at most `max`.
    ///
    /// # Errors
    /// If the store does not answer.
    "read_numbered": fn read_numbered(log: &str, after: u64, max: usize) -> Vec<(u64, Bytes)>;

    /// Changes counters, and takes shares of what is left, in one round trip. Each change is atomic.
    ///
    /// # Errors
    /// If the store does not answer, or is full; some or all changes may be made then.
    "count": fn count_units(counts: &[CounterChange]) -> Vec<CounterState>, skip if counts.is_empty();

    /// Returns the total of a counter, without a change.
    ///
    /// # Errors
    /// If the store does not answer.
    "total": fn read_total(key: &str) -> u64;

    /// Returns the counters of an index that were used last, at most 1,000, with their names. `key` makes
    /// the key of a counter from its name.
    ///
    /// # Errors
    /// If the store does not answer.
    "counted": fn list_counters(index: &str, key: impl Fn(&str) -> String) -> Vec<(String, CounterState)>;
}

/// Interval between probes of Redis.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// The metric label of this store.
const STORE: &str = "shared";
