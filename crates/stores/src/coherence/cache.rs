//! A bounded cache with entries that push messages invalidate ([`Coherence`]).
//!
//! Loads in progress by key: callers of one key share a load, and others can detect that one may have read an older
//! value.

use std::any::Any;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, Weighter};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};

use super::Coherence;
use crate::store::Unavailable;
use kernel::metrics::{self, Metrics};

/// One cached value.
struct Entry<V> {
    value: V,
    loaded_at: Instant,
    /// The epoch before the load began.
    epoch: u64,
    /// Set once the entry was seen in the cache with no invalidation since its load began. From
    /// then on an invalidation removes it from the cache.
    settled: AtomicBool,
}

/// The state of a key in a cache.
#[derive(Clone, Debug)]
pub enum CachedState<V> {
    /// Neither a value nor a load in progress. The next lookup reads the current value.
    Nothing,
    /// A load is in progress. It may have read an older value.
    Loading,
    /// A cached value, expired or not.
    Value(V),
}

/// A bounded cache: loads are single-flight, and entries live for [`Coherence::max_age`].
///
/// The owner registers with [`Coherence::on_invalidation`] and calls [`CoherentCache::forget`].
#[derive(Clone)]
pub struct CoherentCache<K, V> {
    entries: Arc<Entries<K, V>>,
    /// The loads of each key, from before a load begins until its value is in `entries`.
    loading: Arc<Loads<K>>,
    coherence: Arc<Coherence>,
    metrics: Arc<Metrics>,
    name: metrics::Cache,
    /// The epoch of the last [`CoherentCache::forget_all`]. Older entries are stale.
    floor: Arc<AtomicU64>,
    /// Returns true if a value is still valid by its own content, apart from its age.
    current: fn(&V) -> bool,
}

/// Returns the weight of a value: the number of entries it counts as.
pub type Weight<V> = fn(&V) -> u32;

/// A look-up takes a lock that only writes of the same shard hold, and marks the entry as used: it queues nothing.
type Entries<K, V> = Cache<K, Arc<Entry<V>>, Weights<V>>;

/// The weights of the entries; `None`: each counts as one.
#[derive(Clone)]
struct Weights<V>(Option<Weight<V>>);

impl<K, V> Weighter<K, Arc<Entry<V>>> for Weights<V> {
    fn weight(&self, _: &K, entry: &Arc<Entry<V>>) -> u64 {
        self.0.map_or(1, |weight| u64::from(weight(&entry.value)))
    }
}

