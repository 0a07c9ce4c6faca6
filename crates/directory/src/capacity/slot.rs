//! Slots of one target: one for each call in progress. The count outlives the target's cached entry.
//!
//! Outcomes of calls, as far as they tell of the agent.
//!
//! Slots of all targets of this replica: workspaces, or their instances. Each target is held weakly: it lives as long
//! as a cached entry, a slot, or its open breaker holds it. Those with a breaker that is not closed are kept,
//! announced, and looked at for signs of life.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};

use super::target::{ActiveCall, CapacityRefusal, Terms};
use super::{CallKind, CapacityView, Target};
use crate::announcer::Announcer;
use crate::liveness::Presence;
use access::explain::{Fact, Source, Witness};
use access::workspace::Status;
use kernel::breaker::PROBE;
use kernel::config::Config;
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::metrics::{AgentFailure, Metrics, QueueOutcome};
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::{Account, Bound, Share, ShareRefusal};
use kernel::stage::Stage;
use kernel::time::Timestamp;

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

    /// Records that the agent has begun to answer with a stream: the call is no refusal, and no failure of its
    /// beginning.
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

    /// True unless the breaker refuses calls of `account`. While it does, signs of life at other replicas are looked
    /// for.
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

/// Number of workspaces after which unused ones are first removed.
const SWEEP_LEN_MIN: usize = 1024;

/// Pause between two looks at the lease of a target.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Time after which a target that nothing calls is forgotten: its breaker counts as closed.
const KEPT_MAX: Duration = Duration::from_secs(600);

/// The same for a target that is in no cached entry: its instance or its workspace has left.
const KEPT_ALONE: Duration = Duration::from_secs(60);

/// Pause between two looks for targets to forget, while there are any.
const FORGET_PAUSE: Duration = Duration::from_secs(15);

/// Name of a target: a workspace, and its instance if it has named ones.
pub(super) type TargetName = (WorkspaceId, Option<InstanceId>);

/// Slots of all targets.
pub struct Slots {
    pub(super) metrics: Arc<Metrics>,
    announcer: Arc<Announcer>,
    presence: Arc<Presence>,
    targets: Mutex<Targets>,
    open: Mutex<HashMap<TargetName, OpenBreaker>>,
    /// Length of `open`, read without its lock.
    len: AtomicUsize,
    /// True while a task looks for targets to forget.
    is_forgetting: AtomicBool,
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots")
            .field("open", &self.len)
            .finish_non_exhaustive()
    }
}

/// Targets by workspace.
#[derive(Default)]
struct Targets {
    by_workspace: HashMap<WorkspaceId, Vec<Weak<Target>>>,
    sweep_len: usize,
}

impl Targets {
    fn find_all(&self, id: &WorkspaceId) -> impl Iterator<Item = Arc<Target>> {
        let targets = self.by_workspace.get(id).into_iter().flatten();
        targets.filter_map(Weak::upgrade)
    }

    fn find(&self, id: &WorkspaceId, instance: Option<&InstanceId>) -> Option<Arc<Target>> {
        let mut all = self.find_all(id);
        all.find(|target| target.name.1.as_ref() == instance)
    }

    /// Removes workspaces without targets in use, each time their number has doubled.
    fn sweep(&mut self) {
        if self.by_workspace.len() < self.sweep_len.max(SWEEP_LEN_MIN) {
            return;
        }
        let used = |targets: &mut Vec<Weak<Target>>| targets.iter().any(|t| t.strong_count() > 0);
        self.by_workspace.retain(|_, targets| used(targets));
        self.sweep_len = 2 * self.by_workspace.len();
    }
}

/// A breaker that is not closed.
struct OpenBreaker {
    /// Keeps the target.
    target: Arc<Target>,
    /// Time at which it was first opened, by the clock of leases.
    since: Timestamp,
    /// The last look at the lease, or call.
    looked_at: Instant,
    /// False: it is open to callers that fail alone, which is no news of the agent.
    is_shown: bool,
}

