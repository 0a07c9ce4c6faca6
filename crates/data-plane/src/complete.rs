//! Completes a call: what its client left out, its idempotency key, and the checks of the tasks and URLs that it names.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderName;
use pingora::http::RequestHeader;

use crate::admission::{AdmittedCall, AllowedCaller, assign_instance, build_binder, single_field};
use crate::filters::Rewrite;
use crate::grpc_agent::GrpcPlace;
use crate::guard::CallGuards;
use crate::record::{Exchange, ExchangeError, box_cold_path};
use crate::services::Request;
use a2a::Generation;
use a2a::bridge::FileBytes;
use a2a::completion_steps::CompletionSteps;
use a2a::envelope::{self, CompletedCall, Completion, Fault, FaultKind};
use a2a::method::Method;
use a2a::refs::Refs;
use a2a::task::Binding;
use access::hierarchy::Permit;
use assembly::gateway::Gateway;
use directory::tasks::{EndRecorder, Learner};
use directory::{Agent, AgentOptions, Destination};
use kernel::config::CompletionMode;
use kernel::ids::WorkspaceId;
use kernel::offload;
use kernel::rejection::{AtStage as _, Reason, Rejection};
use kernel::shares::Share;
use kernel::stage::Stage;
use mailbox::calls::{Key, Source, call_hash};

pub(super) use http1::{preferred_wait, prefers_async};

/// A route of HTTP+JSON below the base.
#[derive(Clone)]
pub(super) struct RestRoute {
    /// The tenant that its caller named in front of it.
    pub(super) tenant: Option<String>,
    /// The path below the base, without the slash before it.
    pub(super) tail: String,
    /// The query.
    pub(super) query: Option<String>,
    /// The generation of the path.
    pub(super) generation: Generation,
    /// What its caller has in `fileWithBytes`, if that is of 0.3.
    pub(super) files: FileBytes,
}

/// A call after the checks of its body.
pub(super) struct CheckedCall {
    /// The gRPC interface that gets it; `None`: it goes over HTTP.
    pub(super) grpc: Option<Box<GrpcPlace>>,
    /// The HTTP method.
    pub(super) verb: http::Method,
    /// The path and query at the agent; `None` for its JSON-RPC path.
    pub(super) path: Option<String>,
    /// The body.
    pub(super) body: Bytes,
    /// The share of the body memory that the body takes.
    pub(super) share: Share,
    /// The JSON-RPC method, for the caller token.
    pub(super) method_name: Option<Cow<'static, str>>,
    /// True if the gateway wrapped the call for a 1.0 target, so that it must declare the version.
    pub(super) version_1_0: bool,
    /// The fields of a request that was translated for its agent; `None`: the caller's.
    pub(super) wire: Option<TranslatedHeaders>,
    /// The route of an HTTP+JSON call, as its caller sent it; `None`: it is one of JSON-RPC.
    pub(super) route: Option<RestRoute>,
    /// The request for the task with which the answer begins.
    pub(super) snapshot: Option<Box<Self>>,
    /// The body and the method before the translation, if the call is one that can be deferred.
    pub(super) original: Option<Box<(Bytes, Option<Cow<'static, str>>)>>,
    /// The completions made, for `X-A2A-Completed`.
    pub(super) done: CompletionSteps,
    /// The rewrite of the answer.
    pub(super) rewrite: Option<Rewrite>,
    /// The guards that are asked about it; `None`: none are.
    pub(super) guarded: Option<Arc<CallGuards>>,
    /// The idempotency key.
    pub(super) key: Option<Key>,
    /// Searches the answer for the task, until the task and its state are found.
    pub(super) learner: Option<Box<Learner>>,
    /// The generation in which the agent gets it, whatever its card says; `None`: as that says.
    pub(super) speaks: Option<Generation>,
    /// True if the agent's card says the same.
    pub(super) agrees: bool,
    /// True if it may be made once more, in the other generation, should the agent not know its method.
    pub(super) may_repeat: bool,
}

impl CheckedCall {
    /// Returns a call of JSON-RPC with this body.
    pub(super) fn json_rpc(body: Bytes, share: Share) -> Self {
        Self {
            grpc: None,
            verb: http::Method::POST,
            path: None,
            body,
            share,
            method_name: None,
            version_1_0: false,
            wire: None,
            route: None,
            snapshot: None,
            original: None,
            done: CompletionSteps::default(),
            rewrite: None,
            guarded: None,
            key: None,
            learner: None,
            speaks: None,
            agrees: false,
            may_repeat: false,
        }
    }

