//! The model of health: what a call came to, and how a workspace is. Pages, command line and API only show what is
//! decided here (`docs/reference/monitoring.md`, "Calls and workspaces").

use crate::closed_set::words;
pub use crate::metrics::CallResult;
use crate::metrics::Outcome;
use crate::rejection::Reason;
use crate::time::Timestamp;

words! {
    /// How a workspace is, the worst first.
    HealthState {
        /// A stop covers it.
        Stopped => "stopped",
        /// Its agent fails calls.
        Failing => "failing",
        /// No heartbeat, and it is not asleep.
        Offline => "offline",
        /// Its agent refused calls in the last minute, since it has enough of them.
        Busy => "busy",
        /// An operator paused it.
        Paused => "paused",
        /// Made, and its agent never registered.
        NeverSeen => "never_seen",
        /// It wakes when it is called.
        Asleep => "asleep",
        /// None of these.
        Healthy => "healthy",
    }
}

impl CallResult {
    /// Returns the result of a call. `status`: of the answer; 0: none was sent.
    pub fn of_call(outcome: Outcome, status: u16) -> Self {
        match outcome {
            Outcome::Answered if status >= 500 => Self::AgentFailed,
            Outcome::Answered => Self::Answered,
            Outcome::CallerLeft => Self::Left,
            Outcome::Rejected(reason) => Self::of_reason(reason),
        }
    }

    /// As [`CallResult::of_call`], of an outcome as records have it. One of another release is a failure of the
    /// gateway.
    pub fn of_record(outcome: &str, status: i64) -> Self {
        let named = |known: Outcome| (known.as_str() == outcome).then_some(known);
        let known = named(Outcome::Answered).or_else(|| named(Outcome::CallerLeft));
        let reason = || Reason::ALL.iter().find(|reason| reason.as_str() == outcome);
        match known.or_else(|| reason().map(|reason| Outcome::Rejected(*reason))) {
            Some(known) => Self::of_call(known, u16::try_from(status).unwrap_or(0)),
            None => Self::GatewayFailed,
        }
    }

    fn of_reason(reason: Reason) -> Self {
        match reason {
            Reason::AgentUnreachable
            | Reason::AgentProtocolError
            | Reason::AgentRedirected
            | Reason::AgentBusy
            | Reason::AgentTimeout
            | Reason::AgentSilent
            | Reason::ResponseTooLarge
            | Reason::WorkspaceOffline
            | Reason::WorkspaceRestarting => Self::AgentFailed,
            Reason::Internal
            | Reason::StoreUnavailable
            | Reason::GuardUnavailable
            | Reason::Overloaded
            | Reason::ShuttingDown => Self::GatewayFailed,
            Reason::OriginForbidden
            | Reason::Unauthenticated
            | Reason::CallerMismatch
            | Reason::NotPermitted
            | Reason::RoleRequired
            | Reason::Stopped
            | Reason::GuardRejected
            | Reason::AddressForbidden
            | Reason::RateLimited
            | Reason::CapReached => Self::Denied,
            _ => Self::Rejected,
        }
    }

    /// True if the call tells how its agent does: it got the call, or did not take it.
    pub fn tells_of_agent(self, outcome: &str) -> bool {
        let elsewhere = [
            Reason::AgentBusy,
            Reason::WorkspaceOffline,
            Reason::WorkspaceRestarting,
        ];
        match self {
            Self::Answered => true,
            Self::AgentFailed => elsewhere.iter().all(|one| one.as_str() != outcome),
            _ => false,
        }
    }
}

impl HealthState {
    /// True if it is neither well nor meant to be so.
    pub const fn needs_attention(self) -> bool {
        matches!(
            self,
            Self::Stopped | Self::Failing | Self::Offline | Self::Busy
        )
    }
}

/// The last calls that an agent failed or refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTrouble {
    /// Its last calls, the newest in the lowest bit: 1 failed.
    pub recent: i64,
    /// The first failure since its last calls were all answered.
    pub failed_since: i64,
    /// The last failure.
    pub last_failed: i64,
    /// Calls, and failed ones, since `failed_since`.
    pub calls: i64,
    /// Those that failed.
    pub failed: i64,
    /// The last failure, as records have it.
    pub outcome: String,
    /// Its status.
    pub status: i64,
    /// The last time at which the agent had enough calls; 0: never.
    pub busy_at: i64,
    /// When it stopped to fail; 0: it did not, or never failed.
    pub ended_at: i64,
}

/// Calls of which the last are remembered.
const RECENT: u32 = 5;

/// Failures among the last calls from which an agent counts as failing.
const RECENT_FAILURES: u32 = 3;

