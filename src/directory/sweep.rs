//! Lapses of heartbeats: found by notifications of expired leases from the shared state, and by one query of
//! SQL a second. Each lapse is verified against the lease, and recorded in SQL by exactly one replica, which
//! invalidates the caches and publishes the event.

use std::sync::atomic::Ordering;

use futures_util::StreamExt as _;
use futures_util::stream;

use super::Directory;
use super::lease::Lease;
use crate::coherence::Invalidation;
use crate::ids::WorkspaceId;
use crate::metrics::Noticed;
use crate::shared::Notice;
use crate::store::Unavailable;
use crate::workspace::{Status, Timestamp};

/// Workspaces per round trip.
const BATCH_MAX: usize = 500;
/// Maximum round trips of one sweep; the rest waits for the next, a second later.
const BATCHES_MAX: usize = 20;
/// Maximum concurrent writes of lapses: a network failure causes many, and requests need connections, too.
const AT_ONCE_MAX: usize = 4;
/// Retention of heartbeats in the buffer, in TTLs.
const WORDS_TTLS: u32 = 2;

impl Directory {
    /// Sets workspaces with a lapsed heartbeat to `offline` and returns them. Runs every second, on every
    /// replica: each lapse is recorded by one of them.
    ///
    /// # Errors
    /// When a store does not answer: then no lapse can be proven.
    pub async fn sweep(&self) -> Result<Vec<WorkspaceId>, Unavailable> {
        let mut lapsed = Vec::new();
        for _ in 0..BATCHES_MAX {
            let now = Timestamp::now();
            let cutoff = now.before(self.leases.ttl());
            let overdue = self.workspaces.overdue(cutoff, BATCH_MAX).await?;
            let found = overdue.len();
            let settled = self.settle(overdue, now, &mut lapsed).await?;
            // The remaining workspaces would be found again: lapses in doubt, with the latest `last_seen`.
            if found < BATCH_MAX || settled < found {
                break;
            }
        }
        Ok(lapsed)
    }

    /// Records lapses, and the last heartbeats of workspaces that still hold a lease, which SQL does not have.
    /// Returns how many are not overdue any more.
    async fn settle(
        &self,
        overdue: Vec<(WorkspaceId, Option<Timestamp>)>,
        now: Timestamp,
        lapsed: &mut Vec<WorkspaceId>,
    ) -> Result<usize, Unavailable> {
        let ids: Vec<WorkspaceId> = overdue.iter().map(|(id, _)| id.clone()).collect();
        let renewed = self.leases.renewed(&ids, now).await?;
        let (mut dead, mut alive) = (Vec::new(), Vec::new());
        for ((id, last_seen), renewed) in overdue.into_iter().zip(renewed) {
            let heard = self.heartbeat_buffer.last_seen(&id);
            let doubtful = || self.leases.benefit_of_doubt(last_seen.max(heard), now);
            match renewed {
                Some(at) => alive.push((id, at)),
                None if doubtful().is_none() => dead.push(id),
                None => {}
            }
        }
        let settled = dead.len() + alive.len();
        self.workspaces.touch_many(&alive).await?;
        lapsed.extend(self.note_lapses(dead, Noticed::Sweep).await);
        Ok(settled)
    }

    /// Records lapses when the shared state notifies expired leases. A background task of the server that runs
    /// until the process ends; without it the sweep finds them.
    pub async fn follow_lapses(&self) {
        let mut lapses = self.leases.lapses();
        loop {
            let mut ids = Vec::new();
            let mut notice = Some(lapses.next().await);
            while let Some(told) = notice {
                // Notifications are lost while the link is down; the sweep finds those lapses.
                if let Notice::Message(key) = told {
                    ids.extend(self.leases.id(&key));
                }
                notice = (ids.len() < BATCH_MAX).then(|| lapses.ready()).flatten();
            }
            if let Err(error) = self.believe(ids).await {
                tracing::debug!(%error, "failed to check expired leases; left to the sweep");
            }
        }
    }

    /// Records a lapse for those of `ids` without a lease. While a missing lease proves nothing, neither does
    /// an expired one: heartbeats may have gone to SQL.
    async fn believe(&self, ids: Vec<WorkspaceId>) -> Result<(), Unavailable> {
        if ids.is_empty() {
            return Ok(());
        }
        let renewed = self.leases.renewed(&ids, Timestamp::now()).await?;
        if self.leases.doubt_left().is_zero() {
            let dead = ids.into_iter().zip(renewed);
            let dead = dead.filter(|(_, renewed)| renewed.is_none());
            let dead = dead.map(|(id, _)| id).collect();
            self.note_lapses(dead, Noticed::Expiry).await;
        }
        Ok(())
    }

    async fn note_lapses(&self, dead: Vec<WorkspaceId>, noticed: Noticed) -> Vec<WorkspaceId> {
        let note = |id: WorkspaceId| async move {
            if self.closing.load(Ordering::Acquire) {
                return None;
            }
            let noted = self.note_lapse(&id, noticed).await;
            noted.then_some(id)
        };
        let noted = stream::iter(dead).map(note).buffer_unordered(AT_ONCE_MAX);
        noted.filter_map(std::future::ready).collect().await
    }

    /// Records a lapse, unless a heartbeat came in between. Best effort: the next resolution or sweep does it
    /// again.
    pub(super) async fn note_lapse(&self, id: &WorkspaceId, noticed: Noticed) -> bool {
        let now = Timestamp::now();
        let noted = self.workspaces.lapse(id, now).await;
        self.doubt(id, now, &noted).await;
        match noted {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                tracing::debug!(%error, workspace.id = %id, "failed to record a lapse; will retry");
                return false;
            }
        }
        // A heartbeat that read "online" just before did not change the row. Its lease counts now.
        if let Ok(Lease::Held(_)) = self.leases.read(id).await {
            self.revive(id, now).await;
        } else {
            self.metrics.lapse(noticed);
            tracing::info!(workspace.id = %id, "Workspace offline: its heartbeat lapsed");
            self.tell_status(id, Status::Offline);
            self.tell_if_overtaken(id, Status::Offline).await;
        }
        self.coherence
            .invalidate(Invalidation::Workspace(id.clone()))
            .await;
        true
    }

    async fn revive(&self, id: &WorkspaceId, now: Timestamp) {
        let (from, to) = (Status::Offline, Status::Online);
        let set = self.workspaces.set_status(id, from, to, now).await;
        self.doubt(id, now, &set).await;
        match set {
            // It may have been degraded before; the next heartbeat sets that again.
            Ok(true) => self.tell_status(id, to),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, workspace.id = %id, "failed to set a live workspace online; its next heartbeat will retry");
            }
        }
    }

    /// Writes the queued heartbeats. Runs every second.
    ///
    /// # Errors
    /// When SQL does not answer; the heartbeats stay queued.
    pub async fn flush_last_seen(&self) -> Result<(), Unavailable> {
        self.heartbeat_buffer.flush(&self.workspaces).await
    }

    /// Writes all heartbeats, at shutdown.
    ///
    /// # Errors
    /// When SQL does not answer.
    pub async fn flush_all(&self) -> Result<(), Unavailable> {
        self.heartbeat_buffer.hasten_all();
        self.heartbeat_buffer.flush(&self.workspaces).await
    }

    /// Drops silent workspaces from the heartbeat buffer. Runs now and then.
    pub fn forget_silent(&self) {
        let kept = self.leases.ttl() * WORDS_TTLS;
        self.heartbeat_buffer.forget(Timestamp::now().before(kept));
    }
}
