//! Rate limits of principals, and of rejected requests by address. They hold for all replicas together
//! (`gossip.rs`), while each replica decides from memory. 0 in the configuration switches a limit off, at no
//! cost.

mod buckets;
mod gossip;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use http::{HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use self::buckets::{Buckets, Quota};
use super::Proof;
use crate::config;
use crate::rejection::{Reason, Rejection};

/// Size of the table of callers: 131,072 buckets, 3 MB.
const CALLERS_SCALE: usize = 256;

/// Size of a table of addresses: 32,768 buckets, 0.8 MB.
const ADDRESSES_SCALE: usize = 64;

/// The divisor of a burst: that many unpublished requests of one key are published early.
const SOON: u32 = 10;

const TOO_MANY: &str =
    "too many requests of this caller, over all of its credentials; wait for `Retry-After` seconds";

// The IETF draft `draft-ietf-httpapi-ratelimit-headers`, in the form of its version 06.
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// One limit as it is configured.
#[derive(Debug)]
struct Rule {
    quota: Quota,
    burst: u32,
    /// Unpublished requests of one key after which they are published early.
    soon: u32,
    limit: HeaderValue,
    policy: HeaderValue,
}

impl Rule {
    /// `None` when it is off.
    fn new(per_second: u32, burst: u32) -> Option<Self> {
        let burst = burst.max(1);
        let quota = Quota::new(per_second, burst)?;
        let policy = format!("{burst};w={}", seconds(quota.window()));
        Some(Self {
            quota,
            burst,
            soon: (burst / SOON).max(1),
            limit: burst.into(),
            // Digits and punctuation.
            policy: HeaderValue::from_str(&policy).ok()?,
        })
    }
}

/// One limit and its buckets.
struct Limit {
    rule: ArcSwapOption<Rule>,
    /// Created when it is first switched on.
    buckets: OnceLock<Buckets>,
    scale: usize,
}

impl Limit {
    fn new(scale: usize) -> Self {
        Self {
            rule: ArcSwapOption::empty(),
            buckets: OnceLock::new(),
            scale,
        }
    }

    fn set(&self, per_second: u32, burst: u32) {
        self.rule.store(Rule::new(per_second, burst).map(Arc::new));
    }

    /// Returns the rule and the buckets; `None` while it is off.
    fn on(&self) -> Option<(Arc<Rule>, &Buckets)> {
        let rule = self.rule.load_full()?;
        let buckets = self.buckets.get_or_init(|| Buckets::new(self.scale));
        Some((rule, buckets))
    }
}

/// The remaining allowance of a principal, for the `RateLimit-*` fields of its response.
#[derive(Clone, Debug)]
pub struct Allowance {
    rule: Arc<Rule>,
    remaining: u64,
    full_in: Duration,
}

impl Allowance {
    /// Returns the fields of a response that is not `rate_limited`.
    pub fn fields(&self) -> [(HeaderName, HeaderValue); 4] {
        [
            (LIMIT, self.rule.limit.clone()),
            (REMAINING, self.remaining.into()),
            (RESET, seconds(self.full_in).into()),
            (POLICY, self.rule.policy.clone()),
        ]
    }

    /// Adds the fields to a rejection, unless it has its own.
    #[must_use]
    pub fn told_with(&self, rejection: Rejection) -> Rejection {
        if rejection
            .fields
            .iter()
            .any(|(name, _)| *name == LIMIT.as_str())
        {
            return rejection;
        }
        with_fields(rejection, &self.rule, self.remaining, seconds(self.full_in))
    }
}

/// The limits of `[rate]`.
pub struct Rates {
    callers: Limit,
    failures: Limit,
    cards: Limit,
    /// The origin of all times.
    began: Instant,
    /// Distinguishes this replica's messages from those of other replicas.
    replica: u64,
    /// True if there may be other replicas.
    telling: AtomicBool,
    /// Notified when a key was used a lot, so that it is published early.
    soon: Notify,
    /// Gossip received before this time is stale and ignored.
    deaf_until: AtomicU64,
}

impl Rates {
    /// Creates it, with all buckets full.
    pub fn new(settings: &config::Rate) -> Self {
        let rates = Self {
            callers: Limit::new(CALLERS_SCALE),
            failures: Limit::new(ADDRESSES_SCALE),
            cards: Limit::new(ADDRESSES_SCALE),
            began: Instant::now(),
            replica: rand::random(),
            telling: AtomicBool::new(false),
            soon: Notify::new(),
            deaf_until: AtomicU64::new(0),
        };
        rates.set(settings);
        rates
    }

