//! The replay cache of a sidecar: tokens that are bound to a body are valid once.

use std::collections::{BTreeMap, HashSet};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use kernel::closed_set::words;
use trust::LEEWAY_SECONDS;

/// Maximum tokens in the cache: some 16,000 per second with a lifetime of a minute. Up to 70 bytes
/// each, including the free slots of the table.
const TOKENS_MAX: usize = 1 << 20;

/// Maximum tokens evicted per request, so that no request waits for the eviction of a whole minute.
const SWEEP_MAX: usize = 1000;

words! {
    /// The result of using a token.
    TokenUse {
        /// First use; the token is in the cache from now on.
        First => "first",
        /// A replay.
        Again => "again",
        /// The token has expired, or may have been evicted. Expiry is checked at the use, after the
        /// body has arrived.
        Late => "late",
        /// The cache is full, so a replay could not be detected.
        Full => "full",
    }
}

/// Digest of a token: the first 128 bits of the SHA-256 of its `jti`, so that an issuer's choice of ids does not
/// matter.
type TokenDigest = u128;

/// Cache of the used tokens that have not expired.
pub(super) struct ReplayCache {
    used: Mutex<UsedTokens>,
    max: usize,
}

#[derive(Default)]
struct UsedTokens {
    digests: HashSet<TokenDigest>,
    /// The same tokens by the second in which they expire.
    by_expiry: BTreeMap<i64, Vec<TokenDigest>>,
    /// The latest expiry of an evicted token. A token that expires at or before it could be a
    /// replay, whatever the clock reads now: the clock may have been set back, or been read before
    /// another request's.
    evicted_until: Option<i64>,
}

impl Default for ReplayCache {
    fn default() -> Self {
        Self::with_capacity(TOKENS_MAX)
    }
}

impl ReplayCache {
    fn with_capacity(max: usize) -> Self {
        Self {
            used: Mutex::default(),
            max,
        }
    }

    /// Records the use of the token `jti`, which expires at `exp`. Both times are in seconds since
    /// 1970.
    pub(super) fn record(&self, jti: &str, exp: i64, now: i64) -> TokenUse {
        let digest = digest_of(jti);
        let mut used = self.used.lock();
        used.evict_expired(now);
        if is_expired(exp, now) || used.evicted_until.is_some_and(|last| exp <= last) {
            return TokenUse::Late;
        }
        if used.digests.contains(&digest) {
            return TokenUse::Again;
        }
        if used.digests.len() >= self.max {
            return TokenUse::Full;
        }
        used.digests.insert(digest);
        used.by_expiry.entry(exp).or_default().push(digest);
        TokenUse::First
    }

    /// Returns the number of tokens in the cache.
    pub(super) fn len(&self) -> usize {
        let used = self.used.lock();
        used.digests.len()
    }
}

impl UsedTokens {
    fn evict_expired(&mut self, now: i64) {
        let mut room = SWEEP_MAX;
        while room > 0
            && let Some(mut first) = self.by_expiry.first_entry()
            && is_expired(*first.key(), now)
        {
            self.evicted_until = self.evicted_until.max(Some(*first.key()));
            let digests = first.get_mut();
            let rest = digests.len().saturating_sub(room);
            room -= digests.len() - rest;
            for digest in digests.drain(rest..) {
                self.digests.remove(&digest);
            }
            if rest == 0 {
                first.remove();
            }
        }
    }
}

/// True if a token has expired. It is valid until the end of its leeway, the last second included.
pub(super) fn is_expired(exp: i64, now: i64) -> bool {
    let leeway = i64::try_from(LEEWAY_SECONDS).unwrap_or(0);
    exp.saturating_add(leeway) < now
}

fn digest_of(jti: &str) -> TokenDigest {
    let digest = Sha256::digest(jti);
    let mut beginning = [0; 16];
    beginning.copy_from_slice(&digest[..16]);
    TokenDigest::from_le_bytes(beginning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_counts_once_for_as_long_as_it_is_good() {
        let cache = ReplayCache::with_capacity(10);
        assert_eq!(cache.record("a", 60, 0), TokenUse::First);
        assert_eq!(cache.record("a", 60, 0), TokenUse::Again);
        assert_eq!(cache.record("b", 60, 0), TokenUse::First);
        // The last second in which a verifier with this leeway accepts the token.
        assert_eq!(cache.record("a", 60, 65), TokenUse::Again);
        assert_eq!(cache.record("c", 200, 66), TokenUse::First);
        assert_eq!(cache.len(), 1, "the others are evicted");
    }

    #[test]
    fn a_token_that_is_over_when_it_is_used_counts_no_more() {
        let cache = ReplayCache::with_capacity(10);
        assert_eq!(cache.record("a", 60, 0), TokenUse::First);
        assert_eq!(cache.record("a", 60, 66), TokenUse::Late);
        assert_eq!(cache.record("b", 200, 300), TokenUse::Late);
        assert_eq!(cache.len(), 0);
        // The clock was set back: tokens that expire at or before the latest eviction are rejected,
        // later ones are new.
        assert_eq!(cache.record("a", 60, 0), TokenUse::Late);
        assert_eq!(cache.record("c", 60, 0), TokenUse::Late);
        assert_eq!(cache.record("d", 61, 0), TokenUse::First);
        assert_eq!(cache.record("d", 61, 0), TokenUse::Again);
    }

    #[test]
    fn one_use_forgets_a_bounded_number() {
        let cache = ReplayCache::with_capacity(5 * SWEEP_MAX);
        for n in 0..2 * SWEEP_MAX {
            let exp = if n % 2 == 0 { 60 } else { 61 };
            assert_eq!(cache.record(&format!("t{n}"), exp, 0), TokenUse::First);
        }
        assert_eq!(cache.record("x", 1000, 100), TokenUse::First);
        assert_eq!(cache.len(), SWEEP_MAX + 1);
        for n in 0..2 * SWEEP_MAX {
            let exp = if n % 2 == 0 { 60 } else { 61 };
            assert_ne!(cache.record(&format!("t{n}"), exp, 0), TokenUse::First);
        }
        assert_eq!(cache.record("x", 1000, 100), TokenUse::Again);
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn a_full_guard_says_so_until_something_expires() {
        let cache = ReplayCache::with_capacity(2);
        assert_eq!(cache.record("a", 10, 0), TokenUse::First);
        assert_eq!(cache.record("b", 60, 0), TokenUse::First);
        assert_eq!(cache.record("c", 60, 0), TokenUse::Full);
        assert_eq!(cache.record("b", 60, 0), TokenUse::Again);
        assert_eq!(cache.record("c", 60, 16), TokenUse::First);
    }
}
