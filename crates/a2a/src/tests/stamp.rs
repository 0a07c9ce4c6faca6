//! Tests of numbered events: the position of the line, and that nothing else is added.

use bytes::Bytes;
use proptest::prelude::*;

use crate::event::{Splitter, line_end, split_blocks, split_lines};
use crate::stamp::{StampedBlocks, Stamper, agent_id};

fn stamp(whole: &str) -> (String, Vec<usize>) {
    let StampedBlocks { bytes, ends } = Stamper::new("s".into()).stamp(whole.as_bytes());
    (String::from_utf8(bytes.to_vec()).unwrap(), ends)
}

#[test]
fn the_number_is_the_last_line_of_its_block_with_the_blocks_own_line_end() {
    for (whole, expected) in [
        ("data: 1\n\n", "data: 1\nid: s-1\n\n"),
        ("data: 1\r\n\r\n", "data: 1\r\nid: s-1\r\n\r\n"),
        ("data: 1\r\r", "data: 1\rid: s-1\r\r"),
        ("data: 1\n\r", "data: 1\nid: s-1\r\r"),
        ("data: 1\r\n\n", "data: 1\r\nid: s-1\n\n"),
        // The agent's id comes first, so that readers keep the gateway's.
        (
            "id: 7\ndata: 1\ndata: 2\n\n",
            "id: 7\ndata: 1\ndata: 2\nid: s-1\n\n",
        ),
        ("data: 1\nid: 7\n\n", "data: 1\nid: 7\nid: s-1\n\n"),
        // Without data there is no event: a number would make one of it in old clients.
        ("event: ping\n\n", "\n"),
        ("event: ping\nretry: 5\n\n", "retry: 5\n\n"),
        (
            "data: 1\n\nevent: ping\nid: 7\n: c\n\ndata: 2\n\n",
            "data: 1\nid: s-1\n\n: c\ndata: 2\nid: s-2\n\n",
        ),
        // It would change the id that a reader keeps.
        ("id: 7\n\n", "\n"),
        ("\u{feff}data: 1\n\n", "\u{feff}data: 1\n\n"),
        // Comments alone are not an event, and after a number they must not look like one.
        (": ping\n\n", ": ping\n\n"),
        (": ping\r\n: pong\r\n\r\n", ": ping\r\n: pong\r\n\r\n"),
        ("\n", "\n"),
        ("data: 1\n\n\n", "data: 1\nid: s-1\n\n"),
        ("", ""),
        (
            ": c\n\ndata: 1\n\n: c\n\ndata: 2\n\n: c\n\n",
            ": c\n\ndata: 1\nid: s-1\n\n: c\ndata: 2\nid: s-2\n\n: c\n",
        ),
        // A comment inside of an event.
        (": c\ndata: 1\n\n", ": c\ndata: 1\nid: s-1\n\n"),
    ] {
        assert_eq!(stamp(whole).0, expected, "{whole:?}");
    }
}

#[test]
fn what_lies_between_two_ends_is_one_event_with_the_comments_before_it() {
    let (text, ends) = stamp(": a\n\ndata: 1\n\ndata: 2\n\n: b\n\n");
    assert_eq!(ends.len(), 2);
    assert_eq!(&text[..ends[0]], ": a\n\ndata: 1\nid: s-1\n\n");
    assert_eq!(&text[ends[0]..ends[1]], "data: 2\nid: s-2\n\n");
    assert_eq!(&text[ends[1]..], ": b\n");
}

#[test]
fn the_agents_own_id_of_an_event_is_found() {
    let (text, _) = stamp("id: 7\ndata: 1\n\ndata: 2\n\nid: 8\nid: 9\ndata: 3\n\nid:\ndata: 4\n\n");
    for (id, own) in [
        ("s-1", Some("7")),
        ("s-2", None),
        ("s-3", Some("9")),
        ("s-4", None),
        ("s-5", None),
    ] {
        let found = agent_id(text.as_bytes(), id);
        assert_eq!(found, own.map(str::as_bytes), "{id}");
    }
}

/// Removes the gateway's lines and returns their numbers.
fn unstamped(bytes: &[u8]) -> (Vec<u8>, Vec<u64>) {
    let (mut plain, mut numbers, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(found) = memchr::memmem::find(&bytes[at..], b"id: STREAM-") {
        let from = at + found;
        let end = from + memchr::memchr2(b'\r', b'\n', &bytes[from..]).unwrap();
        let number = std::str::from_utf8(&bytes[from + 11..end]).unwrap();
        numbers.push(number.parse().unwrap());
        plain.extend_from_slice(&bytes[at..from]);
        at = end
            + if bytes[end..].starts_with(b"\r\n") {
                2
            } else {
                1
            };
    }
    plain.extend_from_slice(&bytes[at..]);
    (plain, numbers)
}

/// Removes `event` and `id` from blocks without data, and their blank lines after the first event.
fn without_other_blanks(passed: &[u8]) -> Vec<u8> {
    let field_of = |line: &[u8]| line.split(|byte| *byte == b':').next().map(<[u8]>::to_vec);
    let is = |line: &[u8], names: [&str; 2]| {
        let field = field_of(line);
        names
            .iter()
            .any(|name| field.as_deref() == Some(name.as_bytes()))
    };
    let (mut kept, mut begun) = (Vec::new(), false);
    for block in split_blocks(passed) {
        let blank = line_end(block);
        let has_data = split_lines(block).any(|line| is(line, ["data", "data"]));
        let end = if has_data || !begun { 0 } else { blank.len() };
        begun |= has_data;
        let other = |line: &&[u8]| is(line, ["event", "id"]);
        if has_data || !split_lines(block).any(|line| other(&line)) {
            kept.extend_from_slice(&block[..block.len() - end]);
            continue;
        }
        let lines = split_lines(&block[..block.len() - blank.len()]);
        for line in lines.filter(|line| !other(line)) {
            kept.extend_from_slice(line);
            kept.extend_from_slice(blank);
        }
        kept.extend_from_slice(&blank[end..]);
    }
    kept
}

proptest! {
    #[test]
    fn a_stream_is_itself_with_consecutive_numbers_however_it_is_cut(
        stream in "(data|id|event|:|: x|data: y|retry: 1|\\r\\n|\\n|\\r|\\n\\n|\\r\\n\\r\\n){0,40}",
        cuts in prop::collection::vec(1usize..9, 0..60),
    ) {
        let mut outcomes = Vec::new();
        for cuts in [&cuts[..], &[]] {
            let (mut splitter, mut stamper) = (Splitter::new(), Stamper::new("STREAM".into()));
            let (mut rest, mut passed, mut stamped) = (stream.as_bytes(), Vec::new(), Vec::new());
            let mut events = 0;
            let cuts = cuts.iter().copied().chain(std::iter::repeat(usize::MAX));
            for cut in cuts {
                if rest.is_empty() {
                    break;
                }
                let (piece, behind) = rest.split_at(cut.min(rest.len()));
                rest = behind;
                let whole = splitter.push(Bytes::copy_from_slice(piece)).bytes;
                passed.extend_from_slice(&whole);
                let now = stamper.stamp(&whole);
                events += now.ends.len();
                stamped.extend_from_slice(&now.bytes);
            }
            let (plain, numbers) = unstamped(&stamped);
            prop_assert_eq!(plain, without_other_blanks(&passed));
            let expected: Vec<u64> = (1..=stamper.last_number()).collect();
            prop_assert_eq!(&numbers, &expected);
            prop_assert_eq!(events, expected.len());
            outcomes.push(stamped);
        }
        prop_assert_eq!(&outcomes[0], &outcomes[1]);
    }
}
