//! How often a credential may ask, and how often an address may be refused. In this process: each
//! replica allows its own share. 0 in the configuration switches one off, at no cost.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::time::Instant;

use super::Proof;
use crate::config;
use crate::rejection::{Reason, Rejection};

/// Buckets kept before those that are full again are dropped.
const BUCKETS_MAX: usize = 100_000;

/// Checks between two looks at how many buckets there are: counting them locks each shard.
const CHECKS_PER_SWEEP: u64 = 4096;

/// Addresses that wait at the same time. Beyond it the newest go free: the buckets still count them.
const WAITING_MAX: usize = 10_000;

/// Token buckets by key.
struct Buckets<K: Hash + Eq + Clone> {
    limiter: DefaultKeyedRateLimiter<K>,
    burst: NonZeroU32,
    checks: AtomicU64,
}

impl<K: Hash + Eq + Clone> Buckets<K> {
    /// `None` when `per_second` is 0.
    fn new(per_second: u32, burst: u32) -> Option<Self> {
        let per_second = NonZeroU32::new(per_second)?;
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(per_second).allow_burst(burst);
        Some(Self {
            limiter: RateLimiter::dashmap(quota),
            burst,
            checks: AtomicU64::new(0),
        })
    }

    /// Takes one out of the bucket of `key`, or says how long until there is one.
    fn take(&self, key: &K) -> Result<(), Duration> {
        if self.checks.fetch_add(1, Ordering::Relaxed) % CHECKS_PER_SWEEP == CHECKS_PER_SWEEP - 1
            && self.limiter.len() > BUCKETS_MAX
        {
            self.limiter.retain_recent();
        }
        self.limiter
            .check_key(key)
            .map_err(|until| until.wait_time_from(DefaultClock::default().now()))
    }
}

/// The limits of `[rate]`.
pub struct Rates {
    callers: Option<Buckets<u64>>,
    failures: Option<Buckets<IpAddr>>,
    /// Addresses with too many failures, and until when they wait.
    waiting: Mutex<HashMap<IpAddr, Instant>>,
    /// Size of `waiting`, so that nobody waits for its lock while it is empty.
    waiting_count: AtomicUsize,
}

impl Rates {
    /// Full buckets for everyone.
    pub fn new(settings: &config::Rate) -> Self {
        Self {
            callers: Buckets::new(settings.caller_per_second, settings.caller_burst),
            failures: Buckets::new(settings.failures_per_second, settings.failures_per_second),
            waiting: Mutex::default(),
            waiting_count: AtomicUsize::new(0),
        }
    }

    /// Counts one request of the credential behind `proof`.
    ///
    /// # Errors
    /// `rate_limited`, with when to come back.
    pub fn admit(&self, proof: &Proof) -> Result<(), Rejection> {
        let Some(callers) = &self.callers else {
            return Ok(());
        };
        callers.take(&proof.rate_key).map_err(|wait| {
            let message = "too many requests with this credential; wait for `Retry-After` seconds";
            rate_limited(message, callers.burst.get(), wait)
        })
    }

    /// Counts one 401 or 403 answer to `client`.
    pub fn note_failure(&self, client: IpAddr) {
        let Some(failures) = &self.failures else {
            return;
        };
        let client = network_of(client);
        if let Err(wait) = failures.take(&client) {
            self.let_wait(client, wait);
        }
    }

