//! Streams that go on without their caller: how many may, and who still reads them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Log, Streams};

/// A stream that goes on without its caller. Dropping it gives its place back.
pub struct Lingering(Arc<Streams>);

impl Log {
    /// From now on only those count who come back for it. `None`: as many streams as may be
    /// (`stream.lingering`) go on without their callers already, or none may.
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
    /// Counts how it ended, by a word of a closed set: `ended`, `unread`, `drained`.
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
