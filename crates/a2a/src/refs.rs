//! The references of a call ([`Refs`]): tasks, which must belong to the caller, and URLs that the agent is asked to
//! call.
//!
//! Parsers differ: for a duplicate member some use the first and some the last, some ignore case (Go), some read
//! `task_id` as `taskId` (`ProtoJSON`, pydantic). A member that one of them could read as a reference counts, in each
//! spelling and with each of its duplicates, for any method:
//!
//! - in `params`: `id`, `taskId`, and resource names (`name`, `parent`: `tasks/{id}/…`);
//! - in `params.message`: `taskId`, `referenceTaskIds`, and `task_id` if the completion leaves it;
//! - in `params.configuration` and a push configuration, at any depth: `url`, `taskId`;
//! - in `params` and `params.message`: `contextId`, which chooses the instance of an agent and grants nothing;
//! - in the whole `params` of a call that sets a push configuration: the same.
//!
//! The parts and the metadata of a message are content and contain no references.

use bytes::Bytes;

use super::call::{Ambiguity, Call, Message, NAME_BYTES_MAX, Params, fold_name};
use super::completion_steps::CompletionSteps;
use super::edit::EditPlan;
use super::envelope::{Fault, decode_text};
use super::json::{Kind, Value, without_mark};
use super::message::set_source;
use super::method::Method;
use super::walker::{WalkError, Walker};

/// Longest task id that the gateway tracks, in bytes. Real ones have 36.
pub const TASK_ID_BYTES_MAX: usize = 256;

/// Most tasks that one call may refer to.
const TASKS_MAX: usize = 100;

/// Most URLs that one call may name for an agent to call. Each may need a DNS lookup.
const URLS_MAX: usize = 4;

/// Most members that are recorded while a body is read. A call has one or two.
const NOTED_MAX: usize = 64;

/// The references of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refs {
    /// Task ids, without duplicates.
    pub tasks: Vec<String>,
    /// Context id: the first one that is a string of 1 to [`TASK_ID_BYTES_MAX`] bytes.
    pub context: Option<String>,
    /// URLs for push notifications, without duplicates.
    pub push_urls: Vec<String>,
    /// True if it has a push configuration, with or without a URL.
    pub sets_push: bool,
}

impl Refs {
    /// Collects the references in the body of a REST call. The router handles those in its path.
    ///
    /// # Errors
    /// [`Fault`] if it is not JSON, ambiguous, or refers to more than can be checked.
    pub fn from_rest_body(body: &[u8], method: Method) -> Result<Self, Fault> {
        let body = without_mark(body);
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        Self::from_rest_text(decode_text(body)?, method).map(|(refs, _)| refs)
    }

    /// Like [`Refs::from_rest_body`], for text; also returns the positions of its members.
    pub(super) fn from_rest_text(text: &str, method: Method) -> Result<(Self, Params), Fault> {
        let mut params = Params::default();
        let mut walker = Walker::new(text.as_bytes());
        let value = params.read(&mut walker)?;
        walker.expect_end()?;
        if let Some(unclear) = params.unclear {
            return Err(unclear.to_fault());
        }
        let mut search = Search::new(text, method, false);
        search.search_params(&params, Some(value));
        Ok((search.finish()?, params))
    }

    /// Collects the references of a call. `task_id_moved`: the agent does not get `message.task_id` under that name.
    ///
    /// # Errors
    /// If it refers to more than can be checked.
    pub(super) fn from_call(
        call: &Call<'_>,
        method: Method,
        task_id_moved: bool,
    ) -> Result<Self, Fault> {
        let mut search = Search::new(call.text, method, task_id_moved);
        search.search_params(&call.inner, call.params.map(|params| params.value));
        search.search_candidates(&call.noted);
        search.finish()
    }
}

/// The kind of reference that a member may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefKind {
    /// Task ids: a string, or several.
    TaskId,
    /// Context id.
    ContextId,
    /// Exactly `message.task_id`: the client's own task id, which the completion moves.
    OwnTaskId,
    /// The name of a resource: `tasks/{id}/pushNotificationConfigs/{config}`.
    Name,
    /// `message` in another spelling.
    Message,
    /// `params` in another spelling.
    Params,
    /// The `configuration` of a send call, which may contain a push configuration.
    Configuration,
    /// A push configuration.
    Push,
    /// A URL for the agent to call.
    Url,
}

/// An object of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The body.
    Top,
    Params,
    Message,
    /// A configuration, at any depth.
    Configuration,
}

