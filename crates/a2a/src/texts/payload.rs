//! Content of a body ([`Payload`]): its message, its result or its error; and the members that a replacement of it must keep.

use std::ops::Range;

use super::Root;
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
    /// True for the message of a send call.
    pub is_message: bool,
}

impl Payload {
    fn whole(body: &[u8], root: Root) -> Self {
        Self {
            range: 0..body.len(),
            root,
            metadata: None,
            is_message: false,
        }
    }
}

/// Returns what a request carries: of a send call the message, of another one its parameters. `is_rpc`: the body is a
/// call of JSON-RPC. `None`: it is not readable, or has the message more than once.
pub fn of_request(body: &[u8], is_rpc: bool, sends: bool) -> Option<Payload> {
    let params = if is_rpc {
        match only_member(body, 0, b"params")? {
            Some(params) => params.start..params.end,
            None => return Some(Payload::whole(body, Root::Free)),
        }
    } else {
        0..body.len()
    };
    let other = Payload {
        range: params.clone(),
        root: Root::Typed,
        metadata: None,
        is_message: false,
    };
    let is_object = Walker::from(body, params.start).peek() == Some(b'{');
    if !sends || !is_object {
        return Some(other);
    }
    let message = only_member(body, params.start, b"message")?;
    let metadata = only_member(body, params.start, b"metadata")?;
    Some(match message {
        Some(message) => Payload {
            range: message.start..message.end,
            metadata: metadata.map(|value| value.start..value.end),
            is_message: true,
            ..other
        },
        None => other,
    })
}

/// Returns what an answer or the data of an event carries: the result of JSON-RPC, its error, or the whole. `None`: it
/// is not JSON.
pub fn of_answer(body: &[u8], is_rpc: bool) -> Option<Payload> {
    let mut walker = Walker::new(body);
    if walker.peek() != Some(b'{') {
        walker.value().ok()?;
        walker.end().ok()?;
        return Some(Payload::whole(body, Root::Free));
    }
    let (mut result, mut error, mut plain) = (None, None, is_rpc);
    let read = walker.object(|walker, name| {
        let value = walker.value()?;
        let place = match &*name.said {
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
    walker.end().ok()?;
    let at = |value: Value, root| Payload {
        range: value.start..value.end,
        root,
        metadata: None,
        is_message: false,
    };
    Some(match (result, error) {
        (Some(result), None) if plain && result.kind == Kind::String => at(result, Root::Free),
        (Some(result), None) if plain => at(result, Root::Typed),
        (None, Some(error)) if plain => at(error, Root::Free),
        (_, Some(_)) => Payload::whole(body, Root::Free),
        _ => Payload::whole(body, Root::Typed),
    })
}

/// Returns the only member with that name of the object at `at`. The outer `None`: it is there twice, or broken.
fn only_member(body: &[u8], at: usize, wanted: &[u8]) -> Option<Option<Value>> {
    let (mut found, mut twice) = (None, false);
    let mut walker = Walker::from(body, at);
    walker
        .object(|walker, name| {
            let value = walker.value()?;
            if *name.said == *wanted {
                twice |= found.replace(value).is_some();
            }
            Ok(value)
        })
        .ok()?;
    (!twice).then_some(found)
}

/// True if an event is the last one of its turn: it is final, its task waits for its caller, or it is a message.
pub fn is_last(data: &[u8], payload: &[u8]) -> bool {
    if TaskState::of(data).is_some_and(TaskState::ends_turn) || event::is_final_data(data) {
        return true;
    }
    let named = |name: &[u8]| only_member(payload, 0, name).flatten();
    let says_message = named(b"kind").is_some_and(|kind| kind.says(payload, "message"));
    let (status, parts) = (named(b"message"), named(b"parts"));
    says_message || parts.is_some() || status.is_some_and(|value| value.kind == Kind::Object)
}

/// True if `after`, put in place of `before`, keeps what names it: each `messageId`, `taskId`, `contextId` and `role`,
/// and the `id` of tasks, where it was.
pub fn keeps_names(before: &[u8], after: &[u8]) -> bool {
    let read = |text| serde_json::from_slice::<serde_json::Value>(text).ok();
    let (Some(before), Some(after)) = (read(before), read(after)) else {
        return false;
    };
    if std::mem::discriminant(&before) != std::mem::discriminant(&after) {
        return false;
    }
    let names = |value| {
        let mut names = Vec::new();
        names_of(value, &mut String::new(), &mut names);
        names.sort();
        names
    };
    names(&before) == names(&after)
}

/// Collects the names in a typed object, each with its path.
fn names_of(value: &serde_json::Value, path: &mut String, names: &mut Vec<String>) {
    let at = path.len();
    match value {
        serde_json::Value::Object(members) => {
            for (name, value) in members {
                match name.as_str() {
                    "messageId" | "taskId" | "contextId" | "role" | "id" => {
                        names.push(format!("{path}/{name}={value}"));
                    }
                    "metadata" | "data" => {}
                    _ => {
                        path.push('/');
                        path.push_str(name);
                        names_of(value, path, names);
                        path.truncate(at);
                    }
                }
            }
        }
        serde_json::Value::Array(elements) => {
            for (n, value) in elements.iter().enumerate() {
                path.push('/');
                path.push_str(&n.to_string());
                names_of(value, path, names);
                path.truncate(at);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_of_a_body_is_its_message_result_or_error() {
        let of = |body: &str, rpc, sends| {
            let payload = of_request(body.as_bytes(), rpc, sends)?;
            Some((body[payload.range].to_owned(), payload.is_message))
        };
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
        let of =
            |body: &str, rpc| of_answer(body.as_bytes(), rpc).map(|p| body[p.range].to_owned());
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
    fn a_replacement_keeps_the_names() {
        let before = br#"{"messageId":"m","role":"user","contextId":"c","parts":[{"text":"a"}]}"#;
        for (after, keeps) in [
            (
                r#"{"role":"user","messageId":"m","contextId":"c","parts":[{"text":"b"},{"data":{"id":1}}]}"#,
                true,
            ),
            (
                r#"{"role":"user","messageId":"n","contextId":"c","parts":[]}"#,
                false,
            ),
            (
                r#"{"role":"agent","messageId":"m","contextId":"c","parts":[]}"#,
                false,
            ),
            (r#"{"role":"user","messageId":"m","parts":[]}"#, false),
            (
                r#"{"role":"user","messageId":"m","contextId":"c","taskId":"t","parts":[]}"#,
                false,
            ),
            ("[]", false),
            ("", false),
        ] {
            assert_eq!(keeps_names(before, after.as_bytes()), keeps, "{after}");
        }
        let task = br#"{"id":"t","history":[{"messageId":"m"}]}"#;
        assert!(!keeps_names(
            task,
            br#"{"id":"u","history":[{"messageId":"m"}]}"#
        ));
        assert!(!keeps_names(
            task,
            br#"{"id":"t","history":[{"messageId":"n"}]}"#
        ));
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
            let payload = of_answer(data.as_bytes(), true).unwrap();
            assert_eq!(
                is_last(data.as_bytes(), &data.as_bytes()[payload.range]),
                last,
                "{data}"
            );
        }
    }
}
