//! Limits on concurrent readers: in all, and of one caller.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, Live};
use crate::rejection::{Reason, Rejection};
use crate::shares::{Account, Bound, Full, Share, Shares};

/// Limits of one kind of place.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Description for messages: `event streams`.
    pub what: &'static str,
    /// Section of the configuration that has `connections` and `connections_per_caller`.
    pub section: &'static str,
    /// Maximum in all.
    pub connections: usize,
    /// Maximum of one caller.
    pub connections_per_caller: usize,
}

/// Places of this replica.
pub struct Places {
    config: Live,
    bounds: fn(&Config) -> Bounds,
    taken: Arc<Shares>,
}

/// A place. Dropping it frees the place.
#[derive(Debug)]
pub struct Place(Share);

impl Place {
    /// Places of its caller, with all callers of its group.
    pub fn of_caller(&self) -> usize {
        self.0.of_caller()
    }
}

impl Places {
    /// Creates the places; `bounds` reads their limits from the configuration in force.
    pub fn new(config: Live, bounds: fn(&Config) -> Bounds) -> Arc<Self> {
        Arc::new(Self {
            config,
            bounds,
            taken: Arc::default(),
        })
    }

    /// Takes a place for the caller of `account`, which is a [`Proof::account`](crate::identity::Proof::account).
    ///
    /// # Errors
    /// `overloaded` and `rate_limited`.
    pub fn take(&self, account: Account) -> Result<Place, Rejection> {
        let bounds = (self.bounds)(&self.config.get());
        let bound = Bound {
            each: bounds.connections_per_caller,
            ..Bound::places(bounds.connections)
        };
        let taken = self.taken.take(account, 1, bound);
        taken.map(Place).map_err(|full| bounds.refusal(full))
    }
}

impl Bounds {
    fn refusal(&self, full: Full) -> Rejection {
        let (what, section) = (self.what, self.section);
        match full {
            Full::Each => {
                let message = format!(
                    "this caller has as many open {what} here as it may have \
                     ({section}.connections_per_caller); close one first"
                );
                let rejection = Rejection::new(Reason::RateLimited, message);
                rejection
                    .fact("limit", self.connections_per_caller)
                    .retry_after(Duration::from_secs(5))
            }
            Full::Share => {
                let message = format!(
                    "open {what} of this caller are half of what others leave of {section}.connections; \
                     close one first"
                );
                let rejection = Rejection::new(Reason::Overloaded, message);
                rejection.retry_after(Duration::from_secs(1))
            }
            Full::All => {
                let message =
                    format!("the gateway is at its limit of {what} ({section}.connections)");
                let rejection = Rejection::new(Reason::Overloaded, message);
                rejection.retry_after(Duration::from_secs(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_caller_and_over_all() {
        let config: Config = toml::from_str(crate::config::load::DEFAULT).unwrap();
        let places = Places::new(config.into(), |_| Bounds {
            what: "things",
            section: "x",
            connections: 6,
            connections_per_caller: 2,
        });
        let take = |caller| places.take(Account::alone(caller));
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
