//! Queue of events to publish: bounded, filled without waiting, emptied by one task.

use std::collections::VecDeque;

use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::sync::Notify;

/// Bounded queue that keeps the newest items.
pub(super) struct Queue<T> {
    waiting: Mutex<VecDeque<T>>,
    filled: Notify,
    max: usize,
    /// Gauge of queued events.
    depth: IntGauge,
}

impl<T> Queue<T> {
    pub(super) fn new(max: usize, depth: IntGauge) -> Self {
        Self {
            waiting: Mutex::default(),
            filled: Notify::new(),
            max,
            depth,
        }
    }

    /// Adds an item. True if the oldest was dropped for it.
    pub(super) fn push(&self, one: T) -> bool {
        let mut waiting = self.waiting.lock();
        let full = self.max <= waiting.len();
        if full {
            waiting.pop_front();
        }
        waiting.push_back(one);
        self.depth.set(queue_depth(&waiting));
        drop(waiting);
        self.filled.notify_one();
        full
    }

    /// Waits for at least one item; takes at most `max`, oldest first.
    pub(super) async fn take(&self, max: usize) -> Vec<T> {
        loop {
            let batch: Vec<T> = {
                let mut waiting = self.waiting.lock();
                let count = max.min(waiting.len());
                let batch = waiting.drain(..count).collect();
                self.depth.set(queue_depth(&waiting));
                batch
            };
            if !batch.is_empty() {
                return batch;
            }
            // `Notify` stores a permit, so no wake-up is lost.
            self.filled.notified().await;
        }
    }
}

fn queue_depth<T>(waiting: &VecDeque<T>) -> i64 {
    i64::try_from(waiting.len()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_are_kept_in_their_order() {
        let queue = Queue::new(3, IntGauge::new("depth", "how many wait").unwrap());
        let dropped: Vec<bool> = (0..5).map(|n| queue.push(n)).collect();
        assert_eq!(dropped, [false, false, false, true, true]);
        assert_eq!(queue.take(2).await, [2, 3]);
        assert_eq!(queue.take(2).await, [4]);
        let wait = tokio::time::timeout(std::time::Duration::from_millis(20), queue.take(2));
        assert!(wait.await.is_err(), "nothing is there");
    }
}
