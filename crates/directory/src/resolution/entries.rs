//! Cached entries of workspaces: loaded from the stores, or, if no store answers, from the last known entry
//! (`docs/reference/monitoring.md`).
//!
//! | SQL | shared state | source |
//! |---|---|---|
//! | answers | answers | the row; URLs from the shared state first; the lease |
//! | answers | away | the row, its status included: no lease can be read, and heartbeats still reach SQL |
//! | away | answers | the row of up to `directory.stale` ago, with the shared state's URLs and lease |
//! | away | away | the entry of up to `directory.stale` ago |
//!
//! Follows changes of URL keys by other programs, as the shared state notifies them. Most notifications are
//! renewals by heartbeats, so a cached entry is dropped only if the value differs.
//!
//! Cached entry of one workspace: its row, its URLs, the end of its lease, and the destination of messages.
//! Evaluated once, when it is loaded.
//!
//! Instances of a workspace in its entry: the named ones, with their rows and the ends of their leases, and those at
//! the addresses of a name.
//!
//! An entry counts until the first lease of an instance ends that has not been renewed at this replica. Then it is
//! loaded again, without those that are offline. With one that may return it is loaded again soon.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use moka::future::Cache;
use tokio::time::Instant;

use super::card::CardSource;
use super::destination::{Agent, Destination};
use crate::address::LookupFor;
use crate::core::Core;
use crate::liveness::{AgentUrls, Pulse, SharedValues, must_beat};
use crate::rejections::{no_instance, not_found};
use access::workspace::{
    DeliveryMode, INSTANCES_MAX, Liveness, Status, StoredInstance, Workspace, default_instance,
};
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::metrics;
use kernel::rejection::Rejection;
use kernel::shares::Account;
use kernel::stage::Stage;
use kernel::time::{Timestamp, to_millis};
use stores::coherence::{CachedState, CoherentCache, Invalidation};
use stores::shared::Notice;
use stores::store::Unavailable;

/// The directory's cache.
pub struct Entries {
    pub(crate) cache: CoherentCache<WorkspaceId, Arc<Entry>>,
    /// Last complete entry of each workspace, for an outage of the stores (`docs/reference/monitoring.md`).
    pub(crate) known: Cache<WorkspaceId, Arc<Entry>>,
    /// Place to which the credential of each workspace moved last, as it was told.
    moved: Cache<WorkspaceId, String>,
    pub(crate) core: Arc<Core>,
    /// Counter of changes of workspaces; a load compares it to detect that it was overtaken.
    changes: Arc<AtomicU64>,
    /// Start of the outage of SQL, in milliseconds after `started`; 0: SQL answers.
    outage_since: AtomicU64,
    started: Instant,
    /// True while all changes of URL keys are received.
    pub(super) watched: Arc<AtomicBool>,
}

