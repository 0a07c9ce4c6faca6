//! Chains drafts and writes them to SQL. Two tasks share a small state: one chains records and queues them,
//! the other writes them, oldest first. Only the second task writes this chain to SQL, so rows are in the
//! order of the chain, and a row exists only if all rows before it do.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::Audit;
use super::anchor::Anchor;
use super::chain::{Chain, ChainedRecord, Statement};
use super::pace::Pace;
use super::peer_spools::PeerEnds;
use super::queue::{QueueState, QueuedBatch, append_to_spool};
use super::record::{Draft, EventType};
use super::spool::{Spool, full_spool_error};
use super::table::ChainRow;
use kernel::deadline::ticks;
use kernel::metrics::AuditLoss;
use kernel::telemetry::Chain as Causes;

/// Maximum number of drafts chained at once, and of records written at once.
pub(super) const BATCH: usize = 2000;

/// Delay before drafts are chained. Chaining takes most of a record's time, so it is done often: on a machine of few
/// cores a call may wait for the whole batch.
const CHAIN_AFTER: Duration = Duration::from_millis(10);

/// Number of records that are written without a delay. Few, since a commit is one piece of work; where the disk is
/// slow, more have gathered meanwhile.
const ENOUGH: usize = 500;

/// Delay before a small batch is written: a transaction for each record would cost more than the record.
const WRITE_AFTER: Duration = Duration::from_millis(190);

/// Number of records after which a checkpoint is written.
const CHECKPOINT_RECORDS: i64 = 1000;

/// Time after which a checkpoint is written, if there was a record.
pub(super) const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);

/// Interval of periodic work.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// Minimum interval between marks without retention.
const MARKS_APART: Duration = Duration::from_secs(30 * 24 * 3600);

/// Delay between two attempts while the database is down.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Maximum time to write the last records to SQL. It is below `FLUSH_MAX`, so that they can still
/// be spooled.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// Space in the spool reserved for one record. Most are smaller.
const RECORD_BYTES: u64 = 1024;

/// Space in the spool reserved for the end of the chain: the count of lost records, the stop and a
/// checkpoint.
const CLOSING_BYTES: u64 = 32 * 1024;

/// Minimum interval between two log lines about lost records.
const LOSS_TOLD_EVERY: Duration = Duration::from_secs(60);

pub(super) struct Writer<'a> {
    pub(super) audit: &'a Audit,
    pub(super) state: Mutex<QueueState>,
    /// Notifies the writing task of new records.
    more: Notify,
    /// Notifies the chaining task of free space.
    pub(super) room: Notify,
    /// The ends of other chains, as last read.
    pub(super) peer_ends: parking_lot::Mutex<PeerEnds>,
    /// Keeps the written end of the chain outside SQL.
    anchor: Anchor,
}

/// The state of the chaining task.
#[derive(Clone)]
struct ChainBuilder {
    chain: Chain,
    /// Records since the last checkpoint.
    unsigned: i64,
    signed_at: Instant,
    /// The time of the last log line about lost records.
    loss_told: Option<Instant>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(audit: &'a Audit) -> Self {
        let (folder, bytes_max) = &audit.spool;
        let spool = Spool::new(folder, audit.replica.as_str(), *bytes_max);
        Self {
            audit,
            state: Mutex::new(QueueState::new(spool)),
            more: Notify::new(),
            room: Notify::new(),
            peer_ends: parking_lot::Mutex::default(),
            anchor: Anchor::new(),
        }
    }

