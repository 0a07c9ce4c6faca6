//! One block of a stream, taken apart and written again ([`Block`]).

use crate::event;

/// One block of a stream, taken apart: its data, and the lines around them.
#[derive(Debug)]
pub struct Block<'a> {
    lines: Vec<&'a [u8]>,
    line_end: &'static [u8],
    /// The data lines, joined. `None`: it has none, so that it is no event.
    pub data: Option<Vec<u8>>,
    /// True if it has a comment.
    pub has_comment: bool,
}

impl<'a> Block<'a> {
    /// Reads a block, as [`event::blocks`] returns them.
    pub fn read(block: &'a [u8]) -> Self {
        let (mut data, mut has_comment): (Option<Vec<u8>>, _) = (None, false);
        let mut lines = Vec::new();
        for line in event::lines(block) {
            if line.starts_with(b":") {
                has_comment = true;
            } else if let Some(said) = event::data_of(line) {
                match &mut data {
                    None => data = Some(said.to_vec()),
                    Some(data) => {
                        data.push(b'\n');
                        data.extend_from_slice(said);
                    }
                }
            } else if !line.is_empty() {
                lines.push(line);
            }
        }
        Self {
            lines,
            line_end: event::line_end(block),
            data,
            has_comment,
        }
    }

    /// Writes it with `data`, and without its comments. A block of comments only becomes an empty comment.
    pub fn write(&self, data: Option<&[u8]>, out: &mut Vec<u8>) {
        let mut put = |parts: [&[u8]; 2]| {
            out.extend_from_slice(parts[0]);
            out.extend_from_slice(parts[1]);
            out.extend_from_slice(self.line_end);
        };
        for line in &self.lines {
            put([line, b""]);
        }
        match data {
            Some(data) => {
                for line in data.split(|byte| matches!(byte, b'\n' | b'\r')) {
                    put([b"data: ", line]);
                }
            }
            None if self.lines.is_empty() => put([b":", b""]),
            None => {}
        }
        put([b"", b""]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_taken_apart_and_written_again() {
        let block = b": secret\r\nevent: x\r\ndata: a\r\ndata: b\r\nid: 7\r\n\r\n";
        let read = Block::read(block);
        assert_eq!(read.data.as_deref(), Some(&b"a\nb"[..]));
        assert!(read.has_comment);
        let mut out = Vec::new();
        read.write(Some(b"c\nd"), &mut out);
        assert_eq!(out, b"event: x\r\nid: 7\r\ndata: c\r\ndata: d\r\n\r\n");
        let mut out = Vec::new();
        Block::read(b": secret\n\n").write(None, &mut out);
        assert_eq!(out, b":\n\n");
    }
}
