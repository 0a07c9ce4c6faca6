//! A bounded cache with entries that push messages invalidate ([`Coherence`]).

use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, Weighter};
use tokio::time::Instant;

use super::Coherence;
use super::loading::{LoadGuard, Loads};
use crate::metrics::{self, Metrics};

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

impl<K: Hash + Eq, V> Clone for CoherentCache<K, V> {
    fn clone(&self) -> Self {
        Self {
            entries: Arc::clone(&self.entries),
            loading: Arc::clone(&self.loading),
            coherence: Arc::clone(&self.coherence),
            metrics: Arc::clone(&self.metrics),
            name: self.name,
            floor: Arc::clone(&self.floor),
            current: self.current,
        }
    }
}

/// Returns the weight of a value: the number of entries it counts as.
pub type Weight<V> = fn(&V) -> u32;

/// A look-up takes a lock that only writes of the same shard hold, and marks the entry as used: it queues nothing.
type Entries<K, V> = Cache<K, Arc<Entry<V>>, Weights<V>>;

/// The weights of the entries; `None`: each counts as one.
struct Weights<V>(Option<Weight<V>>);

impl<V> Clone for Weights<V> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

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
            if self
                .get_valid(key)
                .is_some_and(|found| Arc::ptr_eq(&found, &entry))
            {
                return Ok(entry.value.clone());
            }
            self.entries
                .remove_if(key, |found| Arc::ptr_eq(found, &entry));
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
        let epoch = self.coherence.epoch();
        let loaded_at = Instant::now();
        let value = load().await.map_err(Arc::new)?;
        let entry = Arc::new(Entry {
            value,
            loaded_at,
            epoch,
            settled: AtomicBool::new(false),
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
        let entry = self.entries.get(key);
        entry.map_or(CachedState::Nothing, |entry| {
            CachedState::Value(entry.value.clone())
        })
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
        if entry.settled.load(Ordering::Acquire) {
            return true;
        }
        let unchanged = entry.epoch == self.coherence.epoch();
        if unchanged {
            entry.settled.store(true, Ordering::Release);
        }
        unchanged
    }
}