    /// Returns a completed call, with its references, which are still to be checked.
    pub(super) fn from_completed(
        completed: CompletedCall,
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

    /// Returns the generation in which its caller sent it.
    pub(super) fn generation(&self) -> Generation {
        match &self.route {
            Some(route) => route.generation,
            None => Generation::of_method(self.method_name.as_deref().unwrap_or_default()),
        }
    }

    /// Returns the binding of the call, as its caller sent it.
    pub(super) fn binding(&self) -> Binding {
        match self.route {
            Some(_) => Binding::Rest,
            None => Binding::Rpc,
        }
    }

    /// Undoes a translation.
    pub(super) fn undo_translation(&mut self) {
        if let Some(original) = self.original.take() {
            (self.body, self.method_name) = *original;
            (self.path, self.wire, self.rewrite) = (None, None, None);
        }
    }

    /// Resets the call, so that it can be prepared for another place of its agent. False if its translation cannot be
    /// undone.
    pub(super) fn reset_for_retry(&mut self) -> bool {
        if self.original.is_some() {
            self.undo_translation();
        } else if self.wire.is_some() {
            return false;
        } else if self.route.is_none() {
            self.path = None;
        }
        true
    }

    /// Sets the path of a JSON-RPC call from the agent's registered card, if it differs from the registered URL's.
    pub(super) fn set_path_from(&mut self, agent: &Agent) {
        if self.path.is_none() && self.route.is_none() && self.grpc.is_none() {
            let method = self.method_name.as_deref();
            self.path = agent.json_rpc.path_of_method(method).map(str::to_owned);
        }
    }
}

// Checks the references of a call before it is forwarded: the caller may ask for these tasks, and the agent may be
// asked to call these URLs. Also records the owner of the task in the answer.

/// Checks the tasks and URLs that a call refers to, and has the answer searched for its task.
///
/// # Errors
/// As [`check_and_assign`]; or the caller left.
pub(super) async fn authorize_references(
    request: &mut Request<'_>,
    admitted: &mut AdmittedCall,
    call: &mut CheckedCall,
    refs: &Refs,
) -> Result<(), ExchangeError> {
    check_push(request, admitted, refs).await?;
    let gateway = &request.context.gateway;
    check_and_assign(gateway, request.exchange, admitted, refs).await?;
    call.learner = watch_answer(
        gateway,
        request.exchange.call.method,
        admitted,
        call.binding(),
    );
    Ok(())
}

/// Checks in the agent's own card that it sends push notifications, if no card is registered and a call asks for them.
///
/// # Errors
/// `push_not_supported`; as [`Cards::card_of_target`](crate::cards::Cards::card_of_target).
async fn check_push(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    refs: &Refs,
) -> Result<(), ExchangeError> {
    let (options, method) = (admitted.options(), request.exchange.call.method);
    require_push(options.push_notifications, method, refs).at(Stage::Push)?;
    if options.has_card || !is_about_push(method, refs) {
        return Ok(());
    }
    let cards = &request.context.cards;
    let card = cards.card_of_target(Some(request.session), request.exchange, admitted);
    let card = box_cold_path(card).await.at(Stage::Push)?;
    Ok(require_push(card.said.pushes != Some(false), method, refs).at(Stage::Push)?)
}

/// Checks the references of a call, and chooses the instance of the agent by them. A call without references causes no
/// lookup.
///
/// # Errors
/// `task_not_found`, `push_not_supported`, `address_forbidden`; `store_unavailable`; `workspace_restarting`.
pub(super) async fn check_and_assign(
    gateway: &Gateway,
    exchange: &mut Exchange,
    admitted: &mut AdmittedCall,
    refs: &Refs,
) -> Result<(), Rejection> {
    exchange.record.name_task(refs.tasks.first());
    let push = admitted.options().push_notifications;
    check_references(gateway, exchange.call.method, push, &admitted.allowed, refs).await?;
    if let Destination::Agent(agent) = &admitted.destination
        && !agent.instances.is_empty()
    {
        let assigned = assign_instance(gateway, admitted, refs);
        box_cold_path(assigned).await.at(Stage::Instance)?;
    }
    exchange.record.instance = admitted.instance().cloned();
    Ok(())
}

/// Checks the references, whether or not the agent can be reached. `push`: callers may ask the agent for push
/// notifications.
///
/// # Errors
/// As [`check_and_assign`].
pub(super) async fn check_references(
    gateway: &Gateway,
    method: Method,
    push: bool,
    AllowedCaller { proof, permit }: &AllowedCaller,
    refs: &Refs,
) -> Result<(), Rejection> {
    require_push(push, method, refs).at(Stage::Push)?;
    if !refs.tasks.is_empty() {
        let life = permit.life();
        let asked = gateway
            .tasks
            .check(&gateway.hierarchy, proof, &life, &refs.tasks);
        box_cold_path(asked).await.at(Stage::Tasks)?;
    }
    for url in &refs.push_urls {
        let vetted = gateway.directory.addresses.vet_webhook(url, proof.account);
        box_cold_path(vetted).await.at(Stage::Webhooks)?;
    }
    Ok(())
}

/// Returns what searches the answer to a message for its task, or the answer to a task request for the task's state.
pub(super) fn watch_answer(
    gateway: &Gateway,
    method: Method,
    admitted: &AdmittedCall,
    binding: Binding,
) -> Option<Box<Learner>> {
    let AllowedCaller { proof, permit } = &admitted.allowed;
    let mut learner = if method.sends() {
        Box::new(gateway.tasks.new_learner(proof, permit.life(), binding))
    } else {
        let mut learner = watch_state(method, binding)?;
        learner.set_end_recorder(EndRecorder::new(&gateway.tasks, proof, permit.target()));
        learner
    };
    if let Some(binder) = build_binder(gateway, admitted) {
        learner.set_binder(binder);
    }
    Some(learner)
}

/// Returns what searches the answer for the state of its task, if the method returns one.
pub(super) fn watch_state(method: Method, binding: Binding) -> Option<Box<Learner>> {
    let asks = matches!(method, Method::GetTask | Method::CancelTask);
    (asks || method.sends()).then(|| Box::new(Learner::for_state(binding)))
}

/// True if a call is about push notifications.
pub(super) fn is_about_push(method: Method, refs: &Refs) -> bool {
    method.is_of_push() || refs.sets_push
}

/// Rejects a call about push notifications if the target does not support them.
///
/// # Errors
/// `push_not_supported`.
pub(super) fn require_push(allowed: bool, method: Method, refs: &Refs) -> Result<(), Rejection> {
    if allowed || !is_about_push(method, refs) {
        return Ok(());
    }
    Err(Rejection::new(
        Reason::PushNotSupported,
        "push notifications are switched off for this workspace, or its agent's card says that it sends none: leave \
         the configuration out, and stream or ask for the task",
    ))
}

/// Completes the call for its target (`docs/reference/a2a.md`, "Completion"), and records what was read from it.
///
/// # Errors
/// `parse_error`, `invalid_request`, `invalid_params`.
pub(super) async fn complete_body(
    exchange: &mut Exchange,
    permit: &Permit,
    body: &Bytes,
    call: &CallShape,
) -> Result<CompletedCall, Rejection> {
    // A body that is not even an object gets the general message of a route that takes messages only.
    let is_object = !call.message_only || body.trim_ascii_start().starts_with(b"{");
    let (complete, generation, accept_prefers_stream) =
        (call.complete, call.generation, call.prefers_stream);
    let completed = move |body: &Bytes, target: &WorkspaceId, caller: Option<&WorkspaceId>| {
        let completion = Completion {
            target: target.as_str(),
            caller: caller.map(WorkspaceId::as_str),
            complete,
            generation,
            accept_prefers_stream,
        };
        envelope::complete(body, &completion)
    };
    let (target, caller) = (permit.target(), permit.caller());
    let completed = if offload::is_long(body.len()) {
        let (body, target, caller) = (body.clone(), target.clone(), caller.cloned());
        box_cold_path(offload::run(move || {
            completed(&body, &target, caller.as_ref())
        }))
        .await
    } else {
        completed(body, target, caller)
    };
    match completed {
        Ok(mut completed) => {
            exchange.call.method = completed.method;
            exchange.call.rpc_id = completed.rpc_id.take();
            exchange.record.request_bytes = completed.body.len() as u64;
            if call.message_only {
                require_message(&completed, call)?;
            }
            Ok(completed)
        }
        Err(fault) => {
            exchange.call.rpc_id = fault.rpc_id.clone();
            let refusal = fault_rejection(fault);
            Err(match is_object {
                true => refusal,
                false => Rejection::new(refusal.reason, NOT_A_MESSAGE),
            })
        }
    }
}

/// The inputs to the completion of a call besides its body.
pub(super) struct CallShape {
    /// The extent of completion.
    pub(super) complete: CompletionMode,
    /// The protocol generation of the target.
    pub(super) generation: Generation,
    /// True if the caller prefers a stream.
    pub(super) prefers_stream: bool,
    /// True if the body must be a message without an envelope.
    pub(super) message_only: bool,
}

impl CallShape {
    /// Returns that of a call of JSON-RPC, or of a body that is completed to one.
    pub(super) fn of_call(
        options: &AgentOptions,
        generation: Generation,
        prefers_stream: bool,
    ) -> Self {
        Self {
            complete: options.complete,
            generation,
            prefers_stream,
            message_only: false,
        }
    }

