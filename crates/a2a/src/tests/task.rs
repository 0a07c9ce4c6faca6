//! Tests of the task id of a response: by a table, and by generated responses in chunks.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;

use crate::refs::TASK_ID_BYTES_MAX;
use crate::state::TaskState;
use crate::task::{Binding, TaskScan};

fn whole(binding: Binding, answer: &[u8]) -> Option<String> {
    TaskScan::new(binding).push(answer)
}

fn in_pieces(binding: Binding, answer: &[u8], cuts: &[usize]) -> Option<String> {
    let mut scan = TaskScan::new(binding);
    let mut from = 0;
    for cut in cuts.iter().copied().chain([answer.len()]) {
        let found = scan.push(&answer[from..cut]);
        from = cut;
        if found.is_some() {
            return found;
        }
    }
    None
}

#[test]
fn every_shape_of_an_answer_names_its_task() {
    for (result, expected) in [
        (
            r#"{"kind":"task","id":"t","contextId":"c","status":{"state":"working"}}"#,
            Some("t"),
        ),
        (
            r#"{"artifacts":[{"id":"a","parts":[{"text":"\"}"}]}],"history":[{"taskId":"h"}],"id":"t"}"#,
            Some("t"),
        ),
        (r#"{"task":{"contextId":"c","id":"t"}}"#, Some("t")),
        (
            r#"{"task":{"history":[{"id":"h","taskId":"h"}],"status":{"message":{"taskId":"s"}},"id":"t"}}"#,
            Some("t"),
        ),
        (
            r#"{"kind":"status-update","taskId":"t","final":false}"#,
            Some("t"),
        ),
        (
            r#"{"kind":"artifact-update","artifact":{"id":"a"},"task_id":"t"}"#,
            Some("t"),
        ),
        (r#"{"statusUpdate":{"taskId":"t"}}"#, Some("t")),
        (
            r#"{"artifactUpdate":{"artifact":{"taskId":"a"},"taskId":"t"}}"#,
            Some("t"),
        ),
        (r#"{"status_update":{"task_id":"t"}}"#, Some("t")),
        (r#"{"artifact_update":{"taskId":"t"}}"#, Some("t")),
        (
            r#"{"message":{"messageId":"m","id":"m","taskId":"t"}}"#,
            Some("t"),
        ),
        (r#"{"msg":{"taskId":"t"}}"#, Some("t")),
        (r#"{"kind":"message","messageId":"m","parts":[]}"#, None),
        (
            r#"{"\u0069d":"\u0074\/\"\\ä\ud83d\ude00"}"#,
            Some("t/\"\\ä😀"),
        ),
        (r#"{"id":7,"taskId":"t"}"#, Some("t")),
        (r#"{"id":"","taskId":"t"}"#, Some("t")),
        (r#"{"id":{"id":"x"},"taskId":null}"#, None),
        (
            r#"{"message":{"task":{"id":"x"}},"status":{"id":"x"}}"#,
            None,
        ),
        (r#""t""#, None),
        (r#"["t",{"id":"t"}]"#, None),
        ("null", None),
        ("{}", None),
    ] {
        let rest = whole(Binding::Rest, result.as_bytes());
        assert_eq!(rest.as_deref(), expected, "{result}");
        for envelope in [
            format!(r#"{{"jsonrpc":"2.0","id":"call","result":{result}}}"#),
            format!("\u{feff} {{ \"result\" : {result} ,\"id\":1e5}}\n"),
        ] {
            let found = whole(Binding::Rpc, envelope.as_bytes());
            assert_eq!(found.as_deref(), expected, "{envelope}");
        }
        let nested = format!(r#"{{"error":{{"data":{result}}},"id":"call"}}"#);
        assert_eq!(whole(Binding::Rpc, nested.as_bytes()), None, "{nested}");
    }
}

#[test]
fn where_the_task_stands_is_found_with_its_id() {
    for (result, id, state) in [
        (
            r#"{"kind":"task","id":"t","contextId":"c","status":{"state":"input-required"}}"#,
            Some("t"),
            Some(TaskState::InputRequired),
        ),
        (
            r#"{"task":{"status":{"message":{"parts":[{"state":"failed"}]},"state":"TASK_STATE_COMPLETED"},"id":"t"}}"#,
            Some("t"),
            Some(TaskState::Completed),
        ),
        (
            r#"{"history":[{"status":{"state":"failed"}}],"id":"t","metadata":{"state":"failed"},"status":{"state":"working"}}"#,
            Some("t"),
            Some(TaskState::Working),
        ),
        (
            r#"{"statusUpdate":{"taskId":"t","status":{"state":"canceled"}}}"#,
            Some("t"),
            Some(TaskState::Canceled),
        ),
        (r#"{"id":"t","status":{"state":"done"}}"#, Some("t"), None),
        (r#"{"id":"t","status":"working"}"#, Some("t"), None),
        (
            r#"{"state":"working","status":{"state":{"state":"working"}}}"#,
            None,
            None,
        ),
        (
            r#"{"kind":"message","parts":[{"status":{"state":"working"}}]}"#,
            None,
            None,
        ),
    ] {
        let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        for cut in 0..answer.len() {
            let mut scan = TaskScan::new(Binding::Rpc);
            let (first, second) = answer.as_bytes().split_at(cut);
            let found = scan.push(first).or_else(|| scan.push(second));
            assert_eq!(found.as_deref(), id, "{answer} {cut}");
            if cut == 0 {
                assert_eq!(scan.take_state(), state, "{answer}");
                assert_eq!(scan.take_state(), None, "told twice");
                assert!(scan.is_over(), "{answer}");
            }
        }
    }
}

#[test]
fn far_behind_the_id_nothing_is_looked_for() {
    let mut scan = TaskScan::new(Binding::Rest);
    assert_eq!(
        scan.push(br#"{"id":"t","artifacts":[""#).as_deref(),
        Some("t")
    );
    for _ in 0..17 {
        assert!(!scan.is_over());
        scan.push(&[b'x'; 4096]);
    }
    assert!(scan.is_over());
    scan.push(br#""],"status":{"state":"working"}}"#);
    assert_eq!(scan.take_state(), None);
}

#[test]
fn an_id_counts_up_to_its_bound_and_nothing_is_kept_of_the_rest() {
    for (len, found) in [(TASK_ID_BYTES_MAX, true), (TASK_ID_BYTES_MAX + 1, false)] {
        for id in ["x".repeat(len), "\\u0078".repeat(len)] {
            let answer = format!(r#"{{"id":"{id}"}}"#);
            let scanned = whole(Binding::Rest, answer.as_bytes());
            assert_eq!(scanned.is_some(), found, "{len}");
        }
    }
    let mut scan = TaskScan::new(Binding::Rest);
    assert_eq!(scan.push(br#"{"artifacts":[{"data":""#), None);
    for _ in 0..1024 {
        assert_eq!(scan.push(&[b'x'; 4096]), None);
        assert_eq!(scan.push(br#"\""#), None);
    }
    assert_eq!(scan.push(br#""}],"id":""#), None);
    for _ in 0..1024 {
        assert_eq!(scan.push(&[b'x'; 4096]), None);
    }
    assert_eq!(scan.push(br#"","taskId":"t""#).as_deref(), Some("t"));
    let shown = format!("{scan:?}");
    assert!(shown.len() < 20_000, "{} bytes are kept", shown.len());
}

#[test]
fn what_is_no_answer_has_no_task_and_harms_nobody() {
    let deep = "[".repeat(1_000_000);
    for answer in [
        "",
        "<html>",
        "{",
        "{}}",
        r#"{"id" "t"}"#,
        r#"{"id":"t"#,
        r#"{id:"t"}"#,
        r#"{"x":}"id":"t"}"#,
        r#"[{"id":"t"}]"#,
        r#"{"x":1]"id":"t"}"#,
        r#"{"\u00":"\ud8"#,
        &format!(r#"{{"x":{deep}"#),
    ] {
        assert_eq!(
            whole(Binding::Rest, answer.as_bytes()),
            None,
            "{answer:.40}"
        );
    }
    // Cut off after the id: the task was started nevertheless.
    assert_eq!(
        whole(Binding::Rest, br#"{"id":"t","x"#).as_deref(),
        Some("t")
    );
}

#[test]
fn in_a_stream_the_first_event_that_names_a_task_counts() {
    let stream = concat!(
        ": ping\n\n",
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"kind\":\"message\",\"parts\":[\n\n",
        "event: message\r\ndata: {\"jsonrpc\":\"2.0\",\r\ndata:\"id\":1,\"result\":{\"taskId\"\r\ndata: :\"t\"}}\r\n\r\n",
        "data: {\"result\":{\"taskId\":\"u\"}}\n\n",
    );
    let mut scan = TaskScan::new(Binding::Rpc);
    assert_eq!(scan.push_events(stream.as_bytes()).as_deref(), Some("t"));
    let mut scan = TaskScan::new(Binding::Rpc);
    let (first, second) = stream.split_at(stream.find("event:").unwrap());
    assert_eq!(scan.push_events(first.as_bytes()), None);
    assert_eq!(scan.push_events(second.as_bytes()).as_deref(), Some("t"));
}

/// Generates JSON with the relevant names at each level, each at most once per object.
fn json() -> impl Strategy<Value = Value> {
    let text = select(vec!["t", "", "a\"b", "\\", "ä{", "]}", "\u{1}", "taskId"]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let names = vec![
        "result",
        "id",
        "taskId",
        "task_id",
        "task",
        "message",
        "msg",
        "statusUpdate",
        "x\"",
        "y",
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        let member = (select(names.clone()), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            prop::collection::vec(member, 0..6).prop_map(|members| {
                let members = members
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                Value::Object(members.collect())
            }),
        ]
    })
}

/// Returns the id that `serde_json` finds: the first in the order of the text, which is
/// serde_json's order.
fn expected(result: &Value) -> Option<String> {
    let said = |value: &Value| {
        value
            .as_str()
            .filter(|id| !id.is_empty())
            .map(str::to_owned)
    };
    let within = |value: &Value, names: &[&str]| {
        let members = value.as_object().into_iter().flatten();
        let mut ids = members.filter(|(name, _)| names.contains(&name.as_str()));
        ids.find_map(|(_, value)| said(value))
    };
    result
        .as_object()?
        .iter()
        .find_map(|(name, value)| match name.as_str() {
            "id" | "taskId" | "task_id" => said(value),
            "task" => within(value, &["id"]),
            "message" | "msg" | "statusUpdate" => within(value, &["taskId", "task_id"]),
            _ => None,
        })
}

proptest! {
    #[test]
    fn it_finds_what_a_parser_finds_however_the_answer_is_cut(
        value in json(),
        pretty in any::<bool>(),
        cuts in prop::collection::vec(any::<Index>(), 0..8),
    ) {
        let text = if pretty {
            serde_json::to_string_pretty(&value)
        } else {
            serde_json::to_string(&value)
        };
        let text = text.unwrap().into_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).collect();
        cuts.sort_unstable();
        let bytes: Vec<usize> = (1..text.len()).collect();
        let rpc = value.get("result").and_then(expected);
        for (binding, expected) in [(Binding::Rest, expected(&value)), (Binding::Rpc, rpc)] {
            prop_assert_eq!(&whole(binding, &text), &expected);
            prop_assert_eq!(&in_pieces(binding, &text, &cuts), &expected);
            prop_assert_eq!(&in_pieces(binding, &text, &bytes), &expected);
        }
    }

    #[test]
    fn no_bytes_harm_it_and_cuts_change_nothing(
        bytes in prop::collection::vec(select(b"{}[]\":,\\u00t idx\n\xff".to_vec()), 0..64),
        cut in any::<Index>(),
    ) {
        let cut = cut.index(bytes.len() + 1);
        for binding in [Binding::Rest, Binding::Rpc] {
            prop_assert_eq!(whole(binding, &bytes), in_pieces(binding, &bytes, &[cut]));
        }
    }
}

#[test]
fn the_context_is_found_where_it_is_wanted_before_and_behind_the_task() {
    for (result, task, context) in [
        (
            r#"{"kind":"task","id":"t","contextId":"c","status":{"state":"working"}}"#,
            Some("t"),
            Some("c"),
        ),
        (
            r#"{"contextId":"c","id":"t","status":{"state":"working"}}"#,
            Some("t"),
            Some("c"),
        ),
        (
            r#"{"task":{"status":{"state":"working"},"id":"t","contextId":"c"}}"#,
            Some("t"),
            Some("c"),
        ),
        (
            r#"{"kind":"message","contextId":"c","parts":[]}"#,
            None,
            Some("c"),
        ),
        (
            r#"{"message":{"context_id":"c","messageId":"m"}}"#,
            None,
            Some("c"),
        ),
        (
            r#"{"statusUpdate":{"taskId":"t","contextId":"c"}}"#,
            Some("t"),
            Some("c"),
        ),
        (
            r#"{"history":[{"contextId":"h"}],"status":{"message":{"contextId":"s"}},"id":"t"}"#,
            Some("t"),
            None,
        ),
        (r#"{"id":"t","contextId":7}"#, Some("t"), None),
        (r#"{"id":"t","contextId":""}"#, Some("t"), None),
    ] {
        let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        for cut in 0..answer.len() {
            let mut scan = TaskScan::new(Binding::Rpc);
            scan.want_context();
            let (first, rest) = answer.as_bytes().split_at(cut);
            let found = scan.push(first).or(scan.push(rest));
            assert_eq!(found.as_deref(), task, "{answer} cut at {cut}");
            assert_eq!(
                scan.take_context().as_deref(),
                context,
                "{answer} cut at {cut}"
            );
        }
        // Without the wish it is not looked for.
        let mut scan = TaskScan::new(Binding::Rpc);
        scan.push(answer.as_bytes());
        assert_eq!(scan.take_context(), None);
        let mut scan = TaskScan::new(Binding::Rpc);
        scan.want_context();
        let event = format!("id: 1\ndata: {answer}\n\n");
        assert_eq!(scan.push_events(event.as_bytes()).as_deref(), task);
        assert_eq!(scan.take_context().as_deref(), context);
    }
}

#[test]
fn the_context_is_found_in_a_later_event_than_the_task() {
    let mut scan = TaskScan::new(Binding::Rpc);
    scan.want_context();
    let event = |result: &str| format!("data: {{\"result\":{result}}}\n\n");
    let events = event(r#"{"taskId":"t"}"#) + &event(r#"{"contextId":"c"}"#);
    assert_eq!(scan.push_events(events.as_bytes()).as_deref(), Some("t"));
    assert_eq!(
        scan.push_events(event(r#"{"contextId":"c"}"#).as_bytes()),
        None
    );
    assert_eq!(scan.take_context().as_deref(), Some("c"));
}
