//! What operators decide about calls, whichever way a call takes. Each stage is in one place, [`check_access`] or
//! [`check_content`].

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::HeaderMap;
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::sleep_until;

use crate::admission::{AdmittedCall, AllowedCaller, authenticate_caller};
use crate::complete::CheckedCall;
use crate::filters::Rewrite;
use crate::guard::{CallFacts, CallGuards, CallerSide, Party, parse_trace};
use crate::listener::caller_gone;
use crate::record::{Exchange, ExchangeError, box_cold_path, box_in_place};
use crate::services::{Context, Request};
use a2a::method::Method;
use a2a::task::Binding;
use access::caps::{Caps, Charge, Facts, Names};
use access::explain::{Fact, Live, Source, Trail, Witness as _};
use access::hierarchy::Permit;
use access::identity::{Principal, Proof};
use assembly::gateway::Gateway;
use kernel::config::{Config, GuardPhase, LineageReach};
use kernel::ids::{InvalidWorkspaceId, WorkspaceId};
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::stage::Stage;
use mailbox::jobs::{Job, request_id};

/// Runs the stages of policy on access, in the order of [`Stage`]: once the caller may reach the target, and again
/// after each wait. They decide from memory.
///
/// # Errors
/// The first rejection.
pub(super) async fn check_access<T: Trail>(
    gateway: &Gateway,
    (proof, permit): (&Proof, &Permit),
    trail: &mut T,
) -> Result<(), T::Stop> {
    if gateway.has_chain_rules(proof) {
        let checked = box_cold_path(gateway.check_chain(proof, permit)).await;
        trail.judge(Stage::Chain, || find_chain(proof), checked)?;
    }
    let stopped = gateway.stops.check(permit);
    trail.judge(Stage::Stop, || find_stop(gateway, permit), stopped)
}

/// Checks that a proven caller may reach the target, for a message, a deferred call or an explanation.
///
/// # Errors
/// `not_permitted`, `store_unavailable`; as [`check_access`].
pub(super) async fn permit_target<T: Trail>(
    gateway: &Gateway,
    proof: &Proof,
    target: &WorkspaceId,
    trail: &mut T,
) -> Result<Permit, T::Stop> {
    let mut facts = T::Facts::default();
    let hierarchy = &gateway.hierarchy;
    let permit = hierarchy
        .permit_with_witness(proof, target, &mut facts)
        .await;
    facts.record(|| rule_fact(gateway, permit.as_ref()));
    trail.pass(Stage::Rule, facts, permit)
}

/// Checks that the proven caller may reach the target, and that policy lets the call pass. A card may be read of an
/// agent that is stopped.
///
/// # Errors
/// `not_permitted`, `stopped`, `store_unavailable`.
pub(super) async fn authorize_target(
    gateway: &Gateway,
    exchange: &mut Exchange,
    proof: Arc<Proof>,
    target: &WorkspaceId,
) -> Result<AllowedCaller, Rejection> {
    let permit = permit_target(gateway, &proof, target, &mut Live).await;
    if gateway.config().access.observe.lineage.is_some() {
        let observed = gateway
            .hierarchy
            .observe_rule(&proof, target, permit.as_ref());
        if let Some(allows) = box_cold_path(observed).await {
            exchange.record.observe("access.lineage".to_owned(), allows);
        }
    }
    let permit = permit?;
    if gateway.observes_missing_root(&proof, &permit) {
        exchange.record.observe("access.require".to_owned(), false);
    }
    exchange.call.set_access(&permit);
    if exchange.call.method != Method::AgentCard {
        check_access(gateway, (&proof, &permit), &mut Live).await?;
    }
    Ok(AllowedCaller { proof, permit })
}

/// Runs the checks of the caller.
///
/// # Errors
/// The first rejection.
pub(super) async fn authorize_caller(
    gateway: &Gateway,
    exchange: &mut Exchange,
    head: &RequestHeader,
    target: Result<WorkspaceId, InvalidWorkspaceId>,
) -> Result<AllowedCaller, Rejection> {
    let target = target.map_err(Rejection::from).at(Stage::Target)?;
    exchange.call.target = Some(target.clone());
    let proof = authenticate_caller(gateway, exchange, head).await?;
    authorize_target(gateway, exchange, proof, &target).await
}

