//! Reaches the agent of a call: takes a slot at it, waits for one or for the agent itself, and connects, at another
//! instance of it if need be. Nothing of the call is sent before.

use std::sync::Arc;

use pingora::upstreams::peer::HttpPeer;
use tokio::time::{Duration, Instant, sleep_until};

use crate::admission::{AdmittedCall, AllowedCaller};
use crate::complete::{CheckedCall, prefers_async};
use crate::listener::client_disconnected;
use crate::policy::{authorize_target, recheck_caller};
use crate::record::{ExchangeError, box_cold_path, outcome_of_rejection};
use crate::services::{Context, Request};
use crate::upstream::{AgentConnection, CancelWatch, ConnectFailure};
use crate::upstream_request::{PreparedRequest, prepare_request, resolve_peer};
use directory::{
    Agent, CallKind, CallOutcome, Destination, LookupFor, OwnTimeouts, Preference, Slot,
    choose_instance,
};
use kernel::ids::InstanceId;
use kernel::metrics::HoldOutcome;
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::shares::Account;
use kernel::stage::Stage;

/// Interval of looks for a place at an agent by a call that was parked.
pub(super) const LOOK_FOR_SLOT_EVERY: Duration = Duration::from_millis(50);
/// Maximum instances that a call tries to connect to before it waits for one of them.
const INSTANCES_TRIED_MAX: usize = 3;
/// `Retry-After` for a call to an agent that polls by now.
const REDIRECTED_AFTER: Duration = Duration::from_secs(1);

/// Takes a slot at the agent, and connects to it.
///
/// # Errors
/// `agent_busy` if there is no slot; as [`Dialer::reconnect`].
pub(super) async fn reach_agent(
    request: &mut Request<'_>,
    (admitted, agent): (&AdmittedCall, Arc<Agent>),
    call: &mut CheckedCall,
    (prepared, deadline): (PreparedRequest, Instant),
) -> Result<(Slot, ConnectedAgent), ExchangeError> {
    let mut dialer = Dialer {
        request,
        call,
        prepared,
        admitted,
        agent,
        asker: LookupFor::for_call(admitted.allowed.account()),
        deadline,
    };
    let mut slot = match admitted.turn {
        None => match dialer.take_slot().await {
            Ok(slot) => slot,
            Err(why) => box_cold_path(dialer.take_other_slot(why)).await?,
        },
        Some(_) => box_cold_path(dialer.await_slot()).await?,
    };
    slot.set_own_timeouts(dialer.measure_patience());
    let began = Instant::now();
    let (peer, connection) = match dialer.connect().await? {
        Ok(connected) => connected,
        Err(failed) => box_cold_path(dialer.reconnect(failed, &mut slot, began)).await?,
    };
    let prepared = dialer.prepared;
    let reached = ConnectedAgent {
        peer,
        connection,
        prepared,
    };
    Ok((slot, reached))
}

/// Least part of `timeouts.total` that is left to the agent of a call whose total time tells something of it.
const TIME_LEFT_MIN: f64 = 0.9;

/// An agent that a call has reached.
pub(super) struct ConnectedAgent {
    pub(super) peer: Box<HttpPeer>,
    pub(super) connection: AgentConnection,
    pub(super) prepared: PreparedRequest,
}

/// Connection to an agent, on which nothing was sent.
type Connected = (Box<HttpPeer>, AgentConnection);

/// Dialer of the agent of one call. Nothing is sent before it is reached.
struct Dialer<'a, 'r> {
    request: &'a mut Request<'r>,
    call: &'a mut CheckedCall,
    /// The request for the place at which the agent is.
    prepared: PreparedRequest,
    admitted: &'a AdmittedCall,
    agent: Arc<Agent>,
    asker: LookupFor,
    deadline: Instant,
}

