//! Bounds that callers share: memory, places, connections. No caller gets more than half of what other
//! callers leave free, so that there is always room for one more. Numbers only: other modules write the
//! messages.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

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
    pub fn with_places(all: usize) -> Self {
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
    pub fn max_for(self, others: usize) -> usize {
        (self.all.saturating_sub(others) / 2).max(self.least)
    }
}

/// The number under which a caller's shares are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Account {
    /// Account of the caller; 0: callers that cannot be told apart, which may use the whole bound.
    pub own: u64,
    /// Group of callers that one party can create at will: together they have the share of one caller. 0: no
    /// group.
    pub group: u64,
}

impl Account {
    /// Account of a caller without a group.
    pub const fn without_group(own: u64) -> Self {
        Self { own, group: 0 }
    }

    /// Account of the owner of something that is kept, where its proof is not at hand.
    pub fn of_owner(owner: &str) -> Self {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        Self::without_group(hasher.hash_one(owner))
    }

    /// Returns the number of the party that is behind it: its group, if it has one.
    pub const fn party_number(self) -> u64 {
        if self.group == 0 {
            self.own
        } else {
            self.group
        }
    }

    /// True of its own number and of its party's.
    pub const fn is_counted_as(self, number: u64) -> bool {
        number == self.own || number == self.party_number()
    }
}

/// Callers of the last while, as far as to tell whether there was more than one.
#[derive(Clone, Debug, Default)]
pub struct RecentCallers {
    last: Option<(u64, Instant)>,
    /// Time of the last call of another one than the last, if it was in that while.
    other_at: Option<Instant>,
}

impl RecentCallers {
    /// Adds a call. Returns true if another one called `within` that time.
    pub fn add(&mut self, number: u64, within: Duration, now: Instant) -> bool {
        let before = self.last.replace((number, now));
        let other = before.filter(|(last, _)| *last != number);
        let other_at = other.map(|(_, at)| at).or(self.other_at);
        self.other_at = other_at.filter(|at| now.saturating_duration_since(*at) < within);
        self.other_at.is_some()
    }

    /// Returns the one that called, if it was alone.
    pub fn sole_caller(&self) -> Option<u64> {
        let (number, _) = self.last.filter(|_| self.other_at.is_none())?;
        Some(number)
    }
}

/// Reason why an amount is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareRefusal {
    /// The total is used up.
    All,
    /// The caller, or its group, has half of what all other callers leave.
    Share,
    /// The caller has the most that each may have.
    Each,
}

/// The amounts taken of one bound, by caller.
#[derive(Debug, Default)]
pub struct Shares(Mutex<Amounts>);

/// Amounts of one bound, by caller: of [`Shares`], or of rows in SQL.
#[derive(Debug, Default)]
pub struct Amounts {
    all: usize,
    /// Amounts by caller and by group. Without entries of 0.
    by_account: HashMap<u64, usize>,
}

impl Shares {
    /// Grants `amount` to `account`.
    ///
    /// # Errors
    /// [`ShareRefusal`], and nothing is granted.
    pub fn take(
        self: &Arc<Self>,
        account: Account,
        amount: usize,
        bound: Bound,
    ) -> Result<Share, ShareRefusal> {
        let mut share = Share::empty(self, account);
        share.grow(amount, bound)?;
        Ok(share)
    }

    /// Returns the amount that is taken.
    pub fn total(&self) -> usize {
        self.0.lock().all
    }

    /// True if `account` has something.
    pub fn holds_any(&self, account: Account) -> bool {
        self.0.lock().amount_of(account.own) > 0
    }

    /// Checks that `account` would be granted one more.
    ///
    /// # Errors
    /// [`ShareRefusal`].
    pub fn check_one(&self, account: Account, bound: Bound) -> Result<(), ShareRefusal> {
        self.0.lock().check(account, 1, bound)
    }
}

