//! How many calls a target has in progress: one counter a target, which outlives the cached entry.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use prometheus::IntGauge;

use crate::ids::WorkspaceId;

/// Counters kept before the unused ones are first swept out.
const SWEEP_LEN_MIN: usize = 1024;

/// The calls in progress at one target.
#[derive(Debug, Default)]
pub(super) struct Calls(AtomicUsize);

impl Calls {
    /// How many there are.
    pub(super) fn taken(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// A call in progress. Dropping it frees the slot, also when the exchange panics.
#[derive(Debug)]
pub struct Slot {
    calls: Arc<Calls>,
    gauge: IntGauge,
}

impl Slot {
    /// Takes a slot unless `limit` are taken.
    pub(super) fn take(calls: &Arc<Calls>, limit: usize, gauge: &IntGauge) -> Option<Self> {
        let one_more = |taken| (taken < limit).then_some(taken + 1);
        calls
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .ok()?;
        gauge.inc();
        Some(Self {
            calls: Arc::clone(calls),
            gauge: gauge.clone(),
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.calls.0.fetch_sub(1, Ordering::AcqRel);
        self.gauge.dec();
    }
}

/// The counters by target. Held weakly: by cached entries and by slots, as long as one of them is.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<Counters>);

#[derive(Debug, Default)]
struct Counters {
    by_target: HashMap<WorkspaceId, Weak<Calls>>,
    sweep_len: usize,
}

impl Slots {
    /// How many calls `target` has in progress.
    pub(super) fn taken(&self, target: &WorkspaceId) -> usize {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = counters.by_target.get(target).and_then(Weak::upgrade);
        calls.map_or(0, |calls| calls.taken())
    }

    /// The counter of `target`: the one that calls in progress hold, if there are any.
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
    /// Drops unused counters whenever their number has doubled.
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
        let one = Slot::take(&calls, 2, &gauge).unwrap();
        let two = Slot::take(&calls, 2, &gauge).unwrap();
        assert!(Slot::take(&calls, 2, &gauge).is_none());
        assert_eq!(gauge.get(), 2);
        drop(one);
        let panicked = std::panic::catch_unwind(move || {
            let _held = two;
            panic!("a bug");
        });
        assert!(panicked.is_err());
        assert_eq!(gauge.get(), 0);
        assert!(Slot::take(&calls, 1, &gauge).is_some());
    }

    #[test]
    fn calls_in_progress_survive_a_reload_of_the_entry() {
        let (slots, gauge) = (Slots::default(), gauge());
        let id = WorkspaceId::parse("a").unwrap();
        let slot = Slot::take(&slots.of(&id), 1, &gauge).unwrap();
        assert!(Slot::take(&slots.of(&id), 1, &gauge).is_none());
        drop(slot);
        assert!(Slot::take(&slots.of(&id), 1, &gauge).is_some());
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
