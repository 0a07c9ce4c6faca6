//! A bounded cache with entries that push messages invalidate ([`Coherence`]).

use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dashmap::DashMap;
use moka::future::Cache;
use moka::ops::compute::Op;
use tokio::time::Instant;

use super::Coherence;
use super::loading::Loading;
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
pub enum Known<V> {
    /// Neither a value nor a load in progress. The next lookup reads the current value.
    Nothing,
    /// A load is in progress. It may have read an older value.
    Loading,
    /// A cached value, expired or not.
    Value(V),
}

/// A bounded cache: loads are single-flight, and entries live for [`Coherence::max_age`].
///
/// The owner registers with [`Coherence::on_invalidation`] and calls [`Coherent::forget`].
pub struct Coherent<K, V> {
    entries: Cache<K, Arc<Entry<V>>>,
    /// The number of callers that load each key, from before the load begins until its value is in
    /// `entries`.
    loading: Arc<DashMap<K, usize>>,
    coherence: Arc<Coherence>,
    metrics: Arc<Metrics>,
    name: metrics::Cache,
    /// The epoch of the last [`Coherent::forget_all`]. Older entries are stale.
    floor: Arc<AtomicU64>,
    /// Returns true if a value is still valid by its own content, apart from its age.
    current: fn(&V) -> bool,
}

impl<K: Hash + Eq, V> Clone for Coherent<K, V> {
    fn clone(&self) -> Self {
        Self {
            entries: self.entries.clone(),
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

impl<K, V> Coherent<K, V>
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
        let entries = Cache::builder().max_capacity(entries_max);
        let entries = match weight {
            Some(weight) => entries.weigher(move |_, entry: &Arc<Entry<V>>| weight(&entry.value)),
            None => entries,
        };
        Self {
            entries: entries.build(),
            loading: Arc::default(),
            coherence,
            metrics,
            name,
            floor: Arc::default(),
            current,
        }
    }

    /// Runs the pending evictions. For tests: they otherwise run in the background.
    #[cfg(test)]
    pub(crate) async fn decide_now(&self) {
        self.entries.run_pending_tasks().await;
    }

    /// Returns the cached value if it is valid. Counts only hits: after a miss the caller calls
    /// [`Coherent::get_or_load`], which counts the miss.
    pub async fn get(&self, key: &K) -> Option<V> {
        Some(self.get_aged(key).await?.0)
    }

    /// Like [`Coherent::get`], with the time at which the value was loaded.
    pub async fn get_aged(&self, key: &K) -> Option<(V, Instant)> {
        let found = self.entries.get(key).await;
        let entry = found.filter(|entry| self.counts(entry))?;
        self.metrics.cache(self.name, true);
        Some((entry.value.clone(), entry.loaded_at))
    }

    /// Returns all valid values with their load times. Visits each entry, so callers use it rarely.
    pub fn all(&self) -> impl Iterator<Item = (V, Instant)> {
        let counting = self.entries.iter().map(|(_, entry)| entry);
        let counting = counting.filter(|entry| self.counts(entry));
        counting.map(|entry| (entry.value.clone(), entry.loaded_at))
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
        if let Some(value) = self.get(key).await {
            return Ok(value);
        }
        self.metrics.cache(self.name, false);
        let _loading = Loading::begin(&self.loading, key);
        let asked_at = self.coherence.epoch();
        loop {
            self.evict_lapsed(key).await;
            let entry = self
                .entries
                .try_get_with_by_ref(key, async {
                    let epoch = self.coherence.epoch();
                    let loaded_at = Instant::now();
                    let value = load().await?;
                    Ok(Arc::new(Entry {
                        value,
                        loaded_at,
                        epoch,
                        settled: AtomicBool::new(false),
                    }))
                })
                .await?;
            if self.counts(&entry) {
                return Ok(entry.value.clone());
            }
            self.evict(key, &entry).await;
            // A load that began before this call may have read a value that has changed since. The
            // load of the next round begins after it ended, so two rounds are enough.
            if entry.epoch >= asked_at {
                return Ok(entry.value.clone());
            }
        }
    }

    /// Returns the cached value without loading it: for callers that know that a value may have
    /// changed and can compare it.
    pub async fn known(&self, key: &K) -> Known<V> {
        // In this order: a load that neither check sees begins after the first check.
        if self.loading.contains_key(key) {
            return Known::Loading;
        }
        let entry = self.entries.get(key).await;
        entry.map_or(Known::Nothing, |entry| Known::Value(entry.value.clone()))
    }

    /// Removes one entry.
    pub async fn forget(&self, key: &K) {
        self.entries.invalidate(key).await;
    }

    /// Removes all entries.
    pub fn forget_all(&self) {
        // moka compares times, which can be equal; epochs are not.
        self.floor.store(self.coherence.epoch(), Ordering::Release);
        self.entries.invalidate_all();
    }

    /// Returns true if the entry is valid for requests that begin now.
    fn counts(&self, entry: &Entry<V>) -> bool {
        self.settle(entry)
            && entry.epoch >= self.floor.load(Ordering::Acquire)
            && entry.loaded_at.elapsed() < self.coherence.max_age()
            && (self.current)(&entry.value)
    }

    fn settle(&self, entry: &Entry<V>) -> bool {
        if entry.settled.load(Ordering::Acquire) {
            return true;
        }
        let unchanged = entry.epoch == self.coherence.epoch();
        if unchanged {
            entry.settled.store(true, Ordering::Release);
        }
        unchanged
    }

    async fn evict_lapsed(&self, key: &K) {
        if let Some(entry) = self.entries.get(key).await
            && !self.counts(&entry)
        {
            self.evict(key, &entry).await;
        }
    }

    /// Removes `entry`, but not an entry that replaced it in the meantime.
    async fn evict(&self, key: &K, entry: &Arc<Entry<V>>) {
        self.entries
            .entry_by_ref(key)
            .and_compute_with(async |found| match found {
                Some(found) if Arc::ptr_eq(found.value(), entry) => Op::Remove,
                _ => Op::Nop,
            })
            .await;
    }
}