/// The names of references without case and `_`, and the objects that have them. Exactly `params`, `message` and
/// `message.task_id` are read before. `request`: the name in the proto of 0.3, which some clients of its HTTP+JSON
/// binding send.
const NAMES: [(&str, RefKind, &[Place]); 14] = {
    use Place::{Configuration, Message, Params, Top};
    [
        ("params", RefKind::Params, &[Top]),
        ("id", RefKind::TaskId, &[Params]),
        ("taskid", RefKind::TaskId, &[Params, Message, Configuration]),
        ("referencetaskids", RefKind::TaskId, &[Message]),
        ("contextid", RefKind::ContextId, &[Params, Message]),
        ("name", RefKind::Name, &[Params, Configuration]),
        ("parent", RefKind::Name, &[Params, Configuration]),
        ("message", RefKind::Message, &[Params]),
        ("request", RefKind::Message, &[Params]),
        ("configuration", RefKind::Configuration, &[Params]),
        ("url", RefKind::Url, &[Configuration]),
        // In 0.1, in 0.2 and 0.3, and in 1.0.
        ("pushnotification", RefKind::Push, &[Params, Configuration]),
        (
            "pushnotificationconfig",
            RefKind::Push,
            &[Params, Configuration],
        ),
        (
            "taskpushnotificationconfig",
            RefKind::Push,
            &[Params, Configuration],
        ),
    ]
};

impl RefKind {
    /// Returns the kind of a member, with its name as the most lenient parser reads it: without case and `_`.
    pub(super) fn of_member(place: Place, name: &[u8]) -> Option<Self> {
        let mut folded = [0; NAME_BYTES_MAX];
        let folded = fold_name(name, &mut folded)?;
        let bare = folded.iter().copied().filter(|byte| *byte != b'_');
        let mut names = NAMES.iter();
        let found = names.find(|(known, ..)| known.bytes().eq(bare.clone()))?;
        found.2.contains(&place).then_some(found.1)
    }
}

/// Members that may be references, collected while a body is read.
#[derive(Debug, Default)]
pub(super) struct RefCandidates {
    members: Vec<(RefKind, Value)>,
    /// A bit for each member name that was read.
    seen: u32,
    too_many: bool,
}

impl RefCandidates {
    /// Records the value of a member, if it has a place. `words` are the names that are read; returns the ambiguity
    /// of the member's name, if there is one.
    pub(super) fn record_member(
        &mut self,
        name: &[u8],
        words: &[&'static str],
        place: Option<RefKind>,
        value: Value,
    ) -> Option<Ambiguity> {
        self.record(place, value);
        let at = words.iter().position(|word| word.as_bytes() == name);
        let Some(at) = at else {
            return Ambiguity::of_name(name, words);
        };
        let twice = self.seen & (1 << at) != 0;
        self.seen |= 1 << at;
        twice.then_some(Ambiguity::Twice(words[at]))
    }

    /// Records the value of a member, if it has a place.
    pub(super) fn record(&mut self, place: Option<RefKind>, value: Value) {
        let Some(place) = place.filter(|_| value.kind != Kind::Null) else {
            return;
        };
        if self.members.len() == NOTED_MAX {
            self.too_many = true;
        } else {
            self.members.push((place, value));
        }
    }
}

/// The state of the search.
struct Search<'a> {
    text: &'a str,
    method: Method,
    task_id_moved: bool,
    refs: Refs,
    too_many: Option<&'static str>,
    /// True if it has a push configuration with a URL that cannot be determined.
    unreadable: bool,
}

impl<'a> Search<'a> {
    fn new(text: &'a str, method: Method, task_id_moved: bool) -> Self {
        Self {
            text,
            method,
            task_id_moved,
            refs: Refs::default(),
            too_many: None,
            unreadable: false,
        }
    }

    fn finish(self) -> Result<Refs, Fault> {
        match self.too_many {
            Some(what) => Err(Fault::invalid_request(what)),
            None if self.unreadable => Err(Fault::invalid_params(NO_PUSH)),
            None => Ok(self.refs),
        }
    }

    /// Searches `params`. `value` is the whole of it.
    fn search_params(&mut self, params: &Params, value: Option<Value>) {
        self.search_candidates(&params.noted);
        self.search_candidates(&params.body.noted);
        let Some(value) = value else { return };
        match (self.method, value.kind) {
            (Method::CreatePushConfig, _) => self.search_configuration(value),
            (method, Kind::Array) if method.is_of_a_task() => self.add_ids(value),
            _ => {}
        }
    }

    fn search_candidates(&mut self, noted: &RefCandidates) {
        if noted.too_many {
            self.too_many = Some(TOO_MANY_MEMBERS);
        }
        for (place, value) in &noted.members {
            self.search_member(*place, *value);
        }
    }