/// The age up to which a failure is recent, in milliseconds.
const RECENT_MS: i64 = 60_000;

/// How long an agent that had enough calls counts as busy, in milliseconds.
const BUSY_MS: i64 = 60_000;

impl CallTrouble {
    /// True if 3 of the last 5 calls failed.
    pub fn is_failing(&self) -> bool {
        self.recent.count_ones() >= RECENT_FAILURES
    }

    /// True if the agent had enough calls within the last minute.
    pub fn is_busy(&self, now: i64) -> bool {
        now - self.busy_at < BUSY_MS
    }

    /// Takes in one more call that ended at `at`.
    pub fn add_call(&mut self, result: CallResult, outcome: &str, status: i64, at: i64) {
        if outcome == Reason::AgentBusy.as_str()
            || (result == CallResult::Answered && status == 429)
        {
            self.busy_at = self.busy_at.max(at);
        }
        if !result.tells_of_agent(outcome) {
            return;
        }
        let was_failing = self.is_failing();
        let failed = result == CallResult::AgentFailed;
        if failed && self.recent == 0 {
            (self.failed_since, self.calls, self.failed) = (at, 0, 0);
        }
        self.recent = ((self.recent << 1) | i64::from(failed)) & ((1 << RECENT) - 1);
        self.calls += 1;
        if failed {
            self.failed += 1;
            self.last_failed = at;
            outcome.clone_into(&mut self.outcome);
            self.status = status;
        }
        match (was_failing, self.is_failing()) {
            (true, false) => self.ended_at = at,
            (_, true) => self.ended_at = 0,
            (false, false) => {}
        }
    }

    /// Returns what failed as people say it: a status, or a reason.
    fn failure(&self) -> String {
        match self.outcome == Outcome::Answered.as_str() {
            true => self.status.to_string(),
            false => self.outcome.clone(),
        }
    }
}

/// The facts that decide health.
#[derive(Clone, Copy, Debug, Default)]
pub struct HealthFacts<'a> {
    /// The status of the workspace, as the API has it.
    pub status: &'a str,
    /// The last sign of life.
    pub last_seen: Option<Timestamp>,
    /// The stop that covers it: its time, its reason, and who made it.
    pub stop: Option<(Timestamp, &'a str, &'a str)>,
    /// The failure for which the breaker is open at the asked replica.
    pub breaker: Option<&'static str>,
    /// The troubles of its last calls.
    pub trouble: Option<&'a CallTrouble>,
    /// Calls of the last five minutes, and those that the agent failed.
    pub five_minutes: (i64, i64),
}

/// How a workspace is, since when, and why.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Health {
    /// The state.
    pub state: HealthState,
    /// Its begin, as far as it is known.
    pub since: Option<Timestamp>,
    /// The cause, as a sentence without its full stop; `None`: healthy.
    pub why: Option<String>,
}

