//! State of one target: calls in progress, breaker, learned limits, and the calls that wait.
//!
//! Limit on calls in progress that is learned from an agent's refusals: down by 0.7 at a refusal, up by one after as
//! many calls that it answered while the limit was reached. Latency has no part in it. Pure: it has no clock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{CallOutcome, NoSlot, Slot, Slots, TargetName};
use a2a::method::Method;
use kernel::breaker::{Admission, Breaker, BreakerChange, Phase};
use kernel::config;
use kernel::ids::InstanceId;
use kernel::metrics::{AgentFailure, InProgress, QueueOutcome};
use kernel::rejection::Rejection;
use kernel::shares::{Account, Bound, RecentCallers, Share, ShareRefusal, Shares};

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
    pub(super) account: Account,
    pub(super) admission: Admission,
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
    pub(super) slots: Arc<Slots>,
    pub(super) state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) breaker: Breaker<AgentFailure>,
    unary: LearnedLimit,
    streams: LearnedLimit,
    pub(super) retries: Retries,
    /// Set while the agent refuses connections: the next attempt to connect.
    pub(super) redial_at: Option<Instant>,
    /// Until then the learned limits are shared.
    contended: Option<Instant>,
}

/// Budget of retries.
#[derive(Debug)]
pub(super) struct Retries {
    saved: f64,
    at: Instant,
}

impl Retries {
    /// Takes a retry from the budget, if it has one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
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
        self.learned_limit(kind).limit
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