/// Checks a caller again after a wait, and what it may reach.
///
/// # Errors
/// `unauthenticated`, `not_permitted`, `stopped`, `store_unavailable`.
pub(super) async fn recheck_caller(request: &mut Request<'_>) -> Result<(), Rejection> {
    let (gateway, exchange) = (&request.context.gateway, &mut *request.exchange);
    let Some(proof) = exchange.call.proof.clone() else {
        return Ok(());
    };
    gateway.identity.recheck(&proof).await.at(Stage::Caller)?;
    // The body may be what names the target.
    if let Some(target) = exchange.call.target.clone() {
        authorize_target(gateway, exchange, proof, &target).await?;
    }
    Ok(())
}

/// Returns what an explanation shows of the rule. A store that is away decides nothing.
fn rule_fact(gateway: &Gateway, permit: Result<&Permit, &Rejection>) -> Option<Fact> {
    let rule = match permit {
        Ok(permit) => json!(permit.rule().as_str()),
        Err(refusal) if refusal.reason == Reason::NotPermitted => Value::Null,
        Err(_) => return None,
    };
    let lineage = match gateway.config().access.lineage {
        LineageReach::Direct => "direct",
        LineageReach::Any => "any",
    };
    let value = json!({"rule": rule, "access.lineage": lineage});
    Some(Fact::new(Stage::Rule, Source::Memory, value))
}

/// Returns what an explanation shows of the chain.
fn find_chain(proof: &Proof) -> Option<Fact> {
    let chain = proof.chain();
    let root = chain.map_or_else(|| proof.principal.name(), |chain| chain.root().into());
    let value = json!({"root": root, "depth": chain.map_or(0, |chain| chain.depth())});
    Some(Fact::new(Stage::Chain, Source::Memory, value))
}

/// Returns what an explanation shows of stops, if there are any.
fn find_stop(gateway: &Gateway, permit: &Permit) -> Option<Fact> {
    let stops = &gateway.stops;
    if stops.is_idle() {
        return None;
    }
    let value = match stops.find(permit) {
        Some(stop) => json!({"stop": stop.id, "scope": stop.scope.to_json(),
            "mode": stop.mode.as_str(), "by": stop.created_by,
            "created_at": stop.created_at, "expires_at": stop.expires_at}),
        None => json!({"stop": null}),
    };
    Some(Fact::new(Stage::Stop, Source::Memory, value))
}

/// A call with its content, as its agent gets it.
pub(super) struct ContentCall<'a> {
    pub(super) context: &'a Context,
    pub(super) admitted: &'a AdmittedCall,
    /// A caller that may leave meanwhile.
    pub(super) caller: Option<&'a mut ServerSession>,
    pub(super) exchange: &'a Exchange,
    pub(super) call: &'a mut CheckedCall,
}

/// Runs the stages of policy on content, in the order of [`Stage`], before the call is sent or stored. They may replace
/// the body. Caps come behind them ([`UncountedCall`]): they count calls, once, rather than decide.
///
/// # Errors
/// The first rejection; the caller left.
pub(super) async fn check_content(call: ContentCall<'_>) -> Result<(), ExchangeError> {
    box_in_place(|| ask_guards(call)).await.at(Stage::Guards)
}

/// Sets the guards of a call, before it is translated. `headers`: those of the request that it stands for. Without
/// guards in the configuration that is one look at an empty list.
pub(super) fn set_guards(
    context: &Context,
    exchange: &mut Exchange,
    admitted: &AdmittedCall,
    call: &mut CheckedCall,
    headers: &HeaderMap,
) {
    if exchange.call.config.guard.is_empty() {
        return;
    }
    let (proof, permit) = (&admitted.allowed.proof, &admitted.allowed.permit);
    let target_org = admitted.options().org.as_deref();
    let route_method = exchange.call.method.name_in(call.generation());
    let facts = || {
        let method = call.method_name.as_deref().or(route_method);
        let method = method.unwrap_or(exchange.call.method.label());
        let (parties, request_id) = ((&**proof, permit), exchange.call.request_id.as_str());
        let trace = headers.get("traceparent");
        CallFacts {
            trace: trace.and_then(|field| parse_trace(field.to_str().ok()?)),
            ..build_facts(parties, request_id, method, target_org)
        }
    };
    let target = (permit.target(), target_org);
    let side = || CallerSide {
        is_rpc: exchange.call.binding == Binding::Rpc,
        rpc_id: exchange.call.rpc_id.clone(),
    };
    let guards = &context.guards;
    call.guarded = guards.for_call(exchange.call.method, target, side, facts);
    if let Some(guarded) = &call.guarded {
        exchange.record.verdicts = Some(Arc::clone(&guarded.verdicts));
    }
}

