//! The queue of chained records before SQL: in memory, and in the spool while SQL is down.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::MutexGuard;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::DRAFTS_MAX;
use super::chain::ChainedRecord;
use super::pace::Pace;
use super::spool::{Front, Spool};
use super::writer::{BATCH, TICK, Writer};
use access::workspace::Timestamp;
use kernel::metrics::AuditLoss;

/// Maximum number of chained records in memory.
const DIRECT_MAX: usize = 4096;

/// The state that the chaining and the writing task share.
#[derive(Default)]
pub(super) struct QueueState {
    /// Chained records that are not written yet. Empty while the spool holds records.
    pub(super) direct: VecDeque<ChainedRecord>,
    /// The number of records from `direct` that are being written, and the time of the first.
    pub(super) in_hand: (usize, Option<i64>),
    /// True if the last attempt to append to the spool failed.
    pub(super) unspoolable: bool,
    pub(super) spool: Arc<parking_lot::Mutex<Spool>>,
    /// True while all records go through the spool, until it is empty.
    pub(super) spooling: bool,
    /// The time at which the last record was chained. No more records follow.
    pub(super) over: Option<Instant>,
}

impl QueueState {
    pub(super) fn new(spool: Spool) -> Self {
        Self {
            spool: Arc::new(parking_lot::Mutex::new(spool)),
            ..Self::default()
        }
    }
}

