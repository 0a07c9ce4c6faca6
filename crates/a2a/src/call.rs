//! Reads a body in one pass ([`Call`]) and records the positions of the members that the gateway
//! needs.

use std::borrow::Cow;

use super::ambiguity::Ambiguity;
use super::envelope::METHOD_NAME_BYTES_MAX;
use super::generation::Generation;
use super::json::{Kind, Member, Name, Object, Value};
use super::method::Method;
use super::refs::{RefCandidates, RefKind};
use super::walker::{WalkError, Walker};

/// A parsed body. Spans point into its text; names are compared unescaped.
#[derive(Debug, Default)]
pub(super) struct Call {
    /// The object itself.
    pub(super) top: Object,
    /// True if it has a `jsonrpc` member with any value: an envelope. Otherwise it is bare.
    pub(super) enveloped: bool,
    /// `id`.
    pub(super) id: Option<Member>,
    /// `method`.
    pub(super) method: Option<Member>,
    /// `params`.
    pub(super) params: Option<Member>,
    /// `message`, of a bare body.
    pub(super) message: Option<Member>,
    /// True if it has `parts`, `content` or `text`: a message itself, if it is bare.
    pub(super) is_message: bool,
    /// True if it has `result` or `error`: a response, if it has no method.
    pub(super) is_answer: bool,
    /// True if it has members besides `jsonrpc`, `id`, `method` and `params`.
    pub(super) has_more: bool,
    /// The first of the members above that is ambiguous.
    pub(super) unclear: Option<Ambiguity>,
    /// The content of `params`, if that is an object.
    pub(super) inner: Params,
    /// The first ambiguous one of the members that a bare body has at its top level.
    pub(super) unclear_bare: Option<Ambiguity>,
    /// Members that are `params` in another spelling.
    pub(super) noted: RefCandidates,
}

/// Top-level members of a bare body that a call does not have.
const OF_BARE: [&str; 11] = [
    "message",
    "metadata",
    "configuration",
    "parts",
    "content",
    "text",
    "run_id",
    "source_workspace_id",
    "target_agent_id",
    "result",
    "error",
];

/// Members of `params` that are read, in the spellings that clients send.
const OF_PARAMS: [&str; 16] = [
    "message",
    "request",
    "metadata",
    "configuration",
    "target_agent_id",
    "id",
    "taskId",
    "task_id",
    "name",
    "parent",
    "pushNotification",
    "push_notification",
    "pushNotificationConfig",
    "push_notification_config",
    "taskPushNotificationConfig",
    "task_push_notification_config",
];

/// Members of a message that are read.
const OF_MESSAGE: [&str; 11] = [
    "messageId",
    "message_id",
    "taskId",
    "task_id",
    "referenceTaskIds",
    "reference_task_ids",
    "metadata",
    "role",
    "text",
    "parts",
    "content",
];

/// Members of a part that are read.
const OF_PART: [&str; 2] = ["kind", "type"];

/// `params` of a send call.
#[derive(Debug, Default)]
pub(super) struct Params {
    /// The object itself.
    pub(super) object: Object,
    /// `metadata`.
    pub(super) metadata: Option<Member>,
    /// The object in `metadata`.
    pub(super) metadata_object: Object,
    /// `metadata.source_workspace_id`.
    pub(super) source: Option<Member>,
    /// `target_agent_id`.
    pub(super) target: Option<Member>,
    /// `message`.
    pub(super) message: Option<Member>,
    /// The content of `message`, if that is an object.
    pub(super) body: Message,
    /// The first ambiguous member that is read, here or below.
    pub(super) unclear: Option<Ambiguity>,
    /// Members that may refer to a task or a URL.
    pub(super) noted: RefCandidates,
}

/// `params.message` of a send call.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The object itself.
    pub(super) object: Object,
    /// `messageId`.
    pub(super) message_id: Option<Member>,
    /// `message_id`.
    pub(super) snake_id: Option<Member>,
    /// `task_id`, not `taskId`.
    pub(super) task_id: Option<Member>,
    /// `metadata`.
    pub(super) metadata: Option<Member>,
    /// `parts`.
    pub(super) parts: Option<Member>,
    /// `content`.
    pub(super) content: Option<Member>,
    /// `text`.
    pub(super) text: Option<Member>,
    /// `role`.
    pub(super) role: Option<Member>,
    /// True if a part has `type` and no `kind`.
    pub(super) typed_parts: bool,
    /// Members that may refer to a task.
    pub(super) noted: RefCandidates,
}

/// The reason that a body is not a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// Not JSON at this offset.
    Syntax(usize),
    /// An array.
    Batch,
    /// JSON, but neither an object nor an array.
    NoObject,
    /// Nested too deep; with the position of the id if that was read before.
    TooDeep(Option<Value>),
}

