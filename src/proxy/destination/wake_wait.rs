//! A call to an agent that sleeps: parked until the agent is awake, then sent like any other. All that is checked before
//! is checked again then, since a call may wait for a minute.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::a2a::method::Method as A2aMethod;
use crate::directory::{CallKind, Destination, WakeTimes};
use crate::gateway::Gateway;
use crate::proxy::admit::{AdmittedCall, AllowedCaller, authorize_target, requested_timeout};
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::parking::{ParkedCall, RETRY_AFTER, Turn};
use crate::proxy::relay::Clocks;
use crate::proxy::request::Request;
use crate::proxy::respond::client_disconnected;
use crate::proxy::waker::wake_workspace;
use crate::rejection::{Delivery, Reason, Rejection};

/// Interval of looks for the agent without a notification: while the link that carries invalidations is down.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval of looks for a place at an agent that is awake and has as many calls as it takes.
const LOOK_FOR_SLOT_EVERY: Duration = Duration::from_millis(50);

/// Interval of looks whether a stop that covers the call was released.
const STOPPED_PAUSE: Duration = Duration::from_millis(250);

/// How a call waits for its agent to wake.
pub(in crate::proxy) struct WakePlan {
    times: WakeTimes,
    /// The timeout that `X-Timeout` requests.
    timeout: Option<Duration>,
}

/// Returns how the target of a call is woken, if it sleeps. `why`: the reason why it cannot be reached. `None`: the call
/// is answered as without a waker.
///
/// # Errors
/// `invalid_request`: `X-Timeout`.
pub(in crate::proxy) async fn plan_wake(
    request: &Request<'_>,
    allowed: &AllowedCaller,
    why: &Rejection,
) -> Result<Option<WakePlan>, Rejection> {
    let away = [Reason::WorkspaceOffline, Reason::WorkspaceRestarting].contains(&why.reason);
    if !away || request.context.gateway.is_draining() {
        return Ok(None);
    }
    let waking = &request.context.gateway.directory.waking;
    let Some(times) = waking.wake_times(allowed.permit.target()).await? else {
        return Ok(None);
    };
    let max = request.exchange.config.timeouts.max;
    let timeout = requested_timeout(request.head(), max)?;
    Ok(Some(WakePlan { times, timeout }))
}

/// True if a call may wake its target: a card may be read of an agent that sleeps.
pub(in crate::proxy) fn may_wake(method: A2aMethod) -> bool {
    !matches!(method, A2aMethod::GetExtendedCard | A2aMethod::AgentCard)
}

/// Parks a call with a body of `bytes` until its agent is awake, and admits it again. It has its turn until it is sent.
///
/// # Errors
/// `workspace_restarting` (there is no room, or the agent did not come), `agent_timeout`, `shutting_down`; the reason why
/// it can no longer be sent; or the caller left.
pub(in crate::proxy) async fn wait_until_awake(
    request: &mut Request<'_>,
    allowed: AllowedCaller,
    plan: WakePlan,
    bytes: usize,
) -> Result<AdmittedCall, ExchangeOutcome> {
    let context = request.context;
    let id = allowed.permit.target();
    let parked = context.parking.park(id, allowed.account(), bytes)?;
    wake_workspace(context, id, plan.times);
    let turn = wait_for_turn(request, &allowed, &plan, parked).await?;
    let gateway = &context.gateway;
    let AllowedCaller { proof, permit } = allowed;
    if !gateway.identity.is_unrevoked(&proof).await {
        return Err(ExchangeOutcome::Refused(credential_revoked()));
    }
    let allowed = authorize_target(gateway, request.exchange, proof, permit.target()).await;
    let allowed = allowed.map_err(mark_not_sent)?;
    let destination = gateway.resolution.resolve(&allowed.permit).await;
    let destination = destination.map_err(mark_not_sent)?;
    let (head, config) = (request.session.req_header(), &request.exchange.config);
    let admitted = AdmittedCall::new(allowed, destination, head, config)?;
    Ok(AdmittedCall {
        turn: Some(turn),
        ..admitted
    })
}

async fn wait_for_turn(
    request: &mut Request<'_>,
    allowed: &AllowedCaller,
    plan: &WakePlan,
    parked: ParkedCall,
) -> Result<Turn, ExchangeOutcome> {
    let context = request.context;
    let deadline = WaitDeadline::new(request, plan);
    let mut draining = std::pin::pin!(context.relay.drain.wait_for_begin());
    let mut busy = None;
    let kind = CallKind::from_method(request.exchange.method);
    loop {
        let mut pause = LOOK_EVERY;
        if parked.is_next() {
            match check_agent(&context.gateway, allowed, kind).await? {
                AgentState::Ready => return Ok(parked.take_turn()),
                AgentState::Busy(why, is_share) => {
                    if is_share {
                        parked.pass_over();
                    }
                    (busy, pause) = (Some(why), LOOK_FOR_SLOT_EVERY);
                }
                AgentState::Stopped(why) => {
                    parked.pass_over();
                    (busy, pause) = (Some(why), STOPPED_PAUSE);
                }
                AgentState::Asleep => {
                    busy = None;
                    wake_workspace(context, allowed.permit.target(), plan.times);
                }
            }
        }
        tokio::select! {
            biased;
            () = &mut draining => return Err(shutting_down().into()),
            () = parked.wait_notified() => {}
            () = sleep_until(deadline.at) => {
                let busy = busy.filter(|_| !deadline.of_exchange);
                return Err(busy.unwrap_or_else(|| deadline.rejection(plan)).into());
            }
            () = sleep(pause) => {}
            () = client_disconnected(request.session) => return Err(ExchangeOutcome::CallerLeft),
        }
    }
}

