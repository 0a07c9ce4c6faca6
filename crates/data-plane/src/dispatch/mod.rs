//! Sends deferred calls (`mailbox/src/jobs/`): through the same admission as a message, at the moment of sending,
//! with the principal that made the call. Finds due calls and decides whether each can be sent; [`sender`]
//! sends them.

mod response;
mod sender;

use crate::admission::{AdmittedCall, AllowedCaller, assign_instance};
use crate::dispatch::sender::Sender;
use crate::policy::{ask_about_reply, check_access, permit_target};
use crate::services::Context;
use crate::wake::wake_workspace;
use a2a::method::Method;
use a2a::refs::Refs;
use access::explain::Live;
use directory::{CallKind, Destination, Slot};
use kernel::deadline::ticks;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::shares::{Account, Bound, Share, Shares};
use kernel::stage::Stage;
use mailbox::jobs::{Content, Job};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Interval of looks for due calls without a wake-up: for calls that another replica accepted and does not
/// send, and for calls that wait for their time.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Maximum calls of one replica in progress. Each may hold a response of `limits.response_bytes`.
const RUNNING_MAX: usize = 256;

/// Maximum calls to one target, so that a slow or unreachable target does not take all of them.
const RUNNING_PER_TARGET_MAX: usize = 32;

/// Calls claimed at once.
const BATCH: usize = 16;

/// Pause before the next attempt at a busy target; shorter if one of its calls ends here.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Pause before the next attempt at a call that a stop covers.
const STOPPED_PAUSE: Duration = Duration::from_secs(1);

/// Dispatcher of due calls; runs until the process ends.
pub struct Dispatcher {
    context: Arc<Context>,
    sender: Sender,
}

/// The places of calls in progress: each target has some, and so there are some for others.
const PLACES: Bound = Bound {
    all: RUNNING_MAX,
    least: RUNNING_PER_TARGET_MAX,
    each: RUNNING_PER_TARGET_MAX,
};

/// Calls in progress on this replica.
#[derive(Default)]
struct RunningCalls {
    calls: JoinSet<()>,
    places: Arc<Shares>,
}

impl RunningCalls {
    /// Takes a place for one more call to the target. `None`: it has as many as it may.
    fn take_place(&self, target: &WorkspaceId) -> Option<Share> {
        let account = Account::of_owner(target.as_str());
        self.places.take(account, 1, PLACES).ok()
    }

    fn spawn(&mut self, place: Option<Share>, call: impl Future<Output = ()> + Send + 'static) {
        self.calls.spawn(async move {
            let _place = place;
            call.await;
        });
    }
}

/// The reason why a call is not sent now.
enum Refusal {
    /// The target is away, or busy. True if it counts as an attempt.
    Later(Rejection, bool),
    /// A stop covers it. Its target is not away, and gets other calls.
    Stopped,
    /// It can never be sent.
    Never(Rejection),
}

