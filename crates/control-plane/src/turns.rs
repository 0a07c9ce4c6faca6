//! Turns of requests that take more memory than their bytes: policies are compared with the state one at a time, and
//! few requests wait for that, for a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use access::identity::{Proof, Role};
use kernel::rejection::{Reason, Rejection};
use kernel::shares::{Bound, Share, Shares};

/// Requests that have their turn or wait for it.
const PLACES: usize = 8;

/// Longest wait for a turn.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The group of all callers that may only read: together they have half of the places, and each has one.
const READERS: u64 = u64::MAX;

/// The turns of one kind of work.
#[derive(Clone)]
pub(super) struct Turns(Arc<Shares>, Arc<Semaphore>);

/// The turn of one request. Dropping it ends the turn.
pub(super) struct Turn {
    _place: Share,
    _turn: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::default(), Arc::new(Semaphore::new(1)))
    }
}

impl Turns {
    /// Waits for the turn of a caller.
    ///
    /// # Errors
    /// `overloaded`.
    pub(super) async fn take(&self, proof: &Proof) -> Result<Turn, Rejection> {
        let (mut account, mut bound) = (proof.account, Bound::with_places(PLACES));
        if proof.role() == Some(Role::Read) {
            (account.group, bound.each) = (READERS, 1);
        }
        let full = "policies are compared one at a time, and no more may wait for that, or no more of this caller; send it again";
        let place = self.0.take(account, 1, bound);
        let place = place.map_err(|_| overloaded(full))?;
        let turn = timeout(WAIT_MAX, Arc::clone(&self.1).acquire_owned()).await;
        match turn {
            Ok(Ok(turn)) => Ok(Turn {
                _place: place,
                _turn: turn,
            }),
            _ => Err(overloaded(
                "policies are compared one at a time, and those before took too long; send it again",
            )),
        }
    }
}

fn overloaded(message: &'static str) -> Rejection {
    Rejection::new(Reason::Overloaded, message).with_retry_after(Duration::from_secs(1))
}
