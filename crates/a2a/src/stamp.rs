//! Numbers the events of a stream, so that a reader can resume after the last one received: each
//! event gets the line `id: <stream>-<n>`, as the last of its block. An `id` of the agent stays in
//! front of it, so a reader keeps the gateway's (WHATWG HTML, 9.2.6).

use std::fmt::Write as _;

use bytes::Bytes;

use super::event::{has_data, line_end, split_blocks, split_lines};

/// Most bytes of such a line besides the stream id: `id: `, `-`, a number, a line end.
const LINE_BYTES_MAX: usize = 32;

/// Numbers the events of one stream, from 1.
#[derive(Debug)]
pub struct Stamper {
    stream: String,
    last: u64,
}

/// Complete blocks for the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StampedBlocks {
    /// All of the blocks.
    pub bytes: Bytes,
    /// The offset after each numbered event. An event's range begins with the comments in front of
    /// it.
    pub ends: Vec<usize>,
}

impl Stamper {
    /// Creates a stamper for the stream with that id.
    pub fn new(stream: String) -> Self {
        Self { stream, last: 0 }
    }

    /// Returns the number of the last event; 0 before the first.
    pub fn last_number(&self) -> u64 {
        self.last
    }

    /// Numbers complete blocks, as [`Splitter::push`](super::event::Splitter::push) returns them. A
    /// block without data is no event and gets no number, and loses an `id`, which would replace the
    /// number that a reader keeps. After the first number it also loses its blank line: after an
    /// `id`, httpx-sse (the SDKs for Python) takes any block for an event. So that nothing of it
    /// gets into the next event, it has no `event` either.
    pub fn stamp(&mut self, whole: &[u8]) -> StampedBlocks {
        let line = self.stream.len() + LINE_BYTES_MAX;
        let mut bytes = Vec::with_capacity(whole.len() + line);
        let mut ends = Vec::with_capacity(1);
        let mut id = String::with_capacity(line);
        for block in split_blocks(whole) {
            let blank = line_end(block);
            if !has_data(block) {
                put_without_event(&mut bytes, block, blank);
                if self.last == 0 {
                    bytes.extend_from_slice(blank);
                }
                continue;
            }
            self.last += 1;
            id.clear();
            // Writing into a string cannot fail.
            let _ = write!(id, "id: {}-{}", self.stream, self.last);
            bytes.extend_from_slice(&block[..block.len() - blank.len()]);
            bytes.extend_from_slice(id.as_bytes());
            bytes.extend_from_slice(blank);
            bytes.extend_from_slice(blank);
            ends.push(bytes.len());
        }
        StampedBlocks {
            bytes: bytes.into(),
            ends,
        }
    }
}

/// Returns the agent's own id of the event that has the gateway's `id`, in numbered blocks.
pub fn agent_id<'b>(blocks: &'b [u8], id: &str) -> Option<&'b [u8]> {
    let mut own: Option<&[u8]> = None;
    for line in split_lines(blocks) {
        match line.strip_prefix(b"id:").map(<[u8]>::trim_ascii) {
            Some(found) if found == id.as_bytes() => return own.filter(|own| !own.is_empty()),
            Some(found) => own = Some(found),
            None if line.is_empty() => own = None,
            None => {}
        }
    }
    None
}

/// Writes a block that is no event, without its blank line and without `event` and `id`.
fn put_without_event(bytes: &mut Vec<u8>, block: &[u8], blank: &[u8]) {
    let is_of_event = |line: &&[u8]| {
        let name = line.split(|byte| *byte == b':').next();
        matches!(name, Some(b"event" | b"id"))
    };
    let body = &block[..block.len() - blank.len()];
    if !split_lines(body).any(|line| is_of_event(&line)) {
        return bytes.extend_from_slice(body);
    }
    for line in split_lines(body).filter(|line| !is_of_event(line)) {
        bytes.extend_from_slice(line);
        bytes.extend_from_slice(blank);
    }
}