/// Asks the guards of a call about it, and puts what they replace into it. The clock of the whole call holds, and stops
/// end the wait.
///
/// # Errors
/// `guard_rejected`, `guard_unavailable`, `agent_timeout`, `stopped`; the caller left.
async fn ask_guards(call: ContentCall<'_>) -> Result<(), ExchangeError> {
    let ContentCall {
        context,
        admitted,
        mut caller,
        exchange,
        call,
    } = call;
    let Some(guarded) = &call.guarded else {
        return Ok(());
    };
    if !guarded.has_phase(GuardPhase::Request) {
        return Ok(());
    }
    let (is_rpc, sends) = (call.method_name.is_some(), exchange.call.method.sends());
    let asked = guarded.check_request(&call.body, is_rpc, sends);
    let total = exchange.call.config.timeouts.total;
    let total = admitted.timeout.unwrap_or(total);
    let mut cut = context.relay.watch_exchange(exchange);
    let changed: Result<_, Rejection> = tokio::select! {
        biased;
        asked = asked => asked,
        why = cut.cancelled(Delivery::NotSent) => Err(why),
        () = sleep_until(exchange.call.started + total) => {
            let message =
                "guards did not judge the call within its time (timeouts.total); nothing was sent";
            let late = Rejection::new(Reason::AgentTimeout, message).with_fact("clock", "total");
            Err(late.with_delivery(Delivery::NotSent))
        }
        () = caller_gone(&mut caller) => return Err(ExchangeError::CallerLeft),
    };
    if let Some(changed) = changed? {
        call.body = changed;
    }
    Ok(())
}

/// Asks guards about what an agent that polls replied to a job. Returns another form of it; `None`: it passes as it is.
///
/// # Errors
/// `guard_rejected`, `guard_unavailable`; a fact about the call cannot be read now.
pub(super) async fn ask_about_reply(
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
        let (parties, method) = ((&proof, &permit), method.unwrap_or_default());
        build_facts(parties, request_id(job).as_str(), method, target_org)
    };
    let target = (permit.target(), target_org);
    let side = || CallerSide {
        is_rpc: false,
        rpc_id: None,
    };
    let guards = &context.guards;
    let Some(guarded) = guards.for_call(Method::SendMessage, target, side, facts) else {
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
pub(super) fn rewrite_guarded(
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

/// A call that is to be counted when it is accepted, which may be in another task.
pub(super) struct UncountedCall {
    caps: Arc<Caps>,
    config: Arc<Config>,
    facts: Facts,
}

impl UncountedCall {
    /// Returns the call, if there are caps and it sends a message.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(super) async fn from_call(
        gateway: &Gateway,
        exchange: &Exchange,
        allowed: &AllowedCaller,
    ) -> Result<Option<Self>, Rejection> {
        let config = &exchange.call.config;
        if !Caps::are_configured(config) || !exchange.call.method.sends() {
            return Ok(None);
        }
        let AllowedCaller { proof, permit } = allowed;
        let names = exchange.call.names.get();
        let names = names.map(|names| Names::clone(names)).unwrap_or_default();
        let method = exchange.call.method;
        let facts = Facts::for_call(&gateway.hierarchy, proof, permit, method, names).await;
        let facts = facts.at(Stage::Caps)?;
        Ok(Some(Self {
            caps: Arc::clone(&gateway.caps),
            config: Arc::clone(config),
            facts,
        }))
    }

    /// Counts it.
    ///
    /// # Errors
    /// `cap_reached`, `store_unavailable`.
    pub(super) async fn count(&self) -> Result<Box<Charge>, Rejection> {
        let charge = self.caps.count_call(&self.config, &self.facts).await;
        charge.map(Box::new).at(Stage::Caps)
    }

    /// Returns the charge of its bytes and its time; it was counted when it was accepted.
    pub(super) fn measure(&self) -> Box<Charge> {
        Box::new(self.caps.measure_call(&self.config, &self.facts))
    }
}

/// Counts a call that is to be counted, if there is one.
///
/// # Errors
/// As [`UncountedCall::count`].
pub(super) async fn count_call(
    call: Option<&UncountedCall>,
) -> Result<Option<Box<Charge>>, Rejection> {
    match call {
        Some(call) => call.count().await.map(Some),
        None => Ok(None),
    }
}

/// Counts a call that is about to be sent to its agent. It counts from [`Charge::mark_sent`] on.
///
/// # Errors
/// `cap_reached`, `store_unavailable`.
pub(super) async fn count_before_sending(
    gateway: &Gateway,
    exchange: &mut Exchange,
    allowed: &AllowedCaller,
) -> Result<(), Rejection> {
    if let Some(call) = UncountedCall::from_call(gateway, exchange, allowed).await? {
        exchange.record.charge = Some(call.count().await?);
    }
    Ok(())
}
