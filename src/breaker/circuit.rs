//! One circuit of a breaker.

use std::time::Duration;

use tokio::time::Instant;

use super::Admission;
use crate::config;
use crate::shares::RecentCallers;

/// Parts of the window that are forgotten one by one.
const PARTS: usize = 10;
/// Minimum calls in the window before their ratio counts.
const CALLS_MIN: u32 = 20;

/// State of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Calls pass.
    Closed,
    /// Calls are refused until then.
    Open(Instant),
    /// One call tries, at most until then; the others are refused. `None`: the next call is the one.
    Trying(Option<Instant>),
}

/// One circuit of a breaker.
#[derive(Clone, Debug)]
pub struct Circuit<Cause> {
    /// Its state.
    pub phase: Phase,
    /// The failure that opened it, and the time at which it opened.
    pub why: Option<(Cause, Instant)>,
    /// Number of its last change. The outcome of a call from before it does not count.
    pub(super) changed: u32,
    failures_in_a_row: u32,
    /// Those of the failures in a row, and of the failures in the window.
    in_row: RecentCallers,
    in_window: RecentCallers,
    window: Window,
    /// Time for which it was open last.
    period: Duration,
    /// The last failure, and its time, if no call succeeded since.
    last_failure: Option<(Cause, Instant)>,
}

impl<Cause: Copy> Circuit<Cause> {
    pub(super) fn new(changed: u32, now: Instant) -> Self {
        Self {
            phase: Phase::Closed,
            changed,
            failures_in_a_row: 0,
            in_row: RecentCallers::default(),
            in_window: RecentCallers::default(),
            window: Window::new(now),
            period: Duration::ZERO,
            why: None,
            last_failure: None,
        }
    }

    /// Returns the number of failures since the last call that succeeded, with the last failure and its time; `None`
    /// without one.
    pub fn failures_in_a_row(&self) -> Option<(u32, Cause, Instant)> {
        let (cause, at) = self.last_failure?;
        Some((self.failures_in_a_row, cause, at))
    }

    pub(super) fn check(&self, now: Instant) -> Result<(), Duration> {
        match self.phase {
            Phase::Closed | Phase::Trying(None) => Ok(()),
            Phase::Open(until) | Phase::Trying(Some(until)) if until <= now => Ok(()),
            Phase::Open(until) => Err(until - now),
            Phase::Trying(Some(_)) => Err(Duration::ZERO),
        }
    }

    pub(super) fn is_tried_by(&self, admission: Admission) -> bool {
        let is_tried = matches!(self.phase, Phase::Trying(Some(_)));
        is_tried && admission.tries && admission.began == self.changed
    }

    /// Counts an outcome. `who`: a caller or a party; failures of two open it. `None`: it has one caller. Returns
    /// true if it opened.
    pub(super) fn record_outcome(
        &mut self,
        (admission, failure, who): (Admission, Option<Cause>, Option<u64>),
        config: &config::Breaker,
        now: Instant,
        changes: &mut u32,
    ) -> bool {
        let tries = self.is_tried_by(admission);
        if admission.began < self.changed || !(tries || self.phase == Phase::Closed) {
            return false;
        }
        self.window
            .record_call(failure.is_some(), config.window, now);
        let Some(cause) = failure else {
            self.failures_in_a_row = 0;
            self.in_row = RecentCallers::default();
            self.last_failure = None;
            if tries {
                self.close(changes, now);
            }
            return false;
        };
        self.failures_in_a_row += 1;
        self.last_failure = Some((cause, now));
        let in_row = who.is_none_or(|who| self.in_row.add(who, Duration::MAX, now));
        let in_window = who.is_none_or(|who| self.in_window.add(who, config.window, now));
        let too_many = config.failures > 0 && self.failures_in_a_row >= config.failures;
        let fails =
            (in_row && too_many) || (in_window && self.window.exceeds_ratio(config.ratio.0));
        if config.is_off() || !(tries || fails) {
            return false;
        }
        let doubled = self.period.saturating_mul(2).min(config.open_max);
        self.period = if tries {
            doubled.max(config.open)
        } else {
            config.open
        };
        *changes += 1;
        self.changed = *changes;
        self.phase = Phase::Open(now + self.period);
        self.why = Some((cause, now));
        true
    }

    pub(super) fn close(&mut self, changes: &mut u32, now: Instant) {
        *changes += 1;
        *self = Self::new(*changes, now);
    }
}

/// Calls and failures of the last while, in parts.
#[derive(Clone, Debug)]
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

    fn record_call(&mut self, failed: bool, length: Duration, now: Instant) {
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
    fn exceeds_ratio(&self, ratio: f64) -> bool {
        let calls: u32 = self.parts.iter().map(|(calls, _)| calls).sum();
        let failures: u32 = self.parts.iter().map(|(_, failures)| failures).sum();
        ratio > 0.0 && calls >= CALLS_MIN && f64::from(failures) >= ratio * f64::from(calls)
    }
}
