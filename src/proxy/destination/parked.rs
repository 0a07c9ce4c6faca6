//! A call to an agent that sleeps: parked until the agent is awake, then sent like any other. All that is checked before
//! is checked again then, since a call may wait for a minute.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::a2a::method::Method as A2aMethod;
use crate::directory::{CallKind, Destination, WakeTimes};
use crate::gateway::Gateway;
use crate::proxy::admit::{Admitted, Allowed, permit as permit_again, requested_timeout};
use crate::proxy::outcome::Ended;
use crate::proxy::parking::{Parked, RETRY_AFTER, Turn};
use crate::proxy::relay::Clocks;
use crate::proxy::request::Request;
use crate::proxy::respond::client_disconnected;
use crate::proxy::waker::wake;
use crate::rejection::{Delivery, Reason, Rejection};

/// Interval of looks for the agent without a notification: while the link that carries invalidations is down.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval of looks for a place at an agent that is awake and has as many calls as it takes.
const LOOK_FOR_SLOT_EVERY: Duration = Duration::from_millis(50);

/// Interval of looks whether a stop that covers the call was released.
const STOPPED_PAUSE: Duration = Duration::from_millis(250);

/// A call that may wait for its agent.
pub(in crate::proxy) struct Sleeper {
    times: WakeTimes,
    /// The timeout that `X-Timeout` requests.
    timeout: Option<Duration>,
}

/// Returns how the target of a call is woken, if it sleeps. `why`: the reason why it cannot be reached. `None`: the call
/// is answered as without a waker.
///
/// # Errors
/// `invalid_request`: `X-Timeout`.
pub(in crate::proxy) async fn sleeper(
    request: &Request<'_>,
    allowed: &Allowed,
    why: &Rejection,
) -> Result<Option<Sleeper>, Rejection> {
    let away = [Reason::WorkspaceOffline, Reason::WorkspaceRestarting].contains(&why.reason);
    if !away || request.context.gateway.draining() {
        return Ok(None);
    }
    let waking = &request.context.gateway.directory.waking;
    let Some(times) = waking.sleeper(allowed.permit.target()).await? else {
        return Ok(None);
    };
    let max = request.exchange.config.timeouts.max;
    let timeout = requested_timeout(request.head(), max)?;
    Ok(Some(Sleeper { times, timeout }))
}

/// True if a call may wake its target: a card may be read of an agent that sleeps.
pub(in crate::proxy) fn wakes(method: A2aMethod) -> bool {
    !matches!(method, A2aMethod::GetExtendedCard | A2aMethod::AgentCard)
}

/// Parks a call with a body of `bytes` until its agent is awake, and admits it again. It has its turn until it is sent.
///
/// # Errors
/// `workspace_restarting` (there is no room, or the agent did not come), `agent_timeout`, `shutting_down`; the reason why
/// it can no longer be sent; or the caller left.
pub(in crate::proxy) async fn wait_until_awake(
    request: &mut Request<'_>,
    allowed: Allowed,
    sleeper: Sleeper,
    bytes: usize,
) -> Result<Admitted, Ended> {
    let context = request.context;
    let id = allowed.permit.target();
    let parked = context.parking.park(id, allowed.account(), bytes)?;
    wake(context, id, sleeper.times);
    let turn = wait(request, &allowed, &sleeper, parked).await?;
    let gateway = &context.gateway;
    let Allowed { proof, permit } = allowed;
    if !gateway.identity.stands(&proof).await {
        return Err(Ended::Refused(revoked()));
    }
    let allowed = permit_again(gateway, request.exchange, proof, permit.target()).await;
    let allowed = allowed.map_err(unsent)?;
    let destination = gateway.resolution.resolve(&allowed.permit).await;
    let destination = destination.map_err(unsent)?;
    let (head, config) = (request.session.req_header(), &request.exchange.config);
    let admitted = Admitted::new(allowed, destination, head, config)?;
    Ok(Admitted {
        turn: Some(turn),
        ..admitted
    })
}

