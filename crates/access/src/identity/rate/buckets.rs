//! Token buckets by key, implemented as the generic cell rate algorithm: each bucket stores only the time at
//! which it is full again. A fixed table, so memory does not grow with the number of keys.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// Buckets of one set: a key can be in any of them.
const WAYS: usize = 8;

/// Bursts that a bucket may owe: the requests that that many other replicas can let pass before they learn of
/// each other. Debt is paid off, so the rate holds in the long run.
const DEBT_BURSTS: u64 = 8;

/// Minimum debt of a bucket, whatever its burst: the requests that other replicas can let pass unnoticed
/// while the store is slow.
const DEBT_MIN: u64 = 250_000_000;

/// The rate and the capacity of a bucket. All times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    /// The time that one request is worth.
    interval: u64,
    /// The time that a full bucket is worth.
    capacity: u64,
}

impl Quota {
    /// `None` when `per_second` is 0.
    pub(super) fn new(per_second: u32, burst: u32) -> Option<Self> {
        let interval = 1_000_000_000_u64.checked_div(per_second.into())?.max(1);
        let capacity = interval.saturating_mul(burst.max(1).into());
        Some(Self { interval, capacity })
    }

    /// Returns the latest time at which a bucket can be full again. A burst may be worth centuries.
    fn latest_full_at(self, now: u64) -> u64 {
        let debt = self.capacity.saturating_mul(DEBT_BURSTS).max(DEBT_MIN);
        now.saturating_add(self.capacity).saturating_add(debt)
    }

    /// Returns the debt of a bucket that is full again at `full_at` after one more request, or the wait until
    /// one is allowed.
    fn charge_one(self, full_at: u64, now: u64) -> Result<u64, Duration> {
        let full_at = full_at.clamp(now, self.latest_full_at(now));
        let owed = full_at.saturating_add(self.interval) - now;
        if owed > self.capacity {
            return Err(Duration::from_nanos(owed - self.capacity));
        }
        Ok(owed)
    }

    /// Returns the time that an empty bucket needs to fill.
    pub(super) fn window(self) -> Duration {
        Duration::from_nanos(self.capacity)
    }
}

/// The state of a bucket after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketState {
    /// Further requests that it allows at once.
    pub(super) remaining: u64,
    /// Time until it is full again.
    pub(super) full_in: Duration,
    /// Requests that are not published to other replicas yet, this one included.
    pub(super) unpublished: u32,
}

#[derive(Clone, Copy, Default)]
struct Bucket {
    key: u64,
    /// Time at which it is full again; 0: never used.
    full_at: u64,
    /// Requests here since the last publication.
    unpublished: u32,
}

/// The table. If all places of a key are taken by buckets that are not full, the key takes over the fullest
/// of them *as it is*: debt is never forgiven, so filling the table gains a caller nothing, and the buckets
/// with the most debt stay longest.
pub(super) struct Buckets {
    sets: Box<[Mutex<[Bucket; WAYS]>]>,
    /// One bit per set: it has unpublished requests.
    marks: Box<[AtomicU64]>,
    /// The position at which the next drain begins, so that each set is drained in turn.
    next: AtomicUsize,
    /// Random per process, so that callers cannot choose keys that collide.
    places: RandomState,
}

impl Buckets {
    /// Creates 512 buckets times `scale`, all full.
    pub(super) fn new(scale: usize) -> Self {
        Self {
            sets: (0..64 * scale).map(|_| Mutex::default()).collect(),
            marks: (0..scale).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicUsize::new(0),
            places: RandomState::new(),
        }
    }

    /// Takes one request from the bucket of `key`, or returns the wait until one is allowed. `publish`: true if
    /// the request is published to other replicas.
    pub(super) fn take(
        &self,
        key: u64,
        quota: Quota,
        now: u64,
        publish: bool,
    ) -> Result<BucketState, Duration> {
        let place = self.set_index(key);
        let mut set = self.lock_set(place);
        let bucket = take_bucket(&mut set, key);
        let owed = quota.charge_one(bucket.full_at, now)?;
        bucket.full_at = now + owed;
        if publish {
            bucket.unpublished = bucket.unpublished.saturating_add(1);
            self.mark_unpublished(place);
        }
        Ok(BucketState {
            remaining: (quota.capacity - owed) / quota.interval,
            full_in: Duration::from_nanos(owed),
            unpublished: bucket.unpublished,
        })
    }

    /// Returns the result that [`Buckets::take`] would; takes nothing, and assigns no place to the key.
    pub(super) fn peek(&self, key: u64, quota: Quota, now: u64) -> Result<BucketState, Duration> {
        let set = self.lock_set(self.set_index(key));
        let bucket = &set[find_position(&set, key).1];
        let owed = quota.charge_one(bucket.full_at, now)?;
        Ok(BucketState {
            // The request was not taken, so it is left, too.
            remaining: (quota.capacity - owed) / quota.interval + 1,
            full_in: Duration::from_nanos(owed - quota.interval),
            unpublished: bucket.unpublished,
        })
    }

