//! Resolves a permit to a destination: from memory, from the stores, or, if no store answers, from the last
//! known entry (`docs/reference/store-failures.md`).
//!
//! | SQL | shared state | source |
//! |---|---|---|
//! | answers | answers | the row; URLs from the shared state first; the lease |
//! | answers | away | the row, its status included: no lease can be read, and heartbeats still reach SQL |
//! | away | answers | the row of up to `directory.stale` ago, with the shared state's URLs and lease |
//! | away | away | the entry of up to `directory.stale` ago |
//!
//! None of this affects access, which the permit has decided before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moka::future::Cache;
use tokio::time::Instant;

use super::entry::{Entry, Pulse, ReadAt, Urls, must_beat};
use super::heartbeat_buffer::HeartbeatBuffer;
use super::lease::Lease;
use super::{Destination, Directory};
use crate::coherence::{Coherence, Coherent, Invalidation};
use crate::hierarchy::Permit;
use crate::ids::WorkspaceId;
use crate::metrics::Noticed;
use crate::rejection::Rejection;
use crate::store::Unavailable;
use crate::workspace::{Timestamp, Workspace};

/// Values of one workspace in the shared state.
struct Heard {
    url: Option<String>,
    internal_url: Option<String>,
    lease: Lease,
}

/// State of SQL at a load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sql {
    Answers,
    /// SQL does not answer; the row was read at this time.
    Away(Instant),
}

impl Directory {
    /// Returns the destination of a permitted message.
    ///
    /// # Errors
    /// `workspace_offline`, `workspace_restarting`, `address_forbidden`, `workspace_removed`;
    /// `store_unavailable` if no entry is known.
    pub async fn resolve(&self, permit: &Permit) -> Result<Destination, Rejection> {
        let entry = self.entry(permit.target()).await?;
        self.destination(permit.target(), &entry).await
    }

    pub(super) async fn entry(&self, id: &WorkspaceId) -> Result<Arc<Entry>, Rejection> {
        Ok(self.entry_from(id).await?.0)
    }

    /// Returns the entry, and true if it was in memory.
    pub(super) async fn entry_from(
        &self,
        id: &WorkspaceId,
    ) -> Result<(Arc<Entry>, bool), Rejection> {
        if let Some(entry) = self.entries.get(id).await {
            return Ok((entry, true));
        }
        // Boxed: a miss is rare, and its future would otherwise widen every exchange's.
        let loaded = Box::pin(self.entries.get_or_load(id, || self.load(id))).await;
        match loaded {
            Ok(entry) => Ok((entry, false)),
            Err(error) => Err(Rejection::from(Unavailable::clone(&error))),
        }
    }

    /// Returns the destination of a message; records a lapse that is not recorded yet.
    pub(super) async fn destination(
        &self,
        id: &WorkspaceId,
        entry: &Entry,
    ) -> Result<Destination, Rejection> {
        if entry.pulse == Pulse::Lapsed && !entry.lapse_noted.swap(true, Ordering::AcqRel) {
            Box::pin(self.note_lapse(id, Noticed::Request)).await;
        }
        entry.destination().map_err(|not_reached| not_reached.why)
    }

    async fn load(&self, id: &WorkspaceId) -> Result<Arc<Entry>, Unavailable> {
        let changes = self.changes.load(Ordering::Acquire);
        let (row, heard) = tokio::join!(self.workspaces.find(id), self.hear(id));
        match row {
            Ok(row) => {
                self.outage_since.store(0, Ordering::Release);
                let entry = Arc::new(self.assemble(row, heard.ok(), Sql::Answers));
                self.known.insert(id.clone(), Arc::clone(&entry)).await;
                if self.changes.load(Ordering::Acquire) != changes {
                    self.known.invalidate(id).await;
                }
                Ok(entry)
            }
            Err(error) => self.stale(id, heard.ok()).await.ok_or(error),
        }
    }

    /// Reads the shared state: two concurrent round trips.
    async fn hear(&self, id: &WorkspaceId) -> Result<Heard, Unavailable> {
        let keys = [self.url_key.key(id), self.internal_url_key.key(id)];
        let keys = [keys[0].as_str(), keys[1].as_str()];
        let (urls, lease) = tokio::join!(self.shared.get_many(&keys), self.leases.read(id));
        let mut urls = urls.inspect_err(|_| self.leases.doubt())?.into_iter();
        Ok(Heard {
            url: urls.next().flatten(),
            internal_url: urls.next().flatten(),
            lease: lease?,
        })
    }

