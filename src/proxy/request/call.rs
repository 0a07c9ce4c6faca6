//! One JSON-RPC call, from admission to its destination; and the steps on the body of every call.

use std::ops::ControlFlow;

use http::Method;

use super::body::{self, CallShape, Received, read_json};
use super::ownership::authorize_references;
use super::{Request, wrong_method};
use crate::a2a::Generation;
use crate::a2a::accept::prefers_stream;
use crate::a2a::done::Done;
use crate::a2a::envelope::{self, Completed};
use crate::a2a::refs::Refs;
use crate::a2a::task::Binding;
use crate::delivery::calls::Key;
use crate::directory::Agent;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::proxy::admit::{Admitted, Allowed, allow};
use crate::proxy::destination::deferred::{AskedJob, JobWords, asked_job};
use crate::proxy::destination::{self, deferred, idempotency};
use crate::proxy::rare;
use crate::proxy::relay::forward::rewrite;
use crate::proxy::relay::outcome::Ended;
use crate::proxy::relay::rewrite::Rewrite;
use crate::shares::Share;

/// A call as its destination gets it: the checks of its body passed.
pub(in crate::proxy) struct CheckedCall {
    /// The HTTP method.
    pub(in crate::proxy) verb: Method,
    /// The path and query at the agent; `None` for its JSON-RPC path.
    pub(in crate::proxy) path: Option<String>,
    /// The body.
    pub(in crate::proxy) body: bytes::Bytes,
    /// The share of the body memory that the body takes.
    pub(in crate::proxy) share: Share,
    /// The JSON-RPC method, for the caller token.
    pub(in crate::proxy) method_name: Option<String>,
    /// True if the gateway wrapped the call for a 1.0 target, so that it must declare the version.
    pub(in crate::proxy) version_1_0: bool,
    /// The completions made, for `X-A2A-Completed`.
    pub(in crate::proxy) done: Done,
    /// The rewrite of the answer.
    pub(in crate::proxy) rewrite: Option<Rewrite>,
    /// The idempotency key.
    pub(in crate::proxy) key: Option<Key>,
}

impl CheckedCall {
    /// Returns the call of JSON-RPC with this body, for a target of `generation` if the gateway `wrapped` it.
    pub(in crate::proxy) fn json_rpc(body: bytes::Bytes, share: Share) -> Self {
        Self {
            verb: Method::POST,
            path: None,
            body,
            share,
            method_name: None,
            version_1_0: false,
            done: Done::default(),
            rewrite: None,
            key: None,
        }
    }

    /// Returns a completed call, with its references, which are still to be checked.
    pub(in crate::proxy) fn completed(
        completed: Completed,
        generation: Generation,
        share: Share,
    ) -> (Self, Refs) {
        let call = Self {
            method_name: completed.method_name,
            version_1_0: completed.wrapped && generation == Generation::V1,
            done: completed.done,
            ..Self::json_rpc(completed.body, share)
        };
        (call, completed.refs)
    }

    /// Sets the path of a JSON-RPC call from the agent's registered card, if it differs from the registered URL's.
    pub(in crate::proxy) fn take_path_of(&mut self, agent: &Agent) {
        if self.path.is_none() {
            let method = self.method_name.as_deref();
            self.path = agent.json_rpc.path_of_method(method).map(str::to_owned);
        }
    }
}

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
    let admitted = match context.gateway.directory.resolve(&allowed.permit).await {
        Ok(destination) => {
            let (head, config) = (request.session.req_header(), &request.exchange.config);
            Admitted::new(allowed, destination, head, config)?
        }
        Err(away) => return rare(destination::answer_while_away(request, &allowed, away)).await,
    };
    let received = read_json(request, admitted.allowed.account()).await?;
    send(request, admitted, received, Form::Call).await
}

/// Checks a call that is JSON-RPC, or becomes it, from its body on, and passes it to its destination.
pub(in crate::proxy) async fn send(
    request: &mut Request<'_>,
    admitted: Admitted,
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
            let is_bare = matches!(form, Form::Message { .. }) || envelope::is_bare(&received.body);
            let (caller, exchange) = (Some(&mut *request.session), &*request.exchange);
            rare(
                context
                    .cards
                    .generation(caller, exchange, &admitted, is_bare),
            )
            .await?
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
    let (mut call, refs) = match complete(request, &admitted.allowed, received, &shape).await? {
        ControlFlow::Continue(completed) => completed,
        ControlFlow::Break(answered) => return Ok(answered),
    };
    authorize_references(request, &admitted, &refs, Binding::Rpc).await?;
    call.rewrite = match form {
        Form::Call => rewrite(context, request.exchange, &admitted, Binding::Rpc).await?,
        Form::Message { .. } => Some(Rewrite::BareResult),
    };
    destination::answer(request, admitted, call).await
}

/// Completes a body, answers a call about a deferred call, and reads the key. Returns the call with its references,
/// which are still to be checked.
///
/// # Errors
/// As [`body::complete`], [`deferred::answer_about`] and [`idempotency::key`].
pub(in crate::proxy) async fn complete(
    request: &mut Request<'_>,
    allowed: &Allowed,
    received: Received,
    shape: &CallShape,
) -> Result<ControlFlow<Ended, (CheckedCall, Refs)>, Ended> {
    let Received { body, share } = received;
    let completed = body::complete(request.exchange, &allowed.permit, body.clone(), shape)?;
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
    let key = idempotency::key(request.exchange, head, Some(&completed), &body)?;
    let (call, refs) = CheckedCall::completed(completed, shape.generation, share);
    Ok(ControlFlow::Continue((CheckedCall { key, ..call }, refs)))
}
