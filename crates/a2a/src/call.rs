//! Reads a body in one pass ([`Call`]) and records the positions of the members that the gateway
//! needs.

use std::borrow::Cow;

use super::envelope::{Fault, METHOD_NAME_BYTES_MAX};
use super::generation::Generation;
use super::json::{Kind, Member, Name, Object, Value};
use super::method::Method;
use super::refs::{Place, RefCandidates, RefKind};
use super::walker::{WalkError, Walker};

/// A parsed body. Spans point into its text; names are compared unescaped.
#[derive(Debug, Default)]
pub(super) struct Call<'a> {
    /// The text of the body.
    pub(super) text: &'a str,
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

impl<'a> Call<'a> {
    /// Reads `text` once.
    ///
    /// # Errors
    /// [`Fault`]: it is no object. An ambiguous member is not an error yet: it is recorded, and the caller of
    /// this function, which knows the method, decides.
    pub(super) fn parse(text: &'a str) -> Result<Self, Fault> {
        let mut call = Self {
            text,
            ..Self::default()
        };
        let mut walker = Walker::new(text.as_bytes());
        let walked = match walker.peek() {
            Some(b'{') => call.read_members(&mut walker).map(|()| Kind::Object),
            _ => walker.read_value().map(|value| value.kind),
        };
        let kind = walked.and_then(|kind| walker.expect_end().map(|()| kind));
        match kind {
            Ok(Kind::Object) => Ok(call),
            Ok(Kind::Array) => Err(Fault::invalid_request(
                "batches are not served; send one JSON-RPC request",
            )),
            Ok(_) => Err(Fault::invalid_request(
                "the body is not an object; send a JSON-RPC request",
            )),
            Err(error) => Err(Fault {
                rpc_id: call.rpc_id().filter(|_| error == WalkError::TooDeep),
                ..Fault::from(error)
            }),
        }
    }

    fn read_members(&mut self, walker: &mut Walker<'_>) -> Result<(), WalkError> {
        self.top = walker.walk_object(|walker, name| {
            let (slot, word) = match &*name.unescaped {
                b"jsonrpc" => {
                    let twice = self.enveloped.then_some(Ambiguity::Twice("jsonrpc"));
                    record_ambiguity(&mut self.unclear, twice);
                    self.enveloped = true;
                    return walker.read_value();
                }
                b"params" => {
                    let value = self.inner.read(walker)?;
                    record_member(&mut self.params, &name, value, "params", &mut self.unclear);
                    return Ok(value);
                }
                b"id" => (&mut self.id, "id"),
                b"method" => (&mut self.method, "method"),
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
                    self.noted
                        .record(RefKind::of_member(Place::Top, other), value);
                    return Ok(value);
                }
            };
            read_member(slot, walker, &name, word, &mut self.unclear)
        })?;
        Ok(())
    }

    /// Returns the id as it is spelled, if a response can have it.
    pub(super) fn rpc_id(&self) -> Option<String> {
        let id = self.id.filter(|id| id.value.is_rpc_id())?;
        Some(id.value.raw_str(self.text).to_owned())
    }

    /// Returns the unescaped `method`; `None`: there is none, or one that is not a string.
    fn said_method(&self) -> Option<Cow<'a, [u8]>> {
        let method = self.method.filter(|m| m.value.kind == Kind::String)?;
        Some(method.value.unescaped(self.text.as_bytes()))
    }

    /// Returns the method; [`Method::Unread`] if there is none, or one that is not a string.
    pub(super) fn method(&self) -> Method {
        match self.said_method().as_deref().map(std::str::from_utf8) {
            None => Method::Unread,
            Some(Ok(name)) => Method::parse(name),
            Some(Err(_)) => Method::Other,
        }
    }

    /// Returns the unescaped method name; `None` if it is not a string, or too long to report.
    pub(super) fn method_name(&self) -> Option<Cow<'static, str>> {
        let name = self.said_method()?;
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
    pub(super) fn sends_message(&self) -> bool {
        let name = self.said_method();
        let is_of_0_1 = matches!(
            name.as_deref(),
            Some(b"tasks/send" | b"tasks/sendSubscribe")
        );
        self.method().sends() && !is_of_0_1
    }
}

impl Params {
    /// Walks over the value of `params`, of any kind.
    pub(super) fn read(&mut self, walker: &mut Walker<'_>) -> Result<Value, WalkError> {
        let (value, object) = walker.walk_members(|walker, name| {
            let (value, slot, word) = match &*name.unescaped {
                b"message" => (
                    self.body.read(walker, &mut self.unclear)?,
                    &mut self.message,
                    "message",
                ),
                b"metadata" => (self.read_metadata(walker)?, &mut self.metadata, "metadata"),
                b"target_agent_id" => (walker.read_value()?, &mut self.target, "target_agent_id"),
                other => {
                    let value = walker.read_value()?;
                    let place = RefKind::of_member(Place::Params, other);
                    let spelled = self.noted.record_member(other, &OF_PARAMS, place, value);
                    record_ambiguity(&mut self.unclear, spelled);
                    return Ok(value);
                }
            };
            record_member(slot, &name, value, word, &mut self.unclear);
            Ok(value)
        })?;
        self.object = object;
        Ok(value)
    }

    fn read_metadata(&mut self, walker: &mut Walker<'_>) -> Result<Value, WalkError> {
        const SOURCE: &str = "source_workspace_id";
        let (value, object) = walker.walk_members(|walker, name| {
            if *name.unescaped == *SOURCE.as_bytes() {
                return read_member(&mut self.source, walker, &name, SOURCE, &mut self.unclear);
            }
            let spelled = Ambiguity::of_name(&name.unescaped, &[SOURCE]);
            record_ambiguity(&mut self.unclear, spelled);
            walker.read_value()
        })?;
        self.metadata_object = object;
        Ok(value)
    }
}

