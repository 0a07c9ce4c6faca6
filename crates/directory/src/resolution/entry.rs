//! Cached entry of one workspace: its row, its URLs, the end of its lease, and the destination of messages.
//! Evaluated once, when it is loaded.
//!
//! Instances of a workspace in its entry: the named ones, with their rows and the ends of their leases, and those at the
//! addresses of a name.
//!
//! An entry counts until the first lease of an instance ends that has not been renewed at this replica. Then it is
//! loaded again, without those that are offline. With one that may return it is loaded again soon.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::Entries;
use super::card::CardSource;
use super::destination::{Agent, Destination, Instance};
use crate::address::LookupFor;
use crate::liveness::{AgentUrls, Pulse, must_beat};
use crate::rejections::no_instance;
use access::workspace::{
    DeliveryMode, INSTANCES_MAX, InstanceStatus, Liveness, Status, StoredInstance, Workspace,
    default_instance,
};
use kernel::ids::InstanceId;
use kernel::rejection::Rejection;
use kernel::shares::Account;
use kernel::time::{Timestamp, to_millis};
use stores::store::Unavailable;

/// Interval of renewals of URL keys by heartbeats: half their lifetime, so that one may be missed.
const URL_RENEWAL: Duration = Duration::from_secs(150);

/// Lifetime of an entry that was not read completely, or for which no invalidation would arrive.
const UNSURE_TTL: Duration = Duration::from_secs(1);

/// Bytes of a card that count as one more entry in the caches, which bound entries and not bytes: a card may be
/// a hundred times as long as the rest of its entry, and is there twice after its first use.
const CARD_BYTES_OF_ONE: usize = 4096;

/// Instances that count for one more entry.
const INSTANCES_OF_ONE: usize = 8;

/// Maximum weight of an entry: a full cache admits an entry only if it is used more often than all entries that
/// it replaces together, and the counts end at 15.
const WEIGHT_MAX: u32 = 8;

/// No time yet.
const NEVER: u64 = u64::MAX;

/// Times at which the stores were read for an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadTimes {
    /// Read of the row.
    pub(super) row: Instant,
    /// Read of URLs and lease; `None`: the shared state did not answer.
    pub(super) shared: Option<Instant>,
    /// True if SQL did not answer, and the row is an earlier one.
    pub(super) stale: bool,
}

/// Values of one workspace, as read from the stores.
pub(super) struct Facts {
    /// `None`: it never existed.
    pub(super) workspace: Option<Workspace>,
    pub(super) urls: AgentUrls,
    pub(super) pulse: Pulse,
    /// Named instances, in order of id.
    pub(super) instances: Box<[CachedInstance]>,
    /// True if the shared state answered, too.
    pub(super) whole: bool,
    pub(super) read_at: ReadTimes,
}

/// Entry of one workspace, as of `loaded_at`.
pub(crate) struct Entry {
    /// `None`: it never existed.
    pub(crate) workspace: Option<Workspace>,
    pub(crate) urls: AgentUrls,
    pub(super) pulse: Pulse,
    /// Named instances, in order of id.
    pub(crate) instances: Box<[CachedInstance]>,
    /// True if the shared state answered, too.
    pub(super) whole: bool,
    pub(super) loaded_at: Instant,
    /// Times of the reads from the stores; earlier than `loaded_at` if the entry is served stale.
    pub(super) read_at: ReadTimes,
    /// Maximum age by cache coherence, when it was loaded.
    pub(super) age_max: Duration,
    /// True if its lapse was recorded.
    pub(super) lapse_noted: AtomicBool,
    /// For [`Pulse::Beats`]: milliseconds after `loaded_at`; each heartbeat moves it.
    alive_until: AtomicU64,
    /// Last renewal of the URL keys: milliseconds after `loaded_at`.
    urls_renewed_at: AtomicU64,
    /// The destination of messages; an error has the stage that failed.
    pub(super) reach: Result<Destination, Rejection>,
    /// Agent of an offline workspace, set by its first probe.
    pub(super) agent_in_any_status: OnceLock<Result<Arc<Agent>, Rejection>>,
    /// Source of its card, set at the first use.
    pub(super) card: OnceLock<Arc<CardSource>>,
    /// True while changes of its URL keys are received.
    watched: Arc<AtomicBool>,
}

