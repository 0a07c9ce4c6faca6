//! Properties of all bodies, by generated ones.

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde::de::IgnoredAny;

use super::{BARE, FULL, OFF, STREAM, V1};
use crate::Generation;
use crate::envelope::{Completion, FaultKind, complete};

fn space() -> impl Strategy<Value = &'static str> {
    select(vec!["", "", " ", "\n\t", "\r\n "])
}

/// Generates JSON values in various spellings.
fn value() -> impl Strategy<Value = String> {
    let leaf = select(vec![
        "null",
        "true",
        "-0",
        "1.10",
        "1e400",
        "12345678901234567890123",
        r#""""#,
        r#""m""#,
        r#""\ud800\u0000""#,
        r#""ä\/\"}{,""#,
        "{}",
        "[]",
    ]);
    leaf.prop_map(str::to_owned)
        .prop_recursive(3, 24, 4, |inner| {
            let list = prop::collection::vec((space(), inner, space()), 0..4);
            (list, any::<bool>()).prop_map(|(list, object)| {
                let items = list.iter().enumerate().map(|(i, (before, value, after))| {
                    let name = if object {
                        format!("\"m{}\" : ", i / 2)
                    } else {
                        String::new()
                    };
                    format!("{before}{name}{value}{after}")
                });
                let items = items.collect::<Vec<_>>().join(",");
                if object {
                    format!("{{{items}}}")
                } else {
                    format!("[{items}]")
                }
            })
        })
}

