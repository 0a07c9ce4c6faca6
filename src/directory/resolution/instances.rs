//! Instances of a workspace in its entry: the named ones, with their rows and the ends of their leases, and those at the
//! addresses of a name.
//!
//! An entry counts until the first lease of an instance ends that has not been renewed at this replica. Then it is
//! loaded again, without those that are offline. With one that may return it is loaded again soon.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::{Destination, Entries, Entry, ResolutionFailure};
use crate::directory::address::LookupFor;
use crate::directory::liveness::AgentUrls;
use crate::ids::InstanceId;
use crate::shares::Account;
use crate::store::Unavailable;
use crate::time::{Timestamp, to_millis};
use crate::workspace::{
    DeliveryMode, INSTANCES_MAX, InstanceStatus, Liveness, Status, StoredInstance, Workspace,
    default_instance,
};

/// Minimum rest of a lease that exists: the clocks of two replicas differ.
const LEFT_MIN: Duration = Duration::from_secs(1);

/// Lifetime of an entry with an instance that is offline and may return: the replica that gets its heartbeats may know
/// it as alive, and then announces nothing.
const OFFLINE_TTL: Duration = Duration::from_secs(5);

/// Silence after which an instance is not expected to return, except by a registration.
const RETURNS_WITHIN: Duration = Duration::from_secs(3600);

/// Lifetime of an entry whose instances are the addresses of a name, which is resolved anew with it.
const RESOLVED_TTL: Duration = Duration::from_secs(10);

/// Named instance, as read from the stores.
#[derive(Clone, Debug)]
pub(super) struct InstanceFacts {
    pub(super) row: StoredInstance,
    /// Rest of its lease; `None`: it is offline. [`Duration::MAX`]: it needs none.
    pub(super) alive_for: Option<Duration>,
    /// Its last sign of life; `None`: it sends none.
    pub(super) last_seen: Option<Timestamp>,
    /// Its address among those of the name in its URL; `None`: the URL is its own.
    pub(super) address: Option<IpAddr>,
}

impl InstanceFacts {
    /// Liveness without a store: no lapse can be proven, so it stays as it was.
    pub(super) fn from_cached(known: &CachedInstance) -> Self {
        Self {
            row: known.row.clone(),
            alive_for: known.is_alive.then_some(Duration::MAX),
            last_seen: Some(known.row.last_seen),
            address: known.address,
        }
    }
}

/// Returns the URLs of a workspace with instances, as readers see them: those of the instance that a call goes to, and
/// all that no card shows.
pub(super) fn urls_of(
    instances: &[InstanceFacts],
    urls: AgentUrls,
    reach: &Result<Destination, ResolutionFailure>,
) -> AgentUrls {
    if instances.is_empty() {
        return urls;
    }
    let rows = || instances.iter().map(|one| &one.row);
    let all = rows().flat_map(|row| [Some(&row.url), row.internal_url.as_ref()]);
    let mut urls = AgentUrls {
        instances: Some(all.flatten().cloned().collect()),
        ..urls
    };
    if let Ok(Destination::Agent(agent)) = reach
        && let Some(row) = rows().find(|row| Some(&row.id) == agent.instance.as_ref())
    {
        let internal = row.internal_url.as_ref().unwrap_or(&row.url);
        urls.internal = Some(internal.clone());
        urls.host = Some(row.url.clone());
    }
    urls
}

/// Named instance in an entry.
#[derive(Debug)]
pub(crate) struct CachedInstance {
    pub(crate) row: StoredInstance,
    address: Option<IpAddr>,
    /// True if it was not offline when the entry was loaded.
    pub(crate) is_alive: bool,
    /// True if it was offline when the entry was loaded, and not for long.
    may_return: bool,
    /// Milliseconds after the load of the entry; each heartbeat moves it.
    alive_until: AtomicU64,
}

impl From<InstanceFacts> for CachedInstance {
    fn from(facts: InstanceFacts) -> Self {
        let silent_for = |at: Timestamp| Timestamp::now().since(at);
        let is_recent = facts
            .last_seen
            .is_some_and(|at| silent_for(at) < RETURNS_WITHIN);
        Self {
            row: facts.row,
            address: facts.address,
            is_alive: facts.alive_for.is_some(),
            may_return: facts.alive_for.is_none() && is_recent,
            alive_until: AtomicU64::new(facts.alive_for.map_or(0, to_millis)),
        }
    }
}

impl CachedInstance {
    /// True while it has not gone offline since the entry was loaded, `age` ago, and has hardly come back.
    pub(super) fn is_as_loaded(&self, age: Duration) -> bool {
        if self.is_alive {
            return to_millis(age) < self.alive_until.load(Ordering::Acquire);
        }
        !self.may_return || age < OFFLINE_TTL
    }
}

impl Entry {
    /// Returns the instance that a heartbeat is of; `Ok(None)`: the workspace has none, or its inbox is polled.
    pub(crate) fn instance_of(
        &self,
        workspace: &Workspace,
        named: Option<&InstanceId>,
    ) -> Result<Option<&CachedInstance>, NoSuchInstance> {
        let find = |id: &InstanceId| self.instances.iter().find(|one| one.row.id == *id);
        match named {
            Some(id) => find(id).map(Some).ok_or(NoSuchInstance),
            None if workspace.instances == 0 || workspace.delivery_mode == DeliveryMode::Poll => {
                Ok(None)
            }
            None => find(&default_instance()).map(Some).ok_or(NoSuchInstance),
        }
    }

