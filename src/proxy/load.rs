//! Admission of load: slots among the exchanges, memory for bodies, and no new work during a shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::config::Live;
use crate::drain::Drain;
use crate::explain::{Check, Fact, Source, Witness};
use crate::metrics::Metrics;
use crate::rejection::{Reason, Rejection};
use crate::shares::{Account, Bound, Share, ShareRefusal, Shares};

/// The load of this process, with its bounds.
pub(in crate::proxy) struct Load {
    config: Live,
    metrics: Arc<Metrics>,
    drain: Arc<Drain>,
    /// The memory that bodies take.
    bodies: Arc<Shares>,
    exchanges: AtomicUsize,
}

impl Load {
    pub(in crate::proxy) fn new(config: Live, metrics: Arc<Metrics>, drain: Arc<Drain>) -> Self {
        Self {
            config,
            metrics,
            drain,
            bodies: Arc::default(),
            exchanges: AtomicUsize::new(0),
        }
    }

    /// Returns a share of the memory for bodies, with no bytes yet.
    pub(in crate::proxy) fn new_share(&self, account: Account) -> Share {
        Share::empty(&self.bodies, account)
    }

    /// Checks that new work may begin.
    ///
    /// # Errors
    /// `shutting_down`.
    pub(in crate::proxy) fn check_open(&self) -> Result<(), Rejection> {
        if self.drain.has_begun() {
            let message = "this process is shutting down; connect again to reach another one";
            let again = Duration::from_secs(1);
            return Err(Rejection::new(Reason::ShuttingDown, message).with_retry_after(again));
        }
        Ok(())
    }

    /// Reserves memory for `bytes` more of a body.
    ///
    /// # Errors
    /// `overloaded` if all bodies together would exceed `limits.bodies_bytes`, or if those of this caller would exceed
    /// both half of what other callers leave free and the maximum of one body.
    pub(in crate::proxy) fn reserve(
        &self,
        share: &mut Share,
        bytes: usize,
    ) -> Result<(), Rejection> {
        let limits = &self.config.get().limits;
        let (all, least) = (limits.bodies_bytes.bytes(), limits.request_bytes.bytes());
        let bound = Bound::with_least(all, least);
        share.grow(bytes, bound).map_err(|full| {
            self.metrics.bodies_refused.inc();
            no_room(full)
        })
    }

    /// Takes a slot for one more exchange.
    ///
    /// # Errors
    /// `overloaded` if `server.max_exchanges` are in progress.
    pub(in crate::proxy) fn take_slot(&self) -> Result<Slot<'_>, Rejection> {
        let limit = self.config.get().server.max_exchanges;
        Slot::take(&self.exchanges, limit).ok_or_else(|| no_slot(limit))
    }

    /// Checks for a free slot without taking it, and records the number of taken slots in `witness`.
    ///
    /// # Errors
    /// As [`Load::take_slot`].
    pub(in crate::proxy) fn check_slot(&self, witness: &mut impl Witness) -> Result<(), Rejection> {
        let limit = self.config.get().server.max_exchanges;
        let (taken, there_is_one) = Slot::count(&self.exchanges, limit);
        witness.record(|| {
            let value = json!({"taken": taken, "limit": limit, "of": "this replica"});
            Fact::new(Check::Places, Source::Memory, value)
        });
        there_is_one.then_some(()).ok_or_else(|| no_slot(limit))
    }
}

/// Builds `overloaded` for a body without memory.
fn no_room(full: ShareRefusal) -> Rejection {
    let message = match full {
        ShareRefusal::All => {
            "the gateway holds as many bytes of bodies as it may (limits.bodies_bytes)"
        }
        ShareRefusal::Share | ShareRefusal::Each => {
            "bodies of this caller take half of what others leave of limits.bodies_bytes: send fewer at once"
        }
    };
    Rejection::new(Reason::Overloaded, message).with_retry_after(Duration::from_secs(1))
}

fn no_slot(limit: usize) -> Rejection {
    let message = format!("too many requests in progress (server.max_exchanges = {limit})");
    Rejection::new(Reason::Overloaded, message).with_retry_after(Duration::from_secs(1))
}

/// A slot, for example one of `server.max_exchanges`. Dropping it frees the slot.
pub(in crate::proxy) struct Slot<'a>(&'a AtomicUsize);

impl<'a> Slot<'a> {
    pub(in crate::proxy) fn take(taken: &'a AtomicUsize, max: usize) -> Option<Self> {
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let slot = Self(taken);
        (before < max).then_some(slot)
    }

    /// Returns the number of taken slots, and whether one is free.
    pub(in crate::proxy) fn count(taken: &AtomicUsize, max: usize) -> (usize, bool) {
        let before = taken.load(Ordering::Relaxed);
        (before, before < max)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
