//! Reaches the agent of a call: waits for a place at it and, while it refuses connections, for the agent itself.
//! Nothing is sent before it is reached.

mod reconnect;

use std::sync::Arc;

use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::HttpPeer;
use tokio::time::{Duration, Instant, sleep_until};

use super::{PreparedRequest, prepare_request};
use crate::config::Timeouts;
use crate::directory::{Agent, CallKind, LookupFor, OwnTimeouts, Slot};
use crate::proxy::admit::AdmittedCall;
use crate::proxy::context::Context;
use crate::proxy::outcome::{ExchangeOutcome, box_cold_path};
use crate::proxy::relay::CancelWatch;
use crate::proxy::relay::forward::resolve_peer;
use crate::proxy::relay::upstream::{AgentConnection, ConnectFailure};
use crate::proxy::request::body::recheck_caller;
use crate::proxy::request::checked_call::CheckedCall;
use crate::proxy::request::{Request, prefer};
use crate::proxy::respond::client_disconnected;
use crate::rejection::{Delivery, Reason};
use crate::shares::Account;

/// Interval of looks for a place at an agent by a call that was parked.
const LOOK_FOR_SLOT_EVERY: Duration = Duration::from_millis(50);
/// Least part of `timeouts.total` that is left to the agent of a call whose total time tells something of it.
const TIME_LEFT_MIN: f64 = 0.9;

/// An agent that a call has reached.
pub(super) struct ConnectedAgent {
    pub(super) peer: Box<HttpPeer>,
    pub(super) connection: AgentConnection,
    pub(super) prepared: PreparedRequest,
}

/// Takes a slot at the agent, and connects to it.
///
/// # Errors
/// `agent_busy` if there is no slot; as [`Dialer::connect`].
pub(super) async fn reach_agent(
    request: &mut Request<'_>,
    (admitted, agent): (&AdmittedCall, Arc<Agent>),
    call: &mut CheckedCall,
    (mut prepared, deadline): (PreparedRequest, Instant),
) -> Result<(Slot, ConnectedAgent), ExchangeOutcome> {
    let asker = LookupFor::for_call(admitted.allowed.account());
    let mut dialer = Dialer {
        admitted,
        agent,
        asker,
        deadline,
    };
    let mut slot = match admitted.turn {
        None => dialer.take_slot(request, call, &mut prepared).await?,
        Some(_) => box_cold_path(dialer.await_slot(request, call, &mut prepared)).await?,
    };
    slot.set_own_timeouts(measure_patience(
        &request.exchange.config.timeouts,
        admitted,
        deadline,
    ));
    let reached = dialer.connect(request, call, prepared, &mut slot).await?;
    Ok((slot, reached))
}

/// Takes a slot at the agent. Without a free one the call waits, as `limits.target_queue` allows, unless its caller
/// prefers to be answered later.
///
/// # Errors
/// `agent_busy`; the caller left; `shutting_down`; after a wait as [`recheck_caller`].
async fn take_slot(
    request: &mut Request<'_>,
    agent: &Agent,
    account: Account,
    deadline: Instant,
) -> Result<Slot, ExchangeOutcome> {
    let kind = CallKind::from_method(request.exchange.method);
    let refused = match agent.slots.take(account, kind) {
        Ok(slot) => return Ok(slot),
        Err(refused) => refused,
    };
    if prefer::prefers_async(&request.head().headers) {
        return Err(refused.why.into());
    }
    let mut cut = request.context.relay.watch_exchange(request.exchange);
    let slot = tokio::select! {
        biased;
        slot = box_cold_path(agent.slots.wait(refused, account, kind, deadline)) => slot?,
        () = client_disconnected(request.session) => return Err(ExchangeOutcome::CallerLeft),
        why = cut.cancelled(Delivery::NotSent) => return Err(why.into()),
    };
    // Its credential may have ended meanwhile, and its target moved.
    let checked = box_cold_path(recheck_caller(request)).await;
    checked.map_err(|why| why.with_delivery(Delivery::NotSent))?;
    Ok(slot)
}

/// Returns which clocks of a call that is sent now are the gateway's own. Of its total time others may have taken a part:
/// a slow caller, a queue.
fn measure_patience(
    timeouts: &Timeouts,
    admitted: &AdmittedCall,
    deadline: Instant,
) -> OwnTimeouts {
    let asks_for = |own: Duration| admitted.timeout.is_none_or(|asked| asked >= own);
    let left = deadline.saturating_duration_since(Instant::now());
    OwnTimeouts {
        head: asks_for(timeouts.head),
        total: asks_for(timeouts.total) && left >= timeouts.total.mul_f64(TIME_LEFT_MIN),
    }
}

