//! Writing down for all replicas what this one learnt, in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::Tasks;
use crate::ids::WorkspaceId;
use crate::shared::Shared;
use crate::store::Unavailable;
use crate::telemetry::Chain;

/// Notes that wait at most, as long as the store is away or behind.
pub(super) const NOTES_MAX: usize = 4096;

/// Notes that are written at the same time.
const BATCH_MAX: usize = 64;

/// Between two tries to write one.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// How long the end of the process waits for what is not written yet.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// What is to be written.
#[derive(Debug)]
pub(super) enum Note {
    /// A task was started.
    Claim {
        key: String,
        at: String,
        owner: Arc<str>,
        target: WorkspaceId,
    },
    /// Its owner used it.
    Renew { key: String, at: String },
}

impl Tasks {
    /// Queues a note, unless this gateway is alone.
    pub(super) fn note(&self, note: Note) {
        if self.shared.is_none() {
            return;
        }
        self.unwritten.fetch_add(1, Ordering::AcqRel);
        self.metrics.queues.task_notes.inc();
        if self.notes.try_send(note).is_err() {
            self.unwritten.fetch_sub(1, Ordering::AcqRel);
            self.metrics.queues.task_notes.dec();
            self.metrics.tasks.notes_dropped.inc();
        }
    }

    /// Writes down what is learnt. A background task; runs until it is dropped, if there is anything to
    /// write for others.
    pub async fn run(&self) {
        let Some(shared) = &self.shared else { return };
        let mut notes = self.to_write.lock().await;
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while notes.recv_many(&mut batch, BATCH_MAX).await > 0 {
            join_all(batch.drain(..).map(|note| self.write(shared, note))).await;
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
        self.unwritten.fetch_sub(1, Ordering::AcqRel);
        self.metrics.queues.task_notes.dec();
    }

    async fn try_write(&self, shared: &Shared, note: &Note) -> Result<(), Unavailable> {
        let ttl = self.config.get().a2a.task_ttl;
        match note {
            Note::Claim {
                key,
                at,
                owner,
                target,
            } => {
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
                Ok(())
            }
            Note::Renew { key, at } => {
                let keys = [key.as_str(), at.as_str()];
                shared.refresh(&keys, ttl).await.map(drop)
            }
        }
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
