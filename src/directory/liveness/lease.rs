//! Liveness: a lease that lapses unless renewed.
//!
//! Key `directory.heartbeat_key`, value the time of the last heartbeat in milliseconds, TTL
//! `registry.heartbeat_ttl`. Grant and renewal are the same `SET … EX`: a renewal must be able to
//! bring a lapsed lease back, which a bare `EXPIRE` cannot.
//!
//! A missing lease proves a lapse, except while the shared state may lack leases that were or would
//! have been granted: after it was away or had to be connected to again, and after a start at which
//! some were missing. Then, for one TTL, `last_seen` in SQL counts as well, which may be [`SQL_LAG`]
//! behind; after a start each agent has one TTL, since it may not have reached a gateway before.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::key_pattern::KeyPattern;
use crate::config::Live;
use crate::ids::{InstanceId, WorkspaceId};
use crate::shared::{Shared, Subscription};
use crate::store::Unavailable;
use crate::time::Timestamp;
use crate::workspace::{Liveness, Workspace};

/// Maximum delay of a due write to SQL, besides the half TTL after which it is due.
const SQL_LAG: Duration = Duration::from_secs(5);

/// Liveness of one workspace in the shared state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// The lease lasts at least this long.
    Held(Duration),
    /// There is no lease.
    Missing,
}

/// Liveness of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Its status decides: it is not up, its liveness is assumed, or the shared state does not answer.
    AsItsStatus,
    /// It has a lease that ends after this time.
    Beats(Duration),
    /// It must send heartbeats, and its lease has ended.
    Lapsed,
}

/// True if the status of the workspace depends on heartbeats.
pub(crate) fn must_beat(workspace: &Workspace) -> bool {
    workspace.status.is_up() && workspace.liveness == Liveness::Heartbeat
}

/// Leases of all workspaces.
pub(crate) struct Leases {
    shared: Shared,
    key: KeyPattern,
    config: Live,
    started: Instant,
    /// True once the leases granted before the start are known.
    known: AtomicBool,
    /// End of the time in which a missing lease proves nothing, in milliseconds after `started`.
    doubtful_until: AtomicU64,
    /// Count of losses of the shared state when a lease was last read.
    losses: AtomicU64,
}

/// Maximum age of SQL's `last_seen` of a live workspace, for a given TTL.
pub(super) fn lag_max(ttl: Duration) -> Duration {
    ttl / 2
}

impl Leases {
    pub(super) fn new(shared: Shared, key: &str, config: Live) -> Self {
        Self {
            key: KeyPattern::new(key),
            config,
            started: Instant::now(),
            known: AtomicBool::new(false),
            doubtful_until: AtomicU64::new(0),
            losses: AtomicU64::new(shared.loss_count()),
            shared,
        }
    }

    /// Returns the lifetime of a lease that begins now.
    pub(crate) fn ttl(&self) -> Duration {
        self.config.get().registry.heartbeat_ttl
    }

    /// Maximum age of SQL's `last_seen` of a live workspace.
    pub(super) fn lag_max(&self) -> Duration {
        lag_max(self.ttl())
    }

    /// Subscribes to expired leases, as far as the shared state notifies them.
    pub(super) fn subscribe_to_lapses(&self) -> Subscription {
        self.shared.watch_lapses(self.key.prefix())
    }

    /// Returns the key of a lease.
    pub(super) fn lease_key(&self, id: &WorkspaceId) -> String {
        self.key.format_key(id)
    }

    /// Returns the workspace of a lease key, if it is one.
    pub(super) fn parse_key(&self, key: &str) -> Option<WorkspaceId> {
        self.key.parse_id(key)
    }

    /// Grants or renews a lease.
    pub(crate) async fn renew(&self, id: &WorkspaceId, now: Timestamp) -> Result<(), Unavailable> {
        let (key, value) = (self.key.format_key(id), now.0.to_string());
        self.note_losses(self.shared.set(&key, &value, Some(self.ttl())).await)
    }

    /// Grants or renews the lease of a workspace and those of its `instances`, in one round trip.
    pub(crate) async fn renew_with(
        &self,
        id: &WorkspaceId,
        instances: &[&InstanceId],
        now: Timestamp,
    ) -> Result<(), Unavailable> {
        let mut keys = vec![self.key.format_key(id)];
        keys.extend(instances.iter().map(|one| self.key.instance_key(id, one)));
        let value = now.0.to_string();
        let values: Vec<(&str, &str)> = keys.iter().map(|key| (&**key, &*value)).collect();
        self.note_losses(self.shared.set_many(&values, self.ttl()).await)
    }