impl Call {
    /// Reads `text` once.
    ///
    /// # Errors
    /// [`CallError`]. An ambiguous member is not an error yet: it is recorded, and the caller of
    /// this function, which knows the method, decides.
    pub(super) fn parse(text: &[u8]) -> Result<Self, CallError> {
        let mut call = Self::default();
        let mut walker = Walker::new(text);
        let walked = match walker.peek() {
            Some(b'{') => call.read_members(&mut walker).map(|()| Kind::Object),
            _ => walker.read_value().map(|value| value.kind),
        };
        let kind = walked.and_then(|kind| walker.expect_end().map(|()| kind));
        match kind {
            Ok(Kind::Object) => Ok(call),
            Ok(Kind::Array) => Err(CallError::Batch),
            Ok(_) => Err(CallError::NoObject),
            Err(WalkError::Syntax(at)) => Err(CallError::Syntax(at)),
            Err(WalkError::TooDeep) => Err(CallError::TooDeep(call.id.map(|id| id.value))),
        }
    }

    fn read_members(&mut self, walker: &mut Walker<'_>) -> Result<(), WalkError> {
        self.top = walker.walk_object(|walker, name| match &*name.unescaped {
            b"jsonrpc" => {
                let value = walker.read_value()?;
                if self.enveloped {
                    record_ambiguity(&mut self.unclear, Some(Ambiguity::Twice("jsonrpc")));
                }
                self.enveloped = true;
                Ok(value)
            }
            b"params" => {
                let value = self.inner.read(walker)?;
                record_member(&mut self.params, &name, value, "params", &mut self.unclear);
                Ok(value)
            }
            b"id" => read_member(&mut self.id, walker, &name, "id", &mut self.unclear),
            b"method" => read_member(&mut self.method, walker, &name, "method", &mut self.unclear),
            other => {
                let top = ["jsonrpc", "id", "method", "params"];
                record_ambiguity(&mut self.unclear, Ambiguity::of_name(other, &top));
                record_ambiguity(&mut self.unclear_bare, Ambiguity::of_name(other, &OF_BARE));
                self.has_more = true;
                self.is_message |= matches!(other, b"parts" | b"content" | b"text");
                self.is_answer |= matches!(other, b"result" | b"error");
                let value = walker.read_value()?;
                if other == b"message" {
                    self.message = Some(name.with_value(value));
                }
                self.noted.record(RefKind::of_top_member(other), value);
                Ok(value)
            }
        })?;
        Ok(())
    }

    /// Returns the method; [`Method::Unread`] if there is none, or one that is not a string.
    pub(super) fn method(&self, text: &[u8]) -> Method {
        let Some(method) = self.method.filter(|m| m.value.kind == Kind::String) else {
            return Method::Unread;
        };
        match std::str::from_utf8(&method.value.unescaped(text)) {
            Ok(name) => Method::parse(name),
            Err(_) => Method::Other,
        }
    }

    /// Returns the unescaped method name; `None` if it is not a string, or too long to report.
    pub(super) fn method_name(&self, text: &str) -> Option<Cow<'static, str>> {
        let method = self.method.filter(|m| m.value.kind == Kind::String)?;
        let name = method.value.unescaped(text.as_bytes());
        let name = std::str::from_utf8(&name).ok()?;
        let (method, generations) = (Method::parse(name), [Generation::V1, Generation::V0]);
        let mut known = generations.iter().filter_map(|of| method.name_in(*of));
        match known.find(|known| *known == name) {
            Some(known) => Some(Cow::Borrowed(known)),
            None => (name.len() <= METHOD_NAME_BYTES_MAX).then(|| Cow::Owned(name.to_owned())),
        }
    }

    /// Returns true if the message rules apply: a send or stream method of 0.2 or later. `params`
    /// of 0.1 (`tasks/send`) have another shape.
    pub(super) fn sends_message(&self, text: &[u8]) -> bool {
        let of_0_1 = |m: Member| {
            ["tasks/send", "tasks/sendSubscribe"]
                .iter()
                .any(|name| m.value.equals(text, name))
        };
        self.method(text).sends() && !self.method.is_some_and(of_0_1)
    }
}

impl Params {
    /// Walks over the value of `params`, of any kind.
    pub(super) fn read(&mut self, walker: &mut Walker<'_>) -> Result<Value, WalkError> {
        if walker.peek() != Some(b'{') {
            return walker.read_value();
        }
        self.object = walker.walk_object(|walker, name| match &*name.unescaped {
            b"message" => {
                let value = self.body.read(walker, &mut self.unclear)?;
                record_member(
                    &mut self.message,
                    &name,
                    value,
                    "message",
                    &mut self.unclear,
                );
                Ok(value)
            }
            b"metadata" => {
                let value = self.read_metadata(walker)?;
                record_member(
                    &mut self.metadata,
                    &name,
                    value,
                    "metadata",
                    &mut self.unclear,
                );
                Ok(value)
            }
            b"target_agent_id" => read_member(
                &mut self.target,
                walker,
                &name,
                "target_agent_id",
                &mut self.unclear,
            ),
            other => {
                let value = walker.read_value()?;
                let spelled = self.noted.record_member(
                    other,
                    &OF_PARAMS,
                    RefKind::of_params_member(other),
                    value,
                );
                record_ambiguity(&mut self.unclear, spelled);
                Ok(value)
            }
        })?;
        Ok(self.object.to_value())
    }

