//! From drafts to rows. Two tasks share a small state: one chains and puts where there is room, one
//! writes what is there, oldest first. SQL is asked by nobody else, so the order of a chain is the order
//! of its rows, and a row is there only if all before it are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::chain::{Chain, Chained, Statement};
use super::others::Seen;
use super::record::{Draft, EventType};
use super::spool::{Front, Spool};
use super::table::ChainRow;
use super::{Audit, DRAFTS_MAX};
use crate::metrics::AuditLoss;
use crate::telemetry::Chain as Causes;
use crate::workspace::Timestamp;

/// Drafts that are chained at once, and records that are written at once.
const BATCH: usize = 2000;

/// How long a few drafts wait for more: a transaction for each would cost more than they do.
const LINGER: Duration = Duration::from_millis(50);

/// As many as this don't wait.
const FEW: usize = 500;

/// Chained records that are in memory at most.
const DIRECT_MAX: usize = 4096;

/// A checkpoint after so many records (contract §10)…
const CHECKPOINT_RECORDS: i64 = 1000;

/// … and after so long, if there was a record.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);

/// How often what does not happen by itself is looked at.
const TICK: Duration = Duration::from_secs(1);

/// Between two tries at a database that is away.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Room in the spool for one record: most are smaller, and what is not lost must have room.
const RECORD_BYTES: u64 = 1024;

/// What both tasks look at.
struct State {
    /// Chained, and not written yet. Empty while there is anything in the spool.
    direct: VecDeque<Chained>,
    spool: Arc<std::sync::Mutex<Spool>>,
    /// Everything goes through the spool, until that is empty.
    spooling: bool,
    /// The last record is chained: what is there is all.
    over: bool,
}

pub(super) struct Writer<'a> {
    pub(super) audit: &'a Audit,
    state: Mutex<State>,
    /// There is something to write.
    more: Notify,
    /// There is room.
    room: Notify,
    /// The ends of other chains, as they were last seen.
    pub(super) seen: std::sync::Mutex<Seen>,
}

/// The chaining task's own.
struct Chaining {
    chain: Chain,
    /// Records since the last checkpoint.
    unsigned: i64,
    signed_at: Instant,
}

impl<'a> Writer<'a> {
    pub(super) fn new(audit: &'a Audit) -> Self {
        let (folder, bytes_max) = &audit.spool;
        let spool = Spool::new(folder, audit.replica.as_str(), *bytes_max);
        Self {
            audit,
            state: Mutex::new(State {
                direct: VecDeque::new(),
                spool: Arc::new(std::sync::Mutex::new(spool)),
                spooling: false,
                over: false,
            }),
            more: Notify::new(),
            room: Notify::new(),
            seen: std::sync::Mutex::default(),
        }
    }

    /// Until [`Audit::flush`], and all is written or in the spool.
    pub(super) async fn run(&self, drafts: mpsc::Receiver<Draft>) {
        tokio::join!(self.chain(drafts), self.write());
    }

    async fn chain(&self, mut drafts: mpsc::Receiver<Draft>) {
        let mut chaining = Chaining {
            chain: Chain::new(self.audit.replica.as_str()),
            unsigned: 0,
            signed_at: Instant::now(),
        };
        let version = json!({"version": env!("CARGO_PKG_VERSION")});
        let mut batch = vec![Draft::new(EventType::AuditStarted).with(version)];
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut over = false;
        loop {
            self.put(&mut chaining, &mut batch).await;
            if over {
                self.state.lock().await.over = true;
                return self.more.notify_one();
            }
            tokio::select! {
                biased;
                () = self.audit.ending.notified() => over = true,
                _ = drafts.recv_many(&mut batch, BATCH) => {
                    if batch.len() < FEW {
                        sleep(LINGER).await;
                    }
                }
                _ = tick.tick() => {}
            }
            while batch.len() < BATCH || over {
                match drafts.try_recv() {
                    Ok(draft) => batch.push(draft),
                    Err(_) => break,
                }
            }
            if over {
                drafts.close();
                batch.push(Draft::new(EventType::AuditStopped));
            }
            let waiting = drafts.len();
            self.measure(waiting).await;
        }
    }

