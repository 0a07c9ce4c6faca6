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

use self::buckets::{BucketState, Buckets, Quota};
use super::proof::Proof;
use kernel::config;
use kernel::rejection::{Reason, Rejection};
use kernel::shares::Account;
use kernel::stage::Stage;

/// Size of the table of callers: 131,072 buckets, 3 MB.
const CALLERS_SCALE: usize = 256;

/// Size of a table of addresses: 32,768 buckets, 0.8 MB.
const ADDRESSES_SCALE: usize = 64;

/// The divisor of a burst: that many unpublished requests of one key are published early.
const SOON: u32 = 10;

const TOO_MANY: &str =
    "too many requests of this caller, over all of its credentials; wait for `Retry-After` seconds";

const TOO_MANY_USERS: &str = "too many requests of the canvas users of this org together (rate.org_users_per_second); wait for \
    `Retry-After` seconds";

const TOO_MANY_FAILURES: &str = "too many refused requests from this address; check the credential, then wait for \
    `Retry-After` seconds";

const TOO_MANY_CARDS: &str = "too many cards read without a credential from this address (rate.cards_per_second); wait for \
    `Retry-After` seconds, or send a credential";

// The IETF draft `draft-ietf-httpapi-ratelimit-headers`, in the form of its version 06.
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// One limit as it is configured.
#[derive(Debug)]
struct LimitRule {
    quota: Quota,
    burst: u32,
    /// Unpublished requests of one key after which they are published early.
    soon: u32,
    limit: HeaderValue,
    policy: HeaderValue,
}

impl LimitRule {
    /// `None` when it is off.
    fn new(per_second: u32, burst: u32) -> Option<Self> {
        let burst = burst.max(1);
        let quota = Quota::new(per_second, burst)?;
        let policy = format!("{burst};w={}", whole_seconds(quota.window()));
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
    /// Its sign in gossip.
    sign: char,
    rule: ArcSwapOption<LimitRule>,
    /// Created when it is first switched on.
    buckets: OnceLock<Buckets>,
    scale: usize,
    /// The message of a rejection.
    message: &'static str,
}

impl Limit {
    fn new(sign: char, scale: usize, message: &'static str) -> Self {
        Self {
            sign,
            rule: ArcSwapOption::empty(),
            buckets: OnceLock::new(),
            scale,
            message,
        }
    }

    /// Returns the rule and the buckets; `None` while it is off.
    fn get_active(&self) -> Option<(Arc<LimitRule>, &Buckets)> {
        let rule = self.rule.load_full()?;
        let buckets = self.buckets.get_or_init(|| Buckets::new(self.scale));
        Some((rule, buckets))
    }
}

/// The remaining allowance of a principal, for the `RateLimit-*` fields of its response.
#[derive(Clone, Debug)]
pub struct Allowance {
    rule: Arc<LimitRule>,
    remaining: u64,
    full_in: Duration,
}

impl Allowance {
    /// Returns the fields of a response that is not `rate_limited`.
    pub fn header_fields(&self) -> [(HeaderName, HeaderValue); 4] {
        [
            (LIMIT, self.rule.limit.clone()),
            (REMAINING, self.remaining.into()),
            (RESET, whole_seconds(self.full_in).into()),
            (POLICY, self.rule.policy.clone()),
        ]
    }

    /// Adds the fields to a rejection, unless it has its own.
    #[must_use]
    pub fn apply_to(&self, rejection: Rejection) -> Rejection {
        let mut fields = rejection.fields.iter();
        if fields.any(|(name, _)| *name == LIMIT.as_str()) {
            return rejection;
        }
        let reset = whole_seconds(self.full_in);
        with_fields(rejection, &self.rule, self.remaining, reset)
    }
}

/// The limits of `[rate]`.
pub struct Rates {
    callers: Limit,
    /// Canvas users of an org, together.
    org_users: Limit,
    failures: Limit,
    cards: Limit,
    /// The origin of all times.
    began: Instant,
    /// Distinguishes this replica's messages from those of other replicas.
    replica: u64,
    /// True if there may be other replicas.
    publishing: AtomicBool,
    /// Notified when a key was used a lot, so that it is published early.
    soon: Notify,
    /// Gossip received before this time is stale and ignored.
    ignore_gossip_until: AtomicU64,
}

impl Rates {
    /// Creates it, with all buckets full.
    pub fn new(settings: &config::Rate) -> Self {
        let rates = Self {
            callers: Limit::new('c', CALLERS_SCALE, TOO_MANY),
            org_users: Limit::new('u', ADDRESSES_SCALE, TOO_MANY_USERS),
            failures: Limit::new('f', ADDRESSES_SCALE, TOO_MANY_FAILURES),
            cards: Limit::new('r', ADDRESSES_SCALE, TOO_MANY_CARDS),
            began: Instant::now(),
            replica: rand::random(),
            publishing: AtomicBool::new(false),
            soon: Notify::new(),
            ignore_gossip_until: AtomicU64::new(0),
        };
        rates.set(settings);
        rates
    }

