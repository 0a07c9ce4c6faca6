//! Bodies without `jsonrpc`: detects the call that is meant ([`detect_form`]), and builds its envelope.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::call::Call;
use super::edit::EditPlan;
use super::envelope::{Completion, Fault};
use super::json::{Kind, Member, Object, Value};
use super::walker::Walker;

/// The position of the members of a bare body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BareForm {
    /// As in a call: `{"method","params"?}`, `{"params":{"message":{…}}}`.
    InPlace,
    /// The body is the message: an object with `parts`, `content` or `text`. Its `configuration`
    /// and `metadata` are nevertheless those of `params`.
    Message,
    /// The members of `params` are at top level: `{"message":{…},"configuration":{…}}`.
    Scattered,
}

/// Detects the form of a bare body.
///
/// # Errors
/// If no call can be made of it.
pub(super) fn detect_form(call: &Call<'_>) -> Result<BareForm, Fault> {
    let is_object = |m: Option<Member>| m.is_some_and(|m| m.value.kind == Kind::Object);
    if let Some(method) = call.method {
        if method.value.kind != Kind::String {
            return Err(Fault::invalid_request("\"method\" is not a string"));
        }
        // The method takes a message, and the message is beside it.
        let scattered = call.params.is_none() && is_object(call.message);
        return Ok(if scattered && call.sends_message() {
            BareForm::Scattered
        } else {
            BareForm::InPlace
        });
    }
    if call.is_answer {
        return Err(Fault::invalid_request(
            "a body with \"result\" or \"error\" is an answer; send a request",
        ));
    }
    if is_object(call.inner.message) && !call.has_more {
        Ok(BareForm::InPlace)
    } else if is_object(call.inner.message) || is_object(call.message) {
        Ok(BareForm::Scattered)
    } else if call.is_message {
        Ok(BareForm::Message)
    } else {
        Err(Fault::invalid_request(
            "no call can be made of this; send \"method\" and \"params\", or a \"message\" object",
        ))
    }
}

/// Inserts the envelope in front of the members of a body that has them in place. An `id` that
/// cannot be used for a response is replaced in place.
pub(super) fn insert_envelope(call: &Call<'_>, completion: &Completion<'_>, work: &mut EditPlan) {
    let mut front = String::from(r#""jsonrpc":"2.0","#);
    match call.id {
        None => front.push_str(&format!(r#""id":"{}","#, new_id())),
        Some(id) if !id.value.is_rpc_id() => {
            work.edits.replace_value(&id, format!("\"{}\"", new_id()))
        }
        Some(_) => {}
    }
    if call.method.is_none() {
        front.push_str(&format!(r#""method":"{}","#, completion.inferred_name()));
    }
    work.edits.insert(call.top.open + 1, front);
}

/// Returns a new id for a call or a message: UUID v4. The bytes come from the thread's generator,
/// which is cryptographic and saves a system call for each.
pub(super) fn new_id() -> uuid::Uuid {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid()
}

/// Returns the rejection of a duplicate member. A member unknown to the gateway may have any name
/// of any length, so it is not named: a rejection contains nothing of the body.
fn duplicate_fault(name: &[u8]) -> Fault {
    const OURS: [&str; 5] = [
        "configuration",
        "message",
        "metadata",
        "run_id",
        "source_workspace_id",
    ];
    match OURS.iter().find(|ours| ours.as_bytes() == name) {
        Some(ours) => Fault::duplicate_member(ours),
        None => Fault::invalid_request("a member stands twice; send it once"),
    }
}

/// Writes the call that `text` means: each member as it is spelled and in order, but at the
/// position that a call has for it.
///
/// # Errors
/// If there is a duplicate member, or would be one after the move.
pub(super) fn rebuild_call(
    call: &Call<'_>,
    completion: &Completion<'_>,
    form: BareForm,
) -> Result<String, Fault> {
    let text = call.text;
    let mut params = match call.params {
        Some(old) if old.value.kind == Kind::Object => Members::from_object(text, old.value.start),
        Some(old) if old.value.kind != Kind::Null => {
            return Err(Fault::invalid_request("\"params\" is not an object"));
        }
        _ => Members::default(),
    };
    let mut message = Vec::new();
    let mut loose = Vec::new();
    let mut seen = HashSet::new();
    for (name, member) in read_members(text, call.top.open).1 {
        if !seen.insert(name.clone()) {
            return Err(duplicate_fault(&name));
        }
        match (&*name, form) {
            (b"id" | b"method" | b"params", _) => {}
            // Also from a body that is a message: `source_workspace_id` in the message would reach
            // the agent unverified.
            (b"configuration" | b"metadata" | b"target_agent_id", _)
            | (b"message", BareForm::Scattered) => params.merge(name, &member, text)?,
            (b"run_id" | b"source_workspace_id", _) | (_, BareForm::Scattered) => {
                loose.push((name, member));
            }
            _ => message.push(member.raw_str(text)),
        }
    }
    if form == BareForm::Message {
        if params.by_name.contains_key(&b"message"[..]) {
            return Err(Fault::duplicate_member("message"));
        }
        let raw = format!(r#""message":{{{}}}"#, message.join(","));
        params.push(Cow::Borrowed(b"message"), Cow::Owned(raw), None);
    }
    params.append_metadata(loose, text)?;
    let id = match call.rpc_id() {
        Some(id) => id,
        None => format!("\"{}\"", new_id()),
    };
    let method = match call.method {
        Some(method) => method.value.raw_str(text).to_owned(),
        None => format!("\"{}\"", completion.inferred_name()),
    };
    let params = params.to_text();
    Ok(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{{{params}}}}}"#
    ))
}

/// A member and its unescaped name.
pub(super) type NamedMember<'t> = (Cow<'t, [u8]>, Member);

/// Returns the object at `open` and its members. The text was read before, so the walk cannot fail.
pub(super) fn read_members(text: &str, open: usize) -> (Object, Vec<NamedMember<'_>>) {
    let mut members = Vec::new();
    let object = Walker::from(text.as_bytes(), open).walk_object(|walker, name| {
        let value = walker.read_value()?;
        let member = name.with_value(value);
        members.push((name.unescaped, member));
        Ok(value)
    });
    (object.unwrap_or_default(), members)
}

/// Members that are collected into one object.
#[derive(Default)]
struct Members<'t> {
    list: Vec<CollectedMember<'t>>,
    by_name: HashMap<Cow<'t, [u8]>, usize>,
}

/// A collected member.
struct CollectedMember<'t> {
    /// `"name":value`, as spelled.
    raw: Cow<'t, str>,
    /// The position of its value; `None` if the gateway wrote it.
    value: Option<Value>,
}

