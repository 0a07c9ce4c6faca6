//! Completes a call ([`complete`]): fills in missing members by byte range and forwards everything
//! else unchanged (`docs/reference/a2a.md`, "Completion").
//!
//! One strict pass finds the members that the gateway reads (`call`). A bare body with members in
//! other positions is rebuilt first (`bare`). Then the message rules (`message`, `part`) produce
//! their edits (`edit`). A call without edits is forwarded as the same bytes.
//!
//! Details:
//! - A member that the gateway reads must be unique and in its exact case, in each mode, including
//!   `off`.
//! - `null` and `""` are not message ids, under either name.
//! - Without a proven workspace as the caller (canvas, organization, operator), a
//!   `source_workspace_id` is removed: such a caller cannot prove to be a workspace.
//! - The method, role and parts of a *bare* call are converted for a 1.0 target even if they have
//!   the 0.x form, since the gateway adds `A2A-Version: 1.0` to it. An envelope is never translated
//!   between generations.
//! - Calls of 0.1 (`tasks/send`) pass unchanged, except for a forged source: their `params` have
//!   another shape.
//! - A file part with `type` becomes `{filename, url, raw}` for a 1.0 target.

use std::borrow::Cow;

use bytes::Bytes;

use super::bare::{self, BareForm};
use super::call::Call;
use super::completion_steps::{CompletionStep, CompletionSteps};
use super::edit::EditPlan;
use super::generation::Generation;
use super::json::without_mark;
use super::message;
use super::method::Method;
use super::refs::Refs;
use super::walker::{DEPTH_MAX, WalkError};
use crate::CompletionMode;
use crate::fields::Fields;

/// The target and caller of a call, and the extent of its completion.
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a> {
    /// The workspace in the path.
    pub target: &'a str,
    /// The workspace that the credential proves; `None` for canvas, organization and operator.
    pub caller: Option<&'a str>,
    /// The setting `a2a.complete`, or that of the workspace.
    pub complete: CompletionMode,
    /// The generation of the target.
    pub generation: Generation,
    /// True if `Accept` prefers `text/event-stream`: an inferred method is the streaming one then.
    pub accept_prefers_stream: bool,
}

impl Completion<'_> {
    /// Returns the method of a call that does not name one.
    const fn inferred_method(&self) -> Method {
        if self.accept_prefers_stream {
            Method::SendStreamingMessage
        } else {
            Method::SendMessage
        }
    }

    /// Returns its name at the target.
    pub(super) fn inferred_name(&self) -> &'static str {
        let name = self.inferred_method().name_in(self.generation);
        name.unwrap_or_default()
    }
}

/// A call that may be forwarded.
#[derive(Clone, Debug)]
pub struct CompletedCall {
    /// The body for the agent; the same `Bytes` as received if nothing was missing.
    pub body: Bytes,
    /// The caller's `id` as it was spelled, if it was a string or a number. A generated id is not
    /// included: a rejection of a call without an id has `null`.
    pub rpc_id: Option<String>,
    /// The method of the call.
    pub method: Method,
    /// The method's name in [`CompletedCall::body`]; `None`: it has none, or one of more than
    /// [`METHOD_NAME_BYTES_MAX`] bytes.
    pub method_name: Option<Cow<'static, str>>,
    /// True if the gateway built the envelope: the call then needs `A2A-Version: 1.0` for a 1.0
    /// target.
    pub wrapped: bool,
    /// The changes made, for `X-A2A-Completed`.
    pub done: CompletionSteps,
    /// The idempotency key: `params.message.task_id`, the client's own task id, in each mode.
    pub idempotency_key: Option<String>,
    /// The message id that the client sent, under either name; never a generated one.
    pub message_id: Option<String>,
    /// The tasks and URLs that it refers to, as the agent may read it.
    pub refs: Refs,
}

/// Reads a body without judging it. `None`: it is no call.
fn read_call(body: &[u8]) -> Option<Call<'_>> {
    let text = std::str::from_utf8(without_mark(body)).ok()?;
    Call::parse(text).ok()
}

/// Returns true if the body is an object without `jsonrpc`, from which the gateway builds a call.
pub fn is_bare(body: &[u8]) -> bool {
    read_call(body).is_some_and(|call| !call.enveloped)
}