    /// Replaces the limits. The state of the buckets stays.
    pub fn set(&self, settings: &config::Rate) {
        let (failures, cards) = (settings.failures_per_second, settings.cards_per_second);
        let values = [
            (settings.caller_per_second, settings.caller_burst),
            (settings.org_users_per_second, settings.org_users_burst),
            (failures, failures),
            (cards, cards),
        ];
        for (limit, (per_second, burst)) in self.limits().into_iter().zip(values) {
            let rule = LimitRule::new(per_second, burst);
            limit.rule.store(rule.map(Arc::new));
        }
    }

    fn limits(&self) -> [&Limit; 4] {
        [&self.callers, &self.org_users, &self.failures, &self.cards]
    }

    /// Counts one request of the caller. `None`: there is no limit.
    ///
    /// # Errors
    /// `rate_limited`, with the time to wait.
    pub fn admit(&self, proof: &Proof) -> Result<Option<Allowance>, Rejection> {
        let Account { own, group } = proof.account;
        let allowance = self.take(&self.callers, own)?;
        // Second: a user that is rejected takes nothing from the rest of the group.
        if group != 0 {
            self.take(&self.org_users, group)?;
        }
        Ok(allowance)
    }

    /// Returns the result that [`Rates::admit`] would have for an account; counts nothing. The number is that
    /// of the requests that it allows at once; `None`: there is no limit.
    ///
    /// # Errors
    /// `rate_limited`, with the time to wait.
    pub(super) fn peek(&self, account: Account) -> Result<Option<u64>, Rejection> {
        let peek =
            |limit, key| self.ask(limit, |buckets, quota, now| buckets.peek(key, quota, now));
        let looked = peek(&self.callers, account.own)?;
        if account.group != 0 {
            peek(&self.org_users, account.group)?;
        }
        Ok(looked.map(|(_, left)| left.remaining))
    }

    /// Returns `rejection`, or `rate_limited` instead of it if it is a 401 or 403 and `client` had too many
    /// of them.
    ///
    /// Only failures are limited: many callers share an address behind a load balancer, and authenticated
    /// callers must not wait for unauthenticated ones.
    #[must_use]
    pub fn count_failure(&self, client: IpAddr, rejection: Rejection) -> Rejection {
        if !matches!(rejection.reason.status(), 401 | 403) {
            return rejection;
        }
        match self.take(&self.failures, client_key(client)) {
            Ok(_) => rejection,
            Err(limited) => limited.at(Stage::Rate),
        }
    }

    /// Counts one card that `client` reads without a credential.
    ///
    /// # Errors
    /// `rate_limited`, with the time to wait.
    pub fn count_card_read(&self, client: IpAddr) -> Result<(), Rejection> {
        self.take(&self.cards, client_key(client)).map(drop)
    }

    fn take(&self, limit: &Limit, key: u64) -> Result<Option<Allowance>, Rejection> {
        let publish = self.publishing.load(Ordering::Relaxed);
        let taken = self.ask(limit, |buckets, quota, now| {
            buckets.take(key, quota, now, publish)
        })?;
        Ok(taken.map(|(rule, left)| {
            if left.unpublished == rule.soon {
                self.soon.notify_one();
            }
            Allowance {
                rule,
                remaining: left.remaining,
                full_in: left.full_in,
            }
        }))
    }

    /// Asks the buckets of a limit. `None`: it is off.
    fn ask(
        &self,
        limit: &Limit,
        ask: impl FnOnce(&Buckets, Quota, u64) -> Result<BucketState, Duration>,
    ) -> Result<Option<(Arc<LimitRule>, BucketState)>, Rejection> {
        let Some((rule, buckets)) = limit.get_active() else {
            return Ok(None);
        };
        match ask(buckets, rule.quota, self.now()) {
            Ok(left) => Ok(Some((rule, left))),
            Err(wait) => Err(rate_limited(limit.message, &rule, wait)),
        }
    }

    /// Returns nanoseconds since the start, from 1 on.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).map_or(u64::MAX / 2, |now| now + 1)
    }
}

/// Returns the key under which a client's failures count: an IPv6 client owns a /64, so single addresses of
/// it mean nothing. Replicas agree on the key.
fn client_key(client: IpAddr) -> u64 {
    let network = match client.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64),
    };
    let hash: [u8; 32] = Sha256::digest(network.octets()).into();
    let [a, b, c, d, e, f, g, h, ..] = hash;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Rounds up: a caller that comes back in time must not be rejected again.
fn whole_seconds(span: Duration) -> u64 {
    (span.as_secs() + u64::from(span.subsec_nanos() > 0)).max(1)
}

fn rate_limited(message: &'static str, rule: &LimitRule, wait: Duration) -> Rejection {
    let wait = whole_seconds(wait);
    let rejection = Rejection::new(Reason::RateLimited, message)
        .with_retry_after(Duration::from_secs(wait))
        .with_fact("limit", rule.burst);
    with_fields(rejection, rule, 0, wait)
}

fn with_fields(rejection: Rejection, rule: &LimitRule, remaining: u64, reset: u64) -> Rejection {
    let policy = rule.policy.to_str().unwrap_or_default();
    rejection
        .with_field("ratelimit-limit", rule.burst)
        .with_field("ratelimit-remaining", remaining)
        .with_field("ratelimit-reset", reset)
        .with_field("ratelimit-policy", policy)
}

#[cfg(test)]
mod tests;