    pub(super) fn forget_limits(&mut self) {
        for learned in [&mut self.unary, &mut self.streams] {
            if learned.limit.is_some() {
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
    pub(super) fn new(name: TargetName, slots: Arc<Slots>) -> Self {
        let now = Instant::now();
        Self {
            name,
            calls: Arc::default(),
            queue: Queue::default(),
            slots,
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
        let mut state = self.state.lock();
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
        let mut state = self.state.lock();
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
        let mut state = self.state.lock();
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
        self.state.lock().contended = Some(Instant::now() + CONTENDED_FOR);
    }

    pub(super) fn record_stream_start(self: &Arc<Self>, call: &mut ActiveCall, terms: &Terms) {
        let mut state = self.state.lock();
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

    /// Counts the outcome of a call for the breaker.
    pub(super) fn record_outcome(
        self: &Arc<Self>,
        of: (Admission, Account),
        failure: Option<AgentFailure>,
        terms: &Terms,
    ) {
        let turned = self
            .state
            .lock()
            .record_outcome(of, failure, &terms.breaker);
        self.announce_change(turned);
    }

    /// Ends a call that tells nothing of the agent.
    pub(super) fn release(&self, call: ActiveCall) {
        let mut state = self.state.lock();
        state.learned_limit(call.kind).end_call();
        let of = (call.admission, call.account);
        state.breaker.release(of, Instant::now());
    }

    /// Ends a call. `settled`: the breaker has counted it.
    pub(super) fn end_call(
        self: &Arc<Self>,
        call: ActiveCall,
        outcome: CallOutcome,
        (was_answering, settled): (bool, bool),
        terms: &Terms,
    ) {
        let mut state = self.state.lock();
        let saved = state.retries.saved + RETRIES_OF_A_CALL;
        state.retries.saved = saved.min(RETRIES_SAVED_MAX);
        let learned = state.learned_limit(call.kind);
        learned.end_call();
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
        let of = (call.admission, call.account);
        let turned = match settled {
            true => None,
            false => state.record_outcome(of, outcome.failure, &terms.breaker),
        };
        drop(state);
        let metrics = &self.slots.metrics.capacity;
        if outcome.overload {
            metrics.overloads.inc();
        }
        if let Some(cause) = outcome.failure {
            metrics.failures[cause].inc();
        }
        self.announce_change(turned);
    }

    /// Lets the next call try where the breaker opened before the sign of life that began then, and none tries since.
    pub(super) fn let_try(&self, began: Instant) {
        self.state.lock().breaker.allow_trial(began);
    }

    /// True unless calls pass, but for those of callers that fail alone.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().breaker.reported_circuit(None).phase != Phase::Closed
    }

    /// True unless calls of all callers pass.
    pub(super) fn is_open_to_any(&self) -> bool {
        self.state.lock().breaker.is_open_to_any()
    }

    /// Returns the capacity; `to`: for calls of this caller.
    pub(super) fn capacity_view(&self, to: Option<Account>) -> CapacityView {
        let state = self.state.lock();
        let (now, breaker) = (Instant::now(), state.breaker.reported_circuit(to));
        CapacityView {
            instance: self.name.1.clone(),
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
            learned_limit: state.unary.limit,
            learned_limit_streams: state.streams.limit,
            queued: self.queue.len(),
        }
    }

    fn announce_change(self: &Arc<Self>, turned: Option<BreakerChange>) {
        match turned {
            Some(BreakerChange::Opened | BreakerChange::OpenedAlone) => {
                self.slots.record_open(self)
            }
            Some(BreakerChange::Closed) => self.slots.record_close(self),
            None => {}
        }
    }
}

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
    /// to this party, now. Calls from before the last decrease count once, together. A call that was alone tells
    /// nothing: fewer calls would not help it.
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

/// Calls that wait for a place.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<VecDeque<QueueEntry>>,
    /// Length of `waiting`, read without its lock.
    len: AtomicUsize,
    /// Places of the queue by caller.
    places: Arc<Shares>,
    /// Number of the next call.
    next: AtomicUsize,
}

/// A call that waits.
#[derive(Debug)]
struct QueueEntry {
    number: usize,
    account: Account,
    kind: CallKind,
    terms: Arc<Terms>,
    answer: oneshot::Sender<Result<Slot, Rejection>>,
    _place: Share,
}

/// A place in the queue. Dropping it leaves the queue.
pub(super) struct Ticket {
    target: Arc<Target>,
    number: usize,
    /// Gets the place at the target. A call is answered before it leaves the queue.
    pub(super) answer: oneshot::Receiver<Result<Slot, Rejection>>,
    /// For the metrics; that of a call which leaves, unless it comes to its end.
    pub(super) outcome: QueueOutcome,
    _waiting: InProgress,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.target.queue.remove(self.number);
        self.target.slots.metrics.capacity.queue[self.outcome].inc();
    }
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    fn remove(&self, number: usize) {
        let mut waiting = self.waiting.lock();
        let at = waiting.iter().position(|one| one.number == number);
        let left = at.and_then(|at| waiting.remove(at));
        self.len.store(waiting.len(), Ordering::Release);
        drop(waiting);
        drop(left);
    }
}

impl Target {
    /// Puts a call at the end of the queue, and serves the queue: a place may have become free meanwhile.
    ///
    /// # Errors
    /// [`ShareRefusal`], by `terms.queue`.
    pub(super) fn enter_queue(
        self: &Arc<Self>,
        account: Account,
        kind: CallKind,
        terms: &Arc<Terms>,
    ) -> Result<Ticket, ShareRefusal> {
        let (queue, bound) = (&self.queue, Bound::with_places(terms.queue));
        let place = queue.places.take(account, 1, bound)?;
        let number = queue.next.fetch_add(1, Ordering::Relaxed);
        let (answer, receiver) = oneshot::channel();
        let mut waiting = queue.waiting.lock();
        waiting.push_back(QueueEntry {
            number,
            account,
            kind,
            terms: Arc::clone(terms),
            answer,
            _place: place,
        });
        queue.len.store(waiting.len(), Ordering::Release);
        drop(waiting);
        self.serve_queue();
        Ok(Ticket {
            target: Arc::clone(self),
            number,
            answer: receiver,
            outcome: QueueOutcome::Left,
            _waiting: InProgress::begin(&self.slots.metrics.capacity.queued),
        })
    }

    /// Gives free places to the calls that wait, in their order. A call whose caller has its share is passed over.
    pub(super) fn serve_queue(self: &Arc<Self>) {
        while self.queue.len() > 0 {
            let mut waiting = self.queue.waiting.lock();
            let served = waiting.iter().enumerate().find_map(|(at, one)| {
                match Slot::take(self, &one.terms, one.account, one.kind) {
                    Ok(slot) => Some((at, Ok(slot))),
                    Err(NoSlot { may_wait: true, .. }) => None,
                    Err(NoSlot { why, .. }) => Some((at, Err(why))),
                }
            });
            let Some((at, answer)) = served else { return };
            let one = waiting.remove(at);
            self.queue.len.store(waiting.len(), Ordering::Release);
            drop(waiting);
            // After a caller that left, the slot is dropped here, without the lock.
            let unused = one.map(|one| one.answer.send(answer));
            drop(unused);
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
        assert_eq!(learned.limit, Some(70), "of the ceiling");
        let calls: Vec<_> = (0..40).map(|_| learned.begin_call().unwrap()).collect();
        for call in calls {
            learned.end_call();
            learned.record_refusal(call, 100, true, None);
        }
        assert_eq!(learned.limit, Some(28), "of those in progress");
        for _ in 0..20 {
            let calls = [learned.begin_call(), learned.begin_call()];
            for call in calls.into_iter().flatten() {
                learned.end_call();
                learned.record_refusal(call, 100, false, None);
            }
        }
        assert_eq!((learned.limit, learned.in_progress), (Some(1), 0));
        assert_eq!(learned.begin_call().map(|call| call.beside), Ok(1));
        assert_eq!(learned.begin_call().map(drop), Err(1));
        learned.reset();
        assert_eq!(learned.limit, None);
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
            assert_eq!(learned.limit, limit, "{said:?}");
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
        assert_eq!(learned.limit, None);
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
        assert_eq!(learned.limit, Some(7), "one call at once");
        for _ in 0..40 {
            let calls: Vec<_> = std::iter::from_fn(|| learned.begin_call().ok())
                .take(20)
                .collect();
            for call in calls {
                learned.record_success(call, 10);
                learned.end_call();
            }
        }
        assert_eq!(learned.limit, None);
    }
}
