//! Writing down what this replica learnt, in the background: in Redis for all replicas, or in SQL where this gateway is
//! alone.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::table::Table;
use super::{Stored, Tasks};
use crate::ids::WorkspaceId;
use crate::shared::Shared;
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// Notes that wait at most, as long as the store is away or behind.
pub(super) const NOTES_MAX: usize = 4096;

/// Notes that are written to Redis at the same time.
const AT_ONCE: usize = 64;

/// Notes of one transaction.
const BATCH_MAX: usize = 256;

/// Between two tries to write.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// How long the end of the process waits for what is not written yet.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// How often the tasks of callers that started some are counted in SQL.
const BOUND_EVERY: Duration = Duration::from_secs(2);

/// How often what lapsed is deleted from SQL.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// A task that was started.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) key: String,
    pub(super) at: String,
    pub(super) owner: Arc<str>,
    pub(super) target: WorkspaceId,
}

/// What is to be written.
#[derive(Debug)]
pub(super) enum Note {
    /// A task was started.
    Claim(Claimed),
    /// Its owner used it.
    Renew {
        key: String,
        at: String,
        owner: Arc<str>,
    },
}

impl Note {
    fn owner(&self) -> &Arc<str> {
        match self {
            Self::Claim(claimed) => &claimed.owner,
            Self::Renew { owner, .. } => owner,
        }
    }
}

/// Notes that are queued or being written, by owner.
pub(super) type Unwritten = HashMap<Arc<str>, usize>;

impl Tasks {
    /// Queues a note. One owner takes at most half of what is free, so that there is a place for the others.
    pub(super) fn note(&self, note: Note) {
        if self.takes_place(note.owner()) {
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

    fn takes_place(&self, owner: &Arc<str>) -> bool {
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

    fn written(&self, note: &Note) {
        self.leave_place(note.owner());
        self.metrics.queues.task_notes.dec();
    }

    /// Writes down what is learnt. A background task; runs until it is dropped.
    pub async fn run(&self) {
        match &self.stored {
            Stored::Shared(shared) => self.write_shared(shared).await,
            Stored::Sql(table) => {
                tokio::join!(self.write_rows(table), self.bound_rows(table));
            }
        }
    }

    async fn write_shared(&self, shared: &Shared) {
        let mut notes = self.to_write.lock().await;
        let mut batch = Vec::with_capacity(AT_ONCE);
        while notes.recv_many(&mut batch, AT_ONCE).await > 0 {
            join_all(batch.drain(..).map(|note| self.write(shared, note))).await;
        }
    }

    async fn write_rows(&self, table: &Table) {
        let mut notes = self.to_write.lock().await;
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while notes.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let mut told = false;
            let others = loop {
                let now = Timestamp::now();
                let ttl = self.config.get().a2a.task_ttl;
                match table.write(&batch, now, now.after(ttl)).await {
                    Ok(others) => break others,
                    Err(error) => {
                        if !std::mem::replace(&mut told, true) {
                            let error = Chain(&error);
                            tracing::debug!(%error, "Owners of tasks are not written down yet");
                        }
                        sleep(RETRY_PAUSE).await;
                    }
                }
            };
            let lasts = self.memory.lasts(self.config.get().a2a.task_ttl, true);
            for (key, owner) in others {
                self.memory.put(&key, &owner, lasts).await;
            }
            let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
            for note in batch.drain(..) {
                self.written(&note);
                if let Note::Claim(claimed) = note {
                    started.insert(claimed.owner);
                }
            }
        }
    }

    /// Keeps what each caller has in SQL within its bound, and deletes what lapsed.
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
                if let Err(error) = table.keep_newest(owner, max).await {
                    tracing::debug!(error = %Chain(&error), "The tasks of a caller are not counted this time");
                }
            }
            if purged.is_none_or(|at| at.elapsed() >= PURGE_EVERY) {
                purged = Some(Instant::now());
                if let Err(error) = table.purge().await {
                    tracing::debug!(error = %Chain(&error), "Owners of tasks that lapsed are not deleted this time");
                }
            }
        }
    }

    /// Waits until everything is written, for a while.
    pub async fn flush(&self) {
        let deadline = Instant::now() + FLUSH_MAX;
        while self.unwritten.load(Ordering::Acquire) > 0 {
            if Instant::now() >= deadline {
                tracing::warn!("The owners of the last tasks are not written down");
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Tries until it is written: what other replicas do not know they let through.
    async fn write(&self, shared: &Shared, note: Note) {
        let mut told = false;
        while let Err(error) = self.try_write(shared, &note).await {
            if !told {
                told = true;
                let error = Chain(&error);
                tracing::debug!(%error, "The owner of a task is not written down yet");
            }
            sleep(RETRY_PAUSE).await;
        }
        self.written(&note);
    }

    async fn try_write(&self, shared: &Shared, note: &Note) -> Result<(), Unavailable> {
        let ttl = self.config.get().a2a.task_ttl;
        match note {
            Note::Claim(Claimed {
                key,
                at,
                owner,
                target,
            }) => {
                let lasts = self.memory.lasts(ttl, true);
                if let Some(first) = claim(shared, key, owner, ttl).await? {
                    // Another replica was told of it before.
                    self.memory.put(key, &first, lasts).await;
                    return Ok(());
                }
                let first = claim(shared, at, target.as_str(), ttl).await?;
                if let Some(first) = first.and_then(|id| WorkspaceId::parse(&id).ok()) {
                    self.memory.put_at(at, &first, lasts).await;
                }
                self.bound_keys(shared, (key, at, owner), ttl).await
            }
            Note::Renew { key, at, .. } => {
                let keys = [key.as_str(), at.as_str()];
                shared.refresh(&keys, ttl).await.map(drop)
            }
        }
    }

    /// Keeps what a caller has in Redis within its bound: beyond it its oldest tasks are forgotten.
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
            // Somebody else may have started one of that name since.
            let owned = shared.get(key).await?.is_some_and(|first| first == owner);
            let keys = if owned { &[at, key][..] } else { &[at][..] };
            shared.delete(keys).await?;
        }
        Ok(())
    }
}

/// Writes what nobody wrote before, or else lets it live on. Answers with what is there instead.
async fn claim(
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
