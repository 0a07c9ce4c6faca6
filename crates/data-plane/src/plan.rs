//! Decides what a call comes to, and has it done: the agent answers it, its inbox, an earlier call with the same key,
//! or the deferral of the call; or it waits until its agent is awake.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::Instant;

use crate::admission::{
    AdmittedCall, AllowedCaller, authenticate_caller, method_not_allowed, open_exchange,
};
use crate::body::read_json;
use crate::complete::{
    CallShape, CheckedCall, IDEMPOTENCY_KEY, authorize_references, check_references, complete_body,
    prefers_async, read_key, watch_answer,
};
use crate::deferral::{self, JobFormat, JobRequest, may_request_job, requested_job};
use crate::filters::Rewrite;
use crate::idempotency;
use crate::inbox;
use crate::listener::internal_error;
use crate::parking::Turn;
use crate::policy::{
    authorize_caller, authorize_target, check_access, count_before_sending, rewrite_guarded,
    set_guards,
};
use crate::reach::{ConnectedAgent, reach_agent};
use crate::record::{Answered, Exchange, ExchangeError, WholeAnswer, box_cold_path};
use crate::response::{Attempt, ExpectedAnswer, OutboundCall, answer_head, relay_call};
use crate::services::{ReceivedBody, Request};
use crate::upstream::{AgentConnection, Clocks, WireRequest, is_event_stream};
use crate::upstream_request::{choose_rewrite, prepare_request, restore_event_id};
use crate::wake::{WakePlan, may_wake, plan_wake, wait_until_awake};
use a2a::accept::prefers_stream;
use a2a::completion_steps::{CompletionStep, CompletionSteps};
use a2a::method::Method;
use a2a::refs::Refs;
use a2a::task::Binding;
use a2a::{Generation, envelope};
use access::caps::Caps;
use access::explain::Live;
use access::identity::Role;
use access::workspace::CallerProof;
use directory::{Agent, Destination, Slot};
use grpc::split_tenant;
use kernel::config::Bridging;
use kernel::hops::count_hops;
use kernel::ids::{InvalidWorkspaceId, WorkspaceId};
use kernel::offload;
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::stage::Stage;
use mailbox::calls::UnclaimedKey;

/// Answers a call to a target that is resolved: by its inbox, by an earlier call with its key, by deferral if the agent
/// is at capacity and the caller prefers that, or else by the agent.
pub(super) async fn answer_call(
    request: &mut Request<'_>,
    mut admitted: AdmittedCall,
    mut call: CheckedCall,
) -> Result<Answered, ExchangeError> {
    let context = request.context;
    let agent = match &admitted.destination {
        Destination::Agent(agent) => Arc::clone(agent),
        Destination::Inbox(_) => {
            return box_cold_path(inbox::answer_call(request, admitted, call)).await;
        }
    };
    let headers = &request.session.req_header().headers;
    set_guards(context, request.exchange, &admitted, &mut call, headers);
    if request.exchange.call.method == Method::SubscribeToTask {
        box_cold_path(restore_event_id(request)).await;
    }
    let kept = keep_repeatable(request, &admitted, &call).await?;
    call.may_repeat = kept.is_some();
    let prepared = prepare_request(request, &admitted, &agent, &mut call).await?;
    // Only methods of JSON-RPC have a name.
    let kept = kept.filter(|_| call.method_name.is_some() && call.may_repeat);
    let tried = call.generation();
    let clocks = Clocks::new(
        &request.exchange.call.config.timeouts,
        request.exchange.call.started,
        admitted.timeout,
        agent.idle_timeout,
    )
    .until(request.exchange.call.deadline);
    let unclaimed = match replay_or_count(request, &admitted, &call, clocks.total).await? {
        ControlFlow::Continue(unclaimed) => unclaimed,
        ControlFlow::Break(replayed) => return Ok(replayed),
    };
    let prepared = (prepared, clocks.total);
    // A token of one request proves nothing the second time.
    let follows = (agent.proof == CallerProof::Pair).then(|| Arc::clone(&agent));
    let called = Arc::clone(&agent);
    let reached = reach_agent(request, (&admitted, called), &mut call, prepared).await;
    let (slot, reached) = match reached {
        Ok(reached) => reached,
        Err(ExchangeError::Refused(busy)) if busy.reason == Reason::AgentBusy => {
            // Releases the idempotency key: the deferred call claims it again.
            drop(unclaimed);
            return box_cold_path(answer_at_capacity(request, &admitted, call, busy)).await;
        }
        Err(ended) => return Err(ended),
    };
    // It may have waited for a place, and its body for its caller.
    let allowed = admitted.allowed.as_pair();
    let stopped = check_access(&context.gateway, allowed, &mut Live).await;
    stopped.map_err(|why| why.with_delivery(Delivery::NotSent))?;
    let turn = admitted.turn.take();
    // The proof and the permit are no longer needed, and a stream may last for half an hour.
    let mut kept = kept.map(move |kept| Box::new((kept, admitted, agent)));
    let (done, key) = (call.done, call.key.take());
    let attempt = kept
        .as_ref()
        .map_or(Attempt::Only, |_| first_attempt(request, &call));
    let again = follows.clone();
    let call = outbound_call(
        request,
        (call, reached),
        clocks,
        (slot, turn),
        (follows, attempt),
    );
    if let (Some(key), Some(unclaimed)) = (key, unclaimed) {
        let reservation = (key, unclaimed, done);
        return box_cold_path(idempotency::execute_once(request, reservation, call)).await;
    }
    request.exchange.record.mark_sent_with_task();
    let answer = |head: &ResponseHeader, session: &ServerSession, exchange: &Exchange| {
        if is_event_stream(head) {
            kept = None;
        }
        answer_head(context, head, session, exchange, done)
    };
    let (session, exchange) = (&mut *request.session, &mut *request.exchange);
    let ended = relay_call(&context.relay, session, exchange, call, answer).await;
    match (ended, kept) {
        (Err(ExchangeError::NotRun(first)), Some(kept)) => {
            let first = (tried, again, *first);
            box_cold_path(repeat_call(request, *kept, clocks, first)).await
        }
        (ended, _) => ended,
    }
}

