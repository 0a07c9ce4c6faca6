//! Content of a body ([`Payload`]): its message, its result or its error, and what stands beside it.

use std::ops::Range;

use super::Root;
use super::zone::Shape;
use crate::edit::{Edits, MemberChanges};
use crate::event;
use crate::json::{Kind, Value};
use crate::state::TaskState;
use crate::walker::Walker;

/// The part of a body that a component judges: a message, a result, an error, or the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Its range in the body.
    pub range: Range<usize>,
    /// Its kind.
    pub root: Root,
    /// `metadata` beside a message: the range of its value.
    pub metadata: Option<Range<usize>>,
    /// The other members beside a message: the ranges of names and values.
    pub beside: Vec<Range<usize>>,
    /// True for the message of a send call.
    pub is_message: bool,
}

impl Payload {
    fn new(range: Range<usize>, root: Root) -> Self {
        Self {
            range,
            root,
            metadata: None,
            beside: Vec::new(),
            is_message: false,
        }
    }
}

/// Returns what a request carries: of a send call the message, of another one its parameters. `is_rpc`: the body is a
/// call of JSON-RPC. `None`: it is not readable, or has the message more than once.
pub fn find_request_payload(body: &[u8], is_rpc: bool, sends: bool) -> Option<Payload> {
    let params = if is_rpc {
        match only_member(body, 0, b"params")? {
            Some(params) => params.start..params.end,
            None => return Some(Payload::new(0..body.len(), Root::Free)),
        }
    } else {
        0..body.len()
    };
    let mut walker = Walker::from(body, params.start);
    let other = Payload::new(params, Root::Typed);
    if !sends || walker.peek() != Some(b'{') {
        return Some(other);
    }
    let (mut message, mut metadata, mut beside) = (None, None, Vec::new());
    let mut twice = false;
    let read = walker.walk_object(|walker, name| {
        let value = walker.read_value()?;
        let place = match &*name.unescaped {
            b"message" => Some(&mut message),
            b"metadata" => Some(&mut metadata),
            _ => None,
        };
        match place {
            Some(place) => twice |= place.replace(value.start..value.end).is_some(),
            None => beside.push(name.start..value.end),
        }
        Ok(value)
    });
    read.ok().filter(|_| !twice)?;
    Some(match message {
        Some(range) => Payload {
            range,
            metadata,
            beside,
            is_message: true,
            ..other
        },
        None => other,
    })
}

/// Returns what an answer or the data of an event carries: the result of JSON-RPC, its error, or the whole. `None`: it
/// is not JSON.
pub fn find_answer_payload(body: &[u8], is_rpc: bool) -> Option<Payload> {
    let mut walker = Walker::new(body);
    if walker.peek() != Some(b'{') {
        walker.read_value().ok()?;
        walker.expect_end().ok()?;
        return Some(Payload::new(0..body.len(), Root::Free));
    }
    let (mut result, mut error, mut plain) = (None, None, is_rpc);
    let read = walker.walk_object(|walker, name| {
        let value = walker.read_value()?;
        let place = match &*name.unescaped {
            b"result" => Some(&mut result),
            b"error" => Some(&mut error),
            b"id" | b"jsonrpc" => None,
            _ => {
                plain = false;
                None
            }
        };
        if let Some(place) = place.filter(|_| value.kind != Kind::Null) {
            plain &= place.replace(value).is_none();
        }
        Ok(value)
    });
    read.ok()?;
    walker.expect_end().ok()?;
    let at = |value: Value, root| Payload::new(value.start..value.end, root);
    Some(match (result, error) {
        (Some(result), None) if plain && result.kind == Kind::String => at(result, Root::Free),
        (Some(result), None) if plain => at(result, Root::Typed),
        (None, Some(error)) if plain => at(error, Root::Free),
        (_, Some(_)) => Payload::new(0..body.len(), Root::Free),
        _ => Payload::new(0..body.len(), Root::Typed),
    })
}

/// Returns the only member with that name of the object at `at`. The outer `None`: it is there twice, or broken.
pub(super) fn only_member(body: &[u8], at: usize, wanted: &[u8]) -> Option<Option<Value>> {
    let (mut found, mut twice) = (None, false);
    let mut walker = Walker::from(body, at);
    walker
        .walk_object(|walker, name| {
            let value = walker.read_value()?;
            if *name.unescaped == *wanted {
                twice |= found.replace(value).is_some();
            }
            Ok(value)
        })
        .ok()?;
    (!twice).then_some(found)
}