impl<K, V> CoherentCache<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates an empty cache of at most `entries_max`, counted under `name`. Without `weight` each
    /// value counts as one. With it the cache chooses worse which entries to keep, as it cannot
    /// know how many will fit.
    pub fn new(
        coherence: Arc<Coherence>,
        metrics: Arc<Metrics>,
        name: metrics::Cache,
        (entries_max, weight): (u64, Option<Weight<V>>),
        current: fn(&V) -> bool,
    ) -> Self {
        let entries_expected = usize::try_from(entries_max).unwrap_or(usize::MAX);
        let entries = Cache::with(
            entries_expected,
            entries_max,
            Weights(weight),
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        );
        Self {
            entries: Arc::new(entries),
            loading: Arc::default(),
            coherence,
            metrics,
            name,
            floor: Arc::default(),
            current,
        }
    }

    /// Returns the cached value if it is valid. Counts only hits: after a miss the caller calls
    /// [`CoherentCache::get_or_load`], which counts the miss.
    pub fn get(&self, key: &K) -> Option<V> {
        Some(self.get_aged(key)?.0)
    }

    /// Like [`CoherentCache::get`], with the time at which the value was loaded.
    pub fn get_aged(&self, key: &K) -> Option<(V, Instant)> {
        let entry = self.get_valid(key)?;
        self.metrics.count_lookup(self.name, true);
        Some((entry.value.clone(), entry.loaded_at))
    }

    /// Returns all valid values with their load times. Visits each entry, so callers use it rarely.
    pub fn iter_valid(&self) -> impl Iterator<Item = (V, Instant)> {
        let valid = self.entries.iter().map(|(_, entry)| entry);
        let valid = valid.filter(|entry| self.is_valid(entry));
        valid.map(|entry| (entry.value.clone(), entry.loaded_at))
    }

    /// Returns the cached value with the time at which it was loaded, else the result of `load` and `None`.
    ///
    /// # Errors
    /// As [`CoherentCache::get_or_load`].
    pub async fn get_or_read<F>(
        &self,
        key: &K,
        load: impl Fn() -> F,
    ) -> Result<(V, Option<Instant>), Unavailable>
    where
        F: Future<Output = Result<V, Unavailable>>,
    {
        if let Some((value, loaded_at)) = self.get_aged(key) {
            return Ok((value, Some(loaded_at)));
        }
        // Boxed: a miss is rare, and its future would otherwise widen every exchange's.
        match Box::pin(self.get_or_load(key, load)).await {
            Ok(value) => Ok((value, None)),
            Err(away) => Err(Unavailable::clone(&away)),
        }
    }

    /// Returns the cached value, else the result of `load`, which concurrent callers of the same
    /// key share.
    ///
    /// # Errors
    /// The error of `load`, for each caller that waited for it. Errors are not cached.
    pub async fn get_or_load<E, F>(&self, key: &K, load: impl Fn() -> F) -> Result<V, Arc<E>>
    where
        E: Send + Sync + 'static,
        F: Future<Output = Result<V, E>>,
    {
        if let Some(value) = self.get(key) {
            return Ok(value);
        }
        self.metrics.count_lookup(self.name, false);
        let asked_at = self.coherence.epoch();
        loop {
            let loading = LoadGuard::join(&self.loading, key);
            let loaded = loading.wait(|| self.load_entry(key, &load)).await;
            let entry = loaded?;
            // One that counts and is not cached was invalidated since.
            let is_entry = |found: &Arc<Entry<V>>| Arc::ptr_eq(found, &entry);
            if self.get_valid(key).is_some_and(|found| is_entry(&found)) {
                return Ok(entry.value.clone());
            }
            self.entries.remove_if(key, is_entry);
            // A load that began before this call may have read a value that has changed since. The
            // load of the next round begins after it ended, so two rounds are enough.
            if entry.epoch >= asked_at {
                return Ok(entry.value.clone());
            }
        }
    }

    /// Returns the entry that another load has put there since, or loads it and puts it there.
    async fn load_entry<E, F>(
        &self,
        key: &K,
        load: &impl Fn() -> F,
    ) -> Result<Arc<Entry<V>>, Arc<E>>
    where
        F: Future<Output = Result<V, E>>,
    {
        if let Some(entry) = self.get_valid(key) {
            return Ok(entry);
        }
        let (epoch, loaded_at) = (self.coherence.epoch(), Instant::now());
        let entry = Arc::new(Entry {
            value: load().await.map_err(Arc::new)?,
            loaded_at,
            epoch,
            settled: AtomicBool::default(),
        });
        self.entries.insert(key.clone(), Arc::clone(&entry));
        Ok(entry)
    }

    /// Returns the cached value without loading it: for callers that know that a value may have
    /// changed and can compare it.
    pub fn cached_state(&self, key: &K) -> CachedState<V> {
        // In this order: a load that neither check sees begins after the first check.
        if self.loading.contains_key(key) {
            return CachedState::Loading;
        }
        match self.entries.get(key) {
            Some(entry) => CachedState::Value(entry.value.clone()),
            None => CachedState::Nothing,
        }
    }

    /// Removes one entry.
    pub fn forget(&self, key: &K) {
        self.entries.remove(key);
    }

    /// Removes all entries.
    pub fn forget_all(&self) {
        // An entry that is inserted while the shards are cleared, one by one, is older than the floor.
        self.floor.store(self.coherence.epoch(), Ordering::Release);
        self.entries.clear();
    }

    /// Returns the cached entry if it is valid for requests that begin now.
    fn get_valid(&self, key: &K) -> Option<Arc<Entry<V>>> {
        self.entries.get(key).filter(|entry| self.is_valid(entry))
    }

    /// Returns true if the entry is valid for requests that begin now.
    fn is_valid(&self, entry: &Entry<V>) -> bool {
        self.mark_settled(entry)
            && entry.epoch >= self.floor.load(Ordering::Acquire)
            && entry.loaded_at.elapsed() < self.coherence.max_age()
            && (self.current)(&entry.value)
    }

    fn mark_settled(&self, entry: &Entry<V>) -> bool {
        let is_settled = entry.settled.load(Ordering::Acquire);
        if !is_settled && entry.epoch == self.coherence.epoch() {
            entry.settled.store(true, Ordering::Release);
            return true;
        }
        is_settled
    }
}

