//! `a2a::envelope::complete`. The first byte of an input says how far and for whom the body behind it
//! is completed.

use std::fmt;

use a2a_gateway::a2a::Generation;
use a2a_gateway::a2a::envelope::{CompletedCall, Completion, FaultKind, complete};
use a2a_gateway::config::CompletionMode;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// Members that the gateway reads: it may move, rename, replace or drop them (`docs/reference/a2a.md`).
const READ: [&str; 27] = [
    "bytes",
    "bytes_data",
    "content",
    "file",
    "filename",
    "id",
    "jsonrpc",
    "kind",
    "message",
    "messageId",
    "message_id",
    "metadata",
    "method",
    "name",
    "params",
    "parts",
    "raw",
    "role",
    "run_id",
    "source_workspace_id",
    "target_agent_id",
    "task_id",
    "text",
    "type",
    "uri",
    "url",
    "configuration",
];

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((mode, body)) = input.split_first() else {
        return;
    };
    let completion = completion(*mode);
    let unmarked = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let text = std::str::from_utf8(unmarked).ok();
    let is_json = text.is_some_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    let body = Bytes::copy_from_slice(body);
    match complete(&body, &completion) {
        Ok(completed) => {
            assert!(is_json, "what is no JSON was completed");
            let before = text.unwrap_or_default();
            check(&body, before, &completed, &completion);
        }
        Err(fault) => {
            assert!(fault.message.len() < 1024, "{}", fault.message);
            if fault.kind == FaultKind::ParseError {
                assert!(!is_json, "JSON was refused as none: {fault}");
                assert_eq!(fault.rpc_id, None);
            } else if !fault.message.contains("nested") {
                assert!(is_json, "what is no JSON was read: {fault}");
            }
            if let Some(id) = &fault.rpc_id {
                assert_is_id(id);
            }
        }
    }
}

fn completion(mode: u8) -> Completion<'static> {
    let full = Completion {
        target: "dev",
        caller: Some("pm"),
        complete: CompletionMode::Full,
        generation: Generation::V0,
        accept_prefers_stream: false,
    };
    let v1 = Completion {
        generation: Generation::V1,
        ..full
    };
    match mode {
        b'c' => Completion {
            caller: None,
            ..full
        },
        b's' => Completion {
            accept_prefers_stream: true,
            ..v1
        },
        b'1' => v1,
        b'b' => Completion {
            complete: CompletionMode::Bare,
            ..full
        },
        b'o' => Completion {
            complete: CompletionMode::Off,
            ..full
        },
        _ => full,
    }
}

fn check(body: &Bytes, before: &str, completed: &CompletedCall, completion: &Completion<'_>) {
    let off = completion.complete == CompletionMode::Off;
    let out = if off {
        assert_eq!(completed.body, body);
        before
    } else {
        std::str::from_utf8(&completed.body).expect("a completed body is text")
    };
    assert!(
        serde_json::from_str::<IgnoredAny>(out).is_ok(),
        "a completed body is JSON"
    );
    if completed.done.is_empty() {
        assert_eq!(out, before, "nothing was done, and yet");
    }
    let again = complete(&completed.body, completion).expect("what left may come again");
    assert!(again.done.is_empty(), "done again: {}", again.done);
    assert_eq!(again.body, completed.body);
    assert_eq!(again.method, completed.method);
    assert_eq!(again.method_name, completed.method_name);
    if let Some(id) = &completed.rpc_id {
        assert_is_id(id);
    }
    if let Ok(Entries(top)) = serde_json::from_str(out) {
        if let Some(id) = completed.rpc_id.as_deref().filter(|_| !off) {
            assert_eq!(member(&top, "id"), Some(id), "the caller's id");
        }
        if completed.wrapped {
            assert_eq!(member(&top, "jsonrpc"), Some("\"2.0\""));
            assert!(member(&top, "method").is_some() && member(&top, "id").is_some());
        }
    }
    if !off {
        nothing_is_lost(before, out);
    }
    if completion.complete == CompletionMode::Full && completed.method.sends() {
        call_is_whole(out, completed, completion);
    }
}

/// What the agent may rely on in a call that sends a message.
fn call_is_whole(out: &str, completed: &CompletedCall, completion: &Completion<'_>) {
    let named = completed.method_name.as_deref().unwrap_or_default();
    let Ok(call) = serde_json::from_str::<Value>(out) else {
        // Deeper than this reader goes, or text that is no Unicode.
        return;
    };
    let message = &call["params"]["message"];
    // Calls of 0.1 have another shape.
    if named.starts_with("tasks/") || !message.is_object() {
        return;
    }
    // An id of a wrong type is the agent's to judge.
    let odd = |id: &&Value| !id.is_string() && !id.is_null();
    if message.get("message_id").filter(odd).is_none() {
        assert_ne!(message["messageId"], Value::Null, "no messageId");
        assert_ne!(message["messageId"], "", "an empty messageId");
        assert_eq!(message.get("message_id"), None);
    }
    assert_eq!(call["params"].get("target_agent_id"), None);
    let source = call["params"]["metadata"].get("source_workspace_id");
    let proven = completion.caller.map(Value::from);
    assert!(
        source.is_none()
            || source == proven.as_ref()
            || proven.is_none() && source == Some(&Value::Null),
        "who calls is not who was proven"
    );
}

/// Every member that the gateway does not read leaves with its name and its value as it was spelled.
fn nothing_is_lost(before: &str, out: &str) {
    let (Some(before), Some(out)) = (members(before), members(out)) else {
        return;
    };
    for (name, value) in &before {
        let is_leaf = !value.starts_with(['{', '[']);
        if is_leaf && !READ.contains(&&**name) {
            let there = out.iter().any(|(n, v)| n == name && v == value);
            assert!(there, "{name} was lost");
        }
    }
}

fn assert_is_id(id: &str) {
    let is_string = serde_json::from_str::<IgnoredAny>(id).is_ok() && id.starts_with('"');
    let is_number = id.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    assert!(is_string || is_number, "{id} is no id");
}

/// The value of a member, as it is spelled.
fn member<'t>(entries: &[(String, &'t RawValue)], name: &str) -> Option<&'t str> {
    let mut named = entries.iter().filter(|(n, _)| n == name);
    let (_, value) = named.next()?;
    assert!(named.next().is_none(), "{name} stands twice");
    Some(value.get())
}

/// Each member of each object in `text`, at any depth: its name, and its value as it is spelled.
/// `None`: a name is no Unicode.
fn members(text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut open = vec![text];
    while let Some(text) = open.pop() {
        let text = text.trim_ascii();
        if text.starts_with('{') {
            let Entries(entries) = serde_json::from_str(text).ok()?;
            for (name, value) in entries {
                found.push((name, value.get().to_owned()));
                open.push(value.get());
            }
        } else if text.starts_with('[') {
            let values: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            open.extend(values.into_iter().map(RawValue::get));
        }
    }
    Some(found)
}

/// An object with all its members, also those that stand twice.
struct Entries<'t>(Vec<(String, &'t RawValue)>);

impl<'de: 't, 't> Deserialize<'de> for Entries<'t> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(All)
    }
}
