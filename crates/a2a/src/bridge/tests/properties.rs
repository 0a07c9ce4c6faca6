//! Properties of all texts: there and back is the same, no cut matters, nothing panics.

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::objects::Objects;
use super::*;
use crate::event::Splitter;

use Method::{CancelTask, GetTask, SendMessage, SendStreamingMessage};

const SIDES: [Side; 4] = [V0, V1, V0_REST, V1_REST];

fn exchange_between(caller: Side, agent: Side, method: Method) -> Exchange {
    Exchange {
        caller,
        agent,
        method,
        id: Some("7".into()),
        without_history: false,
        files: FileBytes::Once,
        error_alone: false,
    }
}

/// Returns a result as it comes through a bridge.
fn through(caller: Side, agent: Side, method: Method, result: &Value) -> Value {
    let body = match agent.is_rpc() {
        true => format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#),
        false => result.to_string(),
    };
    let answer = exchange_between(caller, agent, method)
        .translate_answer(200, body.as_bytes())
        .unwrap();
    let said = json(answer.body);
    if caller.is_rpc() {
        said["result"].clone()
    } else {
        said
    }
}

/// The normal form: members that the other generation has no place for are left out, and so are empty ones.
fn normal(value: &Value, has_references: bool) -> Value {
    match value {
        Value::Array(list) => list.iter().map(|one| normal(one, has_references)).collect(),
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, value)| {
                let is_void = value.is_null()
                    || **value == ""
                    || **value == "TASK_STATE_UNSPECIFIED"
                    || **value == serde_json::json!([]);
                *name != "timestamp"
                    && (has_references || *name != "referenceTaskIds")
                    && !(is_void && *name != "text" && *name != "bytes" && *name != "raw")
            });
            let kept = kept.map(|(name, value)| match name.as_str() {
                // Free-form.
                "metadata" | "data" => (name.clone(), value.clone()),
                _ => (name.clone(), normal(value, has_references)),
            });
            kept.collect::<serde_json::Map<_, _>>().into()
        }
        value => value.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_result_comes_back_as_it_went(seed: u64, updates: bool, over in 0_usize..4) {
        for v0 in [true, false] {
            let agent = if v0 { V0 } else { V1 };
            let other = SIDES[over];
            if other == agent {
                continue;
            }
            // HTTP+JSON of 0.3 has no reference tasks.
            let normal = |value: &Value| normal(value, other != V0_REST);
            let result = Objects::new(seed, v0, 0.0).result(false);
            let there = through(other, agent, SendMessage, &result);
            let back = through(agent, other, SendMessage, &there);
            prop_assert_eq!(normal(&back), normal(&result), "{}", there);
            if !updates {
                continue;
            }
            let event = Objects::new(seed, v0, 0.0).result(true);
            let block_of = |side: Side, result: &Value| match side.is_rpc() {
                true => format!("data: {{\"id\":7,\"result\":{result}}}\n\n"),
                false => format!("data: {result}\n\n"),
            };
            let mut there = exchange_between(other, agent, SendStreamingMessage).start_stream();
            let (first, _) = block(&mut there, &block_of(agent, &event)).unwrap();
            let event_of = |written: &str| {
                let last = written.rsplit("data: ").next().unwrap();
                json(last)
            };
            let said = event_of(&first);
            let said = if other.is_rpc() { said["result"].clone() } else { said };
            let mut back = exchange_between(agent, other, SendStreamingMessage).start_stream();
            let (second, _) = block(&mut back, &block_of(other, &said)).unwrap();
            prop_assert_eq!(normal(&event_of(&second)["result"]), normal(&event));
        }
    }

    #[test]
    fn a_request_comes_back_as_it_went(seed: u64) {
        for (there, back, v0) in [(UP, DOWN, true), (DOWN, UP, false)] {
            let mut made = Objects::new(seed, v0, 0.0);
            for (method, said) in [(SendMessage, made.send()), (GetTask, made.get()), (CancelTask, made.cancel())] {
                let translated = params(&there, method, &said.to_string());
                let mut returned = json(params(&back, method, &translated));
                let mut said = normal(&said, true);
                for object in [&mut said, &mut returned] {
                    let object = match method {
                        SendMessage => object.get_mut("configuration"),
                        _ => Some(object),
                    };
                    if let Some(Value::Object(object)) = object {
                        // The defaults, and "none" and "all".
                        object.retain(|name, value| match name.as_str() {
                            "blocking" => *value == false,
                            "returnImmediately" => *value == true,
                            "historyLength" => *value != 0,
                            _ => true,
                        });
                    }
                }
                prop_assert_eq!(normal(&returned, true), said, "{}", translated);
            }
        }
    }

    #[test]
    fn a_push_configuration_comes_back_as_it_went(seed: u64, over in 0_usize..4) {
        for (agent, v0) in [(V0, true), (V1, false)] {
            let (other, config) = (SIDES[over], Objects::new(seed, v0, 0.0).push());
            // 1.0 has one scheme.
            let are_two = config["pushNotificationConfig"]["authentication"]["schemes"][1].is_string();
            if other == agent || are_two && other != V0_REST {
                continue;
            }
            let there = through(other, agent, Method::GetPushConfig, &config);
            let back = through(agent, other, Method::GetPushConfig, &there);
            prop_assert_eq!(back, config, "{}", there);
        }
    }

    #[test]
    fn what_was_translated_has_no_foreign_member(seed: u64) {
        for (there, back, v0) in [(UP, DOWN, true), (DOWN, UP, false)] {
            let said = Objects::new(seed, v0, 0.5).send();
            let translated = params(&there, SendMessage, &said.to_string());
            let (sent, _) = request(&back, SendMessage, &translated).unwrap();
            prop_assert!(sent.left_out.is_empty(), "{:?} {}", sent.left_out, translated);
            let result = Objects::new(seed, !v0, 0.5).result(false);
            let (translated, _) = answered(&there, SendMessage, &result.to_string()).unwrap();
            let (_, left) = answered(&back, SendMessage, &translated).unwrap();
            prop_assert!(left.is_empty(), "{:?} {}", left, translated);
        }
    }

    #[test]
    fn a_stream_may_be_cut_anywhere(seed: u64, cuts in prop::collection::vec(any::<Index>(), 0..6), crlf: bool) {
        for (bridge, v0) in [(DOWN, true), (UP, false)] {
            let mut made = Objects::new(seed, v0, 0.1);
            let end = if crlf { "\r\n" } else { "\n" };
            let mut text = format!(": ping{end}{end}");
            for number in 0..4 {
                let result = made.result(true);
                text += &format!("id: {number}{end}data: {{\"id\":7,\"result\":{result}}}{end}{end}");
            }
            let run = |cuts: &[usize]| {
                let (mut splitter, mut from, mut out) = (Splitter::new(), 0, Vec::new());
                let mut stream = exchange(&bridge, SendStreamingMessage).start_stream();
                for to in cuts.iter().copied().chain([text.len()]) {
                    let passed = splitter.push(Bytes::copy_from_slice(&text.as_bytes()[from..to]));
                    for block in crate::event::split_blocks(&passed.bytes) {
                        stream.translate_block(block, &mut out).unwrap();
                    }
                    from = to;
                }
                String::from_utf8(out).unwrap()
            };
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.sort_unstable();
            prop_assert_eq!(run(&cuts), run(&[]));
        }
    }

    #[test]
    fn a_text_that_is_cut_has_no_translation(seed: u64, cut: Index) {
        for (bridge, v0) in [(UP, true), (DOWN, false)] {
            let said = call(&bridge, SendMessage, &Objects::new(seed, v0, 0.1).send().to_string());
            let part = &said.as_bytes()[..cut.index(said.len())];
            let failure = bridge.translate_request(SendMessage, Call::Rpc(part)).unwrap_err();
            prop_assert!(!failure.is_of_agent());
            let result = Objects::new(seed, !v0, 0.1).result(false);
            let said = format!(r#"{{"id":7,"result":{result}}}"#);
            let part = &said.as_bytes()[..cut.index(said.len())];
            let failure = exchange(&bridge, SendMessage).translate_answer(200, part).unwrap_err();
            prop_assert!(failure.is_of_agent());
        }
    }

    #[test]
    fn the_last_of_two_members_counts_in_an_answer(seed: u64, at: Index) {
        for (bridge, v0) in [(UP, false), (DOWN, true)] {
            let task = Objects::new(seed, v0, 0.1).task();
            let members = task.as_object().unwrap();
            let twice = at.index(members.len());
            let (name, _) = members.iter().nth(twice).unwrap();
            // An earlier one with another value of the same type.
            let earlier = Objects::new(!seed, v0, 0.1).task();
            let earlier = earlier.get(name).unwrap_or(&Value::Null);
            let text = task.to_string();
            let said = format!("{{\"{name}\":{earlier},{}", &text[1..]);
            let method = GetTask;
            prop_assert_eq!(json(result(&bridge, method, &said)), json(result(&bridge, method, &text)));
        }
    }

    #[test]
    fn any_text_is_translated_to_json_or_refused(
        text in json_like(),
        status in select(vec![200_u16, 404, 500]),
        caller in select(SIDES.to_vec()),
        agent in select(SIDES.to_vec()),
        method in select(Method::ALL.to_vec()),
    ) {
        let bridge = bridge(caller, agent);
        if let Ok((sent, _)) = bridge.translate_request(method, Call::Rpc(text.as_bytes()))
            && !sent.body.is_empty()
        {
            assert_json(&sent.body);
        }
        let exchange = exchange_between(caller, agent, method);
        if let Ok(answer) = exchange.translate_answer(status, text.as_bytes())
            && answer.content_type.is_some()
        {
            assert_json(&answer.body);
        }
        let line = text.replace(['\n', '\r'], " ");
        let mut out = Vec::new();
        let told = exchange.start_stream().translate_block(format!("data: {line}\n\n").as_bytes(), &mut out);
        if told.is_ok_and(|told| told.kind.is_some()) {
            let written = String::from_utf8(out).unwrap();
            for data in written.lines().filter_map(|line| line.strip_prefix("data: ")) {
                assert_json(data.as_bytes());
            }
        }
    }
}

