//! One pass over JSON text into one buffer ([`Pass`]). `rules.rs` says along which tables.

use super::failure::{Failure, OmittedMembers};
use super::table::{FileBytes, Form};
use crate::json::Value;
use crate::state::TaskState;
use crate::walker::Walker;

/// Bytes that a short text may grow by, besides four times its length. Parts grow most: `{"data":1}`
/// has seven times its length in 0.3.
const GROWTH_BYTES: usize = 1024 * 1024;

/// The settings of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings<'a> {
    /// The form of the text.
    pub(super) from: Form,
    /// The form to write.
    pub(super) to: Form,
    /// True for a request: a member that stands twice is refused. In an answer the last one counts.
    pub(super) is_request: bool,
    /// True if a `historyLength` of 0 means "all" on the side that reads the result.
    pub(super) zero_is_all: bool,
    /// True if the caller asked for no history, which the agent could not be told.
    pub(super) without_history: bool,
    /// The meaning of `fileWithBytes`, if one of the forms is HTTP+JSON of 0.3.
    pub(super) files: FileBytes,
    /// The tenant of the agent's interface, for requests in the form of 1.0.
    pub(super) tenant: Option<&'a str>,
}

/// The state of a pass.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    pub(super) text: &'a [u8],
    pub(super) walker: Walker<'a>,
    pub(super) settings: Settings<'a>,
    /// The result, behind what was there before.
    pub(super) out: Vec<u8>,
    start: usize,
    /// Members that were left out.
    pub(super) left: OmittedMembers,
    /// The state of the last status that was written.
    pub(super) state: Option<TaskState>,
    /// True if the caller wants no history and the agent cannot be told.
    pub(super) no_history: bool,
    /// True if a push configuration was written.
    pub(super) push: bool,
    /// The task of a push configuration.
    pub(super) task: Option<String>,
}

impl<'a> Pass<'a> {
    /// Creates a pass over `text`.
    pub(super) fn new(text: &'a [u8], settings: Settings<'a>) -> Self {
        Self::append_to(Vec::new(), text, settings)
    }

    /// Creates a pass that appends to `out`.
    pub(super) fn append_to(mut out: Vec<u8>, text: &'a [u8], settings: Settings<'a>) -> Self {
        out.reserve(text.len() + text.len() / 8 + 128);
        Self {
            text,
            walker: Walker::new(text),
            settings,
            start: out.len(),
            out,
            left: OmittedMembers::default(),
            state: None,
            no_history: false,
            push: false,
            task: None,
        }
    }

    pub(super) fn put(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Writes a value as it is spelled.
    pub(super) fn copy(&mut self, value: Value) {
        self.out.extend_from_slice(value.raw(self.text));
    }

    /// Writes `"name":value,`.
    pub(super) fn put_member(&mut self, name: &str, value: Value) {
        self.put_name(name);
        self.copy(value);
        self.out.push(b',');
    }

    /// Writes `"name":"word",`.
    pub(super) fn put_word(&mut self, name: &str, word: &str) {
        self.put_name(name);
        self.put_string(word);
        self.out.push(b',');
    }

    /// Writes a string that needs no escape.
    pub(super) fn put_string(&mut self, text: &str) {
        self.out.push(b'"');
        self.put(text);
        self.out.push(b'"');
    }

    /// Writes a member with a value that is JSON already.
    pub(super) fn put_json(&mut self, name: &str, json: &str) {
        self.put_name(name);
        self.put(json);
        self.out.push(b',');
    }

    /// Writes the result of a method that has none.
    pub(super) fn put_nothing(&mut self) {
        self.put(match self.settings.to {
            Form::V0 => "null",
            Form::V1 | Form::V0Rest => "{}",
        });
    }

    pub(super) fn put_name(&mut self, name: &str) {
        self.out.push(b'"');
        self.put(name);
        self.put("\":");
    }

    /// Returns true if the next value is an object; skips another one.
    pub(super) fn is_object(&mut self) -> Result<bool, Failure> {
        let is = self.walker.peek() == Some(b'{');
        if !is {
            self.walker.read_value()?;
        }
        Ok(is)
    }

    /// Walks over the object that follows. `each` gets the unescaped name of a member and walks over its value.
    pub(super) fn walk_members(
        &mut self,
        mut each: impl FnMut(&mut Self, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut more = self.walker.enter_container(b'{', b'}')?;
        while more {
            let name = self.walker.read_name()?;
            each(self, name.unescaped.as_ref())?;
            more = self.walker.has_more(b'}')?;
        }
        Ok(())
    }

    /// Walks over a value and keeps its position for the member `name`.
    pub(super) fn fill_slot(
        &mut self,
        slot: &mut Option<Value>,
        name: &'static str,
    ) -> Result<(), Failure> {
        let value = self.walker.read_value()?;
        if slot.replace(value).is_some() && self.settings.is_request {
            return Err(Failure::Twice(name));
        }
        Ok(())
    }

    /// Checks that the result does not outgrow its text.
    pub(super) fn check_length(&self) -> Result<(), Failure> {
        if self.out.len() - self.start > 4 * self.text.len() + GROWTH_BYTES {
            return Err(Failure::TooLong);
        }
        Ok(())
    }

    /// Writes the array that follows.
    pub(super) fn put_list(
        &mut self,
        label: &'static str,
        mut each: impl FnMut(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.walker.peek() != Some(b'[') {
            return Err(Failure::Params(label));
        }
        self.out.push(b'[');
        let mut more = self.walker.enter_container(b'[', b']')?;
        while more {
            let before = self.out.len();
            each(self)?;
            if self.out.len() > before {
                self.out.push(b',');
            }
            self.check_length()?;
            more = self.walker.has_more(b']')?;
        }
        if self.out.last() == Some(&b',') {
            self.out.pop();
        }
        self.out.push(b']');
        Ok(())
    }

    /// Writes the closing brace in place of the last comma.
    pub(super) fn close(&mut self) {
        if self.out.last() == Some(&b',') {
            self.out.pop();
        }
        self.out.push(b'}');
    }
}
