//! Concurrency of targets: one counter of calls in progress for each target, which outlives its cached entry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use prometheus::IntGauge;

use crate::ids::WorkspaceId;
use crate::shares::{Account, Bound, Full, Share, Shares};

/// Number of counters after which unused ones are first removed.
const SWEEP_LEN_MIN: usize = 1024;

/// Calls in progress at one target, by caller.
pub(super) type Calls = Shares;

/// A call in progress. Dropping it frees the slot, also after a panic of the exchange.
#[derive(Debug)]
pub struct Slot {
    _share: Share,
    gauge: IntGauge,
}

impl Slot {
    /// Takes one of `limit` slots for a call of `account`.
    ///
    /// # Errors
    /// [`Full`].
    pub(super) fn take(
        calls: &Arc<Calls>,
        account: Account,
        limit: usize,
        gauge: &IntGauge,
    ) -> Result<Self, Full> {
        let share = calls.take(account, 1, Bound::places(limit))?;
        gauge.inc();
        Ok(Self {
            _share: share,
            gauge: gauge.clone(),
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

/// Counters by target. Held weakly: each lives as long as a cached entry or a slot holds it.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<Counters>);

#[derive(Debug, Default)]
struct Counters {
    by_target: HashMap<WorkspaceId, Weak<Calls>>,
    sweep_len: usize,
}

impl Slots {
    /// Returns the calls of `target` in progress.
    pub(super) fn taken(&self, target: &WorkspaceId) -> usize {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = counters.by_target.get(target).and_then(Weak::upgrade);
        calls.map_or(0, |calls| calls.taken())
    }

    /// Returns the counter of `target`: that of the calls in progress, if there are any.
    pub(super) fn of(&self, target: &WorkspaceId) -> Arc<Calls> {
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = counters.by_target.get(target).and_then(Weak::upgrade) {
            return calls;
        }
        counters.sweep();
        let calls = Arc::<Calls>::default();
        let held = Arc::downgrade(&calls);
        counters.by_target.insert(target.clone(), held);
        calls
    }
}

impl Counters {
    /// Removes unused counters each time their number has doubled.
    fn sweep(&mut self) {
        if self.by_target.len() < self.sweep_len.max(SWEEP_LEN_MIN) {
            return;
        }
        self.by_target.retain(|_, calls| calls.strong_count() > 0);
        self.sweep_len = 2 * self.by_target.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauge() -> IntGauge {
        IntGauge::new("permits", "permits").unwrap()
    }

    #[test]
    fn a_slot_is_given_back_whatever_ends_it() {
        let (calls, gauge) = (Arc::default(), gauge());
        let one = Slot::take(&calls, Account::alone(1), 4, &gauge).unwrap();
        let two = Slot::take(&calls, Account::alone(1), 4, &gauge).unwrap();
        assert_eq!(
            Slot::take(&calls, Account::alone(1), 4, &gauge).unwrap_err(),
            Full::Share
        );
        assert_eq!(gauge.get(), 2);
        drop(one);
        let panicked = std::panic::catch_unwind(move || {
            let _held = two;
            panic!("a bug");
        });
        assert!(panicked.is_err());
        assert_eq!(gauge.get(), 0);
        assert!(Slot::take(&calls, Account::alone(1), 1, &gauge).is_ok());
    }

    #[test]
    fn calls_in_progress_survive_a_reload_of_the_entry() {
        let (slots, gauge) = (Slots::default(), gauge());
        let id = WorkspaceId::parse("a").unwrap();
        let slot = Slot::take(&slots.of(&id), Account::alone(1), 1, &gauge).unwrap();
        assert!(Slot::take(&slots.of(&id), Account::alone(2), 1, &gauge).is_err());
        drop(slot);
        assert!(Slot::take(&slots.of(&id), Account::alone(2), 1, &gauge).is_ok());
    }

    #[test]
    fn unused_counters_are_swept_out() {
        let slots = Slots::default();
        let used = slots.of(&WorkspaceId::parse("used").unwrap());
        for i in 0..3 * SWEEP_LEN_MIN {
            slots.of(&WorkspaceId::parse(&format!("w{i}")).unwrap());
        }
        let counters = slots.0.lock().unwrap();
        assert!(counters.by_target.len() <= SWEEP_LEN_MIN);
        drop(counters);
        assert!(Arc::ptr_eq(
            &used,
            &slots.of(&WorkspaceId::parse("used").unwrap())
        ));
    }
}