    /// Whether `client` was refused too often to be heard now. Asked before authentication.
    ///
    /// # Errors
    /// `rate_limited`, with when to come back.
    pub fn failures_exceeded(&self, client: IpAddr) -> Result<(), Rejection> {
        if self.waiting_count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let client = network_of(client);
        let mut waiting = self.lock_waiting();
        let Some(until) = waiting.get(&client).copied() else {
            return Ok(());
        };
        let wait = until.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            waiting.remove(&client);
            self.waiting_count.store(waiting.len(), Ordering::Release);
            return Ok(());
        }
        let limit = self.failures.as_ref().map_or(0, |f| f.burst.get());
        let message = "too many refused requests from this address; check the credential, then wait for `Retry-After` seconds";
        Err(rate_limited(message, limit, wait))
    }

    fn let_wait(&self, client: IpAddr, wait: Duration) {
        let now = Instant::now();
        let mut waiting = self.lock_waiting();
        if waiting.len() >= WAITING_MAX {
            waiting.retain(|_, until| *until > now);
        }
        if waiting.len() < WAITING_MAX {
            waiting.insert(client, now + wait);
        }
        self.waiting_count.store(waiting.len(), Ordering::Release);
    }

    fn lock_waiting(&self) -> MutexGuard<'_, HashMap<IpAddr, Instant>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whose failures count together: an IPv6 client owns a /64, so single addresses of it mean nothing.
fn network_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

fn rate_limited(message: &'static str, limit: u32, wait: Duration) -> Rejection {
    // Rounded up: a caller that comes back in time must not be refused again.
    let wait = Duration::from_secs(wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
    let wait = wait.max(Duration::from_secs(1));
    Rejection::new(Reason::RateLimited, message)
        .retry_after(wait)
        .fact("limit", limit)
        .field("ratelimit-limit", limit)
        .field("ratelimit-remaining", 0)
        .field("ratelimit-reset", wait.as_secs())
}

#[cfg(test)]
mod tests {
    use super::super::open_proof;
    use super::*;

    fn rates(caller_per_second: u32, caller_burst: u32, failures_per_second: u32) -> Rates {
        Rates::new(&config::Rate {
            caller_per_second,
            caller_burst,
            failures_per_second,
        })
    }

    fn proof(rate_key: u64) -> Proof {
        Proof {
            rate_key,
            ..open_proof()
        }
    }

    #[test]
    fn each_credential_has_its_own_allowance() {
        let rates = rates(1, 3, 0);
        for _ in 0..3 {
            rates.admit(&proof(1)).unwrap();
        }
        let refused = rates.admit(&proof(1)).unwrap_err();
        assert_eq!(refused.reason, Reason::RateLimited);
        assert_eq!(refused.retry_after, Some(1));
        assert!(refused.facts.contains(&("limit", "3".into())));
        rates.admit(&proof(2)).unwrap();
    }

    #[test]
    fn zero_switches_off() {
        let rates = rates(0, 0, 0);
        let client = IpAddr::from([192, 0, 2, 1]);
        for _ in 0..1000 {
            rates.admit(&proof(1)).unwrap();
            rates.note_failure(client);
        }
        rates.failures_exceeded(client).unwrap();
    }

    #[test]
    fn an_address_that_fails_too_often_waits_and_others_do_not() {
        let rates = rates(0, 0, 2);
        let client: IpAddr = "2001:db8::1".parse().unwrap();
        let neighbor: IpAddr = "2001:db8::ffff".parse().unwrap();
        let other: IpAddr = "2001:db8:0:1::1".parse().unwrap();
        for _ in 0..2 {
            rates.note_failure(client);
            rates.failures_exceeded(client).unwrap();
        }
        rates.note_failure(client);
        for waits in [client, neighbor] {
            let refused = rates.failures_exceeded(waits).unwrap_err();
            assert_eq!(refused.reason, Reason::RateLimited);
        }
        rates.failures_exceeded(other).unwrap();
        rates
            .failures_exceeded("::ffff:192.0.2.1".parse().unwrap())
            .unwrap();
    }

    #[tokio::test]
    async fn an_address_is_heard_again_when_its_wait_is_over() {
        let rates = rates(0, 0, 50);
        let client = IpAddr::from([192, 0, 2, 1]);
        while rates.failures_exceeded(client).is_ok() {
            rates.note_failure(client);
        }
        // One token is back after 1/50 s.
        tokio::time::sleep(Duration::from_millis(40)).await;
        rates.failures_exceeded(client).unwrap();
    }
}
