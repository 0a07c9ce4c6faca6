//! Outcomes of calls for the breaker and the learned limit of their agent. An A2A error, any 4xx, and a caller that
//! leaves are no failures of the agent.

use crate::directory::{CallOutcome, OwnTimeouts};
use crate::metrics::AgentFailure;
use crate::proxy::outcome::ExchangeOutcome;
use crate::rejection::{Reason, Rejection};

/// Returns what the end of a call tells of the agent. `None`: nothing. Clocks that the caller made shorter tell
/// nothing.
pub(in crate::proxy) fn outcome_of_end(
    ended: &ExchangeOutcome,
    patience: OwnTimeouts,
) -> Option<CallOutcome> {
    match ended {
        ExchangeOutcome::Answered => Some(CallOutcome::ANSWERED),
        ExchangeOutcome::Refused(why) | ExchangeOutcome::BrokenOff(why) => {
            outcome_of_rejection(why, patience)
        }
        ExchangeOutcome::CallerLeft => None,
    }
}

/// Returns what the rejection of a call tells of its agent. `None`: nothing. An answer that the gateway refuses is one.
pub(in crate::proxy) fn outcome_of_rejection(
    why: &Rejection,
    patience: OwnTimeouts,
) -> Option<CallOutcome> {
    match why.reason {
        Reason::AgentUnreachable => Some(CallOutcome::from_failure(AgentFailure::Connect)),
        Reason::AgentTimeout => {
            let own = match clock_name(why) {
                Some("head") => patience.head,
                Some("total") => patience.total,
                _ => true,
            };
            own.then(|| CallOutcome::from_failure(AgentFailure::Timeout))
        }
        Reason::AgentRedirected | Reason::ResponseTooLarge => Some(CallOutcome::ANSWERED),
        Reason::AgentSilent => Some(CallOutcome::from_failure(AgentFailure::Timeout)),
        Reason::AgentProtocolError => Some(CallOutcome::from_failure(AgentFailure::Protocol)),
        _ => None,
    }
}

/// Returns what the cut of a stream tells of its agent. `None`: nothing.
pub(in crate::proxy) fn outcome_of_cut(why: &Rejection) -> Option<CallOutcome> {
    match why.reason {
        Reason::AgentProtocolError | Reason::AgentSilent => {
            Some(CallOutcome::from_failure(AgentFailure::Stream))
        }
        _ => None,
    }
}

fn clock_name(why: &Rejection) -> Option<&str> {
    let mut facts = why.facts();
    facts
        .find(|(name, _)| *name == "clock")
        .map(|(_, clock)| clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(clock: &'static str) -> Rejection {
        Rejection::new(Reason::AgentTimeout, "late").with_fact("clock", clock)
    }

    const OWN: OwnTimeouts = OwnTimeouts {
        head: true,
        total: true,
    };

    #[test]
    fn clocks_that_a_caller_made_shorter_tell_nothing() {
        let hasty = OwnTimeouts {
            head: false,
            total: false,
        };
        assert_eq!(outcome_of_rejection(&timeout("head"), hasty), None);
        assert_eq!(outcome_of_rejection(&timeout("total"), hasty), None);
        for (clock, patience) in [("connect", hasty), ("head", OWN), ("total", OWN)] {
            let outcome = outcome_of_rejection(&timeout(clock), patience).unwrap();
            assert_eq!(outcome.failure, Some(AgentFailure::Timeout), "{clock}");
        }
    }

    #[test]
    fn only_failures_of_the_agent_count() {
        for reason in Reason::ALL {
            let why = Rejection::new(reason, "why");
            let outcome = outcome_of_rejection(&why, OWN);
            let failed = outcome.is_some_and(|outcome| outcome.failure.is_some());
            let of_agent = matches!(
                reason,
                Reason::AgentUnreachable
                    | Reason::AgentTimeout
                    | Reason::AgentSilent
                    | Reason::AgentProtocolError
            );
            assert_eq!(failed, of_agent, "{}", reason.as_str());
            let cut = outcome_of_cut(&why).and_then(|outcome| outcome.failure);
            let of_agent = matches!(reason, Reason::AgentSilent | Reason::AgentProtocolError);
            let expected = of_agent.then_some(AgentFailure::Stream);
            assert_eq!(cut, expected, "a stream: {}", reason.as_str());
        }
        assert_eq!(outcome_of_end(&ExchangeOutcome::CallerLeft, OWN), None);
    }
}