/// Replaces the tenant in the params of a call by what `keep` returns of it; empty: no member. Returns the call and the
/// tenant that it had. `None`: the body is no call with a tenant, or has a member twice.
pub fn replace_tenant(body: &[u8], keep: impl FnOnce(&str) -> &str) -> Option<(String, String)> {
    let mut call = Fields::parse(std::str::from_utf8(without_mark(body)).ok()?)?;
    let mut params = call.get_object("params")?;
    let tenant = params
        .get_text("tenant")
        .filter(|tenant| !tenant.is_empty())?;
    match keep(&tenant) {
        "" => params.remove("tenant"),
        kept => params.set_text("tenant", kept),
    }
    let params = params.to_json();
    call.set("params", params);
    Some((call.to_json(), tenant))
}

/// The fields of an envelope that are needed by a route which also takes bodies without one.
#[derive(Clone, Debug)]
pub struct EnvelopeFields {
    /// The method of the call.
    pub method: Method,
    /// The id, as it was spelled.
    pub rpc_id: Option<String>,
}

impl EnvelopeFields {
    /// Parses an envelope. `None`: the body has no `jsonrpc`, or cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let call = read_call(body).filter(|call| call.enveloped)?;
        Some(Self {
            method: call.method(),
            rpc_id: call.rpc_id(),
        })
    }
}

/// Longest method name that is reported, in bytes. Real ones have up to 40.
pub const METHOD_NAME_BYTES_MAX: usize = 128;

/// A body from which no call can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The class of the fault.
    pub kind: FaultKind,
    /// The caller's `id` as it was spelled, if one was read; never for [`FaultKind::ParseError`]
    /// (JSON-RPC 2.0, 5).
    pub rpc_id: Option<String>,
    /// The problem, and the form to send instead. Contains nothing of the body.
    pub message: Cow<'static, str>,
}

/// The three reasons for which a body is rejected (`docs/reference/reasons.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// `invalid_params`
    InvalidParams,
    /// `invalid_request`
    InvalidRequest,
    /// `parse_error`
    ParseError,
}

impl Fault {
    fn new(kind: FaultKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            rpc_id: None,
            message: message.into(),
        }
    }

    pub(super) fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultKind::InvalidParams, message)
    }

    pub(super) fn invalid_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultKind::InvalidRequest, message)
    }

    /// Rejects the duplicate member `word`.
    pub(super) fn duplicate_member(word: &str) -> Self {
        Self::invalid_request(format!("\"{word}\" stands twice; send it once"))
    }
}

impl From<WalkError> for Fault {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Syntax(at) => Self::new(
                FaultKind::ParseError,
                format!("the body is not JSON at byte {at}"),
            ),
            WalkError::TooDeep => Self::invalid_request(format!("nested deeper than {DEPTH_MAX}")),
        }
    }
}

/// Completes `body` as `completion` specifies.
///
/// # Errors
/// [`Fault`] if it is not JSON, not a call, ambiguous, or contradicts itself or the path.
pub fn complete(body: &Bytes, completion: &Completion<'_>) -> Result<CompletedCall, Fault> {
    let text = decode_text(without_mark(body))?;
    let call = Call::parse(text)?;
    let rpc_id = call.rpc_id();
    match complete_call(&call, completion) {
        Err(fault) => {
            let ambiguous = call.unclear.is_some_and(|unclear| unclear.as_str() == "id");
            Err(Fault {
                rpc_id: rpc_id.filter(|_| !ambiguous),
                ..fault
            })
        }
        Ok(completed) => Ok(CompletedCall {
            body: match completion.complete {
                _ if !completed.body.is_empty() => completed.body,
                CompletionMode::Off => body.clone(),
                _ => body.slice(body.len() - text.len()..),
            },
            rpc_id,
            ..completed
        }),
    }
}

/// Returns a body without its byte order mark as text.
///
/// # Errors
/// It is empty, or not UTF-8.
pub(super) fn decode_text(body: &[u8]) -> Result<&str, Fault> {
    if body.iter().all(u8::is_ascii_whitespace) {
        let message = "the body is empty; send a JSON-RPC request";
        return Err(Fault::new(FaultKind::ParseError, message));
    }
    std::str::from_utf8(body).map_err(|error| {
        let at = error.valid_up_to();
        let message = format!("the body is not UTF-8 at byte {at}; send JSON in UTF-8");
        Fault::new(FaultKind::ParseError, message)
    })
}