/// True if an event is the last one of its turn: it is final, its task waits for its caller, or it is a message.
pub fn is_last_event(data: &[u8], payload: &[u8]) -> bool {
    if TaskState::from_answer(data).is_some_and(TaskState::ends_turn) || event::is_final_data(data)
    {
        return true;
    }
    let named = |name: &[u8]| only_member(payload, 0, name).flatten();
    let says_message = named(b"kind").is_some_and(|kind| kind.equals(payload, "message"));
    let (status, parts) = (named(b"message"), named(b"parts"));
    says_message || parts.is_some() || status.is_some_and(|value| value.kind == Kind::Object)
}

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
    fn the_payload_of_a_body_is_its_message_result_or_error() {
        let of = |body: &str, rpc, sends| {
            let payload = find_request_payload(body.as_bytes(), rpc, sends)?;
            Some((body[payload.range].to_owned(), payload.is_message))
        };
        let more = br#"{"params":{"note":"x","message":{}, "configuration":{"a":1}}}"#;
        let beside = find_request_payload(more, true, true).unwrap().beside;
        let beside: Vec<_> = beside.into_iter().map(|range| &more[range]).collect();
        assert_eq!(
            beside,
            [&br#""note":"x""#[..], br#""configuration":{"a":1}"#]
        );
        let call = r#"{"method":"x","params":{"metadata":{"a":1},"message":{"parts":[]}}}"#;
        assert_eq!(of(call, true, true), Some((r#"{"parts":[]}"#.into(), true)));
        assert_eq!(
            of(call, true, false).unwrap().0,
            r#"{"metadata":{"a":1},"message":{"parts":[]}}"#
        );
        assert_eq!(
            of(r#"{"message":{"a":1}}"#, false, true).unwrap().0,
            r#"{"a":1}"#
        );
        assert_eq!(
            of(r#"{"params":{"message":{},"message":{}}}"#, true, true),
            None
        );
        assert_eq!(
            of(r#"{"method":"x"}"#, true, true).unwrap().0,
            r#"{"method":"x"}"#
        );
        let of = |body: &str, rpc| {
            find_answer_payload(body.as_bytes(), rpc).map(|p| body[p.range].to_owned())
        };
        assert_eq!(
            of(r#"{"id":1,"result":{"a":1}}"#, true).unwrap(),
            r#"{"a":1}"#
        );
        assert_eq!(
            of(r#"{"error":{"a":1},"result":null}"#, true).unwrap(),
            r#"{"a":1}"#
        );
        for whole in [
            r#"{"result":{"a":1},"more":"x"}"#,
            r#"{"result":{},"result":{}}"#,
            r#"{"result":{},"error":{}}"#,
            "[1]",
            "{}",
        ] {
            assert_eq!(of(whole, true).as_deref(), Some(whole));
        }
        let rest = r#"{"result":{"a":1}}"#;
        assert_eq!(of(rest, false).as_deref(), Some(rest));
        assert_eq!(of("hello", true), None);
    }

    #[test]
    fn the_last_event_of_a_turn_is_known() {
        for (data, last) in [
            (r#"{"result":{"kind":"message","parts":[]}}"#, true),
            (r#"{"result":{"message":{"parts":[]}}}"#, true),
            (
                r#"{"result":{"kind":"status-update","final":true,"status":{"state":"x"}}}"#,
                true,
            ),
            (
                r#"{"result":{"statusUpdate":{"status":{"state":"TASK_STATE_INPUT_REQUIRED"}}}}"#,
                true,
            ),
            (
                r#"{"result":{"kind":"status-update","final":false,"status":{"state":"working","message":{"parts":[]}}}}"#,
                false,
            ),
            (
                r#"{"result":{"artifactUpdate":{"artifact":{"parts":[]}}}}"#,
                false,
            ),
        ] {
            let payload = find_answer_payload(data.as_bytes(), true).unwrap();
            assert_eq!(
                is_last_event(data.as_bytes(), &data.as_bytes()[payload.range]),
                last,
                "{data}"
            );
        }
    }
}

#[cfg(test)]
mod envelope_tests {
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