/// Longest wait for the load of another caller. The load has clocks of its own, which count only while it is polled.
const JOINED_MAX: Duration = Duration::from_secs(30);

/// The loads in progress of a cache.
pub(super) type Loads<K> = DashMap<K, Load>;

/// The callers that load one key.
pub(super) struct Load {
    callers: usize,
    /// The `OnceCell` of the load that they share. Callers with results of several types share one load a type at most.
    result: Arc<dyn Any + Send + Sync>,
}

/// The part of one caller in a load, until dropped.
pub(super) struct LoadGuard<'a, K: Hash + Eq, T> {
    loads: &'a Loads<K>,
    key: &'a K,
    result: Arc<OnceCell<T>>,
}

impl<'a, K: Hash + Eq + Clone, T: Clone + Send + Sync + 'static> LoadGuard<'a, K, T> {
    /// Joins the load of `key` that is in progress, or begins one.
    pub(super) fn join(loads: &'a Loads<K>, key: &'a K) -> Self {
        let mine = Arc::<OnceCell<T>>::default();
        let mut load = loads.entry(key.clone()).or_insert_with(|| Load {
            callers: 0,
            result: Arc::clone(&mine) as _,
        });
        load.callers += 1;
        let result = match Arc::clone(&load.result).downcast::<OnceCell<T>>() {
            Ok(shared) if !shared.initialized() => shared,
            // That load is over, and its callers have not gone yet.
            Ok(_) => {
                load.result = Arc::clone(&mine) as _;
                mine
            }
            Err(_) => mine,
        };
        drop(load);
        Self { loads, key, result }
    }

    /// Returns the result of the load: of the first caller's `load`, and of the next one's if the first is dropped, or
    /// is not polled to its end in [`JOINED_MAX`].
    pub(super) async fn wait<F: Future<Output = T>>(&self, load: impl Fn() -> F) -> T {
        match timeout(JOINED_MAX, self.result.get_or_init(&load)).await {
            Ok(result) => result.clone(),
            Err(_) => load().await,
        }
    }
}

impl<K: Hash + Eq, T> Drop for LoadGuard<'_, K, T> {
    fn drop(&mut self) {
        if let Some(mut load) = self.loads.get_mut(self.key) {
            load.callers = load.callers.saturating_sub(1);
        }
        self.loads.remove_if(self.key, |_, load| load.callers == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_load_that_its_first_caller_does_not_poll_is_made_by_the_next() {
        let (loads, key) = (Loads::default(), 1_u8);
        let first = LoadGuard::join(&loads, &key);
        let slow = || async {
            tokio::task::yield_now().await;
            1
        };
        let mut unpolled = Box::pin(first.wait(slow));
        assert!(futures_util::poll!(&mut unpolled).is_pending());
        let second = LoadGuard::join(&loads, &key);
        assert_eq!(second.wait(|| async { 2 }).await, 2);
    }
}
