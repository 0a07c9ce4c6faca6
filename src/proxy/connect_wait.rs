//! Room for calls that wait for agents that refuse connections (`upstream.hold`).

use std::sync::Arc;

use crate::config::Config;
use crate::metrics::{Capacity, HoldOutcome, InProgress};
use crate::shares::{Account, Bound, Share, Shares};

/// Calls that wait for agents that refuse connections, of a replica.
#[derive(Default)]
pub(in crate::proxy) struct WaitingCalls {
    calls: Arc<Shares>,
    bytes: Arc<Shares>,
}

/// A call that waits. Dropping it frees its room.
pub(in crate::proxy) struct WaitingCall<'a> {
    _room: [Share; 2],
    _waits: InProgress,
    capacity: &'a Capacity,
    outcome: HoldOutcome,
}

impl WaitingCalls {
    /// Takes room for one more call; `None` if there is none.
    pub(in crate::proxy) fn take_room<'a>(
        &self,
        account: Account,
        bytes: usize,
        config: &Config,
        capacity: &'a Capacity,
    ) -> Option<WaitingCall<'a>> {
        let (upstream, body) = (&config.upstream, config.limits.request_bytes.bytes());
        let places = Bound::with_places(upstream.hold_calls);
        let place = self.calls.take(account, 1, places);
        let bound = Bound::with_least(upstream.hold_bytes.bytes(), body);
        let room = place.and_then(|place| Ok([place, self.bytes.take(account, bytes, bound)?]));
        let Ok(room) = room else {
            capacity.count_hold(HoldOutcome::Full);
            return None;
        };
        Some(WaitingCall {
            _room: room,
            _waits: InProgress::begin(&capacity.held),
            capacity,
            outcome: HoldOutcome::Left,
        })
    }
}

impl WaitingCall<'_> {
    /// Ends the wait.
    pub(in crate::proxy) fn end(mut self, outcome: HoldOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.capacity.count_hold(self.outcome);
    }
}
