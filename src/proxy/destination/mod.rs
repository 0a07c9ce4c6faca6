//! Decides which producer answers a checked call, and has it answer: the agent, its inbox, an earlier call with the
//! same key, or the deferral of the call.

pub(in crate::proxy) mod deferral;
pub(in crate::proxy) mod idempotency;
pub(in crate::proxy) mod inbox;
pub(in crate::proxy) mod reach;
pub(in crate::proxy) mod wake_wait;

use std::ops::ControlFlow;
use std::sync::Arc;

use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::Instant;

use self::idempotency::{KeyReservation, KeyState};
use self::reach::reach_agent;
use super::admit::{AdmittedCall, AllowedCaller};
use super::bridge::translate_for_agent;
use super::caps_stage;
use super::guard_stage::{ask_about_call, rewrite_guarded, set_guards};
use super::outcome::{box_cold_path, box_in_place};
use super::record::Exchange;
use super::relay::OutboundCall;
use super::relay::forward::{AgentCall, Origin, answer_head, callee_attributes};
use super::relay::upstream::WireRequest;
use super::request::checked_call::CheckedCall;
use super::request::{Request, ownership, prefer};
use crate::a2a::method::Method;
use crate::a2a::refs::Refs;
use crate::caps::Caps;
use crate::delivery::calls::UnclaimedKey;
use crate::directory::{Agent, Destination};
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::relay::Clocks;
use crate::rejection::{Delivery, Reason, Rejection};

/// Answers a call to a target that is resolved: by its inbox, by an earlier call with its key, by deferral if the agent
/// is at capacity and the caller prefers that, or else by the agent.
pub(in crate::proxy) async fn answer_call(
    request: &mut Request<'_>,
    mut admitted: AdmittedCall,
    mut call: CheckedCall,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    let context = request.context;
    let agent = match &admitted.destination {
        Destination::Agent(agent) => Arc::clone(agent),
        Destination::Inbox(_) => {
            return box_cold_path(inbox::answer_call(request, admitted, call)).await;
        }
    };
    let headers = &request.session.req_header().headers;
    set_guards(context, request.exchange, &admitted, &mut call, headers);
    let prepared = prepare_request(request, &admitted, &agent, &mut call).await?;
    let clocks = Clocks::new(
        &request.exchange.config.timeouts,
        request.exchange.started,
        admitted.timeout,
        agent.idle_timeout,
    );
    let unclaimed = match replay_or_count(request, &admitted, &call, clocks.total).await? {
        ControlFlow::Continue(unclaimed) => unclaimed,
        ControlFlow::Break(replayed) => return Ok(replayed),
    };
    let prepared = (prepared, clocks.total);
    let reached = reach_agent(request, (&admitted, agent), &mut call, prepared).await;
    let (slot, reached) = match reached {
        Ok(reached) => reached,
        Err(ExchangeOutcome::Refused(busy)) if busy.reason == Reason::AgentBusy => {
            // Releases the idempotency key: the deferred call claims it again.
            drop(unclaimed);
            return box_cold_path(answer_at_capacity(request, &admitted, call, busy)).await;
        }
        Err(ended) => return Err(ended),
    };
    // It may have waited for a place, and its body for its caller.
    let stopped = context.gateway.stops.check(&admitted.allowed.permit);
    stopped.map_err(|why| why.with_delivery(Delivery::NotSent))?;
    let (prepared, connection) = (reached.prepared, reached.connection);
    let turn = admitted.turn.take();
    // The proof and the permit are no longer needed, and a stream may last for half an hour.
    drop(admitted);
    let forward = OutboundCall {
        peer: reached.peer,
        call: WireRequest::new(prepared.head, call.body),
        share: call.share,
        clocks,
        rewrite: rewrite_guarded(call.guarded.take(), call.rewrite),
        snapshot: prepared.snapshot,
        slot: Some(slot),
        turn,
    };
    let done = call.done;
    if let (Some(key), Some(unclaimed)) = (call.key, unclaimed) {
        let reservation = KeyReservation {
            key,
            unclaimed,
            done,
        };
        let call = (forward, connection);
        return box_cold_path(idempotency::execute_once(request, reservation, call)).await;
    }
    if let Some(charge) = &mut request.exchange.charge {
        charge.mark_sent();
        charge.shows_its_task();
    }
    let answer = |head: &ResponseHeader, session: &ServerSession, exchange: &Exchange| {
        answer_head(context, head, session, exchange, done)
    };
    let (session, exchange) = (&mut *request.session, &mut *request.exchange);
    let relayed = context
        .relay
        .run(session, exchange, (forward, connection), answer);
    relayed.await
}