    /// Takes requests that another replica let pass, beyond an empty bucket if necessary: up to eight bursts,
    /// or 250 ms worth, are owed.
    pub(super) fn charge(&self, key: u64, count: u32, quota: Quota, now: u64) {
        let mut set = self.lock_set(self.set_index(key));
        let bucket = take_bucket(&mut set, key);
        let worth = quota.interval.saturating_mul(count.into());
        let full_at = bucket.full_at.max(now).saturating_add(worth);
        bucket.full_at = full_at.min(quota.latest_full_at(now));
    }

    /// Passes unpublished requests to `publish`: of at most `most` sets. True if there may be more.
    pub(super) fn drain_unpublished(&self, most: usize, mut publish: impl FnMut(u64, u32)) -> bool {
        let mut left = most;
        let first = self.next.load(Ordering::Relaxed);
        for word in (0..self.marks.len()).map(|at| (first + at) % self.marks.len()) {
            if left == 0 {
                self.next.store(word, Ordering::Relaxed);
                return true;
            }
            let mark = &self.marks[word];
            let mut bits = mark.load(Ordering::Relaxed);
            while bits != 0 && left > 0 {
                left -= 1;
                let bit = bits & bits.wrapping_neg();
                bits ^= bit;
                // Cleared first: requests from here on set it again.
                mark.fetch_and(!bit, Ordering::Relaxed);
                let within = usize::try_from(bit.trailing_zeros()).unwrap_or(0);
                let mut set = self.lock_set(64 * word + within);
                for bucket in set.iter_mut().filter(|bucket| bucket.unpublished > 0) {
                    publish(bucket.key, std::mem::take(&mut bucket.unpublished));
                }
            }
        }
        left == 0
    }

    fn set_index(&self, key: u64) -> usize {
        let sets = u64::try_from(self.sets.len()).unwrap_or(u64::MAX);
        usize::try_from(self.places.hash_one(key) % sets).unwrap_or(0)
    }

