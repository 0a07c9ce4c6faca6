//! Decides which producer answers a checked call, and has it answer: the agent, its inbox, an earlier call with the
//! same key, or the deferral of the call.

pub(in crate::proxy) mod deferred;
pub(in crate::proxy) mod idempotency;
pub(in crate::proxy) mod inbox;

use std::sync::Arc;

use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;

use self::idempotency::{KeyState, Once};
use super::admit::{Admitted, Allowed};
use super::bridge::meet;
use super::outcome::rare;
use super::record::Exchange;
use super::relay::Forward;
use super::relay::forward::{AgentCall, Origin, answer_head, callee, peer};
use super::relay::upstream::Call;
use super::request::checked::CheckedCall;
use super::request::{Request, ownership, prefer};
use crate::a2a::method::Method;
use crate::a2a::refs::Refs;
use crate::directory::{Agent, Destination, LookupFor};
use crate::proxy::outcome::Ended;
use crate::proxy::relay::Clocks;
use crate::rejection::Rejection;

/// Answers a call to a target that is resolved: by its inbox, by an earlier call with its key, by deferral if the agent
/// is at capacity and the caller prefers that, or else by the agent.
pub(in crate::proxy) async fn answer(
    request: &mut Request<'_>,
    admitted: Admitted,
    mut call: CheckedCall,
) -> Result<Ended, Ended> {
    let context = request.context;
    let agent = match &admitted.destination {
        Destination::Agent(agent) => Arc::clone(agent),
        Destination::Inbox(_) => return rare(inbox::answer_call(request, admitted, call)).await,
    };
    let prepared = prepare(request, &admitted, &agent, &mut call).await?;
    let clocks = Clocks::new(
        &request.exchange.config.timeouts,
        request.exchange.started,
        admitted.timeout,
        agent.idle_timeout,
    );
    let unclaimed = match &call.key {
        None => None,
        Some(key) => {
            let state = idempotency::replay_or_reserve(request, key, clocks.total, call.done);
            match rare(state).await? {
                KeyState::Unclaimed(unclaimed) => Some(unclaimed),
                KeyState::Replayed(ended) => return Ok(ended),
            }
        }
    };
    let asker = LookupFor::calling(admitted.allowed.account());
    let slot = match agent.slots.take(asker.account) {
        Ok(slot) => slot,
        Err(busy) => {
            // Releases the idempotency key: the deferred call claims it again.
            drop(unclaimed);
            return rare(answer_at_capacity(request, &admitted, call, busy)).await;
        }
    };
    // The proof and the permit are no longer needed, and a stream may last for half an hour.
    drop(admitted);
    let connect = request.exchange.config.timeouts.connect;
    let path = call.path.as_deref();
    let forward = Forward {
        peer: peer(context, &agent, path, asker, connect).await?,
        call: Call::new(prepared.head, call.body),
        share: call.share,
        clocks,
        rewrite: call.rewrite,
        snapshot: prepared.snapshot,
        slot: Some(slot),
    };
    let done = call.done;
    if let (Some(key), Some(unclaimed)) = (call.key, unclaimed) {
        let once = Once {
            key,
            unclaimed,
            done,
        };
        return rare(idempotency::execute_once(request, once, forward)).await;
    }
    let answer = |head: &ResponseHeader, session: &ServerSession, exchange: &Exchange| {
        answer_head(context, head, session, exchange, done)
    };
    let (session, exchange) = (&mut *request.session, &mut *request.exchange);
    let relayed = context.relay.run(session, exchange, forward, answer);
    relayed.await
}

/// A request for the agent, with the one for its task if the answer begins with that.
struct Prepared {
    head: Vec<u8>,
    snapshot: Option<Call>,
}

/// Translates the call if its agent does not speak it, and writes its head.
async fn prepare(
    request: &mut Request<'_>,
    admitted: &Admitted,
    agent: &Agent,
    call: &mut CheckedCall,
) -> Result<Prepared, Ended> {
    let context = request.context;
    let agents = AgentCall {
        context,
        admitted,
        agent,
    };
    let (caller, exchange) = (Some(&mut *request.session), &mut *request.exchange);
    meet(&agents, caller, exchange, call).await?;
    let (caller, exchange) = (Some(&mut *request.session), &*request.exchange);
    agents.set_path(caller, exchange, call).await?;
    request.exchange.will_call(&callee(agent, call));
    let origin = Origin {
        head: request.session.req_header(),
        client: context.client(request.session),
    };
    let head = agents.head(&origin, request.exchange, call).await?;
    let snapshot = match &call.snapshot {
        Some(asks) => Some(rare(agents.snapshot(&origin, request.exchange, asks)).await?),
        None => None,
    };
    Ok(Prepared { head, snapshot })
}

/// Answers a call to a target at capacity: by deferral if its caller prefers that, or else by `why`.
async fn answer_at_capacity(
    request: &mut Request<'_>,
    admitted: &Admitted,
    mut call: CheckedCall,
    why: Rejection,
) -> Result<Ended, Ended> {
    // It is translated again when it is sent.
    call.restore();
    let translated = call.path.is_some() || call.rewrite.is_some();
    let sends = request.exchange.method == Method::SendMessage && !translated;
    if !sends || !prefer::respond_async(&request.head().headers) {
        return Err(why.into());
    }
    let deferred = deferred::defer(request, &admitted.allowed, admitted.hops, call).await?;
    deferred.ok_or_else(|| why.into())
}

/// The circumstances of a call to a target that is away.
pub(in crate::proxy) struct Away<'a> {
    /// The caller and its permission for the target.
    pub(in crate::proxy) allowed: &'a Allowed,
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
    away: Away<'_>,
    call: CheckedCall,
    refs: &Refs,
) -> Result<Option<Ended>, Ended> {
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
    ownership::check_for(gateway, method, push, away.allowed, refs).await?;
    deferred::defer(request, away.allowed, away.hops, call).await
}
