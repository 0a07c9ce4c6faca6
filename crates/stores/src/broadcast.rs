//! The readers of a broadcast, on this replica and on others: without readers nothing is collected or published.
//!
//! A replica with readers announces them on a channel of the shared state, at once and then regularly.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::shared::Shared;
use kernel::deadline::Deadline;
use kernel::telemetry::Chain;

/// The times of an [`Audience`].
#[derive(Clone, Copy, Debug)]
pub struct AudienceTimes {
    /// Interval of announcements.
    pub announce_every: Duration,
    /// Lifetime of an announcement: two may be lost.
    pub announced_for: Duration,
    /// Time for which a reader that left still counts: it may only have reloaded its page.
    pub lingers_for: Duration,
}

/// The readers of a broadcast.
pub struct Audience {
    terms: AudienceTimes,
    readers: AtomicUsize,
    /// The end of the time for which readers that left still count.
    lingering: Deadline,
    /// The end of the time for which an announcement counts.
    announced: Deadline,
    /// True if there are readers, as of the last refresh.
    counts: AtomicBool,
    /// Notified when the first reader comes.
    first: Notify,
}

impl Audience {
    /// Creates an audience without readers.
    pub fn new(terms: AudienceTimes) -> Self {
        Self {
            terms,
            readers: AtomicUsize::new(0),
            lingering: Deadline::default(),
            announced: Deadline::default(),
            counts: AtomicBool::new(false),
            first: Notify::new(),
        }
    }

    /// Takes one of `max` places for a reader. False: all are taken.
    pub fn add_reader(&self, max: usize) -> bool {
        let one_more = |taken: usize| (taken < max).then_some(taken + 1);
        let readers = &self.readers;
        let taken = readers.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        if taken.is_ok() {
            self.counts.store(true, Ordering::Relaxed);
        }
        if taken == Ok(0) {
            self.first.notify_one();
        }
        taken.is_ok()
    }

    /// Frees the place of a reader.
    pub fn remove_reader(&self) {
        self.lingering.extend(self.terms.lingers_for);
        self.readers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the number of readers of this replica.
    pub fn reader_count(&self) -> usize {
        self.readers.load(Ordering::Acquire)
    }

    /// True if this replica has readers, or had some a moment ago.
    pub fn is_here(&self) -> bool {
        self.reader_count() > 0 || !self.terms.lingers_for.is_zero() && self.lingering.is_ahead()
    }

    /// True if a replica has announced readers.
    pub fn is_announced(&self) -> bool {
        self.announced.is_ahead()
    }

    /// True if a replica has readers.
    pub fn is_anywhere(&self) -> bool {
        self.is_here() || self.is_announced()
    }

    /// Records an announcement.
    pub fn record_announcement(&self) {
        self.announced.extend(self.terms.announced_for);
        self.counts.store(true, Ordering::Relaxed);
    }

    /// Returns [`Audience::is_anywhere`], and keeps the result for [`Audience::had_readers`].
    pub fn refresh_presence(&self) -> bool {
        let present = self.is_anywhere();
        self.counts.store(present, Ordering::Relaxed);
        present
    }

    /// True if there were readers at the last refresh, or some came since. Costs a load.
    pub fn had_readers(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    /// Announces readers of this replica on `channel`, until it is dropped.
    pub async fn announce_readers(&self, shared: &Shared, channel: &str, announcement: &str) {
        loop {
            if self.reader_count() > 0
                && let Err(error) = shared.publish(channel, announcement).await
            {
                tracing::debug!(channel, error = %Chain(&error), "failed to announce readers to other replicas");
            }
            let _ = timeout(self.terms.announce_every, self.first.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: AudienceTimes = AudienceTimes {
        announce_every: Duration::from_secs(3),
        announced_for: Duration::from_secs(10),
        lingers_for: Duration::from_secs(30),
    };

    #[tokio::test(start_paused = true)]
    async fn readers_are_bounded_and_count_for_a_while_after_they_left() {
        let audience = Audience::new(TERMS);
        assert!(!audience.refresh_presence() && !audience.had_readers());
        assert!(audience.add_reader(1) && audience.had_readers());
        assert!(!audience.add_reader(1), "one place");
        tokio::time::advance(TERMS.lingers_for * 2).await;
        assert!(audience.refresh_presence());
        audience.remove_reader();
        assert_eq!(audience.reader_count(), 0);
        assert!(audience.refresh_presence());
        tokio::time::advance(TERMS.lingers_for).await;
        assert!(!audience.refresh_presence() && !audience.had_readers());
    }

    #[tokio::test(start_paused = true)]
    async fn an_announcement_counts_for_a_while() {
        let audience = Audience::new(TERMS);
        audience.record_announcement();
        assert!(audience.had_readers() && audience.refresh_presence() && !audience.is_here());
        tokio::time::advance(TERMS.announced_for - Duration::from_millis(1)).await;
        assert!(audience.is_announced());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!audience.is_anywhere() && !audience.refresh_presence());
    }
}