    /// Chains a batch, with what there is to say of losses and a checkpoint when one is due, and puts it
    /// where there is room.
    async fn put(&self, chaining: &mut Chaining, batch: &mut Vec<Draft>) {
        let ends = batch
            .last()
            .is_some_and(|last| last.event_type == EventType::AuditStopped);
        let mut state = self.has_room(ends).await;
        let lost = self.audit.lost.swap(0, Ordering::Relaxed);
        let before = (
            chaining.chain.clone(),
            chaining.unsigned,
            chaining.signed_at,
        );
        let mut records = Vec::with_capacity(batch.len() + 4);
        let mut events = Vec::with_capacity(batch.len() + 4);
        if lost > 0 {
            let draft = Draft::new(EventType::AuditLost).with(json!({"count": lost}));
            events.push(EventType::AuditLost);
            records.push(chaining.push(draft));
        }
        let fits = if state.spooling {
            lock(&state.spool).room() / RECORD_BYTES
        } else {
            u64::MAX
        };
        let fits = usize::try_from(fits).unwrap_or(usize::MAX);
        if batch.len() > fits {
            self.audit
                .lose(AuditLoss::Spool, (batch.len() - fits) as u64);
            batch.truncate(fits);
        }
        let drafts = batch.len() as u64;
        for draft in batch.drain(..) {
            events.push(draft.event_type);
            records.push(chaining.push(draft));
            if chaining.unsigned >= CHECKPOINT_RECORDS {
                self.checkpoint(chaining, &mut records);
            }
        }
        let due = chaining.signed_at.elapsed() >= CHECKPOINT_EVERY && chaining.unsigned > 0;
        if due || ends {
            self.checkpoint(chaining, &mut records);
        }
        if records.is_empty() {
            return;
        }
        if !state.spooling {
            state.direct.extend(records);
        } else if let Err(error) = append(&state.spool, records).await {
            // They never were: the next ones take their numbers.
            (chaining.chain, chaining.unsigned, chaining.signed_at) = before;
            self.audit.lost.fetch_add(lost, Ordering::Relaxed);
            self.audit.lose(AuditLoss::Spool, drafts);
            tracing::debug!(%error, drafts, "Audit records are lost: the spool cannot take them");
            return;
        }
        for event in events {
            self.audit.metrics.audit.records(event.word());
        }
        self.more.notify_one();
    }