    fn search_member(&mut self, place: RefKind, value: Value) {
        match place {
            RefKind::TaskId => self.add_ids(value),
            RefKind::ContextId => self.set_context(value),
            RefKind::OwnTaskId if self.task_id_moved => {}
            RefKind::OwnTaskId => self.add_ids(value),
            RefKind::Name => self.add_ids_of_name(value, true),
            RefKind::Message => {
                let (mut message, mut unclear) = (Message::default(), None);
                let walked = message.read(&mut self.walker_at(value), &mut unclear);
                if walked.is_ok() {
                    self.search_candidates(&message.noted);
                }
            }
            RefKind::Params => {
                let mut params = Params::default();
                if params.read(&mut self.walker_at(value)).is_ok() {
                    self.search_params(&params, Some(value));
                }
            }
            RefKind::Configuration => self.search_configuration(value),
            RefKind::Push => {
                self.record_push(value);
                self.search_configuration(value);
            }
            RefKind::Url => self.add_url(value),
        }
    }

    /// Returns a walker over a value that was read before, so that it cannot fail.
    fn walker_at(&self, value: Value) -> Walker<'a> {
        Walker::from(self.text.as_bytes(), value.start)
    }

    /// Collects all strings and numbers in a value: a lenient agent may convert any of them to an id.
    fn add_ids(&mut self, value: Value) {
        let text = self.text;
        let walked = walk_deep(
            &mut self.walker_at(value),
            None,
            &mut |_, leaf| match leaf.kind {
                Kind::String => {
                    self.add_id(&String::from_utf8_lossy(&leaf.unescaped(text.as_bytes())))
                }
                Kind::Number => self.add_number(leaf.raw_str(text)),
                _ => {}
            },
        );
        debug_assert!(walked.is_ok(), "it was read before");
    }

    fn set_context(&mut self, value: Value) {
        if value.kind != Kind::String || self.refs.context.is_some() {
            return;
        }
        let said = value.unescaped(self.text.as_bytes());
        if (1..=TASK_ID_BYTES_MAX).contains(&said.len()) {
            self.refs.context = Some(String::from_utf8_lossy(&said).into_owned());
        }
    }

    /// Adds a number as it is spelled, and as a lenient agent converts it: `7.0` is the task `7`.
    fn add_number(&mut self, raw: &str) {
        self.add_id(raw);
        let number = raw.parse::<f64>().ok();
        // Larger ones get an exponent, which no id has.
        if let Some(number) = number.filter(|number| number.abs() < 1e21) {
            self.add_id(&number.to_string());
        }
    }

    fn add_id(&mut self, id: &str) {
        if id.len() > TASK_ID_BYTES_MAX {
            // For an unknown method it may be anything.
            if !matches!(self.method, Method::Other | Method::Unread) {
                self.too_many = Some(TOO_LONG);
            }
            return;
        }
        let known = self.refs.tasks.iter().any(|known| known == id);
        if known || id.is_empty() {
            return;
        }
        if self.refs.tasks.len() == TASKS_MAX {
            self.too_many = Some(TOO_MANY_TASKS);
            return;
        }
        self.refs.tasks.push(id.to_owned());
    }

    /// Adds the id in `tasks/{id}` in a resource name. `bare`: also a name without a slash.
    fn add_ids_of_name(&mut self, value: Value, bare: bool) {
        if value.kind != Kind::String {
            return;
        }
        let said = value.unescaped(self.text.as_bytes());
        let said = String::from_utf8_lossy(&said);
        let mut segments = said.split('/');
        if bare && !said.contains('/') {
            self.add_id(&said);
        }
        while let Some(segment) = segments.next() {
            if segment.eq_ignore_ascii_case("tasks")
                && let Some(id) = segments.clone().next()
            {
                self.add_id(id);
            }
        }
    }

    /// Records a push configuration. It must be an object or `null`.
    fn record_push(&mut self, value: Value) {
        if value.kind != Kind::Null {
            self.refs.sets_push = true;
            self.unreadable |= value.kind != Kind::Object;
        }
    }

    fn add_url(&mut self, value: Value) {
        if value.kind != Kind::String {
            self.unreadable |= value.kind != Kind::Null;
            return;
        }
        let said = value.unescaped(self.text.as_bytes());
        let url = String::from_utf8_lossy(&said);
        if self.refs.push_urls.iter().any(|known| *known == url) {
            return;
        }
        if self.refs.push_urls.len() == URLS_MAX {
            self.too_many = Some(TOO_MANY_URLS);
            return;
        }
        self.refs.push_urls.push(url.into_owned());
    }

    /// Searches a whole configuration.
    fn search_configuration(&mut self, value: Value) {
        let walked = walk_deep(
            &mut self.walker_at(value),
            None,
            &mut |name, value| match name
                .and_then(|name| RefKind::of_member(Place::Configuration, name))
            {
                Some(RefKind::TaskId) => self.add_ids(value),
                Some(RefKind::Name) => self.add_ids_of_name(value, false),
                Some(RefKind::Push) => self.record_push(value),
                Some(RefKind::Url) => self.add_url(value),
                _ => {}
            },
        );
        debug_assert!(walked.is_ok(), "it was read before");
    }
}

