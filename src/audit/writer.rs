//! From drafts to rows. Two tasks share a small state: one chains and puts where there is room, one
//! writes what is there, oldest first. SQL is asked by nobody else, so the order of a chain is the order
//! of its rows, and a row is there only if all before it are.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::Audit;
use super::anchor::Anchor;
use super::chain::{Chain, Chained, Statement};
use super::others::Seen;
use super::record::{Draft, EventType, Record};
use super::spool::{Spool, no_room};
use super::table::ChainRow;
use super::waiting::{State, Taken, append, lock};
use crate::metrics::AuditLoss;
use crate::telemetry::Chain as Causes;

/// Drafts that are chained at once, and records that are written at once.
pub(super) const BATCH: usize = 2000;

/// How long a few drafts wait for more: a transaction for each would cost more than they do.
const LINGER: Duration = Duration::from_millis(200);

/// A checkpoint after so many records (contract §10)…
const CHECKPOINT_RECORDS: i64 = 1000;

/// … and after so long, if there was a record.
pub(super) const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);

/// How often what does not happen by itself is looked at.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// How far apart places to cut a chain at are, while nothing is ever cut.
const MARKS_APART: Duration = Duration::from_secs(30 * 24 * 3600);

/// Between two tries at a database that is away.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long the last records may take to SQL. Less than the process waits for them: on disk they have to be by then.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// Room in the spool for one record: most are smaller, and what is not lost must have room.
const RECORD_BYTES: u64 = 1024;

/// Room in the spool that is kept for the end of the chain: what was lost, that it stopped, a checkpoint.
const CLOSING_BYTES: u64 = 32 * 1024;

/// Between two lines of the log about records that are lost.
const LOSS_TOLD_EVERY: Duration = Duration::from_secs(60);

pub(super) struct Writer<'a> {
    pub(super) audit: &'a Audit,
    pub(super) state: Mutex<State>,
    /// There is something to write.
    more: Notify,
    /// There is room.
    pub(super) room: Notify,
    /// The ends of other chains, as they were last seen.
    pub(super) seen: std::sync::Mutex<Seen>,
    /// Takes the end of the chain, once it is written.
    anchor: Anchor,
}

/// The chaining task's own.
struct Chaining {
    chain: Chain,
    /// Records since the last checkpoint.
    unsigned: i64,
    signed_at: Instant,
    /// When the log last told of a loss.
    loss_told: Option<Instant>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(audit: &'a Audit) -> Self {
        let (folder, bytes_max) = &audit.spool;
        let spool = Spool::new(folder, audit.replica.as_str(), *bytes_max);
        Self {
            audit,
            state: Mutex::new(State::new(spool)),
            more: Notify::new(),
            room: Notify::new(),
            seen: std::sync::Mutex::default(),
            anchor: Anchor::new(),
        }
    }