    fn assemble(&self, row: Option<Workspace>, heard: Option<Heard>, sql: Sql) -> Entry {
        let now = Instant::now();
        let read_at = ReadAt {
            row: match sql {
                Sql::Answers => now,
                Sql::Away(read_at) => read_at,
            },
            shared: heard.is_some().then_some(now),
            stale: sql != Sql::Answers,
        };
        let Some(workspace) = row else {
            return self.entry_of(None, Urls::default(), Pulse::AsItsStatus, true, read_at);
        };
        let pulse = heard.as_ref().map_or(Pulse::AsItsStatus, |heard| {
            self.pulse(&workspace, heard.lease)
        });
        let whole = heard.is_some() && sql == Sql::Answers;
        let (url, internal_url) = heard.map_or((None, None), |h| (h.url, h.internal_url));
        let urls = Urls::of(&workspace, url, internal_url);
        self.entry_of(Some(workspace), urls, pulse, whole, read_at)
    }

    fn pulse(&self, workspace: &Workspace, lease: Lease) -> Pulse {
        if !must_beat(workspace) {
            return Pulse::AsItsStatus;
        }
        let last_seen = self.last_seen(workspace);
        match lease {
            Lease::Held(left) => Pulse::Beats(left),
            Lease::Missing => self
                .leases
                .benefit_of_doubt(last_seen, Timestamp::now())
                .map_or(Pulse::Lapsed, Pulse::Beats),
        }
    }

    /// Returns the last sign of life: SQL's, or a later heartbeat at this replica.
    pub(super) fn last_seen(&self, workspace: &Workspace) -> Option<Timestamp> {
        workspace
            .last_seen
            .max(self.heartbeat_buffer.last_seen(&workspace.id))
    }

    /// Returns the last entry before SQL stopped answering, if it is recent enough.
    async fn stale(&self, id: &WorkspaceId, heard: Option<Heard>) -> Option<Arc<Entry>> {
        let outage = self.outage();
        let known = self.known.get(id).await?;
        let stale = self.config.get().directory.stale;
        let age = known.loaded_at.elapsed();
        if outage >= stale || age >= known.age_max.saturating_add(stale) {
            return None;
        }
        tracing::debug!(workspace.id = %id, "SQL does not answer; using the last known state");
        let entry = match heard {
            Some(heard) => {
                let sql = Sql::Away(known.read_at.row);
                self.assemble(known.workspace.clone(), Some(heard), sql)
            }
            None => {
                let (row, urls) = (known.workspace.clone(), known.urls.clone());
                let read_at = ReadAt {
                    stale: true,
                    ..known.read_at
                };
                self.entry_of(row, urls, known.pulse_of_old(), false, read_at)
            }
        };
        entry.take_over_settled(&known);
        Some(Arc::new(entry))
    }

    /// Duration of the current outage of SQL; it begins now if SQL answered until now.
    fn outage(&self) -> Duration {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let now = now.max(1);
        let first = self
            .outage_since
            .compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        let since = first.err().unwrap_or(now);
        Duration::from_millis(now.saturating_sub(since))
    }
}

impl Entry {
    /// Liveness of an earlier entry: no lapse can be proven without a store, so it stays as it was.
    fn pulse_of_old(&self) -> Pulse {
        match self.pulse {
            Pulse::Lapsed => Pulse::Lapsed,
            Pulse::Beats(_) | Pulse::AsItsStatus => Pulse::AsItsStatus,
        }
    }
}

/// Drops the entry of a workspace that changed, here or on another replica, and queues its last heartbeat for
/// SQL, since its row is read now.
pub(super) fn forget_what_changes(
    coherence: &Coherence,
    entries: &Coherent<WorkspaceId, Arc<Entry>>,
    known: &Cache<WorkspaceId, Arc<Entry>>,
    changes: &Arc<AtomicU64>,
    heartbeat_buffer: &Arc<HeartbeatBuffer>,
) {
    let (entries, known, changes) = (entries.clone(), known.clone(), Arc::clone(changes));
    let heartbeat_buffer = Arc::clone(heartbeat_buffer);
    coherence.on_invalidation(move |what| {
        let (entries, known, heartbeat_buffer) = (
            entries.clone(),
            known.clone(),
            Arc::clone(&heartbeat_buffer),
        );
        changes.fetch_add(1, Ordering::AcqRel);
        async move {
            match what {
                // The row stays: during an outage of SQL it still counts, with the new URLs.
                Invalidation::Address(id) => entries.forget(&id).await,
                Invalidation::Workspace(id) => {
                    entries.forget(&id).await;
                    known.invalidate(&id).await;
                    heartbeat_buffer.hasten(&id);
                }
                // After a gap all entries are loaded again. If no store answers then, the last known entries
                // count, for `directory.stale`.
                Invalidation::Everything => entries.forget_all(),
                Invalidation::Credential(_)
                | Invalidation::Grant(..)
                | Invalidation::Lineage(_) => {}
            }
        }
    });
}