    fn read_metadata(&mut self, walker: &mut Walker<'_>) -> Result<Value, WalkError> {
        if walker.peek() != Some(b'{') {
            return walker.read_value();
        }
        self.metadata_object = walker.walk_object(|walker, name| match &*name.unescaped {
            b"source_workspace_id" => read_member(
                &mut self.source,
                walker,
                &name,
                "source_workspace_id",
                &mut self.unclear,
            ),
            other => {
                let spelled = Ambiguity::of_name(other, &["source_workspace_id"]);
                record_ambiguity(&mut self.unclear, spelled);
                walker.read_value()
            }
        })?;
        Ok(self.metadata_object.to_value())
    }
}

impl Message {
    /// Walks over the value of `message`, of any kind.
    pub(super) fn read(
        &mut self,
        walker: &mut Walker<'_>,
        unclear: &mut Option<Ambiguity>,
    ) -> Result<Value, WalkError> {
        if walker.peek() != Some(b'{') {
            return walker.read_value();
        }
        self.object = walker.walk_object(|walker, name| {
            let (slot, word) = match &*name.unescaped {
                b"messageId" => (&mut self.message_id, "messageId"),
                b"message_id" => (&mut self.snake_id, "message_id"),
                b"task_id" => {
                    let value = read_member(&mut self.task_id, walker, &name, "task_id", unclear)?;
                    self.noted.record(Some(RefKind::OwnTaskId), value);
                    return Ok(value);
                }
                b"metadata" => (&mut self.metadata, "metadata"),
                b"role" => (&mut self.role, "role"),
                b"text" => (&mut self.text, "text"),
                b"parts" | b"content" => {
                    let value = read_parts(walker, &mut self.typed_parts, unclear)?;
                    let (slot, word) = match &*name.unescaped {
                        b"parts" => (&mut self.parts, "parts"),
                        _ => (&mut self.content, "content"),
                    };
                    record_member(slot, &name, value, word, unclear);
                    return Ok(value);
                }
                other => {
                    let value = walker.read_value()?;
                    let place = RefKind::of_message_member(other);
                    record_ambiguity(
                        unclear,
                        self.noted.record_member(other, &OF_MESSAGE, place, value),
                    );
                    return Ok(value);
                }
            };
            read_member(slot, walker, &name, word, unclear)
        })?;
        Ok(self.object.to_value())
    }
}

/// Walks over parts: an array, or a single object, which is allowed for `content`.
fn read_parts(
    walker: &mut Walker<'_>,
    typed: &mut bool,
    unclear: &mut Option<Ambiguity>,
) -> Result<Value, WalkError> {
    match walker.peek() {
        Some(b'[') => walker.walk_array(|walker| match walker.peek() {
            Some(b'{') => read_part(walker, typed, unclear).map(drop),
            _ => walker.read_value().map(drop),
        }),
        Some(b'{') => read_part(walker, typed, unclear),
        _ => walker.read_value(),
    }
}

fn read_part(
    walker: &mut Walker<'_>,
    typed: &mut bool,
    unclear: &mut Option<Ambiguity>,
) -> Result<Value, WalkError> {
    let (mut kind, mut kind_of_0_1) = (None, None);
    let object = walker.walk_object(|walker, name| match &*name.unescaped {
        b"kind" => read_member(&mut kind, walker, &name, "kind", unclear),
        b"type" => read_member(&mut kind_of_0_1, walker, &name, "type", unclear),
        other => {
            record_ambiguity(unclear, Ambiguity::of_name(other, &OF_PART));
            walker.read_value()
        }
    })?;
    *typed |= kind.is_none() && kind_of_0_1.is_some();
    Ok(object.to_value())
}

/// Walks over the value of a member and records the member.
fn read_member(
    slot: &mut Option<Member>,
    walker: &mut Walker<'_>,
    name: &Name<'_>,
    word: &'static str,
    unclear: &mut Option<Ambiguity>,
) -> Result<Value, WalkError> {
    let value = walker.read_value()?;
    record_member(slot, name, value, word, unclear);
    Ok(value)
}

fn record_member(
    slot: &mut Option<Member>,
    name: &Name<'_>,
    value: Value,
    word: &'static str,
    unclear: &mut Option<Ambiguity>,
) {
    if slot.replace(name.with_value(value)).is_some() {
        record_ambiguity(unclear, Some(Ambiguity::Twice(word)));
    }
}

/// Records the first ambiguity only.
fn record_ambiguity(unclear: &mut Option<Ambiguity>, found: Option<Ambiguity>) {
    *unclear = unclear.or(found);
}