impl<'t> Members<'t> {
    /// Collects all members of the object at `open`, including duplicates, which are not rejected
    /// here.
    fn from_object(text: &'t str, open: usize) -> Self {
        let mut all = Self::default();
        for (name, member) in read_members(text, open).1 {
            all.push_spelled(name, &member, text);
        }
        all
    }

    fn push(&mut self, name: Cow<'t, [u8]>, raw: Cow<'t, str>, value: Option<Value>) {
        self.by_name.insert(name, self.list.len());
        self.list.push(CollectedMember { raw, value });
    }

    fn push_spelled(&mut self, name: Cow<'t, [u8]>, member: &Member, text: &'t str) {
        let raw = Cow::Borrowed(member.raw_str(text));
        self.push(name, raw, Some(member.value));
    }

    /// Adds a member from another object. The same value again is dropped; a different one is
    /// rejected.
    fn merge(&mut self, name: Cow<'t, [u8]>, member: &Member, text: &'t str) -> Result<(), Fault> {
        let Some(at) = self.by_name.get(&name) else {
            self.push_spelled(name, member, text);
            return Ok(());
        };
        match self.list[*at].value {
            Some(old) if old.raw_str(text) == member.value.raw_str(text) => Ok(()),
            // The proven caller replaces either value.
            Some(_) if *name == *b"source_workspace_id" => Ok(()),
            _ => Err(duplicate_fault(&name)),
        }
    }

    /// Appends `loose` to the member `metadata`.
    fn append_metadata(&mut self, loose: Vec<NamedMember<'t>>, text: &'t str) -> Result<(), Fault> {
        if loose.is_empty() {
            return Ok(());
        }
        let at = self.by_name.get(&b"metadata"[..]).copied();
        let old = at.and_then(|at| self.list[at].value);
        let mut metadata = match old {
            None => Self::default(),
            Some(old) if old.kind == Kind::Null => Self::default(),
            Some(old) if old.kind == Kind::Object => Self::from_object(text, old.start),
            Some(_) => return Err(Fault::invalid_request("\"metadata\" is not an object")),
        };
        for (name, member) in loose {
            metadata.merge(name, &member, text)?;
        }
        let raw = Cow::Owned(format!(r#""metadata":{{{}}}"#, metadata.to_text()));
        match at {
            Some(at) => self.list[at].raw = raw,
            None => self.push(Cow::Borrowed(b"metadata"), raw, None),
        }
        Ok(())
    }

    /// Returns the content of the object, without its braces.
    fn to_text(&self) -> String {
        let raw: Vec<&str> = self.list.iter().map(|joined| &*joined.raw).collect();
        raw.join(",")
    }
}
