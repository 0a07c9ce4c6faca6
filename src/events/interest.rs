//! Whether anybody listens, here or on another replica: what only passes by is made for nobody else.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::until::Until;

/// How often a replica with listeners says so.
pub(super) const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);

/// How long that counts: two announcements may be lost.
const COUNTS_FOR: Duration = Duration::from_secs(15);

/// Who listens.
#[derive(Default)]
pub(super) struct Interest {
    /// Listeners of this replica.
    here: AtomicUsize,
    /// Until when some replica's word counts.
    said: Until,
    /// The first listener of this replica has come.
    pub(super) first: Notify,
}

impl Interest {
    pub(super) fn heard(&self) -> bool {
        self.here() || self.said.holds()
    }

    /// Whether this replica has listeners.
    pub(super) fn here(&self) -> bool {
        self.listeners() > 0
    }

    /// How many listeners this replica has.
    pub(super) fn listeners(&self) -> usize {
        self.here.load(Ordering::Acquire)
    }

    pub(super) fn come(&self) {
        if self.here.fetch_add(1, Ordering::AcqRel) == 0 {
            self.first.notify_one();
        }
    }

    pub(super) fn leave(&self) {
        self.here.fetch_sub(1, Ordering::AcqRel);
    }

    /// Some replica has listeners.
    pub(super) fn announced(&self) {
        self.said.extend(COUNTS_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_word_counts_for_a_while_and_a_listener_here_as_long_as_it_stays() {
        let interest = Interest::default();
        assert!(!interest.heard());
        interest.announced();
        tokio::time::advance(COUNTS_FOR - Duration::from_millis(1)).await;
        assert!(interest.heard());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!interest.heard());
        interest.come();
        tokio::time::advance(COUNTS_FOR * 2).await;
        assert!(interest.heard());
        interest.leave();
        assert!(!interest.heard());
    }
}
