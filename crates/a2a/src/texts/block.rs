//! One block of a stream, taken apart and written again ([`Block`]).

use std::borrow::Cow;

use crate::event;

/// The values of an `event` line that the protocol uses.
const NAMES: [&[u8]; 2] = [b"message", b"error"];

/// One block of a stream, taken apart.
#[derive(Debug)]
pub struct Block<'a> {
    name: Option<&'a [u8]>,
    line_end: &'static [u8],
    /// True if a blank line ends it.
    is_whole: bool,
    /// The data lines, joined. `None`: it has none, so that it is no event.
    pub data: Option<Vec<u8>>,
}

impl<'a> Block<'a> {
    /// Reads a block, as [`event::split_blocks`] returns them.
    pub fn parse(block: &'a [u8]) -> Self {
        let (mut name, mut is_whole) = (None, false);
        for line in event::split_lines(block) {
            is_whole |= line.is_empty();
            if let Some(said) = line.strip_prefix(b"event:") {
                let said = said.strip_prefix(b" ").unwrap_or(said);
                name = Some(said).filter(|said| NAMES.contains(said));
            }
        }
        Self {
            name,
            line_end: event::line_end(block),
            is_whole,
            data: event::join_data(block, usize::MAX).map(Cow::into_owned),
        }
    }

    /// Writes it with `data`. Of its other lines only the name of the event stays, if the protocol uses it: no
    /// component judges comments, ids and unknown fields.
    pub fn write(&self, data: &[u8], out: &mut Vec<u8>) {
        let mut put = |parts: [&[u8]; 2]| {
            out.extend_from_slice(parts[0]);
            out.extend_from_slice(parts[1]);
            out.extend_from_slice(self.line_end);
        };
        if let Some(name) = self.name {
            put([b"event: ", name]);
        }
        for line in data.split(|byte| matches!(byte, b'\n' | b'\r')) {
            put([b"data: ", line]);
        }
        if self.is_whole {
            put([b"", b""]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(block: &[u8]) -> String {
        let (read, mut out) = (Block::parse(block), Vec::new());
        if let Some(data) = &read.data {
            read.write(data, &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_data_and_known_names_are_written_again() {
        let block = b": secret\r\nevent: error\r\ndata: a\r\ndata: b\r\nid: secret\r\nretry: secret\r\nsecret\r\n\r\n";
        let read = Block::parse(block);
        assert_eq!(read.data.as_deref(), Some(&b"a\nb"[..]));
        let mut out = Vec::new();
        read.write(b"c\nd", &mut out);
        assert_eq!(out, b"event: error\r\ndata: c\r\ndata: d\r\n\r\n");
        for (block, expected) in [
            ("data: a\n\n", "data: a\n\n"),
            ("event:message\ndata:a\n\n", "event: message\ndata: a\n\n"),
            ("event: secret\ndata: a\n\n", "data: a\n\n"),
            ("event: error\nevent: secret\ndata: a\n\n", "data: a\n\n"),
            ("\u{feff}: secret\ndata: a\n\n", "data: a\n\n"),
            ("\u{feff}data: secret\n\n", ""),
            (": secret\n\n", ""),
            ("event: error\nid: secret\n\n", ""),
            ("data: a", "data: a\n"),
            ("data: a\nid: secret", "data: a\n"),
        ] {
            assert_eq!(written(block.as_bytes()), expected, "{block:?}");
        }
    }
}