/// Dialer of the agent of one call.
struct Dialer<'a> {
    admitted: &'a AdmittedCall,
    agent: Arc<Agent>,
    asker: LookupFor,
    deadline: Instant,
}

impl Dialer<'_> {
    /// Takes a slot at the agent: at another instance, with a request for that one, if the breaker of the chosen one has
    /// opened since.
    ///
    /// # Errors
    /// As [`take_slot`].
    async fn take_slot(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        prepared: &mut PreparedRequest,
    ) -> Result<Slot, ExchangeOutcome> {
        let account = self.asker.account;
        let why = match take_slot(request, &self.agent, account, self.deadline).await {
            Ok(slot) => return Ok(slot),
            Err(why) => why,
        };
        if let (ExchangeOutcome::Refused(_), Some(instance)) = (&why, self.agent.instance.clone())
            && !self.agent.slots.is_available(account)
            && let Some((slot, other)) =
                box_cold_path(self.find_other_instance(request, call, &mut vec![instance])).await?
        {
            *prepared = other;
            return Ok(slot);
        }
        Err(why)
    }

    /// Takes a slot for a call that was parked. A place that it found free may be taken by now: it waits for the next one.
    ///
    /// # Errors
    /// As [`take_slot`].
    async fn await_slot(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        prepared: &mut PreparedRequest,
    ) -> Result<Slot, ExchangeOutcome> {
        loop {
            let next = Instant::now() + LOOK_FOR_SLOT_EVERY;
            match self.take_slot(request, call, prepared).await {
                Err(ExchangeOutcome::Refused(busy))
                    if busy.reason == Reason::AgentBusy && next < self.deadline =>
                {
                    let mut cut = request.context.relay.watch_exchange(request.exchange);
                    wait_until(request.session, next, &mut cut).await?;
                }
                taken => return taken,
            }
        }
    }

    /// Connects to the agent. While it refuses connections the call waits, as `upstream.hold` allows, and connects where
    /// its workspace is registered by then.
    ///
    /// # Errors
    /// `address_forbidden`, `agent_unreachable`, `agent_timeout`, `store_unavailable`; the caller left;
    /// `shutting_down`.
    async fn connect(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        prepared: PreparedRequest,
        slot: &mut Slot,
    ) -> Result<ConnectedAgent, ExchangeOutcome> {
        let began = Instant::now();
        let context = request.context;
        request.exchange.record_call_sent();
        let mut cut = context.relay.watch_exchange(request.exchange);
        let tried = tokio::select! {
            biased;
            tried = self.dial(context, request.exchange.config.timeouts.connect, call, self.deadline) => tried,
            why = cut.cancelled(Delivery::NotSent) => return Err(why.into()),
        };
        let failed = match tried {
            Ok((peer, connection)) => {
                return Ok(ConnectedAgent {
                    peer,
                    connection,
                    prepared,
                });
            }
            Err(failed) => failed,
        };
        box_cold_path(self.reconnect(request, call, (prepared, failed), slot, began)).await
    }

    /// Tries to connect once, until `deadline`.
    async fn dial(
        &self,
        context: &Context,
        connect: Duration,
        call: &CheckedCall,
        deadline: Instant,
    ) -> Result<(Box<HttpPeer>, AgentConnection), ConnectFailure> {
        let found = resolve_peer(
            context,
            &self.agent,
            call.path.as_deref(),
            self.asker,
            connect,
        )
        .await;
        let peer = found.map_err(|why| ConnectFailure {
            // A name that has no address now: its container is started again.
            is_away: why.reason == Reason::AgentUnreachable,
            is_refused: false,
            why,
        })?;
        let connected = context.relay.upstream.connect_by(&peer, deadline).await;
        Ok((peer, connected?))
    }
}

/// Waits until `next`, or for what ends the call before.
async fn wait_until(
    caller: &mut ServerSession,
    next: Instant,
    cut: &mut CancelWatch,
) -> Result<(), ExchangeOutcome> {
    tokio::select! {
        biased;
        () = sleep_until(next) => Ok(()),
        () = client_disconnected(caller) => Err(ExchangeOutcome::CallerLeft),
        why = cut.cancelled(Delivery::NotSent) => Err(why.into()),
    }
}
