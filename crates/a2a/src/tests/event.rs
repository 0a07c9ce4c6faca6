//! Tests of event boundaries, and of the detection of the last event.

use bytes::Bytes;
use proptest::prelude::*;

use crate::event::{CompleteEvents, Framing, Splitter, Standing, final_event, states_in};
use crate::state::TaskState;

/// Pushes `chunks` and returns the bytes that each completed.
fn push_all(chunks: &[&str]) -> (Vec<String>, Splitter) {
    let mut splitter = Splitter::new();
    let passed = chunks.iter().map(|chunk| {
        let passed = splitter.push(Bytes::copy_from_slice(chunk.as_bytes()));
        String::from_utf8(passed.bytes.to_vec()).unwrap()
    });
    (passed.collect(), splitter)
}

#[test]
fn only_whole_events_pass() {
    for (chunks, passed) in [
        (&["data: 1\n\n"][..], &["data: 1\n\n"][..]),
        (&["data: 1\n", "\n"], &["", "data: 1\n\n"]),
        (
            &["data: 1\n\ndat", "a: 2\n\n"],
            &["data: 1\n\n", "data: 2\n\n"],
        ),
        (&["data: 1\r\n\r\n"], &["data: 1\r\n\r\n"]),
        // A comment of the gateway must not separate the two halves of a CRLF.
        (&["data: 1\r\n\r", "\ndata"], &["", "data: 1\r\n\r\n"]),
        (&["data: 1\r", "\n\r", "\n"], &["", "", "data: 1\r\n\r\n"]),
        (&["data: 1\r\r"], &["data: 1\r\r"]),
        (
            &["data: 1\r", "\rdata: 2\r\r"],
            &["", "data: 1\r\rdata: 2\r\r"],
        ),
        (&["data: 1\n\r", "data: 2"], &["", "data: 1\n\r"]),
        (&["data: 1\r\n\n"], &["data: 1\r\n\n"]),
        (&["data: 1\n\r\n"], &["data: 1\n\r\n"]),
        (&["data: 1\r\r", "\n"], &["data: 1\r\r", "\n"]),
        (
            &[": ping\n\n", ": pi", "ng\n\n"],
            &[": ping\n\n", "", ": ping\n\n"],
        ),
        (&["\n", "\r\n"], &["\n", "\r\n"]),
        (&["", "data: 1\n", "", "\n"], &["", "", "", "data: 1\n\n"]),
        (
            &["event: x\nid: 7\ndata: 1\ndata: 2\n\n:c"],
            &["event: x\nid: 7\ndata: 1\ndata: 2\n\n"],
        ),
    ] {
        assert_eq!(push_all(chunks).0, passed, "{chunks:?}");
    }
}

#[test]
fn a_chunk_of_whole_events_is_not_copied() {
    let chunk = Bytes::from_static(b"data: 1\n\n: ping\n\ndata: 2\n\n");
    let mut splitter = Splitter::new();
    let passed = splitter.push(chunk.clone());
    assert_eq!(passed.bytes.as_ptr(), chunk.as_ptr());
    assert_eq!((passed.bytes.len(), passed.events), (chunk.len(), 2));
    assert!(splitter.at_boundary());
    let passed = splitter.push(Bytes::from_static(b"data: 3\n\ndata:"));
    assert_eq!((&*passed.bytes, passed.events), (&b"data: 3\n\n"[..], 1));
    assert_eq!((splitter.pending_len(), splitter.at_boundary()), (5, false));
    assert_eq!(splitter.take_rest(), "data:");
}

#[test]
fn a_byte_order_mark_is_dropped_at_the_very_start_only() {
    let mark = "\u{feff}".as_bytes();
    for (stream, passed, events) in [
        ([mark, b"data: x\n\n"].concat(), b"data: x\n\n".to_vec(), 1),
        (
            [mark, mark, b"data: x\n\n"].concat(),
            [mark, b"data: x\n\n"].concat(),
            0,
        ),
        (
            [b"\n\n", mark, b"data: x\n\n"].concat(),
            [b"\n\n", mark, b"data: x\n\n"].concat(),
            0,
        ),
        (
            b"\xef\xbbdata: x\n\n".to_vec(),
            b"\xef\xbbdata: x\n\n".to_vec(),
            0,
        ),
    ] {
        for size in [1, 2, 3, 100] {
            let mut splitter = Splitter::new();
            let (mut out, mut seen) = (Vec::new(), 0);
            for chunk in stream.chunks(size) {
                let whole = splitter.push(Bytes::copy_from_slice(chunk));
                out.extend_from_slice(&whole.bytes);
                seen += whole.events;
            }
            assert_eq!(
                (out, seen),
                (passed.clone(), events),
                "{stream:?} by {size}"
            );
            assert!(splitter.at_boundary());
        }
    }
    let mut splitter = Splitter::new();
    splitter.push(Bytes::from_static(&mark[..2]));
    assert_eq!(splitter.take_rest(), &mark[..2]);
}

