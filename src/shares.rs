//! Bounds that callers share: memory, places, connections. No caller gets more than half of what other
//! callers leave free, so that there is always room for one more. Numbers only: other modules write the
//! messages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A bound.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The total of all callers.
    pub all: usize,
    /// The amount that a caller may always have, as far as the total allows: one place, one body.
    pub least: usize,
    /// The amount that a caller may have at most, however large the total.
    pub each: usize,
}

impl Bound {
    /// Returns a bound of `all` places.
    pub fn places(all: usize) -> Self {
        Self::with_least(all, 1)
    }

    /// Returns a bound of which a caller may always have `least`.
    pub fn with_least(all: usize, least: usize) -> Self {
        Self {
            all,
            least,
            each: usize::MAX,
        }
    }

    /// Returns the most that one caller may have while all other callers together have `others`.
    pub fn most(self, others: usize) -> usize {
        (self.all.saturating_sub(others) / 2).max(self.least)
    }
}

/// The reason why nothing is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The total is used up.
    All,
    /// The caller has half of what other callers leave.
    Share,
    /// The caller has as much as each may have.
    Each,
}

/// The amounts taken of one bound, by caller.
#[derive(Debug, Default)]
pub struct Shares(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// By [`Proof::account`](crate::identity::Proof::account). Has no entries of amount 0.
    by_account: HashMap<u64, usize>,
}

impl Shares {
    /// Gives `amount` to `account`; 0: to callers that cannot be distinguished, which are bounded only by the
    /// total.
    ///
    /// # Errors
    /// [`Full`], and nothing is given.
    pub fn take(
        self: &Arc<Self>,
        account: u64,
        amount: usize,
        bound: Bound,
    ) -> Result<Share, Full> {
        let mut share = Share::empty(self, account);
        share.grow(amount, bound)?;
        Ok(share)
    }

    /// Returns the amount that is taken.
    pub fn taken(&self) -> usize {
        self.lock().all
    }

    /// Checks if `account` would be given one more.
    ///
    /// # Errors
    /// [`Full`].
    pub fn look(&self, account: u64, bound: Bound) -> Result<(), Full> {
        self.lock().check(account, 1, bound)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Each step leaves the numbers consistent, so a panic elsewhere cannot have broken them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn check(&self, account: u64, amount: usize, bound: Bound) -> Result<(), Full> {
        let own = self.by_account.get(&account).copied().unwrap_or_default();
        let wanted = own.saturating_add(amount);
        if account != 0 && wanted > bound.each {
            Err(Full::Each)
        } else if self.all.saturating_add(amount) > bound.all {
            Err(Full::All)
        } else if account != 0 && wanted > bound.most(self.all - own) {
            Err(Full::Share)
        } else {
            Ok(())
        }
    }
}

/// The share of one caller in a bound. Dropping it gives it back.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    account: u64,
    amount: usize,
}

impl Share {
    /// Returns a share of amount 0.
    pub fn empty(shares: &Arc<Shares>, account: u64) -> Self {
        Self {
            shares: Arc::clone(shares),
            account,
            amount: 0,
        }
    }

    /// Takes `amount` more.
    ///
    /// # Errors
    /// [`Full`], and nothing more is taken.
    pub fn grow(&mut self, amount: usize, bound: Bound) -> Result<(), Full> {
        let mut taken = self.shares.lock();
        taken.check(self.account, amount, bound)?;
        taken.all += amount;
        if self.account != 0 && amount > 0 {
            *taken.by_account.entry(self.account).or_default() += amount;
        }
        self.amount += amount;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.lock();
        taken.all -= self.amount;
        if let Some(own) = taken.by_account.get_mut(&self.account) {
            *own -= self.amount;
            if *own == 0 {
                taken.by_account.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_gets_half_of_what_the_others_leave_and_one_more_gets_in() {
        let shares = Arc::new(Shares::default());
        let bound = Bound::places(256);
        let mut held = Vec::new();
        let mut counts = Vec::new();
        for account in 1..=9 {
            let before = held.len();
            let full = loop {
                match shares.take(account, 1, bound) {
                    Ok(share) => held.push(share),
                    Err(full) => break full,
                }
            };
            counts.push(held.len() - before);
            let last = held.len() == 256;
            assert_eq!(full, if last { Full::All } else { Full::Share });
        }
        assert_eq!(counts, [128, 64, 32, 16, 8, 4, 2, 1, 1]);
        assert_eq!(shares.look(10, bound), Err(Full::All));
        held.truncate(128);
        assert_eq!(shares.look(10, bound), Ok(()));
        assert_eq!(shares.look(1, bound), Err(Full::Share));
        held.clear();
        assert_eq!(shares.taken(), 0);
        assert!(shares.lock().by_account.is_empty());
    }

    #[test]
    fn small_bounds_have_one_for_each_and_what_is_least_may_be_more() {
        let shares = Arc::new(Shares::default());
        let one = shares.take(1, 1, Bound::places(1)).unwrap();
        assert_eq!(shares.look(2, Bound::places(1)), Err(Full::All));
        assert_eq!(shares.look(1, Bound::places(2)), Err(Full::Share));
        assert_eq!(shares.look(2, Bound::places(2)), Ok(()));
        drop(one);
        let body = Bound::with_least(30, 20);
        let mut large = shares.take(1, 20, body).unwrap();
        assert_eq!(large.grow(1, body), Err(Full::Share));
        assert_eq!(shares.take(2, 11, body).unwrap_err(), Full::All);
        drop(large);
        let few = Bound {
            each: 1,
            ..Bound::places(9)
        };
        let one = shares.take(1, 1, few).unwrap();
        assert_eq!(shares.look(1, few), Err(Full::Each));
        drop(one);
        // Callers that cannot be distinguished may have all of it.
        shares.take(0, 30, body).unwrap();
        assert_eq!(shares.taken(), 0);
    }
}
