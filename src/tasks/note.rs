//! Writes learnt owners in the background: to Redis for all replicas, or to SQL for a single gateway.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::bindings::BindingValue;
use super::open::OpenTask;
use super::table::Table;
use super::{OwnerStore, Tasks};
use crate::ids::{InstanceId, WorkspaceId};
use crate::shared::Shared;
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// Queued notes at most, while the store is unavailable or slow.
pub(super) const NOTES_MAX: usize = 4096;

/// Notes that are written to Redis concurrently.
const AT_ONCE: usize = 64;

/// Notes of one transaction.
const BATCH_MAX: usize = 256;

/// Pause between two attempts to write.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Time that shutdown waits for unwritten notes.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Interval between counts of the tasks in SQL, for callers that started some.
const BOUND_EVERY: Duration = Duration::from_secs(2);

/// Interval between deletions of lapsed rows in SQL.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// A task that was started.
#[derive(Debug)]
pub(super) struct TaskClaim {
    pub(super) key: String,
    pub(super) at: String,
    pub(super) owner: Arc<str>,
    pub(super) target: WorkspaceId,
    /// The task, unless it has ended.
    pub(super) open: Option<Box<OpenTask>>,
}

/// A pending write.
#[derive(Debug)]
pub(super) enum Note {
    /// A task was started.
    Claim(TaskClaim),
    /// The owner used the task.
    Renew {
        key: String,
        at: String,
        owner: Arc<str>,
    },
    /// An instance has a task or a context.
    Bind(BindingWrite),
    /// A task has ended.
    End {
        name: (WorkspaceId, String),
        by: Arc<str>,
    },
}

/// Stored values that a binding may replace.
#[derive(Debug)]
pub(super) enum ReplaceRule {
    /// Its own value, whose lifetime alone is renewed.
    Renewed,
    /// Its own value, of a task that has not ended.
    Own,
    /// Nothing, or what is bound to one of these instances.
    Gone(Vec<InstanceId>),
}

/// A binding to be written.
#[derive(Debug)]
pub(super) struct BindingWrite {
    pub(super) key: String,
    pub(super) bound: BindingValue,
    /// Stored values that it may replace.
    pub(super) over: ReplaceRule,
    /// The caller whose answer bound it.
    pub(super) owner: Arc<str>,
    /// The account of its bindings in the queue.
    pub(super) account: Arc<str>,
    /// Dropped once it is written.
    pub(super) written: Option<oneshot::Sender<()>>,
}

impl Note {
    fn owner(&self) -> &Arc<str> {
        match self {
            Self::Claim(claimed) => &claimed.owner,
            Self::Renew { owner, .. } => owner,
            Self::End { by, .. } => by,
            Self::Bind(bind) => &bind.account,
        }
    }
}

/// Notes that are queued or being written, by owner.
pub(super) type NoteCounts = HashMap<Arc<str>, usize>;

impl Tasks {
    /// Queues a note. One owner takes at most half of the free places, so that other owners find one.
    pub(super) fn queue_note(&self, note: Note) {
        if self.take_place(note.owner()) {
            let owner = Arc::clone(note.owner());
            self.metrics.queues.task_notes.inc();
            if self.notes.try_send(note).is_ok() {
                return;
            }
            self.leave_place(&owner);
            self.metrics.queues.task_notes.dec();
        }
        self.metrics.tasks.notes_dropped.inc();
    }

    fn take_place(&self, owner: &Arc<str>) -> bool {
        let mut by_owner = self.by_owner.lock().unwrap_or_else(PoisonError::into_inner);
        let own = by_owner.get(owner).copied().unwrap_or(0);
        let others = self.unwritten.load(Ordering::Acquire).saturating_sub(own);
        if NOTES_MAX.saturating_sub(others) / 2 <= own {
            return false;
        }
        by_owner.insert(Arc::clone(owner), own + 1);
        self.unwritten.fetch_add(1, Ordering::AcqRel);
        true
    }

