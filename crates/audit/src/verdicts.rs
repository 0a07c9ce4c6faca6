//! The verdicts of one exchange, for its records: guard, phase, verdict and time; never content.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::record::Detail;
use kernel::config::GuardPhase;
use kernel::metrics::GuardVerdict;
use kernel::time::to_millis;

/// Maximum kinds of verdicts that one exchange records.
const KINDS_MAX: usize = 256;

/// The verdicts of one exchange.
#[derive(Default)]
pub struct Verdicts(Mutex<VerdictState>);

#[derive(Default)]
struct VerdictState {
    /// Those for the record of the exchange, or, once that is written, those that came after it.
    counts: Vec<VerdictCount>,
    /// Questions of guards in observe mode that the exchange does not wait for.
    pending: usize,
    /// True once the record of the exchange is written.
    is_closed: bool,
}

/// Count of equal verdicts.
struct VerdictCount {
    guard: Arc<str>,
    phase: GuardPhase,
    verdict: GuardVerdict,
    count: u64,
    /// The longest of them.
    longest: Duration,
}

impl Verdicts {
    /// Notes a question that the exchange does not wait for. It ends with [`Verdicts::end_pending`].
    pub fn begin_pending(&self) {
        self.0.lock().pending += 1;
    }

    /// Notes the end of such a question. Returns the verdicts that no record has, once no question is pending.
    pub fn end_pending(&self) -> Option<Detail> {
        let mut state = self.0.lock();
        state.pending -= 1;
        (state.is_closed && state.pending == 0)
            .then(|| build_detail(&std::mem::take(&mut state.counts)))
            .flatten()
    }

    /// Adds a verdict.
    pub fn add(
        &self,
        guard: &Arc<str>,
        phase: GuardPhase,
        verdict: GuardVerdict,
        elapsed: Duration,
    ) {
        let counts = &mut self.0.lock().counts;
        let equal = |one: &&mut VerdictCount| {
            one.guard == *guard && one.phase == phase && one.verdict == verdict
        };
        if let Some(one) = counts.iter_mut().find(equal) {
            one.count += 1;
            one.longest = one.longest.max(elapsed);
        } else if counts.len() < KINDS_MAX {
            counts.push(VerdictCount {
                guard: Arc::clone(guard),
                phase,
                verdict,
                count: 1,
                longest: elapsed,
            });
        }
    }

    /// Returns them for the record of the exchange, which is written now; `None` if there are none.
    pub fn close(&self) -> Option<Detail> {
        let mut state = self.0.lock();
        state.is_closed = true;
        build_detail(&std::mem::take(&mut state.counts))
    }

    /// Returns them for the access line, in the form `secrets request pass 1ms, pii event reject 12ms`; `None` if there
    /// are none.
    pub fn access_line(&self) -> Option<String> {
        let state = self.0.lock();
        let each = state.counts.iter().map(|one| {
            let (guard, phase, verdict) = (&one.guard, one.phase.as_str(), one.verdict.as_str());
            let count = match one.count {
                1 => String::new(),
                count => format!(" x{count}"),
            };
            format!(
                "{guard} {phase} {verdict}{count} {}ms",
                to_millis(one.longest)
            )
        });
        let each: Vec<_> = each.collect();
        (!each.is_empty()).then(|| each.join(", "))
    }
}

/// Writes what a record of the verdicts has. Their words need no escapes: a guard's name has none that would.
fn build_detail(counts: &[VerdictCount]) -> Option<Detail> {
    if counts.is_empty() {
        return None;
    }
    let mut members = String::with_capacity(96 * counts.len());
    for (at, one) in counts.iter().enumerate() {
        members.push_str(if at == 0 { r#"{"guards":["# } else { "," });
        let (phase, verdict) = (one.phase.as_str(), one.verdict.as_str());
        let (guard, count, longest) = (&one.guard, one.count, to_millis(one.longest));
        let _ = write!(
            members,
            r#"{{"count":{count},"guard":"{guard}","longest_ms":{longest},"phase":"{phase}","verdict":"{verdict}"}}"#
        );
    }
    members.push_str("]}");
    Some(Detail::from_canonical(members))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_verdicts_are_one_entry() {
        let verdicts = Verdicts::default();
        assert_eq!(verdicts.access_line(), None);
        let name: Arc<str> = "pii".into();
        let pass = GuardVerdict::Pass;
        verdicts.add(&name, GuardPhase::Event, pass, Duration::from_millis(3));
        verdicts.add(&name, GuardPhase::Event, pass, Duration::from_millis(2));
        let reject = GuardVerdict::Reject;
        verdicts.add(&name, GuardPhase::Event, reject, Duration::from_millis(1));
        let line = "pii event pass x2 3ms, pii event reject 1ms";
        assert_eq!(verdicts.access_line().as_deref(), Some(line));
        let members = json!({"guards": [
            {"guard": "pii", "phase": "event", "verdict": "pass", "count": 2, "longest_ms": 3},
            {"guard": "pii", "phase": "event", "verdict": "reject", "count": 1, "longest_ms": 1},
        ]});
        assert_eq!(verdicts.close(), Detail::new(members));
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
        let recorded = |verdict| {
            Detail::new(
                json!({"guards": [{"guard": "pii", "phase": "request", "verdict": verdict,
                "count": 1, "longest_ms": 0}]}),
            )
        };
        assert_eq!(verdicts.close(), recorded("pass"));
        add(GuardVerdict::Reject);
        assert_eq!(verdicts.end_pending(), None, "one is pending");
        assert_eq!(verdicts.end_pending(), recorded("reject"));
    }
}