impl Health {
    /// Decides: the worst state that holds.
    pub fn judge(facts: &HealthFacts<'_>, now: Timestamp) -> Self {
        let new = |state, since: Option<Timestamp>, why: String| Self {
            state,
            since,
            why: Some(why),
        };
        if let Some((at, reason, by)) = facts.stop {
            let why = format!("stopped by {by}: {reason}");
            return new(HealthState::Stopped, Some(at), why);
        }
        let (calls, failed) = facts.five_minutes;
        let none = CallTrouble::default();
        let trouble = facts.trouble.unwrap_or(&none);
        // One that answers again is not failing for the rest of the five minutes.
        let is_recent = now.0 - trouble.last_failed < RECENT_MS;
        let part = is_recent && calls >= 20 && failed * 5 >= calls;
        if trouble.is_failing() || part || facts.breaker.is_some() {
            let since = (trouble.failed_since > 0).then_some(Timestamp(trouble.failed_since));
            let mut why = match part && !trouble.is_failing() {
                true => format!("{failed} of {calls} calls failed in the last 5 minutes"),
                false if trouble.failed == 0 => "its last calls failed".to_owned(),
                false => format!(
                    "{} of {} calls failed, the last one with {}",
                    trouble.failed,
                    trouble.calls,
                    trouble.failure()
                ),
            };
            if let Some(cause) = facts.breaker {
                why = format!("{why}; calls wait for its breaker ({cause})");
            }
            return new(HealthState::Failing, since, why);
        }
        let away = |text: &str| match facts.last_seen {
            Some(_) => text.to_owned(),
            None => format!("{text}, and it was never seen"),
        };
        match facts.status {
            "offline" => new(
                HealthState::Offline,
                facts.last_seen,
                away("no heartbeat comes"),
            ),
            "failed" => new(
                HealthState::Offline,
                facts.last_seen,
                away("its start failed"),
            ),
            _ if trouble.is_busy(now.0) => {
                let why = "its agent refuses calls, since it has enough of them".to_owned();
                new(HealthState::Busy, Some(Timestamp(trouble.busy_at)), why)
            }
            "paused" => new(
                HealthState::Paused,
                None,
                "an operator paused it".to_owned(),
            ),
            "provisioning" => {
                let why = "it waits for its agent to register".to_owned();
                new(HealthState::NeverSeen, None, why)
            }
            "hibernated" | "restarting" => {
                let why = format!("it is {}", facts.status);
                new(HealthState::Asleep, facts.last_seen, why)
            }
            _ => Self {
                state: HealthState::Healthy,
                since: None,
                why: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_one_result() {
        for (outcome, status, expected) in [
            ("answered", 200, CallResult::Answered),
            ("answered", 404, CallResult::Answered),
            ("answered", 429, CallResult::Answered),
            ("answered", 500, CallResult::AgentFailed),
            ("agent_silent", 200, CallResult::AgentFailed),
            ("agent_busy", 503, CallResult::AgentFailed),
            ("store_unavailable", 503, CallResult::GatewayFailed),
            ("of_another_release", 400, CallResult::GatewayFailed),
            ("not_permitted", 403, CallResult::Denied),
            ("cap_reached", 429, CallResult::Denied),
            ("invalid_params", 400, CallResult::Rejected),
            ("task_not_found", 404, CallResult::Rejected),
            ("caller_left", 0, CallResult::Left),
        ] {
            assert_eq!(
                CallResult::of_record(outcome, status),
                expected,
                "{outcome}"
            );
        }
    }

    fn after(calls: &[(&str, i64)]) -> CallTrouble {
        let mut trouble = CallTrouble::default();
        for (n, (outcome, status)) in (1_i64..).zip(calls) {
            let result = CallResult::of_record(outcome, *status);
            trouble.add_call(result, outcome, *status, n * 1000);
        }
        trouble
    }

    #[test]
    fn three_of_the_last_five_calls_make_it_failing_until_enough_are_answered() {
        let (good, bad) = (("answered", 200), ("answered", 500));
        assert!(!after(&[bad, good, bad]).is_failing());
        let failing = after(&[good, bad, good, bad, bad]);
        assert!(failing.is_failing());
        assert_eq!(
            (failing.failed, failing.calls, failing.failed_since),
            (3, 4, 2000)
        );
        let facts = HealthFacts {
            status: "online",
            trouble: Some(&failing),
            ..HealthFacts::default()
        };
        let health = Health::judge(&facts, Timestamp(9000));
        assert_eq!(health.state, HealthState::Failing);
        assert_eq!(health.since, Some(Timestamp(2000)));
        let why = "3 of 4 calls failed, the last one with 500";
        assert_eq!(health.why.as_deref(), Some(why));
        let over = after(&[bad, bad, bad, good, good, good]);
        assert!(!over.is_failing());
        assert_eq!(over.ended_at, 6000);
        // What the gateway decides says nothing of the agent.
        let denied = [bad, bad, ("not_permitted", 403), ("workspace_offline", 503)];
        assert_eq!(after(&denied).recent, 0b11);
    }

    #[test]
    fn the_worst_state_is_told() {
        let busy = after(&[("answered", 429)]);
        let mut facts = HealthFacts {
            status: "paused",
            trouble: Some(&busy),
            ..HealthFacts::default()
        };
        let at = |facts: &HealthFacts<'_>, now| Health::judge(facts, Timestamp(now)).state;
        assert_eq!(at(&facts, 60_999), HealthState::Busy);
        assert_eq!(at(&facts, 61_000), HealthState::Paused);
        for (status, expected) in [
            ("online", HealthState::Healthy),
            ("degraded", HealthState::Healthy),
            ("hibernated", HealthState::Asleep),
            ("provisioning", HealthState::NeverSeen),
            ("offline", HealthState::Offline),
        ] {
            facts.status = status;
            assert_eq!(at(&facts, 99_000), expected, "{status}");
        }
        facts.five_minutes = (20, 4);
        assert_eq!(at(&facts, 59_000), HealthState::Failing);
        assert_eq!(at(&facts, 99_000), HealthState::Offline);
        facts.five_minutes = (20, 3);
        facts.breaker = Some("timeout");
        assert_eq!(at(&facts, 99_000), HealthState::Failing);
        facts.stop = Some((Timestamp(5), "drill", "ada"));
        assert_eq!(at(&facts, 99_000), HealthState::Stopped);
    }
}
