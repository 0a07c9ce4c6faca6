//! Charge of one call.

use std::sync::Arc;

use super::counter::Counter;
use crate::config::CapCount;

/// The counts of one call. Dropped before [`Charge::mark_sent`], it gives back what it took: a call that was refused
/// counts nothing.
#[derive(Default)]
pub struct Charge {
    units: Vec<Unit>,
    sent: bool,
    shows_task: bool,
    /// Bytes that were counted.
    bytes: u64,
}

/// One count of a call.
pub(super) struct Unit {
    pub(super) counter: Arc<Counter>,
    pub(super) count: CapCount,
    /// The life of the count in which the unit was taken.
    pub(super) life: u64,
}

impl Charge {
    pub(super) fn push(&mut self, unit: Unit) {
        self.units.push(unit);
    }

    /// True if the call counts for nothing.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Records that the call is sent, or kept for its target: it counts from here on.
    pub fn mark_sent(&mut self) {
        if self.sent {
            return;
        }
        self.sent = true;
        for unit in &self.units {
            if unit.count == CapCount::Seconds {
                unit.counter.begin_call();
            }
        }
    }

    /// Returns the counts of a call that is sent.
    #[must_use]
    pub fn into_sent(mut self: Box<Self>) -> Box<Self> {
        self.mark_sent();
        self
    }

    /// Records that nothing was sent after all: the call counts nothing.
    pub fn not_sent(&mut self) {
        if self.sent {
            self.end_clocks();
        }
        self.sent = false;
    }

    /// Records that the answer will be searched for its task, so that its end tells whether the call began one.
    pub fn shows_its_task(&mut self) {
        self.shows_task = true;
    }

    /// Records that the whole answer named no task: the call began none.
    pub fn began_no_task(&mut self) {
        if !self.shows_task {
            return;
        }
        for unit in self
            .units
            .extract_if(.., |unit| unit.count == CapCount::Tasks)
        {
            unit.counter.give_back(unit.life);
        }
    }

    /// Counts the bytes that passed; `total` are those of the call so far.
    pub fn record_bytes(&mut self, total: u64) {
        let more = total.saturating_sub(self.bytes);
        if !self.sent || more == 0 {
            return;
        }
        self.bytes = total;
        for unit in &self.units {
            if unit.count == CapCount::Bytes {
                unit.counter.add_units(more);
            }
        }
    }

    fn end_clocks(&self) {
        for unit in &self.units {
            if unit.count == CapCount::Seconds {
                unit.counter.end_call();
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.sent {
            return self.end_clocks();
        }
        for unit in &self.units {
            if unit.count.is_by_call() {
                unit.counter.give_back(unit.life);
            }
        }
    }
}
