//! Slots of one target: one for each call in progress. The count outlives the target's cached entry.
//!
//! Outcomes of calls, as far as they tell of the agent.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::target::{ActiveCall, CapacityRefusal, Terms};
use super::{CallKind, Target};
use access::explain::{Fact, Source, Witness};
use kernel::breaker::PROBE;
use kernel::metrics::{AgentFailure, QueueOutcome};
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::{Account, Bound, Share, ShareRefusal};
use kernel::stage::Stage;

/// Pause between two attempts to connect to an agent that refuses connections, for all calls that wait for it.
const REDIAL_PAUSE: Duration = Duration::from_millis(100);

/// A call in progress. Dropping it frees the slot, also after a panic of the exchange.
#[derive(Debug)]
pub struct Slot {
    target: Arc<Target>,
    terms: Arc<Terms>,
    call: ActiveCall,
    answering: bool,
    /// The clocks of the call that are the gateway's own.
    own_timeouts: OwnTimeouts,
    outcome: Option<CallOutcome>,
    /// True if the breaker has counted the outcome.
    settled: bool,
    share: Option<Share>,
}

/// Rejection of a call for which there is no slot.
#[derive(Debug)]
pub struct NoSlot {
    /// The rejection.
    pub why: Rejection,
    /// True if one may become free soon.
    pub(super) may_wait: bool,
}

impl From<NoSlot> for Rejection {
    fn from(no_slot: NoSlot) -> Self {
        no_slot.why
    }
}

impl Slot {
    pub(super) fn take(
        target: &Arc<Target>,
        terms: &Arc<Terms>,
        account: Account,
        kind: CallKind,
    ) -> Result<Self, NoSlot> {
        let call = target.begin_call(account, kind, terms).map_err(|why| {
            if matches!(why, CapacityRefusal::Learned(_)) && !target.calls.holds_any(account) {
                target.mark_contended();
            }
            capacity_refused(target, why)
        })?;
        let shared = call.shared.unwrap_or(terms.limit).min(terms.limit);
        let share = target.calls.take(account, 1, Bound::with_places(shared));
        let share = share.map_err(|full| {
            // Not by dropping a slot, which would serve the queue.
            target.release(call);
            slots_full(full, shared)
        })?;
        target.slots.metrics.target_permits.inc();
        Ok(Self {
            target: Arc::clone(target),
            terms: Arc::clone(terms),
            call,
            answering: false,
            own_timeouts: OwnTimeouts::default(),
            outcome: None,
            settled: false,
            share: Some(share),
        })
    }

    /// Records that the agent has begun to answer with a stream: the call is no refusal, and no failure of its beginning.
    pub fn record_stream_start(&mut self) {
        if !std::mem::replace(&mut self.answering, true) {
            self.target.record_stream_start(&mut self.call, &self.terms);
        }
    }

    /// Sets which clocks of the call are the gateway's own.
    pub fn set_own_timeouts(&mut self, own_timeouts: OwnTimeouts) {
        self.own_timeouts = own_timeouts;
    }

    /// Sets what the call tells of the agent. The first outcome counts; without one it tells nothing.
    pub fn finish(&mut self, outcome: CallOutcome) {
        self.finish_unless(|_| Some(outcome));
    }

    /// Sets the outcome if there is none yet. A failure, and the outcome of the call that tries, count for the breaker
    /// before the caller has the answer: its next call meets the breaker as it is then.
    pub fn finish_unless(&mut self, outcome: impl FnOnce(OwnTimeouts) -> Option<CallOutcome>) {
        if self.outcome.is_some() {
            return;
        }
        self.outcome = outcome(self.own_timeouts);
        if let Some(outcome) = self.outcome
            && (self.call.admission.tries || outcome.failure.is_some())
        {
            self.settled = true;
            let of = (self.call.admission, self.call.account);
            self.target.record_outcome(of, outcome.failure, &self.terms);
        }
    }

    /// Takes a retry from the target's budget: a fifth of its calls, and one a second.
    pub fn may_retry(&self) -> bool {
        let may = self.target.state.lock().retries.take(Instant::now());
        let metrics = &self.target.slots.metrics.capacity;
        match may {
            true => metrics.retries.inc(),
            false => metrics.retries_refused.inc(),
        }
        may
    }

    /// Records whether a connection to the agent could be made. One that could be made again is a sign of life.
    pub fn record_dial(&self, connected: bool) {
        let mut state = self.target.state.lock();
        if connected && state.redial_at.is_some() {
            state.breaker.allow_trial(Instant::now());
        }
        let next = || Instant::now() + REDIAL_PAUSE;
        state.redial_at = (!connected).then(|| state.redial_at.unwrap_or_else(next));
    }

