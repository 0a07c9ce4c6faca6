//! A reader of events: its place among the readers, its missed events, and the live ones.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::Events;
use super::audience::{frame_for, shared_frame_for};
use super::pace::Pace;
use super::record::{Frame, PublishedEvent};
use super::slots::ReaderSlot;
use access::hierarchy::Hierarchy;
use access::identity::Proof;
use kernel::metrics::{EventKind, EventReader};
use kernel::rejection::Rejection;

/// Pause before a fact about access is read again.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The reader fell too far behind: the events that it missed are not in memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderLagged;

/// A reader. Dropping it ends the subscription.
pub struct Reader {
    events: Arc<Events>,
    proof: Arc<Proof>,
    kind: EventReader,
    replay: VecDeque<Arc<PublishedEvent>>,
    /// Missed events that are not kept.
    dropped: Vec<Arc<PublishedEvent>>,
    live: broadcast::Receiver<Arc<PublishedEvent>>,
    passing: broadcast::Receiver<Arc<PublishedEvent>>,
    /// Received event, not decided yet.
    current: Option<Arc<PublishedEvent>>,
    pace: Pace,
    place: ReaderSlot,
}

impl Events {
    /// Opens a reader for the principal of `proof`: after the event `after`, or from now on.
    ///
    /// # Errors
    /// `overloaded` and `rate_limited` beyond `[events]`.
    pub async fn open(
        self: &Arc<Self>,
        proof: Arc<Proof>,
        kind: EventReader,
        after: Option<&str>,
    ) -> Result<Reader, Rejection> {
        let place = self.places.take(proof.account)?;
        self.audience.add_reader(usize::MAX);
        self.metrics.event_readers[kind].inc();
        // From here on a drop releases the places.
        let mut reader = Reader {
            events: Arc::clone(self),
            proof,
            kind,
            replay: VecDeque::new(),
            dropped: Vec::new(),
            live: self.hub.live.subscribe(),
            passing: self.hub.passing.subscribe(),
            current: None,
            pace: Pace::new(place.of_caller()),
            place,
        };
        let resumed = self.hub.resume(after).await;
        (reader.replay, reader.live) = (resumed.replay, resumed.live);
        reader.dropped = resumed.dropped;
        Ok(reader)
    }
}

impl Reader {
    /// Waits for the next visible event. Cancel-safe: no event is lost.
    ///
    /// # Errors
    /// When it fell too far behind.
    pub async fn next(&mut self, hierarchy: &Hierarchy) -> Result<Frame, ReaderLagged> {
        loop {
            if let Some(dropped) = self.dropped.last() {
                match frame_for(hierarchy, &self.proof, dropped).await {
                    Ok(Some(_)) => {
                        self.dropped.clear();
                        return Ok(PublishedEvent::new_gap().whole.clone());
                    }
                    Ok(None) => drop(self.dropped.pop()),
                    Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
                }
                continue;
            }
            let event = match self.current.take().or_else(|| self.replay.pop_front()) {
                Some(event) => event,
                None => match self.receive_event().await? {
                    Some(event) => event,
                    None => continue,
                },
            };
            let event = self.current.insert(event);
            let frame = if self.pace.is_alone() {
                frame_for(hierarchy, &self.proof, event).await
            } else {
                shared_frame_for(hierarchy, &self.proof, event).await
            };
            match frame {
                Ok(frame) => {
                    let (frame, passes) = (frame.cloned(), event.is_passing());
                    self.current = None;
                    let Some(frame) = frame else { continue };
                    if passes && !self.pace.try_pass() {
                        self.events
                            .metrics
                            .count_dropped_events(EventKind::Passing, 1);
                        continue;
                    }
                    return Ok(frame);
                }
                // The reader waits for the store, and is cut if that takes too long.
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Waits for the next event; `None`: passing events were missed. Does not wait if there is one.
    async fn receive_event(&mut self) -> Result<Option<Arc<PublishedEvent>>, ReaderLagged> {
        // Yields to other tasks if there are many events.
        tokio::task::consume_budget().await;
        match self.live.try_recv() {
            Ok(event) => return Ok(Some(event)),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Closed | TryRecvError::Lagged(_)) => return Err(ReaderLagged),
        }
        match self.passing.try_recv() {
            Ok(event) => return Ok(Some(event)),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Lagged(missed)) => return Ok(self.count_missed(missed)),
            Err(TryRecvError::Closed) => return Err(ReaderLagged),
        }
        self.pace.wait_for_turn().await;
        let received = tokio::select! {
            biased;
            event = self.live.recv() => event.map(Some).map_err(|_| ReaderLagged),
            event = self.passing.recv() => match event {
                Ok(event) => Ok(Some(event)),
                Err(RecvError::Lagged(missed)) => Ok(self.count_missed(missed)),
                Err(RecvError::Closed) => Err(ReaderLagged),
            },
        };
        let readers = self.events.audience.reader_count();
        self.pace.record_wake(readers, self.place.of_caller());
        received
    }

    fn count_missed<T>(&self, count: u64) -> Option<T> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.events
            .metrics
            .count_dropped_events(EventKind::Passing, count);
        None
    }

    /// Proof of its caller.
    pub fn proof(&self) -> &Arc<Proof> {
        &self.proof
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.events.metrics.event_readers[self.kind].dec();
        self.events.audience.remove_reader();
    }
}
