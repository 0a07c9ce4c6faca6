//! Streams that go on after their caller has disconnected: their number, and their remaining readers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{LogWriter, Streams};
use crate::metrics::InProgress;
use crate::shares::{Account, Bound, Share};

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
            metrics.count_lingered("full");
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
        self.streams.metrics.streams.count_lingered(how);
    }
}