/// Completes a call; the caller adds its id. The body is empty where it stays as it came.
fn complete_call(call: &Call<'_>, completion: &Completion<'_>) -> Result<CompletedCall, Fault> {
    let method = call.method();
    check_clear(call, method.sends() || method.is_of_a_task())?;
    let touched = match completion.complete {
        CompletionMode::Full => true,
        CompletionMode::Bare => !call.enveloped,
        CompletionMode::Off => false,
    };
    if !touched {
        let (name, work) = (call.method_name(), EditPlan::default());
        return finish_call(call, (method, name), work, false, true);
    }
    if call.enveloped {
        return edit_call(call, completion, Origin::Envelope);
    }
    let inferred = call.method.is_none();
    let origin = Origin::Bare { inferred };
    let form = bare::detect_form(call)?;
    if form == BareForm::InPlace {
        check_clear(call, inferred)?;
        return edit_call(call, completion, origin);
    }
    let text = bare::rebuild_call(call, completion, form)?;
    let call = Call::parse(&text)
        .map_err(|_| Fault::invalid_request(format!("nested deeper than {DEPTH_MAX} as a call")))?;
    check_clear(&call, true)?;
    let mut completed = edit_call(&call, completion, origin)?;
    if completed.body.is_empty() {
        completed.body = text.into();
    }
    Ok(completed)
}

/// Rejects ambiguous members: parsers differ on which of two members with one name they use (RFC
/// 8259, 4), and some ignore case. `known`: the params belong to a method with known members.
fn check_clear(call: &Call<'_>, known: bool) -> Result<(), Fault> {
    let bare = call.unclear_bare.filter(|_| !call.enveloped);
    let unclear = call.unclear.or(bare);
    match unclear.or(call.inner.unclear.filter(|_| known)) {
        Some(unclear) => Err(unclear.to_fault()),
        None => Ok(()),
    }
}

/// The form in which the body was received.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Bare { inferred: bool },
    Envelope,
}

/// Completes a call that has its members in place.
fn edit_call(
    call: &Call<'_>,
    completion: &Completion<'_>,
    origin: Origin,
) -> Result<CompletedCall, Fault> {
    let mut work = EditPlan::default();
    let bare = origin != Origin::Envelope;
    let mut method = call.method();
    if let Origin::Bare { inferred } = origin {
        work.done.add(CompletionStep::Envelope);
        if inferred {
            work.done.add(CompletionStep::Method);
            method = completion.inferred_method();
        }
        if !call.enveloped {
            bare::insert_envelope(call, completion, &mut work);
        }
    }
    let method_name = match respell_method(call, completion, bare, &mut work) {
        Some(name) => Some(Cow::Borrowed(name)),
        None if bare && call.method.is_none() => Some(Cow::Borrowed(completion.inferred_name())),
        None => call.method_name(),
    };
    let has_message = method.sends() && (call.method.is_none() || call.sends_message());
    if has_message {
        message::complete_message(call, completion, bare, &mut work)?;
    } else if method.sends() {
        message::set_source(&call.inner, call.text, completion.caller, &mut work);
    }
    finish_call(call, (method, method_name), work, bare, has_message)
}

/// Makes the edits of a call. `has_message`: its message has a key and an id.
fn finish_call(
    call: &Call<'_>,
    (method, method_name): (Method, Option<Cow<'static, str>>),
    work: EditPlan,
    wrapped: bool,
    has_message: bool,
) -> Result<CompletedCall, Fault> {
    let of_message = Some(call).filter(|_| has_message);
    Ok(CompletedCall {
        refs: Refs::from_call(call, method, work.done.has(CompletionStep::TaskId))?,
        body: work.edits.apply(call.text).unwrap_or_default().into(),
        rpc_id: None,
        method,
        method_name,
        wrapped,
        done: work.done,
        idempotency_key: of_message.and_then(message::idempotency_key),
        message_id: of_message.and_then(message::given_id),
    })
}

/// Replaces a method name that the target cannot know: `message/sendSubscribe` always, and in a
/// bare call to a 1.0 target also the names of 0.x. Returns the new name, if there is one.
fn respell_method(
    call: &Call<'_>,
    completion: &Completion<'_>,
    bare: bool,
    work: &mut EditPlan,
) -> Option<&'static str> {
    let method = call.method?;
    let generation = if bare {
        completion.generation
    } else {
        Generation::V0
    };
    let says = |word| method.value.equals(call.text.as_bytes(), word);
    let is_v1 = generation == Generation::V1;
    let (sent, step) = if says("message/sendSubscribe") {
        (Method::SendStreamingMessage, CompletionStep::Alias)
    } else if is_v1 && says("message/stream") {
        (Method::SendStreamingMessage, CompletionStep::Method)
    } else if is_v1 && says("message/send") {
        (Method::SendMessage, CompletionStep::Method)
    } else {
        return None;
    };
    let name = sent.name_in(generation)?;
    work.edits.replace_value(&method, format!("\"{name}\""));
    work.done.add(step);
    Some(name)
}