    /// Takes the turn to connect to an agent that refuses connections.
    ///
    /// # Errors
    /// The time of the next turn: ten a second, for all calls that wait.
    pub fn take_redial(&self) -> Result<(), Instant> {
        let (mut state, now) = (self.target.state.lock(), Instant::now());
        if let Some(at) = state.redial_at {
            if now < at {
                return Err(at);
            }
            state.redial_at = Some(now + REDIAL_PAUSE);
        }
        drop(state);
        self.target.slots.metrics.capacity.retries.inc();
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.share.take());
        self.target.slots.metrics.target_permits.dec();
        match self.outcome {
            Some(outcome) => self.target.end_call(
                self.call,
                outcome,
                (self.answering, self.settled),
                &self.terms,
            ),
            None => self.target.release(self.call),
        }
        self.target.serve_queue();
    }
}

/// Slots of one target.
#[derive(Debug)]
pub struct TargetSlots {
    pub(super) target: Arc<Target>,
    pub(super) terms: Arc<Terms>,
}

impl TargetSlots {
    /// Takes a slot for a call of `account`.
    ///
    /// # Errors
    /// `agent_busy` if all are taken, the caller has half of the slots that other callers leave, the learned limit is
    /// reached, or the breaker is open.
    pub fn take(&self, account: Account, kind: CallKind) -> Result<Slot, NoSlot> {
        // Calls that wait come first. One that is left could not have the place.
        self.target.serve_queue();
        Slot::take(&self.target, &self.terms, account, kind)
    }

    /// Waits for a slot after `refused`, if `limits.target_queue` allows it. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// As [`TargetSlots::take`], after `limits.target_queue_wait` or at `deadline`.
    pub async fn wait(
        &self,
        refused: NoSlot,
        account: Account,
        kind: CallKind,
        deadline: Instant,
    ) -> Result<Slot, Rejection> {
        let terms = &self.terms;
        if !refused.may_wait || terms.queue == 0 {
            return Err(refused.why);
        }
        let metrics = &self.target.slots.metrics;
        let Ok(mut ticket) = self.target.enter_queue(account, kind, terms) else {
            metrics.capacity.queue[QueueOutcome::Full].inc();
            return Err(queue_full(refused.why, terms.queue));
        };
        let until = deadline.min(Instant::now() + terms.queue_wait);
        let (outcome, answer) = match timeout_at(until, &mut ticket.answer).await {
            Ok(Ok(Ok(slot))) => (QueueOutcome::Placed, Ok(slot)),
            Ok(Ok(Err(why))) => (QueueOutcome::Refused, Err(why)),
            Ok(Err(_)) => (QueueOutcome::Refused, Err(refused.why)),
            Err(_) if until == deadline => (QueueOutcome::Left, Err(refused.why)),
            Err(_) => {
                let mut why = refused.why;
                let wait = humantime::format_duration(terms.queue_wait);
                why.message = format!(
                    "no place became free at the workspace within {wait} (limits.target_queue_wait); try again shortly"
                )
                .into();
                (QueueOutcome::TimedOut, Err(why))
            }
        };
        ticket.outcome = outcome;
        answer
    }

    /// Counts a failed probe of the agent for its breaker.
    pub fn probe_failed(&self, cause: AgentFailure) {
        let admission = self.target.state.lock().breaker.admit_closed();
        let of = (admission, PROBE);
        self.target.record_outcome(of, Some(cause), &self.terms);
    }

    /// Checks that there is a free slot for a call of `account`, and reports the facts to `witness`.
    ///
    /// # Errors
    /// As [`TargetSlots::take`].
    pub fn check(
        &self,
        account: Account,
        kind: CallKind,
        witness: &mut impl Witness,
    ) -> Result<(), Rejection> {
        let limit = self.terms.limit;
        witness.record(|| {
            let view = self.target.capacity_view(Some(account));
            let failure = view.failures_in_a_row.map(|(number, cause, age)| {
                json!({"cause": cause.as_str(), "failures_in_a_row": number, "age_seconds": age.as_secs()})
            });
            let mut value = json!({
                "taken": view.in_progress, "limit": limit, "of": "this replica", "breaker": view.breaker,
                "breaker_cause": view.failure.map(AgentFailure::as_str),
                "learned_limit": view.learned_limit, "learned_limit_streams": view.learned_limit_streams,
                "waiting": Some(view.queued).filter(|queued| *queued > 0), "last_failure": failure,
            });
            if let Some(known) = value.as_object_mut() {
                known.retain(|_, value| !value.is_null());
            }
            Fact::new(Stage::Slots, Source::Memory, value)
        });
        let open = self.target.check_call(account, kind, &self.terms);
        open.map_err(|why| capacity_refused(&self.target, why).why)?;
        let looked = self.check_share(account);
        looked.map_err(|full| slots_full(full, limit).why)
    }

    fn check_share(&self, account: Account) -> Result<(), ShareRefusal> {
        let bound = Bound::with_places(self.terms.limit);
        self.target.calls.check_one(account, bound)
    }

    /// True if only the share of its caller keeps a call of `account` from a slot.
    pub fn is_short_of_share(&self, account: Account) -> bool {
        let looked = self.check_share(account);
        matches!(looked, Err(ShareRefusal::Share | ShareRefusal::Each))
    }