const TOO_MANY_MEMBERS: &str = "the call names tasks in too many members; name one";
const TOO_MANY_TASKS: &str = "the call refers to more than 100 tasks; split it";
const TOO_MANY_URLS: &str =
    "the call names more than 4 URLs for push notifications; set one configuration at a time";
const NO_PUSH: &str = "a configuration for push notifications is an object, and its `url` a string";
const TOO_LONG: &str = "the id of a task has at most 256 bytes";

/// Calls `each` with a value and all in it, the inner ones first, and with their names in an object.
fn walk_deep(
    walker: &mut Walker<'_>,
    name: Option<&[u8]>,
    each: &mut dyn FnMut(Option<&[u8]>, Value),
) -> Result<Value, WalkError> {
    let value = match walker.peek() {
        Some(b'[') => walker.walk_array(|walker| walk_deep(walker, None, each).map(drop))?,
        Some(b'{') => walker
            .walk_object(|walker, name| walk_deep(walker, Some(&*name.unescaped), each))?
            .to_value(),
        _ => walker.read_value()?,
    };
    each(name, value);
    Ok(value)
}

/// A body that may be forwarded.
#[derive(Clone, Debug, PartialEq)]
pub struct RestBody {
    /// The body for the agent; the same `Bytes` as received if nothing was changed.
    pub body: Bytes,
    /// The changes made, for `X-A2A-Completed`.
    pub done: CompletionSteps,
    /// The tasks and URLs that it refers to.
    pub refs: Refs,
}

impl RestBody {
    /// Ensures that `metadata.source_workspace_id` is the proven `caller`, or absent if the caller
    /// is not a workspace.
    ///
    /// # Errors
    /// [`Fault`] if it is not JSON, ambiguous, or refers to more than can be checked.
    pub fn complete(body: Bytes, method: Method, caller: Option<&str>) -> Result<Self, Fault> {
        let mut work = EditPlan::default();
        let read = without_mark(&body);
        let (mut edited, mut refs) = (None, Refs::default());
        if !read.iter().all(u8::is_ascii_whitespace) {
            let text = decode_text(read)?;
            let (found, params) = Refs::from_rest_text(text, method)?;
            set_source(&params, text, caller, &mut work);
            edited = work.edits.apply(text).map(Bytes::from);
            refs = found;
        }
        Ok(Self {
            body: edited.unwrap_or(body),
            done: work.done,
            refs,
        })
    }
}

#[cfg(test)]
mod rest_body_tests {
    use super::*;

    #[test]
    fn the_proven_caller_takes_the_place_of_the_one_that_is_said() {
        let rows = [
            (
                r#"{"metadata":{"source_workspace_id":"boss"},"n":1.0}"#,
                r#"{"metadata":{"source_workspace_id":"pm"},"n":1.0}"#,
            ),
            (
                r#"{"metadata":{"source_workspace_id":"pm"}}"#,
                r#"{"metadata":{"source_workspace_id":"pm"}}"#,
            ),
            (
                r#"{"metadata":{"other": 1}}"#,
                r#"{"metadata":{"other": 1}}"#,
            ),
            ("", ""),
        ];
        for (sent, expected) in rows {
            let body = RestBody::complete(sent.into(), Method::SendMessage, Some("pm")).unwrap();
            assert_eq!(body.body, expected);
            assert_eq!(body.done.is_empty(), sent == expected);
        }
        let sent = r#"{"metadata":{"source_workspace_id":"boss"}}"#;
        let body = RestBody::complete(sent.into(), Method::SendMessage, None).unwrap();
        assert_eq!(body.body, r#"{"metadata":{}}"#);
        for forged in [
            r#"{"Metadata":{"source_workspace_id":"boss"}}"#,
            r#"{"metadata":{"Source_Workspace_Id":"boss"}}"#,
            r#"{"metadata":{},"metadata":{"source_workspace_id":"boss"}}"#,
            r#"{"metadata":{},"METADATA":{"source_workspace_id":"boss"}}"#,
        ] {
            let body = RestBody::complete(forged.into(), Method::SendMessage, Some("pm"));
            assert!(body.is_err(), "{forged}");
        }
    }
}