impl Slots {
    pub(crate) fn new(
        metrics: &Arc<Metrics>,
        announcer: &Arc<Announcer>,
        presence: &Arc<Presence>,
    ) -> Arc<Self> {
        Arc::new(Self {
            metrics: Arc::clone(metrics),
            announcer: Arc::clone(announcer),
            presence: Arc::clone(presence),
            targets: Mutex::default(),
            open: Mutex::default(),
            len: AtomicUsize::new(0),
            is_forgetting: AtomicBool::new(false),
        })
    }

    fn find_all(&self, id: &WorkspaceId) -> Vec<Arc<Target>> {
        self.targets.lock().find_all(id).collect()
    }

    /// Returns a target that is in use.
    fn find(&self, id: &WorkspaceId, instance: Option<&InstanceId>) -> Option<Arc<Target>> {
        self.targets.lock().find(id, instance)
    }

    /// Returns the number of calls of `id` in progress at this replica.
    pub fn in_progress(&self, id: &WorkspaceId) -> usize {
        let targets = self.find_all(id);
        targets.iter().map(|target| target.calls.total()).sum()
    }

    /// Returns the capacity of `id`, or of each of its instances, at this replica. Empty: no call of it is remembered.
    pub fn capacity_views(&self, id: &WorkspaceId) -> Vec<CapacityView> {
        let targets = self.find_all(id);
        let views = targets.iter().map(|target| target.capacity_view(None));
        views.collect()
    }

    /// Returns the slots of `id`, or of its instance, of which `limit` is the ceiling, with those of the calls in
    /// progress taken.
    pub(crate) fn for_target(
        self: &Arc<Self>,
        (id, instance): (&WorkspaceId, Option<&InstanceId>),
        limit: usize,
        config: &Config,
    ) -> TargetSlots {
        let mut all = self.targets.lock();
        if !all.by_workspace.contains_key(id) {
            all.sweep();
        }
        let target = all.find(id, instance).unwrap_or_else(|| {
            let name = (id.clone(), instance.cloned());
            let target = Arc::new(Target::new(name, Arc::clone(self)));
            let targets = all.by_workspace.entry(id.clone()).or_default();
            targets.retain(|target| target.strong_count() > 0);
            targets.push(Arc::downgrade(&target));
            target
        });
        TargetSlots {
            target,
            terms: Arc::new(Terms {
                limit,
                adaptive: config.concurrency.adaptive,
                breaker: config.breaker.clone(),
                queue: config.limits.target_queue,
                queue_wait: config.limits.target_queue_wait,
            }),
        }
    }

    /// Forgets the learned limits of an agent that registers, and lets the next call to it try.
    pub(crate) fn reset_target(
        &self,
        id: &WorkspaceId,
        instance: Option<&InstanceId>,
        began: Instant,
    ) {
        if let Some(target) = self.find(id, instance) {
            let mut state = target.state.lock();
            state.forget_limits();
            state.breaker.allow_trial(began);
        }
    }

    /// Lets the next call try, after a sign of life that began at `began`.
    pub(crate) fn let_try(&self, id: &WorkspaceId, instance: Option<&InstanceId>, began: Instant) {
        if self.is_any_open()
            && let Some(target) = self.find(id, instance)
        {
            target.let_try(began);
        }
    }

    fn is_any_open(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }

    /// True while the breakers of all targets of `id` are not closed.
    pub fn is_open(&self, id: &WorkspaceId) -> bool {
        if !self.is_any_open() {
            return false;
        }
        let targets = self.find_all(id);
        !targets.is_empty() && targets.iter().all(|target| target.is_open())
    }