#[test]
fn only_blocks_with_data_are_events() {
    for (block, events) in [
        ("data: x\n\n", 1),
        ("data\n\n", 1),
        ("data:\n\n", 1),
        ("event: x\ndata:y\n\n", 1),
        ("\u{feff}data: x\n\n", 1),
        ("event: x\r\ndata: y\r\n\r\n", 1),
        (": ping\n\n", 0),
        ("event: x\nid: 1\nretry: 5\n\n", 0),
        ("database: x\n\n", 0),
        (" data: x\n\n", 0),
        ("\n\n\n", 0),
    ] {
        let passed = Splitter::new().push(Bytes::from_static(block.as_bytes()));
        assert_eq!(passed.events, events, "{block:?}");
    }
}

#[test]
fn the_framing_is_the_agents() {
    for (chunk, framing) in [
        ("", Framing::Lf),
        ("data: 1\n\n", Framing::Lf),
        ("data: 1\r\n\r\n", Framing::CrLf),
        ("data: 1\r\r", Framing::Lf),
        ("data: 1\r\n", Framing::CrLf),
    ] {
        let (_, splitter) = push_all(&[chunk]);
        assert_eq!(splitter.framing(), framing, "{chunk:?}");
    }
    assert_eq!(final_event(None, "{}", Framing::Lf), "data: {}\n\n");
    assert_eq!(
        final_event(Some("error"), "{}", Framing::CrLf),
        "event: error\r\ndata: {}\r\n\r\n"
    );
    for framing in [Framing::Lf, Framing::CrLf] {
        // It is not an event, and does not change the next one.
        for numbered in [false, true] {
            let comment = framing.keepalive_comment(numbered);
            let event = format!("{comment}data: 1{0}{0}", framing.line_end());
            let passed = Splitter::new().push(Bytes::from(event.clone()));
            assert_eq!((&*passed.bytes, passed.events), (event.as_bytes(), 1));
        }
    }
}

fn standing(stream: &str) -> Standing {
    let mut splitter = Splitter::new();
    splitter.push(Bytes::copy_from_slice(stream.as_bytes()));
    splitter.standing()
}

fn was_final(stream: &str) -> bool {
    standing(stream).is_final()
}

#[test]
fn the_last_event_says_so() {
    let response =
        |result: &str| format!("data: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{result}}}\n\n");
    for result in [
        r#"{"kind":"status-update","final":true,"status":{"state":"input-required"}}"#,
        r#"{ "status" : { "state" : "completed" } , "final" : false , "kind" : "status-update" }"#,
        r#"{"kind":"task","id":"t","status":{"state":"canceled","timestamp":"x"},"history":[{"kind":"message"}]}"#,
        r#"{"k\u0069nd":"task","status":{"state":"reject\u0065d"}}"#,
        r#"{"id":"t","status":{"state":"failed"}}"#,
        r#"{"id":"t","status":{"state":"cancelled"}}"#,
        r#"{"final":true}"#,
        r#"{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_COMPLETED"}}}"#,
        r#"{"task":{"id":"t","status":{"state":"TASK_STATE_CANCELLED"},"artifacts":[]}}"#,
        r#"{"kind":"message","messageId":"m","parts":[]}"#,
        r#"{"message":{"messageId":"m","parts":[]}}"#,
    ] {
        assert!(was_final(&response(result)), "{result}");
        assert!(
            was_final(&format!("data: {result}\n\n")),
            "over REST: {result}"
        );
        let framed = response(result).replace('\n', "\r\n");
        assert!(
            was_final(&format!("id: 7\r\nevent: message\r\n{framed}")),
            "{result}"
        );
    }
    assert!(was_final("data: {\"error\":{\"code\":-32603}}\n\n"));
    assert!(was_final("event: error\ndata: {\"code\":1}\n\n"));
    assert!(was_final(
        "data: {\"result\":\ndata: {\"final\":\ndata: true}}\n\n"
    ));
}

