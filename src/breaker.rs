//! Circuit breaker: refuses calls after failures, and lets one call try after a while. Pure: it has no clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::config;

/// Parts of the window that are forgotten one by one.
const PARTS: usize = 10;
/// Minimum calls in the window before their ratio counts.
const CALLS_MIN: u32 = 20;

/// State of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Calls pass.
    Closed,
    /// Calls are refused until then.
    Open(Instant),
    /// One call tries, at most until then; the others are refused. `None`: the next call is the one.
    Trying(Option<Instant>),
}

/// Change of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// Calls are refused from now on.
    Opened,
    /// Calls pass again.
    Closed,
}

/// A call that the breaker admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Number of changes before it.
    generation: u32,
    /// True for the one call that tries.
    pub tries: bool,
}

/// Breaker of one server; `Cause`: the kind of its failures.
#[derive(Debug)]
pub struct Breaker<Cause> {
    phase: Phase,
    /// Number of changes so far. The outcome of a call from before a change does not count.
    generation: u32,
    failures_in_a_row: u32,
    window: Window,
    /// Time for which it was open last.
    period: Duration,
    /// The last failure, and its time, since it opened.
    why: Option<(Cause, Instant)>,
    /// The last failure, and its time, if no call succeeded since.
    last_failure: Option<(Cause, Instant)>,
}

impl<Cause: Copy> Breaker<Cause> {
    /// Creates a closed one.
    pub fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Closed,
            generation: 0,
            failures_in_a_row: 0,
            window: Window::new(now),
            period: Duration::ZERO,
            why: None,
            last_failure: None,
        }
    }

    /// Returns its state.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the failure that opened it, and the time at which it opened.
    pub fn why(&self) -> Option<(Cause, Instant)> {
        self.why
    }

    /// Returns the number of failures since the last call that succeeded, with the last failure and its time; `None`
    /// without one.
    pub fn failures_in_a_row(&self) -> Option<(u32, Cause, Instant)> {
        let (cause, at) = self.last_failure?;
        Some((self.failures_in_a_row, cause, at))
    }

    /// Checks without a change whether it would admit a call.
    ///
    /// # Errors
    /// The time after which a call may be admitted.
    pub fn look(&self, now: Instant) -> Result<(), Duration> {
        match self.phase {
            Phase::Closed | Phase::Trying(None) => Ok(()),
            Phase::Open(until) | Phase::Trying(Some(until)) if until <= now => Ok(()),
            Phase::Open(until) => Err(until - now),
            Phase::Trying(Some(_)) => Err(Duration::ZERO),
        }
    }

    /// Admits a call while it is closed.
    pub fn admit_closed(&self) -> Admission {
        Admission {
            generation: self.generation,
            tries: false,
        }
    }

    /// Admits a call. One that tries has `patience`; after that it tells nothing any more, and another one tries.
    ///
    /// # Errors
    /// The time after which a call may be admitted.
    pub fn admit(&mut self, patience: Duration, now: Instant) -> Result<Admission, Duration> {
        self.look(now)?;
        let tries = self.phase != Phase::Closed;
        if tries {
            self.generation += 1;
            self.phase = Phase::Trying(Some(now + patience));
        }
        Ok(Admission {
            generation: self.generation,
            tries,
        })
    }

    /// Counts the outcome of an admitted call; `failure`: its failure, if it failed.
    pub fn judge(
        &mut self,
        admission: Admission,
        failure: Option<Cause>,
        config: &config::Breaker,
        now: Instant,
    ) -> Option<Turned> {
        if admission.generation != self.generation {
            return None;
        }
        let Some(cause) = failure else {
            self.failures_in_a_row = 0;
            self.last_failure = None;
            self.window.count(false, config.window, now);
            return admission.tries.then(|| self.close(now));
        };
        self.failures_in_a_row += 1;
        self.last_failure = Some((cause, now));
        self.window.count(true, config.window, now);
        let too_many = config.failures > 0 && self.failures_in_a_row >= config.failures;
        if config.is_off() || !(admission.tries || too_many || self.window.fails(config.ratio.0)) {
            return None;
        }
        let doubled = self.period.saturating_mul(2).min(config.open_max);
        self.period = if admission.tries {
            doubled.max(config.open)
        } else {
            config.open
        };
        self.phase = Phase::Open(now + self.period);
        self.generation += 1;
        self.why = Some((cause, now));
        Some(Turned::Opened)
    }

    /// Frees the place of an admitted call without an outcome: its caller left.
    pub fn forget(&mut self, admission: Admission) {
        if admission.tries && admission.generation == self.generation {
            self.phase = Phase::Trying(None);
        }
    }

    /// Lets the next call try: the agent gave a sign of life.
    pub fn let_try(&mut self) {
        if matches!(self.phase, Phase::Open(_)) {
            self.phase = Phase::Trying(None);
        }
    }

    /// Lets calls pass.
    pub fn close(&mut self, now: Instant) -> Turned {
        self.phase = Phase::Closed;
        self.generation += 1;
        self.failures_in_a_row = 0;
        self.window = Window::new(now);
        self.why = None;
        self.last_failure = None;
        Turned::Closed
    }
}

