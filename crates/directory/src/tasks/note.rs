//! Writes learnt owners in the background: to Redis for all replicas, or to SQL for a single gateway.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::bindings::BindingValue;
use super::open::OpenTask;
use super::table::Table;
use super::{OwnerStore, Tasks};
use access::workspace::Timestamp;
use kernel::deadline::ticks;
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::metrics::{InProgress, Queue};
use kernel::shares::{Account, Bound, Share};
use kernel::telemetry::Chain;
use stores::shared::Shared;
use stores::store::Unavailable;

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
    Renew { key: String, at: String },
    /// An instance has a task or a context.
    Bind(BindingWrite),
    /// A task has ended.
    End((WorkspaceId, String)),
}

/// A note in the queue, with its place there.
pub(super) struct QueuedNote {
    pub(super) note: Note,
    _place: (Share, InProgress),
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
    /// Dropped once it is written.
    pub(super) written: Option<oneshot::Sender<()>>,
}

impl Tasks {
    /// Queues a note of `account`, which takes at most half of the free places, so that others find one.
    pub(super) fn queue_note(&self, account: Account, note: Note) {
        let place = self
            .unwritten
            .take(account, 1, Bound::with_places(NOTES_MAX));
        let is_queued = place.is_ok_and(|place| {
            let queued = InProgress::begin(&self.metrics.queues.entries[Queue::TaskNotes]);
            let queued = QueuedNote {
                note,
                _place: (place, queued),
            };
            self.notes.try_send(queued).is_ok()
        });
        if !is_queued {
            self.metrics.tasks.notes_dropped.inc();
        }
    }

    /// Writes learnt owners. A background task; runs until it is dropped.
    pub async fn run(&self) {
        let bound_rows = async {
            if let OwnerStore::Sql(table) = &self.stored {
                self.bound_rows(table).await;
            }
        };
        tokio::join!(self.write_notes(), bound_rows, self.open.run());
    }

    /// Retries until the notes are written: other replicas let through requests for tasks of an unknown owner.
    async fn write_notes(&self) {
        let mut notes = self.to_write.lock().await;
        let at_once = if self.is_shared() { AT_ONCE } else { BATCH_MAX };
        let mut batch = Vec::with_capacity(at_once);
        while notes.recv_many(&mut batch, at_once).await > 0 {
            for queued in &mut batch {
                match &mut queued.note {
                    Note::Claim(claimed) => {
                        if let Some(open) = claimed.open.take() {
                            self.open.record_begin(*open);
                        }
                    }
                    Note::End(name) => self.open.record_end(name.clone()),
                    Note::Renew { .. } | Note::Bind(_) => {}
                }
            }
            let mut told = false;
            while let Err(error) = self.try_write(&mut batch).await {
                if !std::mem::replace(&mut told, true) {
                    let error = Chain(&error);
                    tracing::debug!(%error, "failed to write task owners; retrying");
                }
                sleep(RETRY_PAUSE).await;
            }
            match &self.stored {
                OwnerStore::Shared(shared) => {
                    let written = batch.drain(..).map(|queued| queued.note);
                    join_all(written.map(|note| self.bound_bindings(shared, note))).await;
                }
                OwnerStore::Sql(_) => {
                    let mut started = self.started.lock();
                    started.extend(batch.drain(..).filter_map(|queued| match queued.note {
                        Note::Claim(claimed) => Some(claimed.owner),
                        Note::Bind(bind) => Some(bind.owner),
                        Note::Renew { .. } | Note::End(_) => None,
                    }));
                }
            }
        }
    }

    async fn try_write(&self, batch: &mut [QueuedNote]) -> Result<(), Unavailable> {
        let table = match &self.stored {
            OwnerStore::Shared(shared) => {
                let writes = batch.iter_mut().map(async |queued| {
                    self.write_note(shared, &queued.note).await?;
                    // The answer waits for its own binding only, not for the rest of the batch.
                    if let Note::Bind(bind) = &mut queued.note {
                        bind.written = None;
                    }
                    Ok(())
                });
                return try_join_all(writes).await.map(drop);
            }
            OwnerStore::Sql(table) => table,
        };
        let config = self.config.get();
        let lifetimes = (config.a2a.task_ttl, config.affinity.ttl);
        drop(config);
        let others = table.write_notes(batch, Timestamp::now(), lifetimes);
        let others = others.await?;
        let lasts = self.cached_ttl(true);
        for (key, owner) in others.owners {
            self.owners.insert(&key, owner.into(), lasts);
        }
        for (key, value) in others.bindings {
            self.keep_binding(&key, &value);
        }
        Ok(())
    }

    /// Bounds the rows of each caller in SQL, and deletes lapsed rows.
    async fn bound_rows(&self, table: &Table) {
        let mut tick = ticks(BOUND_EVERY);
        let mut purged: Option<Instant> = None;
        loop {
            tick.tick().await;
            let max = self.config.get().a2a.tasks_per_caller;
            let started = || self.started.lock();
            let owners = std::mem::take(&mut *started());
            for owner in owners {
                if let Err(error) = table.keep_newest(&owner, max).await {
                    tracing::debug!(error = %Chain(&error), "failed to bound the tasks of a caller; will retry");
                    started().insert(owner);
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
        while self.unwritten.total() > 0 {
            if Instant::now() >= deadline {
                tracing::warn!("shutdown: the last task owners were not written");
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn write_note(&self, shared: &Shared, note: &Note) -> Result<(), Unavailable> {
        let ttl = self.config.get().a2a.task_ttl;
        match note {
            Note::Claim(TaskClaim {
                key,
                at,
                owner,
                target,
                ..
            }) => {
                let lasts = self.cached_ttl(true);
                if let Some(first) = claim_key(shared, key, owner, ttl).await? {
                    // Another replica recorded an owner earlier.
                    self.owners.insert(key, first.into(), lasts);
                    return Ok(());
                }
                let first = claim_key(shared, at, target.as_str(), ttl).await?;
                if let Some(first) = first.and_then(|id| WorkspaceId::parse(&id).ok()) {
                    self.targets.insert(at, first, lasts);
                }
                self.bound_keys(shared, (key, at, owner), ttl).await
            }
            Note::Renew { key, at } => {
                let keys = [key.as_str(), at.as_str()];
                shared.refresh(&keys, ttl).await.map(drop)
            }
            Note::Bind(bind) => self.write_binding(shared, bind).await,
            Note::End(_) => Ok(()),
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
