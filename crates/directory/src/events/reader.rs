//! A reader of events: its place among the readers, its missed events, and the live ones.
//!
//! Limits on wake-ups of readers and on their passing events: for all of them together and for each caller, so
//! that many readers do not slow down calls.
//!
//! Limits on concurrent readers: in all, and of one caller.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Instant, sleep_until};

use super::Events;
use super::audience::frame_for;
use super::record::{Frame, PublishedEvent};
use access::hierarchy::Hierarchy;
use access::identity::Proof;
use kernel::config::{Config, Live};
use kernel::metrics::{EventKind, EventReader};
use kernel::rejection::{Reason, Rejection};
use kernel::shares::{Account, Bound, Share, ShareRefusal, Shares};

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
            pace: Pace::new(place.caller_amount()),
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
                match frame_for(hierarchy, &self.proof, dropped, false).await {
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
            let is_shared = !self.pace.is_alone();
            match frame_for(hierarchy, &self.proof, event, is_shared).await {
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
        self.pace.record_wake(readers, self.place.caller_amount());
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

/// Maximum wake-ups a second of all readers of a replica. A delayed reader gets more events at once.
const WAKES_PER_SECOND: u32 = 5_000;

/// Shortest pause: timers are no finer.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Longest pause, for any number of readers.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Passing events a second for all readers of one caller.
const PASSING_PER_SECOND: f64 = 10_000.0;

/// Pace of one reader.
pub(super) struct Pace {
    /// Earliest time of the next wake-up.
    rests_until: Instant,
    /// Readers of its caller at its last wake-up.
    of_caller: usize,
    /// Passing events left, as of `counted_at`.
    left: f64,
    counted_at: Instant,
}

impl Pace {
    /// Pace of a reader of a caller with `of_caller` readers.
    pub(super) fn new(of_caller: usize) -> Self {
        let now = Instant::now();
        let mut pace = Self {
            rests_until: now,
            of_caller,
            left: 0.0,
            counted_at: now,
        };
        pace.left = pace.per_second();
        pace
    }

    /// True if its caller had no other reader at its last wake-up.
    pub(super) fn is_alone(&self) -> bool {
        self.of_caller <= 1
    }

    /// Waits until it may be woken.
    pub(super) async fn wait_for_turn(&self) {
        if Instant::now() < self.rests_until {
            sleep_until(self.rests_until).await;
        }
    }

    /// Records a wake-up of one of `readers`, of which its caller has `of_caller`.
    pub(super) fn record_wake(&mut self, readers: usize, of_caller: usize) {
        self.of_caller = of_caller;
        let readers = u32::try_from(readers).unwrap_or(u32::MAX);
        let pause = Duration::from_secs(1) * readers / WAKES_PER_SECOND;
        if PAUSE_MIN <= pause {
            self.rests_until = Instant::now() + pause.min(PAUSE_MAX);
        }
    }

    /// Counts one event; true if it may pass.
    pub(super) fn try_pass(&mut self) -> bool {
        let now = Instant::now();
        let per_second = self.per_second();
        let gained = per_second * now.duration_since(self.counted_at).as_secs_f64();
        // At most a second's worth at once.
        self.left = (self.left + gained).min(per_second.max(1.0));
        self.counted_at = now;
        let passes = self.left >= 1.0;
        if passes {
            self.left -= 1.0;
        }
        passes
    }

    fn per_second(&self) -> f64 {
        let readers = u32::try_from(self.of_caller.max(1)).unwrap_or(u32::MAX);
        PASSING_PER_SECOND / f64::from(readers)
    }
}

/// Limits of one kind of slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotLimits {
    /// Description for messages: `event streams`.
    pub what: &'static str,
    /// Section of the configuration that has `connections` and `connections_per_caller`.
    pub section: &'static str,
    /// Maximum in all.
    pub connections: usize,
    /// Maximum of one caller.
    pub connections_per_caller: usize,
}

/// Slots for the readers of this replica.
pub struct ReaderSlots {
    config: Live,
    bounds: fn(&Config) -> SlotLimits,
    taken: Arc<Shares>,
}

/// A slot for one reader. Dropping it frees the slot.
pub type ReaderSlot = Share;

impl ReaderSlots {
    /// Creates the slots; `bounds` reads their limits from the configuration in force.
    pub fn new(config: Live, bounds: fn(&Config) -> SlotLimits) -> Arc<Self> {
        Arc::new(Self {
            config,
            bounds,
            taken: Arc::default(),
        })
    }

    /// Takes a slot for the caller of `account`, which is a [`Proof::account`](access::identity::Proof::account).
    ///
    /// # Errors
    /// `overloaded` and `rate_limited`.
    pub fn take(&self, account: Account) -> Result<ReaderSlot, Rejection> {
        let bounds = (self.bounds)(&self.config.get());
        let bound = Bound {
            each: bounds.connections_per_caller,
            ..Bound::with_places(bounds.connections)
        };
        let taken = self.taken.take(account, 1, bound);
        taken.map_err(|full| bounds.rejection_for(full))
    }
}

impl SlotLimits {
    fn rejection_for(&self, full: ShareRefusal) -> Rejection {
        let (what, section) = (self.what, self.section);
        let (reason, seconds, message) = match full {
            ShareRefusal::Each => {
                let message = format!(
                    "this caller has as many open {what} here as it may have \
                     ({section}.connections_per_caller); close one first"
                );
                (Reason::RateLimited, 5, message)
            }
            ShareRefusal::Share => {
                let message = format!(
                    "open {what} of this caller are half of what others leave of {section}.connections; \
                     close one first"
                );
                (Reason::Overloaded, 1, message)
            }
            ShareRefusal::All => {
                let message =
                    format!("the gateway is at its limit of {what} ({section}.connections)");
                (Reason::Overloaded, 1, message)
            }
        };
        let mut rejection = Rejection::new(reason, message);
        if full == ShareRefusal::Each {
            rejection = rejection.with_fact("limit", self.connections_per_caller);
        }
        rejection.with_retry_after(Duration::from_secs(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readers_of_one_caller_share_what_passes_and_all_share_the_wake_ups() {
        let passed = |pace: &mut Pace| (0..20_000).take_while(|_| pace.try_pass()).count();
        assert_eq!(passed(&mut Pace::new(1)), 10_000);
        let mut one_of_many = Pace::new(500);
        assert_eq!(passed(&mut one_of_many), 20);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(passed(&mut one_of_many), 10);
        let began = Instant::now();
        for (readers, pause) in [(1, 0), (4, 0), (300, 60), (5_000, 1_000), (50_000, 1_000)] {
            let began = Instant::now();
            one_of_many.record_wake(readers, 1);
            one_of_many.wait_for_turn().await;
            let rested = began.elapsed();
            assert!(
                rested.as_millis().abs_diff(pause) <= 1,
                "{readers}: {rested:?}"
            );
        }
        assert!(began.elapsed() < Duration::from_secs(3));
    }
}

#[cfg(test)]
mod slots_tests {
    use super::*;

    #[test]
    fn places_are_counted_by_caller_and_over_all() {
        let config: Config = toml::from_str(kernel::config::load::DEFAULT).unwrap();
        let places = ReaderSlots::new(config.into(), |_| SlotLimits {
            what: "things",
            section: "x",
            connections: 6,
            connections_per_caller: 2,
        });
        let take = |caller| places.take(Account::without_group(caller));
        let refused = |caller| take(caller).unwrap_err();
        let (first, second) = (take(1).unwrap(), take(1).unwrap());
        assert_eq!(refused(1).reason, Reason::RateLimited);
        assert!(refused(1).message.contains("open things here"));
        let others = [2, 2, 3].map(|caller| take(caller).unwrap());
        assert_eq!(refused(3).reason, Reason::Overloaded);
        assert!(refused(3).message.contains("half of what others leave"));
        let last = take(4).unwrap();
        assert_eq!(refused(5).reason, Reason::Overloaded);
        assert!(
            refused(5)
                .message
                .ends_with("limit of things (x.connections)")
        );
        drop((first, second, others, last));
        take(1).unwrap();
    }
}