impl Amounts {
    /// True if one more of `all` places is within the share of `account`.
    pub fn has_share(&self, account: Account, all: i64) -> bool {
        let bound = Bound::with_places(usize::try_from(all).unwrap_or_default());
        self.check(account, 1, bound) != Err(ShareRefusal::Share)
    }

    /// Adds rows that were counted in SQL.
    pub fn add_rows(&mut self, account: Account, rows: i64) {
        self.add(account, usize::try_from(rows).unwrap_or_default());
    }

    fn check(&self, account: Account, amount: usize, bound: Bound) -> Result<(), ShareRefusal> {
        let own = self.amount_of(account.own);
        let wanted = own.saturating_add(amount);
        let told_apart = account.own != 0;
        if told_apart && wanted > bound.each {
            return Err(ShareRefusal::Each);
        }
        if self.all.saturating_add(amount) > bound.all {
            return Err(ShareRefusal::All);
        }
        let mut most = bound.max_for(self.all - own);
        if account.group != 0 {
            // A group has the share of one caller, and each caller in it half of what the other callers of the
            // group leave.
            let group = self.amount_of(account.group);
            let of_group = bound.max_for(self.all - group);
            if group.saturating_add(amount) > of_group {
                return Err(ShareRefusal::Share);
            }
            let bound = Bound {
                all: of_group,
                ..bound
            };
            most = bound.max_for(group - own);
        }
        if told_apart && wanted > most {
            return Err(ShareRefusal::Share);
        }
        Ok(())
    }

    fn amount_of(&self, number: u64) -> usize {
        self.by_account.get(&number).copied().unwrap_or_default()
    }

    fn add(&mut self, account: Account, amount: usize) {
        self.all += amount;
        for number in [account.own, account.group] {
            if number != 0 && amount > 0 {
                *self.by_account.entry(number).or_default() += amount;
            }
        }
    }

    fn take_away(&mut self, account: Account, amount: usize) {
        self.all -= amount;
        for number in [account.own, account.group] {
            if let Some(taken) = self.by_account.get_mut(&number) {
                *taken -= amount;
                if *taken == 0 {
                    self.by_account.remove(&number);
                }
            }
        }
    }
}

/// Share of one caller in a bound. Dropping it frees the share.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    account: Account,
    amount: usize,
}

impl Share {
    /// Creates an empty share.
    pub fn empty(shares: &Arc<Shares>, account: Account) -> Self {
        Self {
            shares: Arc::clone(shares),
            account,
            amount: 0,
        }
    }

    /// Amount of its caller, with all callers of its group.
    pub fn caller_amount(&self) -> usize {
        self.shares.0.lock().amount_of(self.account.party_number())
    }

    /// Takes `amount` more.
    ///
    /// # Errors
    /// [`ShareRefusal`], and nothing more is taken.
    pub fn grow(&mut self, amount: usize, bound: Bound) -> Result<(), ShareRefusal> {
        let mut taken = self.shares.0.lock();
        taken.check(self.account, amount, bound)?;
        taken.add(self.account, amount);
        self.amount += amount;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.0.lock().take_away(self.account, self.amount);
    }
}

/// A slot of a counted maximum, for example one of `server.max_exchanges`. Dropping it frees the slot.
pub struct SlotGuard<'a>(&'a AtomicUsize);

impl<'a> SlotGuard<'a> {
    /// Takes a slot. `None`: `max` are taken.
    pub fn take(taken: &'a AtomicUsize, max: usize) -> Option<Self> {
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let slot = Self(taken);
        (before < max).then_some(slot)
    }

