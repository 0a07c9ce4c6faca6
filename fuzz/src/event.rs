//! `a2a::event::Splitter` with `a2a::stamp::Stamper` behind it, and `a2a::task::TaskScan` over the same bytes. The
//! first byte of an input says how the stream behind it is cut.

use a2a_gateway::a2a::event::{Framing, Splitter, Standing};
use a2a_gateway::a2a::stamp::Stamper;
use a2a_gateway::a2a::task::{Binding, TaskScan};
use bytes::Bytes;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((seed, stream)) = input.split_first() else {
        return;
    };
    let whole = split(stream, |_| usize::MAX);
    assert_eq!(whole, split(stream, |_| 1), "byte by byte");
    let mut state = u32::from(*seed) + 1;
    let cut = |_| {
        // xorshift32 (Marsaglia 2003): lengths from 1 to 16.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state % 16 + 1) as usize
    };
    assert_eq!(whole, split(stream, cut), "in pieces");
    let (mut scan, mut pieces) = (TaskScan::new(Binding::Rpc), TaskScan::new(Binding::Rpc));
    let found = scan.push(stream);
    let in_pieces = stream.chunks(1).find_map(|byte| pieces.push(byte));
    assert_eq!(found, in_pieces, "the task, byte by byte");
    TaskScan::new(Binding::Rest).push_events(stream);
    // Of a last line that may go on nobody can tell yet.
    if !stream.ends_with(b"\r") {
        assert_eq!(whole.events, events(stream), "counted line by line");
    }
}

/// What came of a stream.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    passed: Vec<u8>,
    rest: Vec<u8>,
    events: u32,
    standing: Standing,
    framing: Framing,
}

fn split(stream: &[u8], mut next: impl FnMut(usize) -> usize) -> Outcome {
    let mut splitter = Splitter::new();
    let mut stamper = Stamper::new("s".into());
    let mut outcome = Outcome {
        passed: Vec::new(),
        rest: Vec::new(),
        events: 0,
        standing: Standing::default(),
        framing: Framing::default(),
    };
    let mut at = 0;
    while at < stream.len() {
        let end = at.saturating_add(next(at)).min(stream.len());
        let passed = splitter.push(Bytes::copy_from_slice(&stream[at..end]));
        at = end;
        outcome.passed.extend_from_slice(&passed.bytes);
        let before = stamper.last_number();
        let stamped = stamper.stamp(&passed.bytes);
        assert_eq!(stamper.last_number() - before, stamped.ends.len() as u64);
        assert_eq!(
            without_numbers(&stamped.bytes, before),
            numbered_lines(&passed.bytes),
            "only numbers are added, and of events nothing goes"
        );
        assert_eq!(
            stamped.ends.len() as u32,
            passed.events,
            "every event has a number, and nothing else"
        );
        outcome.events += passed.events;
        // It holds what it did not pass on, and nothing else.
        let held = at - outcome.passed.len() - skipped(&stream[..at]);
        assert_eq!(splitter.pending_len(), held);
        assert_eq!(splitter.at_boundary(), splitter.pending_len() == 0);
        assert!(passed.events == 0 || !passed.bytes.is_empty());
    }
    outcome.framing = splitter.framing();
    outcome.standing = splitter.standing();
    outcome.rest = splitter.take_rest().to_vec();
    let together = [&outcome.passed[..], &outcome.rest].concat();
    let content = stream.strip_prefix(MARK).unwrap_or(stream);
    assert_eq!(together, content, "a byte was lost, added or moved");
    outcome
}

/// The byte order mark, which is dropped at the start of a stream.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// How many bytes at the start of a stream are its mark, or may become one.
fn skipped(stream: &[u8]) -> usize {
    let start = &stream[..stream.len().min(MARK.len())];
    if MARK.starts_with(start) {
        start.len()
    } else {
        0
    }
}

/// The lines that are not blank, but those that number events, from behind `last` on.
fn without_numbers(stamped: &[u8], mut last: u64) -> Vec<Vec<u8>> {
    let mut kept = filled(stamped);
    kept.retain(|line| {
        let ours = *line == format!("id: s-{}", last + 1).into_bytes();
        last += u64::from(ours);
        !ours
    });
    kept
}

/// The lines that are not blank, without `event` and `id` of blocks that are no events.
fn numbered_lines(stream: &[u8]) -> Vec<Vec<u8>> {
    let (mut kept, mut block) = (Vec::new(), Vec::new());
    for line in lines(stream) {
        if !line.is_empty() {
            block.push(line);
            continue;
        }
        let has_data = block.iter().any(|line| is_data(line));
        block.retain(|line: &Vec<u8>| {
            let name = line.split(|byte| *byte == b':').next();
            has_data || !matches!(name, Some(b"event" | b"id"))
        });
        kept.append(&mut block);
    }
    kept.append(&mut block);
    kept
}

fn is_data(line: &[u8]) -> bool {
    line == b"data" || line.starts_with(b"data:")
}

fn filled(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut lines = lines(stream);
    lines.retain(|line| !line.is_empty());
    lines
}

/// The lines of the standard (WHATWG HTML, 9.2.6), and what is behind the last one.
fn lines(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    let mut line = Vec::new();
    let mut bytes = stream.iter().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' => {
                bytes.next_if(|next| **next == b'\n');
                lines.push(std::mem::take(&mut line));
            }
            b'\n' => lines.push(std::mem::take(&mut line)),
            _ => line.push(*byte),
        }
    }
    lines.push(line);
    lines
}

/// How many events with data a stream has: the lines of the standard, one after the other.
fn events(stream: &[u8]) -> u32 {
    let mut lines = lines(stream.strip_prefix(MARK).unwrap_or(stream));
    // It may go on.
    lines.pop();
    let (mut events, mut has_data) = (0, false);
    for line in lines {
        if line.is_empty() {
            events += u32::from(has_data);
            has_data = false;
            continue;
        }
        has_data |= is_data(&line);
    }
    events
}