    /// Extends the lease of an instance after a heartbeat at this replica that was granted after `began`. False if the
    /// instance is offline in this entry, which has to be loaded again then.
    pub(crate) fn extend_instance(
        &self,
        instance: &CachedInstance,
        began: Instant,
        ttl: Duration,
    ) -> bool {
        let since_load = began.saturating_duration_since(self.loaded_at);
        let until = to_millis(since_load.saturating_add(ttl));
        instance.alive_until.fetch_max(until, Ordering::AcqRel);
        instance.is_alive
    }
}

/// The workspace has instances, and none of this id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoSuchInstance;

impl Entries {
    /// Returns the instances of a workspace as they are now, for readers: each with its status and its last sign of
    /// life. From the stores.
    ///
    /// # Errors
    /// When SQL cannot be asked.
    pub(crate) async fn instances_now(
        &self,
        workspace: &Workspace,
    ) -> Result<Vec<(StoredInstance, InstanceStatus, Option<Timestamp>)>, Unavailable> {
        let rows = self.instance_rows(Some(workspace)).await?;
        let known = self.known.get(&workspace.id).await;
        let (facts, _) = self.instance_facts(workspace, rows, known.as_deref()).await;
        let read = |facts: InstanceFacts| {
            let status = match facts.alive_for {
                None => InstanceStatus::Offline,
                Some(_) if facts.row.is_draining => InstanceStatus::Draining,
                Some(_) => InstanceStatus::Online,
            };
            (facts.row, status, facts.last_seen)
        };
        Ok(facts.into_iter().map(read).collect())
    }

    /// Reads the rows of the instances of a workspace. Without instances no store is asked.
    pub(super) async fn instance_rows(
        &self,
        workspace: Option<&Workspace>,
    ) -> Result<Vec<StoredInstance>, Unavailable> {
        match workspace {
            Some(row) if row.instances > 0 && row.status != Status::Removed => {
                self.workspaces.instances.find_all(&row.id).await
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Reads the leases of instances. If the shared state does not answer, those count that were alive in the entry
    /// `known`, and those that it does not have; false then.
    pub(super) async fn instance_facts(
        &self,
        workspace: &Workspace,
        rows: Vec<StoredInstance>,
        known: Option<&Entry>,
    ) -> (Vec<InstanceFacts>, bool) {
        let always = |row| InstanceFacts {
            row,
            alive_for: Some(Duration::MAX),
            last_seen: None,
            address: None,
        };
        if workspace.resolves_each() {
            return self.resolved_instances(workspace).await;
        }
        if rows.is_empty() || workspace.liveness == Liveness::Assumed {
            return (rows.into_iter().map(always).collect(), true);
        }
        let (leases, now) = (&self.presence.leases, Timestamp::now());
        let ids: Vec<&InstanceId> = rows.iter().map(|row| &row.id).collect();
        let renewed = leases
            .instance_renewal_times(&workspace.id, &ids, now)
            .await;
        let Ok(renewed) = renewed else {
            let was_alive = |row: &StoredInstance| {
                let known = known.into_iter().flat_map(|known| known.instances.iter());
                let mut known = known.filter(|one| one.row.id == row.id);
                known.next().is_none_or(|one| one.is_alive)
            };
            let facts = rows.into_iter().map(|row| InstanceFacts {
                alive_for: was_alive(&row).then_some(Duration::MAX),
                last_seen: Some(self.heartbeats.instances.last_sign_of(&workspace.id, &row)),
                address: None,
                row,
            });
            return (facts.collect(), false);
        };
        let ttl = leases.ttl();
        let facts = rows.into_iter().zip(renewed).map(|(row, renewed)| {
            let signs = &self.heartbeats.instances;
            let last_seen = Some(signs.last_sign_of(&workspace.id, &row));
            let alive_for = match renewed {
                Some(at) => Some(at.after(ttl).since(now).min(ttl).max(LEFT_MIN)),
                None => leases.benefit_of_doubt(last_seen, now),
            };
            InstanceFacts {
                row,
                alive_for,
                last_seen: last_seen.max(renewed),
                address: None,
            }
        });
        (facts.collect(), true)
    }

    /// Returns an instance for each address of the name in a workspace's URL, at most [`INSTANCES_MAX`] in order of
    /// address; none and false if the name cannot be resolved.
    async fn resolved_instances(&self, workspace: &Workspace) -> (Vec<InstanceFacts>, bool) {
        let url = workspace.url.as_deref();
        let endpoint = url.and_then(|url| self.destinations.resolver.parse(url).ok());
        let (Some(url), Some(endpoint)) = (url, endpoint) else {
            return (Vec::new(), true);
        };
        let asker = LookupFor::for_call(Account::default());
        let resolver = &self.destinations.resolver;
        let found = resolver.lookup_all(&endpoint, asker).await;
        let mut addresses = found.to_vec();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(INSTANCES_MAX);
        let instance = |address: IpAddr| {
            let row = StoredInstance {
                id: InstanceId::parse(&format!("ip-{address}").replace(':', "-")).ok()?,
                url: url.to_owned(),
                internal_url: None,
                is_draining: false,
                has_auth: false,
                registered_at: workspace.created_at,
                last_seen: workspace.updated_at,
            };
            Some(InstanceFacts {
                row,
                alive_for: Some(RESOLVED_TTL),
                last_seen: None,
                address: Some(address),
            })
        };
        let facts: Vec<_> = addresses.into_iter().filter_map(instance).collect();
        let is_whole = !facts.is_empty();
        (facts, is_whole)
    }
}