impl Entries {
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        let entries_max = core.config.get().directory.cache_entries;
        let cache = CoherentCache::new(
            Arc::clone(&core.coherence),
            Arc::clone(&core.metrics),
            metrics::Cache::Directory,
            (entries_max, Some(|entry: &Arc<Entry>| entry.weight())),
            |entry: &Arc<Entry>| entry.is_current(),
        );
        let known = Cache::builder()
            .max_capacity(entries_max)
            .weigher(|_, entry: &Arc<Entry>| entry.weight())
            .build();
        let entries = Self {
            cache,
            known,
            moved: Cache::new(entries_max),
            changes: Arc::default(),
            outage_since: AtomicU64::new(0),
            started: Instant::now(),
            // The embedded store has no other writer, and this process's writes invalidate.
            watched: Arc::new(AtomicBool::new(core.shared.is_embedded())),
            core,
        };
        entries.drop_on_invalidation();
        Arc::new(entries)
    }

    /// Returns the entry of a workspace.
    ///
    /// # Errors
    /// `store_unavailable` if no entry is known.
    pub(crate) async fn get(&self, id: &WorkspaceId) -> Result<Arc<Entry>, Rejection> {
        Ok(self.get_with_source(id).await?.0)
    }

    /// Returns the entry, and true if it was in memory.
    pub(super) async fn get_with_source(
        &self,
        id: &WorkspaceId,
    ) -> Result<(Arc<Entry>, bool), Rejection> {
        let (entry, remembered) = self.cache.get_or_read(id, || self.load(id)).await?;
        Ok((entry, remembered.is_some()))
    }

    async fn load(&self, id: &WorkspaceId) -> Result<Arc<Entry>, Unavailable> {
        let changes = self.changes.load(Ordering::Acquire);
        let (row, shared) =
            tokio::join!(self.core.workspaces.find(id), self.core.presence.read(id));
        let read = match row {
            Ok(row) => {
                let instances = self.instance_rows(row.as_ref()).await;
                instances.map(|instances| (row, instances))
            }
            Err(error) => Err(error),
        };
        match read {
            Ok((row, rows)) => {
                self.outage_since.store(0, Ordering::Release);
                let entry = Arc::new(self.assemble(id, row, rows, (shared.ok(), None)).await);
                self.known.insert(id.clone(), Arc::clone(&entry)).await;
                if self.changes.load(Ordering::Acquire) != changes {
                    self.known.invalidate(id).await;
                }
                Ok(entry)
            }
            Err(error) => self.load_stale(id, shared.ok()).await.ok_or(error),
        }
    }

    /// `rows`: those of its instances. `away_since`: when the row was read, if SQL does not answer.
    async fn assemble(
        &self,
        id: &WorkspaceId,
        row: Option<Workspace>,
        rows: Vec<StoredInstance>,
        (shared, away_since): (Option<SharedValues>, Option<Instant>),
    ) -> Entry {
        let now = Instant::now();
        let read_at = ReadTimes {
            row: away_since.unwrap_or(now),
            shared: shared.is_some().then_some(now),
            stale: away_since.is_some(),
        };
        let Some(workspace) = row else {
            return self.evaluate(Facts {
                workspace: None,
                urls: AgentUrls::default(),
                pulse: Pulse::AsItsStatus,
                instances: Box::default(),
                whole: true,
                read_at,
            });
        };
        let (instances, are_whole) = if rows.is_empty() && !workspace.resolves_each() {
            (Vec::new(), true)
        } else {
            let known = self.known.get(id).await;
            self.instance_facts(&workspace, rows, known.as_deref())
                .await
        };
        let whole = shared.is_some() && are_whole && away_since.is_none();
        let (urls, pulse) = match shared {
            Some((urls, lease)) => (urls, self.pulse_of(&workspace, lease)),
            None => (Default::default(), Pulse::AsItsStatus),
        };
        let urls = AgentUrls::from_parts(&workspace, urls);
        // A move of a credential by another program is told once.
        match self.core.moved_credential(&workspace, &urls) {
            None => self.moved.invalidate(id).await,
            Some(to) if self.moved.get(id).await.as_ref() == Some(&to) => {}
            Some(to) => {
                self.core.announcer.announce_credential(&workspace, &to);
                self.moved.insert(id.clone(), to).await;
            }
        }
        self.evaluate(Facts {
            urls,
            workspace: Some(workspace),
            pulse,
            instances: instances.into(),
            whole,
            read_at,
        })
    }

    fn evaluate(&self, mut facts: Facts) -> Entry {
        let reach = facts.workspace.as_ref().map_or_else(
            || Err(not_found().at(Stage::State)),
            |workspace| {
                let (urls, instances) = (&facts.urls, &facts.instances);
                self.core
                    .find_destination(workspace, urls, facts.pulse, instances)
            },
        );
        facts.urls = urls_of(&facts.instances, facts.urls, &reach);
        let watched = Arc::clone(&self.watched);
        Entry::new(facts, reach, self.core.coherence.max_age(), watched)
    }

    /// Returns the agent of a workspace with assumed liveness, also while its status keeps calls from it.
    ///
    /// # Errors
    /// The reason why it cannot be called in any status.
    pub(crate) fn agent_of(
        &self,
        workspace: &Workspace,
        entry: &Entry,
    ) -> Result<Arc<Agent>, Rejection> {
        if let Ok(Destination::Agent(agent)) = &entry.reach {
            return Ok(Arc::clone(agent));
        }
        // Kept with the entry, so that the decision about its addresses is, too.
        let find = || self.core.agent_of(workspace, &entry.urls, &entry.instances);
        entry.agent_in_any_status.get_or_init(find).clone()
    }

    fn pulse_of(&self, workspace: &Workspace, lease: Option<Duration>) -> Pulse {
        if !must_beat(workspace) {
            return Pulse::AsItsStatus;
        }
        let last_seen = self.core.heartbeats.last_sign_of(workspace);
        let leases = &self.core.presence.leases;
        let alive_for = lease.or_else(|| leases.benefit_of_doubt(last_seen, Timestamp::now()));
        alive_for.map_or(Pulse::Lapsed, Pulse::Beats)
    }

    /// Returns the last entry before SQL stopped answering, if it is recent enough.
    async fn load_stale(
        &self,
        id: &WorkspaceId,
        shared: Option<SharedValues>,
    ) -> Option<Arc<Entry>> {
        // The outage begins now if SQL answered until now.
        let now = to_millis(self.started.elapsed()).max(1);
        let first = self
            .outage_since
            .compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        let since = first.err().unwrap_or(now);
        let outage = Duration::from_millis(now.saturating_sub(since));
        let known = self.known.get(id).await?;
        let stale = self.core.config.get().directory.stale;
        let age = known.loaded_at.elapsed();
        if outage >= stale || age >= known.age_max.saturating_add(stale) {
            return None;
        }
        tracing::debug!(workspace.id = %id, "SQL does not answer; using the last known state");
        let entry = match shared {
            Some(shared) => {
                let stores = (Some(shared), Some(known.read_at.row));
                let rows = known.instances.iter().map(|one| one.row.clone()).collect();
                self.assemble(id, known.workspace.clone(), rows, stores)
                    .await
            }
            None => self.evaluate(Facts {
                workspace: known.workspace.clone(),
                urls: known.urls.clone(),
                // Without a store no lapse can be proven, so it stays as it was.
                pulse: match known.pulse {
                    Pulse::Lapsed => Pulse::Lapsed,
                    Pulse::Beats(_) | Pulse::AsItsStatus => Pulse::AsItsStatus,
                },
                instances: known
                    .instances
                    .iter()
                    .map(CachedInstance::without_store)
                    .collect(),
                whole: false,
                read_at: ReadTimes {
                    stale: true,
                    ..known.read_at
                },
            }),
        };
        entry.take_over_decisions(&known);
        Some(Arc::new(entry))
    }

    /// Drops the entry of a workspace that changed, here or on another replica, and queues its last heartbeat for
    /// SQL, since its row is read now.
    fn drop_on_invalidation(&self) {
        let (cache, known) = (self.cache.clone(), self.known.clone());
        let (changes, heartbeats) = (Arc::clone(&self.changes), Arc::clone(&self.core.heartbeats));
        self.core.coherence.on_invalidation(move |what| {
            let (cache, known, heartbeats) =
                (cache.clone(), known.clone(), Arc::clone(&heartbeats));
            changes.fetch_add(1, Ordering::AcqRel);
            async move {
                match what {
                    // The row stays: during an outage of SQL it still counts, with the new URLs.
                    Invalidation::Address(id) => cache.forget(&id),
                    Invalidation::Workspace(id) => {
                        cache.forget(&id);
                        known.invalidate(&id).await;
                        heartbeats.queue_now(&id);
                    }
                    // After a gap all entries are loaded again. If no store answers then, the last known entries
                    // count, for `directory.stale`.
                    Invalidation::Everything => cache.forget_all(),
                    _ => {}
                }
            }
        });
    }
}

