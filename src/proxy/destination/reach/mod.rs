//! Reaches the agent of a call: waits for a place at it and, while it refuses connections, for the agent itself.
//! Nothing is sent before it is reached.

mod later;

use std::sync::Arc;

use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::HttpPeer;
use tokio::time::{Duration, Instant, sleep_until};

use super::{Prepared, prepare};
use crate::config::Timeouts;
use crate::directory::{Agent, CallKind, LookupFor, Patience, Slot};
use crate::proxy::admit::Admitted;
use crate::proxy::context::Context;
use crate::proxy::outcome::{Ended, rare};
use crate::proxy::relay::Cut;
use crate::proxy::relay::forward::peer;
use crate::proxy::relay::upstream::{Connection, NotConnected};
use crate::proxy::request::body::check_again;
use crate::proxy::request::checked::CheckedCall;
use crate::proxy::request::{Request, prefer};
use crate::proxy::respond::client_disconnected;
use crate::rejection::{Delivery, Reason};
use crate::shares::Account;

/// Interval of looks for a place at an agent by a call that was parked.
const LOOK_FOR_SLOT_EVERY: Duration = Duration::from_millis(50);
/// Least part of `timeouts.total` that is left to the agent of a call whose total time tells something of it.
const TIME_LEFT_MIN: f64 = 0.9;

/// An agent that a call has reached.
pub(super) struct Reached {
    pub(super) peer: Box<HttpPeer>,
    pub(super) connection: Connection,
    pub(super) prepared: Prepared,
}

/// Takes a slot at the agent, and connects to it.
///
/// # Errors
/// `agent_busy` if there is no slot; as [`Way::connect`].
pub(super) async fn reach(
    request: &mut Request<'_>,
    (admitted, agent): (&Admitted, Arc<Agent>),
    call: &mut CheckedCall,
    (mut prepared, deadline): (Prepared, Instant),
) -> Result<(Slot, Reached), Ended> {
    let asker = LookupFor::calling(admitted.allowed.account());
    let mut way = Way {
        admitted,
        agent,
        asker,
        deadline,
    };
    let mut slot = match admitted.turn {
        None => way.take_slot(request, call, &mut prepared).await?,
        Some(_) => rare(way.await_slot(request, call, &mut prepared)).await?,
    };
    slot.set_patience(patience(
        &request.exchange.config.timeouts,
        admitted,
        deadline,
    ));
    let reached = way.connect(request, call, prepared, &mut slot).await?;
    Ok((slot, reached))
}

/// Takes a slot at the agent. Without a free one the call waits, as `limits.target_queue` allows, unless its caller
/// prefers to be answered later.
///
/// # Errors
/// `agent_busy`; the caller left; `shutting_down`; after a wait as [`check_again`].
async fn take_slot(
    request: &mut Request<'_>,
    agent: &Agent,
    account: Account,
    deadline: Instant,
) -> Result<Slot, Ended> {
    let kind = CallKind::of(request.exchange.method);
    let refused = match agent.slots.take(account, kind) {
        Ok(slot) => return Ok(slot),
        Err(refused) => refused,
    };
    if prefer::respond_async(&request.head().headers) {
        return Err(refused.why.into());
    }
    let mut cut = request.context.relay.watch(request.exchange);
    let slot = tokio::select! {
        biased;
        slot = rare(agent.slots.wait(refused, account, kind, deadline)) => slot?,
        () = client_disconnected(request.session) => return Err(Ended::CallerLeft),
        why = cut.requested(Delivery::NotSent) => return Err(why.into()),
    };
    // Its credential may have ended meanwhile, and its target moved.
    let checked = rare(check_again(request)).await;
    checked.map_err(|why| why.delivered(Delivery::NotSent))?;
    Ok(slot)
}

/// Returns which clocks of a call that is sent now are the gateway's own. Of its total time others may have taken a part:
/// a slow caller, a queue.
fn patience(timeouts: &Timeouts, admitted: &Admitted, deadline: Instant) -> Patience {
    let asks_for = |own: Duration| admitted.timeout.is_none_or(|asked| asked >= own);
    let left = deadline.saturating_duration_since(Instant::now());
    Patience {
        head: asks_for(timeouts.head),
        total: asks_for(timeouts.total) && left >= timeouts.total.mul_f64(TIME_LEFT_MIN),
    }
}

/// The way to an agent, for one call.
struct Way<'a> {
    admitted: &'a Admitted,
    agent: Arc<Agent>,
    asker: LookupFor,
    deadline: Instant,
}

impl Way<'_> {
    /// Takes a slot at the agent: at another instance, with a request for that one, if the breaker of the chosen one has
    /// opened since.
    ///
    /// # Errors
    /// As [`take_slot`].
    async fn take_slot(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        prepared: &mut Prepared,
    ) -> Result<Slot, Ended> {
        let account = self.asker.account;
        let why = match take_slot(request, &self.agent, account, self.deadline).await {
            Ok(slot) => return Ok(slot),
            Err(why) => why,
        };
        if let (Ended::Refused(_), Some(instance)) = (&why, self.agent.instance.clone())
            && !self.agent.slots.is_available(account)
            && let Some((slot, other)) =
                rare(self.find_other(request, call, &mut vec![instance])).await?
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
        prepared: &mut Prepared,
    ) -> Result<Slot, Ended> {
        loop {
            let next = Instant::now() + LOOK_FOR_SLOT_EVERY;
            match self.take_slot(request, call, prepared).await {
                Err(Ended::Refused(busy))
                    if busy.reason == Reason::AgentBusy && next < self.deadline =>
                {
                    let mut cut = request.context.relay.watch(request.exchange);
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
        prepared: Prepared,
        slot: &mut Slot,
    ) -> Result<Reached, Ended> {
        let began = Instant::now();
        let context = request.context;
        request.exchange.calls();
        let mut cut = context.relay.watch(request.exchange);
        let tried = tokio::select! {
            biased;
            tried = self.dial(context, request.exchange.config.timeouts.connect, call, self.deadline) => tried,
            why = cut.requested(Delivery::NotSent) => return Err(why.into()),
        };
        let failed = match tried {
            Ok((peer, connection)) => {
                return Ok(Reached {
                    peer,
                    connection,
                    prepared,
                });
            }
            Err(failed) => failed,
        };
        rare(self.connect_later(request, call, (prepared, failed), slot, began)).await
    }

    /// Tries to connect once, until `deadline`.
    async fn dial(
        &self,
        context: &Context,
        connect: Duration,
        call: &CheckedCall,
        deadline: Instant,
    ) -> Result<(Box<HttpPeer>, Connection), NotConnected> {
        let found = peer(
            context,
            &self.agent,
            call.path.as_deref(),
            self.asker,
            connect,
        )
        .await;
        let peer = found.map_err(|why| NotConnected {
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
async fn wait_until(caller: &mut ServerSession, next: Instant, cut: &mut Cut) -> Result<(), Ended> {
    tokio::select! {
        biased;
        () = sleep_until(next) => Ok(()),
        () = client_disconnected(caller) => Err(Ended::CallerLeft),
        why = cut.requested(Delivery::NotSent) => Err(why.into()),
    }
}
