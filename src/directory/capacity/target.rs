//! State of one target: calls in progress, breaker, learned limits, and the calls that wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::learned_limit::{LearnedLimit, LoadAtStart};
use super::outcome::CallOutcome;
use super::{CapacityWatch, Queue, TargetName};
use crate::a2a::method::Method;
use crate::breaker::{Admission, Breaker, BreakerChange, PROBE, Phase};
use crate::config;
use crate::ids::InstanceId;
use crate::metrics::AgentFailure;
use crate::shares::{Account, Shares};

/// Pause between two attempts to connect to an agent that refuses connections, for all calls that wait for it.
const REDIAL_PAUSE: Duration = Duration::from_millis(100);
/// Time for which the learned limits are shared after a caller got no place for another one's calls.
const CONTENDED_FOR: Duration = Duration::from_secs(1);
/// Part of a retry that each call adds to the budget.
const RETRIES_OF_A_CALL: f64 = 0.2;
/// Retries a second that need no call, and the most that are saved.
const RETRIES_LEAST: f64 = 1.0;
const RETRIES_SAVED_MAX: f64 = 10.0;

/// Kind of a call: an agent may take fewer calls at once than streams, which last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// One answer.
    Unary,
    /// A stream of events.
    Stream,
}

impl CallKind {
    /// Returns the kind of calls of a method.
    pub const fn from_method(method: Method) -> Self {
        if method.streams() {
            Self::Stream
        } else {
            Self::Unary
        }
    }
}

/// Limits of a target, as its entry was loaded.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// Ceiling of calls in progress.
    pub(super) limit: usize,
    /// True if a limit below the ceiling is learned.
    pub(super) adaptive: bool,
    pub(super) breaker: config::Breaker,
    /// Maximum calls that wait for a place.
    pub(super) queue: usize,
    /// Longest wait for a place.
    pub(super) queue_wait: Duration,
}

/// Reason why a target takes no call now, by its breaker or its learned limit.
#[derive(Clone, Copy, Debug)]
pub(super) enum CapacityRefusal {
    /// The breaker is open for so long, since this failure.
    Breaker(Duration, Option<AgentFailure>),
    /// The learned limit is reached.
    Learned(usize),
}

/// A call in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveCall {
    account: Account,
    admission: Admission,
    counted: LoadAtStart,
    kind: CallKind,
    /// The learned limit, while callers share it like the ceiling.
    pub(super) shared: Option<usize>,
}

/// Capacity of a target, for operators.
#[derive(Clone, Debug)]
pub struct CapacityView {
    /// The instance; `None`: the workspace has no named instances.
    pub instance: Option<InstanceId>,
    /// Calls in progress.
    pub in_progress: usize,
    /// State of the breaker: `closed`, `open` or `trying`.
    pub breaker: &'static str,
    /// The failure that opened it.
    pub failure: Option<AgentFailure>,
    /// The number of failures since the last call that succeeded, the kind of the last one, and its age.
    pub failures_in_a_row: Option<(u32, AgentFailure, Duration)>,
    /// Time until a call may try, while it is open.
    pub retry_after: Option<Duration>,
    /// Learned limit on unary calls.
    pub learned_limit: Option<usize>,
    /// Learned limit on streams.
    pub learned_limit_streams: Option<usize>,
    /// Calls that wait for a place.
    pub queued: usize,
}

/// State of one target.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: TargetName,
    /// Calls in progress by caller.
    pub(super) calls: Arc<Shares>,
    pub(super) queue: Queue,
    pub(super) watch: Arc<CapacityWatch>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    breaker: Breaker<AgentFailure>,
    unary: LearnedLimit,
    streams: LearnedLimit,
    retries: Retries,
    /// Set while the agent refuses connections: the next attempt to connect.
    redial_at: Option<Instant>,
    /// Until then the learned limits are shared.
    contended: Option<Instant>,
}

/// Budget of retries.
#[derive(Debug)]
struct Retries {
    saved: f64,
    at: Instant,
}

impl Retries {
    /// Adds a call.
    fn add_call(&mut self) {
        self.saved = (self.saved + RETRIES_OF_A_CALL).min(RETRIES_SAVED_MAX);
    }

    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.saved = (self.saved + RETRIES_LEAST * passed).min(RETRIES_SAVED_MAX);
        let may = self.saved >= 1.0;
        if may {
            self.saved -= 1.0;
        }
        may
    }
}

impl State {
    fn breaker_refusal(&self, after: Duration, account: Account) -> CapacityRefusal {
        let why = self.breaker.reported_circuit(Some(account)).why;
        CapacityRefusal::Breaker(after, why.map(|(cause, _)| cause))
    }

    /// Returns the learned limit of a kind while a caller that has no call in progress is refused by it.
    fn shared_limit(&mut self, kind: CallKind) -> Option<usize> {
        if self.contended? < Instant::now() {
            self.contended = None;
            return None;
        }
        self.learned_limit(kind).limit()
    }

