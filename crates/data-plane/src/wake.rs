//! A call to an agent that sleeps: parked until the agent is awake, then sent like any other. All that is checked
//! before is checked again then, since a call may wait for a minute.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::admission::{AdmittedCall, AllowedCaller, requested_timeout};
use crate::fetch::{BufferedRequest, audience_of, signed_head};
use crate::listener::client_disconnected;
use crate::parking::{ParkedCall, Parking, RETRY_AFTER, Turn};
use crate::policy::{authorize_target, check_access};
use crate::reach::LOOK_FOR_SLOT_EVERY;
use crate::record::ExchangeError;
use crate::services::{Context, Request};
use crate::upstream::{Clocks, Relay, WireRequest, refuse_redirect};
use a2a::method::Method as A2aMethod;
use access::explain::Live;
use assembly::gateway::Gateway;
use audit::{DONE, Draft, EventType};
use directory::events::{Event, Kind};
use directory::{CallKind, Destination, WakeRequest, WakeTimes};
use http1::build_peer;
use kernel::ids::WorkspaceId;
use kernel::metrics::WakeOutcome;
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::stage::Stage;
use trust::WAKE;

/// Interval of looks for the agent without a notification: while the link that carries invalidations is down.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval of looks whether a stop that covers the call was released.
const STOPPED_PAUSE: Duration = Duration::from_millis(250);

/// How a call waits for its agent to wake.
pub(super) struct WakePlan {
    times: WakeTimes,
    /// The timeout that `X-Timeout` requests.
    timeout: Option<Duration>,
}

/// Returns how the target of a call is woken, if it sleeps. `why`: the reason why it cannot be reached. `None`: the
/// call is answered as without a waker.
///
/// # Errors
/// `invalid_request`: `X-Timeout`.
pub(super) async fn plan_wake(
    request: &Request<'_>,
    allowed: &AllowedCaller,
    why: &Rejection,
) -> Result<Option<WakePlan>, Rejection> {
    let away = [Reason::WorkspaceOffline, Reason::WorkspaceRestarting].contains(&why.reason);
    if !away || request.context.gateway.is_draining() {
        return Ok(None);
    }
    let waking = &request.context.gateway.directory.waking;
    let Some(times) = waking
        .wake_times(allowed.permit.target())
        .await
        .at(Stage::State)?
    else {
        return Ok(None);
    };
    let max = request.exchange.call.config.timeouts.max;
    let timeout = requested_timeout(request.head(), max).at(Stage::Fields)?;
    Ok(Some(WakePlan { times, timeout }))
}

/// True if a call may wake its target: a card may be read of an agent that sleeps.
pub(super) fn may_wake(method: A2aMethod) -> bool {
    !matches!(method, A2aMethod::GetExtendedCard | A2aMethod::AgentCard)
}

