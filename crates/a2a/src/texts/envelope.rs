//! Envelopes of JSON-RPC around a payload: what a sender may put into them, besides the payload.

use super::payload::only_member;
use super::zone::Shape;
use crate::edit::{Edits, MemberChanges};
use crate::json::Kind;
use crate::walker::Walker;

/// Returns a call without the members that JSON-RPC does not have. `None`: it has no others.
pub fn retain_call_members(text: &str) -> Option<Vec<u8>> {
    let (mut others, mut edits) = (MemberChanges::default(), Edits::default());
    let object = Walker::new(text.as_bytes()).walk_object(|walker, name| {
        let value = walker.read_value()?;
        if !matches!(&*name.unescaped, b"jsonrpc" | b"id" | b"method" | b"params") {
            others.remove(&name.with_value(value));
        }
        Ok(value)
    });
    let object = object.ok()?;
    others.add_edits(&object, text, &mut edits);
    edits.apply(text)
}

/// Returns the strings `id` and `jsonrpc` of a call that do not have the shape of such.
pub fn malformed_ids(body: &[u8]) -> Vec<String> {
    let mut odd = Vec::new();
    for (name, shape) in [(&b"jsonrpc"[..], Shape::Version), (b"id", Shape::Id)] {
        let value = only_member(body, 0, name).flatten();
        if let Some(value) = value.filter(|value| value.kind == Kind::String) {
            let said = String::from_utf8_lossy(&value.unescaped(body)).into_owned();
            if !shape.matches(&said) {
                odd.push(said);
            }
        }
    }
    odd
}

/// True if a response names the call `id` (as it is spelled), a number or none, and the version of JSON-RPC or none.
/// `id`: `None` if it is not known.
pub fn answers_call(body: &[u8], id: Option<&str>) -> bool {
    let mut walker = Walker::new(body);
    if walker.peek() != Some(b'{') {
        return true;
    }
    let asked = id.map(|id| {
        let read = Walker::new(id.as_bytes()).read_value();
        let said = read.ok().filter(|value| value.kind == Kind::String);
        match said {
            Some(value) => value.unescaped(id.as_bytes()).into_owned(),
            None => id.as_bytes().to_vec(),
        }
    });
    let mut is_of_it = true;
    let walked = walker.walk_object(|walker, name| {
        let value = walker.read_value()?;
        is_of_it &= match (&*name.unescaped, value.kind) {
            (b"jsonrpc" | b"id", Kind::Null) | (b"id", Kind::Number) => true,
            (b"jsonrpc", _) => value.equals(body, "2.0"),
            (b"id", Kind::String) => asked
                .as_ref()
                .is_none_or(|id| *value.unescaped(body) == **id),
            (b"id", _) => false,
            _ => true,
        };
        Ok(value)
    });
    walked.is_err() || is_of_it
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_members_of_a_call_are_dropped() {
        let only =
            |text: &str| retain_call_members(text).map(|said| String::from_utf8(said).unwrap());
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"note":1}}"#;
        assert_eq!(only(call), None);
        assert_eq!(
            only(r#"{"a":1,"id":1.0, "b":{"c":1},"method":"m","d":2}"#).as_deref(),
            Some(r#"{"id":1.0, "method":"m"}"#)
        );
        assert_eq!(only("[]"), None);
    }

    #[test]
    fn strings_of_an_envelope_without_their_shape_are_odd() {
        assert!(malformed_ids(br#"{"jsonrpc":"2.0","id":"0199-a"}"#).is_empty());
        assert!(malformed_ids(br#"{"id":1}"#).is_empty());
        let odd = malformed_ids(br#"{"jsonrpc":"2.0 a","id":"my secret"}"#);
        assert_eq!(odd, ["2.0 a", "my secret"]);
    }

    #[test]
    fn a_response_names_its_call() {
        for (body, id, is_of_it) in [
            (
                r#"{"jsonrpc":"2.0","id":"c","result":1}"#,
                Some("\"c\""),
                true,
            ),
            (r#"{"jsonrpc":"2.0","id":"\u0063"}"#, Some("\"c\""), true),
            (r#"{"id":1.0}"#, Some("1"), true),
            (r#"{"id":"1"}"#, Some("1"), true),
            (r#"{"id":null,"jsonrpc":null}"#, Some("1"), true),
            ("{}", Some("1"), true),
            (r#"{"id":"secret"}"#, None, true),
            (r#"{"id":"secret"}"#, Some("\"c\""), false),
            (r#"{"id":"secret"}"#, Some("null"), false),
            (r#"{"id":{"a":"secret"}}"#, None, false),
            (r#"{"id":"c","id":"secret"}"#, Some("\"c\""), false),
            (r#"{"jsonrpc":"secret","id":"c"}"#, Some("\"c\""), false),
            ("[1]", Some("1"), true),
            ("secret", Some("1"), true),
        ] {
            assert_eq!(answers_call(body.as_bytes(), id), is_of_it, "{body} {id:?}");
        }
    }
}
