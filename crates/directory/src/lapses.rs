//! Lapses of heartbeats. Three find them: notifications of expired leases from the shared state, one query of SQL a
//! second, and a request to a workspace whose lease has ended (`directory/src/resolution/resolve.rs`). Each lapse is
//! verified against the lease, and recorded in SQL by exactly one replica, which invalidates the caches and publishes
//! the event. From then on requests are rejected; calls and streams that are open go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::{StreamExt as _, stream};

use super::core::Core;
use access::workspace::Status;
use kernel::ids::WorkspaceId;
use kernel::metrics::LapseSource;
use kernel::time::Timestamp;
use stores::shared::Notice;
use stores::store::Unavailable;

/// Workspaces per round trip.
const BATCH_MAX: usize = 500;

/// Maximum round trips of one sweep; the rest waits for the next, a second later.
const BATCHES_MAX: usize = 20;

/// Maximum concurrent writes of lapses: a network failure causes many, and requests need connections, too.
const AT_ONCE_MAX: usize = 4;

/// Finds and records lapses of heartbeats.
pub struct Lapses {
    core: Arc<Core>,
    closing: AtomicBool,
}

impl Lapses {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            closing: AtomicBool::new(false),
        }
    }

    /// Stops recording lapses: the process shuts down, and other replicas record them.
    pub fn stop(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Ends the doubt of the start if each workspace that SQL has as up holds a lease, of as many as one query finds,
    /// or if it has passed. Returns true if leases are known from now on.
    pub async fn know_leases(&self) -> bool {
        let leases = &self.core.presence.leases;
        if !leases.start_left().is_zero() {
            let now = Timestamp::now();
            let Ok(up) = self.core.workspaces.find_overdue(now, BATCH_MAX).await else {
                return false;
            };
            let renewed = leases.renewal_times(up.iter().map(|(id, _)| (id, None)), now);
            let renewed = renewed.await;
            if !renewed.is_ok_and(|renewed| renewed.iter().all(Option::is_some)) {
                return false;
            }
            leases.set_known();
        }
        true
    }

    /// Sets workspaces with a lapsed heartbeat to `offline` and returns them. Runs every second, on every
    /// replica: each lapse is recorded by one of them.
    ///
    /// # Errors
    /// When a store does not answer: then no lapse can be proven.
    pub async fn sweep(&self) -> Result<Vec<WorkspaceId>, Unavailable> {
        let mut lapsed = Vec::new();
        for _ in 0..BATCHES_MAX {
            let now = Timestamp::now();
            let cutoff = now.before(self.core.presence.leases.ttl());
            let overdue = self.core.workspaces.find_overdue(cutoff, BATCH_MAX).await?;
            let found = overdue.len();
            let settled = self.record_overdue(overdue, now, &mut lapsed).await?;
            // The remaining workspaces would be found again: lapses in doubt, with the latest `last_seen`.
            if found < BATCH_MAX || settled < found {
                break;
            }
        }
        Ok(lapsed)
    }

    /// Records lapses, and the last heartbeats of workspaces that still hold a lease, which SQL does not have.
    /// Returns how many are not overdue any more.
    async fn record_overdue(
        &self,
        overdue: Vec<(WorkspaceId, Option<Timestamp>)>,
        now: Timestamp,
        lapsed: &mut Vec<WorkspaceId>,
    ) -> Result<usize, Unavailable> {
        let leases = &self.core.presence.leases;
        let names = overdue.iter().map(|(id, _)| (id, None));
        let renewed = leases.renewal_times(names, now).await?;
        let (mut dead, mut alive) = (Vec::new(), Vec::new());
        for ((id, last_seen), renewed) in overdue.into_iter().zip(renewed) {
            let heard = self.core.heartbeats.workspaces.last_seen(&id);
            let last_seen = last_seen.max(heard);
            match renewed {
                Some(at) => alive.push((id, at)),
                None if leases.benefit_of_doubt(last_seen, now).is_none() => dead.push(id),
                None => {}
            }
        }
        let settled = dead.len() + alive.len();
        self.core.workspaces.touch_many(&alive).await?;
        lapsed.extend(self.record_all(dead, now, LapseSource::Sweep).await);
        Ok(settled)
    }

    /// Records lapses when the shared state notifies expired leases. A background task of the server that runs
    /// until the process ends; without it the sweep finds them.
    pub async fn follow_expired_leases(&self) {
        let key = &self.core.presence.leases.key;
        let mut lapses = self.core.shared.watch_lapses(&key.prefix);
        loop {
            let mut ids = Vec::new();
            let mut notice = Some(lapses.next().await);
            while let Some(received) = notice {
                // Notifications are lost while the link is down; the sweep finds those lapses.
                if let Notice::Message(name) = received {
                    ids.extend(key.parse_id(&name));
                }
                notice = (ids.len() < BATCH_MAX).then(|| lapses.try_next()).flatten();
            }
            if let Err(error) = self.record_expired(ids).await {
                tracing::debug!(%error, "failed to check expired leases; left to the sweep");
            }
        }
    }

    /// Records a lapse for those of `ids` without a lease. While a missing lease proves nothing, neither does
    /// an expired one: heartbeats may have gone to SQL.
    async fn record_expired(&self, ids: Vec<WorkspaceId>) -> Result<(), Unavailable> {
        if ids.is_empty() {
            return Ok(());
        }
        let (leases, now) = (&self.core.presence.leases, Timestamp::now());
        let names = ids.iter().map(|id| (id, None));
        let renewed = leases.renewal_times(names, now).await?;
        if leases.doubt_left().is_zero() {
            let dead = ids.into_iter().zip(renewed);
            let dead = dead.filter(|(_, renewed)| renewed.is_none());
            let dead = dead.map(|(id, _)| id).collect();
            self.record_all(dead, now, LapseSource::Expiry).await;
        }
        Ok(())
    }

    /// `missing`: when the leases were looked up.
    async fn record_all(
        &self,
        dead: Vec<WorkspaceId>,
        missing: Timestamp,
        noticed: LapseSource,
    ) -> Vec<WorkspaceId> {
        let record = |id: WorkspaceId| async move {
            if self.closing.load(Ordering::Acquire) {
                return None;
            }
            let recorded = self.record(&id, missing, noticed).await;
            recorded.then_some(id)
        };
        let recorded = stream::iter(dead).map(record).buffer_unordered(AT_ONCE_MAX);
        recorded.filter_map(std::future::ready).collect().await
    }

    /// Records a lapse, unless a heartbeat came in between. Best effort: the next resolution or sweep does it
    /// again. `missing`: when the lease was looked up.
    pub(crate) async fn record(
        &self,
        id: &WorkspaceId,
        missing: Timestamp,
        noticed: LapseSource,
    ) -> bool {
        let now = Timestamp::now();
        let recorded = self.core.workspaces.record_lapse(id, missing, now).await;
        self.core.announcer.resolve_doubt(id, now, &recorded).await;
        match recorded {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                tracing::debug!(%error, workspace.id = %id, "failed to record a lapse; will retry");
                return false;
            }
        }
        // A heartbeat that read "online" just before did not change the row. Its lease counts now.
        if let Ok(Some(_)) = self.core.presence.leases.read(id).await {
            self.revive(id, now).await;
        } else {
            self.core.metrics.lapses[noticed].inc();
            tracing::info!(workspace.id = %id, "Workspace offline: its heartbeat lapsed");
            let offline = Status::Offline;
            self.core.announcer.announce_status(id, offline);
            self.core.announcer.announce_if_overtaken(id, offline).await;
        }
        self.core.announcer.invalidate(id).await;
        true
    }

    async fn revive(&self, id: &WorkspaceId, now: Timestamp) {
        let (from, to) = (Status::Offline, Status::Online);
        let set = self.core.workspaces.set_status(id, from, to, now).await;
        self.core.announcer.resolve_doubt(id, now, &set).await;
        match set {
            // It may have been degraded before; the next heartbeat sets that again.
            Ok(true) => self.core.announcer.announce_status(id, to),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, workspace.id = %id, "failed to set a live workspace online; its next heartbeat will retry");
            }
        }
    }
}
