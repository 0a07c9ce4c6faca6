//! Reaches an agent that refused the connection: another instance of it, or the agent once it is back. Nothing of the call
//! was sent.

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::{Prepared, Reached, Way, patience, prepare, wait_until};
use crate::directory::{Agent, CallKind, CallOutcome, Destination, Preference, Slot, choose};
use crate::ids::InstanceId;
use crate::metrics::Held;
use crate::proxy::admit::{Allowed, permit as permit_again};
use crate::proxy::outcome::Ended;
use crate::proxy::relay::Cut;
use crate::proxy::relay::upstream::NotConnected;
use crate::proxy::relay::verdict::of_rejection;
use crate::proxy::request::Request;
use crate::proxy::request::checked::CheckedCall;
use crate::proxy::respond::client_disconnected;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shares::Account;

/// Maximum instances that a call tries to connect to before it waits for one of them.
const INSTANCES_TRIED_MAX: usize = 3;
/// `Retry-After` for a call to an agent that polls by now.
const REDIRECTED_AFTER: Duration = Duration::from_secs(1);

impl Way<'_> {
    /// Connects to another instance of the agent, or to the agent once it is back.
    pub(super) async fn connect_later(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        (mut prepared, mut failed): (Prepared, NotConnected),
        slot: &mut Slot,
        began: Instant,
    ) -> Result<Reached, Ended> {
        let mut tried = Vec::new();
        while failed.is_away
            && let Some(other) = self
                .turn_to_another(request, call, slot, (&failed, &mut tried))
                .await?
        {
            prepared = other;
            let connect = request.exchange.config.timeouts.connect;
            match self
                .dial(request.context, connect, call, self.deadline)
                .await
            {
                Ok((peer, connection)) => {
                    return Ok(Reached {
                        peer,
                        connection,
                        prepared,
                    });
                }
                Err(again) => failed = again,
            }
        }
        let is_refused = failed.is_refused;
        let hold = request.exchange.config.upstream.hold;
        // Its caller did not wait for as long as the gateway would.
        let hasty = self.admitted.timeout.is_some() && self.deadline < began + hold;
        let reached = if failed.is_away {
            slot.dialled(false);
            self.hold(request, call, (prepared, failed.why), slot, began)
                .await
        } else {
            Err(failed.why.into())
        };
        if let Err(Ended::Refused(why)) = &reached
            && !hasty
        {
            blame(slot, why, is_refused);
        }
        reached
    }

    /// Takes a slot at another instance of the agent, and makes the request for it. `None` if there is none: the agent has
    /// no instances, or no other one takes the call. Nothing was sent.
    async fn turn_to_another(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        slot: &mut Slot,
        (failed, tried): (&NotConnected, &mut Vec<InstanceId>),
    ) -> Result<Option<Prepared>, Ended> {
        let Some(instance) = self.agent.instance.clone() else {
            return Ok(None);
        };
        slot.dialled(false);
        tried.push(instance);
        let found = self.find_other(request, call, tried).await;
        if !matches!(found, Ok(None)) {
            blame(slot, &failed.why, failed.is_refused);
        }
        Ok(found?.map(|(place, prepared)| {
            *slot = place;
            prepared
        }))
    }

    /// Takes a slot at an instance that is not among `tried`, and makes the request for it. `None` if none takes the call.
    /// Adds those that refuse it to `tried`.
    pub(super) async fn find_other(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        tried: &mut Vec<InstanceId>,
    ) -> Result<Option<(Slot, Prepared)>, Ended> {
        if !call.can_be_prepared_again() {
            return Ok(None);
        }
        while tried.len() < INSTANCES_TRIED_MAX
            && let Place::Moved(other) = self.look(request, tried).await?
        {
            if let Ok(place) = self.take_place(request, &other) {
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

    fn take_place(&self, request: &Request<'_>, agent: &Agent) -> Result<Slot, Rejection> {
        let kind = CallKind::of(request.exchange.method);
        let mut slot = agent.slots.take(self.asker.account, kind)?;
        let timeouts = &request.exchange.config.timeouts;
        slot.set_patience(patience(timeouts, self.admitted, self.deadline));
        Ok(slot)
    }

    /// Makes the request for another place of the agent.
    async fn move_to(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        agent: Arc<Agent>,
    ) -> Result<Prepared, Ended> {
        self.agent = agent;
        let exchange = &mut *request.exchange;
        exchange.instance.clone_from(&self.agent.instance);
        if let (Some(learner), Some(instance)) = (&mut exchange.learner, &self.agent.instance) {
            learner.binds_to(instance);
        }
        prepare(request, self.admitted, &self.agent, call).await
    }

    /// Waits for an agent that refuses connections.
    async fn hold(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        (mut prepared, mut why): (Prepared, Rejection),
        slot: &mut Slot,
        began: Instant,
    ) -> Result<Reached, Ended> {
        let context = request.context;
        let config = Arc::clone(&request.exchange.config);
        let upstream = &config.upstream;
        let until = self.deadline.min(began + upstream.hold);
        if until <= Instant::now() {
            return Err(why.into());
        }
        let capacity = &context.gateway.metrics.capacity;
        let account = self.asker.account;
        let held = context
            .held
            .enter(account, call.body.len(), &config, capacity);
        let Some(held) = held else {
            return Err(why.into());
        };
        // A stop does not end it: it waits until the stop is released.
        let mut cut = Cut::of_drain(&context.relay.drain);
        loop {
            let next = slot.take_redial().err();
            if next.is_some_and(|next| next >= until) || Instant::now() >= until {
                let left = until == self.deadline;
                held.end(if left { Held::Left } else { Held::TimedOut });
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
                    slot.dialled(false);
                    continue;
                }
            }
            let tried = tokio::select! {
                biased;
                tried = self.dial(context, config.timeouts.connect, call, until) => tried,
                () = client_disconnected(request.session) => return Err(Ended::CallerLeft),
                why = cut.requested(Delivery::NotSent) => return Err(why.into()),
            };
            match tried {
                Ok((peer, connection)) => {
                    slot.dialled(true);
                    held.end(Held::Connected);
                    return Ok(Reached {
                        peer,
                        connection,
                        prepared,
                    });
                }
                Err(failed) if failed.is_away => why = failed.why,
                Err(_) if Instant::now() >= until => {}
                Err(failed) => return Err(failed.why.into()),
            }
            slot.dialled(false);
        }
    }

    /// Takes a slot at another instance if the agent is one, and makes the request for it.
    async fn take_up(
        &mut self,
        request: &mut Request<'_>,
        call: &mut CheckedCall,
        slot: &mut Slot,
        agent: Arc<Agent>,
    ) -> Result<Result<Prepared, Rejection>, Ended> {
        if agent.instance != self.agent.instance {
            match self.take_place(request, &agent) {
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
    ) -> Result<Result<Option<Prepared>, Rejection>, Ended> {
        let mut passed_over: Vec<InstanceId> = self.agent.instance.iter().cloned().collect();
        for _ in 0..INSTANCES_TRIED_MAX {
            let agent = match self.look(request, &passed_over).await? {
                Place::Same => return Ok(Ok(None)),
                Place::Moved(agent) => agent,
                Place::Away(why) if passed_over.is_empty() => return Ok(Err(why)),
                Place::Away(_) => break,
            };
            if !call.can_be_prepared_again() {
                break;
            }
            let instance = agent.instance.clone();
            match self.take_up(request, call, slot, agent).await? {
                Ok(again) => return Ok(Ok(Some(again))),
                Err(busy) if instance.is_none() => return Ok(Err(busy)),
                Err(_) => passed_over.extend(instance),
            }
        }
        // No other one takes the call: the same one again, as long as it is there.
        passed_over.retain(|one| Some(one) != self.agent.instance.as_ref());
        Ok(match self.look(request, &passed_over).await? {
            Place::Same => Ok(None),
            Place::Away(why) => Err(why),
            Place::Moved(agent) => match self.take_up(request, call, slot, agent).await? {
                Ok(again) => Ok(Some(again)),
                Err(busy) => Err(busy),
            },
        })
    }

    /// Looks where the agent is now, and whether the caller may still reach it. What was at its address may be another
    /// workspace's by now. `tried`: instances that are passed over.
    ///
    /// # Errors
    /// The reason why the call can no longer be sent.
    async fn look(&self, request: &mut Request<'_>, tried: &[InstanceId]) -> Result<Place, Ended> {
        let unsent = |why: Rejection| why.delivered(Delivery::NotSent);
        let gateway = &request.context.gateway;
        let Allowed { proof, permit } = &self.admitted.allowed;
        let proof = Arc::clone(proof);
        let allowed = permit_again(gateway, request.exchange, proof, permit.target()).await;
        let allowed = match allowed.map_err(unsent) {
            Ok(allowed) => allowed,
            Err(why) if why.reason == Reason::Stopped => return Ok(Place::Away(why)),
            Err(why) => return Err(why.into()),
        };
        match gateway.resolution.resolve(&allowed.permit).await {
            Ok(Destination::Agent(agent)) => {
                let preference = self.admitted.preference.as_deref();
                let agent = match choose_place(&agent, self.asker.account, preference, tried) {
                    Ok(agent) => agent,
                    Err(why) => return Ok(Place::Away(why)),
                };
                let is_other = agent.instance != self.agent.instance;
                Ok(
                    if is_other || agent.endpoint.url() != self.agent.endpoint.url() {
                        Place::Moved(agent)
                    } else {
                        Place::Same
                    },
                )
            }
            Ok(Destination::Inbox(_)) => {
                let message = "the agent polls its messages now; send the call again";
                let why = Rejection::new(Reason::WorkspaceRestarting, message);
                Err(unsent(why).retry_after(REDIRECTED_AFTER).into())
            }
            Err(why) => match why.reason {
                Reason::WorkspaceOffline
                | Reason::WorkspaceRestarting
                | Reason::StoreUnavailable => Ok(Place::Away(unsent(why))),
                _ => Err(unsent(why).into()),
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
    let chosen = choose(&agent.instances, account, preference, tried)?;
    Ok(Arc::clone(chosen.0))
}

/// Notes that the agent could not be reached.
fn blame(slot: &mut Slot, why: &Rejection, is_refused: bool) {
    slot.finish_unless(|patience| {
        let outcome = of_rejection(why, patience)?;
        let overload = is_refused && why.reason == Reason::AgentUnreachable;
        Some(CallOutcome {
            overload,
            ..outcome
        })
    });
}

/// Place of the agent of a call that waits.
enum Place {
    /// Where it was.
    Same,
    /// It has registered elsewhere.
    Moved(Arc<Agent>),
    /// It is offline, or it is not known where it is. It may come back.
    Away(Rejection),
}