/// Tries to connect to an agent once, until `deadline`.
async fn dial(
    context: &Context,
    (agent, asker): (&Agent, LookupFor),
    call: &CheckedCall,
    (connect, deadline): (Duration, Instant),
) -> Result<Connected, ConnectFailure> {
    let found = resolve_peer(context, agent, call, asker, connect).await;
    let peer = found.at(Stage::Address).map_err(|why| ConnectFailure {
        // A name that has no address now: its container is started again.
        is_away: why.reason == Reason::AgentUnreachable,
        is_refused: false,
        why,
    })?;
    let connected = context.relay.upstream.connect_by(&peer, deadline).await;
    let connected = connected.map_err(|failed| ConnectFailure {
        why: failed.why.at(Stage::Connect),
        ..failed
    });
    Ok((peer, connected?))
}

impl Dialer<'_, '_> {
    /// Takes a slot at the agent. Without a free one the call waits, as `limits.target_queue` allows, unless its caller
    /// prefers to be answered later.
    ///
    /// # Errors
    /// `agent_busy`; the caller left; `shutting_down`; after a wait as [`recheck_caller`].
    async fn take_slot(&mut self) -> Result<Slot, ExchangeError> {
        let (agent, account) = (&self.agent, self.asker.account);
        let request = &mut *self.request;
        let kind = CallKind::from_method(request.exchange.call.method);
        let refused = match agent.slots.take(account, kind) {
            Ok(slot) => return Ok(slot),
            Err(refused) => refused,
        };
        if prefers_async(&request.head().headers) {
            return Err(refused.why.at(Stage::Slots).into());
        }
        let mut cut = request.context.relay.watch_exchange(request.exchange);
        let slot = tokio::select! {
            biased;
            slot = box_cold_path(agent.slots.wait(refused, account, kind, self.deadline)) => {
                slot.at(Stage::Slots)?
            }
            () = client_disconnected(request.session) => return Err(ExchangeError::CallerLeft),
            why = cut.cancelled(Delivery::NotSent) => return Err(why.into()),
        };
        // Its credential may have ended meanwhile, and its target moved.
        let checked = box_cold_path(recheck_caller(request)).await;
        checked.map_err(|why| why.with_delivery(Delivery::NotSent))?;
        Ok(slot)
    }

    /// Returns which clocks of a call that is sent now are the gateway's own. Of its total time others may have taken a
    /// part: a slow caller, a queue.
    fn measure_patience(&self) -> OwnTimeouts {
        let timeouts = &self.request.exchange.call.config.timeouts;
        let asked = self.admitted.timeout;
        let asks_for = |own: Duration| asked.is_none_or(|asked| asked >= own);
        let left = self.deadline.saturating_duration_since(Instant::now());
        OwnTimeouts {
            head: asks_for(timeouts.head),
            total: asks_for(timeouts.total) && left >= timeouts.total.mul_f64(TIME_LEFT_MIN),
        }
    }

    /// Connects to the agent. The inner error can be met by another attempt, at another place of the agent or later.
    ///
    /// # Errors
    /// `stopped`, `shutting_down`.
    async fn connect(&mut self) -> Result<Result<Connected, ConnectFailure>, Rejection> {
        let request = &mut *self.request;
        request.exchange.record.start_call_span();
        let mut cut = request.context.relay.watch_exchange(request.exchange);
        let clocks = (request.exchange.call.config.timeouts.connect, self.deadline);
        let agent = (&*self.agent, self.asker);
        tokio::select! {
            biased;
            tried = dial(request.context, agent, self.call, clocks) => Ok(tried),
            why = cut.cancelled(Delivery::NotSent) => Err(why),
        }
    }

    /// Waits until `next`, or for what ends the call before.
    async fn wait_until(
        &mut self,
        next: Instant,
        cut: &mut CancelWatch,
    ) -> Result<(), ExchangeError> {
        tokio::select! {
            biased;
            () = sleep_until(next) => Ok(()),
            () = client_disconnected(self.request.session) => Err(ExchangeError::CallerLeft),
            why = cut.cancelled(Delivery::NotSent) => Err(why.into()),
        }
    }

