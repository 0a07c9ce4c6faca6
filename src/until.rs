//! A moment until which something counts, which only ever moves on. Read and written by many at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Such a moment; in the past, at first.
pub struct Until {
    began: Instant,
    /// In milliseconds since `began`.
    moment: AtomicU64,
}

impl Default for Until {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            moment: AtomicU64::new(0),
        }
    }
}

impl Until {
    /// Whether it is still to come.
    pub fn holds(&self) -> bool {
        self.elapsed(Duration::ZERO) < self.moment.load(Ordering::Relaxed)
    }

    /// It is this far ahead, or further if it was.
    pub fn extend(&self, ahead: Duration) {
        self.moment
            .fetch_max(self.elapsed(ahead), Ordering::Relaxed);
    }

    fn elapsed(&self, ahead: Duration) -> u64 {
        let ms = (self.began.elapsed() + ahead).as_millis();
        u64::try_from(ms).unwrap_or(u64::MAX)
    }
}