impl Writer<'_> {
    /// Waits until the records in memory are below their bound. Meanwhile drafts wait in their queue.
    pub(super) async fn wait_for_room(&self, at_once: bool) -> MutexGuard<'_, QueueState> {
        loop {
            let state = self.state.lock().await;
            if at_once || state.spooling || state.direct.len() < DIRECT_MAX {
                return state;
            }
            drop(state);
            let _ = tokio::time::timeout(TICK, self.room.notified()).await;
            self.update_metrics().await;
        }
    }

    /// Returns the oldest records: from the spool, if it holds any, else removed from memory.
    pub(super) async fn take_batch(&self) -> QueuedBatch {
        let mut state = self.state.lock().await;
        if state.spooling {
            match read_front(&state.spool).await {
                Ok(front) => return QueuedBatch::Spool(front),
                Err(error) => {
                    tracing::error!(%error, "failed to read audit.spool_dir");
                    return QueuedBatch::Memory(Arc::default());
                }
            }
        }
        let count = state.direct.len().min(BATCH);
        let records: Vec<ChainedRecord> = state.direct.drain(..count).collect();
        state.in_hand = (count, records.first().map(|one| one.ms));
        self.room.notify_one();
        QueuedBatch::Memory(Arc::new(records))
    }

    pub(super) async fn finish_batch(&self, taken: QueuedBatch) {
        let mut state = self.state.lock().await;
        state.in_hand = (0, None);
        match taken {
            // To free the texts of a batch takes long, too.
            QueuedBatch::Memory(records) => {
                drop(state);
                let records = Arc::try_unwrap(records).unwrap_or_default();
                Pace::new(0).pieces(records).for_each(drop);
            }
            QueuedBatch::Spool(front) => {
                self.report_damage(self.audit.replica.as_str(), front.damaged);
                let empty = run_blocking(&state.spool, move |spool| {
                    spool.drop_front(&front);
                    spool.is_empty()
                });
                state.spooling = !empty.await.unwrap_or(false);
            }
        }
    }

    /// Counts and logs spooled records that can no longer be read.
    pub(super) fn report_damage(&self, replica: &str, damaged: u64) {
        if damaged > 0 {
            self.audit.count_lost(AuditLoss::Spool, damaged);
            tracing::error!(
                damaged,
                replica,
                "audit records in audit.spool_dir are damaged (their file is kept as .damaged) or were removed"
            );
        }
    }

    /// Returns records that could not be written to the queue. Returns true if the process is shutting
    /// down; the records are then on disk for the next start.
    pub(super) async fn return_batch(&self, taken: QueuedBatch) -> bool {
        let mut state = self.state.lock().await;
        state.in_hand = (0, None);
        if let QueuedBatch::Memory(records) = taken {
            // A write that timed out may still hold them.
            for record in Arc::unwrap_or_clone(records).into_iter().rev() {
                state.direct.push_front(record);
            }
            let direct: Vec<ChainedRecord> = state.direct.iter().cloned().collect();
            match append_to_spool(&state.spool, direct).await {
                Ok(()) => {
                    state.direct.clear();
                    state.spooling = true;
                    state.unspoolable = false;
                    self.room.notify_one();
                }
                Err(error) if state.over.is_some() => {
                    let last: Vec<ChainedRecord> = state.direct.drain(..).collect();
                    let all = last.len();
                    let kept = run_blocking(&state.spool, move |spool| spool.append_fitting(&last));
                    let count = (all - kept.await.unwrap_or(0)) as u64;
                    self.audit.metrics.audit.lost[AuditLoss::Spool].inc_by(count);
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
    pub(super) async fn check_spool(&self) {
        let spool = Arc::clone(&self.state.lock().await.spool);
        let tried = run_blocking(&spool, |spool| spool.check_folder()).await;
        if let Ok(Err(error)) = tried {
            let folder = self.audit.spool.0.display();
            tracing::warn!(%error, %folder, "audit.spool_dir is not writable; audit records will be lost while SQL is down");
        }
    }

    /// Updates the metrics of the queue: its length, its size and its age. Returns the pace of work on it.
    pub(super) async fn update_metrics(&self) -> Pace {
        let drafts = self.audit.drafts.as_ref();
        let drafts = drafts.map_or(0, |drafts| DRAFTS_MAX - drafts.capacity());
        let state = self.state.lock().await;
        let (spooled, bytes) = {
            let spool = state.spool.lock();
            (spool.records, spool.byte_count())
        };
        let oldest = state.direct.front().map(|record| record.ms);
        let oldest = match state.in_hand.1.or(oldest) {
            None if spooled > 0 => state.spool.lock().oldest,
            known => known,
        };
        let lag = oldest.map_or(Duration::ZERO, |ms| Timestamp::now().since(Timestamp(ms)));
        let metrics = &self.audit.metrics.audit;
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let in_memory = state.in_hand.0 + state.direct.len() + drafts;
        let waiting = spooled + in_memory as u64;
        metrics.waiting.set(number(waiting));
        metrics.spool_bytes.set(number(bytes));
        metrics.lag.set(lag.as_secs_f64());
        Pace::new(waiting)
    }
}

/// Records to be written to SQL.
pub(super) enum QueuedBatch {
    Memory(Arc<Vec<ChainedRecord>>),
    /// Records that stay in the spool until they are written.
    Spool(Front),
}

impl QueuedBatch {
    pub(super) fn records(&self) -> &Arc<Vec<ChainedRecord>> {
        match self {
            Self::Memory(records) => records,
            Self::Spool(front) => &front.records,
        }
    }
}

type SharedSpool = Arc<parking_lot::Mutex<Spool>>;

pub(super) async fn append_to_spool(
    spool: &SharedSpool,
    records: Vec<ChainedRecord>,
) -> io::Result<()> {
    run_blocking(spool, move |spool| spool.append(records.iter())).await?
}

pub(super) async fn read_front(spool: &SharedSpool) -> io::Result<Front> {
    run_blocking(spool, |spool| spool.read_front(BATCH)).await?
}

/// Runs `work` on a blocking thread.
///
/// # Errors
/// If it panicked.
pub(super) async fn run_blocking<T: Send + 'static>(
    spool: &SharedSpool,
    work: impl FnOnce(&mut Spool) -> T + Send + 'static,
) -> io::Result<T> {
    let spool = Arc::clone(spool);
    Ok(spawn_blocking(move || work(&mut spool.lock())).await?)
}