    /// Takes a slot at another instance, with a request for that one, if the breaker of the chosen one has opened
    /// since.
    ///
    /// # Errors
    /// `why`, if no other instance takes the call.
    async fn take_other_slot(&mut self, why: ExchangeError) -> Result<Slot, ExchangeError> {
        if let (ExchangeError::Refused(_), Some(instance)) = (&why, self.agent.instance.clone())
            && !self.agent.slots.is_available(self.asker.account)
            && let Some(slot) = self.find_other_instance(&mut vec![instance]).await?
        {
            return Ok(slot);
        }
        Err(why)
    }

    /// Takes a slot for a call that was parked. A place that it found free may be taken by now: it waits for the next
    /// one.
    ///
    /// # Errors
    /// As [`Dialer::take_slot`].
    async fn await_slot(&mut self) -> Result<Slot, ExchangeError> {
        loop {
            let next = Instant::now() + LOOK_FOR_SLOT_EVERY;
            let taken = match self.take_slot().await {
                Err(why) => self.take_other_slot(why).await,
                taken => taken,
            };
            match taken {
                Err(ExchangeError::Refused(busy))
                    if busy.reason == Reason::AgentBusy && next < self.deadline =>
                {
                    let relay = &self.request.context.relay;
                    let mut cut = relay.watch_exchange(self.request.exchange);
                    self.wait_until(next, &mut cut).await?;
                }
                taken => return taken,
            }
        }
    }

    /// Connects to another instance of the agent, or to the agent once it is back.
    ///
    /// # Errors
    /// `address_forbidden`, `agent_unreachable`, `agent_timeout`, `store_unavailable`; the caller left;
    /// `shutting_down`.
    async fn reconnect(
        &mut self,
        mut failed: ConnectFailure,
        slot: &mut Slot,
        began: Instant,
    ) -> Result<Connected, ExchangeError> {
        let mut tried = Vec::new();
        while failed.is_away
            && let Some(instance) = self.agent.instance.clone()
        {
            slot.record_dial(false);
            tried.push(instance);
            let found = self.find_other_instance(&mut tried).await;
            if !matches!(found, Ok(None)) {
                record_failure(slot, &failed.why, failed.is_refused);
            }
            let Some(other) = found? else { break };
            *slot = other;
            let config = &self.request.exchange.call.config;
            let clocks = (config.timeouts.connect, self.deadline);
            let agent = (&*self.agent, self.asker);
            match dial(self.request.context, agent, self.call, clocks).await {
                Ok(connected) => return Ok(connected),
                Err(again) => failed = again,
            }
        }
        let is_refused = failed.is_refused;
        let hold = self.request.exchange.call.config.upstream.hold;
        // Its caller did not wait for as long as the gateway would.
        let hasty = self.admitted.timeout.is_some() && self.deadline < began + hold;
        let reached = if failed.is_away {
            slot.record_dial(false);
            self.wait_for_agent(failed.why, slot, began).await
        } else {
            Err(failed.why.into())
        };
        if let Err(ExchangeError::Refused(why)) = &reached
            && !hasty
        {
            record_failure(slot, why, is_refused);
        }
        reached
    }

    /// Takes a slot at an instance that is not among `tried`, and makes the request for it. `None` if none takes the
    /// call. Adds those that refuse it to `tried`.
    async fn find_other_instance(
        &mut self,
        tried: &mut Vec<InstanceId>,
    ) -> Result<Option<Slot>, ExchangeError> {
        if !self.call.reset_for_retry() {
            return Ok(None);
        }
        while tried.len() < INSTANCES_TRIED_MAX
            && let AgentLocation::Moved(other) = self.locate_agent(tried).await?
        {
            if let Ok(slot) = self.take_slot_at(&other) {
                self.move_to(other).await?;
                return Ok(Some(slot));
            }
            // Without instances by now there is one place, and it takes no call.
            let Some(other) = other.instance.clone() else {
                return Ok(None);
            };
            tried.push(other);
        }
        Ok(None)
    }

    fn take_slot_at(&self, agent: &Agent) -> Result<Slot, Rejection> {
        let kind = CallKind::from_method(self.request.exchange.call.method);
        let slot = agent.slots.take(self.asker.account, kind);
        let mut slot = slot.map_err(Rejection::from).at(Stage::Slots)?;
        slot.set_own_timeouts(self.measure_patience());
        Ok(slot)
    }

