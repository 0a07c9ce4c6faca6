//! Limit on calls in progress that is learned from an agent's refusals: down by 0.7 at a refusal, up by one after as
//! many calls that it answered while the limit was reached. Latency has no part in it. Pure: it has no clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::shares::RecentCallers;

/// Rounds of successes at the known limit before one more is tried: a refused call, and the climb back, are
/// the price of finding out that an agent takes more now.
const ROUNDS_BEFORE_ONE_MORE: usize = 40;

/// Time within which an agent that is full says 429 to two parties. To one alone it tells that one's own limit.
const SAID_WITHIN: Duration = Duration::from_secs(10);

/// Load of the agent as a call in progress began.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadAtStart {
    /// Number of decreases before it began.
    decreases: u32,
    /// Calls in progress when it began, this one included.
    beside: usize,
}

/// Learned limit on calls of one kind.
#[derive(Debug, Default)]
pub(super) struct LearnedLimit {
    in_progress: usize,
    /// `None`: the agent has refused none.
    limit: Option<usize>,
    /// Most calls that the agent takes, as its last refusal at the limit told. `None`: not known.
    known: Option<usize>,
    /// Successes since the limit changed.
    successes: usize,
    decreases: u32,
    /// Those that the agent said 429 to since.
    limited: RecentCallers,
}

impl LearnedLimit {
    pub(super) fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// Checks that there is a place.
    ///
    /// # Errors
    /// The limit.
    pub(super) fn check(&self) -> Result<(), usize> {
        match self.limit {
            Some(limit) if self.in_progress >= limit => Err(limit),
            _ => Ok(()),
        }
    }

    /// Counts a call that begins.
    ///
    /// # Errors
    /// The limit, if it is reached.
    pub(super) fn begin_call(&mut self) -> Result<LoadAtStart, usize> {
        self.check()?;
        self.in_progress += 1;
        Ok(LoadAtStart {
            decreases: self.decreases,
            beside: self.in_progress,
        })
    }

    /// Counts the end of a call.
    pub(super) fn end_call(&mut self) {
        self.in_progress = self.in_progress.saturating_sub(1);
    }

    /// Lowers the limit: the agent refused the call for its load. `told`: it said so, by 429 or 503; `limited`: by 429,
    /// to this party, now. Calls from before the last decrease count once, together. A call that was alone tells nothing:
    /// fewer calls would not help it.
    pub(super) fn record_refusal(
        &mut self,
        call: LoadAtStart,
        ceiling: usize,
        told: bool,
        limited: Option<(u64, Instant)>,
    ) {
        let beside = call.beside.max(self.in_progress + 1);
        if call.decreases != self.decreases || beside == 1 {
            return;
        }
        if let Some((party, now)) = limited
            && !self.limited.add(party, SAID_WITHIN, now)
        {
            return;
        }
        self.limited = RecentCallers::default();
        let mut before = self.limit.unwrap_or(ceiling).min(ceiling);
        if told {
            // What refused it was in progress; a refused connection tells no number.
            before = before.min(beside);
        }
        if told && self.limit == Some(before) {
            self.known = Some(before - 1);
        }
        self.limit = Some((before * 7 / 10).max(1));
        self.successes = 0;
        self.decreases += 1;
    }

    /// Forgets what was learned: the agent is another one now, or was away.
    pub(super) fn reset(&mut self) {
        *self = Self {
            in_progress: self.in_progress,
            decreases: self.decreases + 1,
            ..Self::default()
        };
    }