    /// Keeps a target with a breaker that has opened, and announces it.
    pub(super) fn record_open(self: &Arc<Self>, target: &Arc<Target>) {
        let (view, is_shown) = (target.capacity_view(None), target.is_open());
        let cause = view.failure.map_or("unknown", |cause| cause.as_str());
        if let Some(cause) = view.failure.filter(|_| is_shown) {
            self.metrics.capacity.opened[cause].inc();
        }
        let open = OpenBreaker {
            target: Arc::clone(target),
            since: Timestamp::now(),
            looked_at: Instant::now(),
            is_shown,
        };
        let mut all = self.open.lock();
        let before = all.insert(target.name.clone(), open);
        if !target.is_open_to_any() {
            // It closed meanwhile.
            all.remove(&target.name);
        }
        self.note_len(&all);
        drop(all);
        self.forget_later();
        if before.is_some_and(|before| before.is_shown || !is_shown) {
            return;
        }
        let seconds = view.retry_after.unwrap_or_default().as_secs();
        let (workspace, instance) = &target.name;
        let instance = instance.as_ref().map(InstanceId::as_str);
        if !is_shown {
            tracing::info!(workspace.id = %workspace, instance.id = instance, "the breaker of an agent opened for one \
                caller, others go on: see GET /explain of it");
            return;
        }
        tracing::warn!(workspace.id = %workspace, instance.id = instance, cause, seconds, "the breaker of an agent \
            opened: no call is sent to it; see GET /explain");
        // Other instances take the calls.
        if self.is_open(workspace) {
            let payload = json!({"breaker": "open", "cause": cause});
            self.announcer
                .announce_status_with(workspace, Status::Degraded, payload);
        }
    }

    /// Forgets a target with a breaker that has closed, and announces it.
    pub(super) fn record_close(&self, target: &Arc<Target>) {
        self.metrics.capacity.breakers_closed.inc();
        let (workspace, instance) = &target.name;
        let others = self.find_all(workspace);
        let others_open = others
            .iter()
            .all(|other| Arc::ptr_eq(other, target) || other.is_open());
        let mut all = self.open.lock();
        match all.get_mut(&target.name) {
            Some(open) if target.is_open_to_any() => open.is_shown = false,
            _ => drop(all.remove(&target.name)),
        }
        self.note_len(&all);
        drop(all);
        let instance = instance.as_ref().map(InstanceId::as_str);
        tracing::info!(workspace.id = %workspace, instance.id = instance, "the breaker of an agent closed");
        if !others_open {
            return;
        }
        let payload = json!({"breaker": "closed"});
        self.announcer
            .announce_status_with(workspace, Status::Online, payload);
        // Its row may have another status by now.
        if let Ok(runtime) = Handle::try_current() {
            let (announcer, id) = (Arc::clone(&self.announcer), workspace.clone());
            runtime
                .spawn(async move { announcer.announce_if_overtaken(&id, Status::Online).await });
        }
    }

    /// Looks for a heartbeat or registration at another replica since the breaker opened, in the background, at most
    /// each second.
    pub(super) fn look_for_life(self: &Arc<Self>, target: &Arc<Target>) {
        let mut all = self.open.lock();
        let Some(open) = all.get_mut(&target.name) else {
            return;
        };
        if open.looked_at.elapsed() < LOOK_PAUSE {
            return;
        }
        open.looked_at = Instant::now();
        let since = open.since;
        drop(all);
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let (watch, target) = (Arc::clone(self), Arc::clone(target));
        runtime.spawn(async move {
            let (workspace, instance) = &target.name;
            let leases = &watch.presence.leases;
            let renewed = leases.renewal_time(workspace, instance.as_ref(), since);
            if let Ok(Some(at)) = renewed.await
                && at > since
            {
                target.let_try(Instant::now());
            }
        });
    }

    /// Forgets targets that nothing calls any more, in the background, until no breaker is open.
    fn forget_later(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if self.is_forgetting.swap(true, Ordering::AcqRel) {
            return;
        }
        let watch = Arc::downgrade(self);
        runtime.spawn(async move {
            loop {
                sleep(FORGET_PAUSE).await;
                let Some(watch) = watch.upgrade() else { return };
                let mut all = watch.open.lock();
                all.retain(|_, one| {
                    let is_alone = Arc::strong_count(&one.target) == 1;
                    let kept = if is_alone { KEPT_ALONE } else { KEPT_MAX };
                    one.looked_at.elapsed() < kept && one.target.is_open_to_any()
                });
                watch.note_len(&all);
                if all.is_empty() {
                    // Under the lock: an opening that comes now begins a task of its own.
                    watch.is_forgetting.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    fn note_len(&self, all: &HashMap<TargetName, OpenBreaker>) {
        self.len.store(all.len(), Ordering::Release);
        let shown = all.values().filter(|one| one.is_shown).count();
        let len = i64::try_from(shown).unwrap_or(i64::MAX);
        self.metrics.capacity.breakers_open.set(len);
    }
}
