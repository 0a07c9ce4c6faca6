//! How many may watch at once: over all, and of one caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::{Config, Live};
use crate::rejection::{Reason, Rejection};

/// How many places there are.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// What takes them, for people: `event streams`.
    pub what: &'static str,
    /// The section of the configuration that has `connections` and `connections_per_caller`.
    pub section: &'static str,
    /// Over all.
    pub connections: usize,
    /// Of one caller.
    pub connections_per_caller: usize,
}

/// The places of this replica.
pub struct Places {
    config: Live,
    bounds: fn(&Config) -> Bounds,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_caller: HashMap<u64, usize>,
}

/// A place. Dropping it gives it back.
pub struct Place {
    places: Arc<Places>,
    caller: u64,
}

impl Places {
    /// As many as `bounds` finds in the configuration in force.
    pub fn new(config: Live, bounds: fn(&Config) -> Bounds) -> Arc<Self> {
        Arc::new(Self {
            config,
            bounds,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for `caller`, which is a [`Proof::account`](crate::identity::Proof::account).
    ///
    /// # Errors
    /// `overloaded` and `rate_limited`.
    pub fn take(self: &Arc<Self>, caller: u64) -> Result<Place, Rejection> {
        let bounds = (self.bounds)(&self.config.get());
        let (what, section) = (bounds.what, bounds.section);
        let mut taken = self.taken();
        let own = taken.by_caller.get(&caller).copied().unwrap_or(0);
        if bounds.connections_per_caller <= own {
            let message = format!(
                "this caller has as many open {what} here as it may have \
                 ({section}.connections_per_caller); close one first"
            );
            let rejection = Rejection::new(Reason::RateLimited, message);
            return Err(rejection
                .fact("limit", bounds.connections_per_caller)
                .retry_after(Duration::from_secs(5)));
        }
        if bounds.connections <= taken.all {
            let message = format!("the gateway is at its limit of {what} ({section}.connections)");
            let rejection = Rejection::new(Reason::Overloaded, message);
            return Err(rejection.retry_after(Duration::from_secs(1)));
        }
        taken.all += 1;
        taken.by_caller.insert(caller, own + 1);
        drop(taken);
        Ok(Place {
            places: Arc::clone(self),
            caller,
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Each step leaves the counts whole, so a panic elsewhere cannot have broken them.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        let left = taken.by_caller.get(&self.caller).copied().unwrap_or(1) - 1;
        if left == 0 {
            taken.by_caller.remove(&self.caller);
        } else {
            taken.by_caller.insert(self.caller, left);
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
            connections: 3,
            connections_per_caller: 2,
        });
        let take = |caller| places.take(caller);
        let refused = |caller| take(caller).err().unwrap();
        let (first, second) = (take(1).unwrap(), take(1).unwrap());
        assert_eq!(refused(1).reason, Reason::RateLimited);
        assert!(refused(1).message.contains("open things here"));
        let third = take(2).unwrap();
        assert_eq!(refused(3).reason, Reason::Overloaded);
        assert!(
            refused(3)
                .message
                .ends_with("limit of things (x.connections)")
        );
        drop(first);
        assert_eq!(places.taken().by_caller.len(), 2);
        let fourth = take(3).unwrap();
        drop((second, third, fourth));
        assert!(places.taken().by_caller.is_empty());
        assert_eq!(places.taken().all, 0);
        take(1).unwrap();
    }
}