    /// Returns the state of the breaker for calls of `account`: `closed`, `open` or `trying`.
    pub fn breaker_state(&self, account: Account) -> &'static str {
        self.target.capacity_view(Some(account)).breaker
    }

    /// Returns the number of calls in progress.
    pub fn in_progress(&self) -> usize {
        self.target.calls.total()
    }

    /// True while fewer calls are in progress than the limit allows.
    pub fn has_place(&self) -> bool {
        self.in_progress() < self.terms.limit
    }

    /// True unless the breaker refuses calls of `account`. While it does, signs of life at other replicas are looked for.
    pub fn is_available(&self, account: Account) -> bool {
        let looked = self
            .target
            .check_call(account, CallKind::Unary, &self.terms);
        let is_open = matches!(looked, Err(CapacityRefusal::Breaker(..)));
        if is_open {
            self.target.slots.look_for_life(&self.target);
        }
        !is_open
    }
}

fn agent_busy(message: impl Into<std::borrow::Cow<'static, str>>, after: Duration) -> Rejection {
    Rejection::new(Reason::AgentBusy, message)
        .with_retry_after(after)
        .with_delivery(Delivery::NotSent)
}

fn slots_full(full: ShareRefusal, limit: usize) -> NoSlot {
    let message = match full {
        ShareRefusal::All => {
            "the workspace has as many calls in progress as it takes (limits.target_concurrency, or its max_concurrent); \
             try again shortly"
        }
        ShareRefusal::Share | ShareRefusal::Each => {
            "calls of this caller have half of the places that others leave at the workspace (limits.target_concurrency, \
             or its max_concurrent); try again shortly"
        }
    };
    let why = agent_busy(message, Duration::from_secs(1)).with_fact("limit", limit);
    NoSlot {
        why: why.with_share(full != ShareRefusal::All),
        may_wait: true,
    }
}

fn queue_full(mut why: Rejection, queue: usize) -> Rejection {
    let message = format!(
        "{}; its queue is full, too, or the part that one caller may have of it (limits.target_queue, {queue})",
        why.message
    );
    why.message = message.into();
    why.with_fact("queue", queue)
}

/// Returns the rejection by the breaker or the learned limit.
fn capacity_refused(target: &Arc<Target>, why: CapacityRefusal) -> NoSlot {
    match why {
        CapacityRefusal::Learned(limit) => {
            let message = format!(
                "the agent refused more than {limit} calls at once before; try again shortly (concurrency.adaptive)"
            );
            NoSlot {
                why: agent_busy(message, Duration::from_secs(1)).with_fact("learned_limit", limit),
                may_wait: true,
            }
        }
        CapacityRefusal::Breaker(after, failure) => {
            target.slots.look_for_life(target);
            let message = "the agent failed too often lately, in calls of this caller or of several (breaker.failures, \
                breaker.ratio): wait for Retry-After";
            // Rounded up: a caller that comes a moment too early would be refused once more.
            let after = Duration::from_secs(after.as_secs() + 1);
            let why = agent_busy(message, after).with_fact("breaker", "open");
            NoSlot {
                why: match failure {
                    Some(cause) => why.with_fact("cause", cause.as_str()),
                    None => why,
                },
                may_wait: false,
            }
        }
    }
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOutcome {
    /// The failure of the agent, if it failed.
    pub failure: Option<AgentFailure>,
    /// True if the agent refused it for its load.
    pub overload: bool,
}

impl CallOutcome {
    /// The agent answered.
    pub const ANSWERED: Self = Self {
        failure: None,
        overload: false,
    };

    /// Returns the outcome of a call in which the agent failed in this way.
    pub const fn from_failure(cause: AgentFailure) -> Self {
        Self {
            failure: Some(cause),
            overload: false,
        }
    }

    /// Returns the outcome of an answer with this status.
    pub const fn from_status(status: u16) -> Self {
        match status {
            429 => Self {
                failure: None,
                overload: true,
            },
            503 => Self {
                failure: Some(AgentFailure::Status),
                overload: true,
            },
            502 | 504 => Self::from_failure(AgentFailure::Status),
            _ => Self::ANSWERED,
        }
    }

    /// Returns the outcome of an answer with this status that no caller can read.
    pub fn from_unreadable(status: u16) -> Self {
        let outcome = Self::from_status(status);
        let failure = outcome.failure.or(Some(AgentFailure::Protocol));
        Self { failure, ..outcome }
    }
}

/// Clocks of a call that are the gateway's own. Those that its caller made shorter tell nothing of the agent.
#[derive(Clone, Copy, Debug)]
pub struct OwnTimeouts {
    /// `timeouts.head`.
    pub head: bool,
    /// `timeouts.total`.
    pub total: bool,
}

impl Default for OwnTimeouts {
    fn default() -> Self {
        Self {
            head: true,
            total: true,
        }
    }
}