/// Returns the first attempt at a call, as it is sent.
fn first_attempt(request: &Request<'_>, call: &CheckedCall) -> Attempt {
    let is_set = call.version_1_0 || call.wire.is_some() || request.exchange.call.declares_1_0;
    let has_version = is_set || call.generation() == Generation::V0;
    Attempt::First { has_version }
}

/// Returns a call to forward over the connection to its agent.
fn outbound_call(
    request: &Request<'_>,
    (mut call, reached): (CheckedCall, ConnectedAgent),
    clocks: Clocks,
    (slot, turn): (Slot, Option<Turn>),
    (follows, attempt): (Option<Arc<Agent>>, Attempt),
) -> (OutboundCall, AgentConnection) {
    let is_bare = call.done.has(CompletionStep::Envelope);
    let is_rewritten = call.rewrite.is_some();
    let expected = ExpectedAnswer::of_call(&request.exchange.call, is_bare, is_rewritten);
    let prepared = reached.prepared;
    let forward = OutboundCall {
        peer: reached.peer,
        call: WireRequest::new(prepared.head, call.body),
        follows,
        keeps_place: call.method_name.is_some(),
        share: call.share,
        clocks,
        rewrite: rewrite_guarded(call.guarded.take(), call.rewrite),
        snapshot: prepared.snapshot,
        learner: call.learner,
        slot: Some(slot),
        turn,
        expected,
        attempt,
    };
    (forward, reached.connection)
}

// Calls to agents that speak another generation than their card says: -32601 and -32009 prove that nothing ran, and the
// call is made once more in the other one.

/// Longest body that is kept to be sent once more. It is not charged to its caller while the agent works.
const REPEATED_BYTES_MAX: usize = 64 * 1024;

/// What a call needs to be made once more, in the other generation.
struct RepeatableCall {
    body: Bytes,
    method_name: Option<Cow<'static, str>>,
    version_1_0: bool,
    done: CompletionSteps,
    is_bare: bool,
}

