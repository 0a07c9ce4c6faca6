//! The strings of a message, a result or an event ([`strings`]), for components that judge content: where each stands,
//! and if it is one that a reader sees. The same walk for either generation: members that only one of them has are known
//! under their names.

mod block;
mod payload;

use std::borrow::Cow;
use std::ops::Range;

pub use self::block::Block;
pub use self::payload::{Payload, is_last, keeps_names, of_answer, of_request};
use crate::edit::Edits;
use crate::json::{Kind, Value};
use crate::walker::{Broken, Walker};

/// The kind of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Shown to readers: of a text part or a data part, or the name of a file.
    Text,
    /// The name of a member whose name is free: of a data part or of `metadata`.
    Name,
    /// Any other string that a sender chooses: `metadata`, URLs, descriptions.
    Other,
}

/// Place of the value that follows, as the walk knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    /// A typed object, or an array of such.
    Node,
    /// An array of parts.
    Parts,
    /// A part.
    Part,
    /// The file of a part, in 0.3.
    File,
    /// Free-form content that readers see.
    Data,
    /// Free-form content beside it.
    Meta,
    /// Identifiers, words of the protocol, encoded bytes.
    Skip,
}

/// Members of typed objects with identifiers, words of the protocol or encoded bytes. They are no content.
const PROTOCOL: [&[u8]; 25] = [
    b"acceptedOutputModes",
    b"artifactId",
    b"bytes",
    b"contextId",
    b"extensions",
    b"fileWithBytes",
    b"id",
    b"jsonrpc",
    b"kind",
    b"mediaType",
    b"messageId",
    b"method",
    b"mimeType",
    b"nextPageToken",
    b"pageToken",
    b"raw",
    b"referenceTaskIds",
    b"role",
    b"state",
    b"status_code",
    b"taskId",
    b"tenant",
    b"timestamp",
    b"type",
    b"@type",
];

impl Zone {
    /// Returns the zone of the value of a member.
    fn below(self, name: &[u8], first: Option<u8>) -> Self {
        let is_container = matches!(first, Some(b'{' | b'['));
        match self {
            Self::Data | Self::Meta | Self::Skip => self,
            _ if name == b"metadata" => Self::Meta,
            _ if PROTOCOL.contains(&name) && (!is_container || Self::lists_words(name)) => {
                Self::Skip
            }
            Self::Node if matches!(name, b"parts" | b"content") => Self::Parts,
            Self::Part | Self::Parts => match name {
                b"file" if is_container => Self::File,
                b"data" | b"text" | b"filename" | b"name" => Self::Data,
                _ => Self::Meta,
            },
            Self::File if name == b"name" => Self::Data,
            Self::File => Self::Meta,
            Self::Node => Self::Node,
        }
    }

    /// True for the members whose value is a list of words or identifiers.
    fn lists_words(name: &[u8]) -> bool {
        matches!(
            name,
            b"acceptedOutputModes" | b"extensions" | b"referenceTaskIds"
        )
    }

    /// Returns the zone of the elements of an array.
    const fn element(self) -> Self {
        match self {
            Self::Parts => Self::Part,
            zone => zone,
        }
    }

    /// Returns the place of a string.
    const fn place(self) -> Option<Place> {
        match self {
            Self::Data | Self::Part | Self::Parts => Some(Place::Text),
            Self::Node | Self::File | Self::Meta => Some(Place::Other),
            Self::Skip => None,
        }
    }
}

/// The root of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// A message, a task, an update, or an object that holds one.
    Typed,
    /// An error, or anything else: all its strings are texts.
    Free,
}

/// A string of a walk.
#[derive(Debug)]
pub struct Found<'a> {
    /// Its kind.
    pub place: Place,
    /// The range of its token, quotes included.
    pub range: Range<usize>,
    /// Its value. A lone surrogate is the replacement character.
    pub text: Cow<'a, str>,
}

/// An open container.
struct Open {
    is_object: bool,
    zone: Zone,
}

/// Walks over all strings of a value that are content.
///
/// # Errors
/// The text is not JSON, or nested too deeply.
pub fn strings<'a>(
    text: &'a [u8],
    root: Root,
    mut each: impl FnMut(Found<'a>),
) -> Result<(), Broken> {
    let mut walker = Walker::new(text);
    let mut open: Vec<Open> = Vec::with_capacity(8);
    let mut zone = match root {
        Root::Typed => Zone::Node,
        Root::Free => Zone::Data,
    };
    loop {
        let entered = match walker.peek() {
            Some(b'{') => {
                let more = walker.begin(b'{', b'}')?;
                more.then_some(true)
            }
            Some(b'[') => {
                let more = walker.begin(b'[', b']')?;
                more.then_some(false)
            }
            _ => {
                let value = walker.value()?;
                if let Some(place) = zone.place().filter(|_| value.kind == Kind::String) {
                    each(string_at(text, value, place));
                }
                None
            }
        };
        if let Some(is_object) = entered {
            open.push(Open { is_object, zone });
        } else if !goes_on(&mut walker, &mut open)? {
            walker.end()?;
            return Ok(());
        }
        let Some(container) = open.last() else {
            return Ok(());
        };
        zone = match container.is_object {
            false => container.zone.element(),
            true => {
                let name = walker.name()?;
                if matches!(container.zone, Zone::Data | Zone::Meta) {
                    let value = Value {
                        kind: Kind::String,
                        start: name.start,
                        end: name.end,
                    };
                    each(string_at(text, value, Place::Name));
                }
                container.zone.below(&name.said, walker.peek())
            }
        };
    }
}

