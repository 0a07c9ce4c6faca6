//! One JSON-RPC call, from admission to its destination; and the steps on the body of every call.

use std::ops::ControlFlow;

use http::Method;

use super::body::{self, CallShape, ReceivedBody, read_json};
use super::checked_call::CheckedCall;
use super::ownership::authorize_references;
use super::prefer::prefers_async;
use super::{Request, method_not_allowed, ownership};
use crate::a2a::Generation;
use crate::a2a::accept::prefers_stream;
use crate::a2a::envelope;
use crate::a2a::method::Method as A2aMethod;
use crate::a2a::refs::Refs;
use crate::a2a::task::Binding;
use crate::hops::count_hops;
use crate::identity::Role;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::proxy::admit::{AdmittedCall, AllowedCaller, authorize_caller};
use crate::proxy::destination::deferral::{JobFormat, JobRequest, may_request_job, requested_job};
use crate::proxy::destination::wake_wait::{self, WakePlan};
use crate::proxy::destination::{self, AwayCall, deferral, idempotency};
use crate::proxy::offload;
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::outcome::box_cold_path;
use crate::proxy::relay::forward::choose_rewrite;
use crate::proxy::relay::rewrite::Rewrite;
use crate::rejection::{Reason, Rejection};

/// The forms of a body that becomes a JSON-RPC call.
pub(in crate::proxy) enum BodyForm {
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

/// Serves `POST /workspaces/{id}/a2a`. Each step takes the proof of the step before.
pub(in crate::proxy) async fn serve_call(
    request: &mut Request<'_>,
    target: Result<WorkspaceId, InvalidWorkspaceId>,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    let context = request.context;
    let _slot = context.take_slot(request.session)?;
    if request.head().method != Method::POST {
        let message = "send A2A calls with POST; GET reads the agent's card";
        return Err(method_not_allowed(message, "GET, HEAD, POST, OPTIONS").into());
    }
    let head = request.session.req_header();
    let allowed = authorize_caller(&context.gateway, request.exchange, head, target).await?;
    let admitted = match context.gateway.resolution.resolve(&allowed.permit).await {
        Ok(destination) => {
            let (head, config) = (request.session.req_header(), &request.exchange.config);
            AdmittedCall::new(allowed, destination, head, config)?
        }
        Err(away) => return box_cold_path(send_while_away(request, allowed, away)).await,
    };
    let received = read_json(request, admitted.allowed.account()).await?;
    send_call(request, admitted, received, BodyForm::Call).await
}

/// Serves a call to a target that is away: answers it without its agent, or rejects it with `why`.
async fn send_while_away(
    request: &mut Request<'_>,
    allowed: AllowedCaller,
    why: Rejection,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    if let Some(plan) = wake_wait::plan_wake(request, &allowed, &why).await? {
        return box_cold_path(wake_and_send(request, allowed, plan, why)).await;
    }
    let head = request.head();
    let passes_by = matches!(
        why.reason,
        Reason::WorkspaceOffline | Reason::WorkspaceRestarting
    );
    let defers = prefers_async(&head.headers);
    // A stored answer is replayed whether the target is reachable or not.
    let keyed = head.headers.contains_key(idempotency::IDEMPOTENCY_KEY);
    if !passes_by || !(defers || keyed || may_request_job(head)) {
        return Err(why.into());
    }
    match read_while_away(request, &allowed, defers).await {
        Ok(Some(ended)) => Ok(ended),
        // For a body that is not to be deferred, the unreachable target outranks errors in the body.
        Err(ExchangeOutcome::Refused(_))
            if !defers && request.exchange.method == A2aMethod::Unread =>
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
) -> Result<ExchangeOutcome, ExchangeOutcome> {
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
    if !wake_wait::may_wake(request.exchange.method) {
        return Err(why.into());
    }
    let admitted = wake_wait::wait_until_awake(request, allowed, plan, bytes).await?;
    send_call(request, admitted, received, BodyForm::Call).await
}

/// Reads and checks the body of a call to a target that is away, and answers it.
async fn read_while_away(
    request: &mut Request<'_>,
    allowed: &AllowedCaller,
    defers: bool,
) -> Result<Option<ExchangeOutcome>, ExchangeOutcome> {
    let hops = request_hops(request)?;
    let received = read_json(request, allowed.account()).await?;
    check_while_away(request, allowed, received, (hops, defers, false)).await
}

/// Returns the number of gateways that the request has passed, this one included.
///
/// # Errors
/// As [`count_hops`].
pub(super) fn request_hops(request: &Request<'_>) -> Result<u32, Rejection> {
    count_hops(
        &request.head().headers,
        request.exchange.config.forward.max_hops,
    )
}

/// Checks the body of a call to a target that is away, and answers it. `None` if the call can be neither deferred nor
/// replayed, and does not ask for a deferred call. `owned`: its references are checked in any case.
async fn check_while_away(
    request: &mut Request<'_>,
    allowed: &AllowedCaller,
    received: ReceivedBody,
    (hops, defers, owned): (u32, bool, bool),
) -> Result<Option<ExchangeOutcome>, ExchangeOutcome> {
    let resolution = &request.context.gateway.resolution;
    let options = resolution.load_options(&allowed.permit).await?;
    let shape = CallShape {
        complete: options.complete,
        generation: options.generation,
        prefers_stream: prefers_stream(&request.head().headers),
        message_only: false,
    };
    let (call, refs) = match complete_call(request, allowed, received, &shape).await? {
        ControlFlow::Continue(completed) => completed,
        ControlFlow::Break(answered) => return Ok(Some(answered)),
    };
    if owned {
        let (gateway, method) = (&request.context.gateway, request.exchange.method);
        let push = options.push_notifications;
        ownership::check_references(gateway, method, push, allowed, &refs).await?;
    } else if requested_job(request.exchange.method, &refs).is_some() {
        return Ok(None);
    }
    let away = AwayCall {
        allowed,
        hops,
        push_notifications: options.push_notifications,
        defers,
    };
    destination::answer_while_away(request, away, call, &refs).await
}

/// Checks a call that is JSON-RPC, or becomes it, from its body on, and passes it to its destination.
pub(in crate::proxy) async fn send_call(
    request: &mut Request<'_>,
    mut admitted: AdmittedCall,
    received: ReceivedBody,
    form: BodyForm,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
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
            box_cold_path(request.target_generation(&admitted, is_bare)).await?
        }
    };
    let shape = match form {
        BodyForm::Call => CallShape {
            complete: options.complete,
            generation,
            prefers_stream: prefers_stream(&request.head().headers),
            message_only: false,
        },
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
    authorize_references(request, &mut admitted, &refs, Binding::Rpc).await?;
    call.rewrite = match form {
        BodyForm::Call => choose_rewrite(context, request.exchange, &admitted, &call).await?,
        BodyForm::Message { .. } => Some(Rewrite::BareResult),
    };
    drop(refs);
    destination::answer_call(request, admitted, call).await
}

/// Completes a body, answers a call about a deferred call, and reads the key. Returns the call with its references,
/// which are still to be checked.
///
/// # Errors
/// As [`body::complete_body`], [`deferral::answer_job_request`] and [`idempotency::read_key`].
async fn complete_call(
    request: &mut Request<'_>,
    allowed: &AllowedCaller,
    received: ReceivedBody,
    shape: &CallShape,
) -> Result<ControlFlow<ExchangeOutcome, (CheckedCall, Refs)>, ExchangeOutcome> {
    let ReceivedBody { body, share } = received;
    let completed = body::complete_body(request.exchange, &allowed.permit, &body, shape).await?;
    if completed.method.returns_content() {
        allowed.proof.require_at_least(Role::Admin)?;
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
    let key = idempotency::read_key(request.exchange, head, Some(&completed), &body).await?;
    let (call, refs) = CheckedCall::from_completed(completed, shape.generation, share);
    Ok(ControlFlow::Continue((CheckedCall { key, ..call }, refs)))
}