    /// Returns the number of taken slots, and whether one is free.
    pub fn count(taken: &AtomicUsize, max: usize) -> (usize, bool) {
        let before = taken.load(Ordering::Relaxed);
        (before, before < max)
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_gets_half_of_what_the_others_leave_and_one_more_gets_in() {
        let shares = Arc::new(Shares::default());
        let bound = Bound::with_places(256);
        let mut held = Vec::new();
        let mut counts = Vec::new();
        for account in 1..=9 {
            let before = held.len();
            let full = loop {
                match shares.take(Account::without_group(account), 1, bound) {
                    Ok(share) => held.push(share),
                    Err(full) => break full,
                }
            };
            counts.push(held.len() - before);
            let last = held.len() == 256;
            assert_eq!(
                full,
                if last {
                    ShareRefusal::All
                } else {
                    ShareRefusal::Share
                }
            );
        }
        assert_eq!(counts, [128, 64, 32, 16, 8, 4, 2, 1, 1]);
        assert_eq!(
            shares.check_one(Account::without_group(10), bound),
            Err(ShareRefusal::All)
        );
        held.truncate(128);
        assert_eq!(shares.check_one(Account::without_group(10), bound), Ok(()));
        assert_eq!(
            shares.check_one(Account::without_group(1), bound),
            Err(ShareRefusal::Share)
        );
        held.clear();
        assert_eq!(shares.total(), 0);
        assert!(shares.0.lock().by_account.is_empty());
    }

    #[test]
    fn small_bounds_have_one_for_each_and_what_is_least_may_be_more() {
        let shares = Arc::new(Shares::default());
        let one = shares
            .take(Account::without_group(1), 1, Bound::with_places(1))
            .unwrap();
        assert_eq!(
            shares.check_one(Account::without_group(2), Bound::with_places(1)),
            Err(ShareRefusal::All)
        );
        assert_eq!(
            shares.check_one(Account::without_group(1), Bound::with_places(2)),
            Err(ShareRefusal::Share)
        );
        assert_eq!(
            shares.check_one(Account::without_group(2), Bound::with_places(2)),
            Ok(())
        );
        drop(one);
        let body = Bound::with_least(30, 20);
        let mut large = shares.take(Account::without_group(1), 20, body).unwrap();
        assert_eq!(large.grow(1, body), Err(ShareRefusal::Share));
        assert_eq!(
            shares
                .take(Account::without_group(2), 11, body)
                .unwrap_err(),
            ShareRefusal::All
        );
        drop(large);
        let few = Bound {
            each: 1,
            ..Bound::with_places(9)
        };
        let one = shares.take(Account::without_group(1), 1, few).unwrap();
        assert_eq!(
            shares.check_one(Account::without_group(1), few),
            Err(ShareRefusal::Each)
        );
        drop(one);
        // Callers that cannot be told apart may use the whole bound.
        shares.take(Account::without_group(0), 30, body).unwrap();
        assert_eq!(shares.total(), 0);
    }

    #[test]
    fn those_of_a_group_share_what_one_caller_may_have() {
        let shares = Arc::new(Shares::default());
        let bound = Bound::with_places(256);
        let mut held = Vec::new();
        let counts: Vec<usize> = (1..=300)
            .map(|own| {
                let before = held.len();
                let account = Account { own, group: 1000 };
                while let Ok(share) = shares.take(account, 1, bound) {
                    held.push(share);
                }
                held.len() - before
            })
            .collect();
        assert_eq!(counts[..8], [64, 32, 16, 8, 4, 2, 1, 1]);
        assert_eq!(
            held.len(),
            128,
            "three hundred users have what one caller may have"
        );
        let outsider = Account::without_group(2000);
        let others: Vec<_> = (0..64).map(|_| shares.take(outsider, 1, bound)).collect();
        assert!(others.iter().all(Result::is_ok));
        assert_eq!(shares.check_one(outsider, bound), Err(ShareRefusal::Share));
        drop((held, others));
        assert!(shares.0.lock().by_account.is_empty());
        // One place, which any caller may have.
        let one = shares.take(Account { own: 1, group: 2 }, 1, Bound::with_places(1));
        assert_eq!(
            shares.check_one(outsider, Bound::with_places(1)),
            Err(ShareRefusal::All)
        );
        drop(one);
        assert_eq!(shares.check_one(outsider, Bound::with_places(1)), Ok(()));
    }
}