/// State of the agent of a parked call.
enum AgentState {
    /// The call can be sent.
    Ready,
    /// It is awake, and has no place for the call. True: for this caller.
    Busy(Rejection, bool),
    /// It sleeps, and may still come.
    Asleep,
    /// A stop covers the call.
    Stopped(Rejection),
}

/// Looks for the agent.
///
/// # Errors
/// The reason why it does not come.
async fn check_agent(
    gateway: &Gateway,
    allowed: &AllowedCaller,
    kind: CallKind,
) -> Result<AgentState, Rejection> {
    let permit = &allowed.permit;
    if let Err(why) = gateway.stops.check(permit) {
        // It waits for the release, and keeps no other call back.
        return Ok(AgentState::Stopped(mark_not_sent(why)));
    }
    let why = match gateway.resolution.resolve(permit).await {
        Ok(Destination::Agent(agent)) => {
            let account = allowed.account();
            let mut refused = None;
            for slots in agent.open_slots() {
                match slots.check(account, kind, &mut ()) {
                    Ok(()) => return Ok(AgentState::Ready),
                    Err(busy) => refused = Some((busy, slots.is_short_of_share(account))),
                }
            }
            return Ok(match refused {
                Some((busy, is_share)) => AgentState::Busy(mark_not_sent(busy), is_share),
                None => AgentState::Ready,
            });
        }
        Ok(Destination::Inbox(_)) => return Ok(AgentState::Ready),
        Err(why) => why,
    };
    let may_come = match why.reason {
        Reason::StoreUnavailable => true,
        Reason::WorkspaceOffline | Reason::WorkspaceRestarting => {
            let may_come = gateway.directory.waking.may_come(permit.target());
            may_come.await.unwrap_or(true)
        }
        _ => false,
    };
    if may_come {
        Ok(AgentState::Asleep)
    } else {
        Err(mark_not_sent(why))
    }
}

/// The time at which a call has waited for too long.
struct WaitDeadline {
    at: Instant,
    /// True if it is the clock of the exchange.
    of_exchange: bool,
}

impl WaitDeadline {
    fn new(request: &Request<'_>, plan: &WakePlan) -> Self {
        let exchange = &request.exchange;
        let timeouts = &exchange.config.timeouts;
        let clocks = Clocks::new(timeouts, exchange.started, plan.timeout, None);
        let exchange_ends = if exchange.method.streams() {
            clocks.stream
        } else {
            clocks.total
        };
        let waited = Instant::now() + plan.times.max_wait;
        Self {
            at: waited.min(exchange_ends),
            of_exchange: exchange_ends < waited,
        }
    }

    fn rejection(&self, plan: &WakePlan) -> Rejection {
        if self.of_exchange {
            let message = "the agent was not awake in time (timeouts.total, or X-Timeout); the call was not sent";
            return Rejection::new(Reason::AgentTimeout, message)
                .with_fact("clock", "total")
                .with_delivery(Delivery::NotSent);
        }
        let (seconds, key) = (plan.times.max_wait.as_secs(), plan.times.max_wait_key());
        let message = format!(
            "the waker of the workspace was called, and its agent did not register within {seconds} s ({key}); try again \
             shortly. The audit has the waker's answer (WORKSPACE_WAKE)"
        );
        Rejection::new(Reason::WorkspaceRestarting, message)
            .with_retry_after(RETRY_AFTER)
            .with_delivery(Delivery::NotSent)
    }
}

fn mark_not_sent(why: Rejection) -> Rejection {
    let delivered = why.delivered.unwrap_or(Delivery::NotSent);
    why.with_delivery(delivered)
}

fn shutting_down() -> Rejection {
    let message = "this process is shutting down while the call waits for its agent; connect again to reach another one";
    Rejection::new(Reason::ShuttingDown, message)
        .with_retry_after(Duration::from_secs(1))
        .with_delivery(Delivery::NotSent)
}

fn credential_revoked() -> Rejection {
    let message = "the credential of this call was revoked while the call waited for its agent; send a live one";
    Rejection::new(Reason::Unauthenticated, message).with_delivery(Delivery::NotSent)
}