    /// Waits until what is in memory is no more than may be there. Meanwhile drafts wait in their queue.
    async fn has_room(&self, at_once: bool) -> tokio::sync::MutexGuard<'_, State> {
        loop {
            let state = self.state.lock().await;
            if at_once || state.spooling || state.direct.len() < DIRECT_MAX {
                return state;
            }
            drop(state);
            let _ = tokio::time::timeout(TICK, self.room.notified()).await;
        }
    }

    /// Puts a checkpoint to the chain: all before it, signed, and what was seen of other chains.
    fn checkpoint(&self, chaining: &mut Chaining, records: &mut Vec<Chained>) {
        let first = self.audit.first.load(Ordering::Relaxed);
        let time = Timestamp::now().to_string();
        let statement = chaining.chain.statement(first, time);
        let signed = match statement.sign(&self.audit.keys) {
            Ok(signed) => signed,
            Err(error) => {
                // The next record tries again.
                tracing::error!(error = %Causes(&error), "The audit cannot be signed");
                return;
            }
        };
        let news = {
            let mut seen = lock(&self.seen);
            std::mem::take(&mut seen.news)
        };
        let (seq, hash) = (statement.last, &statement.hash);
        tracing::info!(replica = statement.replica, seq, hash, "Audit checkpoint");
        let detail = json!({"seen": news, "statement": signed});
        let draft = Draft::new(EventType::AuditCheckpoint).with(detail);
        records.push(chaining.push(draft));
        chaining.unsigned = 0;
        chaining.signed_at = Instant::now();
        self.audit.metrics.audit.checkpoints.inc();
    }

    /// Writes what is there, oldest first, until all is written and no more comes.
    async fn write(&self) {
        let replica = self.audit.replica.as_str();
        let mut written = ChainRow {
            replica: replica.to_owned(),
            first_seq: 1,
            last_seq: 0,
            statement: String::new(),
            signed_at: 0,
        };
        let mut hash = super::record::NO_RECORD.to_owned();
        let mut looked: Option<Instant> = None;
        let mut failing = false;
        self.audit.stored.table.await_schema().await;
        loop {
            if looked.is_none_or(|at| at.elapsed() >= CHECKPOINT_EVERY)
                && self.look_around(&written, &hash).await
            {
                looked = Some(Instant::now());
            }
            let taken = self.take().await;
            if taken.records().is_empty() {
                // An empty segment may be left where writing failed.
                let spooled = matches!(taken, Taken::Spool(_));
                self.done(taken).await;
                if !spooled && self.state.lock().await.over {
                    return;
                }
                let _ = tokio::time::timeout(TICK, self.more.notified()).await;
                continue;
            }
            let first = self.audit.first.load(Ordering::Relaxed);
            match self.put_rows((replica, first), taken.records()).await {
                Ok(row) => {
                    if failing {
                        failing = false;
                        tracing::info!("Audit records are written again");
                    }
                    if let Some(last) = taken.records().last() {
                        hash.clone_from(&last.hash);
                    }
                    written = row;
                    self.done(taken).await;
                }
                Err(error) => {
                    self.audit.metrics.audit.write_failures.inc();
                    if !failing {
                        failing = true;
                        tracing::warn!(%error, "Audit records cannot be written; they wait in audit.spool_dir");
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

    /// Records and their chain's statement, in one transaction.
    pub(super) async fn put_rows(
        &self,
        (replica, first): (&str, i64),
        records: &[Chained],
    ) -> Result<ChainRow, String> {
        let Some(last) = records.last() else {
            return Err("there is nothing to write".to_owned());
        };
        let row = self.state_of(replica, first, (last.seq, &last.hash))?;
        let put = self.audit.stored.table.put(records, &row).await;
        put.map(|()| row)
            .map_err(|error| Causes(&error).to_string())
    }

    pub(super) fn state_of(
        &self,
        replica: &str,
        first: i64,
        (last, hash): (i64, &str),
    ) -> Result<ChainRow, String> {
        let now = Timestamp::now();
        let statement = Statement {
            replica: replica.to_owned(),
            first,
            last,
            hash: hash.to_owned(),
            time: now.to_string(),
        };
        let signed = statement.sign(&self.audit.keys);
        Ok(ChainRow {
            replica: statement.replica,
            first_seq: first,
            last_seq: last,
            statement: signed.map_err(|error| Causes(&error).to_string())?,
            signed_at: now.0,
        })
    }

    /// The oldest records: from the spool, if there are any, else from memory, where they are taken out.
    async fn take(&self) -> Taken {
        let mut state = self.state.lock().await;
        if state.spooling {
            match front(&state.spool).await {
                Ok(front) => return Taken::Spool(front),
                Err(error) => {
                    tracing::error!(%error, "audit.spool_dir cannot be read");
                    return Taken::Memory(Vec::new());
                }
            }
        }
        let count = state.direct.len().min(BATCH);
        let records: Vec<Chained> = state.direct.drain(..count).collect();
        self.room.notify_one();
        Taken::Memory(records)
    }

    async fn done(&self, taken: Taken) {
        if let Taken::Spool(front) = taken {
            let mut state = self.state.lock().await;
            let spool = Arc::clone(&state.spool);
            let empty = on_disk(spool, move |spool| {
                spool.drop_front(&front);
                spool.is_empty()
            });
            state.spooling = !empty.await.unwrap_or(false);
        }
    }

    /// Records that could not be written. True: it is over, and they are on disk for the next start.
    async fn put_back(&self, taken: Taken) -> bool {
        let mut state = self.state.lock().await;
        if let Taken::Memory(records) = taken {
            for record in records.into_iter().rev() {
                state.direct.push_front(record);
            }
            let direct: Vec<Chained> = state.direct.iter().cloned().collect();
            match append(&state.spool, direct).await {
                Ok(()) => {
                    state.direct.clear();
                    state.spooling = true;
                    self.room.notify_one();
                }
                // They stay in memory, and those behind them in their queue.
                Err(error) => tracing::debug!(%error, "Audit records cannot be spooled"),
            }
        }
        state.over
    }

    /// How much waits, and for how long.
    async fn measure(&self, drafts: usize) {
        let state = self.state.lock().await;
        let (spooled, bytes) = {
            let spool = lock(&state.spool);
            (spool.records(), spool.bytes())
        };
        let oldest = state.direct.front().map(|record| record.ms);
        let oldest = match oldest {
            None if spooled > 0 => lock(&state.spool).oldest(),
            known => known,
        };
        let lag = oldest.map_or(Duration::ZERO, |ms| Timestamp::now().since(Timestamp(ms)));
        let metrics = &self.audit.metrics.audit;
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let in_memory = state.direct.len() + drafts.min(DRAFTS_MAX);
        metrics.waiting.set(number(spooled + in_memory as u64));
        metrics.spool_bytes.set(number(bytes));
        metrics.lag.set(lag.as_secs_f64());
    }
}

impl Chaining {
    fn push(&mut self, draft: Draft) -> Chained {
        self.unsigned += 1;
        self.chain.push(draft)
    }
}

/// Records on their way to SQL.
enum Taken {
    Memory(Vec<Chained>),
    /// They are in the spool until they are written.
    Spool(Front),
}

impl Taken {
    fn records(&self) -> &[Chained] {
        match self {
            Self::Memory(records) => records,
            Self::Spool(front) => &front.records,
        }
    }
}

type OnDisk = Arc<std::sync::Mutex<Spool>>;

async fn append(spool: &OnDisk, records: Vec<Chained>) -> std::io::Result<()> {
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

/// Runs `work` where it may block. `None`: it panicked.
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