/// Workspaces per round trip.
const BATCH_MAX: usize = 250;

impl Entries {
    /// Follows changes of URL keys by other programs. A background task of the server that runs until the
    /// process ends; without it such a change counts after 1 s.
    pub async fn follow_url_keys(&self) {
        if self.core.shared.is_embedded() {
            return;
        }
        let mut changes = self.core.presence.url_changes();
        let mut was_up = false;
        loop {
            let mut ids = Vec::new();
            let mut notice = Some(changes.next().await);
            while let Some(received) = notice {
                match received {
                    Notice::Message(key) => ids.extend(self.core.presence.id_of(&key)),
                    Notice::Down => {
                        self.watched.store(false, Ordering::Release);
                        // The store behind the link may have lost its data.
                        if was_up {
                            self.core.presence.leases.start_doubt();
                        }
                    }
                    Notice::Up => {
                        if was_up {
                            self.core.presence.leases.start_doubt();
                        }
                        // Notifications during the gap were missed. Drop the entries before the link counts as
                        // up.
                        self.core.coherence.apply(&Invalidation::Everything).await;
                        self.watched.store(true, Ordering::Release);
                        was_up = true;
                    }
                }
                notice = (ids.len() < BATCH_MAX)
                    .then(|| changes.try_next())
                    .flatten();
            }
            self.drop_changed(ids).await;
        }
    }

