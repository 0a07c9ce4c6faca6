//! Which tokens were used: those that are bound to a body count once.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::trust::LEEWAY_SECONDS;

/// Tokens kept at most: some 16,000 a second while each lives for a minute. Up to 70 bytes each, with
/// the room that a table keeps free.
const TOKENS_MAX: usize = 1 << 20;

/// Names forgotten at one use at most, so that no request waits for a minute's worth.
const SWEEP_MAX: usize = 1000;

/// What is known of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It was never seen, and is kept from now on.
    First,
    /// It was used before.
    Again,
    /// It is over, or was kept and is forgotten: a token is judged when it is used, after its body came.
    Late,
    /// Nothing more can be kept, so nobody could tell.
    Full,
}

impl Use {
    /// The label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Again => "again",
            Self::Late => "late",
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
    /// The last of those seconds of which something was forgotten. What expires then or before can be
    /// told from nothing, whatever the clock says now: it may have been set back, or been read before
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

    /// Notes the use of the token `jti`, which expires at `exp`. Both times in seconds since 1970.
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

/// A token is good until its leeway is over, the last second included.
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
        // The last second in which a verifier with our leeway takes it.
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
        // The clock went back: what was forgotten is not new, and what was not is.
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