/// Lone surrogates are in the grammar, too.
fn assert_json(text: &[u8]) {
    let read = serde_json::from_slice::<serde::de::IgnoredAny>(text);
    assert!(read.is_ok(), "{}", String::from_utf8_lossy(text));
}

/// Texts of the names that the tables know, nested and cut at random.
fn json_like() -> impl Strategy<Value = String> {
    let leaf = select(vec![
        "null",
        "true",
        "false",
        "0",
        "-1.50",
        "7",
        r#""""#,
        r#""task""#,
        r#""message""#,
        r#""status-update""#,
        r#""user""#,
        r#""working""#,
        r#""2026-08-18T10:00:00""#,
        r#""\u0000\ud800""#,
        "{}",
        "[]",
        "",
        "nul",
    ]);
    let name = select(vec![
        "jsonrpc",
        "id",
        "method",
        "params",
        "result",
        "error",
        "code",
        "data",
        "message",
        "kind",
        "role",
        "parts",
        "content",
        "text",
        "file",
        "bytes",
        "raw",
        "url",
        "metadata",
        "data_part_compat",
        "value",
        "status",
        "state",
        "timestamp",
        "final",
        "artifact",
        "artifacts",
        "history",
        "task",
        "statusUpdate",
        "taskId",
        "task_id",
        "configuration",
        "blocking",
        "returnImmediately",
        "historyLength",
        "pushNotificationConfig",
        "configs",
        "authentication",
        "schemes",
        "scheme",
        "x",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(6, 64, 5, move |inner| {
        let members = prop::collection::vec((name.clone(), inner.clone()), 0..5);
        prop_oneof![
            3 => members.prop_map(|members| {
                let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
            1 => prop::collection::vec(inner, 0..4).prop_map(|list| format!("[{}]", list.join(","))),
        ]
    })
}
