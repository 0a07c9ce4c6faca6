//! The strings of a message, a result or an event ([`walk_strings`]), for components that judge content: where each
//! stands, and if it is one that a reader sees. The same walk for either generation: members that only one of them has
//! are known under their names.

mod block;
mod document;
mod member_names;
mod payload;
mod zone;

use std::borrow::Cow;
use std::ops::Range;

pub use self::block::Block;
pub use self::document::{Document, DocumentForm};
pub use self::member_names::{NESTING_MAX, keeps_names, nests_too_deep};
pub use self::payload::{
    Payload, answers_call, find_answer_payload, find_request_payload, is_last_event, malformed_ids,
    retain_call_members,
};
use self::zone::Zone;
use crate::edit::Edits;
use crate::json::{Kind, Value};
use crate::walker::{WalkError, Walker};

/// The kind of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringKind {
    /// Shown to readers: of a text part or a data part, or the name of a file.
    Text,
    /// The name of a member that a sender chooses: of a data part, of `metadata`, or one that the protocol does not
    /// have.
    Name,
    /// Any other string that a sender chooses: `metadata`, URLs, descriptions.
    Other,
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
pub struct ContentString<'a> {
    /// Its kind.
    pub place: StringKind,
    /// The range of its token, quotes included.
    pub range: Range<usize>,
    /// Its value. A lone surrogate is the replacement character.
    pub text: Cow<'a, str>,
}

/// An open container.
struct OpenContainer {
    is_object: bool,
    zone: Zone,
}

/// Walks over all strings of a value that are content.
///
/// # Errors
/// The text is not JSON, or nested too deeply.
pub fn walk_strings<'a>(
    text: &'a [u8],
    root: Root,
    mut each: impl FnMut(ContentString<'a>),
) -> Result<(), WalkError> {
    let mut walker = Walker::new(text);
    let mut open: Vec<OpenContainer> = Vec::with_capacity(8);
    let mut zone = match root {
        Root::Typed => Zone::Node,
        Root::Free => Zone::Data,
    };
    loop {
        let entered = match walker.peek() {
            Some(b'{') => {
                let more = walker.enter_container(b'{', b'}')?;
                more.then_some(true)
            }
            Some(b'[') => {
                let more = walker.enter_container(b'[', b']')?;
                more.then_some(false)
            }
            _ => {
                let value = walker.read_value()?;
                if value.kind == Kind::String {
                    let found = string_at(text, value, StringKind::Other);
                    if let Some(place) = zone.string_kind(&found.text) {
                        each(ContentString { place, ..found });
                    }
                }
                None
            }
        };
        if let Some(is_object) = entered {
            open.push(OpenContainer { is_object, zone });
        } else if !leave_ended(&mut walker, &mut open)? {
            walker.expect_end()?;
            return Ok(());
        }
        let Some(container) = open.last() else {
            return Ok(());
        };
        zone = match container.is_object {
            false => container.zone.zone_of_elements(),
            true => {
                let name = walker.read_name()?;
                if container.zone.is_free(&name.unescaped) {
                    let value = Value {
                        kind: Kind::String,
                        start: name.start,
                        end: name.end,
                    };
                    each(string_at(text, value, StringKind::Name));
                }
                container
                    .zone
                    .zone_of_member(&name.unescaped, walker.peek())
            }
        };
    }
}

/// Leaves the containers that end. False: none is left.
fn leave_ended(walker: &mut Walker<'_>, open: &mut Vec<OpenContainer>) -> Result<bool, WalkError> {
    while let Some(container) = open.last() {
        if walker.has_more(if container.is_object { b'}' } else { b']' })? {
            return Ok(true);
        }
        open.pop();
    }
    Ok(false)
}

fn string_at(text: &[u8], value: Value, place: StringKind) -> ContentString<'_> {
    let said = match value.unescaped(text) {
        // Several times as fast as the lossy reading, which walks over each character.
        Cow::Borrowed(said) => match str::from_utf8(said) {
            Ok(said) => Cow::Borrowed(said),
            Err(_) => String::from_utf8_lossy(said),
        },
        Cow::Owned(said) => Cow::Owned(String::from_utf8_lossy(&said).into_owned()),
    };
    ContentString {
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
    edits
        .apply(text)
        .unwrap_or_else(|| text.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(json: &str) -> (Vec<String>, Vec<String>) {
        let (mut texts, mut others) = (Vec::new(), Vec::new());
        walk_strings(json.as_bytes(), Root::Typed, |found| match found.place {
            StringKind::Text => texts.push(found.text.into_owned()),
            StringKind::Name | StringKind::Other => others.push(found.text.into_owned()),
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
        walk_strings(json, Root::Free, |found| said.push(found.text.into_owned())).unwrap();
        assert_eq!(said, ["code", "message", "m", "data", "d"]);
        for broken in ["", "{", "[1,]", "{} x", r#"{"a" 1}"#] {
            assert!(
                walk_strings(broken.as_bytes(), Root::Typed, |_| ()).is_err(),
                "{broken}"
            );
        }
        let deep = format!("{}1{}", "[".repeat(600), "]".repeat(600));
        assert!(walk_strings(deep.as_bytes(), Root::Typed, |_| ()).is_err());
    }

    #[test]
    fn free_strings_are_found_wherever_a_protocol_word_may_stand() {
        for (json, expected) in [
            (r#"{"kind":"my secret","role":"user"}"#, vec!["my secret"]),
            (
                r#"{"type":{"a":"b"},"state":["c d"]}"#,
                vec!["a", "b", "c d"],
            ),
            (
                r#"{"mediaType":"m","tenant":"t","extensions":["e"]}"#,
                vec!["m", "t", "e"],
            ),
            (r#"{"extensions":[{"x":"e"}]}"#, vec!["x", "e"]),
            (
                r#"{"referenceTaskIds":["t-1","a b",{"x":"c"}]}"#,
                vec!["a b", "x", "c"],
            ),
            (r#"{"contextId":"a@b","taskId":"t"}"#, vec!["a@b"]),
            (
                r#"{"status":{"timestamp":"now","state":"working"}}"#,
                vec!["now"],
            ),
            (
                r#"{"my secret":1,"parts":[{"my part":1}]}"#,
                vec!["my secret", "my part"],
            ),
            (r#"{"parts":[{"raw":"not base64"}]}"#, vec!["not base64"]),
            (r#"{"jsonrpc":"2.0 secret"}"#, vec!["2.0 secret"]),
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"data":{"kind":"k","id":"i"}}}"#,
                vec!["code", "data", "kind", "k", "id", "i"],
            ),
        ] {
            let mut said = Vec::new();
            walk_strings(json.as_bytes(), Root::Typed, |found| {
                said.push(found.text.into_owned())
            })
            .unwrap();
            assert_eq!(said, expected, "{json}");
        }
    }

    #[test]
    fn strings_are_replaced_in_place() {
        let text = r#"{"parts":[{"text":"a"}], "final":1.0}"#;
        let mut changed = Vec::new();
        walk_strings(text.as_bytes(), Root::Typed, |found| {
            changed.push((found.range, "\"x\"".to_owned()));
        })
        .unwrap();
        assert_eq!(
            with_strings(text, changed),
            br#"{"parts":[{"text":"\"x\""}], "final":1.0}"#
        );
    }
}