#[test]
fn other_events_do_not() {
    for json in [
        r#"{"result":{"kind":"status-update","final":false,"status":{"state":"working"}}}"#,
        r#"{"result":{"kind":"status-update","final":"true","status":{"state":"submitted"}}}"#,
        r#"{"result":{"kind":"artifact-update","final":true,"lastChunk":true}}"#,
        r#"{"result":{"kind":"artifact-update","artifact":{"parts":[{"kind":"text","text":"\"final\":true"}]}}}"#,
        r#"{"result":{"kind":"artifact-update","artifact":{"parts":[{"kind":"data","data":{"final":true,"status":{"state":"completed"}}}]}}}"#,
        r#"{"result":{"kind":"task","history":[{"kind":"message"}],"status":{"state":"working","message":{"kind":"message"}}}}"#,
        r#"{"result":{"error":{"code":1}}}"#,
        r#"{"error":"none"}"#,
        r#"{"result":{"kind":"task","status":{"state":"input-required"}}}"#,
        r#"{"result":{"task":{"status":{"state":"TASK_STATE_INPUT_REQUIRED"}}}}"#,
        r#"{"result":{"statusUpdate":{"status":{"message":{"state":"completed"}}}}}"#,
        r#"{"result":{"artifactUpdate":{"final":true,"status":{"state":"TASK_STATE_COMPLETED"}}}}"#,
        r#"{"result":[{"final":true}]}"#,
        r#"{"params":{"final":true}}"#,
        r#"{"run_id":"r","progress":100,"message":"completed"}"#,
        r#""final":true"#,
        "true",
        "",
    ] {
        assert!(!was_final(&format!("data: {json}\n\n")), "{json}");
    }
    assert!(!was_final(": \"final\":true\n\n"));
    assert!(!was_final("event: {\"final\":true}\n\n"));
}

#[test]
fn a_final_event_counts_whatever_comes_behind_it() {
    let last = "data: {\"result\":{\"final\":true}}\n\n";
    let mut splitter = Splitter::new();
    let mut push = |text: &str| {
        let passed = splitter.push(Bytes::copy_from_slice(text.as_bytes()));
        (passed.is_final, splitter.standing())
    };
    assert_eq!(push("data: {}\n\n"), (false, Standing::Open));
    assert_eq!(push(last), (true, Standing::Over));
    for behind in [": ping\n\n", "", "data: {", "}\n\n", last] {
        assert_eq!(push(behind), (false, Standing::Over), "{behind:?}");
    }
    let working = "data: {\"result\":{\"status\":{\"state\":\"working\"}}}\n\n";
    assert!(was_final(&format!("{last}{working}")));
    assert!(was_final(&format!("data: {{}}\n\n{last}: ping\n\n")));
    assert!(was_final(&format!("{last}data: {{}}\n\n")));
}

