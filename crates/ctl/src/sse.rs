//! Server-sent events, read from a stream.

use std::collections::VecDeque;

use gateway_client::Response;

use super::failure::Failure;

/// Longest event, in bytes. A stream as a whole has 10 MiB by default.
const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// An event has no end.
#[derive(Debug, thiserror::Error)]
#[error("an event of the stream has more than {EVENT_BYTES_MAX} bytes")]
struct LongEvent;

/// A stream of events.
pub(crate) struct EventStream {
    answer: Response,
    parser: EventParser,
    /// Events that arrived together.
    ready: VecDeque<String>,
}

impl EventStream {
    /// Reads the events of an answer.
    pub(crate) fn new(answer: Response) -> Self {
        Self {
            answer,
            parser: EventParser::default(),
            ready: VecDeque::new(),
        }
    }

    /// Returns the data of the next event; `None` at the end of the stream.
    ///
    /// # Errors
    /// The stream broke off, or an event has no end.
    pub(crate) async fn next_event(&mut self) -> Result<Option<String>, Failure> {
        while self.ready.is_empty() {
            let Some(piece) = self.answer.next_chunk().await? else {
                return Ok(None);
            };
            self.ready.extend(self.parser.push(&piece)?);
        }
        Ok(self.ready.pop_front())
    }
}

/// Assembles events from pieces of any size. Keeps the data of each.
#[derive(Default)]
struct EventParser {
    line: Vec<u8>,
    data: String,
}

impl EventParser {
    /// Adds a piece of the stream. Returns the data of the events that are whole now.
    ///
    /// # Errors
    /// [`LongEvent`].
    fn push(&mut self, piece: &[u8]) -> Result<Vec<String>, LongEvent> {
        let mut whole = Vec::new();
        for &byte in piece {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.line);
            let line = line.trim_end_matches('\r');
            if line.is_empty() && !self.data.is_empty() {
                whole.push(std::mem::take(&mut self.data));
            } else if let Some(data) = line.strip_prefix("data:") {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
            }
            self.line.clear();
        }
        if self.line.len() + self.data.len() > EVENT_BYTES_MAX {
            return Err(LongEvent);
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_whole_wherever_they_are_cut() {
        let stream = b": hello\r\n\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\nid: 7\ndata:x\n\ndata: half";
        for size in 1..=stream.len() {
            let mut events = EventParser::default();
            let whole: Vec<String> = stream
                .chunks(size)
                .flat_map(|piece| events.push(piece).unwrap())
                .collect();
            assert_eq!(whole, ["{\"a\":\n1}", "x"], "{size}");
        }
    }
}
