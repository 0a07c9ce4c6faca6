//! Concurrency of targets: one counter of calls in progress for each target, which outlives its cached entry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use prometheus::IntGauge;
use serde_json::json;

use crate::explain::{Check, Fact, Source, Witness};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::shares::{Account, Bound, Full, Share, Shares};

/// Number of counters after which unused ones are first removed.
const SWEEP_LEN_MIN: usize = 1024;

/// A call in progress. Dropping it frees the slot, also after a panic of the exchange.
#[derive(Debug)]
pub struct Slot {
    _share: Share,
    gauge: IntGauge,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

/// Slots of one target.
#[derive(Debug)]
pub struct TargetSlots {
    calls: Arc<Shares>,
    /// Maximum calls in progress.
    limit: usize,
    gauge: IntGauge,
}

impl TargetSlots {
    /// Takes a slot for a call of `account`.
    ///
    /// # Errors
    /// `agent_busy` if all are taken, or the caller has half of the slots that other callers leave.
    pub fn take(&self, account: Account) -> Result<Slot, Rejection> {
        let taken = self.calls.take(account, 1, Bound::places(self.limit));
        let share = taken.map_err(|full| self.busy(full))?;
        self.gauge.inc();
        Ok(Slot {
            _share: share,
            gauge: self.gauge.clone(),
        })
    }

    /// Checks that there is a free slot for a call of `account`, and reports the facts to `witness`.
    ///
    /// # Errors
    /// As [`TargetSlots::take`].
    pub fn check(&self, account: Account, witness: &mut impl Witness) -> Result<(), Rejection> {
        let (taken, limit) = (self.calls.taken(), self.limit);
        witness.hear(|| {
            let value = json!({"taken": taken, "limit": limit, "of": "this replica"});
            Fact::new(Check::Slots, Source::Memory, value)
        });
        let looked = self.calls.look(account, Bound::places(limit));
        looked.map_err(|full| self.busy(full))
    }

    fn busy(&self, full: Full) -> Rejection {
        let message = match full {
            Full::All => {
                "the workspace has as many calls in progress as it takes; try again shortly"
            }
            Full::Share | Full::Each => {
                "calls of this caller have half of the places that others leave at the workspace (limits.target_concurrency, \
                 or its max_concurrent); try again shortly"
            }
        };
        Rejection::new(Reason::AgentBusy, message)
            .retry_after(Duration::from_secs(1))
            .fact("limit", self.limit)
    }
}

/// Counters by target. Held weakly: each lives as long as a cached entry or a slot holds it.
#[derive(Debug)]
pub struct Slots {
    counters: Mutex<Counters>,
    gauge: IntGauge,
}

#[derive(Debug, Default)]
struct Counters {
    by_target: HashMap<WorkspaceId, Weak<Shares>>,
    sweep_len: usize,
}

impl Slots {
    /// `gauge`: shows the calls in progress at all targets.
    pub(crate) fn new(gauge: IntGauge) -> Self {
        Self {
            counters: Mutex::default(),
            gauge,
        }
    }

    /// Returns the number of calls of `target` in progress at this replica.
    pub fn in_progress(&self, target: &WorkspaceId) -> usize {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = counters.by_target.get(target).and_then(Weak::upgrade);
        calls.map_or(0, |calls| calls.taken())
    }

    /// Returns `limit` slots of `target`, with those of the calls in progress taken.
    pub(super) fn of(&self, target: &WorkspaceId, limit: usize) -> TargetSlots {
        TargetSlots {
            calls: self.counter(target),
            limit,
            gauge: self.gauge.clone(),
        }
    }

    fn counter(&self, target: &WorkspaceId) -> Arc<Shares> {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = counters.by_target.get(target).and_then(Weak::upgrade) {
            return calls;
        }
        counters.sweep();
        let calls = Arc::<Shares>::default();
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

    fn slots() -> Slots {
        Slots::new(IntGauge::new("permits", "permits").unwrap())
    }

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    #[test]
    fn a_slot_is_given_back_whatever_ends_it() {
        let slots = slots();
        let target = slots.of(&id("a"), 4);
        let one = target.take(Account::alone(1)).unwrap();
        let two = target.take(Account::alone(1)).unwrap();
        let busy = target.take(Account::alone(1)).unwrap_err();
        assert!(busy.message.starts_with("calls of this caller"));
        assert_eq!(slots.gauge.get(), 2);
        drop(one);
        let panicked = std::panic::catch_unwind(move || {
            let _held = two;
            panic!("a bug");
        });
        assert!(panicked.is_err());
        assert_eq!(slots.gauge.get(), 0);
        assert!(slots.of(&id("a"), 1).take(Account::alone(1)).is_ok());
    }

    #[test]
    fn calls_in_progress_survive_a_reload_of_the_entry() {
        let (slots, id) = (slots(), id("a"));
        let slot = slots.of(&id, 1).take(Account::alone(1)).unwrap();
        assert!(slots.of(&id, 1).take(Account::alone(2)).is_err());
        drop(slot);
        assert!(slots.of(&id, 1).take(Account::alone(2)).is_ok());
    }

    #[test]
    fn unused_counters_are_swept_out() {
        let slots = slots();
        let used = slots.counter(&id("used"));
        for i in 0..3 * SWEEP_LEN_MIN {
            slots.counter(&id(&format!("w{i}")));
        }
        let counters = slots.counters.lock().unwrap();
        assert!(counters.by_target.len() <= SWEEP_LEN_MIN);
        drop(counters);
        assert!(Arc::ptr_eq(&used, &slots.counter(&id("used"))));
    }
}