    /// Replaces the limits. The state of the buckets stays.
    pub fn set(&self, settings: &config::Rate) {
        self.callers
            .set(settings.caller_per_second, settings.caller_burst);
        self.failures
            .set(settings.failures_per_second, settings.failures_per_second);
        self.cards
            .set(settings.cards_per_second, settings.cards_per_second);
    }

    /// Counts one request of the caller. `None`: there is no limit.
    ///
    /// # Errors
    /// `rate_limited`, with the time to wait.
    pub fn admit(&self, proof: &Proof) -> Result<Option<Allowance>, Rejection> {
        self.take(&self.callers, proof.account, TOO_MANY)
    }

    /// Returns the result that [`Rates::admit`] would have for an account; counts nothing. The number is that
    /// of the requests that it allows at once; `None`: there is no limit.
    ///
    /// # Errors
    /// `rate_limited`, with the time to wait.
    pub(super) fn look(&self, account: u64) -> Result<Option<u64>, Rejection> {
        let Some((rule, buckets)) = self.callers.on() else {
            return Ok(None);
        };
        let looked = buckets.look(account, rule.quota, self.now());
        let left = looked.map_err(|wait| rate_limited(TOO_MANY, &rule, wait))?;
        Ok(Some(left.remaining))
    }

    /// Returns `rejection`, or `rate_limited` instead of it if it is a 401 or 403 and `client` had too many
    /// of them.
    ///
    /// Only failures are limited: many callers share an address behind a load balancer, and authenticated
    /// callers must not wait for unauthenticated ones.
    #[must_use]
    pub fn failed(&self, client: IpAddr, rejection: Rejection) -> Rejection {
        if !matches!(rejection.reason.status(), 401 | 403) {
            return rejection;
        }
        let message = "too many refused requests from this address; check the credential, then wait for `Retry-After` seconds";
        match self.take(&self.failures, key_of(client), message) {
            Ok(_) => rejection,
            Err(limited) => limited,
        }
    }

    /// Counts one card that `client` reads without a credential.
    ///
    /// # Errors
    /// `rate_limited`, with the time to wait.
    pub fn read_card(&self, client: IpAddr) -> Result<(), Rejection> {
        let message = "too many cards read without a credential from this address (rate.cards_per_second); wait for \
                       `Retry-After` seconds, or send a credential";
        self.take(&self.cards, key_of(client), message).map(drop)
    }

    fn take(
        &self,
        limit: &Limit,
        key: u64,
        message: &'static str,
    ) -> Result<Option<Allowance>, Rejection> {
        let Some((rule, buckets)) = limit.on() else {
            return Ok(None);
        };
        let tell = self.telling.load(Ordering::Relaxed);
        match buckets.take(key, rule.quota, self.now(), tell) {
            Ok(left) => {
                if left.untold == rule.soon {
                    self.soon.notify_one();
                }
                Ok(Some(Allowance {
                    rule,
                    remaining: left.remaining,
                    full_in: left.full_in,
                }))
            }
            Err(wait) => Err(rate_limited(message, &rule, wait)),
        }
    }

    fn begin_telling(&self) {
        self.telling.store(true, Ordering::Relaxed);
    }

    /// Returns nanoseconds since the start, from 1 on.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).map_or(u64::MAX / 2, |now| now + 1)
    }
}

/// Returns the key under which a client's failures count: an IPv6 client owns a /64, so single addresses of
/// it mean nothing. Replicas agree on the key.
fn key_of(client: IpAddr) -> u64 {
    let network = match client.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64),
    };
    let hash: [u8; 32] = Sha256::digest(network.octets()).into();
    let [a, b, c, d, e, f, g, h, ..] = hash;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Rounds up: a caller that comes back in time must not be rejected again.
fn seconds(span: Duration) -> u64 {
    (span.as_secs() + u64::from(span.subsec_nanos() > 0)).max(1)
}

fn rate_limited(message: &'static str, rule: &Rule, wait: Duration) -> Rejection {
    let wait = seconds(wait);
    let rejection = Rejection::new(Reason::RateLimited, message)
        .retry_after(Duration::from_secs(wait))
        .fact("limit", rule.burst);
    with_fields(rejection, rule, 0, wait)
}

