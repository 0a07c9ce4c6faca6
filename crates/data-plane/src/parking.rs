//! Calls that wait for agents that sleep: their bounds, and their order. Those of one workspace are sent in the order
//! of their arrival at this replica: the first of them looks for the agent, and each that was sent lets the next one
//! look.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use kernel::config::{Config, Live};
use kernel::ids::WorkspaceId;
use kernel::metrics::{Capacity, HoldOutcome, InProgress, Metrics};
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::{Account, Bound, Share, ShareRefusal, Shares};
use stores::coherence::{Coherence, Invalidation};

/// Longest time for which a call that is being sent keeps the next one back: an agent may not accept its connection.
const TURN_MAX: Duration = Duration::from_secs(1);

/// `Retry-After` for a call that was not parked, or that waited in vain.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(15);

/// Number of wakers after which old times of their requests are removed.
const DUE_SWEEP: usize = 1024;

/// Parked calls of this replica.
pub(super) struct Parking {
    config: Live,
    metrics: Arc<Metrics>,
    queues: Mutex<HashMap<WorkspaceId, CallQueue>>,
    /// Time before which no waker of the workspace is called by this replica.
    due: Mutex<HashMap<WorkspaceId, Instant>>,
    places: Arc<Shares>,
    bytes: Arc<Shares>,
}

/// Queue of the parked calls to one workspace, by their tickets.
#[derive(Default)]
struct CallQueue {
    last: u64,
    places: BTreeMap<u64, QueueEntry>,
}

enum QueueEntry {
    /// It waits, and is notified when it may look.
    Waiting(Arc<Notify>),
    /// Its agent is awake, and its caller has its share of the places: calls of others may look, too.
    PassedOver(Account),
    /// It is being sent, since this time.
    Sending(Instant),
}

impl CallQueue {
    /// True if no call before this one waits, or is about to be sent. Those of one `account` keep their order.
    fn is_next(&self, ticket: u64, account: Account) -> bool {
        let mut before = self.places.range(..ticket);
        before.all(|(_, place)| match place {
            QueueEntry::Waiting(_) => false,
            QueueEntry::PassedOver(of) => *of != account,
            QueueEntry::Sending(since) => since.elapsed() > TURN_MAX,
        })
    }

    fn notify_first(&self) {
        let first = self.places.values().find_map(|place| match place {
            QueueEntry::Waiting(notify) => Some(notify),
            QueueEntry::PassedOver(_) | QueueEntry::Sending(_) => None,
        });
        if let Some(notify) = first {
            notify.notify_one();
        }
    }
}

impl Parking {
    /// Creates it without calls. The first call of a workspace that changes is notified.
    pub(super) fn new(config: Live, metrics: Arc<Metrics>, coherence: &Coherence) -> Arc<Self> {
        let parking = Arc::new(Self {
            config,
            metrics,
            queues: Mutex::default(),
            due: Mutex::default(),
            places: Arc::default(),
            bytes: Arc::default(),
        });
        let weak = Arc::downgrade(&parking);
        // After the directory's own, which has dropped the entry by then.
        coherence.on_invalidation(move |what| {
            if let Some(parking) = weak.upgrade() {
                parking.notify_changed(&what);
            }
            std::future::ready(())
        });
        parking
    }

    fn notify_changed(&self, what: &Invalidation) {
        let queues = self.queues.lock();
        match what {
            Invalidation::Address(id) | Invalidation::Workspace(id) | Invalidation::Lineage(id) => {
                if let Some(queue) = queues.get(id) {
                    queue.notify_first();
                }
            }
            Invalidation::Everything => queues.values().for_each(CallQueue::notify_first),
            Invalidation::Credential(_)
            | Invalidation::Grant(..)
            | Invalidation::Revocations
            | Invalidation::Stops => {}
        }
    }

    /// Parks a call of `account` with a body of `bytes`.
    ///
    /// # Errors
    /// `workspace_restarting` if as many calls, or bytes, wait as may.
    pub(super) fn park(
        self: &Arc<Self>,
        id: &WorkspaceId,
        account: Account,
        bytes: usize,
    ) -> Result<ParkedCall, Rejection> {
        let config = self.config.get();
        let (wake, body) = (&config.wake, config.limits.request_bytes.bytes());
        let full = |key, limit: u64| {
            move |full| {
                self.metrics.waking.parked_refused.inc();
                no_room(key, limit, full)
            }
        };
        let places = Bound::with_places(wake.max_parked);
        let place = self.places.take(account, 1, places);
        let place = place.map_err(full("wake.max_parked", wake.max_parked as u64))?;
        let room = wake.max_parked_bytes;
        let bound = Bound::with_least(room.bytes(), body);
        let body = self.bytes.take(account, bytes, bound);
        let body = body.map_err(full("wake.max_parked_bytes", room.0))?;
        let notify = Arc::<Notify>::default();
        let mut queues = self.queues.lock();
        let queue = queues.entry(id.clone()).or_default();
        queue.last += 1;
        let ticket = queue.last;
        queue
            .places
            .insert(ticket, QueueEntry::Waiting(Arc::clone(&notify)));
        drop(queues);
        let waking = &self.metrics.waking;
        Ok(ParkedCall {
            ticket: Ticket {
                parking: Arc::clone(self),
                id: id.clone(),
                number: ticket,
            },
            account,
            notify,
            _room: [place, body],
            _counted: [
                InProgress::begin(&waking.parked),
                InProgress::begin_many(&waking.parked_bytes, bytes),
            ],
        })
    }

