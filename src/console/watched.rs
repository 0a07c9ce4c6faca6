//! Whether anybody looks, here or on another replica: nothing is counted for nobody.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::until::Until;

/// How often a replica with readers says so.
pub(super) const ANNOUNCE_EVERY: Duration = Duration::from_secs(3);

/// How long that counts: two announcements may be lost.
const COUNTS_FOR: Duration = Duration::from_secs(10);

/// How long all goes on after the last reader left: it may only have loaded its page again.
const LINGERS_FOR: Duration = Duration::from_secs(30);

/// Who looks.
#[derive(Default)]
pub(super) struct Watched {
    readers: AtomicUsize,
    /// Until when they count who have left.
    lingering: Until,
    /// Until when some other replica's word counts.
    elsewhere: Until,
    /// Both, as of the last second or later: what an exchange looks at.
    counts: AtomicBool,
    /// A reader has come.
    pub(super) came: Notify,
}

impl Watched {
    /// Whether exchanges are to be counted. Costs a load.
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

    /// A reader has left.
    pub(super) fn leave(&self) {
        self.lingering.extend(LINGERS_FOR);
        self.readers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Readers of this replica, now.
    pub(super) fn readers(&self) -> usize {
        self.readers.load(Ordering::Acquire)
    }

    /// Whether there are readers here, or were a moment ago.
    pub(super) fn here(&self) -> bool {
        self.readers() > 0 || self.lingering.holds()
    }

    /// Whether another replica has readers.
    pub(super) fn elsewhere(&self) -> bool {
        self.elsewhere.holds()
    }

    /// Another replica has readers.
    pub(super) fn announced(&self) {
        self.elsewhere.extend(COUNTS_FOR);
        self.counts.store(true, Ordering::Relaxed);
    }

    /// Whether anybody looks; from now on exchanges know.
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
