//! Cached entries of workspaces: loaded from the stores, or, if no store answers, from the last known entry
//! (`docs/reference/store-failures.md`).
//!
//! | SQL | shared state | source |
//! |---|---|---|
//! | answers | answers | the row; URLs from the shared state first; the lease |
//! | answers | away | the row, its status included: no lease can be read, and heartbeats still reach SQL |
//! | away | answers | the row of up to `directory.stale` ago, with the shared state's URLs and lease |
//! | away | away | the entry of up to `directory.stale` ago |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use moka::future::Cache;
use tokio::time::Instant;

use super::destination::{Agent, Destination, Destinations, ResolutionFailure};
use super::entry::{Entry, Facts, ReadTimes};
use super::instances::{InstanceFacts, urls_of};
use crate::coherence::{Coherence, CoherentCache, Invalidation};
use crate::config::Live;
use crate::directory::liveness::{
    AgentUrls, HeartbeatBuffer, Lease, Presence, Pulse, SharedValues, must_beat,
};
use crate::directory::rejections::not_found;
use crate::ids::WorkspaceId;
use crate::metrics::{self, Metrics};
use crate::rejection::Rejection;
use crate::stage::Stage;
use crate::store::Unavailable;
use crate::time::Timestamp;
use crate::workspace::{StoredInstance, Workspace, Workspaces};

/// State of SQL at a load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sql {
    Answers,
    /// SQL does not answer; the row was read at this time.
    Away(Instant),
}

/// The directory's cache.
pub struct Entries {
    pub(crate) cache: CoherentCache<WorkspaceId, Arc<Entry>>,
    /// Last complete entry of each workspace, for an outage of the stores (`docs/reference/store-failures.md`).
    pub(crate) known: Cache<WorkspaceId, Arc<Entry>>,
    /// Place to which the credential of each workspace moved last, as it was told.
    moved: Cache<WorkspaceId, String>,
    pub(super) workspaces: Workspaces,
    pub(super) presence: Arc<Presence>,
    pub(super) heartbeats: Arc<HeartbeatBuffer>,
    pub(super) destinations: Destinations,
    pub(super) coherence: Arc<Coherence>,
    config: Live,
    /// Counter of changes of workspaces; a load compares it to detect that it was overtaken.
    changes: Arc<AtomicU64>,
    /// Start of the outage of SQL, in milliseconds after `started`; 0: SQL answers.
    outage_since: AtomicU64,
    started: Instant,
    /// True while all changes of URL keys are received.
    pub(super) watched: Arc<AtomicBool>,
}

