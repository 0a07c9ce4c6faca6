//! The verdicts of one exchange, for its records: guard, phase, verdict and time; never content.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::GuardPhase;
use crate::metrics::GuardVerdict;

/// Maximum kinds of verdicts that one exchange records.
const KINDS_MAX: usize = 256;

/// The verdicts of one exchange.
#[derive(Default)]
pub(in crate::proxy) struct Verdicts(Mutex<State>);

#[derive(Default)]
struct State {
    /// Those for the record of the exchange, or, once that is written, those that came after it.
    given: Vec<Given>,
    /// Questions of guards in observe mode that the exchange does not wait for.
    pending: usize,
    /// True once the record of the exchange is written.
    is_closed: bool,
}

/// Equal verdicts.
struct Given {
    guard: Arc<str>,
    phase: GuardPhase,
    verdict: GuardVerdict,
    count: u64,
    /// The longest of them.
    longest: Duration,
}

impl Verdicts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a question that the exchange does not wait for. It ends with [`Verdicts::end_pending`].
    pub(super) fn begin_pending(&self) {
        self.state().pending += 1;
    }

    /// Notes the end of such a question. Returns the verdicts that no record has, once no question is pending.
    pub(super) fn end_pending(&self) -> Option<Value> {
        let mut state = self.state();
        state.pending -= 1;
        (state.is_closed && state.pending == 0)
            .then(|| to_json(&std::mem::take(&mut state.given)))
            .flatten()
    }

    pub(super) fn add(
        &self,
        guard: &Arc<str>,
        phase: GuardPhase,
        verdict: GuardVerdict,
        elapsed: Duration,
    ) {
        let given = &mut self.state().given;
        let equal =
            |one: &&mut Given| one.guard == *guard && one.phase == phase && one.verdict == verdict;
        if let Some(one) = given.iter_mut().find(equal) {
            one.count += 1;
            one.longest = one.longest.max(elapsed);
        } else if given.len() < KINDS_MAX {
            given.push(Given {
                guard: Arc::clone(guard),
                phase,
                verdict,
                count: 1,
                longest: elapsed,
            });
        }
    }

    /// Returns them for the record of the exchange, which is written now; `None` if there are none.
    pub(in crate::proxy) fn close(&self) -> Option<Value> {
        let mut state = self.state();
        state.is_closed = true;
        to_json(&std::mem::take(&mut state.given))
    }

    /// Returns them for the access line, in the form `secrets request pass 1ms, pii event reject 12ms`; `None` if there
    /// are none.
    pub(in crate::proxy) fn line(&self) -> Option<String> {
        let state = self.state();
        let each = state.given.iter().map(|one| {
            let (guard, phase, verdict) = (&one.guard, one.phase.as_str(), one.verdict.as_str());
            let count = match one.count {
                1 => String::new(),
                count => format!(" x{count}"),
            };
            format!("{guard} {phase} {verdict}{count} {}ms", millis(one.longest))
        });
        let each: Vec<_> = each.collect();
        (!each.is_empty()).then(|| each.join(", "))
    }
}

fn to_json(given: &[Given]) -> Option<Value> {
    let each = given.iter().map(|one| {
        json!({"guard": &*one.guard, "phase": one.phase.as_str(), "verdict": one.verdict.as_str(),
            "count": one.count, "longest_ms": millis(one.longest)})
    });
    (!given.is_empty()).then(|| json!({"guards": each.collect::<Vec<_>>()}))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_verdicts_are_one_entry() {
        let verdicts = Verdicts::default();
        assert_eq!(verdicts.line(), None);
        let name: Arc<str> = "pii".into();
        let pass = GuardVerdict::Pass;
        verdicts.add(&name, GuardPhase::Event, pass, Duration::from_millis(3));
        verdicts.add(&name, GuardPhase::Event, pass, Duration::from_millis(2));
        let reject = GuardVerdict::Reject;
        verdicts.add(&name, GuardPhase::Event, reject, Duration::from_millis(1));
        let line = "pii event pass x2 3ms, pii event reject 1ms";
        assert_eq!(verdicts.line().as_deref(), Some(line));
        let json = verdicts.close().unwrap();
        assert_eq!(json["guards"][0]["count"], 2);
        assert_eq!(json["guards"][1]["verdict"], "reject");
    }

    #[test]
    fn verdicts_that_come_after_the_record_are_returned_with_the_last_of_them() {
        let (verdicts, name): (Verdicts, Arc<str>) = (Verdicts::default(), "pii".into());
        let add = |verdict| verdicts.add(&name, GuardPhase::Request, verdict, Duration::ZERO);
        verdicts.begin_pending();
        verdicts.begin_pending();
        verdicts.begin_pending();
        add(GuardVerdict::Pass);
        assert_eq!(verdicts.end_pending(), None, "the record will have it");
        assert_eq!(verdicts.close().unwrap()["guards"][0]["verdict"], "pass");
        add(GuardVerdict::Reject);
        assert_eq!(verdicts.end_pending(), None, "one is pending");
        let late = verdicts.end_pending().unwrap();
        assert_eq!(late["guards"][0]["verdict"], "reject");
        assert_eq!(late["guards"][0]["count"], 1);
    }
}