impl Dispatcher {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let given_up_context = Arc::downgrade(&context);
        let jobs = &context.gateway.delivery.jobs;
        let reply_context = Arc::downgrade(&context);
        jobs.listeners.set(
            move |job, why| {
                if let Some(context) = given_up_context.upgrade() {
                    Sender(context).record_given_up(job, why);
                }
            },
            Box::new(move |job, said| {
                let context = reply_context.upgrade();
                Box::pin(async move {
                    match context {
                        Some(context) => ask_about_reply(&context, job, said).await,
                        None => Err(Rejection::new(Reason::ShuttingDown, "the process ends")),
                    }
                })
            }),
        );
        let sender = Sender(Arc::clone(&context));
        Self { context, sender }
    }

    /// Runs until a drain begins and the attempts in progress are over.
    pub async fn run(&self) {
        let gateway = &self.context.gateway;
        let mut running = RunningCalls::default();
        let mut tick = ticks(LOOK_EVERY);
        let mut more = false;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = gateway.delivery.jobs.wait_for_news() => {}
                Some(_) = running.calls.join_next(), if more => {}
                () = gateway.drain.wait_for_leave() => break,
            }
            while running.calls.try_join_next().is_some() {}
            more = self.send_due(&mut running).await;
        }
        while running.calls.join_next().await.is_some() {}
    }

    /// Starts to send due calls. True if there may be more.
    async fn send_due(&self, running: &mut RunningCalls) -> bool {
        let jobs = &self.context.gateway.delivery.jobs;
        loop {
            let room = RUNNING_MAX.saturating_sub(running.calls.len()).min(BATCH);
            if room == 0 || self.context.gateway.is_draining() {
                return true;
            }
            // An outage of the store: the next look finds them.
            let Ok(due) = jobs.claim_due(u32::try_from(room).unwrap_or(1)).await else {
                return false;
            };
            let taken = due.len();
            let mut away: HashMap<WorkspaceId, Duration> = HashMap::new();
            for job in due {
                if let Some(pause) = away.get(&job.target) {
                    jobs.put_back(&job, *pause, false).await;
                    continue;
                }
                let attempt = jobs.begin_attempt(&job.target);
                let place = running.take_place(&job.target);
                let admitted = match place {
                    Some(_) => self.admit(&job).await,
                    None => Err(Refusal::Later(target_busy(), false)),
                };
                match admitted {
                    Ok((admitted, slot)) => {
                        let sender = self.sender.clone();
                        running.spawn(place, sender.send(job, attempt, admitted, slot));
                    }
                    // Calls of others are not put off with it.
                    Err(Refusal::Later(why, _)) if why.is_share_exhausted() => {
                        jobs.put_back(&job, job.backoff(), true).await;
                    }
                    Err(Refusal::Later(why, tried)) => {
                        let pause = if tried { job.backoff() } else { BUSY_PAUSE };
                        let reason = why.reason.as_str();
                        tracing::debug!(job = job.id, reason, ?pause, "deferred call postponed");
                        jobs.put_back(&job, pause, tried).await;
                        jobs.park_target(attempt, pause).await;
                        away.insert(job.target, pause);
                    }
                    Err(Refusal::Stopped) => {
                        tracing::debug!(
                            job = job.id,
                            "deferred call waits: an operator stopped it"
                        );
                        jobs.put_back(&job, STOPPED_PAUSE, false).await;
                    }
                    Err(Refusal::Never(why)) => {
                        running.spawn(place, self.sender.clone().give_up(job, why));
                    }
                }
            }
            if taken < room {
                return false;
            }
        }
    }

    /// Has the target woken if it sleeps. The call stays due: it is tried again when the target has changed.
    async fn wake_target(&self, target: &WorkspaceId) {
        let waking = &self.context.gateway.directory.waking;
        if let Ok(Some(times)) = waking.wake_times(target).await {
            wake_workspace(&self.context, target, times);
        }
    }

    /// Runs the checks of a message in their order, except those of a request. Returns the call, with its slot among the
    /// target's calls if it takes one.
    async fn admit(&self, job: &Job) -> Result<(Box<AdmittedCall>, Option<Slot>), Refusal> {
        let gateway = &self.context.gateway;
        let Some(proof) = gateway.identity.restore_proof(&job.caller) else {
            let message = "the call was accepted in auth.mode = \"open\", which is over";
            let why = Rejection::new(Reason::NotPermitted, message);
            return Err(Refusal::Never(why.mark_not_sent()));
        };
        let permit = permit_target(gateway, &proof, &job.target, &mut Live).await;
        let permit = permit.map_err(refuse)?;
        check_access(gateway, &permit, &mut Live).map_err(|why| match why.reason {
            Reason::Stopped => Refusal::Stopped,
            _ => refuse(why),
        })?;
        let destination = match gateway.resolution.resolve(&permit).await {
            Ok(destination) => destination,
            Err(why) => {
                self.wake_target(&job.target).await;
                return Err(refuse(why));
            }
        };
        let mut admitted = AdmittedCall {
            allowed: AllowedCaller {
                proof: Arc::new(proof),
                permit,
            },
            destination,
            timeout: None,
            hops: job.content.hops(),
            preference: None,
            turn: None,
        };
        let assigned = assign_instance(gateway, &mut admitted, &parse_refs(job)).await;
        assigned.map_err(|why| refuse(why.at(Stage::Instance)))?;
        let account = admitted.allowed.account();
        let slot = match &admitted.destination {
            Destination::Agent(agent) => {
                let slot = agent.slots.take(account, CallKind::Unary);
                Some(slot.map_err(|busy| Refusal::Later(busy.why.at(Stage::Slots), false))?)
            }
            Destination::Inbox(_) => None,
        };
        Ok((Box::new(admitted), slot))
    }
}

/// Returns the task and the context that a call names; none for one that cannot be read.
fn parse_refs(job: &Job) -> Refs {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        params: &'a RawValue,
    }
    let Content::Call(call) = &job.content else {
        return Refs::default();
    };
    let envelope: Option<Envelope<'_>> = serde_json::from_str(&call.body).ok();
    let refs = envelope.map(|envelope| {
        Refs::from_rest_body(envelope.params.get().as_bytes(), Method::SendMessage)
    });
    refs.and_then(Result::ok).unwrap_or_default()
}

/// Decides about a call that was rejected before it was sent.
fn refuse(why: Rejection) -> Refusal {
    if is_transient(why.reason) {
        Refusal::Later(why, true)
    } else {
        Refusal::Never(why.mark_not_sent())
    }
}

/// True if a later attempt may succeed.
fn is_transient(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::WorkspaceOffline
            | Reason::WorkspaceRestarting
            | Reason::AgentBusy
            | Reason::AgentUnreachable
            | Reason::AgentTimeout
            | Reason::StoreUnavailable
            | Reason::GuardUnavailable
            | Reason::Overloaded
            | Reason::ShuttingDown
            | Reason::Stopped
    )
}

fn target_busy() -> Rejection {
    let message = "as many calls that are made later as may be are in progress at the target";
    Rejection::new(Reason::AgentBusy, message)
}