impl Message {
    /// Walks over the value of `message`, of any kind.
    pub(super) fn read(
        &mut self,
        walker: &mut Walker<'_>,
        unclear: &mut Option<Ambiguity>,
    ) -> Result<Value, WalkError> {
        let (value, object) = walker.walk_members(|walker, name| {
            let (slot, word) = match &*name.unescaped {
                b"messageId" => (&mut self.message_id, "messageId"),
                b"message_id" => (&mut self.snake_id, "message_id"),
                b"task_id" => (&mut self.task_id, "task_id"),
                b"metadata" => (&mut self.metadata, "metadata"),
                b"role" => (&mut self.role, "role"),
                b"text" => (&mut self.text, "text"),
                b"parts" => (&mut self.parts, "parts"),
                b"content" => (&mut self.content, "content"),
                other => {
                    let value = walker.read_value()?;
                    let place = RefKind::of_member(Place::Message, other);
                    let spelled = self.noted.record_member(other, &OF_MESSAGE, place, value);
                    record_ambiguity(unclear, spelled);
                    return Ok(value);
                }
            };
            let value = match word {
                "parts" | "content" => read_parts(walker, &mut self.typed_parts, unclear)?,
                _ => walker.read_value()?,
            };
            if word == "task_id" {
                self.noted.record(Some(RefKind::OwnTaskId), value);
            }
            record_member(slot, &name, value, word, unclear);
            Ok(value)
        })?;
        self.object = object;
        Ok(value)
    }
}

/// Walks over parts: an array, or a single object, which is allowed for `content`.
fn read_parts(
    walker: &mut Walker<'_>,
    typed: &mut bool,
    unclear: &mut Option<Ambiguity>,
) -> Result<Value, WalkError> {
    match walker.peek() {
        Some(b'[') => walker.walk_array(|walker| read_part(walker, typed, unclear).map(drop)),
        _ => read_part(walker, typed, unclear),
    }
}

fn read_part(
    walker: &mut Walker<'_>,
    typed: &mut bool,
    unclear: &mut Option<Ambiguity>,
) -> Result<Value, WalkError> {
    let (mut kind, mut kind_of_0_1) = (None, None);
    let (value, _) = walker.walk_members(|walker, name| match &*name.unescaped {
        b"kind" => read_member(&mut kind, walker, &name, "kind", unclear),
        b"type" => read_member(&mut kind_of_0_1, walker, &name, "type", unclear),
        other => {
            record_ambiguity(unclear, Ambiguity::of_name(other, &OF_PART));
            walker.read_value()
        }
    })?;
    *typed |= kind.is_none() && kind_of_0_1.is_some();
    Ok(value)
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

/// Longest name that is compared, in bytes: all relevant ones are shorter.
pub(super) const NAME_BYTES_MAX: usize = 48;

/// The reason that a member which the gateway reads is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ambiguity {
    /// A duplicate name.
    Twice(&'static str),
    /// A name that equals this one except for its case.
    OtherCase(&'static str),
}

impl Ambiguity {
    /// Returns the one of `words` from which the name differs only in case. `None`: it is exactly
    /// one of them, or none.
    pub(super) fn of_name(name: &[u8], words: &[&'static str]) -> Option<Self> {
        if words.iter().any(|word| word.as_bytes() == name) {
            return None;
        }
        let mut folded = [0; NAME_BYTES_MAX];
        let folded = fold_name(name, &mut folded)?;
        let word = words
            .iter()
            .find(|word| word.as_bytes().eq_ignore_ascii_case(folded));
        word.map(|word| Self::OtherCase(word))
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Twice(word) | Self::OtherCase(word) => word,
        }
    }

    pub(super) fn to_fault(self) -> Fault {
        match self {
            Self::Twice(word) => Fault::duplicate_member(word),
            Self::OtherCase(word) => Fault::invalid_request(format!(
                "a name differs from \"{word}\" in case only; send it as \"{word}\""
            )),
        }
    }
}

/// Returns the name in lower case. Like Go, it also folds two characters that are not ASCII: `ſ` to
/// `s`, and the Kelvin sign to `k`. `None`: it is longer than `room`.
pub(super) fn fold_name<'r>(name: &[u8], room: &'r mut [u8]) -> Option<&'r [u8]> {
    let mut len = 0;
    let mut rest = name;
    loop {
        let (byte, behind) = match rest {
            [] => return room.get(..len),
            [0xc5, 0xbf, behind @ ..] => (b's', behind),
            [0xe2, 0x84, 0xaa, behind @ ..] => (b'k', behind),
            [byte, behind @ ..] => (byte.to_ascii_lowercase(), behind),
        };
        *room.get_mut(len)? = byte;
        len += 1;
        rest = behind;
    }
}

#[cfg(test)]
mod ambiguity_tests {
    use super::*;

    #[test]
    fn a_name_is_compared_as_the_laxest_decoder_does() {
        const WORDS: [&str; 2] = ["params", "task_id"];
        let of = |name: &str| Ambiguity::of_name(name.as_bytes(), &WORDS).map(Ambiguity::as_str);
        for (name, expected) in [
            ("Params", Some("params")),
            ("PARAMS", Some("params")),
            ("paramſ", Some("params")),
            ("tas\u{212a}_id", Some("task_id")),
            ("Task_ID", Some("task_id")),
            ("params", None),
            ("param", None),
            ("taskId", None),
            ("", None),
        ] {
            assert_eq!(of(name), expected, "{name}");
        }
        assert_eq!(of(&"p".repeat(1000)), None);
    }
}