/// Replays an earlier call with the same key, or else counts the call for caps. Returns its key, if it has one.
async fn replay_or_count(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    call: &CheckedCall,
    until: Instant,
) -> Result<ControlFlow<ExchangeOutcome, Option<UnclaimedKey>>, ExchangeOutcome> {
    let mut unclaimed = None;
    if let Some(key) = &call.key {
        let state = idempotency::replay_or_reserve(request, key, until, call.done);
        match box_cold_path(state).await? {
            KeyState::Unclaimed(free) => unclaimed = Some(free),
            KeyState::Replayed(ended) => return Ok(ControlFlow::Break(ended)),
        }
    }
    if Caps::are_configured(&request.exchange.config) {
        let (gateway, body) = (&request.context.gateway, &call.body);
        let call = (&request.session.req_header().headers, body);
        let allowed = &admitted.allowed;
        box_cold_path(caps_stage::count_before_sending(
            gateway,
            request.exchange,
            allowed,
            call,
        ))
        .await?;
    }
    Ok(ControlFlow::Continue(unclaimed))
}

/// A request for the agent, with the one for its task if the answer begins with that.
struct PreparedRequest {
    head: Vec<u8>,
    snapshot: Option<WireRequest>,
}

/// Translates the call if its agent does not speak it, and writes its head.
async fn prepare_request(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    agent: &Agent,
    call: &mut CheckedCall,
) -> Result<PreparedRequest, ExchangeOutcome> {
    let context = request.context;
    let agents = AgentCall {
        context,
        admitted,
        agent,
    };
    let (caller, exchange) = (Some(&mut *request.session), &mut *request.exchange);
    translate_for_agent(&agents, caller, exchange, call).await?;
    let (caller, exchange) = (Some(&mut *request.session), &*request.exchange);
    agents.set_path(caller, exchange, call).await?;
    if call.guarded.is_some() {
        let caller = Some(&mut *request.session);
        let about = (context, admitted);
        box_in_place(|| ask_about_call(about, caller, request.exchange, call)).await?;
    }
    request
        .exchange
        .begin_call_span(&callee_attributes(agent, call));
    let origin = Origin {
        head: request.session.req_header(),
        client: context.client_address(request.session),
    };
    let head = agents.write_head(&origin, request.exchange, call).await?;
    let snapshot = match &call.snapshot {
        Some(asks) => {
            Some(box_cold_path(agents.snapshot_request(&origin, request.exchange, asks)).await?)
        }
        None => None,
    };
    Ok(PreparedRequest { head, snapshot })
}

/// Answers a call to a target at capacity: by deferral if its caller prefers that, or else by `why`.
async fn answer_at_capacity(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    mut call: CheckedCall,
    why: Rejection,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    // Counted again when it is accepted.
    request.exchange.charge = None;
    // It is translated again when it is sent.
    call.undo_translation();
    let translated = call.path.is_some() || call.rewrite.is_some();
    let sends = request.exchange.method == Method::SendMessage && !translated;
    if !sends || !prefer::prefers_async(&request.head().headers) {
        return Err(why.into());
    }
    let deferred = deferral::defer_call(request, &admitted.allowed, admitted.hops, call).await?;
    deferred.ok_or_else(|| why.into())
}

/// The circumstances of a call to a target that is away.
pub(in crate::proxy) struct AwayCall<'a> {
    /// The caller and its permission for the target.
    pub(in crate::proxy) allowed: &'a AllowedCaller,
    /// The number of gateways that the call has passed, this one included.
    pub(in crate::proxy) hops: u32,
    /// True if callers may ask the target for push notifications.
    pub(in crate::proxy) push_notifications: bool,
    /// True if the caller prefers a deferred call to a rejection.
    pub(in crate::proxy) defers: bool,
}

/// Answers a call to a target that is away: by an earlier call with its key, or by deferral if its caller prefers that.
/// `None` if neither applies.
pub(in crate::proxy) async fn answer_while_away(
    request: &mut Request<'_>,
    away: AwayCall<'_>,
    call: CheckedCall,
    refs: &Refs,
) -> Result<Option<ExchangeOutcome>, ExchangeOutcome> {
    let method = request.exchange.method;
    if let Some(key) = &call.key {
        let until = request.exchange.started + request.exchange.config.timeouts.total;
        let state = idempotency::replay_or_reserve(request, key, until, call.done).await?;
        if let KeyState::Replayed(ended) = state {
            return Ok(Some(ended));
        }
    }
    if !away.defers || method != Method::SendMessage {
        return Ok(None);
    }
    let (gateway, push) = (&request.context.gateway, away.push_notifications);
    ownership::check_references(gateway, method, push, away.allowed, refs).await?;
    deferral::defer_call(request, away.allowed, away.hops, call).await
}