/// Returns what repeats a call that both generations have and that has no further effects here: no key, and no guard
/// that would be asked twice. `None`: the agent is known to take the method in neither generation, or its bridge is
/// off.
async fn keep_repeatable(
    request: &Request<'_>,
    admitted: &AdmittedCall,
    call: &CheckedCall,
) -> Result<Option<RepeatableCall>, Rejection> {
    let method = request.exchange.call.method;
    let is_of_both = method.sends()
        || matches!(
            method,
            Method::GetTask | Method::CancelTask | Method::SubscribeToTask
        );
    let is_rewritten = !matches!(call.rewrite, None | Some(Rewrite::BareResult));
    if !is_of_both
        || is_rewritten
        || call.method_name.is_none()
        || call.key.is_some()
        || call.guarded.is_some()
        || call.body.len() > REPEATED_BYTES_MAX
        || admitted.options().bridge == Bridging::Off
    {
        return Ok(None);
    }
    let resolution = &request.context.gateway.resolution;
    let finding = resolution.finding(&admitted.allowed.permit, method).await?;
    let is_known_in_none = finding.is_some_and(|finding| finding.takes.is_none());
    Ok((!is_known_in_none).then(|| RepeatableCall {
        body: call.body.clone(),
        method_name: call.method_name.clone(),
        version_1_0: call.version_1_0,
        done: call.done,
        is_bare: call.rewrite.is_some(),
    }))
}

/// Makes a call once more, in the generation that was not `tried`, and keeps what that shows. Where it cannot be made,
/// or is not run either, the caller gets the answer to the first attempt.
async fn repeat_call(
    request: &mut Request<'_>,
    (kept, admitted, agent): (RepeatableCall, AdmittedCall, Arc<Agent>),
    clocks: Clocks,
    (tried, follows, first): (Generation, Option<Arc<Agent>>, WholeAnswer),
) -> Result<Answered, ExchangeError> {
    let (context, method) = (request.context, request.exchange.call.method);
    let (other, done) = (tried.other(), kept.done);
    let share = context.relay.load.new_share(admitted.allowed.account());
    let mut call = CheckedCall {
        method_name: kept.method_name,
        version_1_0: kept.version_1_0,
        done,
        rewrite: kept.is_bare.then_some(Rewrite::BareResult),
        learner: watch_answer(&context.gateway, method, &admitted, Binding::Rpc),
        speaks: Some(other),
        ..CheckedCall::json_rpc(kept.body, share)
    };
    request.exchange.call.translation = None;
    let reached = async {
        let prepared = prepare_request(request, &admitted, &agent, &mut call).await?;
        let (resolution, permit) = (&context.gateway.resolution, &admitted.allowed.permit);
        let observer = resolution
            .observer(permit, method, (other, call.agrees))
            .await?;
        let (called, prepared) = (Arc::clone(&agent), (prepared, clocks.total));
        let (slot, reached) =
            reach_agent(request, (&admitted, called), &mut call, prepared).await?;
        check_access(&context.gateway, admitted.allowed.as_pair(), &mut Live).await?;
        Ok::<_, ExchangeError>((observer, slot, reached))
    };
    let (observer, slot, reached) = match reached.await {
        Ok(reached) => reached,
        Err(ExchangeError::Refused(_)) => {
            let (mut head, body) = first;
            head.insert_header(header::CONTENT_LENGTH, body.len())
                .map_err(internal_error)?;
            return request.respond(head, body).await;
        }
        Err(ended) => return Err(ended),
    };
    drop((admitted, agent));
    let attempt = Attempt::Second(Box::new((observer, first)));
    let call = outbound_call(
        request,
        (call, reached),
        clocks,
        (slot, None),
        (follows, attempt),
    );
    let answer = |head: &ResponseHeader, session: &ServerSession, exchange: &Exchange| {
        answer_head(context, head, session, exchange, done)
    };
    let (session, exchange) = (&mut *request.session, &mut *request.exchange);
    relay_call(&context.relay, session, exchange, call, answer).await
}

/// Replays an earlier call with the same key, or else counts the call for caps. Returns its key, if it has one.
async fn replay_or_count(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    call: &CheckedCall,
    until: Instant,
) -> Result<ControlFlow<Answered, Option<UnclaimedKey>>, ExchangeError> {
    let mut unclaimed = None;
    if let Some(key) = &call.key {
        let state = idempotency::replay_or_reserve(request, key, until, call.done);
        match box_cold_path(state).await? {
            ControlFlow::Continue(free) => unclaimed = Some(free),
            ControlFlow::Break(ended) => return Ok(ControlFlow::Break(ended)),
        }
    }
    if Caps::are_configured(&request.exchange.call.config) {
        let (gateway, allowed) = (&request.context.gateway, &admitted.allowed);
        box_cold_path(count_before_sending(gateway, request.exchange, allowed)).await?;
    }
    Ok(ControlFlow::Continue(unclaimed))
}