    fn leave_place(&self, owner: &Arc<str>) {
        let mut by_owner = self.by_owner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = by_owner.get_mut(owner) {
            *own -= 1;
            if *own == 0 {
                by_owner.remove(owner);
            }
        }
        self.unwritten.fetch_sub(1, Ordering::AcqRel);
    }

    /// Records the task that a note says has begun or ended.
    fn note_open(&self, note: &mut Note) {
        match note {
            Note::Claim(claimed) => {
                if let Some(open) = claimed.open.take() {
                    self.open.record_begin(*open);
                }
            }
            Note::End { name, .. } => self.open.record_end(name.clone()),
            Note::Renew { .. } | Note::Bind(_) => {}
        }
    }

    fn finish_note(&self, note: &Note) {
        self.leave_place(note.owner());
        self.metrics.queues.task_notes.dec();
    }

    /// Writes learnt owners. A background task; runs until it is dropped.
    pub async fn run(&self) {
        match &self.stored {
            OwnerStore::Shared(shared) => {
                tokio::join!(self.write_shared(shared), self.open.run());
            }
            OwnerStore::Sql(table) => {
                tokio::join!(
                    self.write_rows(table),
                    self.bound_rows(table),
                    self.open.run()
                );
            }
        }
    }

    async fn write_shared(&self, shared: &Shared) {
        let mut notes = self.to_write.lock().await;
        let mut batch = Vec::with_capacity(AT_ONCE);
        while notes.recv_many(&mut batch, AT_ONCE).await > 0 {
            batch.iter_mut().for_each(|note| self.note_open(note));
            join_all(batch.drain(..).map(|note| self.write_note(shared, note))).await;
        }
    }

    async fn write_rows(&self, table: &Table) {
        let mut notes = self.to_write.lock().await;
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while notes.recv_many(&mut batch, BATCH_MAX).await > 0 {
            batch.iter_mut().for_each(|note| self.note_open(note));
            let mut told = false;
            let others = loop {
                let now = Timestamp::now();
                let config = self.config.get();
                let lifetimes = (config.a2a.task_ttl, config.affinity.ttl);
                match table.write_notes(&batch, now, lifetimes).await {
                    Ok(others) => break others,
                    Err(error) => {
                        if !std::mem::replace(&mut told, true) {
                            let error = Chain(&error);
                            tracing::debug!(%error, "failed to write task owners; retrying");
                        }
                        sleep(RETRY_PAUSE).await;
                    }
                }
            };
            let lasts = self.memory.cached_ttl(self.config.get().a2a.task_ttl, true);
            for (key, owner) in others.owners {
                self.memory.insert_owner(&key, &owner, lasts).await;
            }
            for (key, value) in others.bindings {
                self.keep_binding(&key, &value);
            }
            let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
            for note in batch.drain(..) {
                self.finish_note(&note);
                match note {
                    Note::Claim(claimed) => started.insert(claimed.owner),
                    Note::Bind(bind) => started.insert(bind.owner),
                    Note::Renew { .. } | Note::End { .. } => false,
                };
            }
        }
    }

    /// Bounds the rows of each caller in SQL, and deletes lapsed rows.
    async fn bound_rows(&self, table: &Table) {
        let mut tick = interval(BOUND_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut purged: Option<Instant> = None;
        loop {
            tick.tick().await;
            let max = self.config.get().a2a.tasks_per_caller;
            let started: HashSet<_> = {
                let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *started)
            };
            for owner in &started {
                let kept = table.keep_newest(owner, max).await;
                let kept = match kept {
                    Ok(()) => table.keep_newest_bindings(owner, max).await,
                    away => away,
                };
                if let Err(error) = kept {
                    tracing::debug!(error = %Chain(&error), "failed to bound the tasks of a caller; will retry");
                    let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
                    started.insert(Arc::clone(owner));
                }
            }
            if purged.is_none_or(|at| at.elapsed() >= PURGE_EVERY) {
                purged = Some(Instant::now());
                if let Err(error) = table.delete_lapsed().await {
                    tracing::debug!(error = %Chain(&error), "failed to delete lapsed task owners; will retry");
                }
            }
        }
    }