    /// Makes the request for another place of the agent.
    async fn move_to(&mut self, agent: Arc<Agent>) -> Result<(), ExchangeError> {
        self.agent = agent;
        let instance = &self.agent.instance;
        self.request.exchange.record.instance = instance.clone();
        if let (Some(learner), Some(instance)) = (&mut self.call.learner, instance) {
            learner.set_instance(instance);
        }
        let prepared = prepare_request(self.request, self.admitted, &self.agent, self.call);
        self.prepared = prepared.await?;
        Ok(())
    }

    /// Waits for an agent that refuses connections.
    async fn wait_for_agent(
        &mut self,
        mut why: Rejection,
        slot: &mut Slot,
        began: Instant,
    ) -> Result<Connected, ExchangeError> {
        let context = self.request.context;
        let config = Arc::clone(&self.request.exchange.call.config);
        let until = self.deadline.min(began + config.upstream.hold);
        if until <= Instant::now() {
            return Err(why.into());
        }
        let capacity = &context.gateway.metrics.capacity;
        let (account, bytes) = (self.asker.account, self.call.body.len());
        let held = context.held.take_room(account, bytes, &config, capacity);
        let Some(held) = held else {
            return Err(why.into());
        };
        // A stop does not end it: it waits until the stop is released.
        let mut cut = CancelWatch::for_drain(&context.relay.drain);
        loop {
            let next = slot.take_redial().err();
            if next.is_some_and(|next| next >= until) || Instant::now() >= until {
                let left = until == self.deadline;
                held.end(if left {
                    HoldOutcome::Left
                } else {
                    HoldOutcome::TimedOut
                });
                return Err(why.into());
            }
            if let Some(next) = next {
                self.wait_until(next, &mut cut).await?;
                continue;
            }
            if let Err(now) = self.find_place(slot).await? {
                why = now;
                slot.record_dial(false);
                continue;
            }
            let (agent, clocks) = ((&*self.agent, self.asker), (config.timeouts.connect, until));
            let tried = tokio::select! {
                biased;
                tried = dial(context, agent, self.call, clocks) => tried,
                () = client_disconnected(self.request.session) => {
                    return Err(ExchangeError::CallerLeft);
                }
                why = cut.cancelled(Delivery::NotSent) => return Err(why.into()),
            };
            match tried {
                Ok(connected) => {
                    slot.record_dial(true);
                    held.end(HoldOutcome::Connected);
                    return Ok(connected);
                }
                Err(failed) if failed.is_away => why = failed.why,
                Err(_) if Instant::now() >= until => {}
                Err(failed) => return Err(failed.why.into()),
            }
            slot.record_dial(false);
        }
    }

    /// Takes a slot at another instance if the agent is one, and makes the request for it.
    async fn move_with_slot(
        &mut self,
        slot: &mut Slot,
        agent: Arc<Agent>,
    ) -> Result<Result<(), Rejection>, ExchangeError> {
        if agent.instance != self.agent.instance {
            match self.take_slot_at(&agent) {
                Ok(place) => *slot = place,
                Err(busy) => return Ok(Err(busy)),
            }
        }
        self.move_to(agent).await.map(Ok)
    }

    /// Finds the next place to connect to: another instance of the agent that takes the call, or else the same one, and
    /// makes the request for it.
    async fn find_place(
        &mut self,
        slot: &mut Slot,
    ) -> Result<Result<(), Rejection>, ExchangeError> {
        let mut passed_over: Vec<InstanceId> = self.agent.instance.iter().cloned().collect();
        for _ in 0..INSTANCES_TRIED_MAX {
            let agent = match self.locate_agent(&passed_over).await? {
                AgentLocation::Same => return Ok(Ok(())),
                AgentLocation::Moved(agent) => agent,
                AgentLocation::Away(why) if passed_over.is_empty() => return Ok(Err(why)),
                AgentLocation::Away(_) => break,
            };
            if !self.call.reset_for_retry() {
                break;
            }
            let instance = agent.instance.clone();
            match self.move_with_slot(slot, agent).await? {
                Ok(()) => return Ok(Ok(())),
                Err(busy) if instance.is_none() => return Ok(Err(busy)),
                Err(_) => passed_over.extend(instance),
            }
        }
        // No other one takes the call: the same one again, as long as it is there.
        passed_over.retain(|one| Some(one) != self.agent.instance.as_ref());
        match self.locate_agent(&passed_over).await? {
            AgentLocation::Same => Ok(Ok(())),
            AgentLocation::Away(why) => Ok(Err(why)),
            AgentLocation::Moved(agent) => self.move_with_slot(slot, agent).await,
        }
    }

