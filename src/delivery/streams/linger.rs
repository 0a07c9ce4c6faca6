//! Streams that go on after their caller has disconnected: their number, and their remaining readers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Log, Streams};

/// A stream that goes on without its caller. Dropping it frees its place.
pub struct Lingering(Arc<Streams>);

impl Log {
    /// Lets the stream go on for readers that resume it. `None`: `stream.lingering` streams do so already, or
    /// `stream.linger` is 0.
    pub fn linger(&self) -> Option<Lingering> {
        let (max, linger) = {
            let stream = &self.streams.config.get().stream;
            (stream.lingering, stream.linger)
        };
        if linger.is_zero() {
            return None;
        }
        let metrics = &self.streams.metrics;
        let before = self.streams.lingering.fetch_add(1, Ordering::AcqRel);
        metrics.streams.lingering.inc();
        let lingering = Lingering(Arc::clone(&self.streams));
        if max <= before {
            metrics.streams.lingered("full");
            return None;
        }
        self.kept.read_now();
        self.kept.lingers.store(true, Ordering::Release);
        Some(lingering)
    }
}

impl Lingering {
    /// Counts how it ended, by a label of a closed set: `ended`, `unread`, `drained`.
    pub fn ended(&self, how: &'static str) {
        self.0.metrics.streams.lingered(how);
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        self.0.lingering.fetch_sub(1, Ordering::AcqRel);
        self.0.metrics.streams.lingering.dec();
    }
}
