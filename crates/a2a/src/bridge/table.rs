//! The tables of typed nodes ([`Node`]): one row for each member, with its name in each form.

use std::borrow::Cow;

/// A form of JSON on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// JSON-RPC of 0.3: members with `kind`.
    #[default]
    V0,
    /// 1.0, in both bindings.
    V1,
    /// HTTP+JSON of 0.3: `ProtoJSON` of its proto.
    V0Rest,
}

impl Form {
    /// Returns true for the forms of 0.3.
    pub(super) const fn is_v0(self) -> bool {
        matches!(self, Self::V0 | Self::V0Rest)
    }
}

/// The way in which a value is written. `null` is left out by each rule.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// Free-form or of one form: its bytes.
    Copy,
    /// Like [`Rule::Copy`]; `""` counts as missing.
    Text,
    /// Like [`Rule::Copy`]; `[]` counts as missing.
    Full,
    /// A typed object.
    Node(&'static Node),
    /// An array of typed objects.
    List(&'static Node),
    /// `history`: an array of messages, or left out if the caller asked for none.
    History,
    /// An array of parts.
    Parts,
    /// A role, by `words.rs`.
    Role,
    /// A name of [`super::words::parse_state`].
    State,
    /// A time, which 1.0 has in UTC.
    Time,
    /// `blocking`, or its opposite `returnImmediately`.
    Wait,
    /// `historyLength`: 0 is "all" in 0.3 and "none" in 1.0.
    HistoryLength,
    /// A push configuration without its task.
    Push,
    /// Dropped without a count: the other form says it in another way.
    Silent,
}

/// One member of a node.
#[derive(Debug)]
pub(super) struct Row {
    /// Its names, by [`Form`]; empty: the form has no such member.
    pub(super) names: [&'static str; 3],
    /// A second name in HTTP+JSON of 0.3, which some SDKs write: that of the field in the proto.
    pub(super) also: &'static str,
    pub(super) rule: Rule,
    /// The value that JSON-RPC of 0.3 requires where it is missing.
    pub(super) need: Option<&'static str>,
}

impl Row {
    /// A member with one name in all forms.
    pub(super) const fn new(name: &'static str, rule: Rule) -> Self {
        Self::with_names([name; 3], rule)
    }

    /// A member with a name by form.
    pub(super) const fn with_names(names: [&'static str; 3], rule: Rule) -> Self {
        Self {
            names,
            also: "",
            rule,
            need: None,
        }
    }

    pub(super) const fn with_alias(mut self, name: &'static str) -> Self {
        self.also = name;
        self
    }

    pub(super) const fn with_default(mut self, json: &'static str) -> Self {
        self.need = Some(json);
        self
    }

    /// Returns its name in 1.0 if it has one there, for counts.
    pub(super) fn label(&self) -> &'static str {
        let mut names = [1, 0, 2].into_iter().map(|form| self.names[form]);
        names.find(|name| !name.is_empty()).unwrap_or_default()
    }
}

/// A typed object.
#[derive(Debug)]
pub(super) struct Node {
    /// Its name in counts and messages.
    pub(super) label: &'static str,
    /// Its `kind` in JSON-RPC of 0.3, if it has one.
    pub(super) kind: &'static str,
    /// Its members, at most [`ROWS_MAX`].
    pub(super) rows: &'static [Row],
}

/// Most rows of one node.
pub(super) const ROWS_MAX: usize = 24;

impl Node {
    /// Returns the position of the member with this unescaped name. Parsers of both generations also
    /// take `message_id` for `messageId`.
    pub(super) fn find(&self, form: Form, name: &[u8]) -> Option<usize> {
        let found = self.position(form, name);
        if found.is_some() || !name.contains(&b'_') {
            return found;
        }
        self.position(form, &to_camel_case(name)?)
    }

    fn position(&self, form: Form, name: &[u8]) -> Option<usize> {
        self.rows.iter().position(|row| {
            row.names[form as usize].as_bytes() == name
                || form == Form::V0Rest && !row.also.is_empty() && row.also.as_bytes() == name
        })
    }
}

/// Longest name that is respelled, in bytes: all of the tables are shorter.
const NAME_BYTES_MAX: usize = 32;

/// Returns the name in camel case of one in snake case: words of lower-case letters with one `_` between two. Other
/// spellings name no member, so that the checks before and an agent behind read the same. A name without `_` is
/// returned as it is.
pub(super) fn to_camel_case(name: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !name.contains(&b'_') {
        return Some(Cow::Borrowed(name));
    }
    let is_snake = name.len() <= NAME_BYTES_MAX
        && name
            .split(|byte| *byte == b'_')
            .all(|word| !word.is_empty() && word.iter().all(u8::is_ascii_lowercase));
    if !is_snake {
        return None;
    }
    let mut said = Vec::with_capacity(name.len());
    for (at, word) in name.split(|byte| *byte == b'_').enumerate() {
        let first = if at == 0 {
            word[0]
        } else {
            word[0].to_ascii_uppercase()
        };
        said.push(first);
        said.extend_from_slice(&word[1..]);
    }
    Some(Cow::Owned(said))
}

/// The meaning of `fileWithBytes` for a side that speaks HTTP+JSON of 0.3. By the proto it is the base64 of the bytes;
/// for a2a-sdk 0.3 for Python it is the base64 of that text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileBytes {
    /// As by the proto.
    Once,
    /// As for a2a-sdk.
    Twice,
    /// Nothing shows it.
    #[default]
    Unknown,
}

/// The HTTP clients of @a2a-js/sdk, and of programs that are written by the proto.
const BY_PROTO: [&str; 6] = ["node", "undici", "Deno/", "Bun/", "Mozilla/", "curl/"];

impl FileBytes {
    /// Returns the meaning for a client with this `User-Agent`.
    pub fn of_client(user_agent: &str) -> Self {
        if user_agent.starts_with("python-httpx/") {
            Self::Twice
        } else if BY_PROTO.iter().any(|name| user_agent.starts_with(name)) {
            Self::Once
        } else {
            Self::Unknown
        }
    }
}