    /// Deletes the leases of instances.
    pub(crate) async fn end_instances(
        &self,
        id: &WorkspaceId,
        instances: &[&InstanceId],
    ) -> Result<(), Unavailable> {
        let keys = instances.iter().map(|one| self.key.instance_key(id, one));
        let keys: Vec<String> = keys.collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.note_losses(self.shared.delete(&keys).await)
    }

    /// Returns the times at which instances renewed their leases, for those that hold one, in one round trip. As
    /// [`Leases::renewal_times`].
    pub(crate) async fn instance_renewal_times(
        &self,
        id: &WorkspaceId,
        instances: &[&InstanceId],
        now: Timestamp,
    ) -> Result<Vec<Option<Timestamp>>, Unavailable> {
        let keys = instances.iter().map(|one| self.key.instance_key(id, one));
        self.read_times(keys.collect(), now).await
    }

    /// Deletes a lease.
    pub(crate) async fn delete(&self, id: &WorkspaceId) -> Result<(), Unavailable> {
        self.note_losses(self.shared.delete(&[&self.key.format_key(id)]).await)
    }

    /// Reads a lease. A key without a TTL, which only another program writes, counts as new.
    pub(crate) async fn read(&self, id: &WorkspaceId) -> Result<Lease, Unavailable> {
        let found = self.shared.get_with_ttl(&self.key.format_key(id)).await;
        Ok(match self.note_losses(found)? {
            Some((_, left)) => Lease::Held(left.unwrap_or(self.ttl())),
            None => Lease::Missing,
        })
    }

    /// Returns the times at which `ids` renewed their leases, for those that hold one, in one round trip. A
    /// value that is no time, which only another program writes, counts as now.
    pub(crate) async fn renewal_times(
        &self,
        ids: &[WorkspaceId],
        now: Timestamp,
    ) -> Result<Vec<Option<Timestamp>>, Unavailable> {
        self.read_times(ids.iter().map(|id| self.key.format_key(id)).collect(), now)
            .await
    }

    async fn read_times(
        &self,
        keys: Vec<String>,
        now: Timestamp,
    ) -> Result<Vec<Option<Timestamp>>, Unavailable> {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.note_losses(self.shared.get_many(&keys).await)?;
        let time = |value: String| value.parse().map_or(now, Timestamp);
        Ok(found.into_iter().map(|value| value.map(time)).collect())
    }

    /// Returns how much longer a workspace without a lease counts as alive; `None`: it lapsed.
    pub(crate) fn benefit_of_doubt(
        &self,
        last_seen: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Duration> {
        let until = last_seen?.after(self.ttl() + self.lag_max() + SQL_LAG);
        let left = until.since(now).max(self.start_left());
        let left = left.min(self.doubt_left());
        (!left.is_zero()).then_some(left)
    }

    /// Returns the time since which a live workspace or instance was seen, by SQL.
    pub(crate) fn seen_since(&self, now: Timestamp) -> Timestamp {
        now.before(self.ttl() + self.lag_max() + SQL_LAG)
    }

    /// Returns the rest of the time in which a missing lease proves nothing.
    pub(crate) fn doubt_left(&self) -> Duration {
        let until = self.doubtful_until.load(Ordering::Acquire);
        Duration::from_millis(until.saturating_sub(self.elapsed_ms())).max(self.start_left())
    }

    /// Returns the rest of the time in which agents have not had a TTL since the start to renew their leases; zero
    /// once all leases granted before are known.
    pub(super) fn start_left(&self) -> Duration {
        if self.known.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        self.ttl().saturating_sub(self.started.elapsed())
    }

    /// Ends the doubt of the start.
    pub(super) fn set_known(&self) {
        self.known.store(true, Ordering::Release);
    }

    /// Starts a TTL in which a missing lease proves nothing.
    pub(crate) fn start_doubt(&self) {
        let ttl = u64::try_from(self.ttl().as_millis()).unwrap_or(u64::MAX);
        let until = self.elapsed_ms().saturating_add(ttl);
        self.doubtful_until.fetch_max(until, Ordering::AcqRel);
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Notes a failure or a reconnect of the store, after which it may have lost leases.
    fn note_losses<T>(&self, result: Result<T, Unavailable>) -> Result<T, Unavailable> {
        let losses = self.shared.loss_count();
        if result.is_err() || self.losses.swap(losses, Ordering::AcqRel) != losses {
            self.start_doubt();
        }
        result
    }
}