/// Calls and failures of the last while, in parts.
#[derive(Debug)]
struct Window {
    /// Calls, and failed ones.
    parts: [(u32, u32); PARTS],
    current: usize,
    /// Beginning of the current part.
    began: Instant,
}

impl Window {
    fn new(now: Instant) -> Self {
        Self {
            parts: [(0, 0); PARTS],
            current: 0,
            began: now,
        }
    }

    fn count(&mut self, failed: bool, length: Duration, now: Instant) {
        #[expect(clippy::cast_possible_truncation, reason = "ten")]
        let part = (length / PARTS as u32).max(Duration::from_millis(1));
        for _ in 0..PARTS {
            if now.saturating_duration_since(self.began) < part {
                break;
            }
            self.current = (self.current + 1) % PARTS;
            self.parts[self.current] = (0, 0);
            self.began += part;
        }
        if now.saturating_duration_since(self.began) >= part {
            // All parts were forgotten.
            self.began = now;
        }
        let (calls, failures) = &mut self.parts[self.current];
        *calls = calls.saturating_add(1);
        *failures = failures.saturating_add(u32::from(failed));
    }

    /// True if so many of at least [`CALLS_MIN`] calls failed. A ratio of 0 counts nothing.
    fn fails(&self, ratio: f64) -> bool {
        let calls: u32 = self.parts.iter().map(|(calls, _)| calls).sum();
        let failures: u32 = self.parts.iter().map(|(_, failures)| failures).sum();
        ratio > 0.0 && calls >= CALLS_MIN && f64::from(failures) >= ratio * f64::from(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::AgentFailure;

    const SECOND: Duration = Duration::from_secs(1);

    fn config() -> config::Breaker {
        config::Breaker {
            failures: 5,
            ratio: config::Ratio(0.5),
            window: 30 * SECOND,
            open: 5 * SECOND,
            open_max: 60 * SECOND,
        }
    }

    struct Driven {
        breaker: Breaker<AgentFailure>,
        now: Instant,
    }

    impl Driven {
        fn new() -> Self {
            let now = Instant::now();
            let breaker = Breaker::new(now);
            Self { breaker, now }
        }

        fn admit(&mut self) -> Result<Admission, Duration> {
            self.breaker.admit(60 * SECOND, self.now)
        }

        fn call(&mut self, failed: bool) -> Option<Turned> {
            let admission = self.breaker.admit(60 * SECOND, self.now).unwrap();
            let failure = failed.then_some(AgentFailure::Connect);
            self.breaker.judge(admission, failure, &config(), self.now)
        }

        fn open(&mut self) {
            while self.call(true) != Some(Turned::Opened) {}
        }
    }

    #[test]
    fn failures_in_a_row_open_it_and_one_success_between_them_does_not() {
        let mut driven = Driven::new();
        for _ in 0..4 {
            assert_eq!(driven.call(true), None);
        }
        assert_eq!(driven.call(false), None);
        for _ in 0..4 {
            assert_eq!(driven.call(true), None);
        }
        assert_eq!(driven.call(true), Some(Turned::Opened));
        assert_eq!(driven.admit(), Err(5 * SECOND));
        assert_eq!(
            driven.breaker.why().map(|why| why.0),
            Some(AgentFailure::Connect)
        );
    }

    #[test]
    fn half_of_twenty_calls_in_the_window_open_it_and_older_ones_do_not_count() {
        let mut driven = Driven::new();
        for n in 0..19 {
            assert_eq!(driven.call(n % 2 == 0), None, "{n}");
        }
        assert_eq!(driven.call(true), Some(Turned::Opened), "11 of 20");
        let mut driven = Driven::new();
        for n in 0..19 {
            assert_eq!(driven.call(n % 2 == 0), None, "{n}");
        }
        driven.now += 31 * SECOND;
        assert_eq!(driven.call(true), None, "the first of the window");
        for n in 0..100 {
            driven.now += SECOND;
            assert_eq!(driven.call(n % 3 == 0), None, "a third fails");
        }
    }

    #[test]
    fn one_call_tries_and_a_failure_doubles_the_time_up_to_the_most() {
        let mut driven = Driven::new();
        driven.open();
        for seconds in [5, 10, 20, 40, 60, 60] {
            driven.now += (seconds - 1) * SECOND;
            assert_eq!(driven.admit(), Err(SECOND), "{seconds}");
            driven.now += SECOND;
            let one = driven.admit().unwrap();
            assert!(one.tries);
            assert_eq!(driven.admit(), Err(Duration::ZERO));
            let failed = Some(AgentFailure::Timeout);
            let turned = driven.breaker.judge(one, failed, &config(), driven.now);
            assert_eq!(turned, Some(Turned::Opened));
        }
        driven.now += 60 * SECOND;
        assert_eq!(driven.call(false), Some(Turned::Closed));
        driven.open();
        assert_eq!(driven.admit(), Err(5 * SECOND), "from the beginning");
    }

    #[test]
    fn a_sign_of_life_lets_one_call_try_and_one_whose_caller_left_gives_its_place_on() {
        let mut driven = Driven::new();
        let before = driven.admit().unwrap();
        driven.open();
        driven.breaker.let_try();
        let one = driven.admit().unwrap();
        assert!(one.tries && driven.admit().is_err());
        driven.breaker.forget(before);
        assert!(driven.admit().is_err(), "not its place");
        driven.breaker.forget(one);
        let two = driven.admit().unwrap();
        assert!(two.tries);
        let judged = |breaker: &mut Breaker<AgentFailure>, call, failure| {
            breaker.judge(call, failure, &config(), driven.now)
        };
        assert_eq!(
            judged(&mut driven.breaker, before, None),
            None,
            "an outcome from before it opened"
        );
        assert_eq!(judged(&mut driven.breaker, two, None), Some(Turned::Closed));
        driven.breaker.let_try();
        assert_eq!(driven.breaker.phase(), Phase::Closed);
    }

    #[test]
    fn a_call_that_tries_for_too_long_tells_nothing_and_another_one_tries() {
        let mut driven = Driven::new();
        driven.open();
        driven.now += 5 * SECOND;
        let slow = driven.admit().unwrap();
        driven.now += 59 * SECOND;
        assert!(driven.admit().is_err());
        driven.now += SECOND;
        let next = driven.admit().unwrap();
        assert!(next.tries);
        let failed = Some(AgentFailure::Timeout);
        let turned = driven.breaker.judge(slow, failed, &config(), driven.now);
        assert_eq!(turned, None, "the slow one");
        let turned = driven.breaker.judge(next, None, &config(), driven.now);
        assert_eq!(turned, Some(Turned::Closed));
    }
}