    /// Looks where the agent is now, and whether the caller may still reach it. What was at its address may be another
    /// workspace's by now. `tried`: instances that are passed over.
    ///
    /// # Errors
    /// The reason why the call can no longer be sent.
    async fn locate_agent(&mut self, tried: &[InstanceId]) -> Result<AgentLocation, ExchangeError> {
        let mark_not_sent = |why: Rejection| why.with_delivery(Delivery::NotSent);
        let request = &mut *self.request;
        let gateway = &request.context.gateway;
        let AllowedCaller { proof, permit } = &self.admitted.allowed;
        let proof = Arc::clone(proof);
        let allowed = authorize_target(gateway, request.exchange, proof, permit.target()).await;
        let allowed = match allowed.map_err(mark_not_sent) {
            Ok(allowed) => allowed,
            Err(why) if why.reason == Reason::Stopped => return Ok(AgentLocation::Away(why)),
            Err(why) => return Err(why.into()),
        };
        match gateway.resolution.resolve(&allowed.permit).await {
            Ok(Destination::Agent(agent)) => {
                let preference = self.admitted.preference.as_deref();
                let agent = match choose_place(&agent, self.asker.account, preference, tried) {
                    Ok(agent) => agent,
                    Err(why) => return Ok(AgentLocation::Away(why)),
                };
                let is_other = agent.instance != self.agent.instance;
                Ok(
                    if is_other || agent.endpoint.url() != self.agent.endpoint.url() {
                        AgentLocation::Moved(agent)
                    } else {
                        AgentLocation::Same
                    },
                )
            }
            Ok(Destination::Inbox(_)) => {
                let message = "the agent polls its messages now; send the call again";
                let why = Rejection::new(Reason::WorkspaceRestarting, message).at(Stage::State);
                Err(mark_not_sent(why).with_retry_after(REDIRECTED_AFTER).into())
            }
            Err(why) => match why.reason {
                Reason::WorkspaceOffline
                | Reason::WorkspaceRestarting
                | Reason::StoreUnavailable => Ok(AgentLocation::Away(mark_not_sent(why))),
                _ => Err(mark_not_sent(why).into()),
            },
        }
    }
}

/// Returns the agent, or the instance of it that gets the call.
fn choose_place(
    agent: &Arc<Agent>,
    account: Account,
    preference: Option<&Preference>,
    tried: &[InstanceId],
) -> Result<Arc<Agent>, Rejection> {
    if agent.instances.is_empty() {
        return Ok(Arc::clone(agent));
    }
    let unbound = Preference::default();
    let preference = preference.unwrap_or(&unbound);
    let chosen = choose_instance(&agent.instances, account, preference, tried);
    let chosen = chosen.at(Stage::Instance)?;
    Ok(Arc::clone(chosen.0))
}

/// Notes that the agent could not be reached.
fn record_failure(slot: &mut Slot, why: &Rejection, is_refused: bool) {
    slot.finish_unless(|patience| {
        let outcome = outcome_of_rejection(why, patience)?;
        let overload = is_refused && why.reason == Reason::AgentUnreachable;
        Some(CallOutcome {
            overload,
            ..outcome
        })
    });
}

/// Location of the agent of a call that waits.
enum AgentLocation {
    /// Where it was.
    Same,
    /// It has registered elsewhere.
    Moved(Arc<Agent>),
    /// It is offline, or it is not known where it is. It may come back.
    Away(Rejection),
}
