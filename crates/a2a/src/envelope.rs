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
use super::call::{Call, CallError};
use super::completion_steps::{CompletionStep, CompletionSteps};
use super::edit::EditPlan;
use super::generation::Generation;
use super::json::{Kind, Value};
use super::message;
use super::method::Method;
use super::refs::Refs;
use super::walker::DEPTH_MAX;
use crate::CompletionMode;

/// The UTF-8 byte order mark. RFC 8259, 8.1 lets a parser ignore it; many do not.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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

/// Returns true if the body is an object without `jsonrpc`, from which the gateway builds a call.
pub fn is_bare(body: &[u8]) -> bool {
    let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    let text = std::str::from_utf8(body).ok();
    let call = text.and_then(|text| Call::parse(text.as_bytes()).ok());
    call.is_some_and(|call| !call.enveloped)
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
        let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
        let text = std::str::from_utf8(body).ok()?;
        let call = Call::parse(text.as_bytes()).ok()?;
        call.enveloped.then(|| Self {
            method: call.method(text.as_bytes()),
            rpc_id: call.id.and_then(|id| rpc_id(id.value, text)),
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

/// A [`Fault`] before its id is known.
#[derive(Debug)]
pub(super) struct Refusal {
    kind: FaultKind,
    message: Cow<'static, str>,
}

impl Refusal {
    pub(super) fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: FaultKind::InvalidParams,
            message: message.into(),
        }
    }

    pub(super) fn invalid_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: FaultKind::InvalidRequest,
            message: message.into(),
        }
    }

    fn parse_error(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: FaultKind::ParseError,
            message: message.into(),
        }
    }

    /// Rejects the duplicate member `word`.
    pub(super) fn duplicate_member(word: &str) -> Self {
        Self::invalid_request(format!("\"{word}\" stands twice; send it once"))
    }

    pub(super) fn with_id(self, rpc_id: Option<String>) -> Fault {
        Fault {
            kind: self.kind,
            rpc_id,
            message: self.message,
        }
    }
}

/// Completes `body` as `completion` specifies.
///
/// # Errors
/// [`Fault`] if it is not JSON, not a call, ambiguous, or contradicts itself or the path.
pub fn complete(body: &Bytes, completion: &Completion<'_>) -> Result<CompletedCall, Fault> {
    let mark = match body.starts_with(BYTE_ORDER_MARK) {
        true => BYTE_ORDER_MARK.len(),
        false => 0,
    };
    let text = decode_text(&body[mark..]).map_err(|refusal| refusal.with_id(None))?;
    let call = Call::parse(text.as_bytes()).map_err(|unreadable| to_fault(unreadable, text))?;
    let rpc_id = call.id.and_then(|id| rpc_id(id.value, text));
    match draft_call(&call, text, completion) {
        Err(refusal) => {
            let ambiguous = call.unclear.is_some_and(|unclear| unclear.as_str() == "id");
            Err(refusal.with_id(rpc_id.filter(|_| !ambiguous)))
        }
        Ok(draft) => Ok(CompletedCall {
            body: match draft.body {
                Some(body) => Bytes::from(body),
                None if completion.complete == CompletionMode::Off => body.clone(),
                None => body.slice(mark..),
            },
            rpc_id,
            method: draft.method,
            method_name: draft.method_name,
            wrapped: draft.wrapped,
            done: draft.done,
            idempotency_key: draft.idempotency_key,
            message_id: draft.message_id,
            refs: draft.refs,
        }),
    }
}

/// The fields of [`CompletedCall`]; `body` only if it differs.
struct Draft {
    body: Option<Vec<u8>>,
    method: Method,
    method_name: Option<Cow<'static, str>>,
    wrapped: bool,
    done: CompletionSteps,
    idempotency_key: Option<String>,
    message_id: Option<String>,
    refs: Refs,
}

pub(super) fn decode_text(body: &[u8]) -> Result<&str, Refusal> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Refusal::parse_error(
            "the body is empty; send a JSON-RPC request",
        ));
    }
    std::str::from_utf8(body).map_err(|error| {
        let at = error.valid_up_to();
        Refusal::parse_error(format!(
            "the body is not UTF-8 at byte {at}; send JSON in UTF-8"
        ))
    })
}

pub(super) fn to_fault(unreadable: CallError, text: &str) -> Fault {
    match unreadable {
        CallError::Syntax(at) => {
            Refusal::parse_error(format!("the body is not JSON at byte {at}")).with_id(None)
        }
        CallError::Batch => {
            Refusal::invalid_request("batches are not served; send one JSON-RPC request")
                .with_id(None)
        }
        CallError::NoObject => {
            Refusal::invalid_request("the body is not an object; send a JSON-RPC request")
                .with_id(None)
        }
        CallError::TooDeep(id) => {
            Refusal::invalid_request(format!("nested deeper than {DEPTH_MAX}"))
                .with_id(id.and_then(|id| rpc_id(id, text)))
        }
    }
}