#[test]
fn a_task_may_wait_for_a_person_and_go_on() {
    let event = |result: &str| format!("data: {{\"result\":{result}}}\n\n");
    let state = |state: &str| event(&format!(r#"{{"status":{{"state":"{state}"}}}}"#));
    for waits in ["input-required", "TASK_STATE_AUTH_REQUIRED"].map(state) {
        assert_eq!(standing(&waits), Standing::Interrupted, "{waits}");
        let ping = format!("{waits}: ping\n\ndata: {{}}\n\n");
        assert_eq!(standing(&ping), Standing::Interrupted, "{ping}");
        let goes_on = format!("{waits}{}", state("working"));
        assert_eq!(standing(&goes_on), Standing::Open, "{goes_on}");
    }
    // A message is the answer only if no task follows.
    let message = event(r#"{"kind":"message"}"#);
    assert_eq!(standing(&message), Standing::Answered);
    let goes_on = format!("{message}{}", state("working"));
    assert_eq!(standing(&goes_on), Standing::Open);
}

#[test]
fn a_long_event_is_scanned_once_and_searched_in_part() {
    let text = "x".repeat(9 << 20);
    let early = format!("data: {{\"result\":{{\"final\":true,\"text\":\"{text}\"}}}}\n\n");
    let late = format!("data: {{\"result\":{{\"text\":\"{text}\",\"final\":true}}}}\n\n");
    let multi = format!(
        "data: {{\"result\":{{\"final\":true,\n{}\n",
        "data: \"x\",\n".repeat(1 << 18)
    );
    for (stream, final_seen) in [(early, true), (late, false), (multi, true)] {
        let mut splitter = Splitter::new();
        let (mut last, mut events) = (CompleteEvents::default(), 0);
        let stream = Bytes::from(stream);
        for at in (0..stream.len()).step_by(8 << 10) {
            last = splitter.push(stream.slice(at..stream.len().min(at + (8 << 10))));
            events += last.events;
        }
        assert_eq!((events, last.is_final), (1, final_seen));
        assert_eq!(last.bytes, stream);
    }
}

/// Returns the number of complete events in `stream` and the length of the rest: a direct
/// implementation of the standard, on the whole text.
fn reference(stream: &str) -> (u32, usize) {
    let (mut events, mut has_data, mut at, mut rest) = (0, false, 0, 0);
    while let Some(len) = stream[at..].find(['\r', '\n']) {
        let line = &stream[at..at + len];
        at += len
            + if stream[at + len..].starts_with("\r\n") {
                2
            } else {
                1
            };
        if line.is_empty() {
            events += u32::from(std::mem::take(&mut has_data));
            rest = at;
        }
        has_data |= line == "data" || line.starts_with("data:");
    }
    (events, stream.len() - rest)
}

fn streams() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        4 => Just(""),
        3 => Just("data: {\"result\":{\"final\":true}}"),
        3 => Just("data: {}"),
        1 => Just(": ping"),
        1 => Just("event: x"),
        1 => Just("data"),
    ];
    let mixed = prop::sample::select(vec!["\n", "\r\n", "\r"]);
    let ends = prop_oneof![
        Just(vec!["\n"; 24]),
        Just(vec!["\r\n"; 24]),
        Just(vec!["\r"; 24]),
        prop::collection::vec(mixed, 24),
    ];
    (prop::collection::vec(line, 0..24), ends)
        .prop_map(|(lines, ends)| lines.iter().zip(ends).flat_map(|(l, e)| [*l, e]).collect())
}

proptest! {
    #[test]
    fn chunks_make_no_difference(
        stream in streams(),
        cuts in prop::collection::vec(0_usize..400, 0..40),
    ) {
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let mut splitter = Splitter::new();
        let (mut out, mut events) = (String::new(), 0);
        for cut in cuts.windows(2) {
            let chunk = Bytes::copy_from_slice(&stream.as_bytes()[cut[0]..cut[1]]);
            let passed = splitter.push(chunk);
            out.push_str(std::str::from_utf8(&passed.bytes).unwrap());
            events += passed.events;
            prop_assert_eq!(reference(&out), (events, 0), "{:?} passed", out);
            prop_assert_eq!(out.len() + splitter.pending_len(), cut[1]);
        }
        let mut at_once = Splitter::new();
        let whole = at_once.push(Bytes::copy_from_slice(stream.as_bytes()));
        prop_assert_eq!((events, splitter.standing()), (whole.events, at_once.standing()));
        let rest = splitter.take_rest();
        // A blank line that is a `\r` after `\n` may still get its `\n`.
        let awaits = rest.ends_with(b"\n\r");
        if !awaits {
            prop_assert_eq!(reference(&stream), (events, rest.len()));
        }
        out.push_str(std::str::from_utf8(&rest).unwrap());
        prop_assert_eq!(out, stream);
    }

    #[test]
    fn any_bytes_pass(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16)) {
        let mut splitter = Splitter::new();
        let mut out = Vec::new();
        for chunk in &chunks {
            out.extend_from_slice(&splitter.push(Bytes::copy_from_slice(chunk)).bytes);
        }
        out.extend_from_slice(&splitter.take_rest());
        let all = chunks.concat();
        let all = all.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&all);
        prop_assert_eq!(out, all);
    }
}

#[test]
fn events_tell_where_their_tasks_stand() {
    let stream = concat!(
        ": ping\n\n",
        "data: {\"result\":{\"status\":{\"state\":\"submitted\"}}}\n\n",
        "data: {\"result\":{\"kind\":\"artifact-update\"}}\r\n\r\n",
        "event: x\ndata: {\"result\":{\"statusUpdate\":\ndata: {\"status\":{\"state\":\"TASK_STATE_WORKING\"}}}}\n\n",
        "data: {\"result\":{\"artifact\":{\"state\":\"failed\"}}}\n\n",
        "data: {\"result\":{\"status\":{\"state\":\"done\"}}}\n\n",
        "data: \"state\"\n\n",
    );
    let told: Vec<_> = states_in(stream.as_bytes()).collect();
    assert_eq!(told, [TaskState::Submitted, TaskState::Working]);
    assert_eq!(states_in(b"data: {}\n\n").count(), 0);
}
