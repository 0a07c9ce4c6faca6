//! Queue of calls that wait for a place at their target: first come, first served, and each leaves with its caller.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::target::Terms;
use super::{CallKind, NoSlot, Slot, Target};
use crate::rejection::Rejection;
use crate::shares::{Account, Bound, Share, ShareRefusal, Shares};

/// Calls that wait for a place.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<VecDeque<QueueEntry>>,
    /// Length of `waiting`, read without its lock.
    len: AtomicUsize,
    /// Places of the queue by caller.
    places: Arc<Shares>,
    /// Number of the next call.
    next: AtomicUsize,
}

/// A call that waits.
#[derive(Debug)]
struct QueueEntry {
    number: usize,
    account: Account,
    kind: CallKind,
    terms: Arc<Terms>,
    answer: oneshot::Sender<Result<Slot, Rejection>>,
    _place: Share,
}

/// A place in the queue. Dropping it leaves the queue.
pub(super) struct Ticket {
    target: Arc<Target>,
    number: usize,
    answer: oneshot::Receiver<Result<Slot, Rejection>>,
}

impl Ticket {
    /// Waits for a place at the target. `None` is never seen: a call is answered before it leaves the queue.
    pub(super) async fn wait(&mut self) -> Option<Result<Slot, Rejection>> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.target.queue.remove(self.number);
    }
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Puts a call at the end of the queue of `target`, and serves the queue: a place may have become free meanwhile.
    ///
    /// # Errors
    /// [`ShareRefusal`], by `terms.queue`.
    pub(super) fn enter(
        target: &Arc<Target>,
        account: Account,
        kind: CallKind,
        terms: &Arc<Terms>,
    ) -> Result<Ticket, ShareRefusal> {
        let queue = &target.queue;
        let place = queue
            .places
            .take(account, 1, Bound::with_places(terms.queue))?;
        let number = queue.next.fetch_add(1, Ordering::Relaxed);
        let (answer, receiver) = oneshot::channel();
        let mut waiting = queue.lock();
        waiting.push_back(QueueEntry {
            number,
            account,
            kind,
            terms: Arc::clone(terms),
            answer,
            _place: place,
        });
        queue.len.store(waiting.len(), Ordering::Release);
        drop(waiting);
        target.serve_queue();
        Ok(Ticket {
            target: Arc::clone(target),
            number,
            answer: receiver,
        })
    }

    fn remove(&self, number: usize) {
        let mut waiting = self.lock();
        let at = waiting.iter().position(|one| one.number == number);
        let left = at.and_then(|at| waiting.remove(at));
        self.len.store(waiting.len(), Ordering::Release);
        drop(waiting);
        drop(left);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<QueueEntry>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target {
    /// Gives free places to the calls that wait, in their order. A call whose caller has its share is passed over.
    pub(super) fn serve_queue(self: &Arc<Self>) {
        while self.queue.len() > 0 {
            let mut waiting = self.queue.lock();
            let served = waiting.iter().enumerate().find_map(|(at, one)| {
                match Slot::take(self, &one.terms, one.account, one.kind) {
                    Ok(slot) => Some((at, Ok(slot))),
                    Err(NoSlot { may_wait: true, .. }) => None,
                    Err(NoSlot { why, .. }) => Some((at, Err(why))),
                }
            });
            let Some((at, answer)) = served else { return };
            let one = waiting.remove(at);
            self.queue.len.store(waiting.len(), Ordering::Release);
            drop(waiting);
            // After a caller that left, the slot is dropped here, without the lock.
            let unused = one.map(|one| one.answer.send(answer));
            drop(unused);
        }
    }
}