/// Answers a call to a target at capacity: by deferral if its caller prefers that, or else by `why`.
async fn answer_at_capacity(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    mut call: CheckedCall,
    why: Rejection,
) -> Result<Answered, ExchangeError> {
    // Counted again when it is accepted.
    request.exchange.record.charge = None;
    // It is translated again when it is sent.
    call.undo_translation();
    let translated = call.path.is_some() || call.rewrite.is_some();
    let sends = request.exchange.call.method == Method::SendMessage && !translated;
    if !sends || !prefers_async(&request.head().headers) {
        return Err(why.into());
    }
    let deferred = deferral::defer_call(request, &admitted.allowed, admitted.hops, call).await?;
    deferred.ok_or_else(|| why.into())
}

// One JSON-RPC call, from admission to its destination; and the steps on the body of every call.

/// The forms of a body that becomes a JSON-RPC call.
pub(super) enum BodyForm {
    /// A JSON-RPC call, or what is completed to one.
    Call,
    /// A message alone, of HTTP+JSON.
    Message {
        /// True for the streaming method.
        stream: bool,
        /// The generation of the call; `None` for the agent's.
        generation: Option<Generation>,
    },
}

/// The plan of a call to a permitted target, before its body is read.
pub(super) enum Plan {
    /// It goes to its agent, or into the inbox of one that polls.
    Send(AdmittedCall),
    /// It waits until its agent, which sleeps, is awake. The rejection is for a call that wakes no agent.
    Park(Box<(AllowedCaller, WakePlan, Rejection)>),
    /// Its target is away: an earlier call with its key answers it, or its deferral, or else the rejection.
    Away(Box<(AllowedCaller, Rejection)>),
}

/// Decides what a call comes to, by where its target is.
///
/// # Errors
/// `invalid_request`: `X-Timeout`, `X-A2A-Hops`; `store_unavailable`.
pub(super) async fn plan_call(
    request: &Request<'_>,
    allowed: AllowedCaller,
) -> Result<Plan, Rejection> {
    let resolution = &request.context.gateway.resolution;
    let why = match resolution.resolve(&allowed.permit).await {
        Ok(destination) => {
            let (head, config) = (request.head(), &request.exchange.call.config);
            let admitted = AdmittedCall::new(allowed, destination, head, config);
            return admitted.map(Plan::Send);
        }
        Err(why) => why,
    };
    let plan = box_cold_path(plan_wake(request, &allowed, &why)).await?;
    Ok(match plan {
        Some(plan) => Plan::Park(Box::new((allowed, plan, why))),
        None => Plan::Away(Box::new((allowed, why))),
    })
}

/// Serves `POST /workspaces/{id}/a2a`. Each step takes the proof of the step before.
pub(super) async fn serve_call(
    request: &mut Request<'_>,
    target: Result<WorkspaceId, InvalidWorkspaceId>,
) -> Result<Answered, ExchangeError> {
    let context = request.context;
    let _slot = open_exchange(request.session, &context.origins.get(), &context.relay.load)?;
    if request.head().method != http::Method::POST {
        let message = "send A2A calls with POST; GET reads the agent's card";
        let refusal = method_not_allowed(message, "GET, HEAD, POST, OPTIONS");
        return Err(refusal.at(Stage::Route).into());
    }
    let head = request.session.req_header();
    let allowed = authorize_caller(&context.gateway, request.exchange, head, target).await?;
    serve_allowed(request, allowed).await
}

/// Serves a call of JSON-RPC at the origin: its tenant names the workspace, and the agent's own tenant behind a slash.
pub(super) async fn serve_by_tenant(request: &mut Request<'_>) -> Result<Answered, ExchangeError> {
    let context = request.context;
    let _slot = open_exchange(request.session, &context.origins.get(), &context.relay.load)?;
    let head = request.session.req_header();
    let proof = authenticate_caller(&context.gateway, request.exchange, head).await?;
    let received = read_json(request, proof.account).await?;
    let read = offload::run_on_body(&received.body, |body| {
        envelope::replace_tenant(body, |tenant| split_tenant(tenant).tenant)
    });
    let (body, tenant) = read.await.unwrap_or_default();
    let target = WorkspaceId::parse(split_tenant(&tenant).workspace).map_err(|_| {
        let message = "name the workspace in the member `tenant` of the params, or POST to /workspaces/{id}/a2a";
        Rejection::new(Reason::InvalidWorkspaceId, message)
    });
    let target = target.at(Stage::Target)?;
    request.exchange.call.target = Some(target.clone());
    let allowed = authorize_target(&context.gateway, request.exchange, proof, &target).await?;
    let body = body.into();
    request.early_body = Some(ReceivedBody { body, ..received });
    serve_allowed(request, allowed).await
}

