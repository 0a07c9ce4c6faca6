//! Cached entries of workspaces: loaded from the stores, or, if no store answers, from the last known entry
//! (`docs/reference/store-failures.md`).
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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use moka::future::Cache;
use tokio::time::Instant;

use super::destination::{Agent, Destination};
use super::entry::{CachedInstance, Entry, Facts, ReadTimes, urls_of};
use crate::core::Core;
use crate::liveness::{AgentUrls, Pulse, SharedValues, must_beat};
use crate::rejections::not_found;
use access::workspace::{StoredInstance, Workspace};
use kernel::ids::WorkspaceId;
use kernel::metrics;
use kernel::rejection::Rejection;
use kernel::stage::Stage;
use kernel::time::{Timestamp, to_millis};
use stores::coherence::{CachedState, CoherentCache, Invalidation};
use stores::shared::Notice;
use stores::store::Unavailable;

/// The directory's cache.
pub struct Entries {
    pub(crate) cache: CoherentCache<WorkspaceId, Arc<Entry>>,
    /// Last complete entry of each workspace, for an outage of the stores (`docs/reference/store-failures.md`).
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
        self.tell_move(&workspace, &urls).await;
        self.evaluate(Facts {
            urls,
            workspace: Some(workspace),
            pulse,
            instances: instances.into(),
            whole,
            read_at,
        })
    }

    /// Tells a move of a credential by another program, once.
    async fn tell_move(&self, workspace: &Workspace, urls: &AgentUrls) {
        let id = &workspace.id;
        let Some(to) = self.core.moved_credential(workspace, urls) else {
            return self.moved.invalidate(id).await;
        };
        if self.moved.get(id).await.as_ref() != Some(&to) {
            self.core.announcer.announce_credential(workspace, &to);
            self.moved.insert(id.clone(), to).await;
        }
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
                pulse: known.last_pulse(),
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
