//! Background tasks: from the queues to all replicas, and from all replicas to the readers of this one.
//!
//! Queue of events to publish: bounded, filled without waiting, emptied by one task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::hub::{KEPT_MAX, REPLAY_FOR};
use super::record::{PublishedEvent, Record};
use super::{Event, Events, Kind};
use access::hierarchy::{Hierarchy, Lineage};
use access::workspace::Timestamp;
use kernel::metrics::EventKind;
use kernel::telemetry::Chain;
use stores::shared::{Entry, LogEvent, Notice};
use stores::store::Unavailable;

/// Log that all replicas write and follow.
const LOG: &str = "gw:events";

/// Entries kept in the log: more than a reader may resume from, so that a replica that was away for a while, or
/// is behind under load, misses none.
const LOG_ENTRIES_MAX: usize = 4096;

/// Channel for passing events and for [`LISTENING`].
pub(super) const PASSING: &str = "gw:events:passing";

/// Message on the channel with which a replica announces readers.
pub(super) const LISTENING: &str = "listening";

/// Events per write.
const BATCH_MAX: usize = 64;

/// Pause between attempts to publish.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Nonces remembered: a write that was repeated, because its outcome was unknown, is at most this many entries
/// away from the first.
const NONCES_MAX: usize = 4 * BATCH_MAX;

/// An event, and the nonce that detects its repeated write.
type PendingEvent = (String, Event);

impl Events {
    /// Publishes state changes, in order.
    pub(super) async fn publish_kept(&self, hierarchy: &Hierarchy) {
        loop {
            let mut batch = with_nonces(self.kept.take(BATCH_MAX).await);
            let mut warned = false;
            while let Err(error) = self.append_batch(hierarchy, &batch).await {
                if !warned {
                    let error = Chain(&error);
                    tracing::warn!(%error, "failed to publish events; retrying");
                    warned = true;
                }
                sleep(RETRY_PAUSE).await;
                // Too old for replay.
                let oldest = Timestamp::now().before(REPLAY_FOR);
                let before = batch.len();
                batch.retain(|(_, event)| oldest <= event.at);
                self.metrics
                    .count_dropped_events(EventKind::Kept, before - batch.len());
            }
        }
    }

    async fn append_batch(
        &self,
        hierarchy: &Hierarchy,
        batch: &[PendingEvent],
    ) -> Result<(), Unavailable> {
        let texts = encode_batch(hierarchy, batch).await?;
        self.shared.append(LOG, &texts, LOG_ENTRIES_MAX).await?;
        self.metrics
            .count_published_events(EventKind::Kept, texts.len());
        Ok(())
    }

    /// Publishes passing events: one attempt each.
    pub(super) async fn publish_passing(&self, hierarchy: &Hierarchy) {
        loop {
            let batch = with_nonces(self.passing.take(BATCH_MAX).await);
            let published = match encode_batch(hierarchy, &batch).await {
                // One message for all of them: JSON in one line has no line ends.
                Ok(texts) => self.shared.publish(PASSING, &texts.join("\n")).await,
                Err(error) => Err(error),
            };
            match published {
                Ok(()) => self
                    .metrics
                    .count_published_events(EventKind::Passing, batch.len()),
                Err(error) => {
                    self.metrics
                        .count_dropped_events(EventKind::Passing, batch.len());
                    tracing::debug!(error = %Chain(&error), "failed to publish passing events; dropped");
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Follows the log and broadcasts it to the readers of this replica.
    pub(super) async fn follow_log(&self) {
        let mut tail = self.shared.follow_log(LOG, KEPT_MAX);
        let mut nonces = VecDeque::with_capacity(NONCES_MAX);
        loop {
            match tail.next().await {
                LogEvent::Up => self.metrics.events_linked.set(1),
                LogEvent::Down => self.metrics.events_linked.set(0),
                LogEvent::Backlog(entries) => {
                    let events = entries.into_iter();
                    let events = events.filter_map(|entry| self.read_entry(entry, &mut nonces));
                    self.hub.load_backlog(events.collect());
                }
                LogEvent::Entries(entries) => {
                    for entry in entries {
                        if let Some(event) = self.read_entry(entry, &mut nonces) {
                            self.hub.publish_logged(event);
                        }
                    }
                    // Yields to the readers if there are many events.
                    tokio::task::yield_now().await;
                }
                LogEvent::Lost => {
                    tracing::warn!("event log was lost or truncated; readers get a gap");
                    self.metrics.events_lost.inc();
                    self.hub.reset();
                }
            }
        }
    }

    fn read_entry(&self, entry: Entry, nonces: &mut VecDeque<String>) -> Option<PublishedEvent> {
        let Some(mut record) = Record::parse(&entry.text) else {
            self.metrics.count_dropped_events(EventKind::Kept, 1);
            return None;
        };
        if nonces.contains(&record.nonce) {
            return None;
        }
        if NONCES_MAX <= nonces.len() {
            nonces.pop_front();
        }
        nonces.push_back(std::mem::take(&mut record.nonce));
        record.into_published(Some(entry.id))
    }

    /// Receives passing events and announcements of other replicas.
    pub(super) async fn receive_passing(&self) {
        let mut passing = self.shared.subscribe(PASSING);
        loop {
            match passing.next().await {
                Notice::Message(text) if text == LISTENING => self.audience.record_announcement(),
                Notice::Message(text) if self.audience.is_here() => text
                    .lines()
                    .filter_map(|line| Record::parse(line)?.into_published(None))
                    .for_each(|event| drop(self.hub.passing.send(Arc::new(event)))),
                // Passing events are missed while there is no link.
                Notice::Message(_) | Notice::Down | Notice::Up => {}
            }
        }
    }
}

fn with_nonces(batch: Vec<Event>) -> Vec<PendingEvent> {
    let nonce = || uuid::Uuid::new_v4().simple().to_string();
    batch.into_iter().map(|event| (nonce(), event)).collect()
}

async fn encode_batch(
    hierarchy: &Hierarchy,
    batch: &[PendingEvent],
) -> Result<Vec<String>, Unavailable> {
    let places = batch.iter().map(|(_, event)| find_place(hierarchy, event));
    let places = join_all(places).await;
    let mut texts = Vec::with_capacity(batch.len());
    for ((nonce, event), place) in batch.iter().zip(places) {
        texts.extend(Record::new(nonce, event, place?.as_deref()).encode());
    }
    Ok(texts)
}

/// Returns the place of the event's workspace. After a move or a removal the cache may still have the old
/// place.
async fn find_place(
    hierarchy: &Hierarchy,
    event: &Event,
) -> Result<Option<Arc<Lineage>>, Unavailable> {
    match event.kind {
        Kind::WorkspaceMoved | Kind::WorkspaceRemoved => {
            let place = hierarchy.reload_lineage(&event.workspace).await?;
            Ok(place.map(Arc::new))
        }
        _ => hierarchy.load_lineage(&event.workspace).await,
    }
}

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
        let wait = tokio::time::timeout(Duration::from_millis(20), queue.take(2));
        assert!(wait.await.is_err(), "nothing is there");
    }
}