/// Parks a call with a body of `bytes` until its agent is awake, and admits it again. It has its turn until it is sent.
///
/// # Errors
/// `workspace_restarting` (there is no room, or the agent did not come), `agent_timeout`, `shutting_down`; the reason
/// why it can no longer be sent; or the caller left.
pub(super) async fn wait_until_awake(
    request: &mut Request<'_>,
    allowed: AllowedCaller,
    plan: WakePlan,
    bytes: usize,
) -> Result<AdmittedCall, ExchangeError> {
    let context = request.context;
    let id = allowed.permit.target();
    let parked = context.parking.park(id, allowed.account(), bytes);
    let parked = parked.at(Stage::State)?;
    wake_workspace(context, id, plan.times);
    let turn = wait_for_turn(request, &allowed, &plan, parked).await?;
    let gateway = &context.gateway;
    let AllowedCaller { proof, permit } = allowed;
    if !gateway.identity.is_unrevoked(&proof).await {
        return Err(ExchangeError::Refused(credential_revoked()));
    }
    let allowed = authorize_target(gateway, request.exchange, proof, permit.target()).await;
    let allowed = allowed.map_err(Rejection::mark_not_sent)?;
    let destination = gateway.resolution.resolve(&allowed.permit).await;
    let destination = destination.map_err(Rejection::mark_not_sent)?;
    let (head, config) = (request.session.req_header(), &request.exchange.call.config);
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
) -> Result<Turn, ExchangeError> {
    let context = request.context;
    let deadline = WaitDeadline::new(request, plan);
    let mut draining = std::pin::pin!(context.relay.drain.wait_for_begin());
    let mut busy = None;
    let kind = CallKind::from_method(request.exchange.call.method);
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
            () = client_disconnected(request.session) => return Err(ExchangeError::CallerLeft),
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
    if let Err(why) = check_access(gateway, allowed.as_pair(), &mut Live).await {
        // It waits for the release, and keeps no other call back.
        return Ok(AgentState::Stopped(Rejection::mark_not_sent(why)));
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
                Some((busy, is_share)) => {
                    AgentState::Busy(busy.at(Stage::Slots).mark_not_sent(), is_share)
                }
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
        Err(Rejection::mark_not_sent(why))
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
        let timeouts = &exchange.call.config.timeouts;
        let clocks = Clocks::new(timeouts, exchange.call.started, plan.timeout, None)
            .until(exchange.call.deadline);
        let exchange_ends = if exchange.call.method.streams() {
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
                .at(Stage::State)
                .with_fact("clock", "total")
                .with_delivery(Delivery::NotSent);
        }
        let (seconds, key) = (plan.times.max_wait.as_secs(), plan.times.max_wait_key());
        let message = format!(
            "the waker of the workspace was called, and its agent did not register within {seconds} s ({key}); try again \
             shortly. The audit has the waker's answer (WORKSPACE_WAKE)"
        );
        Rejection::new(Reason::WorkspaceRestarting, message)
            .at(Stage::State)
            .with_retry_after(RETRY_AFTER)
            .with_delivery(Delivery::NotSent)
    }
}

fn shutting_down() -> Rejection {
    let message = "this process is shutting down while the call waits for its agent; connect again to reach another one";
    Rejection::new(Reason::ShuttingDown, message)
        .at(Stage::Process)
        .with_retry_after(Duration::from_secs(1))
        .with_delivery(Delivery::NotSent)
}

fn credential_revoked() -> Rejection {
    let message = "the credential of this call was revoked while the call waited for its agent; send a live one";
    Rejection::new(Reason::Unauthenticated, message)
        .at(Stage::Caller)
        .with_delivery(Delivery::NotSent)
}

// Asks the waker of a workspace to start its agent: one request, signed by the gateway, with an answer of which only
// the status counts (`docs/guide/wake-a-sleeping-agent.md`). One replica makes it in `cool_down`.

/// Timeout of the whole request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum bytes of the answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Pause before the next attempt to claim the request, after another replica has claimed it.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// Has the waker of `id` called, unless it was within its cool-down. Returns at once: the request outlives the call
/// that caused it.
pub(super) fn wake_workspace(context: &Context, id: &WorkspaceId, times: WakeTimes) {
    if !context.parking.claim_wake(id, times.cool_down) {
        return;
    }
    let attempt = WakeAttempt {
        gateway: Arc::clone(&context.gateway),
        relay: Arc::clone(&context.relay),
        parking: Arc::clone(&context.parking),
        id: id.clone(),
    };
    let running = context.gateway.drain.count_work();
    tokio::spawn(async move {
        let _running = running;
        attempt.run(times.cool_down).await;
    });
}

/// One attempt to wake a workspace.
struct WakeAttempt {
    gateway: Arc<Gateway>,
    relay: Arc<Relay>,
    parking: Arc<Parking>,
    id: WorkspaceId,
}

impl WakeAttempt {
    async fn run(&self, cool_down: Duration) {
        let id = &self.id;
        match self.gateway.directory.waking.claim(id, cool_down).await {
            Ok(true) => {}
            Ok(false) => return self.parking.postpone_wake(id, CLAIM_PAUSE),
            // Without the shared state each replica keeps to its own cool-down.
            Err(error) => {
                tracing::debug!(%error, workspace.id = %id, "failed to claim the request to a waker; calling it for this replica");
            }
        }
        let payload = json!({"reason": "message"});
        let event = Event::new(Kind::WorkspaceWaking, id, payload);
        self.gateway.events.publish(event);
        let asked = Instant::now();
        let answered = self.send_request(asked + PATIENCE).await;
        self.record_outcome(&answered, asked.elapsed());
    }