    /// Returns the extent of completion of a call that the gateway builds: it has an envelope in any case.
    pub(super) const fn with_envelope(complete: CompletionMode) -> CompletionMode {
        match complete {
            CompletionMode::Off => CompletionMode::Bare,
            complete => complete,
        }
    }
}

/// Message for a body that is no message.
pub(super) const NOT_A_MESSAGE: &str = "this route takes a message alone, {\"message\": {…}}, or in a JSON-RPC call that sends one; POST other calls to \
     /workspaces/{id}/a2a";

/// Checks that the body was a message, and became the call that its route sends.
fn require_message(completed: &CompletedCall, shape: &CallShape) -> Result<(), Rejection> {
    let expected = if shape.prefers_stream {
        Method::SendStreamingMessage
    } else {
        Method::SendMessage
    };
    if completed.wrapped && completed.method == expected {
        return Ok(());
    }
    Err(Rejection::new(Reason::InvalidRequest, NOT_A_MESSAGE))
}

pub(super) fn fault_rejection(fault: Fault) -> Rejection {
    let reason = match fault.kind {
        FaultKind::ParseError => Reason::ParseError,
        FaultKind::InvalidRequest => Reason::InvalidRequest,
        FaultKind::InvalidParams => Reason::InvalidParams,
    };
    Rejection::new(reason, fault.message)
}

pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Longest key in the field, in characters.
const KEY_LEN_MAX: usize = 255;

/// Returns the key of a call with `body`. `None`: it has none, or only reads. `completed`: the parsed call, if
/// it is JSON-RPC.
///
/// # Errors
/// `invalid_request`.
pub(super) async fn read_key(
    exchange: &Exchange,
    head: &RequestHeader,
    completed: Option<&CompletedCall>,
    body: &Bytes,
) -> Result<Option<Key>, Rejection> {
    if !exchange.call.method.sends() && exchange.call.method != Method::Other {
        return Ok(None);
    }
    let by_message = exchange.call.config.idempotency.message_id;
    let named = match (key_field(head)?, completed) {
        (Some(field), _) => Some((Source::Field, field)),
        (None, Some(completed)) => {
            let task = completed.idempotency_key.as_deref();
            let message = completed.message_id.as_deref().filter(|_| by_message);
            let task = task.map(|key| (Source::Task, key));
            task.or(message.map(|key| (Source::Message, key)))
        }
        (None, None) => None,
    };
    let (Some(named), Some(proof), Some(target)) =
        (named, exchange.call.proof.as_ref(), exchange.call.life())
    else {
        return Ok(None);
    };
    let owner = proof.owner();
    let line = match exchange.call.binding {
        Binding::Rpc => Cow::Borrowed::<'static>(exchange.call.method.label()),
        // The request line names the method.
        Binding::Rest => {
            let line = head.uri.path_and_query();
            let line = line.map_or_else(|| head.uri.path(), |line| line.as_str());
            format!("{} {line}", head.method).into()
        }
    };
    let call = offload::run_on_body(body, move |body| call_hash(&line, body)).await;
    Ok(Some(Key::new((&owner, &target.to_string()), named, call)))
}

/// # Errors
/// `invalid_request`.
fn key_field(head: &RequestHeader) -> Result<Option<&str>, Rejection> {
    let Some(field) = single_field(head, &IDEMPOTENCY_KEY)? else {
        return Ok(None);
    };
    let visible = field.iter().all(u8::is_ascii_graphic);
    let text = std::str::from_utf8(field).ok();
    let text = text.filter(|_| visible && (1..=KEY_LEN_MAX).contains(&field.len()));
    text.map(Some).ok_or_else(|| {
        let message = "Idempotency-Key is 1 to 255 visible ASCII characters";
        Rejection::new(Reason::InvalidRequest, message)
    })
}

/// The fields of a translated request, in place of the caller's.
pub(super) struct TranslatedHeaders {
    /// `Content-Type`.
    pub(super) content_type: &'static str,
    /// `Accept`.
    pub(super) accept: &'static str,
    /// `A2A-Version`.
    pub(super) version: &'static str,
    /// The name of the field with the extensions.
    pub(super) extensions: &'static str,
}

#[cfg(test)]
mod ownership_tests {
    use super::*;

    #[test]
    fn switched_off_nothing_that_asks_for_push_notifications_passes() {
        let plain = Refs::default();
        let sets = Refs {
            sets_push: true,
            ..Refs::default()
        };
        for method in Method::ALL {
            let why = require_push(false, method, &plain).map_err(|r| r.reason);
            let expected = if method.is_of_push() {
                Err(Reason::PushNotSupported)
            } else {
                Ok(())
            };
            assert_eq!(why, expected, "{method:?}");
            assert!(require_push(false, method, &sets).is_err(), "{method:?}");
            assert!(require_push(true, method, &sets).is_ok(), "{method:?}");
        }
    }
}
