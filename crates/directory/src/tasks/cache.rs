//! A bounded cache of what the store has of tasks: their owners, targets and instances. It saves reads of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::time::Instant;

use kernel::time::to_millis;

/// Bytes that an entry takes besides its texts.
const ENTRY_BYTES: usize = 200;

/// Renewals of the time to live that are written within one time to live. Uses in between are not written, so
/// an entry may lapse earlier by this fraction.
const RENEWALS_IN_TTL: u32 = 8;

/// A value in memory. Times are milliseconds since the cache was created.
#[derive(Debug)]
pub(super) struct Cached<V> {
    pub(super) value: V,
    until: AtomicU64,
    /// Time of the last renewal that was written; 0: unknown.
    renewed: AtomicU64,
}

/// Values by the keys of the shared state. Beyond its bytes the least recently used ones are evicted.
pub(super) struct TaskCache<V> {
    entries: Cache<String, Arc<Cached<V>>>,
    started: Instant,
}

impl<V: Send + Sync + 'static> TaskCache<V> {
    /// `text_bytes`: those of a value.
    pub(super) fn new(bytes_max: u64, text_bytes: fn(&V) -> usize) -> Self {
        let weigh = move |key: &String, cached: &Arc<Cached<V>>| {
            let bytes = key.len() + text_bytes(&cached.value) + ENTRY_BYTES;
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        Self {
            entries: Cache::builder()
                .max_capacity(bytes_max)
                .weigher(weigh)
                .eviction_policy(EvictionPolicy::lru())
                .build(),
            started: Instant::now(),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<Cached<V>>> {
        let cached = self.entries.get(key)?;
        (self.now_millis() < cached.until.load(Ordering::Relaxed)).then_some(cached)
    }

    /// Caches a value that was read from the store. Its age there is unknown: the next use renews it.
    pub(super) fn insert(&self, key: &str, value: V, lasts: Duration) -> Arc<Cached<V>> {
        self.insert_renewed(key, value, lasts, 0)
    }

    /// Caches a value that is written now.
    pub(super) fn insert_new(&self, key: &str, value: V, lasts: Duration) {
        self.insert_renewed(key, value, lasts, self.now_millis());
    }

    fn insert_renewed(&self, key: &str, value: V, lasts: Duration, renewed: u64) -> Arc<Cached<V>> {
        let cached = Arc::new(self.build(value, lasts, renewed));
        self.entries.insert(key.to_owned(), Arc::clone(&cached));
        cached
    }

    /// Returns the value of the key, and whether `value` has just become it.
    pub(super) fn claim(
        &self,
        key: &str,
        value: impl FnOnce() -> V,
        lasts: Duration,
    ) -> (Arc<Cached<V>>, bool) {
        let now = self.now_millis();
        let entry = self.entries.entry_by_ref(key).or_insert_with_if(
            || Arc::new(self.build(value(), lasts, now)),
            |cached| cached.until.load(Ordering::Relaxed) <= now,
        );
        let is_new = entry.is_fresh();
        (entry.into_value(), is_new)
    }

    pub(super) fn forget(&self, key: &str) {
        self.entries.invalidate(key);
    }

    /// Lets an entry end `lasts` from now.
    pub(super) fn extend(&self, cached: &Cached<V>, lasts: Duration) {
        let until = self.now_millis() + to_millis(lasts);
        cached.until.store(until, Ordering::Relaxed);
    }

    /// True if a use is to be written, since the last renewal is long enough ago. The renewal then counts as
    /// written.
    pub(super) fn claim_renewal(&self, cached: &Cached<V>, ttl: Duration) -> bool {
        let now = self.now_millis();
        let last = cached.renewed.load(Ordering::Relaxed);
        let is_due = last == 0 || now >= last + to_millis(ttl / RENEWALS_IN_TTL);
        let relaxed = Ordering::Relaxed;
        let renewed = &cached.renewed;
        // Of several concurrent uses one is written.
        is_due
            && renewed
                .compare_exchange(last, now, relaxed, relaxed)
                .is_ok()
    }

    fn build(&self, value: V, lasts: Duration, renewed: u64) -> Cached<V> {
        Cached {
            value,
            until: AtomicU64::new(self.now_millis() + to_millis(lasts)),
            renewed: AtomicU64::new(renewed),
        }
    }

    /// Never 0, which stands for "unknown".
    fn now_millis(&self) -> u64 {
        to_millis(self.started.elapsed()).max(1)
    }
}