impl Entries {
    pub(crate) fn new(
        workspaces: Workspaces,
        destinations: Destinations,
        coherence: &Arc<Coherence>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let config = destinations.config.clone();
        let entries_max = config.get().directory.cache_entries;
        let cache = CoherentCache::new(
            Arc::clone(coherence),
            metrics,
            metrics::Cache::Directory,
            (entries_max, Some(|entry: &Arc<Entry>| entry.weight())),
            |entry: &Arc<Entry>| entry.is_current(),
        );
        let known = Cache::builder()
            .max_capacity(entries_max)
            .weigher(|_, entry: &Arc<Entry>| entry.weight())
            .build();
        let presence = Arc::clone(&destinations.presence);
        let entries = Self {
            cache,
            known,
            moved: Cache::new(entries_max),
            workspaces,
            heartbeats: Arc::clone(&destinations.heartbeats),
            destinations,
            coherence: Arc::clone(coherence),
            config,
            changes: Arc::default(),
            outage_since: AtomicU64::new(0),
            started: Instant::now(),
            // The embedded store has no other writer, and this process's writes invalidate.
            watched: Arc::new(AtomicBool::new(presence.is_embedded())),
            presence,
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
        if let Some(entry) = self.cache.get(id) {
            return Ok((entry, true));
        }
        // Boxed: a miss is rare, and its future would otherwise widen every exchange's.
        let loaded = Box::pin(self.cache.get_or_load(id, || self.load(id))).await;
        match loaded {
            Ok(entry) => Ok((entry, false)),
            Err(error) => Err(Rejection::from(Unavailable::clone(&error))),
        }
    }

    async fn load(&self, id: &WorkspaceId) -> Result<Arc<Entry>, Unavailable> {
        let changes = self.changes.load(Ordering::Acquire);
        let (row, shared) = tokio::join!(self.workspaces.find(id), self.presence.read(id));
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
                let stores = (shared.ok(), Sql::Answers);
                let entry = Arc::new(self.assemble(id, row, rows, stores).await);
                self.known.insert(id.clone(), Arc::clone(&entry)).await;
                if self.changes.load(Ordering::Acquire) != changes {
                    self.known.invalidate(id).await;
                }
                Ok(entry)
            }
            Err(error) => self.load_stale(id, shared.ok()).await.ok_or(error),
        }
    }

    /// `rows`: those of its instances.
    async fn assemble(
        &self,
        id: &WorkspaceId,
        row: Option<Workspace>,
        rows: Vec<StoredInstance>,
        (shared, sql): (Option<SharedValues>, Sql),
    ) -> Entry {
        let now = Instant::now();
        let read_at = ReadTimes {
            row: match sql {
                Sql::Answers => now,
                Sql::Away(read_at) => read_at,
            },
            shared: shared.is_some().then_some(now),
            stale: sql != Sql::Answers,
        };
        let Some(workspace) = row else {
            return self.evaluate(Facts {
                workspace: None,
                urls: AgentUrls::default(),
                pulse: Pulse::AsItsStatus,
                instances: Vec::new(),
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
        let pulse = shared.as_ref().map_or(Pulse::AsItsStatus, |shared| {
            self.pulse_of(&workspace, shared.lease)
        });
        let whole = shared.is_some() && are_whole && sql == Sql::Answers;
        let (url, internal_url) = shared.map_or((None, None), |s| (s.url, s.internal_url));
        let urls = AgentUrls::from_parts(&workspace, url, internal_url);
        self.tell_move(&workspace, &urls).await;
        self.evaluate(Facts {
            urls,
            workspace: Some(workspace),
            pulse,
            instances,
            whole,
            read_at,
        })
    }

    /// Tells a move of a credential by another program, once.
    async fn tell_move(&self, workspace: &Workspace, urls: &AgentUrls) {
        let id = &workspace.id;
        let Some(to) = self.destinations.moved_credential(workspace, urls) else {
            return self.moved.invalidate(id).await;
        };
        if self.moved.get(id).await.as_ref() != Some(&to) {
            self.presence.announcer.announce_credential(workspace, &to);
            self.moved.insert(id.clone(), to).await;
        }
    }

    fn evaluate(&self, mut facts: Facts) -> Entry {
        let reach = facts.workspace.as_ref().map_or_else(
            || Err(ResolutionFailure::at_check(Stage::State)(not_found())),
            |workspace| {
                let (urls, instances) = (&facts.urls, &facts.instances);
                self.destinations
                    .find(workspace, urls, facts.pulse, instances)
            },
        );
        facts.urls = urls_of(&facts.instances, facts.urls, &reach);
        let watched = Arc::clone(&self.watched);
        Entry::new(facts, reach, self.coherence.max_age(), watched)
    }

    /// Returns the agent of a workspace with assumed liveness, also while its status keeps calls from it.
    ///
    /// # Errors
    /// The reason why it cannot be called in any status.
    pub(in crate::directory) fn agent_of(
        &self,
        workspace: &Workspace,
        entry: &Entry,
    ) -> Result<Arc<Agent>, Rejection> {
        if let Ok(Destination::Agent(agent)) = entry.destination() {
            return Ok(agent);
        }
        // Kept with the entry, so that the decision about its addresses is, too.
        let made = entry.agent_in_any_status.get_or_init(|| {
            let instances: Vec<_> = entry
                .instances
                .iter()
                .map(InstanceFacts::from_cached)
                .collect();
            self.destinations
                .agent_of(workspace, &entry.urls, &instances)
        });
        made.clone().map_err(|not_reached| not_reached.why)
    }

    fn pulse_of(&self, workspace: &Workspace, lease: Lease) -> Pulse {
        if !must_beat(workspace) {
            return Pulse::AsItsStatus;
        }
        let last_seen = self.heartbeats.last_sign_of(workspace);
        match lease {
            Lease::Held(left) => Pulse::Beats(left),
            Lease::Missing => self
                .presence
                .leases
                .benefit_of_doubt(last_seen, Timestamp::now())
                .map_or(Pulse::Lapsed, Pulse::Beats),
        }
    }

    /// Returns the last entry before SQL stopped answering, if it is recent enough.
    async fn load_stale(
        &self,
        id: &WorkspaceId,
        shared: Option<SharedValues>,
    ) -> Option<Arc<Entry>> {
        let outage = self.outage_duration();
        let known = self.known.get(id).await?;
        let stale = self.config.get().directory.stale;
        let age = known.loaded_at.elapsed();
        if outage >= stale || age >= known.age_max.saturating_add(stale) {
            return None;
        }
        tracing::debug!(workspace.id = %id, "SQL does not answer; using the last known state");
        let entry = match shared {
            Some(shared) => {
                let stores = (Some(shared), Sql::Away(known.read_at.row));
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
                    .map(InstanceFacts::from_cached)
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

    /// Duration of the current outage of SQL; it begins now if SQL answered until now.
    fn outage_duration(&self) -> Duration {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let now = now.max(1);
        let first = self
            .outage_since
            .compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        let since = first.err().unwrap_or(now);
        Duration::from_millis(now.saturating_sub(since))
    }

    /// Drops the entry of a workspace that changed, here or on another replica, and queues its last heartbeat for
    /// SQL, since its row is read now.
    fn drop_on_invalidation(&self) {
        let (cache, known) = (self.cache.clone(), self.known.clone());
        let (changes, heartbeats) = (Arc::clone(&self.changes), Arc::clone(&self.heartbeats));
        self.coherence.on_invalidation(move |what| {
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
                    Invalidation::Credential(_)
                    | Invalidation::Grant(..)
                    | Invalidation::Lineage(_)
                    | Invalidation::Stops => {}
                }
            }
        });
    }
}