impl Entry {
    /// `age_max`: maximum age by cache coherence. `watched`: true while changes of its URL keys are received.
    pub(super) fn new(
        facts: Facts,
        reach: Result<Destination, Rejection>,
        age_max: Duration,
        watched: Arc<AtomicBool>,
    ) -> Self {
        Self {
            alive_until: AtomicU64::new(match facts.pulse {
                Pulse::Beats(left) => to_millis(left),
                Pulse::AsItsStatus | Pulse::Lapsed => u64::MAX,
            }),
            workspace: facts.workspace,
            urls: facts.urls,
            pulse: facts.pulse,
            instances: facts.instances,
            whole: facts.whole,
            loaded_at: Instant::now(),
            read_at: facts.read_at,
            age_max,
            lapse_noted: AtomicBool::new(false),
            urls_renewed_at: AtomicU64::new(NEVER),
            reach,
            agent_in_any_status: OnceLock::new(),
            card: OnceLock::new(),
            watched,
        }
    }

    /// Returns the number of entries that it counts for in the caches.
    pub(super) fn weight(&self) -> u32 {
        let card = self
            .workspace
            .as_ref()
            .and_then(|row| row.agent_card.as_ref());
        let bytes = card.map_or(0, |card| card.get().len());
        let size = 1 + bytes / CARD_BYTES_OF_ONE + self.instances.len() / INSTANCES_OF_ONE;
        u32::try_from(size).map_or(WEIGHT_MAX, |one| one.min(WEIGHT_MAX))
    }

    /// True while it is valid, apart from coherence.
    pub(super) fn is_current(&self) -> bool {
        let sure = self.whole
            && self.workspace.is_some()
            && self.pulse != Pulse::Lapsed
            && self.watched.load(Ordering::Acquire);
        let age = self.loaded_at.elapsed();
        (sure || age < UNSURE_TTL)
            && self.is_alive()
            && self.instances.iter().all(|one| one.is_as_loaded(age))
    }

    /// True while its lease, as read or as renewed by a heartbeat, lasts.
    pub(super) fn is_alive(&self) -> bool {
        to_millis(self.loaded_at.elapsed()) < self.alive_until.load(Ordering::Acquire)
    }

    /// True if its status is online, but its lease has ended.
    pub(crate) fn has_lapsed(&self) -> bool {
        let beats = self.workspace.as_ref().is_some_and(must_beat);
        beats && (self.pulse == Pulse::Lapsed || !self.is_alive())
    }

    /// Returns the time at which its lease was read.
    pub(super) fn lease_read_at(&self) -> Timestamp {
        let read_at = self.read_at.shared.unwrap_or(self.loaded_at);
        Timestamp::now().before(read_at.elapsed())
    }

    /// Liveness without a store: no lapse can be proven, so it stays as it was.
    pub(super) fn last_pulse(&self) -> Pulse {
        match self.pulse {
            Pulse::Lapsed => Pulse::Lapsed,
            Pulse::Beats(_) | Pulse::AsItsStatus => Pulse::AsItsStatus,
        }
    }

    /// For [`Pulse::Beats`]: returns the rest of the lease.
    pub(super) fn alive_for(&self) -> Duration {
        let until = self.alive_until.load(Ordering::Acquire);
        Duration::from_millis(until.saturating_sub(to_millis(self.loaded_at.elapsed())))
    }

    /// Extends the lease after a heartbeat at this replica that was granted after `began`: alive for `ttl` from
    /// then, without a read from the store.
    pub(crate) fn extend(&self, began: Instant, ttl: Duration) {
        if matches!(self.pulse, Pulse::Beats(_)) {
            let since_load = began.saturating_duration_since(self.loaded_at);
            let until = to_millis(since_load.saturating_add(ttl));
            self.alive_until.fetch_max(until, Ordering::AcqRel);
        }
    }

