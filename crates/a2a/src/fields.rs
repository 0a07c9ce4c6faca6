//! One object as an ordered list of its members, each a piece of the text: what is not
//! touched is written as it was spelled.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::json::Kind;
use crate::walker::Walker;

/// One member.
#[derive(Clone, Debug)]
struct Field<'a> {
    /// What the name says, escapes resolved.
    name: Cow<'a, [u8]>,
    /// The name as it is spelled, with its quotes.
    spelled: Cow<'a, str>,
    /// The value as it is spelled.
    value: Cow<'a, str>,
}

/// The members of an object, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields<'a>(Vec<Field<'a>>);

impl<'a> Fields<'a> {
    /// `None`: the text is no JSON object, or a name stands in it twice. Which of two members counts
    /// is anybody's guess (RFC 8259, 4), and one of them could be overlooked here.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let mut walker = Walker::new(text.as_bytes());
        let mut fields = Vec::new();
        walker
            .object(|walker, name| {
                let value = walker.value()?;
                fields.push(Field {
                    spelled: Cow::Borrowed(&text[name.start..name.end]),
                    name: name.said,
                    value: Cow::Borrowed(value.raw_str(text)),
                });
                Ok(value)
            })
            .ok()?;
        walker.end().ok()?;
        let mut names = HashSet::with_capacity(fields.len());
        let unique = fields.iter().all(|field| names.insert(&field.name));
        unique.then_some(Self(fields))
    }

    /// The value of `name`, as it is spelled.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let field = self.0.iter().find(|field| *field.name == *name.as_bytes());
        field.map(|field| &*field.value)
    }

    /// The same, as a piece of the text that was read.
    pub(crate) fn borrowed(&self, name: &str) -> Option<&'a str> {
        let field = self
            .0
            .iter()
            .find(|field| *field.name == *name.as_bytes())?;
        match field.value {
            Cow::Borrowed(value) => Some(value),
            Cow::Owned(_) => None,
        }
    }

    /// Whether it holds nothing but what is plain or empty.
    pub(crate) fn is_flat(&self) -> bool {
        let empty = |value: &str| value[1..value.len() - 1].trim().is_empty();
        let mut values = self.0.iter().map(|field| &*field.value);
        values.all(|value| !matches!(kind(value), Kind::Array | Kind::Object) || empty(value))
    }

    /// Whether there is such a member.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// What `name` says, if it is a string.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(said)
    }

    /// Puts a value in the place of the one that is there, or behind the last.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<Cow<'a, str>>) {
        let value = value.into();
        match self.position(name) {
            Some(at) => self.0[at].value = value,
            None => self.0.push(Field {
                name: Cow::Borrowed(name.as_bytes()),
                spelled: Cow::Owned(quoted(name)),
                value,
            }),
        }
    }

    /// Removes a member, if it is there.
    pub(crate) fn remove(&mut self, name: &str) {
        if let Some(at) = self.position(name) {
            self.0.remove(at);
        }
    }

    /// Gives members their names of today, each at its place. A member that has its name of today
    /// already counts, and the old one goes.
    pub(crate) fn rename(&mut self, names: &[(&'static str, &'static str)]) {
        for (old, new) in names {
            let Some(at) = self.position(old) else {
                continue;
            };
            if self.has(new) {
                self.0.remove(at);
            } else {
                self.0[at].name = Cow::Borrowed(new.as_bytes());
                self.0[at].spelled = Cow::Owned(quoted(new));
            }
        }
    }

    /// The object as JSON.
    pub(crate) fn write(&self) -> String {
        let length = self.0.iter().map(|f| f.spelled.len() + f.value.len() + 2);
        let mut text = String::with_capacity(length.sum::<usize>() + 2);
        for (at, field) in self.0.iter().enumerate() {
            text.push(if at == 0 { '{' } else { ',' });
            text.push_str(&field.spelled);
            text.push(':');
            text.push_str(&field.value);
        }
        text.push_str(if self.0.is_empty() { "{}" } else { "}" });
        text
    }

    fn position(&self, name: &str) -> Option<usize> {
        let mut fields = self.0.iter();
        fields.position(|field| *field.name == *name.as_bytes())
    }
}

/// The elements of an array, as they are spelled; `None`: it is none.
pub(crate) fn elements(text: &str) -> Option<Vec<&str>> {
    let mut walker = Walker::new(text.as_bytes());
    let mut elements = Vec::new();
    walker
        .array(|walker| {
            elements.push(walker.value()?.raw_str(text));
            Ok(())
        })
        .ok()?;
    walker.end().ok()?;
    Some(elements)
}

/// Elements as an array.
pub(crate) fn array<T: AsRef<str>>(elements: &[T]) -> String {
    let elements: Vec<&str> = elements.iter().map(AsRef::as_ref).collect();
    format!("[{}]", elements.join(","))
}

/// What a value says, if it is a string that has no lone surrogate in it.
pub(crate) fn said(value: &str) -> Option<String> {
    serde_json::from_str(value).ok()
}

/// What a value is. Its text is valid.
pub(crate) fn kind(value: &str) -> Kind {
    match value.as_bytes().first() {
        Some(b'{') => Kind::Object,
        Some(b'[') => Kind::Array,
        Some(b'"') => Kind::String,
        Some(b't' | b'f') => Kind::Bool,
        Some(b'n') => Kind::Null,
        _ => Kind::Number,
    }
}

/// Text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