    /// Sends the request, and returns the status of the answer.
    async fn send_request(&self, deadline: Instant) -> Result<u16, Rejection> {
        let request = self.gateway.directory.waking.build_request(&self.id);
        let request = timeout_at(deadline, request).await;
        let request = request.map_err(|_| waker_timeout())??;
        let config = self.relay.config.snapshot();
        let endpoint = &request.endpoint;
        let question = BufferedRequest {
            peer: &build_peer(
                request.address,
                endpoint.tls,
                &endpoint.sni,
                config.timeouts.connect.min(PATIENCE),
            ),
            call: WireRequest::new(self.request_head(&request)?, self.request_body()),
            deadline,
            bytes_max: ANSWER_BYTES_MAX,
            idle: config.upstream.idle,
            late: waker_timeout,
        };
        let asked = question.send(&self.relay.upstream, &self.relay.metrics);
        let (head, _) = asked.await?;
        refuse_redirect(&head)?;
        Ok(head.status.as_u16())
    }

    fn request_body(&self) -> Bytes {
        let body = json!({"workspace_id": self.id.as_str(), "reason": "message"});
        Bytes::from(body.to_string())
    }

    /// Writes the head. The operator's field takes the place of the token's if it has that name.
    fn request_head(&self, request: &WakeRequest) -> Result<Vec<u8>, Rejection> {
        let (endpoint, signed) = (&request.endpoint, &self.gateway.identity.signed);
        let token =
            signed.issue_for_service(&WAKE, self.id.as_str(), audience_of(endpoint), None)?;
        let fields = request.fields.iter();
        let fields = fields.map(|(name, value)| (name.clone(), value.expose_secret()));
        Ok(signed_head(
            (request.method.as_str(), endpoint),
            self.request_body().len(),
            fields,
            (token.expose_secret(), "x-a2a-wake-token"),
        ))
    }

    fn record_outcome(&self, answered: &Result<u16, Rejection>, elapsed: Duration) {
        let (outcome, status, reason) = match answered {
            Ok(status @ 200..=299) => (WakeOutcome::Accepted, *status, DONE),
            Ok(status) => {
                let reason = Reason::AgentProtocolError.as_str();
                (WakeOutcome::Refused, *status, reason)
            }
            Err(why) => (failure_outcome(why.reason), 0, why.reason.as_str()),
        };
        self.gateway.metrics.waking.wakes[outcome].inc();
        let (id, word) = (&self.id, outcome.as_str());
        if outcome == WakeOutcome::Accepted {
            tracing::info!(workspace.id = %id, "woke a workspace");
        } else {
            let why = answered.as_ref().err().map(|why| why.message.as_ref());
            tracing::warn!(workspace.id = %id, outcome = word, status, why, "The waker of a workspace did not accept the request; its parked calls wait, and it is asked again after its cool-down");
        }
        let mut detail = json!({"wake": word});
        if status > 0 {
            detail["status"] = Value::from(status);
        }
        let draft = Draft::new(EventType::WorkspaceWake).with_target(id);
        self.gateway.audit.record(Draft {
            outcome: reason,
            duration_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            ..draft.with_detail(detail)
        });
    }
}

const fn failure_outcome(reason: Reason) -> WakeOutcome {
    match reason {
        Reason::AgentUnreachable => WakeOutcome::Unreachable,
        Reason::AgentTimeout => WakeOutcome::TimedOut,
        Reason::AgentRedirected => WakeOutcome::Redirected,
        Reason::AddressForbidden => WakeOutcome::Forbidden,
        _ => WakeOutcome::Failed,
    }
}

fn waker_timeout() -> Rejection {
    let message = "the waker did not answer within 10 s";
    Rejection::new(Reason::AgentTimeout, message).with_fact("clock", "wake")
}
