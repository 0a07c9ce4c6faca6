//! Which tokens were used: those that are bound to a body count once.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::trust::LEEWAY_SECONDS;

/// Tokens kept at most: some 16,000 a second while each lives for a minute. About 40 bytes each.
const TOKENS_MAX: usize = 1 << 20;

/// What is known of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It was never seen, and is kept from now on.
    First,
    /// It was used before.
    Again,
    /// Nothing more can be kept, so nobody could tell.
    Full,
}

impl Use {
    /// The label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Again => "again",
            Self::Full => "full",
        }
    }
}

/// The beginning of the SHA-256 of a `jti`: 128 bits, whoever chooses the names.
type Name = u128;

/// The used tokens that have not expired.
pub struct Uses {
    kept: Mutex<Kept>,
    max: usize,
}

#[derive(Default)]
struct Kept {
    names: HashSet<Name>,
    /// The same by the second in which they expire.
    by_expiry: BTreeMap<i64, Vec<Name>>,
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

    /// Notes the use of the token `jti`, which expires at `exp`. Both times in seconds since 1970.
    pub fn note(&self, jti: &str, exp: i64, now: i64) -> Use {
        let name = name(jti);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.forget_expired(now);
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

    /// How many are kept.
    pub fn len(&self) -> usize {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.names.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Kept {
    /// A token is good until its leeway is over, the last second included.
    fn forget_expired(&mut self, now: i64) {
        let leeway = i64::try_from(LEEWAY_SECONDS).unwrap_or(0);
        while let Some(first) = self.by_expiry.first_entry()
            && first.key().saturating_add(leeway) < now
        {
            for name in first.remove() {
                self.names.remove(&name);
            }
        }
    }
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
        // The last second in which a verifier with our leeway takes it.
        assert_eq!(uses.note("a", 60, 65), Use::Again);
        assert_eq!(uses.note("c", 200, 66), Use::First);
        assert_eq!(uses.len(), 1, "the others are forgotten");
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