    /// Waits until all notes are written, at most `FLUSH_MAX`.
    pub async fn flush(&self) {
        let deadline = Instant::now() + FLUSH_MAX;
        while self.unwritten.load(Ordering::Acquire) > 0 {
            if Instant::now() >= deadline {
                tracing::warn!("shutdown: the last task owners were not written");
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Retries until the note is written: other replicas let through requests for tasks of an unknown owner.
    async fn write_note(&self, shared: &Shared, note: Note) {
        let mut told = false;
        while let Err(error) = self.try_write(shared, &note).await {
            if !told {
                told = true;
                let error = Chain(&error);
                tracing::debug!(%error, "failed to write a task owner; retrying");
            }
            sleep(RETRY_PAUSE).await;
        }
        self.finish_note(&note);
        if let Note::Bind(mut bind) = note {
            // Its answer waits no longer.
            drop(bind.written.take());
            if let Err(error) = self.bound_bindings(shared, &bind).await {
                tracing::debug!(error = %Chain(&error), "failed to bound the bindings of a caller; their lifetime does");
            }
        }
    }

    async fn try_write(&self, shared: &Shared, note: &Note) -> Result<(), Unavailable> {
        let ttl = self.config.get().a2a.task_ttl;
        match note {
            Note::Claim(TaskClaim {
                key,
                at,
                owner,
                target,
                ..
            }) => {
                let lasts = self.memory.cached_ttl(ttl, true);
                if let Some(first) = claim_key(shared, key, owner, ttl).await? {
                    // Another replica recorded an owner earlier.
                    self.memory.insert_owner(key, &first, lasts).await;
                    return Ok(());
                }
                let first = claim_key(shared, at, target.as_str(), ttl).await?;
                if let Some(first) = first.and_then(|id| WorkspaceId::parse(&id).ok()) {
                    self.memory.insert_target(at, &first, lasts).await;
                }
                self.bound_keys(shared, (key, at, owner), ttl).await
            }
            Note::Renew { key, at, .. } => {
                let keys = [key.as_str(), at.as_str()];
                shared.refresh(&keys, ttl).await.map(drop)
            }
            Note::Bind(bind) => self.write_binding(shared, bind).await,
            Note::End { .. } => Ok(()),
        }
    }

    /// Bounds the keys of a caller in Redis: beyond the bound its oldest tasks are deleted.
    async fn bound_keys(
        &self,
        shared: &Shared,
        (key, at, owner): (&str, &str, &str),
        ttl: Duration,
    ) -> Result<(), Unavailable> {
        let of_owner = super::key::of_owner(owner);
        let member = format!("{key} {at}");
        let max = self.config.get().a2a.tasks_per_caller;
        let oldest = shared.add_newest(&of_owner, &member, max, ttl).await?;
        for member in oldest {
            let Some((key, at)) = member.split_once(' ') else {
                continue;
            };
            // Another caller may have started a task of that name since.
            let owned = shared.get(key).await?.is_some_and(|first| first == owner);
            let keys = if owned { &[at, key][..] } else { &[at][..] };
            shared.delete(keys).await?;
        }
        Ok(())
    }
}

/// Writes `value` if the key is free, or else renews the key. Returns the value that is there instead.
async fn claim_key(
    shared: &Shared,
    key: &str,
    value: &str,
    ttl: Duration,
) -> Result<Option<String>, Unavailable> {
    if shared.set_if_absent(key, value, ttl).await? {
        return Ok(None);
    }
    match shared.get(key).await? {
        Some(first) if first != value => Ok(Some(first)),
        _ => shared.refresh(&[key], ttl).await.map(|_| None),
    }
}
