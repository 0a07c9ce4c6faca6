//! The writing side of one stream, also after its caller has disconnected.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::Streams;
use super::stream_log::StreamLog;
use a2a::stamp::Stamper;
use kernel::metrics::InProgress;
use kernel::shares::{Account, Bound, Share};

/// Numbers and keeps the events of one stream. A log that is dropped before [`LogWriter::end`] was broken off.
pub struct LogWriter {
    pub(super) streams: Arc<Streams>,
    pub(super) kept: Arc<StreamLog>,
    stamper: Stamper,
}

impl LogWriter {
    pub(super) fn new(streams: Arc<Streams>, kept: Arc<StreamLog>) -> Self {
        let stamper = Stamper::new(kept.id.simple().to_string());
        Self {
            streams,
            kept,
            stamper,
        }
    }

    /// Keeps whole blocks, and returns them numbered, as they are sent to the caller. Behind a final event comments are
    /// dropped: they have no blank line, and at the end of a stream readers take them for an event that was cut off.
    pub fn append(&mut self, blocks: &[u8], is_final: bool) -> Bytes {
        let mut stamped = self.stamper.stamp(blocks);
        if is_final {
            let events = stamped.ends.last().copied().unwrap_or_default();
            stamped.bytes.truncate(events);
        }
        self.kept.append_events(&stamped, self.streams.log_bounds());
        self.streams.enforce_bounds(&self.kept);
        self.streams.copy_later(&self.kept);
        stamped.bytes
    }

    /// Returns the name of the stream.
    pub fn name(&self) -> String {
        self.kept.id.simple().to_string()
    }

    /// Returns the number of the last event; 0 before the first.
    pub fn last(&self) -> u64 {
        self.stamper.last_number()
    }

    /// Ends the stream; `rest` are the bytes that the agent sent behind the last event.
    pub fn end(self, rest: &[u8]) {
        self.kept.record_end(Some(rest));
    }

    /// Returns the time since the last read, on this or another replica.
    pub fn unread_for(&self) -> Duration {
        self.kept.unread_for()
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        // No effect after `end`.
        self.kept.record_end(None);
        self.streams.start_retention(&self.kept);
    }
}

/// A stream that goes on without its caller. Dropping it frees its place.
pub struct LingeringStream {
    streams: Arc<Streams>,
    _place: (Share, InProgress),
}

impl LogWriter {
    /// Lets the stream go on for readers that resume it. `None`: `stream.lingering` streams do so already, its caller
    /// has half of what others leave of them, or `stream.linger` is 0.
    pub fn linger(&self) -> Option<LingeringStream> {
        let (bound, linger) = {
            let stream = &self.streams.config.get().stream;
            (Bound::with_places(stream.lingering), stream.linger)
        };
        if linger.is_zero() {
            return None;
        }
        let metrics = &self.streams.metrics.streams;
        let account = Account::of_owner(&self.kept.access.owner);
        let Ok(share) = self.streams.lingering.take(account, 1, bound) else {
            metrics.lingered.with_label_values(&["full"]).inc();
            return None;
        };
        self.kept.record_read();
        self.kept.lingers.store(true, Ordering::Release);
        Some(LingeringStream {
            streams: Arc::clone(&self.streams),
            _place: (share, InProgress::begin(&metrics.lingering)),
        })
    }
}

impl LingeringStream {
    /// Counts how it ended, by a label of a closed set: `ended`, `unread`, `drained`.
    pub fn record_end(&self, how: &'static str) {
        self.streams
            .metrics
            .streams
            .lingered
            .with_label_values(&[how])
            .inc();
    }
}