    /// Claims a call of the waker of `id` for this replica. True if it may be called now; the next claim succeeds after
    /// `cool_down`.
    pub(super) fn claim_wake(&self, id: &WorkspaceId, cool_down: Duration) -> bool {
        let now = Instant::now();
        let mut due = self.due.lock();
        if due.get(id).is_some_and(|at| *at > now) {
            return false;
        }
        if due.len() >= DUE_SWEEP {
            due.retain(|_, at| *at > now);
        }
        due.insert(id.clone(), now + cool_down);
        true
    }

    /// Lets the waker of `id` be called again after `pause`: another replica has called it.
    pub(super) fn postpone_wake(&self, id: &WorkspaceId, pause: Duration) {
        let mut due = self.due.lock();
        due.insert(id.clone(), Instant::now() + pause);
    }
}

/// The place of a call in its queue. Dropping it lets the next call look for the agent.
struct Ticket {
    parking: Arc<Parking>,
    id: WorkspaceId,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queues = self.parking.queues.lock();
        if let Some(queue) = queues.get_mut(&self.id) {
            queue.places.remove(&self.number);
            queue.notify_first();
            if queue.places.is_empty() {
                queues.remove(&self.id);
            }
        }
    }
}

/// A parked call. Dropping it takes it out of its queue.
pub(super) struct ParkedCall {
    ticket: Ticket,
    account: Account,
    notify: Arc<Notify>,
    _room: [Share; 2],
    _counted: [InProgress; 2],
}

impl ParkedCall {
    /// True if the call may look for its agent.
    pub(super) fn is_next(&self) -> bool {
        let queues = self.ticket.parking.queues.lock();
        let queue = queues.get(&self.ticket.id);
        queue.is_none_or(|queue| queue.is_next(self.ticket.number, self.account))
    }

    /// Lets calls of others look for the agent, too: the caller of this one has its share of the places.
    pub(super) fn pass_over(&self) {
        let mut queues = self.ticket.parking.queues.lock();
        if let Some(queue) = queues.get_mut(&self.ticket.id) {
            let passed = QueueEntry::PassedOver(self.account);
            queue.places.insert(self.ticket.number, passed);
            queue.notify_first();
        }
    }

    /// Resolves when the call may have become the next one, or the workspace has changed.
    pub(super) async fn wait_notified(&self) {
        self.notify.notified().await;
    }

    /// Takes the turn of the call: it is sent now.
    pub(super) fn take_turn(self) -> Turn {
        let mut queues = self.ticket.parking.queues.lock();
        if let Some(queue) = queues.get_mut(&self.ticket.id) {
            let sends = QueueEntry::Sending(Instant::now());
            queue.places.insert(self.ticket.number, sends);
        }
        drop(queues);
        Turn {
            _ticket: Box::new(self.ticket),
        }
    }
}

/// The turn of a call that was parked. Dropped once its request was sent, or is not sent: then the next call has its
/// turn.
pub(super) struct Turn {
    _ticket: Box<Ticket>,
}

fn no_room(key: &'static str, limit: u64, full: ShareRefusal) -> Rejection {
    let what = match full {
        ShareRefusal::All => "as many calls to agents that sleep wait as may",
        ShareRefusal::Share | ShareRefusal::Each => {
            "calls of this caller to agents that sleep take half of what others leave, and no more of them may wait"
        }
    };
    let message = format!("{what} ({key} = {limit}); try again shortly");
    Rejection::new(Reason::WorkspaceRestarting, message)
        .with_retry_after(RETRY_AFTER)
        .with_fact("limit", limit)
        .with_delivery(Delivery::NotSent)
}

/// Calls that wait for agents that refuse connections, of a replica.
#[derive(Default)]
pub(super) struct WaitingCalls {
    calls: Arc<Shares>,
    bytes: Arc<Shares>,
}

/// A call that waits. Dropping it frees its room.
pub(super) struct WaitingCall<'a> {
    _room: [Share; 2],
    _waits: InProgress,
    capacity: &'a Capacity,
    outcome: HoldOutcome,
}

