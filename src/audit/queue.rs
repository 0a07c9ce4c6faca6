//! The queue of chained records before SQL: in memory, and in the spool while SQL is down.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::MutexGuard;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::DRAFTS_MAX;
use super::chain::Chained;
use super::spool::{Front, Spool};
use super::writer::{BATCH, TICK, Writer};
use crate::metrics::AuditLoss;
use crate::workspace::Timestamp;

/// Maximum number of chained records in memory.
const DIRECT_MAX: usize = 4096;

/// The state that the chaining and the writing task share.
pub(super) struct State {
    /// Chained records that are not written yet. Empty while the spool holds records.
    pub(super) direct: VecDeque<Chained>,
    /// The number of records from `direct` that are being written, and the time of the first.
    pub(super) in_hand: (usize, Option<i64>),
    /// True if the last attempt to append to the spool failed.
    pub(super) unspoolable: bool,
    pub(super) spool: Arc<std::sync::Mutex<Spool>>,
    /// True while all records go through the spool, until it is empty.
    pub(super) spooling: bool,
    /// The time at which the last record was chained. No more records follow.
    pub(super) over: Option<Instant>,
}

impl State {
    pub(super) fn new(spool: Spool) -> Self {
        Self {
            direct: VecDeque::new(),
            in_hand: (0, None),
            unspoolable: false,
            spool: Arc::new(std::sync::Mutex::new(spool)),
            spooling: false,
            over: None,
        }
    }
}