    /// Until [`Audit::flush`], and all is written or in the spool.
    pub(super) async fn run(&self, drafts: mpsc::Receiver<Draft>) {
        let own = async { tokio::join!(self.chain(drafts), self.write()) };
        let metrics = &self.audit.metrics;
        let anchored = async {
            match &self.audit.anchor {
                Some(place) => self.anchor.run(place, metrics).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = own => {}
            () = self.adopt_left() => {}
            () = anchored => {}
        }
        if let Some(place) = &self.audit.anchor {
            self.anchor.keep_last(place, metrics).await;
        }
    }

    async fn chain(&self, mut drafts: mpsc::Receiver<Draft>) {
        let mut chaining = Chaining {
            chain: Chain::new(self.audit.replica.as_str()),
            unsigned: 0,
            signed_at: Instant::now(),
            loss_told: None,
        };
        self.try_spool().await;
        let begins_with = self.audit.begins_with.clone();
        let mut batch = vec![Draft::new(EventType::AuditStarted).with(begins_with)];
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut over = false;
        let mut refusals_at = Instant::now();
        loop {
            self.put(&mut chaining, &mut batch).await;
            if over {
                self.state.lock().await.over = Some(Instant::now());
                return self.more.notify_one();
            }
            tokio::select! {
                biased;
                () = self.audit.ending.notified() => over = true,
                _ = drafts.recv_many(&mut batch, BATCH) => {
                    if batch.len() < BATCH {
                        sleep(LINGER).await;
                    }
                }
                _ = tick.tick() => {}
            }
            if over {
                // First: what comes from here on is counted as lost.
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
                batch.extend(self.audit.refusals.take());
            }
            if over {
                let exchanges = self.audit.metrics.open_exchanges.get();
                let changes = self.audit.owed.load(Ordering::Relaxed);
                let running = usize::try_from(exchanges).unwrap_or(0) + changes;
                let last = Draft::new(EventType::AuditStopped);
                batch.push(last.with(json!({"running": running})));
            }
            self.measure().await;
        }
    }

    /// Chains a batch, with what there is to say of losses and a checkpoint when one is due, and puts it
    /// where there is room.
    async fn put(&self, chaining: &mut Chaining, batch: &mut Vec<Draft>) {
        let ends = batch
            .last()
            .is_some_and(|last| last.event_type == EventType::AuditStopped);
        let mut state = self.has_room(ends).await;
        let fits = fits(&state);
        // The last one has room of its own.
        let last = if ends { batch.pop() } else { None };
        if batch.len() > fits {
            chaining.tell_of_loss(&no_room());
            let lost = batch.len() - fits;
            self.audit.lose(AuditLoss::Spool, lost as u64);
            batch.truncate(fits);
        }
        if fits == 0 && !ends {
            return;
        }
        batch.extend(last);
        let lost = self.audit.lost.swap(0, Ordering::Relaxed);
        let before = (
            chaining.chain.clone(),
            chaining.unsigned,
            chaining.signed_at,
        );
        let untold = lock(&self.seen).news.clone();
        let mut records = Vec::with_capacity(batch.len() + 4);
        if lost > 0 {
            let draft = Draft::new(EventType::AuditLost).with(json!({"count": lost}));
            records.push(chaining.push(draft));
        }
        let drafts = batch.len() as u64;
        for draft in batch.drain(..) {
            records.push(chaining.push(draft));
            if chaining.unsigned >= CHECKPOINT_RECORDS {
                self.checkpoint(chaining, &mut records);
            }
        }
        let since = chaining.signed_at.elapsed();
        let due = since >= CHECKPOINT_EVERY && chaining.unsigned > 0;
        if due || ends || since >= self.audit.idle_max() {
            self.checkpoint(chaining, &mut records);
        }
        if records.is_empty() {
            return;
        }
        let events = records
            .iter()
            .filter_map(|one| EventType::of(&one.record.event_type));
        let events: Vec<EventType> = events.collect();
        if !state.spooling {
            state.direct.extend(records);
        } else if let Err(error) = append(&state.spool, records).await {
            // They never were: the next ones take their numbers.
            (chaining.chain, chaining.unsigned, chaining.signed_at) = before;
            self.audit.lost.fetch_add(lost, Ordering::Relaxed);
            self.audit.lose(AuditLoss::Spool, drafts);
            lock(&self.seen).tell_again(untold);
            if ends {
                tracing::error!(%error, drafts, lost, "The last audit records are lost: audit.spool_dir cannot take them");
            }
            return chaining.tell_of_loss(&error);
        }
        for event in events {
            self.audit.metrics.audit.records(event.word());
            if event == EventType::AuditCheckpoint {
                self.audit.metrics.audit.checkpoints.inc();
            }
        }
        self.more.notify_one();
    }

    /// Puts a checkpoint to the chain: all before it, signed, and what was seen of other chains.
    fn checkpoint(&self, chaining: &mut Chaining, records: &mut Vec<Chained>) {
        let signed = match chaining.chain.sign(&self.audit.keys) {
            Ok(signed) => signed,
            Err(error) => {
                // The next record tries again.
                tracing::error!(error = %Causes(&error), "The audit cannot be signed");
                return;
            }
        };
        let news = std::mem::take(&mut lock(&self.seen).news);
        let detail = json!({"seen": news, "statement": signed});
        let draft = Draft::new(EventType::AuditCheckpoint).with(detail);
        records.push(chaining.push(draft));
        chaining.unsigned = 0;
        chaining.signed_at = Instant::now();
    }

    /// Resolves when no more records come: with when the last one was chained.
    async fn over(&self) -> Instant {
        loop {
            if let Some(since) = self.state.lock().await.over {
                return since;
            }
            self.more.notified().await;
        }
    }

    /// Resolves when the process ends too soon for SQL: what is not written then has to be on disk.
    async fn late(&self) {
        sleep_until(self.over().await + LAST_WRITES).await;
    }

    /// Writes what is there, oldest first, until all is written and no more comes.
    async fn write(&self) {
        let replica = self.audit.replica.as_str();
        let mut stated = Statement::of_none(replica);
        let mut looked: Option<Instant> = None;
        let mut failing = false;
        // A process that ends before there is a schema does not wait for one.
        tokio::select! {
            () = self.audit.stored.table.await_schema() => {}
            _ = self.over() => {}
        }
        loop {
            if looked.is_none_or(|at| at.elapsed() >= CHECKPOINT_EVERY) {
                tokio::select! {
                    seen = self.look_around(&stated) => looked = seen.then(Instant::now),
                    () = self.late() => {}
                }
            }
            let taken = self.take().await;
            if taken.records().is_empty() {
                // An empty segment may be left where writing failed.
                let spooled = matches!(taken, Taken::Spool(_));
                self.done(taken).await;
                if !spooled && self.state.lock().await.over.is_some() {
                    return;
                }
                let _ = tokio::time::timeout(TICK, self.more.notified()).await;
                continue;
            }
            let first = self.audit.first.load(Ordering::Relaxed);
            if first > stated.first {
                stated = stated.cut(first);
            }
            let put = tokio::select! {
                put = self.put_rows(&stated, taken.records()) => put,
                () = self.late() => Err("the process ends before it is done".to_owned()),
            };
            match put {
                Ok((now, statement)) => {
                    let is_checkpoint =
                        |one: &Chained| one.record.event_type == EventType::AuditCheckpoint.word();
                    let has_checkpoint = taken.records().iter().any(is_checkpoint);
                    self.anchor.put(&now, &statement, has_checkpoint);
                    if failing {
                        failing = false;
                        tracing::info!("Audit records are written again");
                    }
                    stated = now;
                    tell_of_checkpoints(taken.records());
                    self.done(taken).await;
                }
                Err(error) => {
                    self.audit.metrics.audit.write_failures.inc();
                    if !failing {
                        failing = true;
                        tracing::warn!(%error, "Audit records cannot be written to SQL; they wait");
                    }
                    let over = self.put_back(taken).await;
                    if over {
                        return;
                    }
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Records and what is signed of their chain then, in one transaction: both are answered. `stated`: what was before.
    pub(super) async fn put_rows(
        &self,
        stated: &Statement,
        records: &[Chained],
    ) -> Result<(Statement, String), String> {
        let spacing = self.audit.retention().map_or(MARKS_APART, |kept| kept / 16);
        let now = stated.with(records, spacing);
        let row = ChainRow::of(&now, &self.audit.keys);
        let row = row.map_err(|error| Causes(&error).to_string())?;
        let put = self.audit.stored.table.put(records, &row).await;
        put.map(|()| (now, row.statement))
            .map_err(|error| Causes(&error).to_string())
    }
}

/// How many drafts there is room for, beside the end of the chain.
fn fits(state: &State) -> usize {
    if !state.spooling {
        return usize::MAX;
    }
    let room = lock(&state.spool).room().saturating_sub(CLOSING_BYTES);
    usize::try_from(room / RECORD_BYTES).unwrap_or(usize::MAX)
}

impl Chaining {
    /// Not for each of them: losses come in floods.
    fn tell_of_loss(&mut self, error: &io::Error) {
        let told = self
            .loss_told
            .is_some_and(|at| at.elapsed() < LOSS_TOLD_EVERY);
        if !told {
            self.loss_told = Some(Instant::now());
            tracing::error!(
                %error,
                "Audit records are being lost: SQL is away and audit.spool_dir takes no more; an AUDIT_LOST record will say how many"
            );
        }
    }

    fn push(&mut self, draft: Draft) -> Chained {
        self.unsigned += 1;
        self.chain.push(draft)
    }
}

/// For those who keep logs elsewhere: what a chain must hold from now on. Not before it does.
fn tell_of_checkpoints(records: &[Chained]) {
    for Chained { record, .. } in records {
        if record.event_type == EventType::AuditCheckpoint.word() {
            let Record { replica, seq, .. } = record;
            tracing::info!(replica, seq, hash = record.hash(), "Audit checkpoint");
        }
    }
}
