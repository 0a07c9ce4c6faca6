//! Limits on concurrent readers: in all, and of one caller.

use std::sync::Arc;
use std::time::Duration;

use kernel::config::{Config, Live};
use kernel::rejection::{Reason, Rejection};
use kernel::shares::{Account, Bound, Share, ShareRefusal, Shares};

/// Limits of one kind of slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotLimits {
    /// Description for messages: `event streams`.
    pub what: &'static str,
    /// Section of the configuration that has `connections` and `connections_per_caller`.
    pub section: &'static str,
    /// Maximum in all.
    pub connections: usize,
    /// Maximum of one caller.
    pub connections_per_caller: usize,
}

/// Slots for the readers of this replica.
pub struct ReaderSlots {
    config: Live,
    bounds: fn(&Config) -> SlotLimits,
    taken: Arc<Shares>,
}

/// A slot for one reader. Dropping it frees the slot.
#[derive(Debug)]
pub struct ReaderSlot(Share);

impl ReaderSlot {
    /// Slots of its caller, with all callers of its group.
    pub fn of_caller(&self) -> usize {
        self.0.caller_amount()
    }
}

impl ReaderSlots {
    /// Creates the slots; `bounds` reads their limits from the configuration in force.
    pub fn new(config: Live, bounds: fn(&Config) -> SlotLimits) -> Arc<Self> {
        Arc::new(Self {
            config,
            bounds,
            taken: Arc::default(),
        })
    }

    /// Takes a slot for the caller of `account`, which is a [`Proof::account`](access::identity::Proof::account).
    ///
    /// # Errors
    /// `overloaded` and `rate_limited`.
    pub fn take(&self, account: Account) -> Result<ReaderSlot, Rejection> {
        let bounds = (self.bounds)(&self.config.get());
        let bound = Bound {
            each: bounds.connections_per_caller,
            ..Bound::with_places(bounds.connections)
        };
        let taken = self.taken.take(account, 1, bound);
        taken
            .map(ReaderSlot)
            .map_err(|full| bounds.rejection_for(full))
    }
}

impl SlotLimits {
    fn rejection_for(&self, full: ShareRefusal) -> Rejection {
        let (what, section) = (self.what, self.section);
        match full {
            ShareRefusal::Each => {
                let message = format!(
                    "this caller has as many open {what} here as it may have \
                     ({section}.connections_per_caller); close one first"
                );
                let rejection = Rejection::new(Reason::RateLimited, message);
                rejection
                    .with_fact("limit", self.connections_per_caller)
                    .with_retry_after(Duration::from_secs(5))
            }
            ShareRefusal::Share => {
                let message = format!(
                    "open {what} of this caller are half of what others leave of {section}.connections; \
                     close one first"
                );
                let rejection = Rejection::new(Reason::Overloaded, message);
                rejection.with_retry_after(Duration::from_secs(1))
            }
            ShareRefusal::All => {
                let message =
                    format!("the gateway is at its limit of {what} ({section}.connections)");
                let rejection = Rejection::new(Reason::Overloaded, message);
                rejection.with_retry_after(Duration::from_secs(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_caller_and_over_all() {
        let config: Config = toml::from_str(kernel::config::load::DEFAULT).unwrap();
        let places = ReaderSlots::new(config.into(), |_| SlotLimits {
            what: "things",
            section: "x",
            connections: 6,
            connections_per_caller: 2,
        });
        let take = |caller| places.take(Account::without_group(caller));
        let refused = |caller| take(caller).unwrap_err();
        let (first, second) = (take(1).unwrap(), take(1).unwrap());
        assert_eq!(refused(1).reason, Reason::RateLimited);
        assert!(refused(1).message.contains("open things here"));
        let others = [2, 2, 3].map(|caller| take(caller).unwrap());
        assert_eq!(refused(3).reason, Reason::Overloaded);
        assert!(refused(3).message.contains("half of what others leave"));
        let last = take(4).unwrap();
        assert_eq!(refused(5).reason, Reason::Overloaded);
        assert!(
            refused(5)
                .message
                .ends_with("limit of things (x.connections)")
        );
        drop((first, second, others, last));
        take(1).unwrap();
    }
}