/// Serves a call of JSON-RPC whose caller may reach its target.
pub(super) async fn serve_allowed(
    request: &mut Request<'_>,
    allowed: AllowedCaller,
) -> Result<Answered, ExchangeError> {
    let admitted = match plan_call(request, allowed).await? {
        Plan::Send(admitted) => admitted,
        Plan::Park(parked) => {
            let (allowed, plan, why) = *parked;
            return box_cold_path(wake_and_send(request, allowed, plan, why)).await;
        }
        Plan::Away(away) => {
            let (allowed, why) = *away;
            return box_cold_path(send_while_away(request, allowed, why)).await;
        }
    };
    let received = read_json(request, admitted.allowed.account()).await?;
    send_call(request, admitted, received, BodyForm::Call).await
}

/// Serves a call to a target that is away: answers it without its agent, or rejects it with `why`.
async fn send_while_away(
    request: &mut Request<'_>,
    allowed: AllowedCaller,
    why: Rejection,
) -> Result<Answered, ExchangeError> {
    let head = request.head();
    let passes_by = matches!(
        why.reason,
        Reason::WorkspaceOffline | Reason::WorkspaceRestarting
    );
    let defers = prefers_async(&head.headers);
    // A stored answer is replayed whether the target is reachable or not.
    let keyed = head.headers.contains_key(IDEMPOTENCY_KEY);
    if !passes_by || !(defers || keyed || may_request_job(head)) {
        return Err(why.into());
    }
    let answered = async {
        let hops = request_hops(request)?;
        let received = read_json(request, allowed.account()).await?;
        check_while_away(request, &allowed, received, (hops, defers, false)).await
    };
    match answered.await {
        Ok(Some(ended)) => Ok(ended),
        // For a body that is not to be deferred, the unreachable target outranks errors in the body.
        Err(ExchangeError::Refused(_))
            if !defers && request.exchange.call.method == Method::Unread =>
        {
            Err(why.into())
        }
        Err(ended) => Err(ended),
        Ok(None) => Err(why.into()),
    }
}

/// Serves a call to a target that sleeps: answers it without its agent if it can be replayed, or deferred as its caller
/// prefers; else sends it once the agent is awake. A deferred call wakes the target when it is first tried.
async fn wake_and_send(
    request: &mut Request<'_>,
    allowed: AllowedCaller,
    plan: WakePlan,
    why: Rejection,
) -> Result<Answered, ExchangeError> {
    let hops = request_hops(request)?;
    let defers = prefers_async(&request.head().headers);
    let received = read_json(request, allowed.account()).await?;
    let bytes = received.body.len();
    // The checks take the same bytes: they are made again when the agent is awake.
    let copy = ReceivedBody {
        body: received.body.clone(),
        share: request.context.relay.load.new_share(allowed.account()),
    };
    let owned = true;
    if let Some(ended) = check_while_away(request, &allowed, copy, (hops, defers, owned)).await? {
        return Ok(ended);
    }
    if !may_wake(request.exchange.call.method) {
        return Err(why.into());
    }
    let admitted = wait_until_awake(request, allowed, plan, bytes).await?;
    send_call(request, admitted, received, BodyForm::Call).await
}

/// Returns the number of gateways that the request has passed, this one included.
///
/// # Errors
/// As [`count_hops`].
pub(super) fn request_hops(request: &Request<'_>) -> Result<u32, Rejection> {
    count_hops(
        &request.head().headers,
        request.exchange.call.config.forward.max_hops,
    )
    .at(Stage::Fields)
}