fn with_fields(rejection: Rejection, rule: &Rule, remaining: u64, reset: u64) -> Rejection {
    let policy = rule.policy.to_str().unwrap_or_default();
    rejection
        .field("ratelimit-limit", rule.burst)
        .field("ratelimit-remaining", remaining)
        .field("ratelimit-reset", reset)
        .field("ratelimit-policy", policy)
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
            cards_per_second: 0,
        })
    }

    fn proof(account: u64) -> Proof {
        Proof {
            account,
            ..open_proof()
        }
    }

    #[test]
    fn each_account_has_its_own_allowance() {
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
        // Only failures of authentication are counted and replaced.
        let offline = Rejection::new(Reason::WorkspaceOffline, "later");
        assert_eq!(said("2001:db8::1", offline), Reason::WorkspaceOffline);
    }

    #[test]
    fn an_allowance_is_told_in_the_drafts_fields() {
        let rates = rates(1, 3, 0);
        let allowance = rates.admit(&proof(1)).unwrap().unwrap();
        let fields = allowance.fields().map(|(name, value)| {
            let value = value.to_str().unwrap().to_owned();
            format!("{name}: {value}")
        });
        let expected = [
            "ratelimit-limit: 3",
            "ratelimit-remaining: 2",
            "ratelimit-reset: 1",
            "ratelimit-policy: 3;w=3",
        ];
        assert_eq!(fields, expected);
        let told = allowance.told_with(refused()).fields;
        let told: Vec<_> = told.iter().map(|(n, v)| format!("{n}: {v}")).collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn limits_change_while_they_are_in_use() {
        let rates = rates(1, 2, 0);
        for _ in 0..2 {
            rates.admit(&proof(1)).unwrap();
        }
        assert!(rates.admit(&proof(1)).is_err());
        let mut settings = config::Rate {
            caller_per_second: 0,
            caller_burst: 0,
            failures_per_second: 0,
            cards_per_second: 0,
        };
        rates.set(&settings);
        assert!(rates.admit(&proof(1)).unwrap().is_none());
        settings.caller_per_second = 1;
        settings.caller_burst = 50;
        rates.set(&settings);
        assert!(rates.admit(&proof(1)).unwrap().is_some());
    }

    #[test]
    fn what_one_let_pass_the_others_owe() {
        let [one, other] = [(); 2].map(|()| rates(1, 100, 5));
        let client = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(one.untold(), None);
        for _ in 0..60 {
            one.admit(&proof(7)).unwrap();
        }
        assert_eq!(one.untold(), None, "nobody to tell");
        one.begin_telling();
        for _ in 0..40 {
            one.admit(&proof(7)).unwrap();
        }
        for _ in 0..3 {
            let _ = one.failed(client, refused());
        }
        let told = one.untold().unwrap();
        assert_eq!(told.count, 43);
        assert_eq!(one.untold(), None, "told once");
        assert_eq!(one.heard(&told.message), 0, "our own word");
        assert_eq!(other.heard(&told.message), 43);
        let left = other.admit(&proof(7)).unwrap().unwrap();
        assert_eq!(left.remaining, 59);
        for _ in 0..2 {
            let said = other.failed(client, refused()).reason;
            assert_eq!(said, Reason::Unauthenticated);
        }
        let said = other.failed(client, refused()).reason;
        assert_eq!(said, Reason::RateLimited);
        // After a stall old gossip is ignored.
        other.was_stalled();
        assert_eq!(other.heard(&told.message), 0);
    }

    #[test]
    fn what_is_no_message_of_ours_changes_nothing() {
        let rates = rates(1, 100, 5);
        for message in [
            "",
            " ",
            "zz c7*1",
            "c7*1",
            "0",
            "0 c",
            "0 c7",
            "0 c7*",
            "0 c*1",
            "0 c7*-1",
            "0 c7*100000000",
            "0 x7*1",
            "0 \u{e9}7*1",
            "0  c7**1",
        ] {
            assert_eq!(rates.heard(message), 0, "{message:?}");
        }
        let long = format!("0{}", " c7*1".repeat(100_000));
        assert_eq!(rates.heard(&long), 512);
    }
}
