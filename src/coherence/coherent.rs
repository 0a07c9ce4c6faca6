//! One bounded cache of facts, honest by [`Coherence`].

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

/// One loaded fact.
struct Entry<V> {
    value: V,
    loaded_at: Instant,
    /// The epoch before the load began.
    epoch: u64,
    /// Seen in the cache with no invalidation since the load began: from here on a drop finds it.
    settled: AtomicBool,
}

/// What a cache has of a key.
#[derive(Clone, Debug)]
pub enum Known<V> {
    /// Neither a value nor a load in progress: whoever asks next reads what is there now.
    Nothing,
    /// A load in progress, which may have read an older fact.
    Loading,
    /// This, whether or not it still counts.
    Value(V),
}

/// A bounded cache of facts: single-flight on a miss, aged by [`Coherence::max_age`].
///
/// The owner registers with [`Coherence::on_invalidation`] and calls [`Coherent::forget`].
pub struct Coherent<K, V> {
    entries: Cache<K, Arc<Entry<V>>>,
    /// From before a load begins until its value is in `entries`, for each who waits for one.
    loading: Arc<DashMap<K, usize>>,
    coherence: Arc<Coherence>,
    metrics: Arc<Metrics>,
    name: metrics::Cache,
    /// Entries of an earlier epoch were dropped all at once.
    floor: Arc<AtomicU64>,
    /// Whether a value still counts by what it says itself, besides its age.
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

/// As how many values one counts.
pub type Weight<V> = fn(&V) -> u32;

impl<K, V> Coherent<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// An empty cache of at most `entries_max`, counted under `name`. `weight`: as how many a value counts, if not
    /// all count as one; the cache then judges worse what to keep, as it cannot know how many there will be.
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

    /// Decides now what may stay. For tests: it is decided in the background.
    #[cfg(test)]
    pub(crate) async fn decide_now(&self) {
        self.entries.run_pending_tasks().await;
    }

    /// The fact from memory, if it still counts. Only a hit is counted: whoever misses asks
    /// [`Coherent::get_or_load`] next, which counts that.
    pub async fn get(&self, key: &K) -> Option<V> {
        Some(self.get_aged(key).await?.0)
    }

    /// As [`Coherent::get`], with when it was read.
    pub async fn get_aged(&self, key: &K) -> Option<(V, Instant)> {
        let found = self.entries.get(key).await;
        let entry = found.filter(|entry| self.counts(entry))?;
        self.metrics.cache(self.name, true);
        Some((entry.value.clone(), entry.loaded_at))
    }

    /// All facts in memory that count, with when they were read: a look at each, for who asks seldom.
    pub fn all(&self) -> impl Iterator<Item = (V, Instant)> {
        let counting = self.entries.iter().map(|(_, entry)| entry);
        let counting = counting.filter(|entry| self.counts(entry));
        counting.map(|entry| (entry.value.clone(), entry.loaded_at))
    }

    /// The fact from memory, else from `load`, which all who wait for the same key share.
    ///
    /// # Errors
    /// What `load` said, for everyone who waited for it. Errors are not kept.
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
            // A load that began before this request asked may have read what was changed since.
            // The next round's load begins after that one ended, so two rounds are enough.
            if entry.epoch >= asked_at {
                return Ok(entry.value.clone());
            }
        }
    }

    /// What is in memory, without asking for it: for who knows that a fact may have changed, and can
    /// tell whether it did.
    pub async fn known(&self, key: &K) -> Known<V> {
        // In this order: a load that is seen by neither look begins after the first.
        if self.loading.contains_key(key) {
            return Known::Loading;
        }
        let entry = self.entries.get(key).await;
        entry.map_or(Known::Nothing, |entry| Known::Value(entry.value.clone()))
    }

    /// Drops one fact.
    pub async fn forget(&self, key: &K) {
        self.entries.invalidate(key).await;
    }

    /// Drops all facts.
    pub fn forget_all(&self) {
        // moka compares times, which can be equal; the epoch cannot.
        self.floor.store(self.coherence.epoch(), Ordering::Release);
        self.entries.invalidate_all();
    }

    /// Whether the entry decides for requests that begin now.
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

    /// Drops `entry`, but not one that took its place meanwhile.
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
