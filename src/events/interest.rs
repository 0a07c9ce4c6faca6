//! Tracks readers on all replicas: passing events are published only while there is one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::until::Until;

/// Interval at which a replica with readers announces them.
pub(super) const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);

/// Lifetime of an announcement: two may be lost.
const COUNTS_FOR: Duration = Duration::from_secs(15);

/// Readers of this and other replicas.
#[derive(Default)]
pub(super) struct Interest {
    /// Readers of this replica.
    here: AtomicUsize,
    /// End of the lifetime of the last announcement.
    said: Until,
    /// Notified when the first reader of this replica comes.
    pub(super) first: Notify,
}

impl Interest {
    pub(super) fn heard(&self) -> bool {
        self.here() || self.said.holds()
    }

    /// True if this replica has readers.
    pub(super) fn here(&self) -> bool {
        self.listeners() > 0
    }

    /// Readers of this replica.
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

    /// Records an announcement of a replica.
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