    /// Runs until [`Audit::flush`] is called and all records are written or spooled.
    pub(super) async fn run(&self, drafts: mpsc::Receiver<Draft>) {
        let own = async { tokio::join!(self.chain_drafts(drafts), self.write_batches()) };
        let metrics = &self.audit.metrics;
        let anchored = async {
            match &self.audit.anchor {
                Some(place) => self.anchor.run(place, metrics).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = own => {}
            () = self.adopt_spools() => {}
            () = anchored => {}
        }
        if let Some(place) = &self.audit.anchor {
            self.anchor.write_last_end(place, metrics).await;
        }
    }

    async fn chain_drafts(&self, mut drafts: mpsc::Receiver<Draft>) {
        let mut chaining = ChainBuilder {
            chain: Chain::new(self.audit.replica.as_str()),
            unsigned: 0,
            signed_at: Instant::now(),
            loss_told: None,
        };
        self.check_spool().await;
        let begins_with = self.audit.begins_with.clone();
        let mut batch = vec![Draft::new(EventType::AuditStarted).with_detail(begins_with)];
        let mut tick = ticks(TICK);
        let mut over = false;
        let mut pace = Pace::new(0);
        let mut refusals_at = Instant::now();
        loop {
            self.queue_batch(&mut chaining, &mut batch, pace).await;
            if over {
                self.state.lock().await.over = Some(Instant::now());
                return self.more.notify_one();
            }
            tokio::select! {
                biased;
                () = self.audit.ending.notified() => over = true,
                _ = drafts.recv_many(&mut batch, BATCH) => {
                    if batch.len() < BATCH {
                        sleep(CHAIN_AFTER).await;
                    }
                }
                _ = tick.tick() => {}
            }
            if over {
                // Closed first: later drafts are counted as lost.
                drafts.close();
            }
            while batch.len() < BATCH || over {
                match drafts.try_recv() {
                    Ok(draft) => batch.push(draft),
                    Err(_) => break,
                }
            }
            if over || refusals_at.elapsed() >= TICK {
                refusals_at = Instant::now();
                batch.extend(self.audit.refusals.take_drafts());
            }
            if over {
                let exchanges = self.audit.metrics.open_exchanges.get();
                let changes = self.audit.pending_changes.load(Ordering::Relaxed);
                let running = usize::try_from(exchanges).unwrap_or(0) + changes;
                let last = Draft::new(EventType::AuditStopped);
                batch.push(last.with_detail(json!({"running": running})));
            }
            pace = self.update_metrics().await;
        }
    }

    /// Chains a batch, with a record of losses and a checkpoint if they are due, and queues it in memory or
    /// in the spool.
    async fn queue_batch(
        &self,
        chaining: &mut ChainBuilder,
        batch: &mut Vec<Draft>,
        mut pace: Pace,
    ) {
        let ends = batch
            .last()
            .is_some_and(|last| last.event_type == EventType::AuditStopped);
        let mut state = self.wait_for_room(ends).await;
        let fits = spool_capacity(&state);
        // The last record has reserved space.
        let last = if ends { batch.pop() } else { None };
        if batch.len() > fits {
            chaining.log_loss(&full_spool_error());
            let lost = batch.len() - fits;
            self.audit.count_lost(AuditLoss::Spool, lost as u64);
            batch.truncate(fits);
        }
        if fits == 0 && !ends {
            return;
        }
        batch.extend(last);
        let lost = self.audit.lost.swap(0, Ordering::Relaxed);
        let before = chaining.clone();
        let untold = self.peer_ends.lock().news.clone();
        let mut records = Vec::with_capacity(batch.len() + 4);
        if lost > 0 {
            let draft = Draft::new(EventType::AuditLost).with_detail(json!({"count": lost}));
            records.push(chaining.push(draft));
        }
        let drafts = batch.len() as u64;
        for draft in pace.pieces(batch.drain(..)) {
            records.push(chaining.push(draft));
            if chaining.unsigned >= CHECKPOINT_RECORDS {
                self.append_checkpoint(chaining, &mut records);
            }
        }
        let since = chaining.signed_at.elapsed();
        let due = since >= CHECKPOINT_EVERY && chaining.unsigned > 0;
        if due || ends || since >= self.audit.idle_max() {
            self.append_checkpoint(chaining, &mut records);
        }
        if records.is_empty() {
            return;
        }
        let counts = count_events(&records);
        if !state.spooling {
            state.direct.extend(records);
        } else if let Err(error) = append_to_spool(&state.spool, records).await {
            // The records are discarded, so their sequence numbers are used again.
            *chaining = before;
            self.audit.lost.fetch_add(lost, Ordering::Relaxed);
            self.audit.count_lost(AuditLoss::Spool, drafts);
            self.peer_ends.lock().restore_news(untold);
            if ends {
                tracing::error!(%error, drafts, lost, "the last audit records are lost: audit.spool_dir does not accept them");
            }
            return chaining.log_loss(&error);
        }
        for (event, count) in counts {
            let records = &self.audit.metrics.audit.records;
            records.with_label_values(&[event.as_str()]).inc_by(count);
            if event == EventType::AuditCheckpoint {
                self.audit.metrics.audit.checkpoints.inc_by(count);
            }
        }
        self.more.notify_one();
    }

    /// Appends a checkpoint: the signature over all records before it, and the ends of other chains.
    fn append_checkpoint(&self, chaining: &mut ChainBuilder, records: &mut Vec<ChainedRecord>) {
        let signed = match chaining.chain.sign_checkpoint(&self.audit.keys) {
            Ok(signed) => signed,
            Err(error) => {
                // Retried with the next record.
                tracing::error!(error = %Causes(&error), "failed to sign the audit");
                return;
            }
        };
        let news = std::mem::take(&mut self.peer_ends.lock().news);
        let detail = json!({"seen": news, "statement": signed});
        let draft = Draft::new(EventType::AuditCheckpoint).with_detail(detail);
        records.push(chaining.push(draft));
        chaining.unsigned = 0;
        chaining.signed_at = Instant::now();
    }

    /// Resolves when no more records follow, with the time at which the last one was chained.
    async fn wait_for_end(&self) -> Instant {
        loop {
            if let Some(since) = self.state.lock().await.over {
                return since;
            }
            self.more.notified().await;
        }
    }

    /// Resolves when the time for SQL at shutdown is over. The remaining records have to be spooled then.
    async fn wait_for_deadline(&self) {
        sleep_until(self.wait_for_end().await + LAST_WRITES).await;
    }

    /// Waits until there are enough records for a transaction, at most [`WRITE_AFTER`]. Does not wait for the first
    /// record, or at shutdown.
    async fn wait_for_batch(&self) {
        let until = Instant::now() + WRITE_AFTER;
        loop {
            {
                let state = self.state.lock().await;
                let few = (1..ENOUGH).contains(&state.direct.len());
                if !few || state.spooling || state.over.is_some() {
                    return;
                }
            }
            if timeout_at(until, self.more.notified()).await.is_err() {
                return;
            }
        }
    }

    /// Writes queued records, oldest first, until all are written and no more follow.
    async fn write_batches(&self) {
        let replica = self.audit.replica.as_str();
        let mut stated = Statement::of_empty_chain(replica);
        let mut looked: Option<Instant> = None;
        let mut failing = false;
        // A process that exits before the schema exists does not wait for it.
        tokio::select! {
            () = self.audit.stored.table.wait_for_schema() => {}
            _ = self.wait_for_end() => {}
        }
        loop {
            if looked.is_none_or(|at| at.elapsed() >= CHECKPOINT_EVERY) {
                tokio::select! {
                    seen = self.refresh_chains(&stated) => looked = seen.then(Instant::now),
                    () = self.wait_for_deadline() => {}
                }
            }
            self.wait_for_batch().await;
            let taken = self.take_batch().await;
            if taken.records().is_empty() {
                // An empty segment may be left after a failed append.
                let spooled = matches!(taken, QueuedBatch::Spool(_));
                self.finish_batch(taken).await;
                if !spooled && self.state.lock().await.over.is_some() {
                    return;
                }
                let _ = tokio::time::timeout(TICK, self.more.notified()).await;
                continue;
            }
            let first = self.audit.first.load(Ordering::Relaxed);
            if first > stated.first {
                stated = stated.cut_before(first);
            }
            let put = tokio::select! {
                put = self.write_rows(&stated, taken.records()) => put,
                () = self.wait_for_deadline() => Err("the process ends before it is done".to_owned()),
            };
            match put {
                Ok((now, statement)) => {
                    let is_checkpoint =
                        |one: &ChainedRecord| one.has_type(EventType::AuditCheckpoint);
                    let has_checkpoint = taken.records().iter().any(is_checkpoint);
                    self.anchor.set_end(&now, &statement, has_checkpoint);
                    if failing {
                        failing = false;
                        tracing::info!("audit records are written to SQL again");
                    }
                    stated = now;
                    log_checkpoints(replica, taken.records());
                    self.finish_batch(taken).await;
                }
                Err(error) => {
                    self.audit.metrics.audit.write_failures.inc();
                    if !failing {
                        failing = true;
                        tracing::warn!(%error, "failed to write audit records to SQL; retrying");
                    }
                    let over = self.return_batch(taken).await;
                    if over {
                        return;
                    }
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Writes records and the new signed statement of their chain in one transaction, and returns the
    /// statement in both forms. `stated` is the statement before.
    pub(super) async fn write_rows(
        &self,
        stated: &Statement,
        records: &Arc<Vec<ChainedRecord>>,
    ) -> Result<(Statement, String), String> {
        let spacing = self.audit.retention().map_or(MARKS_APART, |kept| kept / 16);
        let now = stated.with_records(records, spacing);
        let row = ChainRow::sign(&now, &self.audit.keys);
        let row = row.map_err(|error| Causes(&error).to_string())?;
        let pace = self.update_metrics().await;
        let put = self.audit.stored.table.put_records(records, &row, pace);
        put.await
            .map(|()| (now, row.statement))
            .map_err(|error| Causes(&error).to_string())
    }
}

/// Returns the number of drafts that fit into the spool, beside the end of the chain.
fn spool_capacity(state: &QueueState) -> usize {
    if !state.spooling {
        return usize::MAX;
    }
    let room = state
        .spool
        .lock()
        .free_bytes()
        .saturating_sub(CLOSING_BYTES);
    usize::try_from(room / RECORD_BYTES).unwrap_or(usize::MAX)
}

impl ChainBuilder {
    /// Logs a loss at most once per `LOSS_TOLD_EVERY`: losses come in floods.
    fn log_loss(&mut self, error: &io::Error) {
        let told = self
            .loss_told
            .is_some_and(|at| at.elapsed() < LOSS_TOLD_EVERY);
        if !told {
            self.loss_told = Some(Instant::now());
            tracing::error!(
                %error,
                "audit records are being lost: SQL is down and audit.spool_dir accepts no more; an AUDIT_LOST record will report their number"
            );
        }
    }

    fn push(&mut self, draft: Draft) -> ChainedRecord {
        self.unsigned += 1;
        self.chain.push(draft)
    }
}

/// Returns how many records there are of each event.
fn count_events(records: &[ChainedRecord]) -> Vec<(EventType, u64)> {
    let mut counts: Vec<(EventType, u64)> = Vec::new();
    for record in records {
        match counts.iter_mut().find(|(event, _)| record.has_type(*event)) {
            Some((_, count)) => *count += 1,
            None => {
                counts.extend(EventType::parse(&record.record.event_type).map(|event| (event, 1)))
            }
        }
    }
    counts
}

/// Logs checkpoints once they are stored, so that a log elsewhere names records that the chain must
/// contain.
fn log_checkpoints(replica: &str, records: &[ChainedRecord]) {
    for record in records {
        if record.has_type(EventType::AuditCheckpoint) {
            let (seq, hash) = (record.seq, hex::encode(record.hash));
            tracing::info!(replica, seq, hash, "Audit checkpoint");
        }
    }
}
