//! A deadline that many tasks read and extend and that never moves back, and the ticks of background work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Returns the ticks of background work, the first at once. After a delay none follow in quick succession.
pub fn ticks(every: Duration) -> Interval {
    ticks_after(Duration::ZERO, every)
}

/// Returns the same, with the first after `pause`.
pub fn ticks_after(pause: Duration, every: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + pause, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// A deadline, initially in the past.
pub struct Deadline {
    began: Instant,
    /// Milliseconds since `began`.
    end: AtomicU64,
}

impl Default for Deadline {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            end: AtomicU64::new(0),
        }
    }
}

impl Deadline {
    /// True until the deadline has passed.
    pub fn is_ahead(&self) -> bool {
        self.millis_to(Duration::ZERO) < self.end.load(Ordering::Relaxed)
    }

    /// Moves the deadline to `ahead` from now, unless it is later already.
    pub fn extend(&self, ahead: Duration) {
        self.end.fetch_max(self.millis_to(ahead), Ordering::Relaxed);
    }

    fn millis_to(&self, ahead: Duration) -> u64 {
        let ms = (self.began.elapsed() + ahead).as_millis();
        u64::try_from(ms).unwrap_or(u64::MAX)
    }
}
