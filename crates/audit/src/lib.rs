//! The audit: one record for each exchange and each change, in signed hash chains that reveal later
//! tampering. Records hold no content of messages (`docs/reference/audit.md`).
//!
//! The caller passes a [`Draft`] to `Audit::record`, which never waits. [`writer`] adds drafts to the
//! chain of this replica and writes them to SQL in batches. While SQL is down, records go through the
//! [`spool`] on disk. Drafts that do not fit in either are counted, and an `AUDIT_LOST` record reports the
//! number.

mod anchor;
mod chain;
mod chain_heads;
mod chain_tree;
pub mod change;
mod corrupt_rows;
mod export;
mod filter;
pub mod filter_values;
mod pace;
mod peer_spools;
mod query;
mod queue;
mod record;
mod refusals;
mod retention;
mod row;
mod spool;
mod table;
pub mod usage;
mod verdicts;
mod verify;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};

pub use self::anchor::anchored_statements;
pub use self::chain_heads::ChainEnd;
pub use self::export::{Export, Line};
pub use self::filter::{Filter, RecordPosition, encode_cursor, parse_cursor};
pub use self::query::{PAGE, PAGE_MAX, Records};
pub use self::record::{ChainMembers, DONE, Detail, Draft, EventType, Record};
pub use self::table::ChainRow;
pub use self::verdicts::Verdicts;
pub use self::verify::{
    AnchorUse, FileError, Problem, Report, Scope, Verifier, format_report, verify_file,
};

use self::refusals::Refusals;
use self::usage::Usage;
use self::writer::Writer;
use kernel::config::{AuditAnchor, Live};
use kernel::ids::ReplicaId;
use kernel::metrics::{AuditLoss, Metrics};
use stores::db::Db;
use trust::Keys;

/// Maximum number of drafts that wait to be chained: three seconds at full load, about 10 MiB.
const DRAFTS_MAX: usize = 32_768;

/// Maximum time to write the last records before the process exits.
const FLUSH_MAX: Duration = Duration::from_secs(4);

/// Minimum interval between checkpoints of an idle gateway.
const IDLE_MIN: Duration = Duration::from_secs(60);

/// The audit of this replica.
pub struct Audit {
    config: Live,
    replica: ReplicaId,
    keys: Arc<Keys>,
    metrics: Arc<Metrics>,
    /// The stored records.
    pub stored: Records,
    /// The sums of the calls among them.
    pub usage: Usage,
    /// `None` if the audit is disabled.
    drafts: Option<mpsc::Sender<Draft>>,
    /// Rejections of unauthenticated callers in the current second.
    refusals: Refusals,
    /// Drafts that were dropped and that no record reports yet.
    lost: AtomicU64,
    /// The sequence number of the first retained record of this replica's chain.
    first: AtomicI64,
    spool: (PathBuf, u64),
    /// The additional place for the signed end of the chain (`audit.anchor`).
    anchor: Option<AuditAnchor>,
    waiting: Mutex<Option<mpsc::Receiver<Draft>>>,
    /// The `detail` of the first record of this run.
    begins_with: Value,
    /// Changes in progress.
    pending_changes: AtomicUsize,
    ending: Notify,
    ended: Notify,
}

/// A change without a written record yet.
pub struct PendingChange(Arc<Audit>);

impl Drop for PendingChange {
    fn drop(&mut self) {
        self.0.pending_changes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Audit {
    /// Assembles the audit without I/O. `begins_with` is an object: the `detail` of the first record of
    /// this run.
    pub fn new(
        config: Live,
        db: Db,
        keys: Arc<Keys>,
        metrics: Arc<Metrics>,
        replica: ReplicaId,
        begins_with: Value,
    ) -> Arc<Self> {
        let at_start = config.snapshot();
        let settings = &at_start.audit;
        let (drafts, waiting) = mpsc::channel(DRAFTS_MAX);
        for event in EventType::ALL {
            metrics.audit.records.with_label_values(&[event.as_str()]);
        }
        Arc::new(Self {
            replica,
            keys,
            metrics,
            stored: Records::new(db.clone()),
            usage: Usage::new(db),
            drafts: settings.enabled.then_some(drafts),
            refusals: Refusals::default(),
            lost: AtomicU64::new(0),
            first: AtomicI64::new(1),
            anchor: settings.anchor.clone(),
            spool: (settings.spool_dir.clone(), settings.spool_bytes.0),
            waiting: Mutex::new(settings.enabled.then_some(waiting)),
            begins_with,
            pending_changes: AtomicUsize::new(0),
            ending: Notify::new(),
            ended: Notify::new(),
            config,
        })
    }

    /// True if records are written. Callers may check it before they build a draft.
    pub fn is_on(&self) -> bool {
        self.drafts.is_some()
    }

    /// Registers a change in progress that will have a record. The caller drops the guard when the record
    /// is made, or when there is none to make.
    pub fn begin_change(self: &Arc<Self>) -> PendingChange {
        self.pending_changes.fetch_add(1, Ordering::Relaxed);
        PendingChange(Arc::clone(self))
    }

    /// Queues a draft. Never waits; a draft that does not fit is dropped and counted.
    pub fn record(&self, draft: Draft) {
        let Some(drafts) = &self.drafts else {
            return;
        };
        let draft = draft.with_operator();
        // Unauthenticated rejections bypass the queue, so that a flood of them leaves it to authenticated
        // callers.
        let taken = if Refusals::is_refusal(&draft) {
            self.refusals.count_refusal(draft)
        } else {
            drafts.try_send(draft).is_ok()
        };
        if !taken {
            self.count_lost(AuditLoss::Queue, 1);
        }
    }

    fn count_lost(&self, place: AuditLoss, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
        self.metrics.audit.lost[place].inc_by(count);
    }

    /// Returns the retention of records, or `None` if they are kept forever.
    fn retention(&self) -> Option<Duration> {
        let kept = self.config.get().audit.retention;
        (!kept.is_zero()).then_some(kept)
    }

    /// Returns the maximum interval between checkpoints of an idle gateway. It is at most the retention, so
    /// that the ends of other chains in the last checkpoint are not older than those chains are remembered.
    fn idle_max(&self) -> Duration {
        let day = Duration::from_secs(24 * 3600);
        self.retention()
            .map_or(day, |kept| kept.clamp(IDLE_MIN, day))
    }

    /// Chains and writes records until [`Audit::flush`] or until it is dropped. Call it once.
    pub async fn run(&self) {
        let waiting = self.waiting.lock().take();
        let Some(waiting) = waiting else {
            return std::future::pending().await;
        };
        let writer = Writer::new(self);
        tokio::select! {
            () = writer.run(waiting) => {}
            () = self.run_retention() => {}
            () = retention::run_usage_retention(&self.stored.table, &self.config) => {}
        }
        self.ended.notify_one();
        std::future::pending().await
    }

    /// Writes the last records and the last checkpoint at shutdown. Records that cannot be written stay in
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
            tracing::warn!("timed out writing the last audit records");
        }
    }
}
