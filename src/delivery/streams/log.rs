//! The writing side of one stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Streams;
use super::kept::Kept;
use crate::a2a::stamp::Stamper;

/// Numbers and keeps the events of one stream. A log that is dropped before [`Log::end`] was broken off.
pub struct Log {
    pub(super) streams: Arc<Streams>,
    pub(super) kept: Arc<Kept>,
    stamper: Stamper,
}

impl Log {
    pub(super) fn new(streams: Arc<Streams>, kept: Arc<Kept>) -> Self {
        let stamper = Stamper::new(kept.id.simple().to_string());
        Self {
            streams,
            kept,
            stamper,
        }
    }

    /// Keeps whole blocks, and returns them numbered, as they are sent to the caller.
    pub fn append(&mut self, blocks: &[u8]) -> Bytes {
        let stamped = self.stamper.stamp(blocks);
        self.kept.keep(&stamped, self.streams.bounds());
        self.streams.relieve(&self.kept);
        self.streams.copy_later(&self.kept);
        stamped.bytes
    }

    /// Returns the name of the stream.
    pub fn name(&self) -> String {
        self.kept.id.simple().to_string()
    }

    /// Returns the number of the last event; 0 before the first.
    pub fn last(&self) -> u64 {
        self.stamper.last()
    }

    /// Ends the stream; `rest` are the bytes that the agent sent behind the last event.
    pub fn end(self, rest: &[u8]) {
        self.kept.end(Some(rest));
    }

    /// Returns the time since the last read, on this or another replica.
    pub fn unread_for(&self) -> Duration {
        self.kept.unread_for()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // No effect after `end`.
        self.kept.end(None);
        self.streams.ended(&self.kept);
    }
}