impl Writer<'_> {
    /// Waits until the records in memory are below their bound. Meanwhile drafts wait in their queue.
    pub(super) async fn has_room(&self, at_once: bool) -> MutexGuard<'_, State> {
        loop {
            let state = self.state.lock().await;
            if at_once || state.spooling || state.direct.len() < DIRECT_MAX {
                return state;
            }
            drop(state);
            let _ = tokio::time::timeout(TICK, self.room.notified()).await;
            self.measure().await;
        }
    }

    /// Returns the oldest records: from the spool, if it holds any, else removed from memory.
    pub(super) async fn take(&self) -> Taken {
        let mut state = self.state.lock().await;
        if state.spooling {
            match front(&state.spool).await {
                Ok(front) => return Taken::Spool(front),
                Err(error) => {
                    tracing::error!(%error, "failed to read audit.spool_dir");
                    return Taken::Memory(Arc::default());
                }
            }
        }
        let count = state.direct.len().min(BATCH);
        let records: Vec<Chained> = state.direct.drain(..count).collect();
        state.in_hand = (count, records.first().map(|one| one.ms));
        self.room.notify_one();
        Taken::Memory(Arc::new(records))
    }

    pub(super) async fn done(&self, taken: Taken) {
        let mut state = self.state.lock().await;
        state.in_hand = (0, None);
        if let Taken::Spool(front) = taken {
            self.tell_of_damage(self.audit.replica.as_str(), front.damaged);
            let spool = Arc::clone(&state.spool);
            let empty = on_disk(spool, move |spool| {
                spool.drop_front(&front);
                spool.is_empty()
            });
            state.spooling = !empty.await.unwrap_or(false);
        }
    }

    /// Counts and logs spooled records that can no longer be read.
    pub(super) fn tell_of_damage(&self, replica: &str, damaged: u64) {
        if damaged > 0 {
            self.audit.lose(AuditLoss::Spool, damaged);
            tracing::error!(
                damaged,
                replica,
                "audit records in audit.spool_dir are damaged (their file is kept as .damaged) or were removed"
            );
        }
    }

    /// Returns records that could not be written to the queue. Returns true if the process is shutting
    /// down; the records are then on disk for the next start.
    pub(super) async fn put_back(&self, taken: Taken) -> bool {
        let mut state = self.state.lock().await;
        state.in_hand = (0, None);
        if let Taken::Memory(records) = taken {
            // A write that timed out may still hold them.
            for record in Arc::unwrap_or_clone(records).into_iter().rev() {
                state.direct.push_front(record);
            }
            let direct: Vec<Chained> = state.direct.iter().cloned().collect();
            match append(&state.spool, direct).await {
                Ok(()) => {
                    state.direct.clear();
                    state.spooling = true;
                    state.unspoolable = false;
                    self.room.notify_one();
                }
                Err(error) if state.over.is_some() => {
                    let last: Vec<Chained> = state.direct.drain(..).collect();
                    let all = last.len();
                    let kept = on_disk(Arc::clone(&state.spool), move |spool| {
                        spool.append_some(&last)
                    });
                    let count = (all - kept.await.unwrap_or(0)) as u64;
                    self.audit.metrics.audit.lost(AuditLoss::Spool, count);
                    tracing::error!(%error, count, "audit records are lost: neither SQL nor audit.spool_dir accepts them");
                }
                // They stay in memory, and the drafts behind them in their queue.
                Err(error) => {
                    if !std::mem::replace(&mut state.unspoolable, true) {
                        tracing::warn!(%error, "audit.spool_dir accepts no audit records; they wait in memory, and are lost if it fills up or the process exits");
                    }
                }
            }
        }
        state.over.is_some()
    }

    /// Warns at startup if the spool cannot be written to.
    pub(super) async fn try_spool(&self) {
        let spool = Arc::clone(&self.state.lock().await.spool);
        let tried = on_disk(spool, |spool| spool.try_folder()).await;
        if let Some(Err(error)) = tried {
            let folder = self.audit.spool.0.display();
            tracing::warn!(%error, %folder, "audit.spool_dir is not writable; audit records will be lost while SQL is down");
        }
    }

    /// Updates the metrics of the queue: its length, its size and its age.
    pub(super) async fn measure(&self) {
        let drafts = self.audit.drafts.as_ref();
        let drafts = drafts.map_or(0, |drafts| DRAFTS_MAX - drafts.capacity());
        let state = self.state.lock().await;
        let (spooled, bytes) = {
            let spool = lock(&state.spool);
            (spool.records(), spool.bytes())
        };
        let oldest = state.direct.front().map(|record| record.ms);
        let oldest = match state.in_hand.1.or(oldest) {
            None if spooled > 0 => lock(&state.spool).oldest(),
            known => known,
        };
        let lag = oldest.map_or(Duration::ZERO, |ms| Timestamp::now().since(Timestamp(ms)));
        let metrics = &self.audit.metrics.audit;
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let in_memory = state.in_hand.0 + state.direct.len() + drafts;
        metrics.waiting.set(number(spooled + in_memory as u64));
        metrics.spool_bytes.set(number(bytes));
        metrics.lag.set(lag.as_secs_f64());
    }
}

/// Records to be written to SQL.
pub(super) enum Taken {
    Memory(Arc<Vec<Chained>>),
    /// Records that stay in the spool until they are written.
    Spool(Front),
}

impl Taken {
    pub(super) fn records(&self) -> &Arc<Vec<Chained>> {
        match self {
            Self::Memory(records) => records,
            Self::Spool(front) => &front.records,
        }
    }
}

type OnDisk = Arc<std::sync::Mutex<Spool>>;

pub(super) async fn append(spool: &OnDisk, records: Vec<Chained>) -> std::io::Result<()> {
    let spool = Arc::clone(spool);
    let appended = on_disk(spool, move |spool| spool.append(records.iter()));
    appended
        .await
        .unwrap_or_else(|| Err(std::io::ErrorKind::Other.into()))
}

pub(super) async fn front(spool: &OnDisk) -> std::io::Result<Front> {
    let front = on_disk(Arc::clone(spool), |spool| spool.front(BATCH));
    front
        .await
        .unwrap_or_else(|| Err(std::io::ErrorKind::Other.into()))
}

/// Runs `work` on a blocking thread. Returns `None` if it panicked.
pub(super) async fn on_disk<T: Send + 'static>(
    spool: OnDisk,
    work: impl FnOnce(&mut Spool) -> T + Send + 'static,
) -> Option<T> {
    spawn_blocking(move || work(&mut lock(&spool))).await.ok()
}

pub(super) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
