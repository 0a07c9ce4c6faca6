//! A JSON object as an ordered list of its members ([`Fields`]), each a slice of the text:
//! unchanged members are written as they were spelled.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::json::Kind;
use crate::walker::Walker;

/// One member.
#[derive(Clone, Debug)]
struct Field<'a> {
    /// The unescaped name.
    name: Cow<'a, [u8]>,
    /// The name as it is spelled, with its quotes.
    spelled: Cow<'a, str>,
    /// The value as it is spelled.
    value: Cow<'a, str>,
}

/// The members of an object, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields<'a>(Vec<Field<'a>>);

impl<'a> Fields<'a> {
    /// Parses an object. `None`: the text is not a JSON object, or has a duplicate member. Parsers
    /// differ on which duplicate they use (RFC 8259, 4), and one of them could be overlooked here.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let mut walker = Walker::new(text.as_bytes());
        let mut fields = Vec::new();
        walker
            .walk_object(|walker, name| {
                let value = walker.read_value()?;
                fields.push(Field {
                    spelled: Cow::Borrowed(&text[name.start..name.end]),
                    name: name.unescaped,
                    value: Cow::Borrowed(value.raw_str(text)),
                });
                Ok(value)
            })
            .ok()?;
        walker.expect_end().ok()?;
        let mut names = HashSet::with_capacity(fields.len());
        let unique = fields.iter().all(|field| names.insert(&field.name));
        unique.then_some(Self(fields))
    }

    /// Returns the value of `name`, as it is spelled.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.position(name).map(|at| &*self.0[at].value)
    }

    /// Like [`Fields::get`], as a slice of the text that was read.
    pub(crate) fn get_borrowed(&self, name: &str) -> Option<&'a str> {
        match self.0[self.position(name)?].value {
            Cow::Borrowed(value) => Some(value),
            Cow::Owned(_) => None,
        }
    }

    /// Returns true if no member has a non-empty array or object.
    pub(crate) fn is_flat(&self) -> bool {
        let empty = |value: &str| value[1..value.len() - 1].trim().is_empty();
        let mut values = self.0.iter().map(|field| &*field.value);
        values.all(|value| !matches!(value_kind(value), Kind::Array | Kind::Object) || empty(value))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if there is such a member.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns the unescaped value of `name`, if it is a string.
    pub(crate) fn get_text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(unescape_string)
    }

    /// Returns the value of `name`, if it is of this kind.
    pub(crate) fn get_of(&self, name: &str, kind: Kind) -> Option<&str> {
        self.get(name).filter(|value| value_kind(value) == kind)
    }

    /// Returns the value of `name`, unless it is `null`.
    pub(crate) fn get_given(&self, name: &str) -> Option<&str> {
        self.get(name)
            .filter(|value| value_kind(value) != Kind::Null)
    }

    /// Returns the object in `name`.
    pub(crate) fn get_object(&self, name: &str) -> Option<Fields<'_>> {
        self.get(name).and_then(Fields::parse)
    }

    /// Returns the elements of the array in `name`; none if it is no array.
    pub(crate) fn get_list(&self, name: &str) -> Vec<&str> {
        self.get(name).and_then(array_elements).unwrap_or_default()
    }

    /// Sets a member to a string.
    pub(crate) fn set_text(&mut self, name: &'static str, text: &str) {
        self.set(name, quote_string(text));
    }

    /// Replaces the value of a member, or appends the member.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<Cow<'a, str>>) {
        let value = value.into();
        match self.position(name) {
            Some(at) => self.0[at].value = value,
            None => self.0.push(Field {
                name: Cow::Borrowed(name.as_bytes()),
                spelled: Cow::Owned(quote_string(name)),
                value,
            }),
        }
    }

    /// Returns each member, name and value as they are spelled.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|field| (&*field.spelled, &*field.value))
    }

    /// Appends a member that the object does not have.
    pub(crate) fn push(&mut self, name: &str, value: impl Into<Cow<'a, str>>) {
        self.0.push(Field {
            name: Cow::Owned(name.as_bytes().to_vec()),
            spelled: Cow::Owned(quote_string(name)),
            value: value.into(),
        });
    }

    /// Removes a member, if it exists.
    pub(crate) fn remove(&mut self, name: &str) {
        if let Some(at) = self.position(name) {
            self.0.remove(at);
        }
    }

    /// Renames members to their current names, in place. If a member with the current name exists,
    /// the old one is removed.
    pub(crate) fn rename(&mut self, names: &[(&'static str, &'static str)]) {
        for (old, new) in names {
            let Some(at) = self.position(old) else {
                continue;
            };
            if self.contains(new) {
                self.0.remove(at);
            } else {
                self.0[at].name = Cow::Borrowed(new.as_bytes());
                self.0[at].spelled = Cow::Owned(quote_string(new));
            }
        }
    }

    /// Returns the object as JSON.
    pub(crate) fn to_json(&self) -> String {
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

/// Returns the elements of an array, as they are spelled; `None`: it is not an array.
pub(crate) fn array_elements(text: &str) -> Option<Vec<&str>> {
    let mut walker = Walker::new(text.as_bytes());
    let mut elements = Vec::new();
    walker
        .walk_array(|walker| {
            elements.push(walker.read_value()?.raw_str(text));
            Ok(())
        })
        .ok()?;
    walker.expect_end().ok()?;
    Some(elements)
}

/// Builds an array of elements.
pub(crate) fn join_array<T: AsRef<str>>(elements: &[T]) -> String {
    let elements: Vec<&str> = elements.iter().map(AsRef::as_ref).collect();
    format!("[{}]", elements.join(","))
}

/// Returns the unescaped value of a string without lone surrogates; `None` for other values.
pub(crate) fn unescape_string(value: &str) -> Option<String> {
    serde_json::from_str(value).ok()
}

/// Returns the kind of a value. Its text must be valid.
pub(crate) fn value_kind(value: &str) -> Kind {
    match value.as_bytes().first() {
        Some(b'{') => Kind::Object,
        Some(b'[') => Kind::Array,
        Some(b'"') => Kind::String,
        Some(b't' | b'f') => Kind::Bool,
        Some(b'n') => Kind::Null,
        _ => Kind::Number,
    }
}

/// Returns the text as a JSON string.
pub(crate) fn quote_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
