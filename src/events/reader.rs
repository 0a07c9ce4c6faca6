//! A reader of events: its place among the readers, its missed events, and the live ones.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::Events;
use super::audience::{frame_for, shared_frame_for};
use super::pace::Pace;
use super::places::Place;
use super::record::{Frame, Told};
use crate::hierarchy::Hierarchy;
use crate::identity::Proof;
use crate::metrics::{EventKind, EventReader};
use crate::rejection::Rejection;

/// Pause before a fact about access is read again.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The reader fell too far behind: the events that it missed are not in memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut;

/// A reader. Dropping it ends the subscription.
pub struct Reader {
    events: Arc<Events>,
    proof: Arc<Proof>,
    kind: EventReader,
    replay: VecDeque<Arc<Told>>,
    /// Missed events that are not kept.
    dropped: Vec<Arc<Told>>,
    live: broadcast::Receiver<Arc<Told>>,
    passing: broadcast::Receiver<Arc<Told>>,
    /// Received event, not decided yet.
    current: Option<Arc<Told>>,
    pace: Pace,
    place: Place,
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
        self.audience.enter(usize::MAX);
        self.metrics.event_readers(kind).inc();
        // From here on a drop releases the places.
        let mut reader = Reader {
            events: Arc::clone(self),
            proof,
            kind,
            replay: VecDeque::new(),
            dropped: Vec::new(),
            live: self.hub.silent(),
            passing: self.hub.passing(),
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
    pub async fn next(&mut self, hierarchy: &Hierarchy) -> Result<Frame, Cut> {
        loop {
            if let Some(dropped) = self.dropped.last() {
                match frame_for(hierarchy, &self.proof, dropped).await {
                    Ok(Some(_)) => {
                        self.dropped.clear();
                        return Ok(Told::gap().whole.clone());
                    }
                    Ok(None) => drop(self.dropped.pop()),
                    Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
                }
                continue;
            }
            let told = match self.current.take().or_else(|| self.replay.pop_front()) {
                Some(told) => told,
                None => match self.receive().await? {
                    Some(told) => told,
                    None => continue,
                },
            };
            let told = self.current.insert(told);
            let frame = if self.pace.is_alone() {
                frame_for(hierarchy, &self.proof, told).await
            } else {
                shared_frame_for(hierarchy, &self.proof, told).await
            };
            match frame {
                Ok(frame) => {
                    let (frame, passes) = (frame.cloned(), told.passes());
                    self.current = None;
                    let Some(frame) = frame else { continue };
                    if passes && !self.pace.passes() {
                        self.events.metrics.events_dropped(EventKind::Passing, 1);
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
    async fn receive(&mut self) -> Result<Option<Arc<Told>>, Cut> {
        // Yields to other tasks if there are many events.
        tokio::task::consume_budget().await;
        match self.live.try_recv() {
            Ok(told) => return Ok(Some(told)),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Closed | TryRecvError::Lagged(_)) => return Err(Cut),
        }
        match self.passing.try_recv() {
            Ok(told) => return Ok(Some(told)),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Lagged(missed)) => return Ok(self.missed(missed)),
            Err(TryRecvError::Closed) => return Err(Cut),
        }
        self.pace.rested().await;
        let received = tokio::select! {
            biased;
            told = self.live.recv() => told.map(Some).map_err(|_| Cut),
            told = self.passing.recv() => match told {
                Ok(told) => Ok(Some(told)),
                Err(RecvError::Lagged(missed)) => Ok(self.missed(missed)),
                Err(RecvError::Closed) => Err(Cut),
            },
        };
        let readers = self.events.audience.readers();
        self.pace.woken(readers, self.place.of_caller());
        received
    }

    fn missed<T>(&self, count: u64) -> Option<T> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.events
            .metrics
            .events_dropped(EventKind::Passing, count);
        None
    }

    /// Proof of its caller.
    pub fn proof(&self) -> &Arc<Proof> {
        &self.proof
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.events.metrics.event_readers(self.kind).dec();
        self.events.audience.leave();
    }
}