impl WaitingCalls {
    /// Takes room for one more call; `None` if there is none.
    pub(super) fn take_room<'a>(
        &self,
        account: Account,
        bytes: usize,
        config: &Config,
        capacity: &'a Capacity,
    ) -> Option<WaitingCall<'a>> {
        let (upstream, body) = (&config.upstream, config.limits.request_bytes.bytes());
        let places = Bound::with_places(upstream.hold_calls);
        let place = self.calls.take(account, 1, places);
        let bound = Bound::with_least(upstream.hold_bytes.bytes(), body);
        let room = place.and_then(|place| Ok([place, self.bytes.take(account, bytes, bound)?]));
        let Ok(room) = room else {
            capacity.hold[HoldOutcome::Full].inc();
            return None;
        };
        Some(WaitingCall {
            _room: room,
            _waits: InProgress::begin(&capacity.held),
            capacity,
            outcome: HoldOutcome::Left,
        })
    }
}

impl WaitingCall<'_> {
    /// Ends the wait.
    pub(super) fn end(mut self, outcome: HoldOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.capacity.hold[self.outcome].inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::config::Config;

    fn parking(places: usize) -> Arc<Parking> {
        let mut config: Config =
            toml::from_str(include_str!("../../../config/default.toml")).unwrap();
        config.wake.max_parked = places;
        let metrics = Arc::new(Metrics::new());
        Arc::new(Parking {
            config: config.into(),
            metrics,
            queues: Mutex::default(),
            due: Mutex::default(),
            places: Arc::default(),
            bytes: Arc::default(),
        })
    }

    fn id() -> WorkspaceId {
        WorkspaceId::parse("target").unwrap()
    }

    fn park(parking: &Arc<Parking>, account: u64) -> Result<ParkedCall, Rejection> {
        parking.park(&id(), Account::without_group(account), 10)
    }

    #[tokio::test(start_paused = true)]
    async fn calls_have_their_turns_in_order_and_one_that_left_has_none() {
        let parking = parking(100);
        let [first, second, third, fourth] =
            [1, 2, 3, 4].map(|account| park(&parking, account).unwrap());
        assert!(first.is_next() && !second.is_next());
        drop(second);
        assert!(!third.is_next(), "the first still waits");
        let turn = first.take_turn();
        assert!(!third.is_next(), "the first is being sent");
        drop(turn);
        third.wait_notified().await;
        assert!(third.is_next() && !fourth.is_next());
        let turn = third.take_turn();
        tokio::time::advance(TURN_MAX).await;
        assert!(!fourth.is_next());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(
            fourth.is_next(),
            "one that cannot be sent keeps no other back"
        );
        drop(turn);
        drop(fourth);
        assert!(parking.queues.lock().is_empty());
        assert_eq!(parking.metrics.waking.parked.get(), 0);
        assert_eq!(parking.metrics.waking.parked_bytes.get(), 0);
    }

    #[test]
    fn a_call_without_a_place_at_its_agent_lets_others_look() {
        let parking = parking(100);
        let calls = [1, 2, 3, 1].map(|account| park(&parking, account).unwrap());
        let [first, second, third, own] = calls;
        first.pass_over();
        assert!(first.is_next() && second.is_next() && !third.is_next());
        let turn = second.take_turn();
        assert!(
            first.is_next() && !third.is_next(),
            "the second is being sent"
        );
        drop(turn);
        assert!(third.is_next());
        drop(third);
        assert!(!own.is_next(), "behind the first of its caller");
        drop(first);
        assert!(own.is_next());
    }

    #[test]
    fn the_room_is_shared_and_bounded() {
        let parking = parking(4);
        let held = [1, 1, 2].map(|account| park(&parking, account).unwrap());
        assert_eq!(parking.metrics.waking.parked_bytes.get(), 30);
        for account in [1, 2] {
            let refusal = park(&parking, account).err().unwrap();
            assert_eq!(refusal.reason, Reason::WorkspaceRestarting);
            assert!(
                refusal.message.contains("wake.max_parked = 4"),
                "{}",
                refusal.message
            );
            assert_eq!(refusal.retry_after, Some(15));
        }
        let last = park(&parking, 3).unwrap();
        assert!(park(&parking, 4).is_err());
        assert_eq!(parking.metrics.waking.parked_refused.get(), 3);
        drop((held, last));
        let large = 64 << 20;
        let one = parking
            .park(&id(), Account::without_group(1), 20 << 20)
            .unwrap();
        let refusal = parking
            .park(&id(), Account::without_group(2), large)
            .err()
            .unwrap();
        assert!(refusal.message.contains("wake.max_parked_bytes"));
        drop(one);
        assert!(parking.queues.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waker_is_due_once_in_its_cool_down() {
        let parking = parking(1);
        let cool_down = Duration::from_secs(30);
        assert!(parking.claim_wake(&id(), cool_down));
        assert!(!parking.claim_wake(&id(), cool_down));
        tokio::time::advance(cool_down).await;
        assert!(parking.claim_wake(&id(), cool_down));
        parking.postpone_wake(&id(), Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(parking.claim_wake(&id(), cool_down));
    }
}
