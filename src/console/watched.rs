//! Tracks readers, on this and on other replicas: without readers nothing is counted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::until::Until;

/// Interval of announcements of a replica with readers.
pub(super) const ANNOUNCE_EVERY: Duration = Duration::from_secs(3);

/// Lifetime of an announcement: two may be lost.
const COUNTS_FOR: Duration = Duration::from_secs(10);

/// Time for which counting continues after the last reader left: it may only have reloaded its page.
const LINGERS_FOR: Duration = Duration::from_secs(30);

/// The readers of all replicas.
#[derive(Default)]
pub(super) struct Watched {
    readers: AtomicUsize,
    /// The end of the time for which readers that left still count.
    lingering: Until,
    /// The end of the time for which another replica's announcement counts.
    elsewhere: Until,
    /// True if either holds, updated each second: exchanges read only this.
    counts: AtomicBool,
    /// Notified when a reader comes.
    pub(super) came: Notify,
}

impl Watched {
    /// True if exchanges are to be counted. Costs a load.
    pub(super) fn counts(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    /// Takes one of `max` places for a reader.
    pub(super) fn come(&self, max: usize) -> bool {
        let one_more = |taken: usize| (taken < max).then_some(taken + 1);
        let readers = &self.readers;
        let taken = readers.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        if taken.is_ok() {
            self.counts.store(true, Ordering::Relaxed);
            self.came.notify_one();
        }
        taken.is_ok()
    }

    /// Frees the place of a reader.
    pub(super) fn leave(&self) {
        self.lingering.extend(LINGERS_FOR);
        self.readers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the current number of readers of this replica.
    pub(super) fn readers(&self) -> usize {
        self.readers.load(Ordering::Acquire)
    }

    /// True if there are readers here, or were a moment ago.
    pub(super) fn here(&self) -> bool {
        self.readers() > 0 || self.lingering.holds()
    }

    /// True if another replica has readers.
    pub(super) fn elsewhere(&self) -> bool {
        self.elsewhere.holds()
    }

    /// Records an announcement of another replica.
    pub(super) fn announced(&self) {
        self.elsewhere.extend(COUNTS_FOR);
        self.counts.store(true, Ordering::Relaxed);
    }

    /// Updates the flag that exchanges read. True if there are readers.
    pub(super) fn look(&self) -> bool {
        let looked_at = self.here() || self.elsewhere();
        self.counts.store(looked_at, Ordering::Relaxed);
        looked_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn places_are_bounded_and_all_goes_on_for_a_while() {
        let watched = Watched::default();
        assert!(!watched.look() && !watched.counts());
        assert!(watched.come(1) && watched.counts());
        assert!(!watched.come(1), "one place");
        tokio::time::advance(LINGERS_FOR * 2).await;
        assert!(watched.look());
        watched.leave();
        assert_eq!(watched.readers(), 0);
        assert!(watched.look());
        tokio::time::advance(LINGERS_FOR).await;
        assert!(!watched.look() && !watched.counts());
        watched.announced();
        assert!(watched.look() && !watched.here());
        tokio::time::advance(COUNTS_FOR).await;
        assert!(!watched.look());
    }
}
