//! Reaches an agent that has no place for the call or refused the connection: another instance of it, or the agent once it
//! is back. Nothing of the call was sent.

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use crate::directory::{
    Agent, CallKind, CallOutcome, Destination, Preference, Slot, choose_instance,
};
use crate::ids::InstanceId;
use crate::metrics::HoldOutcome;
use crate::proxy::admission::AllowedCaller;
use crate::proxy::complete::CheckedCall;
use crate::proxy::listener::client_disconnected;
use crate::proxy::policy::authorize_target;
use crate::proxy::record::{ExchangeError, outcome_of_rejection};
use crate::proxy::services::Request;
use crate::proxy::upstream::{CancelWatch, ConnectFailure};
use crate::proxy::upstream_request::{
    ConnectedAgent, Dialer, PreparedRequest, measure_patience, prepare_request, wait_until,
};
use crate::rejection::{AtStage as _, Delivery, Reason, Rejection};
use crate::shares::Account;
use crate::stage::Stage;

/// Interval of looks for a place at an agent by a call that was parked.
pub(super) const LOOK_FOR_SLOT_EVERY: Duration = Duration::from_millis(50);
/// Maximum instances that a call tries to connect to before it waits for one of them.
const INSTANCES_TRIED_MAX: usize = 3;
/// `Retry-After` for a call to an agent that polls by now.
const REDIRECTED_AFTER: Duration = Duration::from_secs(1);

