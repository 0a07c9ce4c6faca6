//! One JSON-RPC call, from admission to its destination; and the steps on the body of every call.

use std::ops::ControlFlow;

use http::Method;

use super::body::{self, CallShape, Received, read_json};
use super::checked::CheckedCall;
use super::ownership::authorize_references;
use super::prefer::respond_async;
use super::{Request, ownership, wrong_method};
use crate::a2a::Generation;
use crate::a2a::accept::prefers_stream;
use crate::a2a::envelope;
use crate::a2a::method::Method as A2aMethod;
use crate::a2a::refs::Refs;
use crate::a2a::task::Binding;
use crate::hops::hops;
use crate::identity::Role;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::proxy::admit::{Admitted, Allowed, allow};
use crate::proxy::beside;
use crate::proxy::destination::deferred::{AskedJob, JobWords, asked_job, may_ask_for_a_job};
use crate::proxy::destination::parked::{self, Sleeper};
use crate::proxy::destination::{self, Away, deferred, idempotency};
use crate::proxy::outcome::Ended;
use crate::proxy::outcome::rare;
use crate::proxy::relay::forward::rewrite;
use crate::proxy::relay::rewrite::Rewrite;
use crate::rejection::{Reason, Rejection};

/// The forms of a body that becomes a JSON-RPC call.
pub(in crate::proxy) enum Form {
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
pub(in crate::proxy) async fn call(
    request: &mut Request<'_>,
    target: Result<WorkspaceId, InvalidWorkspaceId>,
) -> Result<Ended, Ended> {
    let context = request.context;
    let _place = context.enter(request.session)?;
    if request.head().method != Method::POST {
        let message = "send A2A calls with POST; GET reads the agent's card";
        return Err(wrong_method(message, "GET, HEAD, POST, OPTIONS").into());
    }
    let head = request.session.req_header();
    let allowed = allow(&context.gateway, request.exchange, head, target).await?;
    let admitted = match context.gateway.resolution.resolve(&allowed.permit).await {
        Ok(destination) => {
            let (head, config) = (request.session.req_header(), &request.exchange.config);
            Admitted::new(allowed, destination, head, config)?
        }
        Err(away) => return rare(send_while_away(request, allowed, away)).await,
    };
    let received = read_json(request, admitted.allowed.account()).await?;
    send(request, admitted, received, Form::Call).await
}

/// Serves a call to a target that is away: answers it without its agent, or rejects it with `why`.
async fn send_while_away(
    request: &mut Request<'_>,
    allowed: Allowed,
    why: Rejection,
) -> Result<Ended, Ended> {
    if let Some(sleeper) = parked::sleeper(request, &allowed, &why).await? {
        return rare(wake_and_send(request, allowed, sleeper, why)).await;
    }
    let head = request.head();
    let passes_by = matches!(
        why.reason,
        Reason::WorkspaceOffline | Reason::WorkspaceRestarting
    );
    let defers = respond_async(&head.headers);
    // A stored answer is replayed whether the target is reachable or not.
    let keyed = head.headers.contains_key(idempotency::IDEMPOTENCY_KEY);
    if !passes_by || !(defers || keyed || may_ask_for_a_job(head)) {
        return Err(why.into());
    }
    match read_while_away(request, &allowed, defers).await {
        Ok(Some(ended)) => Ok(ended),
        // For a body that is not to be deferred, the unreachable target outranks errors in the body.
        Err(Ended::Refused(_)) if !defers && request.exchange.method == A2aMethod::Unread => {
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
    allowed: Allowed,
    sleeper: Sleeper,
    why: Rejection,
) -> Result<Ended, Ended> {
    let hops = hops_of(request)?;
    let defers = respond_async(&request.head().headers);
    let received = read_json(request, allowed.account()).await?;
    let bytes = received.body.len();
    // The checks take the same bytes: they are made again when the agent is awake.
    let copy = Received {
        body: received.body.clone(),
        share: request.context.relay.load.share(allowed.account()),
    };
    let owned = true;
    if let Some(ended) = check_while_away(request, &allowed, copy, (hops, defers, owned)).await? {
        return Ok(ended);
    }
    if !parked::wakes(request.exchange.method) {
        return Err(why.into());
    }
    let admitted = parked::wait_until_awake(request, allowed, sleeper, bytes).await?;
    send(request, admitted, received, Form::Call).await
}

/// Reads and checks the body of a call to a target that is away, and answers it.
async fn read_while_away(
    request: &mut Request<'_>,
    allowed: &Allowed,
    defers: bool,
) -> Result<Option<Ended>, Ended> {
    let hops = hops_of(request)?;
    let received = read_json(request, allowed.account()).await?;
    check_while_away(request, allowed, received, (hops, defers, false)).await
}

/// Returns the number of gateways that the request has passed, this one included.
///
/// # Errors
/// As [`hops`].
pub(super) fn hops_of(request: &Request<'_>) -> Result<u32, Rejection> {
    hops(
        &request.head().headers,
        request.exchange.config.forward.max_hops,
    )
}

/// Checks the body of a call to a target that is away, and answers it. `None` if the call can be neither deferred nor
/// replayed, and does not ask for a deferred call. `owned`: its references are checked in any case.
async fn check_while_away(
    request: &mut Request<'_>,
    allowed: &Allowed,
    received: Received,
    (hops, defers, owned): (u32, bool, bool),
) -> Result<Option<Ended>, Ended> {
    let resolution = &request.context.gateway.resolution;
    let options = resolution.options(&allowed.permit).await?;
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
        ownership::check_for(gateway, method, push, allowed, &refs).await?;
    } else if asked_job(request.exchange.method, &refs).is_some() {
        return Ok(None);
    }
    let away = Away {
        allowed,
        hops,
        push_notifications: options.push_notifications,
        defers,
    };
    destination::answer_while_away(request, away, call, &refs).await
}

/// Checks a call that is JSON-RPC, or becomes it, from its body on, and passes it to its destination.
pub(in crate::proxy) async fn send(
    request: &mut Request<'_>,
    mut admitted: Admitted,
    received: Received,
    form: Form,
) -> Result<Ended, Ended> {
    let context = request.context;
    let options = admitted.options();
    let generation = match form {
        Form::Message {
            generation: Some(generation),
            ..
        } => generation,
        _ if options.has_card => options.generation,
        _ => {
            let is_bare = matches!(form, Form::Message { .. })
                || beside::on(&received.body, envelope::is_bare).await;
            rare(request.generation(&admitted, is_bare)).await?
        }
    };
    let shape = match form {
        Form::Call => CallShape {
            complete: options.complete,
            generation,
            prefers_stream: prefers_stream(&request.head().headers),
            message_only: false,
        },
        Form::Message { stream, .. } => CallShape {
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
        Form::Call => rewrite(context, request.exchange, &admitted, &call).await?,
        Form::Message { .. } => Some(Rewrite::BareResult),
    };
    drop(refs);
    destination::answer(request, admitted, call).await
}

/// Completes a body, answers a call about a deferred call, and reads the key. Returns the call with its references,
/// which are still to be checked.
///
/// # Errors
/// As [`body::complete`], [`deferred::answer_about`] and [`idempotency::key`].
async fn complete_call(
    request: &mut Request<'_>,
    allowed: &Allowed,
    received: Received,
    shape: &CallShape,
) -> Result<ControlFlow<Ended, (CheckedCall, Refs)>, Ended> {
    let Received { body, share } = received;
    let completed = body::complete(request.exchange, &allowed.permit, &body, shape).await?;
    if completed.method.returns_content() {
        allowed.proof.require(Role::Admin)?;
    }
    if !shape.message_only
        && let Some(id) = asked_job(completed.method, &completed.refs)
    {
        let asked = AskedJob {
            proof: &allowed.proof,
            target: Some(allowed.permit.target()),
            id,
            words: JobWords::of(&completed),
        };
        if let Some(answered) = rare(deferred::answer_about(request, asked)).await? {
            return Ok(ControlFlow::Break(answered));
        }
    }
    let head = request.session.req_header();
    let key = idempotency::key(request.exchange, head, Some(&completed), &body).await?;
    let (call, refs) = CheckedCall::completed(completed, shape.generation, share);
    Ok(ControlFlow::Continue((CheckedCall { key, ..call }, refs)))
}
