//! Who called whom, and who changed what (contract §10): a record for every exchange and every change,
//! in chains that show what somebody did to them later. Never content.
//!
//! Whoever has something to record hands over a [`Draft`] and goes on; nothing here makes anybody wait.
//! [`writer`] puts drafts into the chain of this replica and writes them to SQL in batches, by way of
//! [`spool`] while SQL is away; what there is no room for is counted, and the chain says so.

mod anchor;
mod chain;
pub mod change;
mod each_once;
mod ends;
mod export;
mod month;
mod others;
mod query;
mod record;
mod refusals;
mod retention;
mod row;
mod spool;
mod table;
mod unreadable;
mod verify;
mod waiting;
pub mod words;
mod writer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Notify, mpsc};

pub use self::anchor::statements as anchored_statements;
pub use self::ends::ChainEnd;
pub use self::export::{Exported, Line};
pub use self::query::{Cursor, Filter, PAGE, PAGE_MAX, Records};
pub use self::record::{DONE, Draft, EventType, Record};
pub use self::table::ChainRow;
pub use self::verify::{Problem, Report, Scope, Verifier};

use self::refusals::Refusals;
use self::writer::Writer;
use crate::config::{AuditAnchor, Live};
use crate::db::Db;
use crate::ids::ReplicaId;
use crate::metrics::{AuditLoss, Metrics};
use crate::trust::Keys;

/// Drafts that wait to be chained at most: three seconds of a gateway at its best, about 10 MiB.
const DRAFTS_MAX: usize = 32_768;

/// How long the last records may take to be written, before the process ends.
const FLUSH_MAX: Duration = Duration::from_secs(4);

/// A gateway to which nothing happens makes no checkpoint more often than this.
const IDLE_MIN: Duration = Duration::from_secs(60);

/// The room.
pub struct Audit {
    config: Live,
    replica: ReplicaId,
    keys: Arc<Keys>,
    metrics: Arc<Metrics>,
    /// What was recorded.
    pub stored: Records,
    /// `None`: nothing is recorded.
    drafts: Option<mpsc::Sender<Draft>>,
    /// Refusals of callers that proved nothing, in this second.
    refusals: Refusals,
    /// Drafts that did not fit, and that no record tells of yet.
    lost: AtomicU64,
    /// The first record that is kept of this replica's chain.
    first: AtomicI64,
    spool: (PathBuf, u64),
    /// Where the end of the chain is kept besides.
    anchor: Option<AuditAnchor>,
    waiting: Mutex<Option<mpsc::Receiver<Draft>>>,
    /// What the first record says of this run.
    begins_with: Value,
    /// Changes that are in progress.
    owed: AtomicUsize,
    ending: Notify,
    ended: Notify,
}

/// A change whose record is not there yet.
pub struct Owed(Arc<Audit>);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.owed.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Audit {
    /// Assembles the room; asks nothing. `begins_with`: what the first record is to say of this run, an object.
    pub fn new(
        config: Live,
        db: Db,
        keys: Arc<Keys>,
        metrics: Arc<Metrics>,
        replica: ReplicaId,
        begins_with: Value,
    ) -> Arc<Self> {
        let at_start = config.hold();
        let settings = &at_start.audit;
        let (drafts, waiting) = mpsc::channel(DRAFTS_MAX);
        for event in EventType::ALL {
            metrics.audit.records_of(event.word());
        }
        Arc::new(Self {
            replica,
            keys,
            metrics,
            stored: Records::new(db),
            drafts: settings.enabled.then_some(drafts),
            refusals: Refusals::default(),
            lost: AtomicU64::new(0),
            first: AtomicI64::new(1),
            anchor: settings.anchor.clone(),
            spool: (settings.spool_dir.clone(), settings.spool_bytes.0),
            waiting: Mutex::new(settings.enabled.then_some(waiting)),
            begins_with,
            owed: AtomicUsize::new(0),
            ending: Notify::new(),
            ended: Notify::new(),
            config,
        })
    }

    /// Whether anything is recorded: who would only make drafts for nothing may ask.
    pub fn is_on(&self) -> bool {
        self.drafts.is_some()
    }

    /// A change begins, of which a record will tell. Dropping what is returned says that it does, or that there is none.
    pub fn owe(self: &Arc<Self>) -> Owed {
        self.owed.fetch_add(1, Ordering::Relaxed);
        Owed(Arc::clone(self))
    }

    /// Takes what happened. Never waits; what does not fit is lost, and counted.
    pub fn record(&self, draft: Draft) {
        let Some(drafts) = &self.drafts else {
            return;
        };
        // Those have no place in the queue, so that a flood of them leaves it to callers that are known.
        let taken = if Refusals::takes(&draft) {
            self.refusals.count(draft)
        } else {
            drafts.try_send(draft).is_ok()
        };
        if !taken {
            self.lose(AuditLoss::Queue, 1);
        }
    }

    fn lose(&self, place: AuditLoss, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
        self.metrics.audit.lost(place, count);
    }

    /// How long records are kept; `None`: for ever.
    fn retention(&self) -> Option<Duration> {
        let kept = self.config.get().audit.retention;
        (!kept.is_zero()).then_some(kept)
    }

    /// After so long a gateway makes a checkpoint also when nothing happened, so that what its last one says
    /// of other chains is not older than these need to be remembered.
    fn idle_max(&self) -> Duration {
        let day = Duration::from_secs(24 * 3600);
        self.retention()
            .map_or(day, |kept| kept.clamp(IDLE_MIN, day))
    }

    /// Chains and writes until [`Audit::flush`], or until it is dropped. Once.
    pub async fn run(&self) {
        let waiting = self
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(waiting) = waiting else {
            return std::future::pending().await;
        };
        let writer = Writer::new(self);
        tokio::select! {
            () = writer.run(waiting) => {}
            () = self.prune() => {}
        }
        self.ended.notify_one();
        std::future::pending().await
    }

    /// Writes the last records and the last checkpoint: before the end. What cannot be written waits in
    /// the spool for the next start.
    pub async fn flush(&self) {
        if self.drafts.is_none() {
            return;
        }
        self.ending.notify_one();
        if tokio::time::timeout(FLUSH_MAX, self.ended.notified())
            .await
            .is_err()
        {
            tracing::warn!("The last audit records were not written in time");
        }
    }
}
