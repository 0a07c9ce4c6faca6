//! The replay cache of a sidecar: tokens that are bound to a body are valid once.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::trust::LEEWAY_SECONDS;

/// Maximum tokens in the cache: some 16,000 per second with a lifetime of a minute. Up to 70 bytes
/// each, including the free slots of the table.
const TOKENS_MAX: usize = 1 << 20;

/// Maximum tokens evicted per request, so that no request waits for the eviction of a whole minute.
const SWEEP_MAX: usize = 1000;

/// The result of using a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// First use; the token is in the cache from now on.
    First,
    /// A replay.
    Again,
    /// The token has expired, or may have been evicted. Expiry is checked at the use, after the
    /// body has arrived.
    Late,
    /// The cache is full, so a replay could not be detected.
    Full,
}

impl Use {
    /// Returns the label of the metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Again => "again",
            Self::Late => "late",
            Self::Full => "full",
        }
    }
}

/// The first 128 bits of the SHA-256 of a `jti`, so that an issuer's choice of ids does not matter.
type Name = u128;

/// The used tokens that have not expired.
pub struct Uses {
    kept: Mutex<Kept>,
    max: usize,
}

#[derive(Default)]
struct Kept {
    names: HashSet<Name>,
    /// The same tokens by the second in which they expire.
    by_expiry: BTreeMap<i64, Vec<Name>>,
    /// The latest expiry of an evicted token. A token that expires at or before it could be a
    /// replay, whatever the clock reads now: the clock may have been set back, or been read before
    /// another request's.
    forgotten: Option<i64>,
}

impl Default for Uses {
    fn default() -> Self {
        Self::with_room(TOKENS_MAX)
    }
}

impl Uses {
    fn with_room(max: usize) -> Self {
        Self {
            kept: Mutex::default(),
            max,
        }
    }

    /// Records the use of the token `jti`, which expires at `exp`. Both times are in seconds since
    /// 1970.
    pub fn note(&self, jti: &str, exp: i64, now: i64) -> Use {
        let name = name(jti);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.forget_expired(now);
        if is_over(exp, now) || kept.forgotten.is_some_and(|last| exp <= last) {
            return Use::Late;
        }
        if kept.names.contains(&name) {
            return Use::Again;
        }
        if kept.names.len() >= self.max {
            return Use::Full;
        }
        kept.names.insert(name);
        kept.by_expiry.entry(exp).or_default().push(name);
        Use::First
    }

    /// Returns the number of tokens in the cache.
    pub fn len(&self) -> usize {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.names.len()
    }

    /// True if the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Kept {
    fn forget_expired(&mut self, now: i64) {
        let mut room = SWEEP_MAX;
        while room > 0
            && let Some(mut first) = self.by_expiry.first_entry()
            && is_over(*first.key(), now)
        {
            self.forgotten = self.forgotten.max(Some(*first.key()));
            let names = first.get_mut();
            let rest = names.len().saturating_sub(room);
            room -= names.len() - rest;
            for name in names.drain(rest..) {
                self.names.remove(&name);
            }
            if rest == 0 {
                first.remove();
            }
        }
    }
}

/// True if a token has expired. It is valid until the end of its leeway, the last second included.
pub fn is_over(exp: i64, now: i64) -> bool {
    let leeway = i64::try_from(LEEWAY_SECONDS).unwrap_or(0);
    exp.saturating_add(leeway) < now
}

fn name(jti: &str) -> Name {
    let digest = Sha256::digest(jti);
    let mut beginning = [0; 16];
    beginning.copy_from_slice(&digest[..16]);
    Name::from_le_bytes(beginning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_counts_once_for_as_long_as_it_is_good() {
        let uses = Uses::with_room(10);
        assert_eq!(uses.note("a", 60, 0), Use::First);
        assert_eq!(uses.note("a", 60, 0), Use::Again);
        assert_eq!(uses.note("b", 60, 0), Use::First);
        // The last second in which a verifier with this leeway accepts the token.
        assert_eq!(uses.note("a", 60, 65), Use::Again);
        assert_eq!(uses.note("c", 200, 66), Use::First);
        assert_eq!(uses.len(), 1, "the others are forgotten");
    }

    #[test]
    fn a_token_that_is_over_when_it_is_used_counts_no_more() {
        let uses = Uses::with_room(10);
        assert_eq!(uses.note("a", 60, 0), Use::First);
        assert_eq!(uses.note("a", 60, 66), Use::Late);
        assert_eq!(uses.note("b", 200, 300), Use::Late);
        assert!(uses.is_empty());
        // The clock was set back: tokens that expire at or before the latest eviction are rejected,
        // later ones are new.
        assert_eq!(uses.note("a", 60, 0), Use::Late);
        assert_eq!(uses.note("c", 60, 0), Use::Late);
        assert_eq!(uses.note("d", 61, 0), Use::First);
        assert_eq!(uses.note("d", 61, 0), Use::Again);
    }

    #[test]
    fn one_use_forgets_a_bounded_number() {
        let uses = Uses::with_room(5 * SWEEP_MAX);
        for n in 0..2 * SWEEP_MAX {
            let exp = if n % 2 == 0 { 60 } else { 61 };
            assert_eq!(uses.note(&format!("t{n}"), exp, 0), Use::First);
        }
        assert_eq!(uses.note("x", 1000, 100), Use::First);
        assert_eq!(uses.len(), SWEEP_MAX + 1);
        for n in 0..2 * SWEEP_MAX {
            let exp = if n % 2 == 0 { 60 } else { 61 };
            assert_ne!(uses.note(&format!("t{n}"), exp, 0), Use::First);
        }
        assert_eq!(uses.note("x", 1000, 100), Use::Again);
        assert_eq!(uses.len(), 1);
    }

    #[test]
    fn a_full_guard_says_so_until_something_expires() {
        let uses = Uses::with_room(2);
        assert_eq!(uses.note("a", 10, 0), Use::First);
        assert_eq!(uses.note("b", 60, 0), Use::First);
        assert_eq!(uses.note("c", 60, 0), Use::Full);
        assert_eq!(uses.note("b", 60, 0), Use::Again);
        assert_eq!(uses.note("c", 60, 16), Use::First);
    }
}