    /// True if the URL keys need renewal. One of several concurrent callers gets true.
    pub(crate) fn claim_url_renewal(&self) -> bool {
        let now = to_millis(self.loaded_at.elapsed());
        let at = self.urls_renewed_at.load(Ordering::Acquire);
        let is_due = at == NEVER || now.saturating_sub(at) >= to_millis(URL_RENEWAL);
        is_due
            && self
                .urls_renewed_at
                .compare_exchange(at, now, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    /// Lets the next heartbeat try again.
    pub(crate) fn url_renewal_failed(&self) {
        self.urls_renewed_at.store(NEVER, Ordering::Release);
    }

    /// Copies the decision about the agent's addresses from an entry of the same row.
    pub(super) fn take_over_decisions(&self, other: &Self) {
        let (Ok(Destination::Agent(agent)), Ok(Destination::Agent(known))) =
            (&self.reach, &other.reach)
        else {
            return;
        };
        let take_over = |agent: &Agent, known: &Agent| {
            if agent.endpoint.has_host_of(&known.endpoint) {
                agent.address_decision.take_over(&known.address_decision);
            }
        };
        if agent.instances.is_empty() {
            return take_over(agent, known);
        }
        for one in &agent.instances {
            let is_same = |of: &&Instance| of.agent.instance == one.agent.instance;
            if let Some(known) = known.instances.iter().find(is_same) {
                take_over(&one.agent, &known.agent);
            }
        }
    }

    /// True if its agent, or one of its instances, is called without a credential.
    pub(super) fn calls_without_credential(&self) -> bool {
        let Ok(Destination::Agent(agent)) = &self.reach else {
            return false;
        };
        let instances = agent.instances.iter().map(|one| &one.agent);
        let mut all = instances.chain([agent]);
        all.any(|one| one.upstream_auth.is_none())
    }
}

/// Minimum rest of a lease that exists: the clocks of two replicas differ.
const LEFT_MIN: Duration = Duration::from_secs(1);

/// Lifetime of an entry with an instance that is offline and may return: the replica that gets its heartbeats may know
/// it as alive, and then announces nothing.
const OFFLINE_TTL: Duration = Duration::from_secs(5);

/// Silence after which an instance is not expected to return, except by a registration.
const RETURNS_WITHIN: Duration = Duration::from_secs(3600);

/// Lifetime of an entry whose instances are the addresses of a name, which is resolved anew with it.
const RESOLVED_TTL: Duration = Duration::from_secs(10);

/// Returns the URLs of a workspace with instances, as readers see them: those of the instance that a call goes to, and
/// all that no card shows.
pub(super) fn urls_of(
    instances: &[CachedInstance],
    urls: AgentUrls,
    reach: &Result<Destination, Rejection>,
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

/// Named instance in an entry, as read from the stores.
#[derive(Debug)]
pub(crate) struct CachedInstance {
    pub(crate) row: StoredInstance,
    /// Rest of its lease; `None`: it is offline. [`Duration::MAX`]: it needs none.
    alive_for: Option<Duration>,
    /// Its last sign of life; `None`: it sends none.
    last_seen: Option<Timestamp>,
    /// Its address among those of the name in its URL; `None`: the URL is its own.
    pub(super) address: Option<IpAddr>,
    /// End of its lease by heartbeats at this replica, in milliseconds after the load of the entry; each moves it.
    extended_until: AtomicU64,
}

impl CachedInstance {
    fn new(row: StoredInstance, alive_for: Option<Duration>, last_seen: Option<Timestamp>) -> Self {
        Self {
            row,
            alive_for,
            last_seen,
            address: None,
            extended_until: AtomicU64::new(0),
        }
    }

    /// Returns it as it was, for an entry without a store: no lapse can be proven.
    pub(super) fn without_store(&self) -> Self {
        let alive_for = self.is_alive().then_some(Duration::MAX);
        Self {
            address: self.address,
            ..Self::new(self.row.clone(), alive_for, Some(self.row.last_seen))
        }
    }

    /// True if it was not offline when the entry was loaded.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive_for.is_some()
    }

    /// True while it has not gone offline since the entry was loaded, `age` ago, and has hardly come back.
    pub(super) fn is_as_loaded(&self, age: Duration) -> bool {
        let Some(left) = self.alive_for else {
            let is_recent = |at| Timestamp::now().since(at) < RETURNS_WITHIN;
            return age < OFFLINE_TTL || !self.last_seen.is_some_and(is_recent);
        };
        age < left || to_millis(age) < self.extended_until.load(Ordering::Acquire)
    }
}

impl Entry {
    /// Returns the instance that a heartbeat is of; `Ok(None)`: the workspace has none, or its inbox is polled.
    pub(crate) fn instance_of(
        &self,
        workspace: &Workspace,
        named: Option<&InstanceId>,
    ) -> Result<Option<&CachedInstance>, Rejection> {
        let find = |id: &InstanceId| self.instances.iter().find(|one| one.row.id == *id);
        match named {
            Some(id) => find(id).map(Some).ok_or_else(no_instance),
            None if workspace.instances == 0 || workspace.delivery_mode == DeliveryMode::Poll => {
                Ok(None)
            }
            None => find(&default_instance()).map(Some).ok_or_else(no_instance),
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
        instance.extended_until.fetch_max(until, Ordering::AcqRel);
        instance.is_alive()
    }
}

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
        let read = facts.into_iter().map(|one| {
            let status = match (one.is_alive(), one.row.is_draining) {
                (false, _) => InstanceStatus::Offline,
                (true, true) => InstanceStatus::Draining,
                (true, false) => InstanceStatus::Online,
            };
            (one.row, status, one.last_seen)
        });
        Ok(read.collect())
    }

    /// Reads the rows of the instances of a workspace. Without instances no store is asked.
    pub(super) async fn instance_rows(
        &self,
        workspace: Option<&Workspace>,
    ) -> Result<Vec<StoredInstance>, Unavailable> {
        match workspace {
            Some(row) if row.instances > 0 && row.status != Status::Removed => {
                self.core.workspaces.instances.find_all(&row.id).await
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
    ) -> (Vec<CachedInstance>, bool) {
        if workspace.resolves_each() {
            return self.resolved_instances(workspace).await;
        }
        if rows.is_empty() || workspace.liveness == Liveness::Assumed {
            let always = |row| CachedInstance::new(row, Some(Duration::MAX), None);
            return (rows.into_iter().map(always).collect(), true);
        }
        let (leases, now) = (&self.core.presence.leases, Timestamp::now());
        let names = rows.iter().map(|row| (&workspace.id, Some(&row.id)));
        let renewed = leases.renewal_times(names, now).await.ok();
        let is_whole = renewed.is_some();
        let mut renewed = renewed.into_iter().flatten();
        let was_alive = |row: &StoredInstance| {
            let known = known.into_iter().flat_map(|known| known.instances.iter());
            let mut known = known.filter(|one| one.row.id == row.id);
            known.next().is_none_or(CachedInstance::is_alive)
        };
        let ttl = leases.ttl();
        let facts = rows.into_iter().map(|row| {
            let heard = &self.core.heartbeats.instances;
            let last_seen = Some(heard.last_sign_of(&workspace.id, &row));
            let renewed = renewed.next().flatten();
            let alive_for = match renewed {
                Some(at) => Some(at.after(ttl).since(now).min(ttl).max(LEFT_MIN)),
                None if is_whole => leases.benefit_of_doubt(last_seen, now),
                None => was_alive(&row).then_some(Duration::MAX),
            };
            CachedInstance::new(row, alive_for, last_seen.max(renewed))
        });
        (facts.collect(), is_whole)
    }

    /// Returns an instance for each address of the name in a workspace's URL, at most [`INSTANCES_MAX`] in order of
    /// address; none and false if the name cannot be resolved.
    async fn resolved_instances(&self, workspace: &Workspace) -> (Vec<CachedInstance>, bool) {
        let url = workspace.url.as_deref();
        let endpoint = url.and_then(|url| self.core.resolver.parse(url).ok());
        let (Some(url), Some(endpoint)) = (url, endpoint) else {
            return (Vec::new(), true);
        };
        let asker = LookupFor::for_call(Account::default());
        let resolver = &self.core.resolver;
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
            Some(CachedInstance {
                address: Some(address),
                ..CachedInstance::new(row, Some(RESOLVED_TTL), None)
            })
        };
        let facts: Vec<_> = addresses.into_iter().filter_map(instance).collect();
        let is_whole = !facts.is_empty();
        (facts, is_whole)
    }
}
