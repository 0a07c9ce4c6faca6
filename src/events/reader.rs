//! One reader: its place among those there may be, what it missed, and what comes.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::Events;
use super::audience::frame_for;
use super::record::{Frame, Told};
use crate::config::Live;
use crate::hierarchy::Hierarchy;
use crate::identity::Proof;
use crate::metrics::EventReader;
use crate::rejection::{Reason, Rejection};

/// Pause before a fact that decides who may see an event is asked for again.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The reader fell too far behind: what it missed is not in memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut;

/// Someone who watches. Dropping it ends that.
pub struct Reader {
    events: Arc<Events>,
    proof: Arc<Proof>,
    kind: EventReader,
    replay: VecDeque<Arc<Told>>,
    live: broadcast::Receiver<Arc<Told>>,
    passing: broadcast::Receiver<Arc<Told>>,
    /// Taken, and not decided yet.
    current: Option<Arc<Told>>,
}

impl Events {
    /// Lets whom `proof` proves watch: what comes after the event `after`, or from now on.
    ///
    /// # Errors
    /// `overloaded` and `rate_limited` beyond `[events]`.
    pub async fn open(
        self: &Arc<Self>,
        proof: Arc<Proof>,
        kind: EventReader,
        after: Option<&str>,
    ) -> Result<Reader, Rejection> {
        self.places.take(proof.rate_key)?;
        self.interest.come();
        self.metrics.event_readers(kind).inc();
        // From here on dropping it gives back what was taken.
        let mut reader = Reader {
            events: Arc::clone(self),
            proof,
            kind,
            replay: VecDeque::new(),
            live: self.hub.silent(),
            passing: self.hub.passing(),
            current: None,
        };
        let resumed = self.hub.resume(after).await;
        (reader.replay, reader.live) = (resumed.replay, resumed.live);
        Ok(reader)
    }
}

impl Reader {
    /// Waits for the next event that it may see. May be dropped and called again without losing any.
    ///
    /// # Errors
    /// When it fell too far behind.
    pub async fn next(&mut self, hierarchy: &Hierarchy) -> Result<Frame, Cut> {
        loop {
            let told = match self.current.take().or_else(|| self.replay.pop_front()) {
                Some(told) => told,
                None => match self.receive().await? {
                    Some(told) => told,
                    None => continue,
                },
            };
            let told = self.current.insert(told);
            match frame_for(hierarchy, &self.proof, told).await {
                Ok(frame) => {
                    let frame = frame.cloned();
                    self.current = None;
                    if let Some(frame) = frame {
                        return Ok(frame);
                    }
                }
                // It waits for the store, and is cut if that takes too long.
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Waits for what comes next; `None`: some of what passes was missed.
    async fn receive(&mut self) -> Result<Option<Arc<Told>>, Cut> {
        tokio::select! {
            biased;
            told = self.live.recv() => told.map(Some).map_err(|_| Cut),
            told = self.passing.recv() => match told {
                Ok(told) => Ok(Some(told)),
                Err(RecvError::Lagged(missed)) => {
                    let missed = usize::try_from(missed).unwrap_or(usize::MAX);
                    self.events.metrics.events_dropped(true, missed);
                    Ok(None)
                }
                Err(RecvError::Closed) => Err(Cut),
            },
        }
    }

    /// Who watches.
    pub fn proof(&self) -> &Arc<Proof> {
        &self.proof
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.events.metrics.event_readers(self.kind).dec();
        self.events.interest.leave();
        self.events.places.free(self.proof.rate_key);
    }
}

/// How many may watch.
pub(super) struct Places {
    config: Live,
    taken: AtomicUsize,
    by_caller: Mutex<HashMap<u64, usize>>,
}

impl Places {
    pub(super) fn new(config: Live) -> Self {
        Self {
            config,
            taken: AtomicUsize::new(0),
            by_caller: Mutex::default(),
        }
    }

    fn take(&self, caller: u64) -> Result<(), Rejection> {
        let (max, max_per_caller) = {
            let config = self.config.get();
            (
                config.events.connections,
                config.events.connections_per_caller,
            )
        };
        let mut by_caller = self.by_caller();
        let own = by_caller.get(&caller).copied().unwrap_or(0);
        if max_per_caller <= own {
            let message = "this credential has as many open event streams here as it may have \
                (events.connections_per_caller); close one first";
            let rejection = Rejection::new(Reason::RateLimited, message);
            return Err(rejection
                .fact("limit", max_per_caller)
                .retry_after(Duration::from_secs(5)));
        }
        if max <= self.taken.load(Ordering::Relaxed) {
            let message = "the gateway is at its limit of event streams (events.connections)";
            let rejection = Rejection::new(Reason::Overloaded, message);
            return Err(rejection.retry_after(Duration::from_secs(1)));
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        by_caller.insert(caller, own + 1);
        Ok(())
    }

    fn free(&self, caller: u64) {
        let mut by_caller = self.by_caller();
        self.taken.fetch_sub(1, Ordering::Relaxed);
        let left = by_caller.get(&caller).copied().unwrap_or(1) - 1;
        if left == 0 {
            by_caller.remove(&caller);
        } else {
            by_caller.insert(caller, left);
        }
    }

    fn by_caller(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        // Each step leaves the counts whole, so a panic elsewhere cannot have broken them.
        self.by_caller
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn places_are_counted_by_caller_and_over_all() {
        let mut config: Config = toml::from_str(crate::config::load::DEFAULT).unwrap();
        config.events.connections = 3;
        config.events.connections_per_caller = 2;
        let places = Places::new(config.into());
        let refused = |caller| places.take(caller).unwrap_err().reason;
        places.take(1).unwrap();
        places.take(1).unwrap();
        assert_eq!(refused(1), Reason::RateLimited);
        places.take(2).unwrap();
        assert_eq!(refused(3), Reason::Overloaded);
        places.free(1);
        assert_eq!(places.by_caller().len(), 2);
        places.take(3).unwrap();
        for caller in [1, 2, 3] {
            places.free(caller);
        }
        assert!(places.by_caller().is_empty());
        places.take(1).unwrap();
    }
}