/// Generates the content of an object: members with those names, each at most once, and some that
/// the gateway does not read, in any order, with white space.
fn members(known: Vec<(&'static str, BoxedStrategy<String>)>) -> impl Strategy<Value = String> {
    let known: Vec<_> = known
        .into_iter()
        .map(|(name, value)| {
            prop::option::weighted(0.4, value.prop_map(move |v| (name.to_owned(), v)))
        })
        .collect();
    let unknown = prop::collection::vec((select(vec!["x", "\\u0079", "taskid"]), value()), 0..3)
        .prop_map(|list| {
            let named = list.into_iter().enumerate();
            named
                .map(|(i, (name, value))| Some((format!("{name}{i}"), value)))
                .collect::<Vec<_>>()
        });
    (known, unknown)
        .prop_map(|(known, unknown)| {
            known
                .into_iter()
                .chain(unknown)
                .flatten()
                .collect::<Vec<_>>()
        })
        .prop_shuffle()
        .prop_flat_map(|list| {
            let len = list.len();
            (
                Just(list),
                prop::collection::vec((space(), space(), space()), len),
            )
        })
        .prop_map(|(list, spaces)| {
            let members = list.iter().zip(spaces);
            members
                .map(|((name, value), (a, b, c))| format!("{a}\"{name}\"{b}:{value}{c}"))
                .collect::<Vec<_>>()
                .join(",")
        })
}

fn of(values: &[&'static str]) -> BoxedStrategy<String> {
    let some = select(values.to_vec()).prop_map(str::to_owned);
    prop_oneof![6 => some, 1 => value()].boxed()
}

fn object(inside: impl Strategy<Value = String> + 'static) -> BoxedStrategy<String> {
    inside.prop_map(|inside| format!("{{{inside}}}")).boxed()
}

fn parts() -> BoxedStrategy<String> {
    let part = object(members(vec![
        ("kind", of(&["\"text\"", "\"file\""])),
        (
            "type",
            of(&["\"text\"", "\"file\"", "\"file\"", "\"data\"", "\"other\""]),
        ),
        ("text", of(&["\"hi\""])),
        ("name", of(&["\"n\""])),
        ("uri", of(&["\"u\""])),
        ("bytes_data", of(&["\"QQ==\""])),
        (
            "file",
            of(&["{}", "7", r#"{ "x":1 }"#, r#"{"uri":"u" ,"name":null}"#]),
        ),
        ("filename", of(&["\"f\""])),
    ]));
    let list = prop::collection::vec((space(), part.clone(), space()), 0..4).prop_map(|parts| {
        let parts: Vec<_> = parts
            .iter()
            .map(|(a, part, b)| format!("{a}{part}{b}"))
            .collect();
        format!("[{}]", parts.join(","))
    });
    prop_oneof![4 => list, 1 => part, 1 => value()].boxed()
}

fn message() -> BoxedStrategy<String> {
    let metadata = object(members(vec![("task_id", of(&["\"t\"", "1"]))]));
    object(members(vec![
        ("messageId", of(&["\"m\"", "\"\"", "null"])),
        ("message_id", of(&["\"m\"", "\"\"", "\"\\u006d\""])),
        ("task_id", of(&["\"t\"", "1"])),
        ("metadata", prop_oneof![metadata, value()].boxed()),
        ("parts", parts()),
        (
            "content",
            prop_oneof![parts(), Just("\"hi\"".to_owned())].boxed(),
        ),
        ("text", of(&["\"hi\""])),
        ("role", of(&["\"user\"", "\"ROLE_USER\""])),
    ]))
}

/// Generates bodies that resemble a call.
fn body() -> impl Strategy<Value = String> {
    let metadata = || {
        object(members(vec![(
            "source_workspace_id",
            of(&["\"pm\"", "\"other\""]),
        )]))
    };
    let params = object(members(vec![
        ("message", message()),
        ("message", message()),
        ("metadata", metadata()),
        ("target_agent_id", of(&["\"dev\"", "\"dev\"", "\"other\""])),
    ]));
    let top = members(vec![
        ("jsonrpc", of(&["\"2.0\""])),
        ("id", of(&["1", "\"a\"", "null"])),
        (
            "method",
            of(&[
                "\"message/send\"",
                "\"message/sendSubscribe\"",
                "\"SendMessage\"",
                "\"tasks/get\"",
            ]),
        ),
        ("params", params),
        ("message", message()),
        ("metadata", metadata()),
        ("run_id", of(&["\"r\""])),
        ("source_workspace_id", of(&["\"other\""])),
        ("text", of(&["\"hi\""])),
    ]);
    prop_oneof![2 => object(top), 1 => message()]
}

fn completion() -> impl Strategy<Value = Completion<'static>> {
    let canvas = Completion {
        caller: None,
        ..FULL
    };
    let stream = Completion {
        generation: Generation::V1,
        ..STREAM
    };
    select(vec![FULL, FULL, canvas, V1, V1, stream, BARE, OFF])
}

fn run(body: &str, completion: &Completion<'_>) -> Option<Bytes> {
    complete(&Bytes::copy_from_slice(body.as_bytes()), completion)
        .ok()
        .map(|done| done.body)
}

/// Generates a body with members that the gateway does not touch, and one place each in `params`
/// and in `message` for `fill`.
fn around() -> impl Strategy<Value = (Vec<String>, String)> {
    let inside = || {
        members(vec![
            ("contextId", value().boxed()),
            ("contextId", value().boxed()),
        ])
    };
    (inside(), inside(), inside(), inside(), space(), value()).prop_map(
        |(a, b, c, d, space, id)| {
            let texts = vec![a, b, c, d];
            (
                texts,
                format!("{space}{{\"id\":{id},\"jsonrpc\":\"2.0\",\"method\":\"message/send\","),
            )
        },
    )
}

/// Joins the members of `texts`, with `own` in the middle.
fn with_own(before: &str, own: &str, after: &str) -> String {
    let all = [before, own, after];
    all.into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(",")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn completing_again_changes_nothing(body in body(), completion in completion()) {
        if let Some(once) = run(&body, &completion) {
            prop_assert!(serde_json::from_slice::<IgnoredAny>(&once).is_ok());
            let again = complete(&once, &completion).unwrap();
            prop_assert_eq!(&again.body, &once);
            prop_assert_eq!(again.body.as_ptr(), once.as_ptr());
            prop_assert!(again.done.is_empty());
        }
    }

    #[test]
    fn what_is_complete_leaves_as_the_same_bytes((texts, head) in around(), mode in completion()) {
        let message = with_own(&texts[0], "\"messageId\" : \"m\",\"parts\":[{\"kind\":\"x\"}]", &texts[1]);
        let params = with_own(&texts[2], &format!("\"message\" :{{{message}}}"), &texts[3]);
        let body = Bytes::from(format!("{head}\"params\":{{{params}}} }}\n"));
        let completed = complete(&body, &mode).unwrap();
        prop_assert_eq!(completed.body.as_ptr(), body.as_ptr());
        prop_assert_eq!(completed.body, body);
    }

    #[test]
    fn no_byte_of_others_changes((texts, head) in around()) {
        let call = |own_params: &str, own_message: &str| {
            let message = with_own(&texts[0], own_message, &texts[1]);
            let params = with_own(&texts[2], &format!("\"message\" : {{{message}}}"), &texts[3]);
            format!("{head}\"params\":{{{}}} }}", with_own("", own_params, &params))
        };
        // Replaced: only the token changes.
        for (put, expect) in [
            ("\"message_id\" :\"m\"", "\"messageId\" :\"m\""),
            ("\"messageId\":\"m\",\"content\": \"hi\",\"role\":\"user\"", "\"messageId\":\"m\",\"parts\": [{\"kind\":\"text\",\"text\":\"hi\"}],\"role\":\"user\""),
            ("\"messageId\":\"m\",\"parts\":[ {\"x\":1,\"type\" :\"x\" } ],\"role\":1", "\"messageId\":\"m\",\"parts\":[ {\"x\":1,\"kind\" :\"x\" } ],\"role\":1"),
        ] {
            let out = run(&call("", put), &FULL).unwrap();
            prop_assert_eq!(std::str::from_utf8(&out).unwrap(), call("", expect));
        }
        // Removed: with a comma, and nothing else.
        let out = run(&call("\"target_agent_id\":\"dev\"", "\"messageId\":\"m\""), &FULL).unwrap();
        let (out, expect) = (String::from_utf8(out.to_vec()).unwrap(), call("", "\"messageId\":\"m\""));
        prop_assert_eq!(out.split_whitespace().collect::<String>(), expect.split_whitespace().collect::<String>());
        // Inserted: without it, the rest equals the input.
        let input = call("", "");
        let out = String::from_utf8(run(&input, &FULL).unwrap().to_vec()).unwrap();
        let at = out.find("\"messageId\":\"").unwrap();
        let end = at + "\"messageId\":\"\"".len() + 36;
        let start = if out[..at].ends_with(',') { at - 1 } else { at };
        prop_assert_eq!(format!("{}{}", &out[..start], &out[end..]), input);
    }

    #[test]
    fn nothing_panics_and_serde_json_agrees_on_what_is_json(
        body in body(),
        edits in prop::collection::vec((any::<Index>(), select(b"{}[]\",:\\0-.e1tnu \n\x01\xff".to_vec()), 0_u8..4), 0..4),
        mode in completion(),
    ) {
        let mut bytes = body.into_bytes();
        for (index, byte, how) in edits {
            let at = index.index(bytes.len() + 1);
            match how {
                0 => bytes.insert(at, byte),
                1 => bytes.truncate(at),
                _ if at == bytes.len() => bytes.push(byte),
                2 => bytes[at] = byte,
                _ => drop(bytes.remove(at)),
            }
        }
        let is_json = std::str::from_utf8(&bytes)
            .is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
        let result = complete(&Bytes::from(bytes), &mode);
        let is_parse_error = result.is_err_and(|fault| fault.kind == FaultKind::ParseError);
        prop_assert_eq!(is_json, !is_parse_error);
    }

    #[test]
    fn any_bytes_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..256), mode in completion()) {
        let _ = complete(&Bytes::from(bytes), &mode);
    }
}
