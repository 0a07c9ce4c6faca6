//! The breaker of one guard: after failures in a row it is not asked for a while, then by one question.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row after which it opens.
const FAILURES: u32 = 5;

/// The time for which it is open at first; doubled up to [`OPEN_MAX`] while tries fail.
const OPEN: Duration = Duration::from_secs(5);

/// The longest time for which it is open.
const OPEN_MAX: Duration = Duration::from_secs(60);

/// The breaker of one guard.
#[derive(Default)]
pub(super) struct Breaker(Mutex<State>);

#[derive(Default)]
struct State {
    /// Failures in a row while it is closed.
    failures: u32,
    /// The time until which no question is asked; `None` while it is closed.
    until: Option<Instant>,
    /// The time for which it was open last.
    period: Duration,
    /// The number of changes. The outcome of a question from before a change does not count.
    generation: u32,
}

/// A question that may be asked.
#[derive(Clone, Copy)]
pub(super) struct Admission {
    generation: u32,
    tries: bool,
}

impl Breaker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a question while it is closed, and one in `patience` after its open time.
    pub(super) fn admit(&self, now: Instant, patience: Duration) -> Option<Admission> {
        let mut state = self.state();
        let tries = state.until.is_some();
        if let Some(until) = state.until {
            if now < until {
                return None;
            }
            state.generation += 1;
            state.until = Some(now + patience);
        }
        Some(Admission {
            generation: state.generation,
            tries,
        })
    }

    /// Counts the outcome of an admitted question. True if it has opened by that.
    pub(super) fn judge(&self, admission: Admission, failed: bool, now: Instant) -> bool {
        let mut state = self.state();
        if admission.generation != state.generation {
            return false;
        }
        if !failed {
            state.failures = 0;
            if admission.tries {
                (state.until, state.period) = (None, Duration::ZERO);
                state.generation += 1;
            }
            return false;
        }
        state.failures += 1;
        if !admission.tries && state.failures < FAILURES {
            return false;
        }
        state.period = (state.period * 2).clamp(OPEN, OPEN_MAX);
        state.until = Some(now + state.period);
        state.failures = 0;
        state.generation += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_opens_after_failures_in_a_row_and_one_question_tries() {
        let breaker = Breaker::default();
        let mut now = Instant::now();
        let fail = |now| {
            let admission = breaker.admit(now, SECOND).unwrap();
            breaker.judge(admission, true, now)
        };
        for _ in 0..4 {
            assert!(!fail(now));
        }
        let early = breaker.admit(now, SECOND).unwrap();
        breaker.judge(early, false, now);
        for _ in 0..4 {
            assert!(!fail(now));
        }
        let late = breaker.admit(now, SECOND).unwrap();
        assert!(fail(now));
        assert!(breaker.admit(now, SECOND).is_none());
        // From before it opened: neither closes it nor prolongs it.
        assert!(!breaker.judge(late, true, now));
        breaker.judge(late, false, now);
        for open in [5, 10, 20, 40, 60, 60] {
            assert!(
                breaker
                    .admit(now + SECOND * open - SECOND / 2, SECOND)
                    .is_none()
            );
            now += SECOND * open;
            let tries = breaker.admit(now, SECOND).unwrap();
            assert!(breaker.admit(now, SECOND).is_none(), "one tries");
            assert!(breaker.judge(tries, true, now));
        }
        now += SECOND * 60;
        // A try whose outcome is never told lets another one try after its patience.
        assert!(breaker.admit(now, SECOND).is_some());
        assert!(breaker.admit(now, SECOND).is_none());
        now += SECOND;
        let tries = breaker.admit(now, SECOND).unwrap();
        assert!(!breaker.judge(tries, false, now));
        assert!((0..3).all(|_| breaker.admit(now, SECOND).is_some()));
    }
}