impl Dialer<'_> {
    /// Takes a slot at another instance, with a request for that one, if the breaker of the chosen one has opened since.
    ///
    /// # Errors
    /// `why`, if no other instance takes the call.
    pub(super) async fn take_other_slot(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        prepared: &mut PreparedRequest,
        why: ExchangeError,
    ) -> Result<Slot, ExchangeError> {
        if let (ExchangeError::Refused(_), Some(instance)) = (&why, self.agent.instance.clone())
            && !self.agent.slots.is_available(self.asker.account)
            && let Some((slot, other)) = self
                .find_other_instance(request, call, &mut vec![instance])
                .await?
        {
            *prepared = other;
            return Ok(slot);
        }
        Err(why)
    }

    /// Takes a slot for a call that was parked. A place that it found free may be taken by now: it waits for the next one.
    ///
    /// # Errors
    /// As [`Dialer::take_slot`].
    pub(super) async fn await_slot(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        prepared: &mut PreparedRequest,
    ) -> Result<Slot, ExchangeError> {
        loop {
            let next = Instant::now() + LOOK_FOR_SLOT_EVERY;
            let taken = match self.take_slot(request).await {
                Err(why) => self.take_other_slot(request, call, prepared, why).await,
                taken => taken,
            };
            match taken {
                Err(ExchangeError::Refused(busy))
                    if busy.reason == Reason::AgentBusy && next < self.deadline =>
                {
                    let mut cut = request.context.relay.watch_exchange(request.exchange);
                    wait_until(request.session, next, &mut cut).await?;
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
    pub(super) async fn reconnect(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        (mut prepared, mut failed): (PreparedRequest, ConnectFailure),
        slot: &mut Slot,
        began: Instant,
    ) -> Result<ConnectedAgent, ExchangeError> {
        let mut tried = Vec::new();
        while failed.is_away
            && let Some(other) = self
                .try_other_instance(request, call, slot, (&failed, &mut tried))
                .await?
        {
            prepared = other;
            let connect = request.exchange.call.config().timeouts.connect;
            match self
                .dial(request.context, connect, call, self.deadline)
                .await
            {
                Ok((peer, connection)) => {
                    return Ok(ConnectedAgent {
                        peer,
                        connection,
                        prepared,
                    });
                }
                Err(again) => failed = again,
            }
        }
        let is_refused = failed.is_refused;
        let hold = request.exchange.call.config().upstream.hold;
        // Its caller did not wait for as long as the gateway would.
        let hasty = self.admitted.timeout.is_some() && self.deadline < began + hold;
        let reached = if failed.is_away {
            slot.record_dial(false);
            self.wait_for_agent(request, call, (prepared, failed.why), slot, began)
                .await
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

    /// Takes a slot at another instance of the agent, and makes the request for it. `None` if there is none: the agent has
    /// no instances, or no other one takes the call. Nothing was sent.
    async fn try_other_instance(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        slot: &mut Slot,
        (failed, tried): (&ConnectFailure, &mut Vec<InstanceId>),
    ) -> Result<Option<PreparedRequest>, ExchangeError> {
        let Some(instance) = self.agent.instance.clone() else {
            return Ok(None);
        };
        slot.record_dial(false);
        tried.push(instance);
        let found = self.find_other_instance(request, call, tried).await;
        if !matches!(found, Ok(None)) {
            record_failure(slot, &failed.why, failed.is_refused);
        }
        Ok(found?.map(|(place, prepared)| {
            *slot = place;
            prepared
        }))
    }

    /// Takes a slot at an instance that is not among `tried`, and makes the request for it. `None` if none takes the call.
    /// Adds those that refuse it to `tried`.
    async fn find_other_instance(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        tried: &mut Vec<InstanceId>,
    ) -> Result<Option<(Slot, PreparedRequest)>, ExchangeError> {
        if !call.reset_for_retry() {
            return Ok(None);
        }
        while tried.len() < INSTANCES_TRIED_MAX
            && let AgentLocation::Moved(other) = self.locate_agent(request, tried).await?
        {
            if let Ok(place) = self.take_slot_at(request, &other) {
                let prepared = self.move_to(request, call, other).await?;
                return Ok(Some((place, prepared)));
            }
            // Without instances by now there is one place, and it takes no call.
            let Some(other) = other.instance.clone() else {
                return Ok(None);
            };
            tried.push(other);
        }
        Ok(None)
    }

    fn take_slot_at(&self, request: &Request<'_>, agent: &Agent) -> Result<Slot, Rejection> {
        let kind = CallKind::from_method(request.exchange.call.method());
        let slot = agent.slots.take(self.asker.account, kind);
        let mut slot = slot.map_err(Rejection::from).at(Stage::Slots)?;
        let timeouts = &request.exchange.call.config().timeouts;
        slot.set_own_timeouts(measure_patience(timeouts, self.admitted, self.deadline));
        Ok(slot)
    }

    /// Makes the request for another place of the agent.
    async fn move_to(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        agent: Arc<Agent>,
    ) -> Result<PreparedRequest, ExchangeError> {
        self.agent = agent;
        let exchange = &mut *request.exchange;
        exchange.record.set_instance(self.agent.instance.clone());
        if let (Some(learner), Some(instance)) = (&mut call.learner, &self.agent.instance) {
            learner.set_instance(instance);
        }
        prepare_request(request, self.admitted, &self.agent, call).await
    }

    /// Waits for an agent that refuses connections.
    async fn wait_for_agent(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        (mut prepared, mut why): (PreparedRequest, Rejection),
        slot: &mut Slot,
        began: Instant,
    ) -> Result<ConnectedAgent, ExchangeError> {
        let context = request.context;
        let config = Arc::clone(request.exchange.call.config());
        let upstream = &config.upstream;
        let until = self.deadline.min(began + upstream.hold);
        if until <= Instant::now() {
            return Err(why.into());
        }
        let capacity = &context.gateway.metrics.capacity;
        let account = self.asker.account;
        let held = context
            .held
            .take_room(account, call.body.len(), &config, capacity);
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
                wait_until(request.session, next, &mut cut).await?;
                continue;
            }
            match self.find_place(request, call, slot).await? {
                Ok(Some(again)) => prepared = again,
                Ok(None) => {}
                Err(now) => {
                    why = now;
                    slot.record_dial(false);
                    continue;
                }
            }
            let tried = tokio::select! {
                biased;
                tried = self.dial(context, config.timeouts.connect, call, until) => tried,
                () = client_disconnected(request.session) => return Err(ExchangeError::CallerLeft),
                why = cut.cancelled(Delivery::NotSent) => return Err(why.into()),
            };
            match tried {
                Ok((peer, connection)) => {
                    slot.record_dial(true);
                    held.end(HoldOutcome::Connected);
                    return Ok(ConnectedAgent {
                        peer,
                        connection,
                        prepared,
                    });
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
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        slot: &mut Slot,
        agent: Arc<Agent>,
    ) -> Result<Result<PreparedRequest, Rejection>, ExchangeError> {
        if agent.instance != self.agent.instance {
            match self.take_slot_at(request, &agent) {
                Ok(place) => *slot = place,
                Err(busy) => return Ok(Err(busy)),
            }
        }
        self.move_to(request, call, agent).await.map(Ok)
    }

    /// Finds the next place to connect to: another instance of the agent that takes the call, or else the same one. Returns
    /// the request for another place.
    async fn find_place(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        slot: &mut Slot,
    ) -> Result<Result<Option<PreparedRequest>, Rejection>, ExchangeError> {
        let mut passed_over: Vec<InstanceId> = self.agent.instance.iter().cloned().collect();
        for _ in 0..INSTANCES_TRIED_MAX {
            let agent = match self.locate_agent(request, &passed_over).await? {
                AgentLocation::Same => return Ok(Ok(None)),
                AgentLocation::Moved(agent) => agent,
                AgentLocation::Away(why) if passed_over.is_empty() => return Ok(Err(why)),
                AgentLocation::Away(_) => break,
            };
            if !call.reset_for_retry() {
                break;
            }
            let instance = agent.instance.clone();
            match self.move_with_slot(request, call, slot, agent).await? {
                Ok(again) => return Ok(Ok(Some(again))),
                Err(busy) if instance.is_none() => return Ok(Err(busy)),
                Err(_) => passed_over.extend(instance),
            }
        }
        // No other one takes the call: the same one again, as long as it is there.
        passed_over.retain(|one| Some(one) != self.agent.instance.as_ref());
        Ok(match self.locate_agent(request, &passed_over).await? {
            AgentLocation::Same => Ok(None),
            AgentLocation::Away(why) => Err(why),
            AgentLocation::Moved(agent) => {
                match self.move_with_slot(request, call, slot, agent).await? {
                    Ok(again) => Ok(Some(again)),
                    Err(busy) => Err(busy),
                }
            }
        })
    }

    /// Looks where the agent is now, and whether the caller may still reach it. What was at its address may be another
    /// workspace's by now. `tried`: instances that are passed over.
    ///
    /// # Errors
    /// The reason why the call can no longer be sent.
    async fn locate_agent(
        &self,
        request: &mut Request<'_>,
        tried: &[InstanceId],
    ) -> Result<AgentLocation, ExchangeError> {
        let mark_not_sent = |why: Rejection| why.with_delivery(Delivery::NotSent);
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