    /// Counts the outcome of a call for the breaker. An agent that is back has no learned limits.
    fn record_outcome(
        &mut self,
        call: (Admission, Account),
        failure: Option<AgentFailure>,
        breaker: &config::Breaker,
    ) -> Option<BreakerChange> {
        let turned = self
            .breaker
            .record_outcome(call, failure, breaker, Instant::now());
        if turned == Some(BreakerChange::Closed) {
            self.forget_limits();
        }
        turned
    }

    fn forget_limits(&mut self) {
        for learned in [&mut self.unary, &mut self.streams] {
            if learned.limit().is_some() {
                learned.reset();
            }
        }
    }

    fn learned_limit(&mut self, kind: CallKind) -> &mut LearnedLimit {
        match kind {
            CallKind::Unary => &mut self.unary,
            CallKind::Stream => &mut self.streams,
        }
    }
}

impl Target {
    pub(super) fn new(name: TargetName, watch: Arc<CapacityWatch>) -> Self {
        let now = Instant::now();
        Self {
            name,
            calls: Arc::default(),
            queue: Queue::default(),
            watch,
            state: Mutex::new(State {
                breaker: Breaker::new(now),
                unary: LearnedLimit::default(),
                streams: LearnedLimit::default(),
                retries: Retries {
                    saved: RETRIES_SAVED_MAX,
                    at: now,
                },
                redial_at: None,
                contended: None,
            }),
        }
    }

    /// Checks that a call may begin.
    ///
    /// # Errors
    /// [`CapacityRefusal`].
    pub(super) fn check_call(
        self: &Arc<Self>,
        account: Account,
        kind: CallKind,
        terms: &Terms,
    ) -> Result<(), CapacityRefusal> {
        self.apply_terms(terms);
        let mut state = self.lock_state();
        let looked = state.breaker.check(account, Instant::now());
        looked.map_err(|after| state.breaker_refusal(after, account))?;
        state
            .learned_limit(kind)
            .check()
            .map_err(CapacityRefusal::Learned)
    }

    /// Begins a call.
    ///
    /// # Errors
    /// [`CapacityRefusal`].
    pub(super) fn begin_call(
        self: &Arc<Self>,
        account: Account,
        kind: CallKind,
        terms: &Terms,
    ) -> Result<ActiveCall, CapacityRefusal> {
        self.apply_terms(terms);
        let mut state = self.lock_state();
        let patience = terms.breaker.open_max;
        let admission = state.breaker.admit(account, patience, Instant::now);
        let admission = admission.map_err(|after| state.breaker_refusal(after, account))?;
        let counted = state.learned_limit(kind).begin_call();
        let counted = counted.map_err(|limit| {
            let call = (admission, account);
            state.breaker.release(call, Instant::now());
            CapacityRefusal::Learned(limit)
        })?;
        Ok(ActiveCall {
            account,
            admission,
            counted,
            kind,
            shared: state.shared_limit(kind),
        })
    }

    /// Forgets what was learned before the configuration switched it off.
    fn apply_terms(self: &Arc<Self>, terms: &Terms) {
        let (adaptive, breaks) = (terms.adaptive, !terms.breaker.is_off());
        if adaptive && breaks {
            return;
        }
        let mut state = self.lock_state();
        if !adaptive {
            state.forget_limits();
        }
        let stuck = !breaks && state.breaker.is_open_to_any();
        let turned = stuck.then(|| state.breaker.close(Instant::now()));
        drop(state);
        self.announce_change(turned);
    }

    /// Records that a caller without a call in progress was refused by the learned limit.
    pub(super) fn mark_contended(&self) {
        self.lock_state().contended = Some(Instant::now() + CONTENDED_FOR);
    }

    /// Records that the agent has begun to answer: the call is no refusal, and no failure of its beginning.
    pub(super) fn record_stream_start(self: &Arc<Self>, call: &mut ActiveCall, terms: &Terms) {
        let mut state = self.lock_state();
        state
            .learned_limit(call.kind)
            .record_success(call.counted, terms.limit);
        let mut turned = None;
        if call.admission.tries {
            turned = state.record_outcome((call.admission, call.account), None, &terms.breaker);
            call.admission = state.breaker.admit_closed();
        }
        drop(state);
        self.announce_change(turned);
    }

    /// Counts a failure, and the outcome of the call that tries, for the breaker before the caller has the answer: its next
    /// call meets the breaker as it is then. Returns true if it did.
    pub(super) fn count_early(
        self: &Arc<Self>,
        call: ActiveCall,
        outcome: CallOutcome,
        terms: &Terms,
    ) -> bool {
        let counts = call.admission.tries || outcome.failure.is_some();
        if counts {
            let of = (call.admission, call.account);
            let turned = self
                .lock_state()
                .record_outcome(of, outcome.failure, &terms.breaker);
            self.announce_change(turned);
        }
        counts
    }