fn rpc_id(id: Value, text: &str) -> Option<String> {
    matches!(id.kind, Kind::Number | Kind::String).then(|| id.raw_str(text).to_owned())
}

fn draft_call(call: &Call, text: &str, completion: &Completion<'_>) -> Result<Draft, Refusal> {
    let method = call.method(text.as_bytes());
    check_clear(call, method.sends() || method.is_of_a_task())?;
    let touched = match completion.complete {
        CompletionMode::Full => true,
        CompletionMode::Bare => !call.enveloped,
        CompletionMode::Off => false,
    };
    if !touched {
        return Ok(Draft {
            body: None,
            refs: Refs::from_call(call, text, method, false)?,
            method,
            method_name: call.method_name(text),
            wrapped: false,
            done: CompletionSteps::default(),
            idempotency_key: message::idempotency_key(call, text),
            message_id: message::given_id(call, text),
        });
    }
    if call.enveloped {
        return edit_call(call, text, completion, Origin::Envelope);
    }
    let inferred = call.method.is_none();
    let origin = Origin::Bare { inferred };
    let form = bare::detect_form(call, text)?;
    if form == BareForm::InPlace {
        check_clear(call, inferred)?;
        return edit_call(call, text, completion, origin);
    }
    let text = bare::rebuild_call(call, text, completion, form)?;
    let call = Call::parse(text.as_bytes()).map_err(|_| {
        Refusal::invalid_request(format!("nested deeper than {DEPTH_MAX} as a call"))
    })?;
    check_clear(&call, true)?;
    let mut draft = edit_call(&call, &text, completion, origin)?;
    draft.body.get_or_insert_with(|| text.into_bytes());
    Ok(draft)
}

/// Rejects ambiguous members: parsers differ on which of two members with one name they use (RFC
/// 8259, 4), and some ignore case. `known`: the params belong to a method with known members.
fn check_clear(call: &Call, known: bool) -> Result<(), Refusal> {
    let bare = call.unclear_bare.filter(|_| !call.enveloped);
    let unclear = call.unclear.or(bare);
    match unclear.or(call.inner.unclear.filter(|_| known)) {
        Some(unclear) => Err(unclear.to_refusal()),
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
    call: &Call,
    text: &str,
    completion: &Completion<'_>,
    origin: Origin,
) -> Result<Draft, Refusal> {
    let mut work = EditPlan::default();
    let bare = origin != Origin::Envelope;
    let mut method = call.method(text.as_bytes());
    if let Origin::Bare { inferred } = origin {
        work.done.add(CompletionStep::Envelope);
        if inferred {
            work.done.add(CompletionStep::Method);
            method = inferred_method(completion);
        }
        if !call.enveloped {
            bare::insert_envelope(call, completion, &mut work);
        }
    }
    let respelled = respell_method(call, text, completion, bare, &mut work);
    let method_name = match respelled {
        Some(name) => Some(Cow::Borrowed(name)),
        None if bare && call.method.is_none() => Some(Cow::Borrowed(bare::send_method(completion))),
        None => call.method_name(text),
    };
    let (mut idempotency_key, mut message_id) = (None, None);
    if method.sends() && (call.method.is_none() || call.sends_message(text.as_bytes())) {
        idempotency_key = message::idempotency_key(call, text);
        message_id = message::given_id(call, text);
        message::complete_message(call, text, completion, bare, &mut work)?;
    } else if method.sends() {
        message::set_source(&call.inner, text, completion.caller, &mut work);
    }
    Ok(Draft {
        body: (!work.edits.is_empty()).then(|| work.edits.apply(text)),
        refs: Refs::from_call(call, text, method, work.done.has(CompletionStep::TaskId))?,
        method,
        method_name,
        wrapped: bare,
        done: work.done,
        idempotency_key,
        message_id,
    })
}

const fn inferred_method(completion: &Completion<'_>) -> Method {
    if completion.accept_prefers_stream {
        Method::SendStreamingMessage
    } else {
        Method::SendMessage
    }
}

/// Replaces a method name that the target cannot know: `message/sendSubscribe` always, and in a
/// bare call to a 1.0 target also the names of 0.x. Returns the new name, if there is one.
fn respell_method(
    call: &Call,
    text: &str,
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
    let says = |word| method.value.equals(text.as_bytes(), word);
    let (name, step) = if says("message/sendSubscribe") {
        (generation.send_method(true), CompletionStep::Alias)
    } else if generation == Generation::V0 {
        return None;
    } else if says("message/stream") {
        (generation.send_method(true), CompletionStep::Method)
    } else if says("message/send") {
        (generation.send_method(false), CompletionStep::Method)
    } else {
        return None;
    };
    work.edits.replace_value(&method, format!("\"{name}\""));
    work.done.add(step);
    Some(name)
}