    fn lock_set(&self, place: usize) -> MutexGuard<'_, [Bucket; WAYS]> {
        // Each step leaves the set consistent, so a panic elsewhere cannot have broken it.
        self.sets[place].lock()
    }

    /// Called with the set locked, so that a drain that clears the mark sees the request.
    fn mark_unpublished(&self, place: usize) {
        let (mark, bit) = (&self.marks[place / 64], 1 << (place % 64));
        if mark.load(Ordering::Relaxed) & bit == 0 {
            mark.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// Returns whether `key` has a bucket, and its position: its own, or the fullest one, which it would take
/// over.
fn find_position(set: &[Bucket; WAYS], key: u64) -> (bool, usize) {
    let own = set.iter().position(|b| b.key == key && b.full_at > 0);
    let fullest = || (0..WAYS).min_by_key(|at| set[*at].full_at).unwrap_or(0);
    (own.is_some(), own.unwrap_or_else(fullest))
}

/// Returns the bucket of `key`, or takes over the fullest one, as it is.
fn take_bucket(set: &mut [Bucket; WAYS], key: u64) -> &mut Bucket {
    let (own, at) = find_position(set, key);
    let bucket = &mut set[at];
    if !own {
        bucket.key = key;
        bucket.unpublished = 0;
    }
    bucket
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn quota(per_second: u32, burst: u32) -> Quota {
        Quota::new(per_second, burst).unwrap()
    }

    /// Returns how many requests pass at once.
    fn pass(buckets: &Buckets, key: u64, quota: Quota, now: u64) -> usize {
        (0..100_000)
            .take_while(|_| buckets.take(key, quota, now, false).is_ok())
            .count()
    }

    #[test]
    fn a_burst_at_once_then_the_rate_exactly() {
        let (buckets, quota) = (Buckets::new(1), quota(50, 100));
        let start = 7 * SECOND;
        assert_eq!(pass(&buckets, 1, quota, start), 100);
        assert_eq!(
            buckets.take(1, quota, start, false),
            Err(Duration::from_millis(20))
        );
        // One request per millisecond for ten seconds: as many pass as the rate allows, one every 20 ms.
        let passed = (1..=10_000)
            .filter(|ms| {
                let now = start + ms * SECOND / 1000;
                buckets.take(1, quota, now, false).is_ok()
            })
            .count();
        assert_eq!(passed, 500);
        // A caller that waits as long as it was asked to passes, and a moment earlier does not.
        let wait = buckets.take(1, quota, start + 10 * SECOND, false);
        let wait = u64::try_from(wait.unwrap_err().as_nanos()).unwrap();
        let then = start + 10 * SECOND + wait;
        assert!(buckets.take(1, quota, then - 1, false).is_err());
        assert!(buckets.take(1, quota, then, false).is_ok());
        // Full again after two seconds, and never more than full.
        assert_eq!(pass(&buckets, 1, quota, then + 60 * SECOND), 100);
    }

    #[test]
    fn what_is_left_is_counted_down() {
        let (buckets, quota) = (Buckets::new(1), quota(1, 3));
        let left = |now| buckets.take(1, quota, now, true).unwrap();
        for (remaining, unpublished) in [(2, 1), (1, 2), (0, 3)] {
            let full_in = Duration::from_secs(3 - remaining);
            let expected = BucketState {
                remaining,
                full_in,
                unpublished,
            };
            assert_eq!(left(SECOND), expected);
        }
    }

    #[test]
    fn a_look_tells_what_taking_would_and_takes_nothing() {
        let (buckets, quota) = (Buckets::new(1), quota(1, 3));
        for remaining in [3, 2, 1] {
            for _ in 0..5 {
                let left = buckets.peek(1, quota, SECOND).unwrap();
                let full_in = Duration::from_secs(3 - remaining);
                assert_eq!((left.remaining, left.full_in), (remaining, full_in));
            }
            buckets.take(1, quota, SECOND, false).unwrap();
        }
        let looked = buckets.peek(1, quota, SECOND).unwrap_err();
        assert_eq!(Err(looked), buckets.take(1, quota, SECOND, false));
    }

    #[test]
    fn debt_is_paid_off_and_bounded() {
        let (buckets, quota) = (Buckets::new(1), quota(50, 100));
        buckets.charge(1, 150, quota, SECOND);
        let wait = buckets.take(1, quota, SECOND, false).unwrap_err();
        assert_eq!(wait, Duration::from_millis(51 * 20));
        // At most eight bursts below empty, whatever other replicas publish.
        buckets.charge(1, u32::MAX, quota, SECOND);
        buckets.charge(1, u32::MAX, quota, SECOND);
        let wait = buckets.take(1, quota, SECOND, false).unwrap_err();
        assert_eq!(wait, Duration::from_millis(801 * 20));
        // With a short burst 250 ms.
        let quota = Quota::new(1000, 1).unwrap();
        buckets.charge(2, u32::MAX, quota, SECOND);
        let wait = buckets.take(2, quota, SECOND, false).unwrap_err();
        assert_eq!(wait, Duration::from_millis(251));
        // A smaller quota does not lock out a caller for requests that the old one allowed.
        let slow = Quota::new(1, 100).unwrap();
        buckets.charge(3, 200, slow, SECOND);
        let wait = buckets.take(3, quota, SECOND, false).unwrap_err();
        assert!(wait <= Duration::from_millis(251), "{wait:?}");
    }

    #[test]
    fn a_crowd_of_keys_neither_grows_the_table_nor_forgives_a_debt() {
        let (buckets, quota) = (Buckets::new(1), quota(1, 10));
        assert_eq!(pass(&buckets, 0, quota, SECOND), 10);
        for key in 1..100_000 {
            let _ = buckets.take(key, quota, SECOND, false);
        }
        assert!(buckets.take(0, quota, SECOND, false).is_err());
        // 512 buckets, and no more than they hold.
        let more =
            (100_000..200_000).filter(|key| buckets.take(*key, quota, SECOND, false).is_ok());
        assert_eq!(more.count(), 0);
        // Later all is as before.
        assert_eq!(pass(&buckets, 0, quota, 100 * SECOND), 10);
    }

    #[test]
    fn what_is_untold_is_told_once_and_in_portions() {
        let (buckets, quota) = (Buckets::new(2), quota(50, 100));
        for key in 0..40 {
            for _ in 0..=key {
                buckets.take(key, quota, SECOND, true).unwrap();
            }
        }
        let mut told = std::collections::BTreeMap::new();
        for portion in 0.. {
            let before = told.len();
            buckets.drain_unpublished(8, |key, count| {
                assert!(told.insert(key, count).is_none());
            });
            if told.len() == before {
                assert!(portion >= 2, "40 keys in {portion} portions of 8 sets");
                break;
            }
        }
        let expected = (0..40).map(|key| (key, u32::try_from(key).unwrap() + 1));
        assert_eq!(told, expected.collect());
    }

    #[test]
    fn zero_is_no_quota() {
        assert_eq!(Quota::new(0, 5), None);
        assert!(Quota::new(u32::MAX, 0).is_some());
    }

    #[test]
    fn the_largest_values_are_limits_like_others() {
        for (per_second, burst) in [(1, u32::MAX), (u32::MAX, u32::MAX), (u32::MAX, 1)] {
            let (buckets, quota) = (Buckets::new(1), quota(per_second, burst));
            for now in [1, SECOND, u64::MAX / 2] {
                // One bucket for each, since this one will owe a lot.
                let key = now;
                buckets.take(key, quota, now, true).unwrap();
                buckets.charge(key, u32::MAX, quota, now);
                let _ = buckets.take(key, quota, now, true);
            }
        }
    }
}
