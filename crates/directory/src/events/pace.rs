//! Limits on wake-ups of readers and on their passing events: for all of them together and for each caller, so
//! that many readers do not slow down calls.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Maximum wake-ups a second of all readers of a replica. A delayed reader gets more events at once.
const WAKES_PER_SECOND: u32 = 5_000;

/// Shortest pause: timers are no finer.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Longest pause, for any number of readers.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Passing events a second for all readers of one caller.
const PASSING_PER_SECOND: f64 = 10_000.0;

/// Pace of one reader.
pub(super) struct Pace {
    /// Earliest time of the next wake-up.
    rests_until: Instant,
    /// Readers of its caller at its last wake-up.
    of_caller: usize,
    /// Passing events left, as of `counted_at`.
    left: f64,
    counted_at: Instant,
}

impl Pace {
    /// Pace of a reader of a caller with `of_caller` readers.
    pub(super) fn new(of_caller: usize) -> Self {
        let now = Instant::now();
        let mut pace = Self {
            rests_until: now,
            of_caller,
            left: 0.0,
            counted_at: now,
        };
        pace.left = pace.per_second();
        pace
    }

    /// True if its caller had no other reader at its last wake-up.
    pub(super) fn is_alone(&self) -> bool {
        self.of_caller <= 1
    }

    /// Waits until it may be woken.
    pub(super) async fn wait_for_turn(&self) {
        if Instant::now() < self.rests_until {
            sleep_until(self.rests_until).await;
        }
    }

    /// Records a wake-up of one of `readers`, of which its caller has `of_caller`.
    pub(super) fn record_wake(&mut self, readers: usize, of_caller: usize) {
        self.of_caller = of_caller;
        let readers = u32::try_from(readers).unwrap_or(u32::MAX);
        let pause = Duration::from_secs(1) * readers / WAKES_PER_SECOND;
        if PAUSE_MIN <= pause {
            self.rests_until = Instant::now() + pause.min(PAUSE_MAX);
        }
    }

    /// Counts one event; true if it may pass.
    pub(super) fn try_pass(&mut self) -> bool {
        let now = Instant::now();
        let per_second = self.per_second();
        let gained = per_second * now.duration_since(self.counted_at).as_secs_f64();
        // At most a second's worth at once.
        self.left = (self.left + gained).min(per_second.max(1.0));
        self.counted_at = now;
        let passes = self.left >= 1.0;
        if passes {
            self.left -= 1.0;
        }
        passes
    }

    fn per_second(&self) -> f64 {
        let readers = u32::try_from(self.of_caller.max(1)).unwrap_or(u32::MAX);
        PASSING_PER_SECOND / f64::from(readers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readers_of_one_caller_share_what_passes_and_all_share_the_wake_ups() {
        let passed = |pace: &mut Pace| (0..20_000).take_while(|_| pace.try_pass()).count();
        assert_eq!(passed(&mut Pace::new(1)), 10_000);
        let mut one_of_many = Pace::new(500);
        assert_eq!(passed(&mut one_of_many), 20);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(passed(&mut one_of_many), 10);
        let began = Instant::now();
        for (readers, pause) in [(1, 0), (4, 0), (300, 60), (5_000, 1_000), (50_000, 1_000)] {
            let began = Instant::now();
            one_of_many.record_wake(readers, 1);
            one_of_many.wait_for_turn().await;
            let rested = began.elapsed();
            assert!(
                rested.as_millis().abs_diff(pause) <= 1,
                "{readers}: {rested:?}"
            );
        }
        assert!(began.elapsed() < Duration::from_secs(3));
    }
}