/// Checks the body of a call to a target that is away, and answers it: by an earlier call with its key, or by deferral
/// if its caller prefers that. `None` if neither applies, and it does not ask for a deferred call. `owned`: its
/// references are checked in any case.
async fn check_while_away(
    request: &mut Request<'_>,
    allowed: &AllowedCaller,
    received: ReceivedBody,
    (hops, defers, owned): (u32, bool, bool),
) -> Result<Option<Answered>, ExchangeError> {
    let resolution = &request.context.gateway.resolution;
    let options = resolution.load_options(&allowed.permit).await?;
    let streams = prefers_stream(&request.head().headers);
    let shape = CallShape::of_call(&options, options.generation, streams);
    let (call, refs) = match complete_call(request, allowed, received, &shape).await? {
        ControlFlow::Continue(completed) => completed,
        ControlFlow::Break(answered) => return Ok(Some(answered)),
    };
    if owned {
        let (gateway, method) = (&request.context.gateway, request.exchange.call.method);
        let push = options.push_notifications;
        check_references(gateway, method, push, allowed, &refs).await?;
    } else if requested_job(request.exchange.call.method, &refs).is_some() {
        return Ok(None);
    }
    let (gateway, method) = (&request.context.gateway, request.exchange.call.method);
    if let Some(key) = &call.key {
        let until = request.exchange.call.started + request.exchange.call.config.timeouts.total;
        let state = idempotency::replay_or_reserve(request, key, until, call.done).await?;
        if let ControlFlow::Break(ended) = state {
            return Ok(Some(ended));
        }
    }
    if !defers || method != Method::SendMessage {
        return Ok(None);
    }
    check_references(gateway, method, options.push_notifications, allowed, &refs).await?;
    deferral::defer_call(request, allowed, hops, call).await
}

/// Checks a call that is JSON-RPC, or becomes it, from its body on, and passes it to its destination.
pub(super) async fn send_call(
    request: &mut Request<'_>,
    mut admitted: AdmittedCall,
    received: ReceivedBody,
    form: BodyForm,
) -> Result<Answered, ExchangeError> {
    let context = request.context;
    let options = admitted.options();
    let generation = match form {
        BodyForm::Message {
            generation: Some(generation),
            ..
        } => generation,
        _ if options.has_card => options.generation,
        _ => {
            let is_bare = matches!(form, BodyForm::Message { .. })
                || offload::run_on_body(&received.body, envelope::is_bare).await;
            box_cold_path(request.target_generation(&admitted, is_bare))
                .await
                .at(Stage::Call)?
        }
    };
    let shape = match form {
        BodyForm::Call => {
            let streams = prefers_stream(&request.head().headers);
            CallShape::of_call(options, generation, streams)
        }
        BodyForm::Message { stream, .. } => CallShape {
            complete: CallShape::with_envelope(options.complete),
            generation,
            prefers_stream: stream,
            message_only: true,
        },
    };
    let (mut call, refs) = match complete_call(request, &admitted.allowed, received, &shape).await?
    {
        ControlFlow::Continue(completed) => completed,
        ControlFlow::Break(answered) => return Ok(answered),
    };
    authorize_references(request, &mut admitted, &mut call, &refs).await?;
    call.rewrite = match form {
        BodyForm::Call => {
            let rewrite = choose_rewrite(context, request.exchange, &admitted, &call).await;
            rewrite.at(Stage::Call)?
        }
        BodyForm::Message { .. } => Some(Rewrite::BareResult),
    };
    drop(refs);
    answer_call(request, admitted, call).await
}

/// Completes a body, answers a call about a deferred call, and reads the key. Returns the call with its references,
/// which are still to be checked.
///
/// # Errors
/// As [`complete_body`], [`deferral::answer_job_request`] and [`read_key`].
async fn complete_call(
    request: &mut Request<'_>,
    allowed: &AllowedCaller,
    received: ReceivedBody,
    shape: &CallShape,
) -> Result<ControlFlow<Answered, (CheckedCall, Refs)>, ExchangeError> {
    let ReceivedBody { body, share } = received;
    let completed = complete_body(request.exchange, &allowed.permit, &body, shape).await;
    let completed = completed.at(Stage::Envelope)?;
    let headers = &request.session.req_header().headers;
    let names = request.exchange.read_names(headers, &completed.body);
    names.await;
    if completed.method.returns_content() {
        let allows = allowed.proof.require_at_least(Role::Admin);
        allows.at(Stage::Role)?;
    }
    if !shape.message_only
        && let Some(id) = requested_job(completed.method, &completed.refs)
    {
        let query = JobRequest {
            proof: &allowed.proof,
            target: Some(allowed.permit.target()),
            id,
            format: JobFormat::for_call(&completed),
        };
        if let Some(answered) = box_cold_path(deferral::answer_job_request(request, query)).await? {
            return Ok(ControlFlow::Break(answered));
        }
    }
    let head = request.session.req_header();
    let key = read_key(request.exchange, head, Some(&completed), &body).await;
    let key = key.at(Stage::Envelope)?;
    let (call, refs) = CheckedCall::from_completed(completed, shape.generation, share);
    Ok(ControlFlow::Continue((CheckedCall { key, ..call }, refs)))
}