async fn wait(
    request: &mut Request<'_>,
    allowed: &Allowed,
    sleeper: &Sleeper,
    parked: Parked,
) -> Result<Turn, Ended> {
    let context = request.context;
    let deadline = Deadline::of(request, sleeper);
    let mut draining = std::pin::pin!(context.relay.drain.begins());
    let mut busy = None;
    let kind = CallKind::of(request.exchange.method);
    loop {
        let mut pause = LOOK_EVERY;
        if parked.is_next() {
            match look(&context.gateway, allowed, kind).await? {
                Look::Ready => return Ok(parked.take_turn()),
                Look::Busy(why, is_share) => {
                    if is_share {
                        parked.pass();
                    }
                    (busy, pause) = (Some(why), LOOK_FOR_SLOT_EVERY);
                }
                Look::Stopped(why) => {
                    parked.pass();
                    (busy, pause) = (Some(why), STOPPED_PAUSE);
                }
                Look::Asleep => {
                    busy = None;
                    wake(context, allowed.permit.target(), sleeper.times);
                }
            }
        }
        tokio::select! {
            biased;
            () = &mut draining => return Err(shutting_down().into()),
            () = parked.notified() => {}
            () = sleep_until(deadline.at) => {
                let busy = busy.filter(|_| !deadline.of_exchange);
                return Err(busy.unwrap_or_else(|| deadline.passed(sleeper)).into());
            }
            () = sleep(pause) => {}
            () = client_disconnected(request.session) => return Err(Ended::CallerLeft),
        }
    }
}

/// State of the agent of a parked call.
enum Look {
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
async fn look(gateway: &Gateway, allowed: &Allowed, kind: CallKind) -> Result<Look, Rejection> {
    let permit = &allowed.permit;
    if let Err(why) = gateway.stops.check(permit) {
        // It waits for the release, and keeps no other call back.
        return Ok(Look::Stopped(unsent(why)));
    }
    let why = match gateway.resolution.resolve(permit).await {
        Ok(Destination::Agent(agent)) => {
            let account = allowed.account();
            let mut refused = None;
            for slots in agent.places() {
                match slots.check(account, kind, &mut ()) {
                    Ok(()) => return Ok(Look::Ready),
                    Err(busy) => refused = Some((busy, slots.is_short_of_share(account))),
                }
            }
            return Ok(match refused {
                Some((busy, is_share)) => Look::Busy(unsent(busy), is_share),
                None => Look::Ready,
            });
        }
        Ok(Destination::Inbox(_)) => return Ok(Look::Ready),
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
        Ok(Look::Asleep)
    } else {
        Err(unsent(why))
    }
}

/// The time at which a call has waited for too long.
struct Deadline {
    at: Instant,
    /// True if it is the clock of the exchange.
    of_exchange: bool,
}

impl Deadline {
    fn of(request: &Request<'_>, sleeper: &Sleeper) -> Self {
        let exchange = &request.exchange;
        let timeouts = &exchange.config.timeouts;
        let clocks = Clocks::new(timeouts, exchange.started, sleeper.timeout, None);
        let exchange_ends = if exchange.method.streams() {
            clocks.stream
        } else {
            clocks.total
        };
        let waited = Instant::now() + sleeper.times.max_wait;
        Self {
            at: waited.min(exchange_ends),
            of_exchange: exchange_ends < waited,
        }
    }

    fn passed(&self, sleeper: &Sleeper) -> Rejection {
        if self.of_exchange {
            let message = "the agent was not awake in time (timeouts.total, or X-Timeout); the call was not sent";
            return Rejection::new(Reason::AgentTimeout, message)
                .fact("clock", "total")
                .delivered(Delivery::NotSent);
        }
        let (seconds, key) = (
            sleeper.times.max_wait.as_secs(),
            sleeper.times.max_wait_key(),
        );
        let message = format!(
            "the waker of the workspace was called, and its agent did not register within {seconds} s ({key}); try again \
             shortly. The audit has the waker's answer (WORKSPACE_WAKE)"
        );
        Rejection::new(Reason::WorkspaceRestarting, message)
            .retry_after(RETRY_AFTER)
            .delivered(Delivery::NotSent)
    }
}

fn unsent(why: Rejection) -> Rejection {
    let delivered = why.delivered.unwrap_or(Delivery::NotSent);
    why.delivered(delivered)
}

fn shutting_down() -> Rejection {
    let message = "this process is shutting down while the call waits for its agent; connect again to reach another one";
    Rejection::new(Reason::ShuttingDown, message)
        .retry_after(Duration::from_secs(1))
        .delivered(Delivery::NotSent)
}

fn revoked() -> Rejection {
    let message = "the credential of this call was revoked while the call waited for its agent; send a live one";
    Rejection::new(Reason::Unauthenticated, message).delivered(Delivery::NotSent)
}
