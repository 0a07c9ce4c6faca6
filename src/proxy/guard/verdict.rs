//! The verdicts of one exchange, for its records: guard, phase, verdict and time; never content.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::GuardPhase;
use crate::metrics::GuardVerdict;

/// Maximum kinds of verdicts that one exchange records.
const KINDS_MAX: usize = 256;

/// The verdicts of one exchange.
#[derive(Default)]
pub(in crate::proxy) struct Verdicts(Mutex<Vec<Given>>);

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
    fn given(&self) -> MutexGuard<'_, Vec<Given>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(
        &self,
        guard: &Arc<str>,
        phase: GuardPhase,
        verdict: GuardVerdict,
        elapsed: Duration,
    ) {
        let mut given = self.given();
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

    /// Returns them for the audit record; `None` if there are none.
    pub(in crate::proxy) fn to_json(&self) -> Option<Value> {
        let given = self.given();
        let each = given.iter().map(|one| {
            json!({"guard": &*one.guard, "phase": one.phase.as_str(), "verdict": one.verdict.as_str(),
                "count": one.count, "longest_ms": millis(one.longest)})
        });
        (!given.is_empty()).then(|| json!({"guards": each.collect::<Vec<_>>()}))
    }
}

/// The form of the access line: `secrets request pass 1ms, pii event reject 12ms`.
impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, one) in self.given().iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let (phase, verdict) = (one.phase.as_str(), one.verdict.as_str());
            write!(f, "{comma}{} {phase} {verdict}", one.guard)?;
            if one.count > 1 {
                write!(f, " x{}", one.count)?;
            }
            write!(f, " {}ms", millis(one.longest))?;
        }
        Ok(())
    }
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
        assert_eq!(verdicts.to_json(), None);
        let name: Arc<str> = "pii".into();
        let pass = GuardVerdict::Pass;
        verdicts.add(&name, GuardPhase::Event, pass, Duration::from_millis(3));
        verdicts.add(&name, GuardPhase::Event, pass, Duration::from_millis(2));
        let reject = GuardVerdict::Reject;
        verdicts.add(&name, GuardPhase::Event, reject, Duration::from_millis(1));
        assert_eq!(
            verdicts.to_string(),
            "pii event pass x2 3ms, pii event reject 1ms"
        );
        let json = verdicts.to_json().unwrap();
        assert_eq!(json["guards"][0]["count"], 2);
        assert_eq!(json["guards"][1]["verdict"], "reject");
    }
}
