//! How often a credential may ask, and how often an address may be refused. In this process: each
//! replica allows its own share. 0 in the configuration switches one off, at no cost.

use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::Proof;
use crate::config::{self, Derived, Live};
use crate::rejection::{Reason, Rejection};

/// Buckets kept before those that are full again are dropped.
const BUCKETS_MAX: usize = 100_000;

/// Checks between two looks at how many buckets there are: counting them locks each shard.
const CHECKS_PER_SWEEP: u64 = 4096;

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
pub struct Rates(Derived<Arc<Limits>>);

/// The buckets of one `[rate]`.
struct Limits {
    settings: config::Rate,
    callers: Option<Buckets<u64>>,
    failures: Option<Buckets<IpAddr>>,
}

impl Limits {
    /// Full buckets for everyone.
    fn new(settings: &config::Rate) -> Self {
        Self {
            callers: Buckets::new(settings.caller_per_second, settings.caller_burst),
            failures: Buckets::new(settings.failures_per_second, settings.failures_per_second),
            settings: settings.clone(),
        }
    }
}

impl Rates {
    /// Full buckets for everyone; and again when `[rate]` changes.
    pub fn new(config: &Live) -> Self {
        Self(Derived::new(config, |config, before| match before {
            Some(limits) if limits.settings == config.rate => Arc::clone(limits),
            _ => Arc::new(Limits::new(&config.rate)),
        }))
    }

    /// Counts one request of the credential behind `proof`.
    ///
    /// # Errors
    /// `rate_limited`, with when to come back.
    pub fn admit(&self, proof: &Proof) -> Result<(), Rejection> {
        let limits = self.0.get();
        let Some(callers) = &limits.callers else {
            return Ok(());
        };
        callers.take(&proof.rate_key).map_err(|wait| {
            let message = "too many requests with this credential; wait for `Retry-After` seconds";
            rate_limited(message, callers.burst.get(), wait)
        })
    }

    /// What `client` is told instead of `rejection`, if that is a 401 or 403 and there were too many:
    /// `rate_limited`, with when to come back.
    ///
    /// Only failures are limited. Many callers share an address behind a load balancer, and whoever
    /// proves who they are must not wait for those who cannot.
    #[must_use]
    pub fn failed(&self, client: IpAddr, rejection: Rejection) -> Rejection {
        let limits = self.0.get();
        let (Some(failures), 401 | 403) = (&limits.failures, rejection.reason.status()) else {
            return rejection;
        };
        match failures.take(&network_of(client)) {
            Ok(()) => rejection,
            Err(wait) => {
                let message = "too many refused requests from this address; check the credential, then wait for `Retry-After` seconds";
                rate_limited(message, failures.burst.get(), wait)
            }
        }
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
        let mut config: config::Config = toml::from_str(config::load::DEFAULT).unwrap();
        config.rate = config::Rate {
            caller_per_second,
            caller_burst,
            failures_per_second,
        };
        Rates::new(&config.into())
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

    fn refused() -> Rejection {
        Rejection::new(Reason::Unauthenticated, "no")
    }

    #[test]
    fn zero_switches_off() {
        let rates = rates(0, 0, 0);
        let client = IpAddr::from([192, 0, 2, 1]);
        for _ in 0..1000 {
            rates.admit(&proof(1)).unwrap();
            assert_eq!(
                rates.failed(client, refused()).reason,
                Reason::Unauthenticated
            );
        }
    }

    #[test]
    fn an_address_that_fails_too_often_is_told_so_and_others_are_not() {
        let rates = rates(0, 0, 2);
        let said =
            |client: &str, rejection| rates.failed(client.parse().unwrap(), rejection).reason;
        for _ in 0..2 {
            assert_eq!(said("2001:db8::1", refused()), Reason::Unauthenticated);
        }
        for same in ["2001:db8::1", "2001:db8::ffff"] {
            assert_eq!(said(same, refused()), Reason::RateLimited);
        }
        for other in ["2001:db8:0:1::1", "::ffff:192.0.2.1"] {
            assert_eq!(said(other, refused()), Reason::Unauthenticated);
        }
        // What is no failure of proof is neither counted nor replaced.
        let offline = Rejection::new(Reason::WorkspaceOffline, "later");
        assert_eq!(said("2001:db8::1", offline), Reason::WorkspaceOffline);
    }
}