    /// Ends a call. `outcome`: `None` if it tells nothing of the agent. `settled`: the breaker has counted it.
    pub(super) fn end_call(
        self: &Arc<Self>,
        call: ActiveCall,
        outcome: Option<CallOutcome>,
        (was_answering, settled): (bool, bool),
        terms: &Terms,
    ) {
        let of = (call.admission, call.account);
        let mut state = self.lock_state();
        state.learned_limit(call.kind).end_call();
        let Some(outcome) = outcome else {
            return state.breaker.release(of, Instant::now());
        };
        state.retries.add_call();
        let learned = state.learned_limit(call.kind);
        if outcome.overload {
            // The call that tries tells whether the agent is back, not how much it takes.
            if terms.adaptive && !call.admission.tries {
                let told = outcome.failure != Some(AgentFailure::Connect);
                let limited = (outcome.failure.is_none())
                    .then(|| (call.account.party_number(), Instant::now()));
                learned.record_refusal(call.counted, terms.limit, told, limited);
            }
        } else if outcome.failure.is_none() && !was_answering {
            learned.record_success(call.counted, terms.limit);
        }
        let turned = match settled {
            true => None,
            false => state.record_outcome(of, outcome.failure, &terms.breaker),
        };
        drop(state);
        let metrics = &self.watch.metrics.capacity;
        if outcome.overload {
            metrics.overloads.inc();
        }
        if let Some(cause) = outcome.failure {
            metrics.count_failure(cause);
        }
        self.announce_change(turned);
    }

    /// Counts a failed probe for the breaker.
    pub(super) fn probe_failed(self: &Arc<Self>, cause: AgentFailure, terms: &Terms) {
        let mut state = self.lock_state();
        let probe = (state.breaker.admit_closed(), PROBE);
        let turned = state.record_outcome(probe, Some(cause), &terms.breaker);
        drop(state);
        self.announce_change(turned);
    }

    /// Lets the next call try where the breaker opened before the sign of life that began then, and none tries since.
    pub(super) fn let_try(&self, began: Instant) {
        self.lock_state().breaker.allow_trial(began);
    }

    /// Forgets what was learned of an agent that registers: it was started again.
    pub(super) fn forget_limits(&self) {
        self.lock_state().forget_limits();
    }

    /// True unless calls pass, but for those of callers that fail alone.
    pub(super) fn is_open(&self) -> bool {
        self.lock_state().breaker.reported_circuit(None).phase != Phase::Closed
    }

    /// True unless calls of all callers pass.
    pub(super) fn is_open_to_any(&self) -> bool {
        self.lock_state().breaker.is_open_to_any()
    }

    /// Returns the capacity; `to`: for calls of this caller.
    pub(super) fn capacity_view(&self, to: Option<Account>) -> CapacityView {
        let state = self.lock_state();
        let (now, breaker) = (Instant::now(), state.breaker.reported_circuit(to));
        CapacityView {
            instance: self.name.instance.clone(),
            in_progress: self.calls.total(),
            breaker: match breaker.phase {
                Phase::Closed => "closed",
                Phase::Open(until) if until > now => "open",
                Phase::Open(_) | Phase::Trying(_) => "trying",
            },
            failure: breaker.why.map(|(cause, _)| cause),
            failures_in_a_row: breaker
                .failures_in_a_row()
                .map(|(number, cause, at)| (number, cause, now.saturating_duration_since(at))),
            retry_after: match breaker.phase {
                Phase::Open(until) if until > now => Some(until - now),
                _ => None,
            },
            learned_limit: state.unary.limit(),
            learned_limit_streams: state.streams.limit(),
            queued: self.queue.len(),
        }
    }

    /// Takes a retry from the budget, if it has one.
    pub(super) fn may_retry(&self) -> bool {
        self.lock_state().retries.take(Instant::now())
    }

    /// Records whether a connection could be made. One that could be made again is a sign of life.
    pub(super) fn record_dial(&self, connected: bool) {
        let mut state = self.lock_state();
        if connected && state.redial_at.is_some() {
            state.breaker.allow_trial(Instant::now());
        }
        state.redial_at = match (connected, state.redial_at) {
            (true, _) => None,
            (false, Some(at)) => Some(at),
            (false, None) => Some(Instant::now() + REDIAL_PAUSE),
        };
    }

    /// Takes the turn to connect again, for all calls that wait for the agent.
    ///
    /// # Errors
    /// The time of the next turn.
    pub(super) fn take_redial(&self) -> Result<(), Instant> {
        let mut state = self.lock_state();
        let now = Instant::now();
        match state.redial_at {
            Some(at) if now < at => Err(at),
            Some(_) => {
                state.redial_at = Some(now + REDIAL_PAUSE);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn announce_change(self: &Arc<Self>, turned: Option<BreakerChange>) {
        match turned {
            Some(BreakerChange::Opened | BreakerChange::OpenedAlone) => {
                self.watch.record_open(self)
            }
            Some(BreakerChange::Closed) => self.watch.record_close(self),
            None => {}
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        // Each step leaves the numbers consistent, so a panic elsewhere cannot have broken them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