/// Leaves the containers that end. False: none is left.
fn goes_on(walker: &mut Walker<'_>, open: &mut Vec<Open>) -> Result<bool, Broken> {
    while let Some(container) = open.last() {
        if walker.more(if container.is_object { b'}' } else { b']' })? {
            return Ok(true);
        }
        open.pop();
    }
    Ok(false)
}

fn string_at(text: &[u8], value: Value, place: Place) -> Found<'_> {
    let said = match value.said(text) {
        Cow::Borrowed(said) => String::from_utf8_lossy(said),
        Cow::Owned(said) => Cow::Owned(String::from_utf8_lossy(&said).into_owned()),
    };
    Found {
        place,
        range: value.start..value.end,
        text: said,
    }
}

/// Returns the text with other strings in place of some of its strings.
pub fn with_strings(text: &str, changed: Vec<(Range<usize>, String)>) -> Vec<u8> {
    let mut edits = Edits::default();
    for (range, said) in changed {
        edits.replace(range, serde_json::Value::from(said).to_string());
    }
    edits.apply(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(json: &str) -> (Vec<String>, Vec<String>) {
        let (mut texts, mut others) = (Vec::new(), Vec::new());
        strings(json.as_bytes(), Root::Typed, |found| match found.place {
            Place::Text => texts.push(found.text.into_owned()),
            Place::Name | Place::Other => others.push(found.text.into_owned()),
        })
        .unwrap();
        (texts, others)
    }

    #[test]
    fn texts_are_found_in_either_generation_and_at_any_depth() {
        for (json, expected) in [
            (
                r#"{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"a\u0062"}]}"#,
                vec!["ab"],
            ),
            (
                r#"{"messageId":"m","role":"ROLE_USER","parts":[{"text":"a"},{"data":{"k":["b",1,{"x":"c"}]}},{"filename":"f.txt","raw":"AAAA"}]}"#,
                vec!["a", "b", "c", "f.txt"],
            ),
            (
                r#"{"parts":[{"kind":"file","file":{"name":"n","bytes":"AAAA","mimeType":"t/t","uri":"http://u"}},{"kind":"data","data":{"id":"d","role":"e"}}]}"#,
                vec!["n", "d", "e"],
            ),
            (
                r#"{"kind":"task","id":"t","history":[{"parts":[{"kind":"text","text":"h"}]}],"artifacts":[{"artifactId":"x","parts":[{"text":"p"}]}],"status":{"state":"working","message":{"parts":[{"text":"s"}]}}}"#,
                vec!["h", "p", "s"],
            ),
            (
                r#"{"task":{"id":"t","status":{"state":"TASK_STATE_WORKING","update":{"parts":[{"text":"s"}]}}}}"#,
                vec!["s"],
            ),
            (
                r#"{"parts":["bare",{"text":{"odd":"o"}}]}"#,
                vec!["bare", "o"],
            ),
            (r#"{"parts":[]}"#, vec![]),
            (r#"{"parts":[{"kind":"data","data":{}}],"x":{}}"#, vec![]),
        ] {
            assert_eq!(texts(json).0, expected, "{json}");
        }
        let (texts, others) = texts(
            r#"{"messageId":"m","metadata":{"k":"v"},"parts":[{"data":{"n":1},"metadata":{"a":"b"}}],"name":"x","referenceTaskIds":["t"]}"#,
        );
        assert!(texts.is_empty());
        assert_eq!(others, ["k", "v", "n", "a", "b", "x"]);
    }

    #[test]
    fn all_of_an_error_is_text_and_broken_text_is_refused() {
        let mut said = Vec::new();
        let json = br#"{"code":-1,"message":"m","data":["d"]}"#;
        strings(json, Root::Free, |found| said.push(found.text.into_owned())).unwrap();
        assert_eq!(said, ["code", "message", "m", "data", "d"]);
        for broken in ["", "{", "[1,]", "{} x", r#"{"a" 1}"#] {
            assert!(
                strings(broken.as_bytes(), Root::Typed, |_| ()).is_err(),
                "{broken}"
            );
        }
        let deep = format!("{}1{}", "[".repeat(600), "]".repeat(600));
        assert!(strings(deep.as_bytes(), Root::Typed, |_| ()).is_err());
    }

    #[test]
    fn strings_are_replaced_in_place() {
        let text = r#"{"parts":[{"text":"a"}], "n":1.0}"#;
        let mut changed = Vec::new();
        strings(text.as_bytes(), Root::Typed, |found| {
            changed.push((found.range, "\"x\"".to_owned()));
        })
        .unwrap();
        assert_eq!(
            with_strings(text, changed),
            br#"{"parts":[{"text":"\"x\""}], "n":1.0}"#
        );
    }
}
