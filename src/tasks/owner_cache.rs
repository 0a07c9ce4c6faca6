//! A bounded cache of task owners and targets on this replica. It saves reads of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moka::future::Cache;
use moka::policy::EvictionPolicy;
use moka::sync;
use tokio::time::Instant;

use crate::ids::WorkspaceId;
use crate::time::to_millis;

/// Bytes of `owners` and of `places` at most, each: some 200,000 tasks with ids of 36 bytes. Beyond it the
/// least recently used entries are evicted.
const BYTES_MAX: u64 = 64 << 20;

/// Bytes that an entry takes besides its texts.
const ENTRY_BYTES: usize = 200;

/// Bytes of the names that the store does not have, at most.
const UNKNOWN_BYTES_MAX: u64 = 8 << 20;

/// Lifetime of a negative entry: the store is not read again for this long.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);

/// Lifetime of an entry that can be read from the store again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(300);

/// Renewals of the time to live that are written within one time to live. Uses in between are not written, so
/// an entry may lapse earlier by this fraction.
const RENEWALS_IN_TTL: u32 = 8;

/// The owner of a task. Times are milliseconds since the cache was created.
#[derive(Debug)]
pub(super) struct CachedOwner {
    pub(super) owner: Arc<str>,
    until: AtomicU64,
    renewed: AtomicU64,
}

/// The target at which a task runs.
#[derive(Clone)]
struct CachedTarget {
    target: WorkspaceId,
    until: u64,
}

pub(super) struct OwnerCache {
    owners: Cache<String, Arc<CachedOwner>>,
    places: Cache<String, CachedTarget>,
    /// Names that the store does not have.
    unknown: sync::Cache<String, ()>,
    started: Instant,
}

impl OwnerCache {
    pub(super) fn new() -> Self {
        let bytes = |texts: usize| u32::try_from(texts + ENTRY_BYTES).unwrap_or(u32::MAX);
        Self {
            owners: Cache::builder()
                .max_capacity(BYTES_MAX)
                .weigher(move |key: &String, known: &Arc<CachedOwner>| {
                    bytes(key.len() + known.owner.len())
                })
                .eviction_policy(EvictionPolicy::lru())
                .build(),
            places: Cache::builder()
                .max_capacity(BYTES_MAX)
                .weigher(move |key: &String, placed: &CachedTarget| {
                    bytes(key.len() + placed.target.as_str().len())
                })
                .eviction_policy(EvictionPolicy::lru())
                .build(),
            unknown: sync::Cache::builder()
                .max_capacity(UNKNOWN_BYTES_MAX)
                .weigher(move |key: &String, (): &()| bytes(key.len()))
                .time_to_live(UNKNOWN_FOR)
                .build(),
            started: Instant::now(),
        }
    }

    /// True if the store was recently read for the name and did not have it.
    pub(super) fn is_unknown(&self, key: &str) -> bool {
        self.unknown.contains_key(key)
    }

    pub(super) fn insert_unknown(&self, key: &str) {
        self.unknown.insert(key.to_owned(), ());
    }

    /// Returns the lifetime of a cached entry that lives for `ttl` in the store.
    pub(super) fn cached_ttl(&self, ttl: Duration, shared: bool) -> Duration {
        if shared {
            ttl.min(ASKED_AGAIN_AFTER)
        } else {
            ttl
        }
    }

    /// Returns the owner of the task, and whether `owner` has just become it.
    pub(super) async fn claim_owner(
        &self,
        key: &str,
        owner: &str,
        lasts: Duration,
    ) -> (Arc<CachedOwner>, bool) {
        let now = self.now_millis();
        let new = async { Arc::new(self.build_owner(owner, lasts)) };
        let entry = self.owners.entry_by_ref(key);
        let entry = entry
            .or_insert_with_if(new, |known| known.until.load(Ordering::Relaxed) <= now)
            .await;
        let fresh = entry.is_fresh();
        if fresh {
            self.unknown.invalidate(key);
        }
        (entry.into_value(), fresh)
    }

    /// Caches an owner that was read from the store.
    pub(super) async fn insert_owner(
        &self,
        key: &str,
        owner: &str,
        lasts: Duration,
    ) -> Arc<CachedOwner> {
        let known = Arc::new(self.build_owner(owner, lasts));
        // Its age in the store is unknown: the next use renews it.
        known.renewed.store(0, Ordering::Relaxed);
        self.owners.insert(key.to_owned(), Arc::clone(&known)).await;
        known
    }

    pub(super) async fn get_owner(&self, key: &str) -> Option<Arc<CachedOwner>> {
        let known = self.owners.get(key).await?;
        (self.now_millis() < known.until.load(Ordering::Relaxed)).then_some(known)
    }

    /// Caches the task's target, unless another one is cached.
    pub(super) async fn claim_target(&self, key: &str, target: &WorkspaceId, lasts: Duration) {
        let now = self.now_millis();
        let new = async {
            CachedTarget {
                target: target.clone(),
                until: now + to_millis(lasts),
            }
        };
        let entry = self.places.entry_by_ref(key);
        entry
            .or_insert_with_if(new, |placed| placed.until <= now)
            .await;
        self.unknown.invalidate(key);
    }

    /// Caches a target that was read from the store.
    pub(super) async fn insert_target(&self, key: &str, target: &WorkspaceId, lasts: Duration) {
        let placed = CachedTarget {
            target: target.clone(),
            until: self.now_millis() + to_millis(lasts),
        };
        self.places.insert(key.to_owned(), placed).await;
    }

    pub(super) async fn get_target(&self, key: &str) -> Option<WorkspaceId> {
        let placed = self.places.get(key).await?;
        (self.now_millis() < placed.until).then_some(placed.target)
    }

    /// True if a use is to be written, since the last renewal is long enough ago. The renewal then counts as
    /// written.
    pub(super) fn renew(&self, known: &CachedOwner, ttl: Duration, shared: bool) -> bool {
        let now = self.now_millis();
        if !shared {
            known.until.store(now + to_millis(ttl), Ordering::Relaxed);
        }
        let last = known.renewed.load(Ordering::Relaxed);
        let due = last == 0 || now >= last + to_millis(ttl / RENEWALS_IN_TTL);
        // Of several concurrent uses one is written.
        let relaxed = Ordering::Relaxed;
        let renewed = &known.renewed;
        due && renewed
            .compare_exchange(last, now, relaxed, relaxed)
            .is_ok()
    }

    fn build_owner(&self, owner: &str, lasts: Duration) -> CachedOwner {
        CachedOwner {
            owner: owner.into(),
            until: AtomicU64::new(self.now_millis() + to_millis(lasts)),
            renewed: AtomicU64::new(self.now_millis()),
        }
    }

    /// Never 0, which stands for "never".
    fn now_millis(&self) -> u64 {
        to_millis(self.started.elapsed()).max(1)
    }
}
