//! Asks guards about calls, right before these are sent or stored: a stage between translation and forwarding.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::HeaderMap;
use pingora::protocols::http::ServerSession;
use serde_json::value::RawValue;
use tokio::time::sleep_until;

use super::admit::AdmittedCall;
use super::context::Context;
use super::guard::{CallFacts, CallGuards, CallerSide, Party, parse_trace};
use super::outcome::ExchangeOutcome;
use super::record::Exchange;
use super::relay::rewrite::Rewrite;
use super::request::checked_call::CheckedCall;
use super::respond::caller_gone;
use crate::a2a::method::Method;
use crate::a2a::task::Binding;
use crate::config::GuardPhase;
use crate::delivery::jobs::{Job, request_id};
use crate::hierarchy::Permit;
use crate::identity::{Principal, Proof};
use crate::rejection::{Delivery, Reason, Rejection};

/// Sets the guards of a call, before it is translated. `headers`: those of the request that it stands for. Without
/// guards in the configuration that is one look at an empty list.
pub(in crate::proxy) fn set_guards(
    context: &Context,
    exchange: &mut Exchange,
    admitted: &AdmittedCall,
    call: &mut CheckedCall,
    headers: &HeaderMap,
) {
    if exchange.config.guard.is_empty() {
        return;
    }
    let (proof, permit) = (&admitted.allowed.proof, &admitted.allowed.permit);
    let target_org = admitted.options().org.as_deref();
    let route_method = exchange.method.name_in(call.generation());
    let facts = || {
        let method = call.method_name.as_deref().or(route_method);
        let method = method.unwrap_or(exchange.method.label());
        let parties = (&**proof, permit);
        let facts = build_facts(parties, exchange.request_id.as_str(), method, target_org);
        let trace = headers.get("traceparent");
        CallFacts {
            trace: trace.and_then(|field| parse_trace(field.to_str().ok()?)),
            ..facts
        }
    };
    let target = (permit.target(), target_org);
    let side = || CallerSide {
        is_rpc: exchange.binding == Binding::Rpc,
        rpc_id: exchange.rpc_id.clone(),
    };
    call.guarded = context
        .guards
        .for_call(exchange.method, target, side, facts);
    if let Some(guarded) = &call.guarded {
        exchange.verdicts = Some(Arc::clone(&guarded.verdicts));
    }
}

/// Asks the guards of a call about it, in the form that its agent gets, and puts what they replace into it. `caller`: a
/// caller that may leave meanwhile. The clock of the whole call holds, and stops end the wait.
///
/// # Errors
/// `guard_rejected`, `guard_unavailable`, `agent_timeout`, `stopped`; the caller left.
pub(in crate::proxy) async fn ask_about_call(
    (context, admitted): (&Context, &AdmittedCall),
    mut caller: Option<&mut ServerSession>,
    exchange: &Exchange,
    call: &mut CheckedCall,
) -> Result<(), ExchangeOutcome> {
    let Some(guarded) = &call.guarded else {
        return Ok(());
    };
    if !guarded.has_phase(GuardPhase::Request) {
        return Ok(());
    }
    let (is_rpc, sends) = (call.method_name.is_some(), exchange.method.sends());
    let asked = guarded.check_request(&call.body, is_rpc, sends);
    let total = admitted.timeout.unwrap_or(exchange.config.timeouts.total);
    let mut cut = context.relay.watch_exchange(exchange);
    let changed: Result<_, Rejection> = tokio::select! {
        biased;
        asked = asked => asked,
        why = cut.cancelled(Delivery::NotSent) => Err(why),
        () = sleep_until(exchange.started + total) => Err(guards_timeout()),
        () = caller_gone(&mut caller) => return Err(ExchangeOutcome::CallerLeft),
    };
    if let Some(changed) = changed? {
        call.body = changed;
    }
    Ok(())
}

fn guards_timeout() -> Rejection {
    let message =
        "guards did not judge the call within its time (timeouts.total); nothing was sent";
    Rejection::new(Reason::AgentTimeout, message)
        .with_fact("clock", "total")
        .with_delivery(Delivery::NotSent)
}

/// Asks guards about what an agent that polls replied to a job. Returns another form of it; `None`: it passes as it is.
///
/// # Errors
/// `guard_rejected`, `guard_unavailable`; a fact about the call cannot be read now.
pub(in crate::proxy) async fn ask_about_reply(
    context: &Context,
    job: &Job,
    reply: &RawValue,
) -> Result<Option<Box<RawValue>>, Rejection> {
    let gateway = &context.gateway;
    if gateway.config().guard.is_empty() {
        return Ok(None);
    }
    let proof = gateway.identity.restore_proof(&job.caller).ok_or_else(|| {
        let message = "the caller of the job is not known any more";
        Rejection::new(Reason::NotPermitted, message)
    })?;
    let permit = gateway.hierarchy.permit(&proof, &job.target).await?;
    let options = gateway.resolution.load_options(&permit).await?;
    let target_org = options.org.as_deref();
    let facts = || {
        let method = Method::SendMessage.name_in(options.generation);
        build_facts(
            (&proof, &permit),
            request_id(job).as_str(),
            method.unwrap_or_default(),
            target_org,
        )
    };
    let target = (permit.target(), target_org);
    let side = || CallerSide {
        is_rpc: false,
        rpc_id: None,
    };
    let Some(guarded) = context
        .guards
        .for_call(Method::SendMessage, target, side, facts)
    else {
        return Ok(None);
    };
    let reply = Bytes::copy_from_slice(reply.get().as_bytes());
    let changed = guarded.check_response(&reply).await;
    guarded.record_verdicts();
    let changed = changed?;
    Ok(changed.and_then(|changed| serde_json::from_slice(&changed).ok()))
}

fn build_facts(
    (proof, permit): (&Proof, &Permit),
    request_id: &str,
    method: &str,
    target_org: Option<&str>,
) -> CallFacts {
    CallFacts {
        request_id: request_id.to_owned(),
        method: method.to_owned(),
        caller: Party {
            id: proof.principal.name().into_owned(),
            org: permit.org().map(str::to_owned),
            kind: Some(match &proof.principal {
                Principal::Workspace { .. } => "workspace",
                Principal::Canvas { .. } | Principal::Org { .. } | Principal::Operator => {
                    proof.kind.as_str()
                }
            }),
        },
        account: proof.account,
        target: Party {
            id: permit.target().as_str().to_owned(),
            org: target_org.map(str::to_owned),
            kind: None,
        },
        rule: permit.rule().as_str(),
        trace: None,
        run: OnceLock::new(),
    }
}

/// Returns the rewrite of an answer with guards around it.
pub(in crate::proxy) fn rewrite_guarded(
    guarded: Option<Arc<CallGuards>>,
    rewrite: Option<Rewrite>,
) -> Option<Rewrite> {
    let guarded = guarded.filter(|guarded| {
        guarded.has_phase(GuardPhase::Response) || guarded.has_phase(GuardPhase::Event)
    });
    match guarded {
        Some(guarded) => Some(Rewrite::Guarded(guarded, rewrite.map(Box::new))),
        None => rewrite,
    }
}