    /// Drops the entries of `ids` that have other URLs than the keys. On this replica only: each replica
    /// receives the notifications.
    async fn drop_changed(&self, mut ids: Vec<WorkspaceId>) {
        ids.sort_unstable();
        ids.dedup();
        let mut cached = Vec::new();
        for id in ids {
            match self.cache.cached_state(&id) {
                CachedState::Value(entry) => cached.push((id, entry)),
                // A load in progress may have read the old value.
                CachedState::Loading => self.core.coherence.apply(&Invalidation::Address(id)).await,
                CachedState::Nothing => {}
            }
        }
        let found = self
            .core
            .presence
            .stored_values(cached.iter().map(|(id, _)| id))
            .await;
        for (n, (id, entry)) in cached.into_iter().enumerate() {
            let same = match found.get(n) {
                Some([url, internal_url, lease]) => {
                    // A lease that another program deleted is a lapse.
                    let lives = lease.is_some() || !matches!(entry.pulse, Pulse::Beats(_));
                    lives && is_of(&entry, url.as_ref(), internal_url.as_ref())
                }
                // The key could not be read.
                _ => false,
            };
            if !same {
                self.core.coherence.apply(&Invalidation::Address(id)).await;
            }
        }
    }
}

/// True if `entry` has the URLs that follow from the values of the keys.
fn is_of(entry: &Arc<Entry>, url: Option<&String>, internal_url: Option<&String>) -> bool {
    let Some(row) = &entry.workspace else {
        return false;
    };
    // The keys are not used for a workspace with instances.
    if row.instances > 0 {
        return entry.whole;
    }
    let host = url.or(row.url.as_ref());
    let internal = internal_url.or(row.internal_url.as_ref()).or(host);
    entry.whole && entry.urls.host.as_ref() == host && entry.urls.internal.as_ref() == internal
}

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
pub(crate) struct Facts {
    /// `None`: it never existed.
    pub(crate) workspace: Option<Workspace>,
    pub(crate) urls: AgentUrls,
    pub(super) pulse: Pulse,
    /// Named instances, in order of id.
    pub(crate) instances: Box<[CachedInstance]>,
    /// True if the shared state answered, too.
    whole: bool,
    /// Times of the reads from the stores; earlier than the load if the entry is served stale.
    pub(super) read_at: ReadTimes,
}

/// Entry of one workspace, as of `loaded_at`.
pub(crate) struct Entry {
    facts: Facts,
    pub(super) loaded_at: Instant,
    /// Maximum age by cache coherence, when it was loaded.
    age_max: Duration,
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

impl Deref for Entry {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
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
            facts,
            loaded_at: Instant::now(),
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
        for one in agent.each() {
            let same = known.each().find(|known| known.instance == one.instance);
            if let Some(known) = same.filter(|known| one.endpoint.has_host_of(&known.endpoint)) {
                one.address_decision.take_over(&known.address_decision);
            }
        }
    }

    /// True if its agent, or one of its instances, is called without a credential.
    pub(super) fn calls_without_credential(&self) -> bool {
        let Ok(Destination::Agent(agent)) = &self.reach else {
            return false;
        };
        agent.each().any(|one| one.upstream_auth.is_none())
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
    pub(crate) last_seen: Option<Timestamp>,
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
    /// Returns the instances of a workspace as they are now, for readers. From the stores.
    ///
    /// # Errors
    /// When SQL cannot be asked.
    pub(crate) async fn instances_now(
        &self,
        workspace: &Workspace,
    ) -> Result<Vec<CachedInstance>, Unavailable> {
        let rows = self.instance_rows(Some(workspace)).await?;
        let known = self.known.get(&workspace.id).await;
        let facts = self.instance_facts(workspace, rows, known.as_deref());
        Ok(facts.await.0)
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