    /// Raises the limit after as many successes while it was reached.
    pub(super) fn record_success(&mut self, call: LoadAtStart, ceiling: usize) {
        let Some(limit) = self.limit else { return };
        if call.decreases != self.decreases || call.beside < limit {
            return;
        }
        self.successes += 1;
        let at_known = self.known == Some(limit);
        let needed = if at_known {
            limit * ROUNDS_BEFORE_ONE_MORE
        } else {
            limit
        };
        if self.successes < needed {
            return;
        }
        self.successes = 0;
        if self.known.is_some_and(|known| limit > known) {
            // The agent takes more than it did.
            self.known = None;
        }
        self.limit = Some(limit + 1).filter(|limit| *limit < ceiling);
        if self.limit.is_none() {
            self.known = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Offers more calls than the agent takes at once, for so many answers; returns the shares of calls that the agent
    /// refused and of its places that were used.
    fn drive(
        learned: &mut LearnedLimit,
        takes: usize,
        offered: usize,
        answers: usize,
    ) -> (f64, f64) {
        let (mut busy, now) = (VecDeque::new(), Instant::now());
        let (mut refused, mut used) = (0_u32, 0);
        for _ in 0..answers {
            for _ in busy.len()..offered {
                let Ok(call) = learned.begin_call() else {
                    break;
                };
                if busy.len() < takes {
                    busy.push_back(call);
                } else {
                    learned.end_call();
                    learned.record_refusal(call, 256, true, Some((refused.into(), now)));
                    refused += 1;
                }
            }
            used += busy.len();
            let call = busy.pop_front().unwrap();
            learned.record_success(call, 256);
            learned.end_call();
        }
        busy.drain(..).for_each(|_| learned.end_call());
        let [answered, used, all] =
            [answers, used, takes * answers].map(|n| u32::try_from(n).unwrap());
        let refused = f64::from(refused) / f64::from(refused + answered);
        (refused, f64::from(used) / f64::from(all))
    }

    #[test]
    fn an_agent_that_takes_eight_is_seldom_asked_for_a_ninth_and_kept_busy() {
        let mut learned = LearnedLimit::default();
        drive(&mut learned, 8, 64, 200);
        let (refused, used) = drive(&mut learned, 8, 64, 10_000);
        assert!(refused < 0.02, "{refused}");
        assert!(used > 0.95, "{used}");
        drive(&mut learned, 32, 64, 2000);
        let (refused, used) = drive(&mut learned, 32, 64, 10_000);
        assert!(refused < 0.02, "{refused}");
        assert!(used > 0.95, "it takes more now: {used}");
    }

    #[test]
    fn refusals_of_calls_that_began_together_count_once_and_the_least_is_one() {
        let mut learned = LearnedLimit::default();
        let calls: Vec<_> = (0..40).map(|_| learned.begin_call().unwrap()).collect();
        for call in calls {
            learned.end_call();
            learned.record_refusal(call, 100, false, None);
        }
        assert_eq!(learned.limit(), Some(70), "of the ceiling");
        let calls: Vec<_> = (0..40).map(|_| learned.begin_call().unwrap()).collect();
        for call in calls {
            learned.end_call();
            learned.record_refusal(call, 100, true, None);
        }
        assert_eq!(learned.limit(), Some(28), "of those in progress");
        for _ in 0..20 {
            let calls = [learned.begin_call(), learned.begin_call()];
            for call in calls.into_iter().flatten() {
                learned.end_call();
                learned.record_refusal(call, 100, false, None);
            }
        }
        assert_eq!((learned.limit(), learned.in_progress), (Some(1), 0));
        assert_eq!(learned.begin_call().map(|call| call.beside), Ok(1));
        assert_eq!(learned.begin_call().map(drop), Err(1));
        learned.reset();
        assert_eq!(learned.limit(), None);
    }

    #[test]
    fn a_429_lowers_it_only_where_two_parties_get_one_within_ten_seconds() {
        for (said, limit) in [
            (&[(1, 0), (1, 0), (1, 1), (1, 30)][..], None),
            (&[(1, 0), (2, 9)], Some(7)),
            (&[(1, 0), (2, 10), (2, 11), (2, 12)], None),
            (&[(1, 0), (2, 10), (1, 19)], Some(7)),
            // The next decrease needs two again.
            (&[(1, 0), (2, 1), (1, 2), (1, 3)], Some(7)),
            (&[(1, 0), (2, 1), (1, 2), (2, 3)], Some(4)),
        ] {
            let (mut learned, began) = (LearnedLimit::default(), Instant::now());
            for (party, second) in said {
                let (decreases, beside) = (learned.decreases, 10);
                let at = began + Duration::from_secs(*second);
                let call = LoadAtStart { decreases, beside };
                learned.record_refusal(call, 10, false, Some((*party, at)));
            }
            assert_eq!(learned.limit(), limit, "{said:?}");
        }
    }

    #[test]
    fn a_call_that_was_alone_lowers_nothing() {
        let mut learned = LearnedLimit::default();
        for _ in 0..20 {
            let call = learned.begin_call().unwrap();
            learned.end_call();
            learned.record_refusal(call, 100, true, None);
        }
        assert_eq!(learned.limit(), None);
    }

    #[test]
    fn it_grows_only_while_it_is_used_and_ends_at_the_ceiling() {
        let mut learned = LearnedLimit::default();
        let calls: Vec<_> = (0..10).map(|_| learned.begin_call().unwrap()).collect();
        for call in calls {
            learned.end_call();
            learned.record_refusal(call, 10, false, None);
        }
        for _ in 0..100 {
            let call = learned.begin_call().unwrap();
            learned.record_success(call, 10);
            learned.end_call();
        }
        assert_eq!(learned.limit(), Some(7), "one call at once");
        for _ in 0..40 {
            let calls: Vec<_> = std::iter::from_fn(|| learned.begin_call().ok())
                .take(20)
                .collect();
            for call in calls {
                learned.record_success(call, 10);
                learned.end_call();
            }
        }
        assert_eq!(learned.limit(), None);
    }
}
